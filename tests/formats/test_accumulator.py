"""The accumulator float: conversion, addition with its corner, FP16 output, granules."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kohakutpu.formats import mxfp7, words
from kohakutpu.formats.accumulator import AccumulatorFormat

F = AccumulatorFormat()
FORMATS = [AccumulatorFormat(mantissa) for mantissa in range(10, 17)]


def u32(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.uint32)


# ---- an independent reference ----------------------------------------------------------------------------


def value_of(word: int, mw: int) -> Fraction:
    exponent = (word >> mw) & 127
    if exponent == 0:
        return Fraction(0)
    magnitude = Fraction((word & ((1 << mw) - 1)) + (1 << mw), 1 << mw) * Fraction(2) ** (exponent - 63)
    return -magnitude if word >> (mw + 7) else magnitude


def significand_of(magnitude: Fraction, mw: int) -> tuple[int, int]:
    """(exponent, mw-bit fraction) of a positive value rounded to nearest even, exponent not limited."""
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    rounded = round(magnitude / Fraction(2) ** (exponent - mw))  # Python rounds halves to even
    if rounded == 2 << mw:
        exponent, rounded = exponent + 1, 1 << mw
    return exponent, rounded - (1 << mw)


def nearest(value: Fraction, mw: int) -> int:
    """The word nearest to `value`: flushed below the least exponent, saturated above the greatest."""
    if value == 0:
        return 0
    exponent, fraction = significand_of(abs(value), mw)
    sign = (value < 0) << (mw + 7)
    if exponent + 63 <= 0:
        return 0
    if exponent + 63 >= 127:
        return sign | (1 << (mw + 7)) - 1
    return sign | (exponent + 63) << mw | fraction


def in_corner(a: int, b: int, mw: int) -> bool:
    """Whether the subtraction drops a residue that leaves exactly half a unit.

    What the adder keeps of the smaller operand is a multiple of 2^-8 units of the larger one.
    """
    if (a ^ b) >> (mw + 7) == 0:
        return False
    big, small = sorted((abs(value_of(a, mw)), abs(value_of(b, mw))), reverse=True)
    if not small:
        return False
    grain = Fraction(2) ** (significand_of(big, mw)[0] - mw - 8)
    kept = small // grain * grain
    halves = (big - kept) / Fraction(2) ** (significand_of(big - kept, mw + 9)[0] - mw - 1)
    return kept != small and halves.denominator == 1 and halves.numerator % 2 == 1


def oracle_add(a: int, b: int, mw: int) -> int:
    if value_of(a, mw) == 0 or value_of(b, mw) == 0:
        return nearest(value_of(a, mw) + value_of(b, mw), mw) if (value_of(a, mw) or value_of(b, mw)) else 0
    exact = nearest(value_of(a, mw) + value_of(b, mw), mw)
    return exact + 1 if in_corner(a, b, mw) else exact


mantissas = st.sampled_from(range(10, 17))


@st.composite
def pairs(draw):
    """(mw, a, b) with exponents that often lie within the adder's reach of each other."""
    mw = draw(mantissas)
    near = draw(st.integers(0, 127))
    fractions = st.one_of(st.integers(0, (1 << mw) - 1), st.sampled_from([0, 1, (1 << mw) - 1, 1 << (mw - 1)]))

    def one(exponent):
        return draw(st.integers(0, 1)) << (mw + 7) | exponent << mw | draw(fractions)

    return mw, one(near), one(min(max(near - draw(st.integers(-3, mw + 12)), 0), 127))


@given(pairs())
@settings(max_examples=600)
def test_addition_against_the_reference(case):
    mw, a, b = case
    assert int(AccumulatorFormat(mw).add(u32(a), u32(b))[0]) == oracle_add(a, b, mw)


@given(pairs())
def test_addition_commutes(case):
    mw, a, b = case
    f = AccumulatorFormat(mw)
    if (a >> mw) & 127 and (b >> mw) & 127:
        assert f.add(u32(a), u32(b)) == f.add(u32(b), u32(a))


