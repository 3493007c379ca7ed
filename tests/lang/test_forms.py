"""Forms that say the same: nested tilings, loops of whole stages, explicit regions, tables; and what is refused in
them."""

import numpy as np
import pytest

from kohakutpu import lang as L
from kohakutpu.compiler import CompileError, Options, compile_kernel
from kohakutpu.kernels.linear import matmul
from kohakutpu.lang import KernelError, dims, kernel, loop, units
from kohakutpu.machine import load
from kohakutpu.reference import interpret

M, K, N = dims("M, K, N")
SHAPES = {"a": (40, 70), "b": (24, 70)}
KNOBS = {"gm": 2, "gn": 3, "nk": 1}


def listing(made, shapes=SHAPES, knobs=KNOBS) -> list[str]:
    """The instructions of every round, without the names of the kernel's lines."""
    artifact = compile_kernel(made, load("quad"), shapes, knobs)
    return [f"{flit.payload:x}" for round_ in artifact.rounds for flit in round_.flits]


def bits(made, seed=0, knobs=None, **shapes):
    rng = np.random.default_rng(seed)
    operands = {name: rng.normal(0, 1, shape).astype(np.float16) for name, shape in shapes.items()}
    trace = made.trace(**(knobs or {}))
    return operands, interpret(trace, made.solve(shapes), operands).outputs


# ---- regions ------------------------------------------------------------------------------------------


@kernel
def placed(a=L.In(..., M, K), b=L.In(N, K), c=L.Out(..., M, N), *, gm=8, gn=8, nk=2):
    with units(a.tiles(gm), b.tiles(gn)) as (i, j):
        acc = L.tile(gm, gn, nk)
        left, right = L.region(gm, nk), L.region(gn, nk)
        for k in loop(a.chunks32(nk)):
            left <<= a[i, k]
            right <<= b[j, k]
            acc += left @ right
        c[i, j] <<= acc


def test_explicit_placement_is_the_same_program():
    assert listing(placed) == listing(matmul)


def regions(body):
    def made(a=L.In(M, K), b=L.In(N, K), c=L.Out(M, N)):
        with units(a.tiles(2), b.tiles(2)) as (i, j):
            acc = L.tile(2, 2, 1)
            for k in loop(a.chunks32(1)):
                acc = body(a[i, k], b[j, k], acc, L.region(2, 1), L.region(2, 1))
            c[i, j] <<= acc

    return kernel(made)


def fill(region, part):
    region <<= part
    return region


@pytest.mark.parametrize(
    "body, message",
    [
        (lambda a, b, acc, p, q: acc.__iadd__(p @ q), "multiplied before anything was fetched"),
        (lambda a, b, acc, p, q: acc.__iadd__(fill(p, a) @ p), "one region cannot serve both sides"),
        (lambda a, b, acc, p, q: acc.__iadd__(fill(p, a) @ fill(q, b)).__iadd__(q @ p), "served side B.* cannot serve side A"),
        (lambda a, b, acc, p, q: acc.__iadd__(fill(p, a) @ fill(L.region(2, 2), b)), "cut into 2 groups by 1 block and the region has 2 by 2"),
        (lambda a, b, acc, p, q: acc.__iadd__(a @ b) if fill(p, a) else acc, "filled here and not multiplied"),
        (lambda a, b, acc, p, q: fill(p, 3.0), "filled from an operand slice"),
        (lambda a, b, acc, p, q: acc.__iadd__(p), "takes a product"),
        (lambda a, b, acc, p, q: acc + p, "stands only in a product"),
        (lambda a, b, acc, p, q: L.region(0, 1), "groups: expected an integer of at least 1"),
    ],
)
def test_regions_refused(body, message):
    with pytest.raises(KernelError, match=message) as caught:
        regions(body).trace()
    assert "^" in str(caught.value)


def test_a_region_outside_units():
    @kernel
    def made(a=L.In(M, K), c=L.Out(M, K)):
        L.region(1, 1)
        c <<= a

    with pytest.raises(KernelError, match="a region belongs to one instance"):
        made.trace()


# ---- tilings inside tilings ---------------------------------------------------------------------------


@kernel
def view(a=L.In(..., M, K), b=L.In(N, K), c=L.Out(..., M, N), *, gm=8, gn=8, nk=2):
    with units(a.tiles(gm)) as i:
        with units(b.tiles(gn)) as j:
            acc = L.tile(gm, gn, nk)
            with units(a.chunks32(nk)) as k:
                acc += a[i, k] @ b[j, k]
            c[i, j] <<= acc


