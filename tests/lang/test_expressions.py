"""Choices, fused multiply-add, row reductions: what they record and what is refused; the line is underlined."""

import pytest

from kohakutpu import lang as L
from kohakutpu.lang import KernelError, dims, kernel, loop, units

M, K, N = dims("M, K, N")


def text(value) -> str:
    """The expression of `y <<= value(x, w)` over x(M, N) and w(N)."""

    def made(x=L.In(..., M, N), w=L.In(N), y=L.Out(..., M, N)):
        y <<= value(x, w)

    (statement,) = kernel(made).trace().statements
    return statement.expression.text()


@pytest.mark.parametrize(
    "value, wanted",
    [
        (lambda x, w: L.fma(x, 2, w), "fma(x, 2, w)"),
        (lambda x, w: L.where(L.less(x, w), x, 1.0), "where_less(x, w, x, 1)"),
        (lambda x, w: L.where(L.greater(x, 0), x, -x), "where_greater(x, 0, x, neg(x))"),
        (lambda x, w: L.where(L.equal(x, w), 0, 1), "where_equal(x, w, 0, 1)"),
        (lambda x, w: x - L.row_max(x), "sub(x, row_max(x))"),
        (lambda x, w: L.row_sum(x * x) + L.row_min(w), "add(row_sum(mul(x, x)), row_min(w))"),
        (lambda x, w: L.row_mean(x, N), "row_sum(mul(x, recip(N)))"),
        (lambda x, w: L.sqrt_approx(x), "recip(rsqrt(x))"),
        (
            lambda x, w: L.sqrt_newton(x),
            "fma(mul(sub(x, mul(mul(x, rsqrt(x)), mul(x, rsqrt(x)))), rsqrt(x)), 0.5, mul(x, rsqrt(x)))",
        ),
    ],
)
def test_recorded(value, wanted):
    assert text(value) == wanted


def test_alike_values_are_one_node():
    def made(x=L.In(M, N), y=L.Out(M, N)):
        y <<= L.row_max(x) + L.row_max(x) * L.row_sum(x)

    (statement,) = kernel(made).trace().statements
    assert len(statement.expression.reductions) == 2 and len(statement.expression.nodes) == 5


@pytest.mark.parametrize(
    "value, message",
    [
        (lambda x, w: L.where(x, 1, 2), "where needs a comparison first"),
        (lambda x, w: L.less(x, w) + 1, "unsupported operand"),
        (lambda x, w: x + L.less(x, w), "a comparison has no value of its own"),
        (lambda x, w: x if L.less(x, w) else w, "a comparison is not known while the kernel is traced"),
        (lambda x, w: L.maximum(L.equal(x, w), 0), "a comparison has no value of its own"),
        (lambda x, w: L.row_min(x, 1), "positional argument"),
    ],
)
def test_refused(value, message):
    with pytest.raises(KernelError, match=message):
        text(value)


def test_rows_of_parts_and_tiles_are_refused():
    @kernel
    def parts(x=L.In(M, N), y=L.Out(M, N)):
        with units(x.parts(64)) as e:
            y[e] <<= x[e] - L.row_max(x[e])

    with pytest.raises(KernelError, match="a row reduction needs whole rows"):
        parts.trace()

    @kernel
    def tiles(x=L.In(M, K), w=L.In(N, K), y=L.Out(M, N), *, gm=2, gn=2, nk=1):
        with units(x.tiles(gm), w.tiles(gn)) as (i, j):
            acc = L.tile(gm, gn, nk)
            for k in loop(x.chunks32(nk)):
                acc += x[i, k] @ w[j, k]
            y[i, j] <<= acc - L.row_max(acc)

    with pytest.raises(KernelError, match="store the tile to a temp"):
        tiles.trace()

    @kernel
    def whole(x=L.In(...), y=L.Out(...)):
        y <<= x - L.row_max(x)

    with pytest.raises(KernelError, match="x|y is declared `...` alone"):
        whole.trace()


def test_the_offending_expression_is_underlined():
    @kernel
    def made(x=L.In(M, N), y=L.Out(M, N)):
        y <<= x * 2 + L.exp2(float("inf"))

    with pytest.raises(KernelError) as caught:
        made.trace()
    lines = str(caught.value).splitlines()
    assert lines[1] == '    y <<= x * 2 + L.exp2(float("inf"))'
    first = lines[2].index("^")
    assert lines[1][first : first + lines[2].count("^")] == 'L.exp2(float("inf"))'


def test_a_line_without_columns_is_underlined_whole():
    @kernel
    def made(x=L.In(M, N), y=L.Out(M, N)):
        pass

    with pytest.raises(KernelError, match="its body holds no statement") as caught:
        made.trace()
    *_, shown, marks = str(caught.value).splitlines()
    assert marks.strip() == "^" * len(shown.strip())
