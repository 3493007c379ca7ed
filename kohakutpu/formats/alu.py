"""The vector core's ALU on E8M15 words: one fused multiply-add, comparators, select and four seeds.

Source: spec, vector core: the ALU; the four seeds; and `docs/formats.md`. Arguments and results are uint32
arrays of 24-bit words (bit 23 sign, 22:15 exponent with bias 127, 14:0 fraction). All arithmetic is on
integers; the rounding corners of the hardware (a tie in a product rounds away from zero, a residue lost in a
subtraction counts upward) are part of the format.
"""

from __future__ import annotations

import json
from enum import IntEnum
from functools import cache
from importlib.resources import files

import numpy as np

from kohakutpu.formats.bits import leading_one

ONE = 0x3F8000
NAN = 0x7FC000
INFINITY = 0x7F8000
SIGN = 0x800000
MAGNITUDE = 0x7FFFFF
LEAST_NORMAL = 0x008000


class AluOp(IntEnum):
    """ALU operations by their instruction opcode."""

    VMOV = 0x00
    VNEG = 0x01
    VABS = 0x02
    VADD = 0x03
    VSUB = 0x04
    VMUL = 0x05
    VFMA = 0x06
    VFNMA = 0x07
    VMAX = 0x08
    VMIN = 0x09
    VSEL = 0x0A
    VCMPLT = 0x0B
    VCMPGT = 0x0C
    VCMPEQ = 0x0D
    VEXP2 = 0x0E
    VLOG2 = 0x0F
    VINV = 0x10
    VRSQRT = 0x11


COMPARES = frozenset((AluOp.VCMPLT, AluOp.VCMPGT, AluOp.VCMPEQ))


def execute(op: AluOp | int, a: np.ndarray, b: np.ndarray, c: np.ndarray, *, exp2_wrap: bool = False):
    """One ALU instruction over all elements.

    `a`, `b`, `c` are uint32[n] operands by instruction field; an operand the operation does not use may be
    anything, `None` included. VADD is a + c and VSUB a - c. Returns (value uint32[n], predicate bool[n]); the
    predicate is false except for the compares, whose value is 1.0 or 0.0. `exp2_wrap` selects the published
    exp2 (erratum `exp2-wrap`). Raises `ValueError` for a number that is no ALU operation.
    """
    if op in _COMPARES:
        holds = _COMPARES[op](a, b)
        return np.multiply(holds, ONE, dtype=np.uint32), holds
    if op == AluOp.VEXP2:
        value = exp2(a, wrap=exp2_wrap)
    elif op in _OPERATIONS:
        value = _OPERATIONS[op](a, b, c)
    else:
        raise ValueError(f"{op!r} is not an ALU operation (expected {AluOp.VMOV:#04x}..{AluOp.VRSQRT:#04x})")
    return value, np.zeros(len(value), dtype=bool)


# ---- the fused multiply-add ------------------------------------------------------------------------------


