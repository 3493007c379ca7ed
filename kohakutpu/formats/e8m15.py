"""E8M15, the vector core's word, and its conversions: the top 24 bits of a binary32, without subnormals.

Source: spec, vector core: E8M15 and the conversions; and `docs/formats.md`. Words are uint32 arrays: bit 23
sign, 22:15 exponent (bias 127), 14:0 fraction. Every function is elementwise over any shape. An accumulator
word's NaN and infinity exist only here: the cluster treats exponent 127 as ordinary.
"""

from __future__ import annotations

import math

import numpy as np

from kohakutpu.formats import fp32
from kohakutpu.formats.accumulator import AccumulatorFormat
from kohakutpu.formats.bits import leading_one

SIGN = 0x800000
MAGNITUDE = 0x7FFFFF
ONE = 0x3F8000
INFINITY = 0x7F8000
NAN = 0x7FC000  # the only NaN that arithmetic produces
LEAST_NORMAL = 0x008000


def from_fp16(bits: np.ndarray) -> np.ndarray:
    """E8M15 of FP16 patterns uint16; exact, subnormals included. NaN payloads are kept as they are."""
    bits = np.asarray(bits).astype(np.int64)
    magnitude = bits & 0x7FFF
    word = (magnitude << 5) + (112 << 15)
    if magnitude.max(initial=0) >= 0x7C00:
        np.copyto(word, (magnitude << 5) + (224 << 15), where=magnitude >= 0x7C00)
    small = magnitude < 0x400
    if np.count_nonzero(small):
        top = leading_one(magnitude[small])
        # the shift puts the leading one at bit 15, where it adds 1 to the exponent
        word[small] = ((top + 102) << 15) + (magnitude[small] << np.minimum(15 - top, 15))
        word[magnitude == 0] = 0
    return (word | (bits & 0x8000) << 8).astype(np.uint32)


def to_fp16(words: np.ndarray) -> np.ndarray:
    """FP16 patterns uint16 of E8M15 words: nearest even, subnormals produced, finite overflow to +-65504.

    Infinity stays infinity; a NaN keeps its sign and upper payload and becomes quiet.
    """
    words = np.asarray(words).astype(np.int64)
    magnitude = words & MAGNITUDE
    half = ((magnitude + 0xF + ((magnitude >> 5) & 1)) >> 5) - (112 << 10)
    np.minimum(half, 0x7BFF, out=half)
    small = half < 0x400
    if np.count_nonzero(small):
        tiny = magnitude[small]
        shift = np.minimum(118 - (tiny >> 15), 31)
        significand = ((tiny & 0x7FFF) | 0x8000) * (tiny >= LEAST_NORMAL)
        shift = np.maximum(shift, 1)
        half[small] = (significand + (1 << (shift - 1)) - 1 + ((significand >> shift) & 1)) >> shift
    if magnitude.max(initial=0) >= INFINITY:
        half[magnitude == INFINITY] = 0x7C00
        nan = magnitude > INFINITY
        half[nan] = 0x7E00 | (magnitude[nan] >> 5) & 0x1FF
    return (half | (words & SIGN) >> 8).astype(np.uint16)


def from_fp32(bits: np.ndarray) -> np.ndarray:
    """E8M15 of FP32 patterns uint32: nearest even, subnormals to a signed zero, NaN made quiet."""
    bits = np.asarray(bits).astype(np.int64)
    magnitude = bits & 0x7FFFFFFF
    word = (magnitude + 0x7F + ((magnitude >> 8) & 1)) >> 8
    word[magnitude < 1 << 23] = 0
    if magnitude.max(initial=0) > 0x7F800000:
        nan = magnitude > 0x7F800000
        word[nan] = INFINITY | 0x4000 | (magnitude[nan] >> 8) & 0x3FFF
    return (word | (bits >> 8) & SIGN).astype(np.uint32)


def to_fp32(words: np.ndarray) -> np.ndarray:
    """FP32 patterns uint32 of E8M15 words; exact, NaN payloads kept, any word with exponent 0 a signed zero."""
    words = np.asarray(words, dtype=np.uint32)
    return np.where(words & INFINITY, words, words & SIGN) << np.uint32(8)


def from_accumulator(words: np.ndarray, mantissa: int = 14) -> np.ndarray:
    """E8M15 of accumulator words with a fraction of `mantissa` bits: exact up to 15, nearest even at 16.

    Exponent 127 with a zero fraction reads as infinity and with any other as NaN (fraction kept, cut to 15
    bits and never zero). The shipped core has no instruction for this conversion.
    """
    source = AccumulatorFormat(mantissa)
    words = np.asarray(words).astype(np.int64)
    magnitude = words & source.largest
    if mantissa <= 15:
        word = magnitude << (15 - mantissa)
    else:
        word = (magnitude + ((magnitude >> 1) & 1)) >> 1
    word += 64 << 15
    special = magnitude >> mantissa == 127
    fraction = magnitude & ((1 << mantissa) - 1)
    cut = (fraction << 15) >> mantissa
    cut |= (fraction != 0) & (cut == 0)
    np.copyto(word, INFINITY | cut, where=special)
    word[magnitude >> mantissa == 0] = 0
    return (word | np.where(words & source.sign, SIGN, 0)).astype(np.uint32)


def constant(value: float) -> int:
    """The word an instruction carries for `value`: the top 24 bits of its binary32, truncated.

    Raises `ValueError` for a finite value that binary32 cannot hold.
    """
    pattern = int(fp32.from_float(value))
    if math.isfinite(value) and pattern & 0x7FFFFFFF == 0x7F800000:
        raise ValueError(f"constant {value!r} is outside the range of E8M15 (below 2^128)")
    return pattern >> 8


def from_float(values: np.ndarray) -> np.ndarray:
    """E8M15 of numbers, nearest even in one rounding; below 2^-126 a signed zero, NaN becomes 7FC000."""
    bits = np.atleast_1d(np.asarray(values, dtype=np.float64)).view(np.int64)
    magnitude = bits & ((1 << 63) - 1)
    word = (magnitude >> 37) + (((magnitude & ((1 << 37) - 1)) + ((magnitude >> 37) & 1)) > 1 << 36)
    word -= (1023 - 127) << 15
    np.clip(word, 0, INFINITY, out=word)
    word *= word >= LEAST_NORMAL
    word |= (bits >> 40) & SIGN
    word[magnitude > 0x7FF << 52] = NAN
    return word.astype(np.uint32).reshape(np.shape(values))


def to_float(words: np.ndarray) -> np.ndarray:
    """float64 values of E8M15 words; exact."""
    return fp32.to_float(to_fp32(words))


def assemble(magnitude: np.ndarray, sticky: np.ndarray | int, base: np.ndarray | int) -> np.ndarray:
    """Round int64 magnitudes below 2^48 to unsigned int64 words, nearest even; bit 0 weighs 2^(base - 127).

    `sticky` marks a non-zero residue below bit 0. Overflow gives infinity, underflow zero. A magnitude of 0
    gives nonsense that the caller masks, together with the sign.
    """
    position = leading_one(magnitude)
    word = magnitude << (47 - position)
    word |= sticky
    word += 0x7FFFFFFF + ((word >> 32) & 1)
    word >>= 32
    position += base
    position -= 1  # the significand's leading one adds itself to the exponent
    word += position << 15
    np.minimum(word, INFINITY, out=word)
    word *= word >= LEAST_NORMAL
    return word
