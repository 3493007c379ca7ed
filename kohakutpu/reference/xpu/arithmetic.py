"""The arithmetic of single values, by the host compiler's rules (spec/xpu.md 2.3).

Values: int for integers, within their type's range; bool; numpy.float16, float32 and float64; a bfloat16 is held as
the float32 of its value. The tree has made every conversion a node, so that an operator's operands have one type.
"""

from __future__ import annotations

import math
import operator
from fractions import Fraction

import numpy as np

from kohakutpu.xpu.types import BOOL, Op, Scalar, bf16, f16, f32, f64


class Fault(Exception):
    """Undefined behaviour, by its operation; the walker adds where."""


def wrap(kind: Scalar, value: int) -> int:
    """An integer in a type's range, by dropping bits above its width."""
    value &= (1 << kind.bits) - 1
    return value - (1 << kind.bits) if kind.signed and value >> (kind.bits - 1) else value


def round_bf16(values):
    """float32 values, or one, rounded to bfloat16: nearest even, a NaN kept quiet with its upper payload."""
    bits = np.asarray(values, np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    quiet = bits | np.uint32(0x0040_0000)
    kept = np.where(np.isnan(values), quiet, rounded) & np.uint32(0xFFFF_0000)
    return kept.astype(np.uint32).view(np.float32)[()]


def zero(kind: Scalar):
    """The value of a local without an initialiser."""
    return False if kind is BOOL else 0 if kind.kind == "int" else lift_type(kind)(0)


def lift_type(kind: Scalar):
    """The numpy type that holds a float type's values."""
    return {f16: np.float16, bf16: np.float32, f32: np.float32, f64: np.float64}[kind]


def literal(kind: Scalar, value):
    """A constant as a value; of a 16-bit float, through float32."""
    if kind.kind != "float":
        return value
    return np.float64(value) if kind is f64 else settle(kind, np.float32(value))


def read(array: np.ndarray, kind: Scalar, index: int):
    """An element of memory as a value."""
    value = array[index]
    if kind is bf16:
        return (np.uint32(value) << np.uint32(16)).view(np.float32)
    return bool(value) if kind is BOOL else int(value) if kind.kind == "int" else value


def write(array: np.ndarray, kind: Scalar, index: int, value) -> None:
    """A value as an element of memory."""
    array[index] = np.float32(value).view(np.uint32) >> np.uint32(16) if kind is bf16 else value


def chosen(kind, value):
    """What a choice gives: the value as it is."""
    return value


def identity(op: Op):
    """What an inactive lane holds in a float reduction."""
    return np.float32({Op.ADD: 0.0, Op.MAX: -np.inf, Op.MIN: np.inf}[op])


def combine(op: Op, left, right):
    """One step of a float reduction."""
    return {Op.ADD: operator.add, Op.MAX: np.fmax, Op.MIN: np.fmin}[op](left, right)


def lift(kind: Scalar, value):
    """A float value in the type that it is computed in."""
    return np.float32(value) if kind is f16 else value


def settle(kind: Scalar, value):
    """A computed float value as its type holds it."""
    if kind is f16:
        return np.float16(value)
    return round_bf16(value) if kind is bf16 else value


def convert(value, source: Scalar, target: Scalar):
    """Rule 9. Raises Fault for a float that the integer type cannot hold."""
    if target is source:
        return value
    if target is BOOL:
        return bool(value != 0)
    if source.kind == "float" and target.kind == "int":
        whole = math.trunc(float(value)) if np.isfinite(value) else None
        if whole is None or not target.low <= whole <= target.high:
            raise Fault(f"{source} {value!s} converts to {target}, which cannot hold it")
        return whole
    if target.kind == "int":
        return wrap(target, int(value))
    if source.kind == "float":
        single = np.float64(value) if target is f64 else np.float32(value)
    elif target is f64:
        single = np.float64(int(value))
    else:
        held = np.int64(value) if source.signed or source.bits < 64 else np.uint64(value)
        single = np.float32(held)
    return settle(target, single)


_INTEGER = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul,
    "and": operator.and_, "or": operator.or_, "xor": operator.xor,
}  # fmt: skip
_FLOAT = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv, "rem": np.fmod}
_COMPARE = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip
_SIGN = {"div": "/", "rem": "%", "shl": "<<", "shr": ">>", "lshr": "lshr"}