def fma(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a*b + c with the hardware's rounding; uint32[n] each, uint32[n] back."""
    return _fma(np.array((a, b, c), dtype=np.int64))


def add(a: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a + c: `a` takes the exact product path and `c` the shifted one, so the order matters in corners."""
    x = np.empty((3, len(a)), dtype=np.int64)
    x[0] = a
    x[1] = ONE
    x[2] = c
    return _fma(x)


def multiply(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a*b. The zero addend sets the sticky bit, so a tie rounds away from zero."""
    x = np.array((a, b), dtype=np.int64)
    magnitude = x & MAGNITUDE
    exponent = magnitude >> 15
    significand = (x | 0x8000) & 0xFFFF
    product = significand[0] * significand[1]
    carry = product >> 31
    # the product has 31 or 32 bits; keep 16 and round half up
    half = 0x4000 << carry
    word = (product + half) >> (carry + 15)
    word += (exponent[0] + exponent[1] - 128 + carry) << 15
    np.minimum(word, INFINITY, out=word)
    word *= word >= LEAST_NORMAL
    sign = (x[0] ^ x[1]) & SIGN
    word |= sign
    zero = (exponent == 0).any(0)
    if np.count_nonzero(zero):
        word[zero] = 0
    if magnitude.max(initial=0) >= INFINITY:
        _multiply_specials(word, magnitude, zero, sign)
    return word.astype(np.uint32)


def canonical(a: np.ndarray) -> np.ndarray:
    """a * 1.0 + 0: what VMOV does. A zero becomes +0 and every NaN becomes 7FC000."""
    magnitude = a & MAGNITUDE
    word = a * (magnitude >= LEAST_NORMAL)
    if magnitude.max(initial=0) > INFINITY:
        word[magnitude > INFINITY] = NAN
    return word


def _fma(x: np.ndarray) -> np.ndarray:
    """x[0]*x[1] + x[2] for int64[3,n]."""
    c = x[2]
    magnitude = x & MAGNITUDE
    exponent = magnitude >> 15
    significand = (x | 0x8000) & 0xFFFF
    product_exponent = exponent[0] + exponent[1]
    shift = product_exponent - exponent[2]
    shift -= 110
    bypass = shift < 0
    zeros = 3 * len(c) - np.count_nonzero(exponent)
    if zeros:
        c_zero = exponent[2] == 0
        product_zero = (exponent[0] == 0) | (exponent[1] == 0)
        shift[c_zero] = 48
        significand[0, product_zero] = 0
        bypass &= ~c_zero
        # a zero product can never reach the addend's last bit: the sum is the addend
        bypass |= product_zero
    np.minimum(shift, 48, out=shift)
    np.maximum(shift, 0, out=shift)
    addend = significand[2] << 32
    aligned = addend >> shift
    sticky = (aligned << shift) != addend
    negate = -(((x[0] ^ x[1] ^ c) >> 23) & 1)
    total = (significand[0] * significand[1]) ^ negate
    total -= negate
    total += aligned
    word = _round(np.abs(total), sticky, product_exponent - 157)
    # a negative total means the product won, and its sign is the opposite of the addend's
    word |= (c ^ (total >> 63)) & SIGN
    word *= total != 0
    if np.count_nonzero(bypass):
        np.copyto(word, c, where=bypass)
        if zeros:
            word[product_zero & c_zero] &= SIGN
    if magnitude.max(initial=0) >= INFINITY:
        _fma_specials(word, x, magnitude)
    return word.astype(np.uint32)


def _round(magnitude: np.ndarray, sticky: np.ndarray | int, base: np.ndarray | int) -> np.ndarray:
    """Round a magnitude below 2^48 to an unsigned E8M15 word, nearest even; bit 0 weighs 2^(base - 127).

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


def _multiply_specials(word, magnitude, zero, sign) -> None:
    """Put infinity and NaN right in the result of `multiply`."""
    infinite = (magnitude == INFINITY).any(0)
    np.copyto(word, sign | INFINITY, where=infinite)
    word[(infinite & zero) | (magnitude > INFINITY).any(0)] = NAN


def _fma_specials(word, x, magnitude) -> None:
    """Put infinity and NaN right in the result of `_fma`."""
    infinite = magnitude == INFINITY
    product = infinite[0] | infinite[1]
    product_sign = (x[0] ^ x[1]) & SIGN
    np.copyto(word, x[2], where=infinite[2])
    np.copyto(word, product_sign | INFINITY, where=product)
    invalid = (magnitude > INFINITY).any(0)
    invalid |= product & (magnitude[:2] < LEAST_NORMAL).any(0)
    invalid |= product & infinite[2] & ((product_sign ^ x[2]) & SIGN != 0)
    word[invalid] = NAN


# ---- comparators -----------------------------------------------------------------------------------------


def less(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a < b as bool[n]; false when either is NaN, and +0 equals -0."""
    return (_ordered(a) < _ordered(b)) & _comparable(a, b)


def greater(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a > b as bool[n]; see `less`."""
    return (_ordered(a) > _ordered(b)) & _comparable(a, b)


def equal(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a == b as bool[n]; see `less`."""
    return (_ordered(a) == _ordered(b)) & _comparable(a, b)


def _ordered(a: np.ndarray) -> np.ndarray:
    """Words as int32 in the order of their values: the raw magnitude, negated under a sign."""
    signed = a.view(np.int32) if a.dtype == np.uint32 else a.astype(np.int32)
    sign = -(signed >> 23)
    return ((signed & MAGNITUDE) ^ sign) - sign


def _comparable(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return ((a & MAGNITUDE) <= INFINITY) & ((b & MAGNITUDE) <= INFINITY)


def maximum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """b where a < b, else a (so a NaN survives only in `a`), as VMOV writes it."""
    return canonical(np.where(less(a, b), b, a))


def minimum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """b where a > b, else a, as VMOV writes it."""
    return canonical(np.where(greater(a, b), b, a))


def select(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a where any bit of c below the sign is set, else b, as VMOV writes it."""
    return canonical(np.where(c & MAGNITUDE, a, b))


# ---- seeds -----------------------------------------------------------------------------------------------

SEED_ROWS = {"exp2": 32, "log2": 32, "inv": 32, "rsqrt": 64}  # rsqrt: 32 * parity + segment


@cache
def seed_tables() -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Per seed the coefficient columns (c0, c1, c2) as int64 arrays, in units of 2^-20, 2^-24 and 2^-28."""
    stored = json.loads(files(__package__).joinpath("seed_tables.json").read_text())
    return {name: tuple(np.array(stored[name][column], np.int64) for column in ("c0", "c1", "c2")) for name in SEED_ROWS}


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
    return _round(_fractions(name), 0, 107)


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
    limit = (135 if wrap else 134) << 15
    if magnitude.max(initial=0) >= limit:
        large = magnitude >= limit
        np.copyto(word, np.where(sign, 0, INFINITY), where=large)
        word[magnitude > INFINITY] = NAN
    return word.astype(np.uint32)


def log2(a: np.ndarray) -> np.ndarray:
    """log2(a): -infinity at zero, NaN for a negative value."""
    x = a.astype(np.int64)
    magnitude = x & MAGNITUDE
    total = _fractions("log2")[x & 0x7FFF]
    total += ((magnitude >> 15) - 127) << 20
    word = _round(np.abs(total), 0, 107)
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


_COMPARES = {AluOp.VCMPLT: less, AluOp.VCMPGT: greater, AluOp.VCMPEQ: equal}
_OPERATIONS = {
    AluOp.VMOV: lambda a, b, c: canonical(a),
    AluOp.VNEG: lambda a, b, c: canonical(a ^ SIGN),
    AluOp.VABS: lambda a, b, c: canonical(a & MAGNITUDE),
    AluOp.VADD: lambda a, b, c: add(a, c),
    AluOp.VSUB: lambda a, b, c: add(a, c ^ SIGN),
    AluOp.VMUL: lambda a, b, c: multiply(a, b),
    AluOp.VFMA: fma,
    AluOp.VFNMA: lambda a, b, c: fma(a ^ SIGN, b, c),
    AluOp.VMAX: lambda a, b, c: maximum(a, b),
    AluOp.VMIN: lambda a, b, c: minimum(a, b),
    AluOp.VSEL: select,
    AluOp.VLOG2: lambda a, b, c: log2(a),
    AluOp.VINV: lambda a, b, c: inv(a),
    AluOp.VRSQRT: lambda a, b, c: rsqrt(a),
}
