"""E8M15 conversions: the published checksums, the edge table, and an exact reference."""

import zlib
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kohakutpu.formats import e8m15, fp16, fp32
from kohakutpu.formats.accumulator import AccumulatorFormat

STRIDE = np.arange(0, 1 << 24, 7).astype(np.uint32)


def u32(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.uint32)


def crc(values: np.ndarray, size: int) -> str:
    """CRC-32 of values written big-endian in `size` bytes each."""
    octets = values.astype(">u4").view(np.uint8).reshape(-1, 4)[:, 4 - size :]
    return f"{zlib.crc32(octets.tobytes()):08X}"


def stream(count: int) -> np.ndarray:
    x, out = 0x01234567, []
    for _ in range(count):
        x = (1664525 * x + 1013904223) % 2**32
        out.append(x)
    return np.array(out, dtype=np.uint32)


# ---- published checksums ---------------------------------------------------------------------------------


def test_checksum_of_every_fp16():
    assert crc(e8m15.from_fp16(np.arange(1 << 16).astype(np.uint16)), 3) == "D323A616"


def test_checksum_to_fp16():
    assert crc(e8m15.to_fp16(STRIDE), 2) == "78AD8CA9"


def test_checksum_to_fp32():
    assert crc(e8m15.to_fp32(STRIDE), 4) == "CC784382"


def test_checksum_from_fp32():
    words = e8m15.from_fp32(stream(65536))
    assert [f"{word:06X}" for word in words[:3]] == ["1FEF84", "2411FE", "0F6962"]
    assert crc(words, 3) == "2CE98344"


@pytest.mark.parametrize("mantissa, wanted", [(14, "16AE478D"), (16, "17956BBF")])
def test_checksum_from_accumulator(mantissa, wanted):
    words = stream(65536) >> np.uint32(32 - mantissa - 8)
    assert crc(e8m15.from_accumulator(words, mantissa), 3) == wanted


# ---- edges -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "half, word",
    [
        (0x0000, 0x000000), (0x8000, 0x800000), (0x0001, 0x338000), (0x8001, 0xB38000), (0x03FF, 0x387FC0),
        (0x0400, 0x388000), (0x3C00, 0x3F8000), (0x7BFF, 0x477FE0), (0x7C00, 0x7F8000), (0xFC00, 0xFF8000),
        (0x7C01, 0x7F8020), (0xFE00, 0xFFC000), (0x7FFF, 0x7FFFE0),
    ],
)  # fmt: skip
def test_from_fp16(half, word):
    assert int(e8m15.from_fp16(np.array([half], np.uint16))[0]) == word


@pytest.mark.parametrize(
    "word, half",
    [
        (0x000000, 0x0000), (0x800000, 0x8000), (0x007FFF, 0x0000), (0x807FFF, 0x8000),  # any M at E = 0
        (0x330000, 0x0000), (0x330001, 0x0001), (0x338000, 0x0001), (0x33C000, 0x0002),  # 2^-25 ties to 0
        (0x387FE0, 0x0400), (0x387FDF, 0x03FF), (0x388000, 0x0400), (0x3F8010, 0x3C00), (0x3F8030, 0x3C02),
        (0x3F8011, 0x3C01), (0x477FE0, 0x7BFF), (0x477FEF, 0x7BFF), (0x477FF0, 0x7BFF), (0x478000, 0x7BFF),
        (0x7F7FFF, 0x7BFF), (0xFF7FFF, 0xFBFF), (0x7F8000, 0x7C00), (0xFF8000, 0xFC00), (0x7F8001, 0x7E00),
        (0x7FC000, 0x7E00), (0xFFFFFF, 0xFFFF), (0x7F8020, 0x7E01), (0x008000, 0x0000),
    ],
)  # fmt: skip
def test_to_fp16(word, half):
    assert int(e8m15.to_fp16(u32(word))[0]) == half


@pytest.mark.parametrize(
    "single, word",
    [
        (0x00000000, 0x000000), (0x80000000, 0x800000), (0x007FFFFF, 0x000000), (0x807FFFFF, 0x800000),
        (0x00800000, 0x008000), (0x3F800080, 0x3F8000), (0x3F800180, 0x3F8002), (0x3F800081, 0x3F8001),
        (0x3FFFFF80, 0x400000), (0x7F7FFF7F, 0x7F7FFF), (0x7F7FFF80, 0x7F8000), (0xFF7FFFFF, 0xFF8000),
        (0x7F800000, 0x7F8000), (0xFF800000, 0xFF8000), (0x7F800001, 0x7FC000), (0xFFC12345, 0xFFC123),
        (0x7FFFFFFF, 0x7FFFFF),
    ],
)  # fmt: skip
def test_from_fp32(single, word):
    assert int(e8m15.from_fp32(u32(single))[0]) == word


