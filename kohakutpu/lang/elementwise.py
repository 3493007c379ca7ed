"""Elementwise values inside the body of a kernel: the operators and functions that build expressions; none computes."""

from __future__ import annotations

import math
import numbers
import struct

import numpy as np

from .extents import Expr, indices_in
from .misuse import NoNumber, NoOperand, refuse
from .recorder import active
from .source import KernelError, here
from .trace import Constant, ElementOp, Expression, Leaf, Op, Reduce, RowOp, Slice

LOG2E = math.log2(math.e)
MOST_FACTORS = 4  # of a power that is multiplied out


class Elementwise(NoNumber):
    """Anything that stands in an elementwise expression."""

    def _value(self) -> Value:
        raise NotImplementedError

    def __add__(self, other):
        return apply(ElementOp.ADD, self, other)

    def __radd__(self, other):
        return apply(ElementOp.ADD, other, self)

    def __sub__(self, other):
        return apply(ElementOp.SUB, self, other)

    def __rsub__(self, other):
        return apply(ElementOp.SUB, other, self)

    def __mul__(self, other):
        return apply(ElementOp.MUL, self, other)

    def __rmul__(self, other):
        return apply(ElementOp.MUL, other, self)

    def __truediv__(self, other):
        return apply(ElementOp.MUL, self, apply(ElementOp.RECIP, other))

    def __rtruediv__(self, other):
        return apply(ElementOp.MUL, other, apply(ElementOp.RECIP, self))

    def __neg__(self):
        return apply(ElementOp.NEG, self)

    def __abs__(self):
        return apply(ElementOp.ABS, self)

    def __matmul__(self, other):
        raise KernelError(
            "@ contracts two operand slices along the last axis of both, acc += a[i, k] @ b[j, k] inside units and loop "
            "(a weight is stored [out][in])",
            here(),
        )

    __rmatmul__ = __matmul__

    def __pow__(self, power, modulo=None):
        """A product of up to 4 factors, multiplied from the left."""
        if modulo is not None or isinstance(power, bool) or not isinstance(power, int) or not 1 <= power <= MOST_FACTORS:
            refuse(
                f"v ** {power!r}: a power is a number from 1 to {MOST_FACTORS}, multiplied out; of others recip(v) is v ** -1, "
                "rsqrt(v) is v ** -0.5, and exp2(log2(v) * p) is any power of what is above zero"
            )
        value = self._value()
        product = value
        for _ in range(power - 1):
            product = product * value
        return product

    def __rpow__(self, base):
        refuse(f"{base!r} ** v: the machine has powers of 2, exp2(v); of another base b, exp2(v * log2(b))")

    def __pos__(self):
        return self._value()


class Value(Elementwise):
    """A node of an expression: a leaf, or an operation on other values."""

    def __init__(self, node: Leaf | ElementOp | RowOp, operands: tuple[Value, ...] = ()):
        self.node = node
        self.operands = operands
        self.recorder = None if isinstance(node, (Constant, ElementOp, RowOp)) else active()

    def _value(self) -> Value:
        return self

    def __iadd__(self, other):
        if isinstance(other, Product):
            raise KernelError(
                "this name holds an expression, not the accumulator any more, so a product cannot be added to it; "
                "give the expression another name",
                here(),
            )
        return self + other


def as_value(thing) -> Value:
    """The value a Python object stands for in an expression."""
    if isinstance(thing, Elementwise):
        return thing._value()
    if isinstance(thing, Condition):
        raise KernelError(Condition.ALONE, here())
    if isinstance(thing, Expr):
        if indices_in(thing) and active().in_units:
            raise KernelError(
                f"{thing}: an index cannot be a value inside units, where one program serves every instance", here()
            )
        return Value(Constant(thing))
    if isinstance(thing, numbers.Real) and not isinstance(thing, bool):
        try:
            number = float(thing)
        except OverflowError:
            kind = type(thing).__name__
            raise KernelError(f"a {kind} above the range of float cannot be a constant", here()) from None
        if not math.isfinite(number):
            raise KernelError(f"{number} cannot be a constant", here())
        return Value(Constant(number))
    if isinstance(thing, (np.ndarray, list, tuple)):
        raise KernelError(
            f"{type(thing).__name__} {'of shape ' + str(np.shape(thing)) if isinstance(thing, np.ndarray) else repr(thing)[:40]} "
            "cannot stand in an elementwise expression; numbers known while the kernel is traced are L.table(array)",
            here(),
        )
    raise KernelError(f"{thing!r} cannot stand in an elementwise expression", here())


def apply(op: ElementOp | RowOp, *operands) -> Value:
    """The value of one operation."""
    if any(isinstance(operand, Product) for operand in operands):
        raise KernelError(Product.ALONE, here())
    return Value(op, tuple(as_value(operand) for operand in operands))


def _node_key(value: Value, operands: tuple[int, ...]) -> tuple:
    node = value.node
    if isinstance(node, Constant) and isinstance(node.value, float):
        return ("constant", struct.pack("<d", node.value))  # tells -0.0 from 0.0
    return (node, operands)


