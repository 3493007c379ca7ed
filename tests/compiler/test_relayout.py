"""Copies in another byte order: bytes of the copy, whole kernels against the interpreter, refusals, planted faults."""

import numpy as np
import pytest

from kohakutpu import lang as L
from kohakutpu.compiler import Artifact, CompileError, Options, compile_kernel, padding, relayout
from kohakutpu.formats import alu, e8m15, mxfp7
from kohakutpu.host.driver import Driver
from kohakutpu.host.loader import Loader
from kohakutpu.host.model_transport import ModelTransport
from kohakutpu.host.simulate import run_model, run_reference
from kohakutpu.isa.vector import Opcode
from kohakutpu.kernels import gated_mlp, mlp
from kohakutpu.lang import dims, kernel, units
from kohakutpu.machine import load
from kohakutpu.model.memory import Memory
from kohakutpu.model.system import System

from .conftest import build_machine
from .kernels import product
from .kernels import relayout as two_products

M, K, N = dims("M, K, N")


@kernel
def computed_twice(x=L.In(..., M, K), w=L.In(N, K), y=L.Out(..., M, N), z=L.Out(..., M, N), *, gm=3, gn=4, nk=1):
    """An elementwise result that two products read in two orders."""
    h = L.temp(M, K)
    h <<= L.silu(x)
    with units(h.tiles(gm), w.tiles(gn)) as (i, j):
        y[i, j] <<= product(h, w, i, j, gm, gn, nk)
    with units(h.tiles(2), w.tiles(gn)) as (i, j):
        z[i, j] <<= product(h, w, i, j, 2, gn, nk)


def made(kernel, machine, shapes, knobs, scale=1.0, options=Options()):  # noqa: B008
    """(artifact, operands, machine)"""
    machine = load(machine)
    random = np.random.default_rng(5)
    operands = {name: random.normal(0, scale, shape).astype(np.float16) for name, shape in shapes.items()}
    return compile_kernel(kernel, machine, shapes, knobs, options), operands, machine


def same(kernel, machine, shapes, knobs):
    artifact, operands, machine = made(kernel, machine, shapes, knobs)
    wanted = run_reference(kernel, knobs, operands, machine).outputs
    got = run_model(artifact, machine, operands).run.outputs
    assert all((got[name] == wanted[name]).all() for name in wanted)
    return artifact


def mlp_of(batch, m, k, f, n):
    return {"x": (*batch, m, k), "up": (f, k), "down": (n, f)}


@pytest.mark.parametrize("kernel, machine, shapes, knobs", [
    (mlp, "mm_mesh", mlp_of((), 37, 40, 96, 33), {"gm": 3, "gn": 8, "nk": 1}),
    (mlp, "quad", mlp_of((2,), 20, 64, 64, 32), {"gm": 4, "gn": 8, "nk": 1, "act": None}),
    (mlp, "ship_3x2", mlp_of((), 64, 64, 128, 32), {"gm": 16, "gn": 16, "nk": 2}),
    (mlp, "ship_3x2", mlp_of((), 30, 64, 120, 32), {"gm": 4, "gn": 16, "nk": 3, "act": None}),
    (gated_mlp, "quad", {"x": (20, 64), "gate": (64, 64), "up": (64, 64), "down": (32, 64)}, {"gm": 2, "gn": 8, "nk": 1}),
    (computed_twice, "quad", {"x": (2, 33, 96), "w": (20, 96)}, {}),
    (computed_twice, "mm_mesh", {"x": (21, 64), "w": (20, 64)}, {}),
    (two_products, "quad", {"x": (21, 64), "w": (32, 64), "u": (64, 32)}, {"gm": 2, "gn": 8}),
])  # fmt: skip
def test_kernels_with_copies(kernel, machine, shapes, knobs):
    same(kernel, machine, shapes, knobs)


@pytest.mark.parametrize("rows, columns, gm, gn, nk", [(16, 64, 4, 8, 2), (37, 96, 5, 24, 1), (20, 128, 3, 16, 4), (64, 64, 16, 16, 2)])
def test_the_copy_holds_the_operand_in_its_order(rows, columns, gm, gn, nk):
    """Byte for byte what the host would have packed, zeros of either sign alike."""
    machine = load("ship_2x2")
    knobs = {"gm": gm, "gn": gn, "nk": nk, "act": None}
    artifact, operands, _ = made(mlp, "ship_2x2", mlp_of((), rows, 64, columns, 8), knobs)
    system = System(machine)
    loader = Loader(Driver(ModelTransport(system)))
    loader.run(artifact, operands)
    tiles, copy = (image for image in artifact.buffers if image.role == "temp")
    value = tiles.unpack(loader.read_buffer(tiles))
    found = copy.unpack(loader.read_buffer(copy))
    assert (np.where(found == 0x8000, 0, found) == np.where(value == 0x8000, 0, value)).all() and value.any()


