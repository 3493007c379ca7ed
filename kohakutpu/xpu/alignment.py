"""What an index is provably a multiple of, from its own arithmetic (spec/xpu.md 1.3)."""

from __future__ import annotations

from math import gcd

from .tree import Binary, Convert, Expression, Literal, Unary

WIDEST = 16


def multiple(value: Expression) -> int:
    """A power of two, at most 2**31, that divides the value, wrapped or not."""
    match value:
        case Literal(value=number):
            return (abs(number) & -abs(number)) or 1 << 31
        case Binary(op="mul", left=left, right=right):
            return min(multiple(left) * multiple(right), 1 << 31)
        case Binary(op="add" | "sub" | "or" | "xor", left=left, right=right):
            return gcd(multiple(left), multiple(right))
        case Binary(op="and", left=left, right=right):
            return max(multiple(left), multiple(right))
        case Binary(op="shl", left=left, right=Literal(value=amount)) if 0 <= amount < 31:
            return min(multiple(left) << amount, 1 << 31)
        case Unary(op="neg", value=inner):
            return multiple(inner)
        case Convert(type=kind, value=inner) if kind.kind == "int" and inner.type.kind == "int":
            return min(multiple(inner), 1 << kind.bits - 1)
    return 1


def proven(index: Expression, size: int) -> int:
    """The bytes, up to 16, that an access of `size`-byte elements at `index` is aligned to from its memory's base."""
    return min(multiple(index) * size, WIDEST)
