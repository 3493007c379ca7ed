"""The matmul cluster's accumulator float: sign, 7-bit exponent (bias 63), and a fraction of 10 to 16 bits.

Source: spec, cluster: accumulator; and `docs/formats.md`. Words are uint32 with the sign at bit MW+7, the
exponent above MW fraction bits. There is no infinity, NaN or subnormal: exponent 0 is zero whatever the rest
of the word holds, exponent 127 is ordinary, and overflow saturates to the largest magnitude.
"""

from __future__ import annotations

import numpy as np

from kohakutpu.formats import words
from kohakutpu.formats.bits import leading_one

LEAST_MANTISSA, GREATEST_MANTISSA = 10, 16
EXPONENT_BIAS = 63
GUARD_BITS = 8  # below the fraction, in the adder
TILE = 16  # lanes of a 4x4 sub-tile, lane 4*i + j


class AccumulatorFormat:
    """The arithmetic for one fraction width `mantissa` (14 is the shipped one).

    Raises `ValueError` for a width outside 10..16.
    """

    def __init__(self, mantissa: int = 14):
        if isinstance(mantissa, bool) or not isinstance(mantissa, int):
            raise ValueError(f"accumulator mantissa must be an integer, not {mantissa!r}")
        if not LEAST_MANTISSA <= mantissa <= GREATEST_MANTISSA:
            raise ValueError(
                f"accumulator mantissa of {mantissa} bits is not supported ({LEAST_MANTISSA}..{GREATEST_MANTISSA})"
            )
        self.mantissa = mantissa
        self.width = mantissa + 8
        self.sign = 1 << (mantissa + 7)
        self.largest = self.sign - 1

    def __repr__(self) -> str:
        return f"AccumulatorFormat({self.mantissa})"

    def from_block(self, s: np.ndarray, fa: np.ndarray, fb: np.ndarray, anchor: int = 40) -> np.ndarray:
        """Words of integer block sums `s` under the scale bytes `fa` (lane of A) and `fb` (lane of B).

        The three broadcast; the result is uint32 of that shape. `anchor` is 0..255 and divides the value by
        2^(anchor - 40); another one raises `ValueError`. The exponent wraps modulo 128 for anchors that push it
        out of range, as in hardware.
        """
        if not 0 <= anchor <= 255:
            raise ValueError(f"anchor {anchor} does not fit 8 bits (0..255)")
        s, fa, fb = (np.asarray(x).astype(np.int32) for x in (s, fa, fb))
        mw = self.mantissa
        magnitude = np.abs(s) * ((8 + (fa & 7)) * (8 + (fb & 7)))  # below 2^25
        position = leading_one(magnitude)
        # the leading one to bit 27, so that the kept significand lies above 27 - mw discarded bits
        discarded = 27 - mw
        rounded = magnitude << (27 - position)
        rounded += (1 << (discarded - 1)) - 1 + ((rounded >> discarded) & 1)
        rounded >>= discarded
        position += (fa >> 3) + (fb >> 3) + (EXPONENT_BIAS - 7 - anchor)
        # the significand's leading one adds itself to the exponent
        word = ((position << mw) + rounded) & self.largest
        word |= (s >> 31) & self.sign
        word *= magnitude != 0
        return word.astype(np.uint32)

    def add(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """a + b, words of one shape (or broadcast); `a` is the resident tile and `b` what arrives.

        Correctly rounded to nearest even, except that an effective subtraction whose discarded residue meets
        an exact half comes out one unit too large in magnitude.
        """
        mw = self.mantissa
        one, fraction = 1 << mw, (1 << mw) - 1
        a, b = np.asarray(a).astype(np.int32), np.asarray(b).astype(np.int32)
        magnitude_a, magnitude_b = a & self.largest, b & self.largest
        big = np.maximum(magnitude_a, magnitude_b)
        small = np.minimum(magnitude_a, magnitude_b)
        exponent = big >> mw
        shift = np.minimum(exponent - (small >> mw), mw + 1 + GUARD_BITS)
        subtract = -((a ^ b) >> (mw + 7))
        wide_small = ((small & fraction) | one) << GUARD_BITS
        aligned = wide_small >> shift
        lost = aligned << shift != wide_small
        total = ((big & fraction) | one) << GUARD_BITS
        total += (aligned ^ subtract) - subtract
        position = leading_one(total)
        # the leading one to bit mw + 9, so that the kept significand lies above 9 discarded bits
        word = total << (mw + 9 - position)
        word |= lost
        word += 0xFF + ((word >> 9) & 1)
        word >>= 9
        exponent += position - (mw + GUARD_BITS + 1)
        word += exponent << mw
        nonzero = word >= one
        nonzero &= total != 0
        np.copyto(word, self.largest, where=word >= 0x7F << mw)  # exponent 127 is reached only by saturating
        word |= np.where(magnitude_b > magnitude_a, b, a) & self.sign
        word *= nonzero
        if small.size and small.min() < one:
            zero_a, zero_b = magnitude_a < one, magnitude_b < one
            np.copyto(word, a, where=zero_b)
            np.copyto(word, b, where=zero_a)
            word[zero_a & zero_b] = 0
        return word.astype(np.uint32)

    def to_fp16(self, a: np.ndarray) -> np.ndarray:
        """FP16 uint16 of words: nearest even, overflow to +-65504, below the normal range to a signed zero."""
        a = np.asarray(a).astype(np.int64)
        magnitude = a & self.largest
        drop = self.mantissa - 10
        if drop:
            magnitude = (magnitude + (1 << (drop - 1)) - 1 + ((magnitude >> drop) & 1)) >> drop
        half = np.clip(magnitude - (48 << 10), 0, 0x7BFF)
        half *= half >= 0x400
        return (half | ((a & self.sign) != 0).astype(np.int64) << 15).astype(np.uint16)

    def to_float(self, a: np.ndarray) -> np.ndarray:
        """float64 values of words, for people."""
        a = np.asarray(a).astype(np.int64)
        exponent = (a >> self.mantissa) & 0x7F
        value = np.ldexp(1 + (a & ((1 << self.mantissa) - 1)) / (1 << self.mantissa), exponent - EXPONENT_BIAS)
        return np.where(exponent == 0, 0.0, np.where(a & self.sign, -value, value))

    def pack_granules(self, tile: np.ndarray) -> np.ndarray:
        """Sub-tiles uint32[n,16] as two 256-bit granules each, uint32[n,2,8]; lane g starts at bit width*g."""
        tile = words.checked(tile, "sub-tiles", np.uint32, TILE)
        packed = np.zeros((len(tile), TILE + 1), dtype=np.uint64)
        for lane in range(TILE):
            word, bit = divmod(self.width * lane, 32)
            shifted = tile[:, lane].astype(np.uint64) << np.uint64(bit)
            packed[:, word] |= shifted & np.uint64(0xFFFFFFFF)
            packed[:, word + 1] |= shifted >> np.uint64(32)
        return packed[:, :16].astype(np.uint32).reshape(-1, 2, 8)

    def unpack_granules(self, granules: np.ndarray) -> np.ndarray:
        """Sub-tiles uint32[n,16] of granule pairs uint32[n,2,8]; bits above 16*width are ignored."""
        flat = words.checked(granules, "granules", np.uint32, 2, 8).reshape(-1, 16).astype(np.uint64)
        tile = np.empty((len(flat), TILE), dtype=np.uint32)
        for lane in range(TILE):
            word, bit = divmod(self.width * lane, 32)
            pair = flat[:, word] | (flat[:, min(word + 1, 15)] << np.uint64(32))
            tile[:, lane] = (pair >> np.uint64(bit)) & np.uint64((1 << self.width) - 1)
        return tile

    def emit_words(self, tile: np.ndarray) -> np.ndarray:
        """Sub-tiles uint32[n,16] as FP16 words uint32[n,8], lane g at bits 16g+15:16g."""
        return words.from_halves(self.to_fp16(words.checked(tile, "sub-tiles", np.uint32, TILE)))
