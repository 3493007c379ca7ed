"""What Python lets one write with numbers, and values of a kernel do not have: each refused with what to write instead."""

from __future__ import annotations

import re
from typing import NoReturn

from .source import KernelError, here

TRANSPOSED = (
    "y[j, i] <<= a product of w[j, k] @ x[i, k], whose result is transposed (kohakutpu.kernels.linear_transposed), "
    "or store the array transposed before it is uploaded"
)
# What is written with other libraries, or with Python alone, in the language.
SPELLINGS = {
    "exp": "exp2(v * log2(e))", "exp2": "exp2(v)", "expm1": "exp2(v * log2(e)) - 1", "log": "log2(v) * ln(2)", "log2": "log2(v)",
    "log10": "log2(v) * log10(2)", "sqrt": "recip(rsqrt(v))", "reciprocal": "recip(v)", "tanh": "2 * sigmoid(2 * v) - 1",
    "abs": "absolute(v)", "fabs": "absolute(v)", "absolute": "absolute(v)", "square": "v * v",
    "max": "maximum(a, b), or row_max(v) along a row", "fmax": "maximum(a, b)", "maximum": "maximum(a, b)",
    "min": "minimum(a, b), or row_min(v) along a row", "fmin": "minimum(a, b)", "minimum": "minimum(a, b)",
    "sum": "row_sum(v), along a row", "mean": "row_mean(v, N), along a row of N", "where": "where(less(a, b), t, f)",
    "clip": "minimum(maximum(v, low), high)", "add": "a + b", "subtract": "a - b", "multiply": "a * b", "divide": "a / b",
    "negative": "-a", "pow": "v * v for a square, else exp2(log2(v) * p)", "power": "v * v for a square, else exp2(log2(v) * p)",
    "sigmoid": "sigmoid(v)", "silu": "silu(v)", "relu": "relu(v)", "gelu": "gelu(v)", "sign": "where(less(v, 0), -1, 1)",
    "less": "where(less(a, b), t, f)", "greater": "where(greater(a, b), t, f)", "equal": "where(equal(a, b), t, f)",
    "T": TRANSPOSED, "transpose": TRANSPOSED,
    "matmul": "acc += a[i, k] @ b[j, k]", "dot": "acc += a[i, k] @ b[j, k]",
}  # fmt: skip
CHOOSE = "to choose element by element write where(less(a, b), t, f), or greater or equal"


def refuse(message: str) -> NoReturn:
    """Raise KernelError at the line being executed, with the language's word for a function that is called there."""
    source = here()
    called = re.findall(r"(?<![\w.])(?:(?:math|np|numpy)\.)?(\w+)\(", source.text)
    meant = next((f"; write {SPELLINGS[name]}" for name in called if name in SPELLINGS and name not in message), "")
    raise KernelError(message + meant, source)


def _operator(symbol: str, advice: str):
    def refused(self, *_):
        refuse(f"{self.SORT} has no {symbol}: {advice}")

    return refused


def _as_number(what: str):
    def refused(self, *_):
        refuse(f"{self._unknown()}, so it cannot become {what}")

    return refused


class NoNumber:
    """Refuses all that Python and numpy have for numbers and sequences; a class defines what it does have."""

    SORT = "a value"  # for messages

    def __repr__(self) -> str:
        return self.SORT

    def _unknown(self) -> str:
        return f"{self.SORT} is not known while the kernel is traced"

    _floor = "the machine does not round to whole numbers; of indices and extents, a // b works"
    __floordiv__ = __rfloordiv__ = __ifloordiv__ = _operator("//", _floor)
    __mod__ = __rmod__ = __imod__ = _operator("%", "the machine has no remainder; positions are in L.column_index and L.row_index")
    __divmod__ = __rdivmod__ = _operator("divmod", "the machine has no remainder")
    __and__ = __rand__ = __iand__ = _operator("&", "to hold two conditions together, nest where(c, where(d, t, f), f)")
    __or__ = __ror__ = __ior__ = _operator("|", "to hold one of two conditions, nest where(c, t, where(d, t, f))")
    __xor__ = __rxor__ = __ixor__ = _operator("^", "it has no bits here; for a power write v * v")
    __invert__ = _operator("~", "exchange the two sides of where instead")
    __lshift__ = __rlshift__ = _operator("<<", "y <<= value writes a buffer")
    __rshift__ = __rrshift__ = __irshift__ = _operator(">>", "y <<= value writes a buffer")

    def _compared(self, other):
        refuse(f"{self._unknown()}, so it cannot be compared there; {CHOOSE}")

    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = _compared
    __hash__ = object.__hash__

    __int__ = __index__ = _as_number("an integer")
    __float__ = _as_number("a float, for Python's functions or for math's")
    __complex__ = _as_number("a complex number")
    __round__ = __trunc__ = __floor__ = __ceil__ = _as_number("a whole number")

    def __len__(self):
        refuse(f"{self.SORT} has no length; extents are dims, and knobs are numbers")

    def __iter__(self):
        refuse(f"{self.SORT} is not iterated; for k in loop(n) repeats statements, and a row statement works on every element")

    def __contains__(self, item):
        refuse(f"{self._unknown()}, so nothing can be found in it")

    def __bool__(self):
        refuse(f"{self._unknown()}, so the body cannot branch on it (if, not, and, or); {CHOOSE}, or use a knob")

    def __array_ufunc__(self, ufunc, method, *inputs, **_):
        """What numpy calls for its functions, and for operators with its scalars and arrays on the left."""
        if method == "__call__" and len(inputs) == 2 and inputs[1] is self and not isinstance(inputs[0], NoNumber):
            name = {"add": "__radd__", "subtract": "__rsub__", "multiply": "__rmul__", "divide": "__rtruediv__", "true_divide":
                    "__rtruediv__", "matmul": "__rmatmul__", "floor_divide": "__rfloordiv__", "remainder": "__rmod__",
                    "power": "__rpow__"}.get(ufunc.__name__)  # fmt: skip
            if name and hasattr(self, name):
                return getattr(self, name)(inputs[0])
        name = {"reduce": {"add": "sum", "maximum": "max", "minimum": "min"}.get(ufunc.__name__)}.get(method) or ufunc.__name__
        refuse(f"numpy's {name} computes with numbers, and {self.SORT} is none yet{_spelled(name)}")

    def __array_function__(self, function, *_):
        name = function.__name__
        refuse(f"numpy's {name} computes with numbers, and {self.SORT} is none yet{_spelled(name)}")


class NoOperand(NoNumber):
    """Something that no operator takes, as `ALONE` says."""

    ALONE = ""

    def _alone(self, *_):
        refuse(self.ALONE)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __pow__ = __rpow__ = _alone
    __neg__ = __pos__ = __abs__ = __matmul__ = __rmatmul__ = _alone


def _spelled(name: str) -> str:
    return f"; write {SPELLINGS[name]}" if name in SPELLINGS else ""