@kernel
def walked(a=L.In(..., M, K), b=L.In(N, K), c=L.Out(..., M, N), *, gm=8, gn=8, nk=2):
    with units(a.tiles(gm)) as i:
        for j in loop(b.tiles(gn)):
            acc = L.tile(gm, gn, nk)
            for k in loop(a.chunks32(nk)):
                acc += a[i, k] @ b[j, k]
            c[i, j] <<= acc


def test_a_tiling_inside_a_tiling_is_a_view():
    assert listing(view) == listing(walked)
    assert "units i" in view.trace().pretty() and "loop j" in view.trace().pretty() and "loop k" in view.trace().pretty()
    operands, found = bits(view, knobs=KNOBS, **SHAPES)
    assert (found["c"] == bits(matmul, knobs=KNOBS, **SHAPES)[1]["c"]).all()


@kernel
def gridded(a=L.In(..., M, K), b=L.In(N, K), c=L.Out(..., M, N), *, gm=8, gn=8, nk=2):
    for i, j in L.grid(a.tiles(gm), b.tiles(gn)):
        acc = L.tile(gm, gn, nk)
        for k in L.sweep(a.chunks32(nk)):
            acc += a[i, k] @ b[j, k]
        c[i, j] <<= acc


def test_other_names_are_the_same_program():
    assert listing(gridded) == listing(matmul) and L.stage is L.units


def test_a_grid_left_early_is_refused():
    @kernel
    def made(a=L.In(M, K), b=L.In(N, K), c=L.Out(M, N)):
        for i, j in L.grid(a.tiles(1), b.tiles(1)):
            acc = L.tile(1, 1, 1)
            for k in loop(a.chunks32(1)):
                acc += a[i, k] @ b[j, k]
            c[i, j] <<= acc
            break

    with pytest.raises(KernelError, match="a grid was left early"):
        made.trace()


def test_two_axes_of_a_view_keep_their_order():
    @kernel
    def made(a=L.In(M, K), b=L.In(N, K), c=L.Out(M, N)):
        with units(1):
            with units(a.tiles(1), b.tiles(1)) as (i, j):
                acc = L.tile(1, 1, 1)
                for k in loop(a.chunks32(1)):
                    acc += a[i, k] @ b[j, k]
                c[i, j] <<= acc

    (tiling,) = made.trace().body
    (outer,) = tiling.body
    (inner,) = outer.body
    assert [outer.index.name, inner.index.name] == ["j", "k"]
    bits(made, a=(9, 33), b=(6, 33))


def test_parts_that_every_instance_would_write_are_refused():
    @kernel
    def made(a=L.In(M, K), b=L.In(M, K), c=L.Out(M, M), d=L.Out(M, K)):
        with units(a.tiles(1), b.tiles(1)) as (i, j):
            acc = L.tile(1, 1, 1)
            for k in loop(a.chunks32(1)):
                acc += a[i, k] @ b[j, k]
            c[i, j] <<= acc
            with units(d.parts(16)) as e:
                d[e] <<= a[e] * 2

    twice = r"the part 0 of d is written twice in one tiling, by instances \(0, 0\) and \(0, 1\)"
    with pytest.raises(CompileError, match=twice) as caught:
        compile_kernel(made, load("quad"), {"a": (8, 32), "b": (8, 32)})
    assert caught.value.source.text == "d[e] <<= a[e] * 2"


# ---- loops of whole stages ----------------------------------------------------------------------------


def test_a_loop_outside_repeats_whole_stages():
    def made(x=L.In(M, N), y=L.Out(M, N)):
        y <<= x
        for _ in loop(3):
            y <<= y * 0.5 + x

    made = kernel(made)
    artifact = compile_kernel(made, load("quad"), {"x": (8, 40)}, {}, Options(bands=False))
    assert len(artifact.stages) == 4
    operands, found = bits(made, x=(8, 40))

    def unrolled(x=L.In(M, N), y=L.Out(M, N)):
        y <<= x
        for _ in range(3):
            y <<= y * 0.5 + x

    assert (bits(kernel(unrolled), x=(8, 40))[1]["y"] == found["y"]).all()


# ---- tables -------------------------------------------------------------------------------------------

TRIANGLE = np.triu(np.full((6, 6), -1e4), 1)


@kernel
def masked(x=L.In(..., 6, 6), y=L.Out(..., 6, 6)):
    y <<= x + L.table(TRIANGLE)


@kernel
def causal(x=L.In(..., M, N), y=L.Out(..., M, N), *, period=None):
    y <<= L.where(L.greater(L.column_index(N), L.row_index(M, period)), -60000.0, x)