@pytest.mark.parametrize("f", FORMATS, ids=repr)
def test_corner_is_always_one_high(f):
    """Random subtractive pairs far enough apart: right, or one unit too large where the reference says so."""
    rng = np.random.default_rng(f.mantissa)
    count, mw = 3000, f.mantissa
    gap = rng.integers(9, mw + 10, count)
    exponent = rng.integers(40, 100, count)
    # sparse fractions make the exact half common
    fraction = rng.integers(0, 1 << mw, (2, count)) & rng.integers(0, 1 << mw, (2, count))
    fraction[1] &= rng.integers(0, 1 << mw, count) & rng.integers(0, 1 << mw, count) | 1
    a = (exponent << mw | fraction[0]).astype(np.uint32)
    b = ((exponent - gap) << mw | fraction[1] | f.sign).astype(np.uint32)
    got = f.add(a, b)
    exact = [nearest(value_of(int(x), mw) + value_of(int(y), mw), mw) for x, y in zip(a, b, strict=True)]
    high = got.astype(np.int64) - exact
    corner = [in_corner(int(x), int(y), mw) for x, y in zip(a, b, strict=True)]
    assert (high == np.array(corner)).all()
    assert sum(corner) > 3


def test_additions_of_one_sign_are_rounded_to_nearest_even():
    rng = np.random.default_rng(5)
    a, b = ((rng.integers(20, 110, 2000) << 14) | rng.integers(0, 1 << 14, 2000) for _ in range(2))
    got = F.add(a.astype(np.uint32), b.astype(np.uint32))
    assert [int(x) for x in got] == [nearest(value_of(int(x), 14) + value_of(int(y), 14), 14) for x, y in zip(a, b)]


@pytest.mark.parametrize(
    "a, b, result",
    [
        (0x0FC000, 0x0FC000, 0x100000), (0x0FC000, 0x2FC000, 0x000000), (0x0FC001, 0x2FC000, 0x0C4000),
        (0x004001, 0x204000, 0x000000), (0x1FBFFF, 0x1FBFFF, 0x1FFFFF), (0x3F8000, 0x3F8000, 0x3FFFFF),
        (0x203FFF, 0x000005, 0x000000), (0x0FC000, 0x0C0000, 0x0FC000), (0x0FC001, 0x0C0000, 0x0FC002),
        (0x0FC000, 0x0C0001, 0x0FC001), (0x0FFFFF, 0x0C0000, 0x100000), (0x0FC000, 0x2A3FFF, 0x0FC000),
        (0x0FC000, 0x2C5001, 0x0FBFFE), (0x0FC000, 0x2C5000, 0x0FBFFE), (0x0FC005, 0x2C0001, 0x0FC005),
        (0x0FC004, 0x2C0001, 0x0FC004), (0x1FFFFF, 0x3F8000, 0x1FFFFF),
        (0x008000, 0x204000, 0x004000), (0x204000, 0x008001, 0x004002),
    ],
)  # fmt: skip
def test_addition_vectors(a, b, result):
    assert int(F.add(u32(a), u32(b))[0]) == result


@pytest.mark.parametrize("a, b, exact", [(0x0FC000, 0x2C5001, 0x0FBFFD), (0x0FC005, 0x2C0001, 0x0FC004),
                                         (0x0FC004, 0x2C0001, 0x0FC003)])  # fmt: skip
def test_the_corner_differs_from_correct_rounding(a, b, exact):
    assert nearest(value_of(a, 14) + value_of(b, 14), 14) == exact
    assert int(F.add(u32(a), u32(b))[0]) == exact + 1


def test_one_zero_passes_the_other_verbatim():
    assert F.add(u32(0x203FFF), u32(0x2FC123)).tolist() == [0x2FC123]
    assert F.add(u32(0x1FFFFF), u32(0x000001)).tolist() == [0x1FFFFF]
    assert F.add(u32(0), u32(0x203FFF)).tolist() == [0]  # a LOAD of a word with exponent 0 stores zero