def test_whatever_lies_in_memory_survives_a_register():
    """A copy goes through E8M15 and VMOV: every pattern that elementwise work leaves comes back, but for the sign of a
    zero, and the quantiser takes both zeros alike."""
    every = e8m15.from_fp16(np.arange(1 << 16, dtype=np.uint32).astype(np.uint16))
    left = np.unique(e8m15.to_fp16(alu.canonical(every)))
    assert len(left) > 60_000 and (e8m15.to_fp16(alu.canonical(e8m15.from_fp16(left))) == left).all()
    zeros = np.array([0, 0x8000] * 64, np.uint16).reshape(1, 4, 32)
    assert (mxfp7.quantise(zeros)[0] == 0).all()


def test_copies_are_made_again_when_their_buffer_changes(bench):
    @kernel
    def again(x=L.In(M, K), w=L.In(K, K), y=L.Out(M, K), z=L.Out(M, K), *, gm=2, gn=8, nk=1):
        h = L.temp(M, K)
        with units(x.tiles(gm), w.tiles(gn)) as (i, j):
            h[i, j] <<= product(x, w, i, j, gm, gn, nk)
        for out in (y, z):
            with units(h.tiles(gm), w.tiles(gn)) as (i, j):
                out[i, j] <<= product(h, w, i, j, gm, gn, nk)
            if out is y:
                h <<= h + h

    artifact = compile_kernel(again, bench, {"x": (8, 32), "w": (32, 32)})
    assert [stage.unit for stage in artifact.stages] == ["cluster", "vector", "cluster", "vector", "vector", "cluster"]
    same(again, "quad", {"x": (20, 64), "w": (64, 64)}, {})


# ---- memory ---------------------------------------------------------------------------------------------


def test_temps_share_memory_when_their_lives_do_not_meet(monkeypatch):
    """mlp's hidden tiles are dead once they are copied or computed on; the predicted peak is what is touched."""
    shapes = mlp_of((), 64, 64, 64, 32)
    artifact, operands, machine = made(mlp, "quad", shapes, {"gm": 4, "gn": 8, "nk": 1})
    first, second, copy = (image for image in artifact.buffers if image.role == "temp")
    assert first.address == copy.address != second.address
    touched = []
    store = Memory._store
    monkeypatch.setattr(Memory, "_store", lambda self, address, data: (touched.append(address + len(data)),
                                                                        store(self, address, data)))  # fmt: skip
    run_model(artifact, machine, operands)
    assert max(touched) == artifact.peak_bytes == max(image.address + image.bytes for image in artifact.buffers)


@kernel
def in_entries(x=L.In(M, K), w=L.In(N, K), y=L.Out(M, N), *, gm=8, gn=2):
    h = L.temp(M, K)
    h <<= L.silu(x) + L.row_sum(x)
    with units(h.tiles(gm), w.tiles(gn)) as (i, j):
        y[i, j] <<= product(h, w, i, j, gm, gn, 2)


@kernel
def doubled(x=L.In(M, K), y=L.Out(M, K)):
    y <<= x * 2


@pytest.mark.parametrize("kernel, shapes, name, options", [
    (in_entries, {"x": (13, 64), "w": (8, 64)}, "t1", Options(addresses={"t1": 0x8000})),
    (doubled, {"x": (13, 21)}, "x", Options("published", addresses={"x": 0x8000})),
    (doubled, {"x": (13, 21)}, "y", Options("published", addresses={"y": 0x8000})),
])  # fmt: skip
def test_whole_runs_past_the_end_of_a_buffer_are_part_of_the_peak(kernel, shapes, name, options, monkeypatch):
    """A copy reads whole row groups, and published programs work in whole runs; bytes behind that are never touched."""
    artifact, operands, machine = made(kernel, "ship_3x2", shapes, {}, options=options)
    ends = []
    for method in ("_store", "sample", "read"):
        original = getattr(Memory, method)

        def counted(self, *args, original=original, method=method):
            ends.append(args[0] + len(args[1]) if method == "_store" else sum(args[-2:]))
            return original(self, *args)

        monkeypatch.setattr(Memory, method, counted)
    run_model(artifact, machine, operands)
    image = artifact.buffer(name)
    assert max(ends) == artifact.peak_bytes > image.address + image.bytes
    assert Artifact.from_json(artifact.to_json()).peak_bytes == artifact.peak_bytes


def test_what_relies_on_zeros_shares_nothing():
    """A copy that leaves out blocks that its source lacks keeps the zeros of the host."""
    artifact = same(mlp, "quad", mlp_of((), 20, 64, 32, 16), {"gm": 4, "gn": 8, "nk": 2})
    copy = artifact.buffer("t4_4x2")
    assert all(image is copy or image.address + image.bytes <= copy.address or copy.address + copy.bytes <= image.address
               for image in artifact.buffers)  # fmt: skip


# ---- padding --------------------------------------------------------------------------------------------


V, H = dims("V, H")


