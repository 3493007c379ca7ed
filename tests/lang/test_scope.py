"""Python names outlive tilings, loops and kernels; what they stand for does not: later uses are refused."""

import numpy as np
import pytest

from kohakutpu import lang as L
from kohakutpu.compiler import CompileError, compile_kernel
from kohakutpu.lang import KernelError, dims, kernel, loop, units
from kohakutpu.machine import load

M, K, N = dims("M, K, N")
SHAPES = {"x": (12, 70), "w": (24, 70)}
OUTSIDE = "is used outside the tiling or loop that bound it"
CLOSED = "acc1 is used outside the tiling that opened it"


def accumulated(x, w, i, j):
    acc = L.tile(3, 6, 1)
    for k in loop(x.chunks32(1)):
        acc += x[i, k] @ w[j, k]
    return acc


def tiled(x, w):
    return units(x.tiles(3), w.tiles(6))


def store(target, value):
    target <<= value
    return target


def an_accumulator(x, w, y):
    with tiled(x, w) as (i, j):
        acc = accumulated(x, w, i, j)
        y[i, j] <<= acc
    with tiled(x, w) as (i, j):
        y[i, j] <<= acc * 2


def a_product_into_it(x, w, y):
    with tiled(x, w) as (i, j):
        acc = accumulated(x, w, i, j)
        y[i, j] <<= acc
    with tiled(x, w) as (i, j):
        for k in loop(x.chunks32(1)):
            acc += x[i, k] @ w[j, k]


def its_value(x, w, y):
    with tiled(x, w) as (i, j):
        value = accumulated(x, w, i, j) * 2
        y[i, j] <<= value
    with tiled(x, w) as (i, j):
        y[i, j] <<= value


def a_target(x, w, y):
    with tiled(x, w) as (i, j):
        target = y[i, j]
        y[i, j] <<= accumulated(x, w, i, j)
    with tiled(x, w) as (i, j):
        target <<= accumulated(x, w, i, j)


def a_part(x, w, y):
    t = L.temp(M, K)
    with units(x.parts(64)) as e:
        value = x[e] * 2
        t[e] <<= value
    with units(x.parts(64)) as e:
        t[e] <<= value


def a_product(x, w, y):
    with tiled(x, w) as (i, j):
        acc = L.tile(3, 6, 1)
        for k in loop(x.chunks32(1)):
            product = x[i, k] @ w[j, k]
        acc += product
        y[i, j] <<= acc


def a_region(x, w, y):
    with tiled(x, w) as (i, j):
        acc, left, right = L.tile(3, 6, 1), L.region(3, 1), L.region(6, 1)
        for k in loop(x.chunks32(1)):
            left <<= x[i, k]
        for k in loop(x.chunks32(1)):
            right <<= w[j, k]
            acc += left @ right
        y[i, j] <<= acc


def an_index(x, w, y):
    t = L.temp(M, K)
    for s in loop(3):
        t <<= x * s
    t <<= x * s


def a_view(x, w, y):
    t = L.temp(M, K)
    for s in loop(3):
        view = t.rows_from(s, 1)
        view <<= x.rows_from(s, 1)
    view <<= x.rows_from(0, 1)


def a_bound(x, w, y):
    t = L.temp(M, K)
    for s in loop(3):
        t <<= x * s
    for r in loop(s + 1):
        t <<= x * r


def a_bound_of_units(x, w, y):
    for s in loop(3):
        store(L.temp(M, K), x * s)
    with units(s + 1, w.tiles(6)) as (i, j):
        y[y.tiles(3).at(i), j] <<= accumulated(x, w, i, j)


@pytest.mark.parametrize("body, reason, line", [
    (an_accumulator, CLOSED, "y[i, j] <<= acc * 2"),
    (a_product_into_it, CLOSED, "acc += x[i, k] @ w[j, k]"),
    (its_value, CLOSED, "y[i, j] <<= value"),
    (a_target, f"the index i {OUTSIDE}", "target <<= accumulated(x, w, i, j)"),
    (a_part, f"the index i {OUTSIDE}", "t[e] <<= value"),
    (a_product, f"the index k2 {OUTSIDE}", "acc += product"),
    (a_region, f"the index k2 {OUTSIDE}", "acc += left @ right"),
    (an_index, f"the index i2 {OUTSIDE}", "t <<= x * s"),
    (a_view, f"the index i2 {OUTSIDE}", "view <<= x.rows_from(0, 1)"),
    (a_bound, f"the index i2 {OUTSIDE}", "for r in loop(s + 1):"),
    (a_bound_of_units, f"the index i1 {OUTSIDE}", "with units(s + 1, w.tiles(6)) as (i, j):"),
], ids=lambda value: getattr(value, "__name__", ""))  # fmt: skip
def test_refused_where_it_is_used(body, reason, line):
    def made(x=L.In(M, K), w=L.In(N, K), y=L.Out(M, N)):
        body(x, w, y)

    with pytest.raises(KernelError, match=reason) as caught:
        kernel(made).trace()
    assert caught.value.source.text == line and "^" in str(caught.value)
    assert caught.value.source.line > body.__code__.co_firstlineno + 2  # the use, not what looks like it above


