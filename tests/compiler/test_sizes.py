"""What is too large is refused by name, before anything is counted out tile by tile."""

from fractions import Fraction

import numpy as np
import pytest

from kohakutpu import lang as L
from kohakutpu.compiler import CompileError, Options, compile_kernel, unrolling
from kohakutpu.host.simulate import run_reference
from kohakutpu.kernels import mlp
from kohakutpu.kernels.linear import linear_silu, matmul
from kohakutpu.lang import dims, kernel, loop, units
from kohakutpu.lang.source import KernelError
from kohakutpu.machine import Dram, load
from kohakutpu.reference import InterpreterError

from .conftest import build_machine
from .kernels import relu_and_half, row_of_tiles

M, N, K = dims("M, N, K")


@kernel
def shrinking(x=L.In(M, K), w=L.In(N, K), y=L.Out(M, N), *, gm=1, gn=1):
    """The inner loop is empty in the first turn of the outer one."""
    with units(x.tiles(gm), w.tiles(gn)) as (i, j):
        acc = L.tile(gm, gn, 1)
        for turn in loop(64):
            for again in loop(turn):
                for k in loop(x.chunks32(1)):
                    acc += x[i, k] @ w[j, k]
        y[i, j] <<= acc


@kernel
def outside(x=L.In(M, K), w=L.In(N, K), y=L.Out(M, N)):
    for _ in loop(5000):
        for _ in loop(5000):
            with units(x.tiles(1), w.tiles(1)) as (i, j):
                acc = L.tile(1, 1, 1)
                for k in loop(x.chunks32(1)):
                    acc += x[i, k] @ w[j, k]
                y[i, j] <<= acc


@kernel
def area(x=L.In(M, N), y=L.Out(M, N)):
    scale = M
    for _ in range(10):
        scale = scale * scale
    y <<= x * scale


FLAT = {"x": (1, 32), "w": (4, 32)}
ROOMY = {"memory": Dram(bytes=1 << 36)}


@pytest.mark.parametrize(
    "made, shapes, knobs, machine, reason",
    [
        (linear_silu, {"x": (99999999, 99999999), "w": (99999999, 99999999)}, {}, {}, r"x \(\d+ bytes\) does not fit"),
        (linear_silu, {"x": (10**20, 32), "w": (4, 32)}, {}, {}, r"x \(\d+ bytes\) does not fit"),
        (matmul, {"a": (10**6, 32), "b": (10**6, 32)}, {"nk": 1}, {}, r"c \(2000000000000 bytes\) does not fit"),
        (matmul, {"a": (10**30, 4, 32), "b": (4, 32)}, {"nk": 1}, {}, r"a \(\d+ bytes\) does not fit"),
        (relu_and_half, {"x": (10**40,)}, {}, {}, r"x \(\d+ bytes\) does not fit"),
        (matmul, {"a": (8192, 8192), "b": (8192, 8192)}, {"gm": 1, "gn": 1, "nk": 1}, ROOMY, "unrolls to .* above 1048576"),
        (row_of_tiles, {"x": (4, 32), "w": (1 << 23, 32)}, {"gm": 1, "gn": 1}, ROOMY, "unrolls to .* use a larger gm"),
        (outside, FLAT, {}, {}, "unrolls to .* above 1048576"),
        (relu_and_half, {"x": (1 << 33,)}, {"part": 1}, ROOMY, "67108864 instances of 128 elements, above 1048576"),
    ],
)
@pytest.mark.parametrize("lowering", ["default", "published"])
@pytest.mark.timeout(120)  # who begins to unroll these is at it for hours
def test_what_is_too_large_is_refused_at_once(made, shapes, knobs, machine, reason, lowering):
    if lowering == "published" and "part" in knobs:
        knobs, reason = {"part": 1024}, "8388608 instances of 1024 elements, above 1048576"
    with pytest.raises(CompileError, match=reason):
        compile_kernel(made, build_machine(**machine), shapes, knobs, Options(lowering))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("lowering, relayout", [("default", "machine"), ("default", "host"), ("published", "host")])
@pytest.mark.parametrize("knobs, reason", [
    ({"gm": 10**9}, "a tile of 1000000000x8 is 8000000000 sub-tiles and the accumulator of the cluster at .* holds 512"),
    ({"gn": 10**9}, "a tile of 8x1000000000 is 8000000000 sub-tiles"),
    ({"nk": 10**9}, "x: a FILL of 8000000000 entries .8 groups of 1000000000 blocks.; at most 255 are counted"),
    ({"gn": 16, "nk": 16}, "w|up: a FILL of 256 entries .16 groups of 16 blocks.; at most 255 are counted"),
])  # fmt: skip
def test_tiles_beyond_every_cluster_are_refused_before_their_copies_are_planned(knobs, reason, lowering, relayout):
    """Whoever weighs the divisors of a group of 10^9 rows is at it for minutes."""
    shapes = {"x": (20, 64), "up": (64, 64), "down": (16, 64)}
    with pytest.raises(CompileError, match=reason) as caught:
        compile_kernel(mlp, load("quad"), shapes, knobs, Options(lowering, relayout=relayout))
    assert "acc += x[i, k] @ w[j, k]\n" in str(caught.value)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("knob", ["gm", "gn", "nk"])
def test_tiles_beyond_memory_have_no_meaning(knob):
    """The interpreter would make an array of a whole tile, or go through every block."""
    operands = {"a": np.zeros((4, 32), np.float16), "b": np.zeros((4, 32), np.float16)}
    with pytest.raises(InterpreterError, match=r"a tile of \d+x\d+ sub-tiles swept \d+ blocks at a time: at most 268,435,456") as caught:
        run_reference(matmul, {knob: 10**9}, operands, load("quad"))
    assert "L.tile(gm, gn, nk)" in str(caught.value)


def test_a_loop_that_grows_is_cut_off_while_it_is_unrolled(monkeypatch):
    """Its count is not known before; two statements and what its turns add."""
    monkeypatch.setattr(unrolling, "UNROLLED", 1000)
    with pytest.raises(CompileError, match="unrolls to 1001 statements or more"):
        compile_kernel(shrinking, build_machine(), FLAT)


@pytest.mark.parametrize("value", [10**400, -(10**400), Fraction(10**400)])
def test_a_constant_that_no_float_holds_is_refused(value):
    @kernel
    def huge(x=L.In(...), y=L.Out(...)):
        y <<= x * value

    with pytest.raises(KernelError, match=rf"a {type(value).__name__} above the range of float cannot be a constant"):
        compile_kernel(huge, build_machine(), {"x": (16,)})


def test_an_extent_that_no_float_holds_is_no_constant():
    with pytest.raises(KernelError, match="an extent of 3402 bits cannot be a constant"):
        compile_kernel(area, build_machine(), {"x": (10, 16)})