def binary(op: str, kind: Scalar, left, right):
    """An operator of two values of one type; a shift's amount is a value of its own sign."""
    if kind.kind == "float":
        return settle(kind, _FLOAT[op](lift(kind, left), lift(kind, right)))
    if kind is BOOL:
        return bool(_INTEGER[op](left, right))
    if op in _INTEGER:
        return wrap(kind, _INTEGER[op](left, right))
    if op in ("div", "rem"):
        return _divide(op, kind, left, right)
    if not 0 <= right < kind.bits:
        raise Fault(f"a shift of {kind} by {right}: {left} {_SIGN[op]} {right}")
    if op == "shl":
        return wrap(kind, left << right)
    return left >> right if op == "shr" else wrap(kind, (left & (1 << kind.bits) - 1) >> right)


def _divide(op: str, kind: Scalar, left: int, right: int) -> int:
    if right == 0:
        raise Fault(f"division by zero: {left} {_SIGN[op]} 0")
    if kind.signed and left == kind.low and right == -1:
        raise Fault(f"{kind} overflow: {left} {_SIGN[op]} -1")
    quotient = abs(left) // abs(right)
    quotient = -quotient if (left < 0) != (right < 0) else quotient
    return quotient if op == "div" else left - quotient * right


def compare(op: str, kind: Scalar, left, right) -> bool:
    """A comparison of two values of one type; ordered for floats, except that != is true of a NaN."""
    return bool(_COMPARE[op](left, right))


def negate(kind: Scalar, value):
    """Rule 8."""
    return -value if kind.kind == "float" else wrap(kind, -value)


def fma32(left, right, addend):
    """left * right + addend of float32 values or arrays, rounded once.

    The product is exact in float64. Its sum is rounded to odd there, after which rounding to float32 is exact.
    """
    product = np.asarray(left, np.float64) * np.asarray(right, np.float64)
    addend = np.asarray(addend, np.float64)
    total = np.asarray(product + addend)
    part = total - product
    error = (product - (total - part)) + (addend - part)
    even = (total.view(np.int64) & 1) == 0
    inexact = np.isfinite(total) & (error != 0) & even
    odd = np.where(inexact, np.nextafter(total, np.where(error > 0, np.inf, -np.inf)), total)
    return odd.astype(np.float32)[()]


def fma(kind: Scalar, left, right, addend):
    """left * right + addend in a float type, rounded once; the 16-bit types in float32, then rounded."""
    if kind is not f64:
        return settle(kind, fma32(lift(kind, left), lift(kind, right), lift(kind, addend)))
    plain = left * right + addend
    if not all(map(np.isfinite, (left, right, addend))):
        return plain
    exact = Fraction(float(left)) * Fraction(float(right)) + Fraction(float(addend))
    if exact == 0:
        return plain if left == 0 or right == 0 else np.float64(0)
    try:
        return np.float64(float(exact))
    except OverflowError:
        return np.float64(math.inf if exact > 0 else -math.inf)


def _round_half_away(value):
    whole = np.trunc(value)
    return np.where(np.abs(value - whole) >= 0.5, whole + np.copysign(1.0, value), whole)[()]


FUNCTIONS = {
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": _round_half_away,
    "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "log10": np.log10, "sin": np.sin, "cos": np.cos,
    "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "atan2": np.arctan2, "pow": np.power,
    "rsqrt": lambda value: 1.0 / np.sqrt(value),
}  # fmt: skip


def function(name: str, kind: Scalar, *values):
    """A function of spec/xpu.md 1.9, by its name below `math`."""
    if name in ("min", "max"):
        less = values[0] < values[1]
        return values[0] if less == (name == "min") else values[1]
    if name == "abs":
        return abs(values[0]) if kind.kind == "float" else wrap(kind, abs(values[0]))
    if name == "fma":
        return fma(kind, *values)
    if name == "sqrt":
        return settle(kind, np.sqrt(lift(kind, values[0])))
    result = np.float64(FUNCTIONS[name](*map(np.float64, values)))
    return result if kind is f64 else settle(kind, np.float32(result))


def dot(kind: Scalar, left: tuple, right: tuple, total):
    """Products summed in lane order, in float32 or float64, rounded to the type once."""
    total = np.float32(total) if kind is not f64 else total
    for a, b in zip(left, right, strict=True):
        total = total + lift(kind, a) * lift(kind, b)
    return settle(kind, total)
