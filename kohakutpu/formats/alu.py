"""The vector core's ALU on E8M15 words: one fused multiply-add, comparators, select and four seeds.

Source: spec, vector core: the ALU; the four seeds; and `docs/formats.md`. Arguments and results are uint32
arrays of 24-bit words (bit 23 sign, 22:15 exponent with bias 127, 14:0 fraction). All arithmetic is on
integers; the rounding corners of the hardware (a tie in a product rounds away from zero, a residue lost in a
subtraction counts upward) are part of the format.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from kohakutpu.formats.e8m15 import INFINITY, LEAST_NORMAL, MAGNITUDE, NAN, ONE, SIGN, assemble
from kohakutpu.formats.seeds import exp2, inv, log2, rsqrt


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


_WORD = np.dtype(np.uint32)


def execute(
    op: AluOp | int, a: np.ndarray, b: np.ndarray | None, c: np.ndarray | None, *, exp2_wrap: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """One ALU instruction over all elements.

    `a`, `b`, `c` are uint32[n] operands by instruction field, all of one length; one that the operation does
    not use may be `None`. VADD is a + c and VSUB a - c. Returns (value uint32[n], predicate bool[n]); the
    predicate is false except for the compares, whose value is 1.0 or 0.0. `exp2_wrap` selects the published
    exp2 (erratum `exp2-wrap`). Raises `ValueError` for a number that is no ALU operation, or operands of
    another type.
    """
    for name, operand in (("a", a), ("b", b), ("c", c)):
        if operand is not None and operand.dtype != _WORD:
            raise ValueError(f"ALU operand {name}: expected uint32 words, got {operand.dtype}")
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
    word = assemble(np.abs(total), sticky, product_exponent - 157)
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
