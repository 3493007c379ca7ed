"""The four function seeds of the vector core: exp2, log2, 1/a and 1/sqrt(a) from tables of quadratics.

Source: spec, vector core: the four seeds; and `docs/formats.md`. E8M15 words as uint32[n] in and out. Each
seed is a quadratic per segment in fixed point, rounded once to nearest even.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

import numpy as np

from kohakutpu.formats.e8m15 import INFINITY, LEAST_NORMAL, MAGNITUDE, NAN, SIGN, assemble

SEED_ROWS = {"exp2": 32, "log2": 32, "inv": 32, "rsqrt": 64}  # rsqrt: 32 * parity + segment


@cache
def seed_tables() -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Per seed the coefficient columns (c0, c1, c2) as int64 arrays, in units of 2^-20, 2^-24 and 2^-28."""
    stored = json.loads(files(__package__).joinpath("seed_tables.json").read_text())
    return {
        name: tuple(np.array(stored[name][column], np.int64) for column in ("c0", "c1", "c2")) for name in SEED_ROWS
    }


def horner(name: str, row: np.ndarray, u: np.ndarray, extra: int = 0) -> np.ndarray:
    """A seed's polynomial: F in units of 2^-20 for a table row and a 12-bit offset in the segment.

    `extra` is added to c0. The start of row 0 is pinned to the exact value (0 for exp2 and log2, 1 for inv
    and rsqrt) in place of c0.
    """
    c0, c1, c2 = seed_tables()[name]
    pinned = 1 << 20 if name in ("inv", "rsqrt") else 0
    base = np.where((row == 0) & (u == 0), pinned, c0[row]) + extra
    h = (c2[row] * u + (c1[row] << 16) + 0x8000) >> 16
    return (h * u + (base << 16) + 0x8000) >> 16


@cache
def _fractions(name: str) -> np.ndarray:
    """F of a seed for every fraction it can see, in the order of the fraction.

    log2 and inv are indexed by the 15 fraction bits, rsqrt by {parity, fraction}, exp2 by the 17-bit
    fractional part of its argument. The models look seeds up once per element, so they are expanded once.
    """
    if name == "exp2":
        fraction = np.arange(1 << 17)
        return horner(name, fraction >> 12, fraction & 0xFFF, extra=1 << 20)
    index = np.arange(1 << (16 if name == "rsqrt" else 15))
    return horner(name, index >> 10, (index & 0x3FF) << 2)


@cache
def _rounded(name: str) -> np.ndarray:
    """`_fractions` as positive E8M15 words (F = 2^20 is 1.0), not yet scaled by a power of two."""
    return assemble(_fractions(name), 0, 107)


def _scaled(word: np.ndarray, power: np.ndarray) -> np.ndarray:
    """Positive finite words times 2^power, clamped to infinity and zero, in place."""
    word += power << 15
    np.minimum(word, INFINITY, out=word)
    word *= word >= LEAST_NORMAL
    return word


def exp2(a: np.ndarray, *, wrap: bool = False) -> np.ndarray:
    """2^a. |a| >= 128 gives infinity or +0; with `wrap` only |a| >= 256 does, and the rest wraps as published."""
    x = a.astype(np.int64)
    magnitude = x & MAGNITUDE
    shift = np.clip(134 - (magnitude >> 15), 0, 26)
    fixed = (((x | 0x8000) & 0xFFFF) << 10) >> shift
    fixed = (fixed >> 1) + (fixed & 1)  # |a| in units of 2^-17, halves away from zero
    sign = -(x >> 23)
    fixed = (fixed ^ sign) - sign
    if wrap:
        fixed = ((fixed + (1 << 24)) & 0x1FFFFFF) - (1 << 24)
    word = _scaled(_rounded("exp2")[fixed & 0x1FFFF], fixed >> 17)
    if magnitude.max(initial=0) >= 135 << 15:  # |a| >= 256 does not fit the fixed point
        np.copyto(word, np.where(sign, 0, INFINITY), where=magnitude >= 135 << 15)
        word[magnitude > INFINITY] = NAN
    return word.astype(np.uint32)


def log2(a: np.ndarray) -> np.ndarray:
    """log2(a): -infinity at zero, NaN for a negative value."""
    x = a.astype(np.int64)
    magnitude = x & MAGNITUDE
    total = _fractions("log2")[x & 0x7FFF]
    total += ((magnitude >> 15) - 127) << 20
    word = assemble(np.abs(total), 0, 107)
    word |= (total >> 63) & SIGN
    word *= total != 0
    return _seed_specials(word, x, magnitude, zero=np.int64(SIGN | INFINITY), infinity=INFINITY, negative=NAN)


def inv(a: np.ndarray) -> np.ndarray:
    """1/a, with the sign of `a` throughout."""
    x = a.astype(np.int64)
    magnitude = x & MAGNITUDE
    word = _scaled(_rounded("inv")[x & 0x7FFF], 127 - (magnitude >> 15))
    sign = x & SIGN
    word |= sign
    return _seed_specials(word, x, magnitude, zero=sign | INFINITY, infinity=sign, negative=None)


def rsqrt(a: np.ndarray) -> np.ndarray:
    """1/sqrt(a): infinity at either zero, NaN for a negative value."""
    x = a.astype(np.int64)
    magnitude = x & MAGNITUDE
    power = (magnitude >> 15) - 127
    word = _scaled(_rounded("rsqrt")[(x & 0x7FFF) | ((power & 1) << 15)], -(power >> 1))
    return _seed_specials(word, x, magnitude, zero=np.int64(INFINITY), infinity=0, negative=NAN)


def _seed_specials(word, x, magnitude, *, zero, infinity, negative) -> np.ndarray:
    """Override zero, infinite, negative (unless `negative` is None) and NaN arguments of a seed."""
    if magnitude.max(initial=0) >= INFINITY:
        np.copyto(word, infinity, where=magnitude == INFINITY)
    if negative is not None:
        word[x >= SIGN] = negative
    if magnitude.min(initial=INFINITY) < LEAST_NORMAL:
        np.copyto(word, zero, where=magnitude < LEAST_NORMAL)
    if magnitude.max(initial=0) > INFINITY:
        word[magnitude > INFINITY] = NAN
    return word.astype(np.uint32)
