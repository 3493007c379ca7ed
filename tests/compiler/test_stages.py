"""What a tiling may and may not say to this machine: hazards, completeness, byte orders."""

import pytest

from kohakutpu import lang as L
from kohakutpu.compiler import CompileError, Options, compile_kernel
from kohakutpu.lang import KernelError, dims, kernel, loop, units

from .kernels import computed_operand, constants, parts

M, K, N = dims("M, K, N")
SHAPES = {"x": (16, 64), "w": (16, 64), "r": (16, 16)}


def refused(body, bench, reason, shapes=SHAPES, **knobs):
    def made(x=L.In(M, K), w=L.In(N, K), r=L.In(M, N), y=L.Out(M, N), z=L.Out(M, N), *, gm=2, gn=2, nk=1):
        body(x, w, r, y, z, gm, gn, nk)

    with pytest.raises(CompileError, match=reason) as caught:
        compile_kernel(kernel(made), bench, shapes, knobs)
    assert caught.value.source.file.endswith(("test_stages.py", "kernels.py"))


def acc_of(x, w, i, j, gm, gn, nk):
    acc = L.tile(gm, gn, nk)
    for k in loop(x.chunks32(nk)):
        acc += x[i, k] @ w[j, k]
    return acc


def test_reading_in_an_epilogue_what_the_same_tiling_writes(bench):
    """Legal from a temp; fused it stays refused, and is not staged in silence."""

    def body(x, w, r, y, z, gm, gn, nk):
        with units(x.tiles(gm), w.tiles(gn)) as (i, j):
            y[i, j] <<= acc_of(x, w, i, j, gm, gn, nk)
            z[i, j] <<= acc_of(x, w, i, j, gm, gn, nk) * y[i, j]

    refused(body, bench, "this epilogue cannot be fused: y is neither the accumulator nor a constant")


def test_writing_a_tile_twice(bench):
    def body(x, w, r, y, z, gm, gn, nk):
        z <<= r
        with units(x.tiles(gm), w.tiles(gn)) as (i, j):
            acc = acc_of(x, w, i, j, gm, gn, nk)
            y[i, j] <<= acc
            y[i, j] <<= acc * 2

    refused(body, bench, r"the tile \(0, 0\) of y is written twice in one tiling, by instances \(0, 0\) and \(0, 0\)")


def test_two_instances_writing_one_tile(bench):
    def body(x, w, r, y, z, gm, gn, nk):
        z <<= r
        with units(x.tiles(gm), w.tiles(gn)) as (i, j):
            y[i, j - j] <<= acc_of(x, w, i, j, gm, gn, nk)

    refused(body, bench, r"the tile \(0, 0\) of y is written twice in one tiling, by instances \(0, 0\) and \(0, 1\)")


def test_an_accumulator_that_goes_nowhere(bench):
    def body(x, w, r, y, z, gm, gn, nk):
        z <<= r
        with units(x.tiles(gm), w.tiles(gn)) as (i, j):
            y[i, j] <<= acc_of(x, w, i, j, gm, gn, nk)
            acc_of(x, w, i, j, gm, gn, nk)

    refused(body, bench, r"acc\d is accumulated and never stored")


def test_an_accumulator_stored_empty(bench):
    """A loop that these shapes make empty."""

    def body(x, w, r, y, z, gm, gn, nk):
        z <<= r
        with units(x.tiles(gm), w.tiles(gn)) as (i, j):
            acc = L.tile(gm, gn, nk)
            for _ in loop(M - N):
                for k in loop(x.chunks32(nk)):
                    acc += x[i, k] @ w[j, k]
            y[i, j] <<= acc

    refused(body, bench, r"acc\d is stored before anything was accumulated in it")


def test_a_result_that_is_not_covered(bench):
    def made(x=L.In(M, K), w=L.In(N, K), y=L.Out(2 * M, N), *, gm=2, gn=2, nk=1):
        with units(x.tiles(gm), w.tiles(gn)) as (i, j):
            y[i * 1, j] <<= acc_of(x, w, i, j, gm, gn, nk)

    with pytest.raises(CompileError, match=r"the result y is incomplete: no instance writes its tile \(2, 0\) of 4x2"):
        compile_kernel(kernel(made), bench, {"x": (16, 64), "w": (16, 64)})


def test_a_slice_past_the_end(bench):
    def made(x=L.In(M, K), w=L.In(N, K), y=L.Out(M, N), *, gm=2, gn=2, nk=1):
        with units(x.tiles(gm), w.tiles(gn)) as (i, j):
            acc = L.tile(gm, gn, nk)
            for k in loop(x.chunks32(nk)):
                acc += x[i + 1, k] @ w[j, k]
            y[i, j] <<= acc

    with pytest.raises(
        ValueError, match=r"x\[\(i \+ 1\), k2\] reaches index 2 of an axis of 16 elements in steps of 8"
    ):
        compile_kernel(kernel(made), bench, {"x": (16, 64), "w": (16, 64)})


def test_tiles_of_two_sizes(bench):
    def body(x, w, r, y, z, gm, gn, nk):
        z <<= r
        with units(x.tiles(2), w.tiles(2)) as (i, j):
            y[i, j] <<= acc_of(x, w, i, j, 2, 2, 1)
        with units(x.tiles(4), w.tiles(4)) as (i, j):
            y[i, j] <<= acc_of(x, w, i, j, 4, 4, 1)

    refused(body, bench, "y is written in tiles of 4x4 here and of 2x2 elsewhere")


