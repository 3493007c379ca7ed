"""The quantiser, operand words and block products."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kohakutpu.formats import fp16, mxfp7, words

LANE = np.arange(4)[:, None]
K = np.arange(32)[None, :]


def entry_of(lane: list[int]) -> np.ndarray:
    """One entry whose lane 0 is `lane` (padded with zeros) and whose other lanes are zero."""
    entry = np.zeros((1, 4, 32), dtype=np.uint16)
    entry[0, 0, : len(lane)] = lane
    return entry


# ---- an independent reference: Python integers and fractions ---------------------------------------------


def magnitude_of(half: int) -> Fraction:
    """Value of an FP16 magnitude with exponent 31 read as an ordinary one."""
    exponent, fraction = (half & 0x7FFF) >> 10, half & 0x3FF
    if exponent == 0:
        return Fraction(fraction, 2**24)
    return Fraction(1024 + fraction, 1024) * Fraction(2) ** (exponent - 15)


def scale_of(field: int) -> Fraction:
    return Fraction(8 + field % 8, 8) * Fraction(2) ** (field // 8 - 20)


ALL_SCALES = sorted((scale_of(field), field) for field in range(256))


def oracle_scale(lane: list[int]) -> int:
    """The smallest scale that keeps the peak within 63 steps, for a lane whose peak is zero or normal."""
    peak = max(magnitude_of(half) for half in lane)
    if peak == 0:
        return 0xA0
    return next(field for scale, field in ALL_SCALES if peak <= 63 * scale)


def oracle_q(half: int, field: int) -> int:
    """One significand, by the fixed-point steps of the hardware on Python integers."""
    exponent, significand = (half >> 10) & 31, half & 0x3FF
    if exponent:
        significand += 1024
    else:
        exponent = 1
    drop = 21 + field // 8 - 20 - exponent
    if significand == 0 or drop >= 8:
        return 0
    reciprocal = {8: 4096, 9: 3641, 10: 3277, 11: 2979, 12: 2731, 13: 2520, 14: 2341, 15: 2185}[8 + field % 8]
    doubled = significand * reciprocal // 2 ** (15 + drop)
    rounded = min((doubled + 1) // 2, 63)
    return -rounded if half & 0x8000 else rounded


halves = st.integers(0, 0xFFFF)
lanes = st.one_of(
    st.lists(halves, min_size=32, max_size=32),
    # one binade and its neighbours, so that every element keeps some bits
    st.integers(1, 28).flatmap(
        lambda e: st.lists(
            st.builds(lambda s, de, f: s << 15 | (e + de) << 10 | f, st.integers(0, 1), st.integers(0, 3),
                      st.integers(0, 1023)), min_size=32, max_size=32)),
)  # fmt: skip


@given(lanes)
@settings(max_examples=200)
def test_quantiser_against_the_reference(lane):
    q, scale = mxfp7.quantise(entry_of(lane))
    field = int(scale[0, 0])
    peak = max(half & 0x7FFF for half in lane)
    if peak == 0 or peak >= 0x400:
        assert field == oracle_scale(lane)
    assert q[0, 0].tolist() == [oracle_q(half, field) for half in lane]
    for code, half in zip(q[0, 0].tolist(), lane, strict=True):
        # half a step of rounding, and the reciprocal's own error of at most 2^-11 of the value
        value, step = magnitude_of(half), scale_of(field)
        assert abs(abs(code) * step - value) <= step / 2 + value / 2048


def test_every_peak():
    """All 32,768 lone peaks: the scale, and 56..63 for a normal one."""
    peaks = np.arange(1 << 15).astype(np.uint16)
    entries = np.zeros((1 << 13, 4, 32), dtype=np.uint16)
    entries[:, :, 5] = peaks.reshape(-1, 4)
    q, scale = mxfp7.quantise(entries)
    q, scale = q[:, :, 5].ravel(), scale.ravel()
    assert (q[0x400:] >= 56).all() and (q[0x400:] <= 63).all()
    step = 0
    for peak in range(0x400, 1 << 15):
        # scales only grow with the peak, so the search goes on from the last one
        while magnitude_of(peak) > 63 * ALL_SCALES[step][0]:
            step += 1
        assert scale[peak] == ALL_SCALES[step][1], hex(peak)
    assert all(q[peak] == oracle_q(peak, int(scale[peak])) for peak in range(1 << 15))


@pytest.mark.parametrize(
    "peak, code, field",
    [
        (0x3C00, 57, 0x71), (0x3EE0, 63, 0x76), (0x3EE1, 63, 0x76), (0x3F62, 63, 0x77), (0x3F63, 59, 0x78),
        (0x3FE0, 63, 0x78), (0x3FE1, 56, 0x79), (0x7BFF, 57, 0xF1), (0x7C00, 57, 0xF1), (0x7FFF, 57, 0xF9),
        (0x0001, 0, 0x01), (0x003F, 4, 0x00), (0x0200, 28, 0x01), (0x03E8, 63, 0x00), (0x03FF, 57, 0x01),
        (0x0000, 0, 0xA0), (0x8000, 0, 0xA0), (0xBC00, -57, 0x71),
    ],
)  # fmt: skip
def test_single_peaks(peak, code, field):
    q, scale = mxfp7.quantise(entry_of([peak]))
    assert (q[0, 0, 0], scale[0, 0]) == (code, field)
    assert not q[0, 0, 1:].any()
    assert (q[0, 1:] == 0).all() and (scale[0, 1:] == 0xA0).all()


def test_the_reciprocal_of_13_is_not_the_rounded_quotient():
    significand, drop = np.meshgrid(np.arange(1024, 2048), np.arange(8))

    def codes(reciprocal):
        doubled = (significand * reciprocal) >> (15 + drop)
        return (doubled + 1) >> 1

    assert mxfp7.RECIPROCAL[13] == 2520
    assert (codes(2520) != codes(2521)).sum() == 79


@given(lanes, st.integers(0, 31))
def test_quantising_is_monotone_within_a_lane(lane, position):
    """A larger magnitude never gets a smaller code than another of the same lane."""
    q, _ = mxfp7.quantise(entry_of(lane))
    order = np.argsort([half & 0x7FFF for half in lane], kind="stable")
    codes = np.abs(q[0, 0].astype(int))[order]
    assert (np.diff(codes) >= 0).all()


def test_values_come_back():
    rng = np.random.default_rng(7)
    numbers = rng.normal(size=(16, 4, 32))
    q, scale = mxfp7.quantise(fp16.from_float(numbers))
    error = np.abs(mxfp7.to_float(q, scale) - numbers)
    assert (error <= np.abs(numbers).max(axis=2, keepdims=True) / 110).all()


# ---- operand words ---------------------------------------------------------------------------------------

FIRST = ((9377 * LANE + 2711 * K + 12345) % 65536).astype(np.uint16)[None]
SECOND = FIRST.copy()
SECOND[(SECOND & 0x7C00) == 0x7C00] ^= 0x4000
SECOND[:, 2] &= 0x83FF
SECOND[:, 3] &= 0x8FFF
VECTORS = {
    ("first", "A"): """
        0000000000853f000010a7c00000740000000000000000000000007fedf7ecf4
        0000000000000000000000003ff80003ff89e00000ef180000000000edf7ecf4
        01ffc4b00000009400000000000000000000000087000000110c0000edf7ecf4
        000000000043ac00000875c00000520000000000000000000000007fedf7ecf4""",
    ("first", "B"): """
        0001d0000000000008000002800000f8000040000014000007e0007fedf7ecf4
        000007700000460003f800003c000002780000000001fc00001e0000edf7ecf4
        0128000fe00000f00000096000010000008000003000000800000380edf7ecf4
        000148000000000004000001c00000b800002000000e00000580007fedf7ecf4""",
    ("second", "A"): """
        0000000000853f000453b000000031feaec876784689a7c46d5e246bede20015
        00000000000000000000001ffc4fbbce560eec8e05f32ca06664c331ede20015
        01ffc4b0000000000000000000005e6012b28f939126157920ab37fcede20015
        000000000043ac00043ab000000075739c9c1de6e4adbfe58e1f6d70ede20015""",
}


@pytest.mark.parametrize("which, layout", VECTORS)
def test_operand_word_vectors(which, layout):
    q, scale = mxfp7.quantise({"first": FIRST, "second": SECOND}[which])
    assert words.to_ints(mxfp7.pack(q, scale, layout)) == [int(line, 16) for line in VECTORS[which, layout].split()]


codes = st.lists(st.integers(-64, 63), min_size=128, max_size=128)


@given(codes, st.lists(st.integers(0, 255), min_size=4, max_size=4), st.sampled_from("AB"))
def test_packing_bit_by_bit(flat, scales, layout):
    q = np.array(flat, dtype=np.int8).reshape(1, 4, 32)
    scale = np.array([scales], dtype=np.uint8)
    packed = mxfp7.pack(q, scale, layout)
    for w, value in enumerate(words.to_ints(packed)):
        for lane in range(4):
            assert (value >> (24 - 8 * lane)) & 0xFF == scales[lane]
            for kk in range(8):
                slot = 8 * lane + kk if layout == "A" else 4 * kk + lane
                assert (value >> (249 - 7 * slot)) & 0x7F == int(q[0, lane, 8 * w + kk]) & 0x7F
    back_q, back_scale = mxfp7.unpack(packed, layout)
    assert (back_q == q).all() and (back_scale == scale).all()
    assert back_q.dtype == np.int8 and back_scale.dtype == np.uint8


@given(st.lists(st.integers(0, 2**256 - 1), min_size=4, max_size=4), st.sampled_from("AB"))
def test_unpacking_keeps_every_bit_of_any_word(values, layout):
    """Only the scales of words 1..3 are not looked at."""
    q, scale = mxfp7.unpack(words.from_ints(values)[None], layout)
    again = words.to_ints(mxfp7.pack(q, scale, layout))
    assert [v >> 32 for v in again] == [v >> 32 for v in values]
    assert [v & 0xFFFFFFFF for v in again] == [values[0] & 0xFFFFFFFF] * 4


def test_the_two_layouts_are_a_transpose_of_the_slots():
    q, scale = mxfp7.quantise(SECOND)
    a, b = (words.to_ints(mxfp7.pack(q, scale, layout)) for layout in "AB")
    for first, second in zip(a, b, strict=True):
        slots = [[(value >> (249 - 7 * s)) & 0x7F for s in range(32)] for value in (first, second)]
        assert np.array_equal(np.array(slots[0]).reshape(4, 8).T, np.array(slots[1]).reshape(8, 4))


# ---- products --------------------------------------------------------------------------------------------


@given(codes, codes)
@settings(max_examples=30)
def test_block_products_are_exact(flat_a, flat_b):
    a, b = (np.array(flat, dtype=np.int8).reshape(4, 32) for flat in (flat_a, flat_b))
    wanted = [[sum(int(x) * int(y) for x, y in zip(a[i], b[j], strict=True)) for j in range(4)] for i in range(4)]
    assert mxfp7.block_products(a, b).tolist() == wanted
    assert mxfp7.outer_products(a[None], b[None])[0, 0].tolist() == wanted


def test_extreme_products_and_broadcasting():
    low, high = np.full((1, 4, 32), -64, np.int8), np.full((1, 4, 32), 63, np.int8)
    assert (mxfp7.block_products(low, low) == 131072).all()
    assert (mxfp7.block_products(low, high) == -129024).all()
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-64, 64, (n, 4, 32)).astype(np.int8) for n in (3, 5))
    assert (mxfp7.outer_products(a, b) == mxfp7.block_products(a[:, None], b[None])).all()
    assert mxfp7.outer_products(a, b).dtype == np.int64


# ---- refusals --------------------------------------------------------------------------------------------

Q, SCALE = np.zeros((2, 4, 32), np.int8), np.zeros((2, 4), np.uint8)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: mxfp7.quantise(np.zeros((2, 4, 31), np.uint16)), r"entries: expected uint16\[n,4,32\], got uint16"),
        (lambda: mxfp7.quantise(np.zeros((2, 4, 32))), r"entries: expected uint16\[n,4,32\], got float64"),
        (lambda: mxfp7.pack(Q, SCALE, "C"), "operand layout 'C' is neither 'A' nor 'B'"),
        (lambda: mxfp7.pack(Q + np.int8(64), SCALE, "A"), r"q: 64..64 does not fit 7 signed bits \(-64..63\)"),
        (lambda: mxfp7.pack(Q - np.int8(65), SCALE, "A"), r"q: -65..-65 does not fit"),
        (lambda: mxfp7.pack(Q, SCALE[:1], "A"), "2 entries of q but 1 of scale"),
        (lambda: mxfp7.pack(Q, SCALE.astype(np.int64), "A"), r"scale: expected uint8\[n,4\], got int64"),
        (lambda: mxfp7.unpack(np.zeros((2, 4, 7), np.uint32), "A"), r"operand words: expected uint32\[n,4,8\]"),
        (lambda: mxfp7.unpack(np.zeros((2, 4, 8), np.uint32), "a"), "operand layout 'a'"),
    ],
)  # fmt: skip
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_no_entries():
    q, scale = mxfp7.quantise(np.zeros((0, 4, 32), np.uint16))
    assert q.shape == (0, 4, 32) and mxfp7.pack(q, scale, "A").shape == (0, 4, 8)
