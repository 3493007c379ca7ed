"""Kernels in float64 beside machine arithmetic: the values, the measures of the error, saturated elements."""

import numpy as np
import pytest

from kohakutpu import lang as L
from kohakutpu.kernels import linear, rows
from kohakutpu.lang import dims, kernel, units
from kohakutpu.reference import InterpreterError, evaluate, interpret, saturations
from kohakutpu.reference.exact import compare

M, N = dims("M, N")


def both(made, operands, knobs=None, **options):
    trace = made.trace(**(knobs or {}))
    extents = made.solve({name: data.shape for name, data in operands.items()})
    return trace, interpret(trace, extents, operands, **options), evaluate(trace, extents, operands)


def halves(seed, *shape, deviation=0.5):
    return np.random.default_rng(seed).normal(0, deviation, shape).astype(np.float16)


def test_a_product_and_its_end():
    x, w = halves(1, 2, 9, 70), halves(2, 11, 70)
    _, image, exact = both(linear.linear_silu, {"x": x, "w": w}, {"gm": 2, "gn": 1, "nk": 1})
    product = x.astype(np.float64) @ w.astype(np.float64).T
    assert np.allclose(exact["y"], product / (1 + np.exp(-product)), rtol=1e-12)
    (measured,) = compare(image.outputs, exact)
    assert 1e-3 < measured.p50 < measured.p90 < measured.p99 <= measured.greatest and 0 < measured.above < 0.5
    found = image.outputs["y"].view(np.float16).astype(np.float64)
    error = np.abs(found - exact["y"]) / np.maximum(np.abs(exact["y"]), measured.floor)
    assert error.max() == measured.greatest == error[measured.worst]
    assert measured.above == (error > 0.1).mean() and measured.p90 == np.percentile(error, 90)


def test_a_wrong_element_shows():
    _, image, exact = both(rows.softmax, {"x": halves(1, 16, 40)})
    (measured,) = compare(image.outputs, exact)
    assert measured.greatest < 2e-3
    image.outputs["y"][7, 31] ^= 1 << 9
    (measured,) = compare(image.outputs, exact)
    assert measured.greatest > 0.1 and measured.worst == (7, 31) and measured.above == 1 / 640


def test_rows_parts_and_choices():
    @kernel
    def made(x=L.In(..., M, N), w=L.In(N), y=L.Out(..., M, N), z=L.Out(..., M, N)):
        y <<= L.where(L.less(x, w), L.fma(x, w, 2), x - L.row_min(x)) + L.row_sum(x) * N
        with units(x.parts(7)) as e:
            z[e] <<= L.maximum(abs(x[e]), 0.25) / 3

    x, w = halves(3, 2, 5, 12), halves(4, 12)
    _, image, exact = both(made, {"x": x, "w": w})
    a, b = x.astype(np.float64), w.astype(np.float64)
    wanted = np.where(a < b, a * b + 2, a - a.min(-1, keepdims=True)) + a.sum(-1, keepdims=True) * 12
    assert np.allclose(exact["y"], wanted, rtol=1e-12)
    assert np.allclose(exact["z"], np.maximum(np.abs(a), 0.25) / 3, rtol=1e-12)
    assert all(row.greatest < 2e-3 and row.above == 0 and row.unequal == 0 for row in compare(image.outputs, exact))


def test_saturated_elements_are_counted_and_located():
    x = np.zeros((4, 40), np.float16)
    x[1, 3], x[2, 5], x[3, 39], x[0, 0] = 300, -300, 256, np.inf

    @kernel
    def square(x=L.In(M, N), y=L.Out(M, N)):
        y <<= x * x * L.minimum(x, 1)

    trace, image, exact = both(square, {"x": x})
    (held,) = image.saturated.values()
    assert (held.elements, held.first) == (3, (1, 3))
    (line,) = saturations(trace, image)
    assert "3 elements saturated at 65504, the first at [1, 3]" in line and "y <<= x * x * L.minimum(x, 1)" in line
    (measured,) = compare(image.outputs, exact)
    assert measured.unequal == 0 and measured.greatest > 0.3
    _, image, _ = both(square, {"x": x / 64})
    assert not image.saturated, "an infinity is none"


def test_saturated_tiles():
    x, w = np.full((8, 64), 50, np.float16), np.full((4, 64), 50, np.float16)
    w[1] = 0
    trace, image, _ = both(linear.matmul, {"a": x, "b": w}, {"gm": 1, "gn": 1, "nk": 1})
    (held,) = image.saturated.values()
    assert held.elements == 8 * 3 and held.first == (0, 0)
    assert "c[i, j] <<=" in saturations(trace, image)[0]


def test_what_is_not_finite_is_counted_apart():
    x = np.array([[1, 0, 4, -1]], np.float16)

    @kernel
    def inverse(x=L.In(M, N), y=L.Out(M, N)):
        y <<= L.rsqrt(x)

    _, image, exact = both(inverse, {"x": x})
    (measured,) = compare(image.outputs, exact)
    assert measured.unequal == 0 and measured.greatest == 0  # 1, inf, 0.5, NaN on both sides
    exact["y"][0, 0] = np.nan
    (measured,) = compare(image.outputs, exact)
    assert measured.unequal == 1 and "1 of 4 elements not finite on one side" in str(measured)


def test_operands_are_checked_as_the_interpreter_does():
    trace, extents = rows.softmax.trace(), rows.softmax.solve({"x": (2, 3)})
    with pytest.raises(InterpreterError, match="no value for x"):
        evaluate(trace, extents, {})
    with pytest.raises(InterpreterError, match=r"x is float64\[2, 3\], expected float16 or uint16"):
        evaluate(trace, extents, {"x": np.zeros((2, 3))})