def test_an_accumulator_of_an_inner_loop_is_the_last_one():
    """Inside its tiling an accumulator may be stored after the loop that opened it."""

    @kernel
    def made(x=L.In(M, K), w=L.In(N, K), y=L.Out(M, N)):
        with units(x.tiles(3)) as i:
            for j in loop(w.tiles(6)):
                acc = accumulated(x, w, i, j)
            y[i, y.columns(6).at(0)] <<= acc

    assert made.trace().statements


# ---- another trace ---------------------------------------------------------------------------------------


def kept_by(body) -> list:
    """What `body` of a kernel over x(M, K) and a written temp returns, once the kernel is traced."""
    kept = []

    def made(x=L.In(M, K), w=L.In(N, K), y=L.Out(M, N)):
        t = store(L.temp(M, K), x)
        with tiled(x, w) as (i, j):
            acc = accumulated(x, w, i, j)
            kept.append(body(x, t, acc))
            y[i, j] <<= acc

    kernel(made).trace()
    return kept


@pytest.mark.parametrize("keep, use, reason", [
    (lambda x, t, acc: x, lambda kept, x: store(L.temp(M, K), kept), "x is a buffer of another kernel"),
    (lambda x, t, acc: x * 2, lambda kept, x: store(L.temp(M, K), kept + x), "a value of another kernel"),
    (lambda x, t, acc: t, lambda kept, x: store(L.temp(M, K), kept.rows_from(0)), "t1 is a buffer of another kernel"),
    (lambda x, t, acc: t, lambda kept, x: store(kept, x), "t1 is a buffer of another kernel"),
    (lambda x, t, acc: t, lambda kept, x: store(kept.rows_from(0), x), "t1 is a buffer of another kernel"),
    (lambda x, t, acc: acc, lambda kept, x: kept * 2, "acc2 is an accumulator of another kernel"),
    (lambda x, t, acc: acc, lambda kept, x: kept.__iadd__(x), "acc2 is an accumulator of another kernel"),
], ids=["port", "value", "temp", "write", "view", "accumulator", "product"])  # fmt: skip
def test_things_of_another_kernel_are_refused(keep, use, reason):
    """Names of buffers repeat from kernel to kernel: used here they would mean something else."""
    (kept,) = kept_by(keep)

    def made(x=L.In(M, K), y=L.Out(M, K)):
        y <<= x
        use(kept, x)

    with pytest.raises(KernelError) as caught:
        kernel(made).trace()
    assert reason in caught.value.message and "^" in str(caught.value)


# ---- other refusals that name their line -----------------------------------------------------------------


def test_what_is_never_written_is_underlined():
    @kernel
    def made(x=L.In(M, K), y=L.Out(M, K)):
        L.temp(M, M)
        y <<= x

    with pytest.raises(KernelError, match="made never writes t1") as caught:
        made.trace()
    assert caught.value.source.text == "L.temp(M, M)"


@pytest.mark.parametrize("value", [np.ones(3), [1, 2], (1.0,)], ids=["array", "list", "tuple"])
def test_an_array_is_a_table(value):
    def made(x=L.In(M, K), y=L.Out(M, K)):
        y <<= x * value

    with pytest.raises(KernelError, match=r"cannot stand in an elementwise expression; .* L\.table\(array\)") as caught:
        kernel(made).trace()
    assert "\n    y <<= x * value\n" in str(caught.value) and len(str(caught.value)) < 400


def test_an_extent_that_is_no_number():
    @kernel
    def made(x=L.In(M, K), y=L.Out(M, K)):
        y <<= x * (K // (M - 12))

    with pytest.raises(KernelError, match="divides by zero") as caught:
        compile_kernel(made, load("quad"), {"x": (12, 70)})
    assert caught.value.source.text == "y <<= x * (K // (M - 12))"


def test_an_epilogue_too_long_for_the_image_says_so():
    """It has no per-channel operand, so that cannot be what does not fit."""

    @kernel
    def made(x=L.In(M, K), w=L.In(N, K), y=L.Out(M, N)):
        with tiled(x, w) as (i, j):
            value = accumulated(x, w, i, j)
            for _ in range(600):
                value = L.exp2(value)
            y[i, j] <<= value

    with pytest.raises(CompileError, match="program of one chunk is above 512 words") as caught:
        compile_kernel(made, load("quad"), SHAPES)
    assert caught.value.source.text == "y[i, j] <<= value"


def test_a_tiling_without_instances_writes_nothing():
    @kernel
    def made(x=L.In(M, K), w=L.In(N, K), y=L.Out(M, N)):
        with units(M - 12, w.tiles(6)) as (i, j):
            acc = L.tile(3, 6, 1)
            for k in loop(x.chunks32(1)):
                acc += x[x.tiles(3).at(i), k] @ w[j, k]
            y[y.tiles(3).at(i), j] <<= acc

    with pytest.raises(CompileError, match="the result y is incomplete: nothing has written to it"):
        compile_kernel(made, load("quad"), SHAPES)
