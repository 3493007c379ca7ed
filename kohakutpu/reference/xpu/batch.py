"""Whole batches of values at once: the arithmetic of `arithmetic` on numpy arrays, bit for bit.

A value is an array with one element per work-item, or a numpy scalar where all have the same; vectors are tuples of
such. Integers have their own dtype, so that numpy wraps them; a bfloat16 is the float32 of its value.
"""

from __future__ import annotations

import operator

import numpy as np

from kohakutpu.xpu.types import BOOL, Scalar, bf16, f16, f64

from . import arithmetic
from .arithmetic import round_bf16


class Bail(Exception):
    """This batch shows what only the walker may answer: undefined behaviour, an order, an unknown node."""


def dtype(kind: Scalar) -> np.dtype:
    """The dtype of a type's values."""
    return np.dtype("bool" if kind is BOOL else "float32" if kind is bf16 else kind.dtype)


def literal(kind: Scalar, value):
    """A constant as a value."""
    held = arithmetic.literal(kind, value)
    return held if kind.kind == "float" else np.array(held, dtype(kind))[()]


def settle(kind: Scalar, value):
    """Computed floats as their type holds them."""
    if kind is f16:
        return np.asarray(value).astype(np.float16)[()]
    return round_bf16(value) if kind is bf16 else value


def raise_half(kind: Scalar, value):
    """Floats in the type that they are computed in."""
    return np.asarray(value).astype(np.float32)[()] if kind is f16 else value


def check(bad, mask) -> None:
    """Bail if an active work-item shows undefined behaviour."""
    if np.any(bad & mask):
        raise Bail("undefined behaviour")


def convert(value, source: Scalar, target: Scalar, mask):
    """Rule 9."""
    if source is target:
        return value
    value = np.asarray(value)
    if target is BOOL:
        return (value != 0)[()]
    if target.kind == "int":
        if source.kind == "float":
            wide = np.trunc(value.astype(np.float64))
            check(~((wide >= float(target.low)) & (wide < float(target.high + 1))), mask)
            value = np.where(np.isfinite(wide), wide, 0)
            if target.dtype == "uint64":  # numpy converts negative floats differently from machine to machine
                value = np.abs(value)
        return value.astype(target.dtype)[()]
    if target is f64:
        return value.astype(np.float64)[()]
    return settle(target, value.astype(np.float32)[()])


_PLAIN = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "and": operator.and_, "or": operator.or_,
    "xor": operator.xor,
}  # fmt: skip
_FLOAT = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv, "rem": np.fmod}
COMPARE = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip


def binary(op: str, kind: Scalar, left, right, mask):
    """An operator on operands of one type; a shift's amount has the width and its own sign."""
    if kind.kind == "float":
        return settle(kind, _FLOAT[op](raise_half(kind, left), raise_half(kind, right)))
    if op in _PLAIN:
        return _PLAIN[op](left, right)
    if op in ("div", "rem"):
        check(np.equal(right, 0), mask)
        if kind.signed:
            check(np.equal(left, kind.low) & np.equal(right, -1), mask)
        right = np.where(np.equal(right, 0), np.ones_like(right), right)[()]
        rest = np.fmod(left, right)
        return rest if op == "rem" else (left - rest) // right
    check(np.less(right, 0) | np.greater_equal(right, kind.bits), mask)
    amount = np.asarray(right).astype(kind.dtype)[()] & np.array(kind.bits - 1, kind.dtype)[()]
    if op == "shl":
        return np.left_shift(left, amount)
    if op == "shr" or not kind.signed:
        return np.right_shift(left, amount)
    unsigned = kind.dtype.replace("int", "uint")
    return np.right_shift(np.asarray(left).view(unsigned), amount.astype(unsigned)).view(kind.dtype)[()]


def function(name: str, kind: Scalar, *values):
    """A function below `math`."""
    if name in ("min", "max"):
        less = np.less(values[0], values[1])
        return np.where(less, *(values if name == "min" else values[::-1]))[()]
    if name == "abs":
        return np.abs(values[0])
    if name == "fma":
        if kind is f64:
            raise Bail("fma of float64")
        return settle(kind, arithmetic.fma32(*(raise_half(kind, value) for value in values)))
    if name == "sqrt":
        return settle(kind, np.sqrt(raise_half(kind, values[0])))
    result = arithmetic.FUNCTIONS[name](*(np.asarray(value).astype(np.float64) for value in values))
    return result if kind is f64 else settle(kind, result.astype(np.float32))


def lanes_of(value, kind: Scalar, count: int) -> list:
    """A batch as the walker's values."""
    full = np.broadcast_to(value, (count,))
    return [bool(v) for v in full] if kind is BOOL else [int(v) for v in full] if kind.kind == "int" else list(full)