def expression_of(value: Value) -> Expression:
    """The value as a list of nodes: operands left to right before their operation, alike nodes once."""
    nodes: list[Leaf | Op | Reduce] = []
    known: dict[tuple, int] = {}
    place: dict[int, int] = {}  # id of a Value -> its node
    todo = [value]
    while todo:
        top = todo[-1]
        missing = [operand for operand in top.operands if id(operand) not in place]
        if missing:
            todo.extend(reversed(missing))
            continue
        todo.pop()
        if id(top) in place:
            continue
        if top.recorder not in (None, active()):
            raise KernelError("a value of another kernel, or of another trace of this one", here())
        operands = tuple(place[id(operand)] for operand in top.operands)
        key = _node_key(top, operands)
        if key not in known:
            known[key] = len(nodes)
            made = {ElementOp: Op, RowOp: Reduce}.get(type(top.node))
            nodes.append(made(top.node, operands) if made else top.node)
        place[id(top)] = known[key]
    if place[id(value)] != len(nodes) - 1:  # the value equals an earlier node: it must still come last
        nodes = nodes[: place[id(value)] + 1]
    return Expression(tuple(nodes))


class Condition(NoOperand):
    """`less(a, b)`, `greater(a, b)`, `equal(a, b)`: what `where` chooses by."""

    SORT, ALONE = "a comparison", "a comparison has no value of its own; it stands first in where(condition, a, b)"

    def __init__(self, op: ElementOp, a: Value, b: Value):
        self.op = op
        self.a = a
        self.b = b


class Product(NoOperand):
    """`a[i, k] @ b[j, k]`, until it is added to an accumulator."""

    SORT, ALONE = "a product", "a product can only be added to an accumulator: acc += a[i, k] @ b[j, k]"

    def __init__(self, a: Slice, b: Slice):
        self.a = a
        self.b = b


# ---- functions ----------------------------------------------------------------------------------------


def exp2(v) -> Value:
    """2^v."""
    return apply(ElementOp.EXP2, v)


def log2(v) -> Value:
    """log2 v."""
    return apply(ElementOp.LOG2, v)


def recip(v) -> Value:
    """1 / v."""
    return apply(ElementOp.RECIP, v)


def rsqrt(v) -> Value:
    """1 / sqrt v."""
    return apply(ElementOp.RSQRT, v)


def absolute(v) -> Value:
    """|v|."""
    return apply(ElementOp.ABS, v)


def maximum(a, b) -> Value:
    """b where a < b, else a."""
    return apply(ElementOp.MAX, a, b)


def minimum(a, b) -> Value:
    """b where a > b, else a."""
    return apply(ElementOp.MIN, a, b)


def fma(a, b, c) -> Value:
    """a * b + c, rounded once."""
    return apply(ElementOp.FMA, a, b, c)


def less(a, b) -> Condition:
    """a < b, for `where`; false when either is NaN."""
    return Condition(ElementOp.WHERE_LESS, as_value(a), as_value(b))


def greater(a, b) -> Condition:
    """a > b, for `where`; false when either is NaN."""
    return Condition(ElementOp.WHERE_GREATER, as_value(a), as_value(b))


def equal(a, b) -> Condition:
    """a = b, for `where`; +0 equals -0, and NaN nothing."""
    return Condition(ElementOp.WHERE_EQUAL, as_value(a), as_value(b))


def where(condition: Condition, a, b) -> Value:
    """a where the condition holds, else b."""
    if not isinstance(condition, Condition):
        raise KernelError(
            f"where needs a comparison first, less(a, b), greater(a, b) or equal(a, b), not {condition!r}", here()
        )
    return apply(condition.op, condition.a, condition.b, a, b)


def row_sum(v) -> Value:
    """The sum of each row (along the last axis), in every element of the row."""
    return apply(RowOp.SUM, v)


def row_max(v) -> Value:
    """The greatest element of each row, in every element of the row."""
    return apply(RowOp.MAX, v)


def row_min(v) -> Value:
    """The least element of each row, in every element of the row."""
    return apply(RowOp.MIN, v)


def row_mean(v, count) -> Value:
    """row_sum(v * (1 / count)): divided first, so that the sum of a row stays in range. `count` is the row's length."""
    return row_sum(as_value(v) * recip(count))


def sqrt_approx(v) -> Value:
    """recip(rsqrt(v)): within 2 units in the last place of E8M15."""
    return recip(rsqrt(v))


def sqrt_newton(v) -> Value:
    """s + (v - s * s) * r / 2 with r = rsqrt(v), s = v * r: one step of Newton's method on sqrt; NaN at 0 and
    infinity."""
    v = as_value(v)
    r = rsqrt(v)
    s = v * r
    return fma((v - s * s) * r, 0.5, s)


def sigmoid(v) -> Value:
    """recip(exp2(v * -log2 e) + 1)."""
    return recip(exp2(as_value(v) * -LOG2E) + 1.0)


def silu(v) -> Value:
    """v * sigmoid(v)."""
    v = as_value(v)
    return v * sigmoid(v)


def relu(v) -> Value:
    """maximum(v, 0)."""
    return maximum(v, 0.0)


def gelu(v) -> Value:
    """v * sigmoid(2z) with z = sqrt(2/pi) * (v + 0.044715 v^3): the tanh form, since (1 + tanh z)/2 = sigmoid(2z)."""
    v = as_value(v)
    inner = v * v * v * 0.044715 + v
    return v * recip(exp2(inner * (-2.0 * math.sqrt(2.0 / math.pi) * LOG2E)) + 1.0)
