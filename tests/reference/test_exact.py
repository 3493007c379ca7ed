"""Kernels in float64 beside machine arithmetic: the values, the measures of the error, saturated elements."""

import numpy as np
import pytest

from kohakutpu import lang as L
from kohakutpu.kernels import linear, rows
from kohakutpu.lang import dims, kernel, loop, units
from kohakutpu.reference import InterpreterError, evaluate, interpret, saturations
from kohakutpu.reference.exact import compare

M, K, N = dims("M, K, N")


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
    assert "3 elements saturated at 65504, the first at y[1, 3]: " in line and "y <<= x * x * L.minimum(x, 1)" in line
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


def whole(x, y):
    y <<= x * 64


def one_number_a_row(x, y):
    sums = L.temp(M, 1)
    sums <<= L.row_max(x) * 64
    y <<= L.minimum(sums, x)


def rows_of_a_view(x, y):
    y <<= 0.0
    last = y.rows_from(M - 4)
    last <<= x.rows_from(M - 4) * 64


def folded(x, y):
    rows = y.as_rows(16)
    rows <<= x.as_rows(16) * 64


def by_parts(x, y):
    with units(x.parts(48)) as e:
        y[e] <<= x[e] * 64


def twice_in_a_loop(x, y):
    for _ in loop(2):
        y <<= x * 64


# By body: what of x * 64 is written to a buffer of which shape, and how often.
LOCATED = {
    "whole": (whole, "y", lambda big: big, 1),
    "one number a row": (one_number_a_row, "t1", lambda big: big.any(-1, keepdims=True), 1),
    "rows of a view": (rows_of_a_view, "y", lambda big: big & (np.arange(10)[:, None] >= 6), 1),
    "folded": (folded, "y", lambda big: big, 1),
    "by parts": (by_parts, "y", lambda big: big, 1),
    "twice": (twice_in_a_loop, "y", lambda big: big, 2),
}


@pytest.mark.parametrize("name", LOCATED)
@pytest.mark.parametrize("lead", [(), (2, 3)], ids=["one", "batch"])
def test_saturated_elements_are_located_in_their_buffer(name, lead):
    body, buffer, kept, turns = LOCATED[name]

    def made(x=L.In(..., M, N), y=L.Out(..., M, N)):
        body(x, y)

    x = np.random.default_rng(len(name)).choice(np.array([1, -3, 2000], np.float16), (*lead, 10, 48), p=(0.9, 0.08, 0.02))
    if lead:
        x[0, :2] = 1  # nothing there: the first is in a later batch element
    big = kept(x == 2000)
    trace, image, _ = both(kernel(made), {"x": x})
    (held,) = image.saturated.values()
    assert (held.elements, held.buffer, held.first) == (turns * big.sum(), buffer, tuple(np.argwhere(big)[0].tolist()))
    assert f"first at {buffer}[{', '.join(map(str, held.first))}]: " in saturations(trace, image)[0]


def test_an_array_without_axes():
    @kernel
    def made(x=L.In(...), y=L.Out(...)):
        y <<= x * 64

    _, image, _ = both(made, {"x": np.array(2000, np.float16)})
    (held,) = image.saturated.values()
    assert (held.elements, held.first) == (1, ())


def test_a_tile_that_saturates_and_its_product_that_does_are_one_element():
    @kernel
    def made(x=L.In(..., M, K), w=L.In(N, K), y=L.Out(..., M, N)):
        with units(x.tiles(1), w.tiles(2)) as (i, j):
            acc = L.tile(1, 2, 1)
            for k in loop(x.chunks32(1)):
                acc += x[i, k] @ w[j, k]
            y[i, j] <<= acc * 2

    x, w = np.ones((2, 6, 64), np.float16), np.ones((14, 64), np.float16)
    x[1, 5], w[9], w[11] = 64, 32, 64  # 64 * 64 * 32 and 64 * 64 * 64 in the last row: both saturate, in the second tile
    _, image, _ = both(made, {"x": x, "w": w})
    (held,) = image.saturated.values()
    assert (held.elements, held.first) == (2, (1, 5, 9))


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