@given(mantissas, st.data())
def test_addition_is_monotone_without_cancellation(mw, data):
    f = AccumulatorFormat(mw)
    a, b, c = (data.draw(st.integers(1 << mw, f.largest)) for _ in range(3))
    low, high = sorted((a, b))
    assert f.add(u32(low), u32(c)) <= f.add(u32(high), u32(c))


# ---- from the integer product ----------------------------------------------------------------------------


def oracle_block(s: int, fa: int, fb: int, anchor: int, mw: int) -> int:
    if s == 0:
        return 0
    value = Fraction(abs(s) * (8 + fa % 8) * (8 + fb % 8), 64) * Fraction(2) ** (fa // 8 + fb // 8 - anchor)
    exponent, fraction = significand_of(value, mw)
    return (s < 0) << (mw + 7) | (exponent + 63) % 128 << mw | fraction


byte = st.integers(0, 255)


@given(mantissas, st.integers(-129024, 131072), byte, byte, byte)
@settings(max_examples=400)
def test_conversion_against_the_reference(mw, s, fa, fb, anchor):
    got = AccumulatorFormat(mw).from_block(np.array([s]), np.array([fa], np.uint8), np.array([fb], np.uint8), anchor)
    assert int(got[0]) == oracle_block(s, fa, fb, anchor, mw)


@pytest.mark.parametrize(
    "s, fa, fb, anchor, result",
    [
        (0, 0xA0, 0xA0, 40, 0x000000), (1, 0xA0, 0xA0, 40, 0x0FC000), (-1, 0xA0, 0xA0, 40, 0x2FC000),
        (131072, 0xA0, 0xA0, 40, 0x140000), (-129024, 0xA0, 0xA0, 40, 0x33FE00), (32767, 0xA0, 0xA0, 40, 0x137FFF),
        (32769, 0xA0, 0xA0, 40, 0x138000), (32771, 0xA0, 0xA0, 40, 0x138002), (65535, 0xA0, 0xA0, 40, 0x13C000),
        (127008, 0xFF, 0xFF, 40, 0x19ED03), (131072, 0xFF, 0xFF, 40, 0x19F080), (1, 0x00, 0x00, 40, 0x05C000),
        (-127008, 0x07, 0x07, 40, 0x2A6D03), (12345, 0xA3, 0x9D, 40, 0x132BBF), (-77777, 0xB5, 0x8E, 40, 0x33EBFF),
        (99999, 0xA7, 0xA7, 40, 0x1455D4), (1, 0xA0, 0xA0, 48, 0x0DC000), (1, 0xA0, 0xA0, 102, 0x004000),
        (1, 0xA0, 0xA0, 103, 0x000000), (1, 0xA0, 0xA0, 104, 0x1FC000), (1, 0xF8, 0xF8, 0, 0x1F4000),
        (131072, 0xFF, 0xFF, 0, 0x03F080),
    ],
)  # fmt: skip
def test_conversion_vectors(s, fa, fb, anchor, result):
    assert int(F.from_block(np.array([s]), np.array([fa]), np.array([fb]), anchor)[0]) == result


def test_the_natural_anchor_gives_the_value():
    q, scale = mxfp7.quantise(np.random.default_rng(1).integers(0, 0x7C00, (2, 4, 32)).astype(np.uint16))
    s = mxfp7.block_products(q[0], q[1])
    got = F.to_float(F.from_block(s, scale[0][:, None], scale[1][None, :], mxfp7.ANCHOR))
    value = mxfp7.to_float(q, scale)
    assert np.allclose(got, value[0] @ value[1].T, rtol=2**-14, atol=0)


@given(mantissas, st.lists(st.integers(-129024, 131072), min_size=2, max_size=8), byte, byte)
def test_conversion_is_monotone(mw, sums, fa, fb):
    f = AccumulatorFormat(mw)
    ordered = np.sort(np.array(sums))
    assert (np.diff(f.to_float(f.from_block(ordered, np.uint8(fa), np.uint8(fb), 40))) >= 0).all()


# ---- to FP16 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "word, half",
    [
        (0x000000, 0x0000), (0x0FC000, 0x3C00), (0x2FC000, 0xBC00), (0x0FC008, 0x3C00), (0x0FC018, 0x3C02),
        (0x0FC009, 0x3C01), (0x0FFFF8, 0x4000), (0x0C4000, 0x0400), (0x0C3FF8, 0x0400), (0x0C3FF7, 0x0000),
        (0x2C0000, 0x8000), (0x13BFF0, 0x7BFF), (0x13BFF8, 0x7BFF), (0x13C000, 0x7BFF), (0x3FFFFF, 0xFBFF),
        (0x200001, 0x8000),
    ],
)  # fmt: skip
def test_fp16_vectors(word, half):
    assert int(F.to_fp16(u32(word))[0]) == half


