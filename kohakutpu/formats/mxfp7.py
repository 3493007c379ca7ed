"""MXFP7: 7-bit significands that share one E5M3 scale per lane of 32, the matmul cluster's operand format.

Source: spec, cluster: MXFP7, integer product; and `docs/formats.md`. An *entry* is 4 lanes x 32 elements along
K. In memory it is FP16 (256 bytes) or four 256-bit operand words (128 bytes); word w holds elements 8w..8w+7
of every lane, in the A layout lane by lane and in the B layout element by element.
"""

from __future__ import annotations

import numpy as np

from kohakutpu.formats import words
from kohakutpu.formats.bits import leading_one

LANES = 4
BLOCK = 32
WORDS = 4  # operand words of an entry
SCALE_BIAS = 20
ANCHOR = 2 * SCALE_BIAS  # the anchor at which a block product has its natural value

# 32768 / (8 + M) as the hardware has it: the entry for 13 is 2520, not the nearest integer 2521
RECIPROCAL = np.array([0] * 8 + [4096, 3641, 3277, 2979, 2731, 2520, 2341, 2185], dtype=np.int64)
_TOP_DOWN = np.arange(49, -1, -7, dtype=np.uint64)  # the eight 7-bit slots of a 56-bit group, first on top


def quantise(entries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """FP16 entries uint16[n,4,32] to (q int8[n,4,32] in -63..63, scale uint8[n,4]).

    The scale is the smallest one that keeps the lane's peak within 63 steps. Infinity and NaN are read as
    ordinary numbers with exponent 31, so the result is always finite.
    """
    entries = words.checked(entries, "entries", np.uint16, LANES, BLOCK)
    bits = entries.astype(np.int64)
    magnitude = bits & 0x7FFF
    peak_exponent, peak = _decode(magnitude.max(axis=2))
    zero = peak == 0
    # a subnormal peak is normalised; its exponent may go below the smallest scale
    normal = np.where(zero, 1024, peak)
    lead = 10 - leading_one(normal)
    normal <<= lead
    steps = (normal + 125) // 126  # ceil(peak / 126), 9..17
    carry = steps > 15
    steps = np.where(carry, steps - 8, steps)
    exponent = np.where(zero, 0, np.clip(peak_exponent - lead - 21 + carry, -SCALE_BIAS, 11))
    steps = np.where(zero, 8, steps)

    element_exponent, significand = _decode(magnitude)
    shift = 21 + exponent[..., None] - element_exponent
    # a product is below 2^23, so that a shift of 8 leaves nothing
    scaled = (significand * RECIPROCAL[steps][..., None]) >> (15 + np.clip(shift, 0, 8))
    q = np.minimum((scaled >> 1) + (scaled & 1), 63)  # halves away from zero
    q = np.where(bits >> 15, -q, q).astype(np.int8)
    return q, (((exponent + SCALE_BIAS) << 3) | (steps & 7)).astype(np.uint8)


def _decode(magnitude: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(exponent, significand) of 15-bit FP16 magnitudes; subnormals are kept, exponent 31 is ordinary."""
    field = magnitude >> 10
    return np.maximum(field, 1), (magnitude & 0x3FF) | ((field > 0).astype(np.int64) << 10)


def pack(q: np.ndarray, scale: np.ndarray, layout: str) -> np.ndarray:
    """Operand words uint32[n,4,8] of q int8[n,4,32] (-64..63) and scale uint8[n,4], in layout 'A' or 'B'.

    Raises `ValueError` for another layout, a wrong shape or type, or a significand outside 7 bits.
    """
    q = words.checked(q, "q", np.int8, LANES, BLOCK)
    scale = words.checked(scale, "scale", np.uint8, LANES)
    if q.size and (q.min() < -64 or q.max() > 63):
        raise ValueError(f"q: {int(q.min())}..{int(q.max())} does not fit 7 signed bits (-64..63)")
    count = len(q)
    if len(scale) != count:
        raise ValueError(f"{count} entries of q but {len(scale)} of scale")
    slots = q.reshape(count, LANES, WORDS, 8).transpose(_slot_order(layout)).reshape(count, WORDS, 4, 8)
    groups = np.bitwise_or.reduce((slots.astype(np.uint64) & np.uint64(0x7F)) << _TOP_DOWN, axis=3)
    big_endian = np.empty((count, WORDS, words.WORD_BYTES), dtype=np.uint8)
    group_bytes = groups.astype(">u8", order="C").view(np.uint8).reshape(count, WORDS, 4, 8)[..., 1:]
    big_endian[..., :28] = group_bytes.reshape(count, WORDS, 28)
    big_endian[..., 28:] = scale[:, None, :]
    return big_endian[..., ::-1].copy().view("<u4").astype(np.uint32)


def unpack(operand: np.ndarray, layout: str) -> tuple[np.ndarray, np.ndarray]:
    """(q int8[n,4,32], scale uint8[n,4]) of operand words uint32[n,4,8]; the inverse of `pack`.

    The scale bytes are read from word 0, whatever the other words hold.
    """
    operand = words.checked(operand, "operand words", np.uint32, WORDS, 8)
    count = len(operand)
    data = np.ascontiguousarray(operand, dtype="<u4").view(np.uint8).reshape(count, WORDS, words.WORD_BYTES)
    big_endian = data[..., ::-1]
    wide = np.zeros((count, WORDS, 4, 8), dtype=np.uint8)
    wide[..., 1:] = big_endian[..., :28].reshape(count, WORDS, 4, 7)
    groups = wide.view(">u8").astype(np.uint64)
    slots = ((groups >> _TOP_DOWN) & np.uint64(0x7F)).astype(np.int8)
    slots = (slots ^ 64) - 64
    inverse = np.argsort(_slot_order(layout))
    shape = (count, WORDS, LANES, 8) if layout == "A" else (count, WORDS, 8, LANES)
    q = slots.reshape(shape).transpose(inverse).reshape(count, LANES, BLOCK)
    return np.ascontiguousarray(q), big_endian[:, 0, 28:].copy()


def _slot_order(layout: str) -> tuple[int, ...]:
    """Axes of [n, lane, word, element] in the order of an operand word's slots."""
    if layout == "A":
        return (0, 2, 1, 3)
    if layout == "B":
        return (0, 2, 3, 1)
    raise ValueError(f"operand layout {layout!r} is neither 'A' nor 'B'")


def block_products(qa: np.ndarray, qb: np.ndarray) -> np.ndarray:
    """Exact integer block sums S[i][j] of entry pairs, int8[...,4,32] twice to int64[...,4,4].

    i is the lane of `qa` (a row of A) and j the lane of `qb` (a column of B); leading axes broadcast.
    """
    return np.einsum("...ik,...jk->...ij", qa.astype(np.int64), qb.astype(np.int64))


def outer_products(qa: np.ndarray, qb: np.ndarray) -> np.ndarray:
    """`block_products` of every entry of `qa` with every one of `qb`: int8[m,4,32], int8[n,4,32] to int64[m,n,4,4]."""
    m, n = len(qa), len(qb)
    flat = np.einsum("ik,jk->ij", qa.reshape(-1, BLOCK).astype(np.int32), qb.reshape(-1, BLOCK).astype(np.int32))
    return flat.reshape(m, LANES, n, LANES).transpose(0, 2, 1, 3).astype(np.int64, order="C")


def to_float(q: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """float64[n,4,32] values of significands and scales, for people."""
    scale = scale.astype(np.int64)
    return q * np.ldexp(1 + (scale & 7) / 8, (scale >> 3) - SCALE_BIAS)[..., None]
