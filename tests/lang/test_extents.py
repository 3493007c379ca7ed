"""Symbolic extents."""

import pytest

from kohakutpu.lang import KernelError, ceildiv, dims
from kohakutpu.lang.extents import Axis, Extents, Index, indices_in, names_in, resolve, same

M, N = dims("M, N")


@pytest.mark.parametrize(
    "expression, value",
    [
        (M + 1, 8), (1 + M, 8), (M - N, 4), (10 - M, 3), (M * N, 21), (2 * M, 14), (M // N, 2), (20 // M, 2),
        (ceildiv(M, N), 3), (ceildiv(M, 4), 2), (ceildiv(20, M), 3), (M * N // 4 - N, 2), (M, 7),
    ],
)  # fmt: skip
def test_arithmetic(expression, value):
    assert resolve(expression, {"M": 7, "N": 3}) == value


def test_ceildiv_of_numbers_is_a_number():
    assert ceildiv(7, 4) == 2 and ceildiv(8, 4) == 2


def test_dims_gives_one_name_or_several():
    assert repr(dims("M")) == "M"
    assert [repr(d) for d in dims("A B, C")] == ["A", "B", "C"]


@pytest.mark.parametrize("names", ["", "M, M", "2M", "a-b"])
def test_bad_names_are_refused(names):
    with pytest.raises(KernelError, match="dims"):
        dims(names)


@pytest.mark.parametrize(
    "use",
    [lambda: M == 4, lambda: M > N, lambda: bool(M), lambda: int(M), lambda: range(M), lambda: [0][M], lambda: M <= 2],
)
def test_an_extent_is_not_a_number(use):
    with pytest.raises(KernelError, match="one trace serves every shape"):
        use()


def test_structural_equality():
    assert same(M * 2 + N, M * 2 + N) and not same(M + N, N + M) and same(4, 4) and not same(4, M)
    assert dims("M") == M and M != N


def test_unknown_names_and_zero_divisors_are_named():
    with pytest.raises(KernelError, match=r"extent N is not known; known are M"):
        resolve(M + N, {"M": 1})
    with pytest.raises(KernelError, match=r"\(M // N\) divides by zero"):
        resolve(M // N, {"M": 1, "N": 0})


def test_what_an_expression_depends_on():
    i = Index("i", Axis("count", 0, 4, 4))
    assert names_in(M * 2 + ceildiv(N, M)) == {"M", "N"} and names_in(3) == set()
    assert indices_in(i * 2 + i) == [i] and indices_in(M) == []


@pytest.mark.parametrize("kind, step", [("tiles", 12), ("chunks32", 96), ("parts", 3)])
def test_spans_are_cut_at_the_end(kind, step):
    axis = Axis(kind, 3, M, ceildiv(M, step))
    assert axis.step == step
    assert axis.span(1, 2 * step + 1) == (step, 2 * step)
    assert axis.span(2, 2 * step + 1) == (2 * step, 2 * step + 1)


def test_batch():
    assert Extents({}, (2, 3)).batch == 6 and Extents({}).batch == 1