@pytest.mark.parametrize(
    "word, single",
    [(0x000001, 0x00000000), (0x807FFF, 0x80000000), (0x008000, 0x00800000), (0x7F8000, 0x7F800000),
     (0x7F8001, 0x7F800100), (0xFFFFFF, 0xFFFFFF00)],
)  # fmt: skip
def test_to_fp32(word, single):
    assert int(e8m15.to_fp32(u32(word))[0]) == single


@pytest.mark.parametrize(
    "mantissa, word, result",
    [
        (14, 0x000000, 0x000000), (14, 0x203FFF, 0x800000), (14, 0x0FC000, 0x3F8000), (14, 0x2FC001, 0xBF8002),
        (14, 0x1FC000, 0x7F8000), (14, 0x3FC000, 0xFF8000), (14, 0x1FC001, 0x7F8002), (14, 0x1FBFFF, 0x5F7FFE),
        (16, 0x3F0001, 0x3F8000), (16, 0x3F0003, 0x3F8002), (16, 0x3FFFFF, 0x400000), (16, 0x7EFFFF, 0x5F8000),
        (16, 0x7F0000, 0x7F8000), (16, 0x7F0001, 0x7F8001), (16, 0x7F0003, 0x7F8001), (16, 0xFFFFFF, 0xFFFFFF),
        (10, 0x00FC01, 0x3F8020), (15, 0x1F8001, 0x3F8001),
    ],
)  # fmt: skip
def test_from_accumulator(mantissa, word, result):
    assert int(e8m15.from_accumulator(u32(word), mantissa)[0]) == result


# ---- an exact reference ----------------------------------------------------------------------------------


def value_of(word: int) -> Fraction:
    exponent = (word >> 15) & 255
    if exponent == 0:
        return Fraction(0)
    magnitude = Fraction((word & 0x7FFF) + 0x8000, 0x8000) * Fraction(2) ** (exponent - 127)
    return -magnitude if word >> 23 else magnitude


def nearest(value: Fraction, fraction_bits: int, bias: int, least: int) -> int:
    """Magnitude bits of the nearest number, ties to even, on a grid that stops at exponent `least`."""
    magnitude = abs(value)
    exponent = least
    while magnitude >= Fraction(2) ** (exponent + 1):
        exponent += 1
    steps = round(magnitude / Fraction(2) ** (exponent - fraction_bits))
    return steps + (exponent + bias - 1 << fraction_bits)


words = st.one_of(
    st.integers(0, 0xFFFFFF),
    # FP16's range and its ends
    st.builds(lambda s, e, m: s << 23 | e << 15 | m, st.integers(0, 1), st.integers(99, 145), st.integers(0, 0x7FFF)),
    st.builds(lambda e, m: e << 15 | m << 4, st.integers(99, 145), st.integers(0, 0x7FF)),
)
finite = words.filter(lambda word: word & 0x7FFFFF < 0x7F8000)


@given(finite)
@settings(max_examples=400)
def test_to_fp16_against_the_reference(word):
    wanted = min(nearest(value_of(word), 10, 15, -14), 0x7BFF)
    assert int(e8m15.to_fp16(u32(word))[0]) == wanted | (word >> 8) & 0x8000


@given(st.integers(0, 2**32 - 1).filter(lambda bits: bits & 0x7FFFFFFF < 0x7F800000))
@settings(max_examples=400)
def test_from_fp32_against_the_reference(bits):
    value = Fraction(float(fp32.to_float(u32(bits))[0]))
    wanted = nearest(value, 15, 127, -126) if abs(value) >= Fraction(2) ** -126 else 0
    assert int(e8m15.from_fp32(u32(bits))[0]) == min(wanted, 0x7F8000) | (bits >> 8) & 0x800000