def test_an_operand_cut_in_two_ways(bench):
    def body(x, w, r, y, z, gm, gn, nk):
        with units(x.tiles(2), w.tiles(2)) as (i, j):
            y[i, j] <<= acc_of(x, w, i, j, 2, 2, 1)
        with units(x.tiles(4), w.tiles(2)) as (i, j):
            z[i, j] <<= acc_of(x, w, i, j, 4, 2, 1)

    refused(body, bench, "x would need two byte orders: entry:2x1 .* and entry:4x1")


def test_an_operand_that_is_also_elementwise_in_another_order(bench):
    def made(x=L.In(M, M), y=L.Out(M, M), *, gm=2, gn=2, nk=1):
        t = L.temp(M, M)
        with units(x.tiles(gm), x.tiles(gn)) as (i, j):
            t[i, j] <<= acc_of(x, x, i, j, gm, gn, nk)
        y <<= t + x

    with pytest.raises(CompileError, match="t1 and x would need two byte orders: tile:.* and entry:2x1; only a temp is copied"):
        compile_kernel(kernel(made), bench, {"x": (32, 32)})


def test_elementwise_work_takes_an_operands_order(bench):
    artifact = compile_kernel(computed_operand, bench, {"x": (16, 64), "w": (16, 64)})
    assert artifact.buffer("x").layout == artifact.buffer("t1").layout
    assert artifact.buffer("t1").layout.key == "entry:2x1"


def test_computed_padding_of_an_operand(bench):
    """sigmoid(0) is 0.5: padding would join in the scales of its block."""
    with pytest.raises(
        CompileError, match="t1 is an operand of 48 columns in chunks of 32, whose padding must stay zero"
    ):
        compile_kernel(computed_operand, bench, {"x": (16, 48), "w": (16, 48)})


def test_shapes_of_elementwise_operands(bench):
    def made(x=L.In(M, N), b=L.In(M), y=L.Out(M, N)):
        y <<= x + b

    with pytest.raises(KernelError, match=r"these do not make one shape: y \[4, 8\], x \[4, 8\], b \[4\]"):
        compile_kernel(kernel(made), bench, {"x": (4, 8), "b": (4,)})


def test_a_port_nothing_uses(bench):
    def made(x=L.In(M, N), v=L.In(M), y=L.Out(M, N)):
        y <<= x + 1

    with pytest.raises(CompileError, match="v is declared and never used"):
        compile_kernel(kernel(made), bench, {"x": (4, 8), "v": (4,)})


def test_staging_needs_the_whole_result(bench):
    def made(x=L.In(M, K), w=L.In(N, K), y=L.Out(2 * M, N), *, gm=2, gn=2, nk=1):
        with units(x.tiles(gm), w.tiles(gn)) as (i, j):
            y[i * 1, j] <<= acc_of(x, w, i, j, gm, gn, nk) * 2.0

    with pytest.raises(CompileError, match="fuse=False needs a tiling that covers the result; the landed tile land3"):
        compile_kernel(kernel(made), bench, {"x": (16, 64), "w": (16, 64)}, {"fuse": False})


# ---- parts -----------------------------------------------------------------------------------------------


def test_parts_are_statements_over_the_whole(bench):
    artifact = compile_kernel(parts, bench, {"x": (20, 130)}, {"p": 640}, Options(bands=False))
    assert [stage.unit for stage in artifact.stages] == ["vector", "vector"]
    assert [stage.statements for stage in artifact.stages] == [(0,), (1,)]
    assert artifact.stages[0].grid == (5,)  # 163 words in 5 parts of at most 40


def test_parts_may_be_indexed_by_an_expression(bench):
    def plain(x=L.In(M, N), y=L.Out(M, N), *, p=16):
        with units(x.parts(p)) as e:
            y[e] <<= x[e] * 2

    def added(x=L.In(M, N), y=L.Out(M, N), *, p=16):
        with units(x.parts(p)) as e:
            y[e + 0] <<= x[e + 0] * 2

    one, other = (compile_kernel(kernel(made), bench, {"x": (4, 8)}) for made in (plain, added))
    assert one.rounds == other.rounds


def test_parts_meet(bench):
    def two_axes(x=L.In(M, N), y=L.Out(M, N), *, p=16):
        with units(x.parts(p), 2) as (e, _n):
            y[e] <<= x[e] * 2

    def moved(x=L.In(M, N), y=L.Out(M, N), *, p=16):
        with units(y.parts(p)) as e:
            y[e] <<= x[e - e] * 2

    with pytest.raises(CompileError, match=r"the part 0 of y is written twice in one tiling, by instances \(0, 0\) and \(0, 1\)"):
        compile_kernel(kernel(two_axes), bench, {"x": (4, 8)})
    with pytest.raises(CompileError, match="part 0 of x does not meet part 1 of y, which is written: index both alike"):
        compile_kernel(kernel(moved), bench, {"x": (4, 8)})


def test_made_names_avoid_the_ports(bench):
    def made(x=L.In(M, K), land4=L.In(N, K), t1=L.Out(M, N), *, gm=2, gn=2, nk=1):
        h = L.temp(M, N)
        with units(x.tiles(gm), land4.tiles(gn)) as (i, j):
            h[i, j] <<= acc_of(x, land4, i, j, gm, gn, nk) * 2.0
        t1 <<= h + 1

    artifact = compile_kernel(kernel(made), bench, {"x": (16, 64), "land4": (16, 64)}, {"fuse": False}, Options(bands=False))
    assert [image.name for image in artifact.buffers] == ["x", "land4", "t1", "t2", "land5"]


def test_a_copy_and_a_number(bench):
    artifact = compile_kernel(constants, bench, {"x": (4, 8)}, {}, Options(bands=False))
    assert [stage.statements for stage in artifact.stages] == [(0,), (1,)]
