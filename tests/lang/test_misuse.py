"""What Python and numpy have for numbers, on values of a kernel: what the language means by it, or a refusal that says what to write."""

import math
import operator

import numpy as np
import pytest

from kohakutpu import lang as L
from kohakutpu.lang import KernelError, dims, kernel, units
from kohakutpu.reference import interpret

M, N = dims("M, N")


def over(value):
    """A kernel that stores `value(x)`."""

    def made(x=L.In(M, N), y=L.Out(M, N)):
        y <<= value(x)

    return kernel(made)


def refusal(value):
    with pytest.raises(KernelError) as caught:
        over(value).trace()
    message, source = caught.value.message, caught.value.source
    assert source is not None and source.text, "no line"
    for word in ("Error", "operand type", "Handle", "object", "ufunc", "argument must", "doesn't define"):
        assert word not in message, f"Python's words: {message}"
    assert str(caught.value).splitlines()[-1].strip("^ ") == ""
    return message


REFUSED = {  # what is written: what the message says, ".." for what stands in between
    "x ** 5": (lambda x: x**5, "v ** 5: a power is a number from 1 to 4, multiplied out"),
    "x ** 0.5": (lambda x: x**0.5, "v ** 0.5: a power is a number from 1 to 4, .. exp2(log2(v) * p) is any power"),
    "x ** -1": (lambda x: x**-1, "recip(v) is v ** -1"),
    "x ** True": (lambda x: x**True, "v ** True: a power"),
    "x ** x": (lambda x: x**x, "v ** a value: a power is a number"),
    "2 ** x": (lambda x: 2**x, "2 ** v: the machine has powers of 2, exp2(v); of another base b, exp2(v * log2(b))"),
    "pow mod": (lambda x: pow(x, 2, 3), "a power is a number from 1 to 4"),
    "np.exp": (lambda x: np.exp(x), "numpy's exp computes with numbers, ..; write exp2(v * log2(e))"),
    "np.log": (lambda x: np.log(x), "numpy's log ..; write log2(v) * ln(2)"),
    "np.tanh": (lambda x: np.tanh(x), "numpy's tanh ..; write 2 * sigmoid(2 * v) - 1"),
    "np.maximum": (lambda x: np.maximum(x, 0), "numpy's maximum ..; write maximum(a, b)"),
    "np.less": (lambda x: np.less(x, 0), "numpy's less ..; write where(less(a, b), t, f)"),
    "np.sum": (lambda x: np.sum(x), "numpy's sum ..; write row_sum(v), along a row"),
    "np.max": (lambda x: np.max(x), "numpy's ..max ..; write maximum(a, b), or row_max(v)"),
    "np.mean": (lambda x: np.mean(x), "numpy's mean ..; write row_mean(v, N)"),
    "np.where": (lambda x: np.where(L.less(x, 0), x, x), "numpy's where ..; write where(less(a, b), t, f)"),
    "np.clip": (lambda x: np.clip(x, 0, 1), "numpy's clip ..; write minimum(maximum(v, low), high)"),
    "np.cbrt": (lambda x: np.cbrt(x), "numpy's cbrt computes with numbers, and a value is none yet"),
    "array ** x": (lambda x: np.float64(2) ** x, "the machine has powers of 2, exp2(v)"),
    "math.exp": (lambda x: math.exp(x), "a float, for Python's functions or for math's; write exp2(v * log2(e))"),
    "math.sqrt": (lambda x: math.sqrt(x), "cannot become a float, ..; write recip(rsqrt(v))"),
    "math.floor": (lambda x: math.floor(x), "cannot become a whole number"),
    "x % 2": (lambda x: x % 2, "a value has no %: the machine has no remainder; positions are in L.column_index"),
    "2 % x": (lambda x: 2 % x, "a value has no %"),
    "x // 2": (lambda x: x // 2, "a value has no //: the machine does not round to whole numbers"),
    "N // x": (lambda x: N // x, "a value has no //"),
    "divmod": (lambda x: divmod(x, 2), "a value has no divmod"),
    "x > 0": (lambda x: x > 0, "cannot be compared there; to choose element by element write where(less(a, b), t, f)"),
    "x == x": (lambda x: x == x, "cannot be compared there"),
    "max": (lambda x: max(x, 0.0), "cannot be compared there; ..; write maximum(a, b), or row_max(v) along a row"),
    "min": (lambda x: min(x, x + 1), "cannot be compared there; ..; write minimum(a, b), or row_min(v) along a row"),
    "sorted": (lambda x: sorted([x, x]), "cannot be compared there"),
    "sum": (lambda x: sum(x), "a value is not iterated; ..; write row_sum(v), along a row"),
    "if": (lambda x: 1 if x else 2, "the body cannot branch on it (if, not, and, or); to choose .., or use a knob"),
    "not": (lambda x: not x, "the body cannot branch on it (if, not, and, or)"),
    "and": (lambda x: x and x, "the body cannot branch on it (if, not, and, or)"),
    "or": (lambda x: x or x, "the body cannot branch on it (if, not, and, or)"),
    "float": (lambda x: float(x), "a value is not known while the kernel is traced, so it cannot become a float"),
    "int": (lambda x: int(x), "cannot become an integer"),
    "complex": (lambda x: complex(x), "cannot become a complex number"),
    "round": (lambda x: round(x), "cannot become a whole number"),
    "range": (lambda x: range(x), "cannot become an integer"),
    "len": (lambda x: len(x), "a value has no length; extents are dims"),
    "for": (lambda x: [each for each in x], "a value is not iterated; for k in loop(n) repeats statements"),
    "unpacked": (lambda x: (lambda a, b: a)(*x), "a value is not iterated"),
    "in": (lambda x: 1.0 in x, "so nothing can be found in it"),
    "&": (lambda x: x & x, "a value has no &: to hold two conditions together, nest where"),
    "|": (lambda x: x | x, "a value has no |"),
    "^": (lambda x: x ^ 2, "a value has no ^: .. for a power write v * v"),
    "~": (lambda x: ~x, "a value has no ~"),
    "<<": (lambda x: x << x, "a value has no <<: y <<= value writes a buffer"),
    ">>": (lambda x: x >> 1, "a value has no >>: y <<= value writes a buffer"),
    "%=": (lambda x: operator.imod(x, 2), "a value has no %"),
    "x.T": (lambda x: x.T, "a value has no attribute T. The machine has no T: write y[j, i] <<= .. or store the array transposed"),
    "x.transpose()": (lambda x: x.transpose(), "a value has no attribute transpose. .. (kohakutpu.kernels.linear_transposed)"),
    "np.transpose": (lambda x: np.transpose(x), "numpy's transpose computes with numbers, .. write y[j, i] <<="),
    "x.sum()": (lambda x: x.sum(), "a value has no attribute sum. The machine has no sum: write row_sum(v)"),
    "c & d": (lambda x: L.less(x, 0) & L.less(x, 1), "a comparison has no &: to hold two conditions together, nest where"),
    "~c": (lambda x: ~L.less(x, 0), "a comparison has no ~: exchange the two sides of where"),
    "c + 1": (lambda x: L.less(x, 0) + 1, "a comparison has no value of its own; it stands first in where"),
    "2 * c": (lambda x: 2 * L.less(x, 0), "a comparison has no value of its own"),
    "x * c": (lambda x: x * L.less(x, 0), "a comparison has no value of its own"),
    "not c": (lambda x: not L.less(x, 0), "a comparison is not known while the kernel is traced, so the body cannot branch on it"),
    "c == c": (lambda x: L.less(x, 0) == L.less(x, 0), "a comparison is not known .. cannot be compared there"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_words_of_the_language(name):
    value, said = REFUSED[name]
    message = rest = refusal(value)
    for part in said.split(".."):
        _, found, rest = rest.partition(part)
        assert found, f"{part!r} is not, or not there, in {message!r}"


def test_a_product_takes_no_operator():
    def made(x=L.In(M, N), y=L.Out(M, M)):
        with units(x.tiles(1), x.tiles(1)) as (i, j):
            acc = L.tile(1, 1, 1)
            for k in L.loop(x.chunks32(1)):
                acc += 2 * (x[i, k] @ x[j, k])
            y[i, j] <<= acc

    with pytest.raises(KernelError, match="a product can only be added to an accumulator") as caught:
        kernel(made).trace()
    assert caught.value.source.text == "acc += 2 * (x[i, k] @ x[j, k])"


def bits(value, operand):
    made = over(value)
    return interpret(made.trace(), made.solve({"x": operand.shape}), {"x": operand}).outputs["y"]


@pytest.mark.parametrize(
    "written, meant",
    [
        (lambda x: x**1, lambda x: x),
        (lambda x: x**2, lambda x: x * x),
        (lambda x: x**3, lambda x: (x * x) * x),
        (lambda x: (x + 1) ** 4, lambda x: (((x + 1) * (x + 1)) * (x + 1)) * (x + 1)),
        (lambda x: abs(x), lambda x: L.absolute(x)),
        (lambda x: +x * 2, lambda x: x * 2),
        (lambda x: np.float64(0.5) * x, lambda x: 0.5 * x),
        (lambda x: np.float32(3) - x, lambda x: 3.0 - x),
        (lambda x: np.int16(2) / x, lambda x: 2.0 / x),
        (lambda x: x / np.float64(0.3), lambda x: x / 0.3),
    ],
)
def test_what_works_means_the_same(written, meant):
    operand = np.random.default_rng(5).normal(0, 2, (5, 9)).astype(np.float16)
    found, wanted = bits(written, operand), bits(meant, operand)
    assert np.array_equal(found, wanted) and len(np.unique(found)) > 20


def test_a_power_is_multiplied_from_the_left():
    (statement,) = over(lambda x: x**4).trace().statements
    assert statement.expression.text() == "mul(mul(mul(x, x), x), x)"