@given(mantissas, st.data())
@settings(max_examples=300)
def test_fp16_against_the_reference(mw, data):
    f = AccumulatorFormat(mw)
    exponent = data.draw(st.one_of(st.integers(44, 82), st.integers(0, 127)))
    word = data.draw(st.integers(0, 1)) << (mw + 7) | exponent << mw | data.draw(st.integers(0, (1 << mw) - 1))
    sign = 0x8000 if word & f.sign else 0
    magnitude = abs(value_of(word, mw))
    wanted = 0
    if magnitude:
        e, fraction = significand_of(magnitude, 10)
        wanted = 0 if e < -14 else 0x7BFF if e > 15 else (e + 15) << 10 | fraction
    assert int(f.to_fp16(u32(word))[0]) == sign | wanted


@pytest.mark.parametrize("f", FORMATS, ids=repr)
def test_fp16_normal_numbers_pass_through(f):
    halves = np.arange(0x0400, 0x7C00)
    back = f.to_fp16(((halves << (f.mantissa - 10)) + (48 << f.mantissa)).astype(np.uint32))
    assert (back == halves).all()


@pytest.mark.parametrize("f", FORMATS, ids=repr)
def test_fp16_is_monotone(f):
    magnitudes = np.arange(40 << f.mantissa, 90 << f.mantissa, 3).astype(np.uint32)
    assert (np.diff(f.to_fp16(magnitudes).astype(int)) >= 0).all()


# ---- granules and the whole path -------------------------------------------------------------------------


@given(mantissas, st.lists(st.integers(0, 2**24 - 1), min_size=32, max_size=32))
def test_granules_round_trip(mw, lanes):
    f = AccumulatorFormat(mw)
    tile = np.array(lanes, dtype=np.uint32).reshape(2, 16) & np.uint32(2 * f.sign - 1)
    granules = f.pack_granules(tile)
    for row, pair in zip(tile.tolist(), granules, strict=True):
        low, high = words.to_ints(pair)
        assert low | high << 256 == sum(value << f.width * g for g, value in enumerate(row))
    assert (f.unpack_granules(granules) == tile).all()


def test_bits_above_the_tile_are_ignored():
    tile = np.arange(16, dtype=np.uint32)[None] * 12345
    granules = F.pack_granules(tile)
    granules[0, 1, 3:] = 0xFFFFFFFF
    assert (F.unpack_granules(granules) == tile).all()


def operand(e_factor, l_factor, k_factor, offset, e_scale, count, mantissa):
    """The end-to-end stimulus: q int8[count,4,32] and scale uint8[count,4]."""
    e, lane, k = np.arange(count)[:, None, None], np.arange(4)[None, :, None], np.arange(32)[None, None, :]
    q = (e_factor * e + l_factor * lane + k_factor * k + offset) % 127 - 63
    e, lane = e[..., 0], lane[..., 0]
    return q.astype(np.int8), (8 * (e_scale(e, lane)) + mantissa(e, lane) % 8).astype(np.uint8)