@given(st.floats(allow_nan=False, allow_infinity=False))
@settings(max_examples=300)
def test_from_float_rounds_once(value):
    exact = nearest(Fraction(value), 15, 127, -126) if abs(value) < 2.0**128 else 0x7F8000
    below = abs(Fraction(value)) < Fraction(2) ** -126 * (1 - Fraction(1, 2**17))
    wanted = 0 if below else min(exact, 0x7F8000)
    assert int(e8m15.from_float(value)) & 0x7FFFFF == wanted


def test_from_float_special_values_and_shapes():
    got = e8m15.from_float(np.array([[np.inf, -np.inf], [np.nan, -0.0]]))
    assert got.tolist() == [[0x7F8000, 0xFF8000], [0x7FC000, 0x800000]]
    # 1 + 2^-16 is a tie, a hair more is not, and binary32 could not tell them apart
    assert e8m15.from_float([1 + 2.0**-16, 1 + 2.0**-16 + 2.0**-50]).tolist() == [0x3F8000, 0x3F8001]


@given(finite)
def test_to_float_is_exact(word):
    assert Fraction(float(e8m15.to_float(u32(word))[0])) == value_of(word)


# ---- round trips and order -------------------------------------------------------------------------------


def test_fp16_survives_every_round_trip():
    halves = np.arange(1 << 16).astype(np.uint16)
    back = e8m15.to_fp16(e8m15.from_fp16(halves))
    nan = (halves & 0x7FFF) > 0x7C00
    assert (back == np.where(nan, halves | 0x200, halves)).all()
    assert (e8m15.to_float(e8m15.from_fp16(halves[~nan])) == fp16.to_float(halves[~nan])).all()


def test_fp32_round_trip_is_the_identity_but_for_zero_and_nan():
    back = e8m15.from_fp32(e8m15.to_fp32(STRIDE))
    magnitude = STRIDE & 0x7FFFFF
    wanted = np.where(magnitude < 0x8000, STRIDE & 0x800000, np.where(magnitude > 0x7F8000, STRIDE | 0x4000, STRIDE))
    assert (back == wanted).all()


@pytest.mark.parametrize("mantissa", range(10, 16))
def test_narrow_accumulators_convert_exactly(mantissa):
    f = AccumulatorFormat(mantissa)
    words = np.arange(0, 127 << mantissa, 5).astype(np.uint32)
    words = np.concatenate([words, words | np.uint32(f.sign)])
    assert (e8m15.to_float(e8m15.from_accumulator(words, mantissa)) == f.to_float(words)).all()


def test_the_wide_accumulator_rounds_to_nearest_even():
    f = AccumulatorFormat(16)
    words = np.arange(1 << 16, 127 << 16, 3).astype(np.uint32)
    assert (e8m15.from_accumulator(words, 16) == e8m15.from_float(f.to_float(words))).all()


@pytest.mark.parametrize("convert", [e8m15.to_fp16, e8m15.to_fp32])
def test_conversions_from_e8m15_are_monotone(convert):
    positive = np.arange(0, 0x7F8001).astype(np.uint32)
    assert (np.diff(convert(positive).astype(np.int64)) >= 0).all()


def test_conversion_from_fp32_is_monotone():
    positive = np.arange(0, 0x7F800001, 97).astype(np.uint32)
    assert (np.diff(e8m15.from_fp32(positive).astype(np.int64)) >= 0).all()


# ---- constants -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value, word",
    [(-1.4426950408889634, 0xBFB8AA), (1e-5, 0x3727C5), (128.0, 0x430000), (1.0, 0x3F8000), (-1.0, 0xBF8000),
     (0.0, 0x000000), (-0.0, 0x800000), (float("inf"), 0x7F8000), (float("-inf"), 0xFF8000),
     (1 + 255 / 2**23, 0x3F8000), (3.4028234e38, 0x7F7FFF), (float("nan"), 0x7FC000)],
)  # fmt: skip
def test_constants_are_truncated(value, word):
    assert e8m15.constant(value) == word


def test_a_constant_that_truncation_changes_differs_from_rounding():
    assert e8m15.constant(1e-5 * 1.00002) + 1 == int(e8m15.from_float(1e-5 * 1.00002))


@pytest.mark.parametrize("value", [3.5e38, -1e39])
def test_a_constant_out_of_range_is_refused(value):
    with pytest.raises(ValueError, match=r"constant .*e\+3. is outside the range of E8M15"):
        e8m15.constant(value)


def test_other_accumulator_widths_are_refused():
    with pytest.raises(ValueError, match="accumulator mantissa of 17 bits"):
        e8m15.from_accumulator(u32(0), 17)