def test_tables():
    operands, found = bits(masked, x=(2, 6, 6))
    wanted = (operands["x"].astype(np.float32) + TRIANGLE.astype(np.float32)).astype(np.float16)
    assert (found["y"].view(np.float16) == wanted).all()
    operands, found = bits(causal, x=(5, 7), knobs={"period": 2})
    rows, columns = np.indices((5, 7))
    assert (found["y"].view(np.float16) == np.where(columns > rows % 2, -60000, operands["x"])).all()


def test_a_table_is_part_of_the_artifact():
    from kohakutpu.compiler import Artifact

    artifact = compile_kernel(masked, load("quad"), {"x": (2, 6, 6)})
    (table,) = [image for image in artifact.buffers if image.role == "constant"]
    assert (table.unpack(table.contents()).view(np.float16) == TRIANGLE.astype(np.float16)).all()
    again = Artifact.from_json(artifact.to_json())
    assert again.digest == artifact.digest and again.buffer(table.name).contents() == table.contents()


@pytest.mark.parametrize(
    "made, message",
    [
        (lambda y: L.table([1.0, 1e6]), "finite numbers in the range of FP16"),
        (lambda y: L.table(3.0), r"shape \(\) has no elements"),
        (lambda y: L.table([[], []]), "has no elements"),
        (lambda y: L.table("abc"), "an array of numbers"),
        (lambda y: L.table(np.ones((2, 8))).__ilshift__(y), "is a table and cannot be written"),
        (lambda y: L.row_index(4, 0), "period: expected an integer of at least 1"),
        (lambda y: L.row_index(4, M), "the period M is not a number .* use a knob, or leave the period away to count all rows"),
    ],
)
def test_tables_refused(made, message):
    def body(x=L.In(M, N), y=L.Out(M, N)):
        y <<= x + made(x)

    with pytest.raises(KernelError, match=message):
        kernel(body).trace()


def test_indices_beyond_fp16_are_refused():
    with pytest.raises(KernelError, match="indices up to 2049 are not all FP16 numbers"):
        compile_kernel(causal, load("quad"), {"x": (1, 2050)})


# ---- indices of other loops ---------------------------------------------------------------------------


@kernel
def blocked(x=L.In(M, K), w=L.In(N, K), y=L.Out(M, N), *, gm=2, block=32):
    """x @ w.T, a block of K at a time through a buffer of one block's partial sums."""
    part, total = L.temp(M, N), L.temp(M, N)
    total <<= 0.0
    for b in loop(L.ceildiv(K, block)):
        with units(x.tiles(gm)) as i:
            acc = L.tile(gm, 4, 1)
            acc += x[i, x.chunks32(1).at(b)] @ w[w.tiles(4).at(0), w.chunks32(1).at(b)]
            part[i, part.columns(4).at(0)] <<= acc
        total <<= total + part + b
    y <<= total - K


def test_indices_of_loops_outside():
    operands, found = bits(blocked, x=(10, 70), w=(16, 70))
    x, w = (operands[name].astype(np.float64) for name in "xw")
    assert np.allclose(found["y"].view(np.float16), x @ w.T + 0 + 1 + 2 - 70, atol=0.5)
    artifact = compile_kernel(blocked, load("quad"), {"x": (10, 70), "w": (16, 70)}, {}, Options(bands=False))
    assert len(artifact.stages) == 8


def placed_at(index, name="w"):
    def made(x=L.In(M, K), w=L.In(N, K), y=L.Out(M, N)):
        with units(x.tiles(1), w.tiles(1)) as (i, j):
            acc = L.tile(1, 1, 1)
            for k in loop(x.chunks32(1)):
                acc += x[i, k] @ (w[w.tiles(1).at(index(i, j, w)), k] if name == "w" else w[j, k])
            y[i, j] <<= acc + (index(i, j, w) if name == "y" else 0)

    return kernel(made)


@pytest.mark.parametrize(
    "made, message",
    [
        (placed_at(lambda i, j, w: "1"), "at: expected an index or an integer"),
        (placed_at(lambda i, j, w: i, "y"), "an index cannot be a value inside units"),
    ],
)
def test_indices_refused(made, message):
    with pytest.raises(KernelError, match=message):
        made.trace()


def test_an_index_past_the_end_is_refused():
    with pytest.raises(KernelError, match=r"w\[.*\] reaches index 2 of an axis of 8 elements in steps of 4"):
        compile_kernel(placed_at(lambda i, j, w: 2), load("quad"), {"x": (8, 32), "w": (8, 32)})