def test_end_to_end_vector():
    a, fa = operand(7, 13, 29, 5, lambda e, n: 18 + (e + 2 * n) % 5, 4, lambda e, n: 3 * e + n)
    b, fb = operand(11, 17, 23, 3, lambda e, n: 17 + (2 * e + n) % 5, 6, lambda e, n: e + 5 * n)
    assert f"{words.to_ints(mxfp7.pack(a, fa, 'A'))[0]:064x}" == (
        "8d8c01d7563a92a7c06aa919411fc1f4d37abc87acda293c5c5fce3990a1b29b")  # fmt: skip
    assert f"{words.to_ints(mxfp7.pack(b, fb, 'B'))[0]:064x}" == (
        "8957377b7b3e8ee40ca2512695bc40c61d46f26d6b9f83882cddc41988959aa7")  # fmt: skip
    tile = np.zeros((2, 3, 4, 4), dtype=np.uint32)
    for kb in range(2):
        ea, eb = np.arange(2) * 2 + kb, np.arange(3) * 2 + kb
        s = mxfp7.outer_products(a[ea], b[eb])
        if kb == 0:
            assert s[0, 0].ravel().tolist() == [
                6326, 12165, -5872, 4158, 2670, 4151, 10712, 16384, -3780, -6657, 8373, 9687, -9976, -3241, 1970, -3233
            ]  # fmt: skip
        chain = F.from_block(s, fa[ea][:, None, :, None], fb[eb][None, :, None, :], 40)
        tile = F.add(tile, chain)
    lanes = tile.reshape(6, 16)
    wanted = "11D9A4 32D068 135014 12952E 1284CB 33879C 1351DB 137D3A 32BBEC 3334DC 13631F 13D8BE 323AAB 323000 338E48"
    assert [f"{word:06X}" for word in lanes[0]] == wanted.split() + ["32B981"]
    assert [f"{word:064x}" for word in words.to_ints(F.pack_granules(lanes[:1]))] == [
        "62f93631fccd3732bbec4df4e9351dbce1e71284cb4a54b935014cb41a11d9a4",
        "00cae60738e48c8c00323aab4f".zfill(64),
    ]
    assert [f"{word:064x}" for word in words.to_ints(F.emit_words(lanes))] == """
        eb98f8e4e300e3ab7bff7632f34eebbf77d4751ef87a684d69537501ed065d9a
        f57f737eef35e6f0774571ad70fb6ba5796570917106f041e9e168c06d136e14
        7485f0dc745f67beec976fd6f8ae7bfff80b739576717625ed25e57ce3616658
        6425739ff07fea33e959f7b4de88e2e17bff78aaf536ecd9782079ff6728ee8d
        fbff7bffe8b3f91ef46c71f2eda5e5e778fd72d773726c1c788c73ce727cf394
        744ef81b7a4ef4e87312ef8a726f65cbeea6713bfb1e7bfff83171b1704f770e""".split()


# ---- refusals --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mantissa", [9, 17, 0, -14, 14.0, "14", True, None])
def test_other_widths_are_refused(mantissa):
    with pytest.raises(ValueError, match="accumulator mantissa"):
        AccumulatorFormat(mantissa)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: F.pack_granules(np.zeros((2, 15), np.uint32)), r"expected uint32\[n,16\], got uint32\[2, 15\]"),
        (lambda: F.emit_words(np.zeros((2, 16), np.int64)), r"expected uint32\[n,16\], got int64"),
        (lambda: F.unpack_granules(np.zeros((2, 16), np.uint32)), r"expected uint32\[n,2,8\], got uint32"),
        (
            lambda: F.from_block(np.array([1]), np.array([0]), np.array([0]), 256),
            r"anchor 256 does not fit 8 bits \(0..255\)",
        ),
        (lambda: F.from_block(np.array([1]), np.array([0]), np.array([0]), -1), "anchor -1 "),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()