@kernel
def crossed(x=L.In(M, K), w=L.In(V, K), p=L.In(H, M), z=L.In(N, N), y=L.Out(H, V), s=L.Out(N, N)):
    """What pads the rows of `h` becomes columns of `u`, and those are K of the last product."""
    u, h = L.temp(V, M), L.temp(M, K)
    large = L.temp(N, N)
    large <<= z * 3.0
    s <<= large + 1.0
    h <<= x / (L.row_sum(abs(x)) + 1.0)
    with units(w.tiles(8), h.tiles(8)) as (i, j):
        u[i, j] <<= product(w, h, i, j, 8, 8, 1)
    with units(p.tiles(8), u.tiles(8)) as (i, j):
        y[i, j] <<= product(p, u, i, j, 8, 8, 1)


def crossed_of(rows):
    return {"x": (rows, 64), "w": (32, 64), "p": (16, rows), "z": (64, 64)}


@pytest.mark.parametrize("rows", [8, 12, 36])
def test_rows_past_the_end_stay_out_of_a_block(rows, monkeypatch):
    """Of 8 rows that are copied as an operand of 32, the others were whatever lay behind them, and that joined in the
    scales of the product after next."""
    same(crossed, "quad", crossed_of(rows), {})
    monkeypatch.setattr(relayout, "keeps_zeros", lambda *_: False)
    monkeypatch.setattr(padding, "dirt", lambda *_: padding.Dirt())
    artifact, operands, machine = made(crossed, "quad", crossed_of(rows), {}, options=Options(bands=False))
    operands["z"][:] = 900
    got = run_model(artifact, machine, operands).run.outputs["y"]
    assert (got != run_reference(crossed, {}, operands, machine).outputs["y"]).any()


def test_a_row_group_that_is_not_full_is_refused(bench):
    reason = "t1 has 13 columns, and a product with t2_8x1, whose rows past the last are not zero, left something in"
    with pytest.raises(CompileError, match=reason):
        compile_kernel(crossed, bench, crossed_of(13))


# ---- refusals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shapes, knobs, reason", [
    (mlp_of((), 16, 64, 64, 16), {"gn": 4}, "t1 is written in tiles of gn = 4 .*a multiple of 8"),
    (mlp_of((), 16, 64, 40, 16), {}, "has 40 columns, and elementwise work computed .* multiple of 32"),
])  # fmt: skip
def test_what_words_cannot_make_is_refused(bench, shapes, knobs, reason):
    knobs = {"gm": 2, "gn": 8, "nk": 1} | knobs | ({"act": None} if "gn" in knobs else {})
    with pytest.raises(CompileError, match=reason):
        compile_kernel(mlp, bench, shapes, knobs)


def test_nobody_to_copy():
    with pytest.raises(CompileError, match="no vector core, and t1 must be copied into another byte order"):
        compile_kernel(mlp, build_machine(vectors=0), mlp_of((), 16, 64, 64, 16), {"gm": 2, "gn": 8, "nk": 1, "act": None})
    with pytest.raises(CompileError, match="lowering='published' has no copies in another byte order"):
        compile_kernel(mlp, build_machine(), mlp_of((), 16, 64, 64, 16), {"gm": 2, "gn": 8, "nk": 1}, Options("published"))


def test_an_input_is_not_copied(bench):
    @kernel
    def both(x=L.In(M, K), w=L.In(N, K), y=L.Out(M, N), z=L.Out(M, N), *, gn=2):
        for out, gm in ((y, 2), (z, 4)):
            with units(x.tiles(gm), w.tiles(gn)) as (i, j):
                out[i, j] <<= product(x, w, i, j, gm, gn, 1)

    with pytest.raises(CompileError, match="x would need two byte orders: entry:2x1 .* and entry:4x1; only a temp is copied"):
        compile_kernel(both, bench, {"x": (16, 64), "w": (16, 64)})


# ---- planted faults -------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["rotation", "mask", "walk", "offset"])
def test_a_planted_fault_shows(monkeypatch, fault):
    if fault == "rotation":
        monkeypatch.setattr(relayout, "_rotation", lambda places: 2 + (places % 4) % 3)
    elif fault == "mask":
        put = relayout.Image.put
        monkeypatch.setattr(relayout.Image, "put", lambda self, op, **f: put(self, op, **(f | {"pm": 0} if op == Opcode.VMOV else f)))
    elif fault == "walk":
        walk = relayout._target_walk
        monkeypatch.setattr(relayout, "_target_walk", lambda *a: [walk(*a)[1], walk(*a)[0], *walk(*a)[2:]])
    else:
        runs = relayout.runs
        monkeypatch.setattr(relayout, "runs", lambda *a: ((first, to + 256) for first, to in runs(*a)))
    shapes, knobs = mlp_of((), 16, 64, 64, 16), {"gm": 4, "gn": 8, "nk": 2}
    artifact, operands, machine = made(mlp, "ship_2x2", shapes, knobs)
    got = run_model(artifact, machine, operands).run.outputs["y"]
    assert (got != run_reference(mlp, knobs, operands, machine).outputs["y"]).any()
