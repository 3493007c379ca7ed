"""The tile chooser, and what it makes of the machine."""

import numpy as np
import pytest

from kohakutpu import lang as L
from kohakutpu.compiler import CompileError, Options, compile_kernel, settle, tiles
from kohakutpu.compiler.predict import predict
from kohakutpu.host.compare import compare
from kohakutpu.host.simulate import run_model, run_reference
from kohakutpu.kernels.linear import linear_bias, linear_silu, matmul, swiglu
from kohakutpu.lang import kernel
from kohakutpu.machine import load

from .conftest import build_machine

AUTO = dict.fromkeys(("gm", "gn", "nk"), "auto")


def chosen(made, machine, shapes, knobs=AUTO, preq=()):
    return settle(made, machine, shapes, knobs, Options(preq=preq))


def estimate(machine, shapes, knobs, preq=()):
    (product,) = tiles.products(matmul.trace(**knobs), matmul.solve(shapes), preq)
    return tiles.cycles(product, machine, knobs["gm"], knobs["gn"], knobs["nk"])


@pytest.mark.parametrize("preq, target", [(("a", "b"), 0.90), ((), 0.75)], ids=["MXFP7", "FP16"])
def test_two_clusters_work_nearly_always(preq, target):
    """The first and the last case of benchmarks/efficiency.py, with the estimate beside the simulation."""
    machine, shapes = load("2x2"), {"a": (256, 256), "b": (256, 256)}
    artifact = compile_kernel(matmul, machine, shapes, AUTO, Options(preq=preq))
    random = np.random.default_rng(0)
    operands = {name: random.normal(0, 0.3, shape).astype(np.float16) for name, shape in shapes.items()}
    result = run_model(artifact, machine, operands)
    share = 256**3 / (512 * len(machine.clusters) * result.cycles)
    assert share > target
    assert all(row.equal for row in compare(artifact, run_reference(matmul, artifact.knobs, operands, machine).outputs,
                                            result.run.outputs))  # fmt: skip
    knobs = {name: artifact.knobs[name] for name in AUTO}
    assert abs(estimate(machine, shapes, knobs, preq) / result.cycles - 1) < 0.04


def test_a_given_knob_is_kept():
    shapes = {"a": (64, 256), "b": (64, 256)}
    made = chosen(matmul, load("quad"), shapes, {"gm": 2, "gn": "auto", "nk": "auto"})
    assert made["gm"] == 2 and made["gn"] > 2
    assert chosen(matmul, load("quad"), shapes, {"gm": 3, "gn": 5}) == {"gm": 3, "gn": 5}


@pytest.mark.parametrize("m, n", [(256, 256), (48, 96), (24, 24), (4, 512)])
def test_tiles_divide_what_they_can(m, n):
    """No row or column of sub-tiles is swept for nothing where a cut without rest exists."""
    made = chosen(matmul, load("2x2"), {"a": (m, 128), "b": (n, 128)})
    assert (m // 4) % made["gm"] == 0 and (n // 4) % made["gn"] == 0


def test_a_fused_epilogue_fits_the_vector_cores():
    machine = load("quad")
    for fused, shapes in (
        (linear_silu, {"x": (32, 64), "w": (32, 64)}),
        (linear_bias, {"x": (20, 64), "w": (40, 64), "b": (40,)}),
        (swiglu, {"x": (16, 64), "wg": (32, 64), "wu": (32, 64)}),
    ):
        compile_kernel(fused, machine, shapes, AUTO)  # raises where a condition fails
    with pytest.raises(CompileError, match="no tile fits quad: .* 4 vector cores with an instance each"):
        chosen(linear_silu, machine, {"x": (512, 64), "w": (512, 64)})
    compile_kernel(linear_silu, machine, {"x": (128, 64), "w": (128, 64)}, AUTO | {"fuse": False})


@pytest.mark.parametrize("entries, store", [(4, 8), (32, 256), (256, 8), (512, 256)])
def test_whatever_is_chosen_compiles(entries, store):
    machine = build_machine(clusters=3, cluster_a_entries=entries, cluster_b_entries=entries, cluster_tiles=store)
    for m, k, n in ((5, 33, 7), (60, 200, 90), (4, 1024, 4)):
        shapes = {"a": (m, k), "b": (n, k)}
        compile_kernel(matmul, machine, shapes, AUTO)
        every = list(tiles.choices(list(tiles.products(matmul.trace(), matmul.solve(shapes))), machine))
        for choice in every[:: max(len(every) // 4, 1)]:
            compile_kernel(matmul, machine, shapes, choice.knobs)


def test_what_is_chosen_beats_what_the_formula_alone_would_take():
    """Four clusters in place of two, which the closed formula thinks slower."""
    machine, shapes = load("quad"), {"a": (96, 128), "b": (96, 128)}
    first = tiles.shortlist(matmul, machine, shapes, AUTO)[0]
    taken = chosen(matmul, machine, shapes)
    cycles = [predict(compile_kernel(matmul, machine, shapes, knobs), machine).cycles for knobs in (first, taken)]
    assert cycles[1] < 0.9 * cycles[0]


def test_what_cannot_be_chosen_is_named():
    machine, shapes = load("quad"), {"a": (64, 64), "b": (64, 64)}
    with pytest.raises(CompileError, match="no tile with gm=400 fits quad"):
        chosen(matmul, machine, shapes, AUTO | {"gm": 400})

    @kernel
    def plain(x=L.In(...), y=L.Out(...), *, gm=8):
        y <<= x + 1.0

    with pytest.raises(CompileError, match="no product here whose tile could be chosen"):
        chosen(plain, machine, {"x": (64,)}, {"gm": "auto"})


def test_only_tile_knobs_are_chosen():
    @kernel
    def scaled(x=L.In(...), y=L.Out(...), *, s=1.0):
        y <<= x * s

    with pytest.raises(CompileError, match="the knob s cannot be chosen: only gm, gn, nk, ksplit may"):
        chosen(scaled, load("quad"), {"x": (64,)}, {"s": "auto"})
