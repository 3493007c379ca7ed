"""Compiled kernels on the cycle models against the interpreter, byte for byte; planted faults must show."""

import dataclasses
import zlib

import numpy as np
import pytest

from kohakutpu.compiler import CompileError, Options, compile_kernel
from kohakutpu.host.driver import NoAnswer
from kohakutpu.isa import cluster, vector
from kohakutpu.kernels.linear import (
    geglu, linear_add, linear_bias, linear_gelu, linear_relu, linear_scale, linear_silu, linear_silu_staged,
    matmul, swiglu,
)  # fmt: skip
from kohakutpu.machine import load
from kohakutpu.model.system import System
from kohakutpu.reference import Constants, interpret

from .kernels import (
    bias_then_three, computed_bias, computed_operand, constants, fused_row, flat, parts, row_of_tiles, temps,
    two_results,
)  # fmt: skip

XW = {"x": (33, 70), "w": (31, 70)}
GATED = {"x": (16, 128), "wg": (16, 128), "wu": (16, 128)}


def operands_of(shapes, scale):
    rng = np.random.default_rng(zlib.crc32(repr(sorted(shapes.items())).encode()))
    with np.errstate(over="ignore"):
        return {name: rng.normal(0, scale, shape).astype(np.float16) for name, shape in shapes.items()}


def meaning(kernel, knobs, operands, options=Options()):
    extents = kernel.solve({name: array.shape for name, array in operands.items()})
    return interpret(kernel.trace(**knobs), extents, operands, constants=Constants(options.constants)).outputs


CASES = [
    (matmul, "mm_mesh", {"a": (45, 200), "b": (37, 200)}, {"gm": 2, "gn": 3, "nk": 1}),
    (matmul, "quad", {"a": (2, 3, 9, 70), "b": (37, 70)}, {"gm": 2, "gn": 3, "nk": 1}),
    (matmul, "ship_3x2", {"a": (45, 200), "b": (37, 200)}, {"gm": 2, "gn": 3, "nk": 2}),
    (matmul, "quad", {"a": (1, 1), "b": (1, 1)}, {"gm": 1, "gn": 1, "nk": 1}),
    (row_of_tiles, "quad", XW, {}),
    (fused_row, "quad", {"x": (32, 70), "w": (30, 70)}, {"gm": 2, "gn": 2, "nk": 1}),
    (fused_row, "quad", {"x": (32, 70), "w": (30, 70)}, {"gm": 2, "gn": 2, "nk": 1, "fuse": False}),
    (computed_bias, "quad", {"x": (14, 70), "w": (30, 70), "b": (30,)}, {"gm": 2, "gn": 5, "nk": 1}),
    (two_results, "quad", {"x": (16, 128), "w": (16, 128)}, {}),
    (two_results, "quad", {"x": (2, 8, 96), "w": (16, 96)}, {}),
    (linear_silu, "mm_mesh", {"x": (32, 64), "w": (32, 64)}, {"gm": 8, "gn": 8}),
    (linear_silu, "quad", XW, {"gm": 9, "gn": 4, "nk": 1}),
    (linear_silu, "quad", XW, {"gm": 2, "gn": 2, "nk": 1, "fuse": False}),
    (linear_relu, "quad", XW, {"gm": 9, "gn": 8, "nk": 1}),
    (linear_gelu, "quad", XW, {"gm": 9, "gn": 8, "nk": 1}),
    (linear_scale, "quad", XW, {"gm": 9, "gn": 8, "nk": 1, "s": -0.3}),
    (linear_add, "quad", {**XW, "r": (33, 31)}, {"gm": 2, "gn": 4, "nk": 1}),
    (linear_silu_staged, "quad", {"x": (3, 33, 64), "w": (31, 64)}, {"gm": 2, "gn": 4, "nk": 1, "part": 1024}),
    (geglu, "quad", GATED, {"gm": 4, "gn": 4, "nk": 1}),
    (swiglu, "quad", GATED, {"gm": 2, "gn": 4, "nk": 1}),
    (swiglu, "quad", GATED, {"gm": 2, "gn": 2, "nk": 2, "fuse": False}),
    (flat, "quad", {"x": (7, 13, 300)}, {"part": 2000}),
    (flat, "mm_mesh", {"x": (5,)}, {}),
    (temps, "quad", {"x": (3, 20, 30), "b": (20, 30)}, {"part": 64}),
    (parts, "quad", {"x": (2, 20, 130)}, {}),
    (constants, "quad", {"x": (2, 9, 70)}, {}),
    (computed_operand, "quad", {"x": (16, 64), "w": (16, 64)}, {}),
]
CASES += [
    (linear_bias, "quad", {"x": (17, 40), "w": (4 * gn - 1, 40), "b": (4 * gn - 1,)}, {"gm": 5, "gn": gn, "nk": 1})
    for gn in (1, 2, 3, 4, 5, 6, 7, 8, 12)
]
CASES += [(linear_bias, "quad", {"x": (41, 64), "w": (46, 64), "b": (46,)}, {"gm": 11, "gn": 6, "nk": 1})]


def identify(value):
    return value.name if hasattr(value, "name") else str(value)


def same(run, kernel, machine, shapes, knobs, options=Options(), scale=1.0):
    """Run and interpret; returns the artifact."""
    described = load(machine)
    artifact = compile_kernel(kernel, described, shapes, knobs, options)
    operands = operands_of(shapes, scale)
    wanted = meaning(kernel, knobs, operands, options)
    got = run(artifact, described, operands)
    assert got.keys() == wanted.keys() and got
    for name in wanted:
        different = np.argwhere(got[name] != wanted[name])
        assert not len(different), f"{name}{different[0].tolist()} and {len(different) - 1} more differ"
    assert all(array.any() for array in wanted.values()), "all zero: nothing was shown"
    return artifact


@pytest.mark.parametrize("kernel, machine, shapes, knobs", CASES, ids=identify)
def test_default_lowering(run, kernel, machine, shapes, knobs):
    same(run, kernel, machine, shapes, knobs)


PUBLISHED = [
    (linear_silu, "quad", {"x": (32, 64), "w": (32, 64)}, {"gm": 4, "gn": 8}, "registers"),
    (linear_silu, "quad", {"x": (32, 64), "w": (32, 64)}, {"gm": 4, "gn": 8, "fuse": False}, "arrays"),
    (linear_silu, "quad", {"x": (32, 64), "w": (32, 64)}, {"gm": 4, "gn": 8, "fuse": False}, "registers"),
    (linear_bias, "quad", {"x": (17, 40), "w": (31, 40), "b": (31,)}, {"gm": 5, "gn": 4, "nk": 1}, "registers"),
    (swiglu, "quad", GATED, {"gm": 4, "gn": 4, "nk": 1}, "registers"),
    (linear_silu_staged, "mm_mesh", {"x": (3, 33, 64), "w": (31, 64)}, {"gm": 2, "gn": 4, "nk": 1, "part": 1024},
     "registers"),
    (matmul, "quad", {"a": (45, 200), "b": (37, 200)}, {"gm": 2, "gn": 3, "nk": 1}, "registers"),
]  # fmt: skip


@pytest.mark.parametrize("kernel, machine, shapes, knobs, held", PUBLISHED, ids=identify)
def test_published_lowering(run, kernel, machine, shapes, knobs, held):
    same(run, kernel, machine, shapes, knobs, Options("published", held))


@pytest.mark.parametrize("machine", ["mm_mesh", "quad", "ship_3x2"])
@pytest.mark.parametrize("kernel, shapes, preq", [
    (matmul, {"a": (3, 21, 100), "b": (37, 100)}, ("a", "b")),
    (matmul, {"a": (21, 100), "b": (37, 100)}, ("b",)),
    (linear_silu, {"x": (16, 64), "w": (16, 64)}, ("w",)),
])  # fmt: skip
def test_operands_that_are_quantised_as_they_are_uploaded(run, machine, kernel, shapes, preq):
    same(run, kernel, machine, shapes, {"gm": 4, "gn": 4, "nk": 1}, Options(preq=preq))


@pytest.mark.parametrize("preq", [("a",), ("b",)])
def test_the_side_of_an_upload_matters(run, preq):
    """An operand packed for the other side gives other bytes."""
    machine, shapes = load("quad"), {"a": (16, 64), "b": (16, 64)}
    artifact = compile_kernel(matmul, machine, shapes, {"gm": 2, "gn": 2, "nk": 1}, Options(preq=preq))
    flipped = [
        dataclasses.replace(image, layout=dataclasses.replace(image.layout, side="AB"[image.name == "a"]))
        if image.name in preq else image for image in artifact.buffers
    ]  # fmt: skip
    operands = operands_of(shapes, 1.0)
    wanted = meaning(matmul, {}, operands)["c"]
    assert (run(artifact, machine, operands)["c"] == wanted).all()
    assert (run(dataclasses.replace(artifact, buffers=tuple(flipped)), machine, operands)["c"] != wanted).any()


def test_what_cannot_be_quantised_ahead_is_refused(bench):
    shapes = {"x": (16, 64), "w": (16, 64), "r": (16, 16)}
    for preq, reason in ((("r",), "r is not an input that only products read; those are x, w"), (("q",), "q is not an")):
        with pytest.raises(CompileError, match=reason) as refused:
            compile_kernel(linear_add, bench, shapes, {"gm": 2, "gn": 2}, Options(preq=preq))
        assert refused.value.source is not None
    with pytest.raises(CompileError, match="the published programs have no operands that are quantised"):
        Options("published", preq=("x",))
    with pytest.raises(CompileError, match="expected a collection of operands' names"):
        Options(preq="x")


@pytest.mark.parametrize("kernel", [flat, constants, temps])
def test_constants_as_arrays(run, kernel):
    shapes = {"x": (9, 70)} | ({"b": (9, 70)} if kernel is temps else {})
    same(run, kernel, "quad", shapes, {}, Options(constants="arrays"))


@pytest.mark.parametrize("lowering", ["default", "published"])
def test_a_program_does_not_depend_on_the_one_before(run, lowering):
    """Descriptors outlive programs: a walk over per-channel words must not leak into a later drain."""
    shapes = {"x": (12, 64), "w": (16, 64), "b": (16,)}
    same(run, bias_then_three, "quad", shapes, {"gm": 3, "gn": 4}, Options(lowering))


def test_artifacts_follow_each_other_on_one_machine(run):
    """No reset between them, and none knows what ran before."""
    machine = load("mm_mesh")
    system = System(machine)
    sequence = [(linear_bias, {"x": (20, 40), "w": (20, 40), "b": (20,)}, {"gm": 5, "gn": 5, "nk": 1}),
                (geglu, GATED, {"gm": 4, "gn": 4, "nk": 1}),
                (temps, {"x": (9, 70), "b": (9, 70)}, {}),
                (linear_silu, {"x": (32, 64), "w": (32, 64)}, {"gm": 8, "gn": 8}),
                (linear_bias, {"x": (20, 40), "w": (12, 40), "b": (12,)}, {"gm": 5, "gn": 3, "nk": 1})]  # fmt: skip
    for kernel, shapes, knobs in sequence:
        operands = operands_of(shapes, 1.0)
        got = run(compile_kernel(kernel, machine, shapes, knobs), machine, operands, system)
        for name, array in meaning(kernel, knobs, operands).items():
            assert (got[name] == array).all(), kernel.name


def test_fused_and_staged_are_byte_equal():
    operands = operands_of(XW, 1.0)
    fused = meaning(linear_silu, {"gm": 9, "gn": 8, "nk": 1}, operands)["y"]
    assert (fused == meaning(linear_silu, {"gm": 2, "gn": 2, "nk": 1, "fuse": False}, operands)["y"]).all()


def test_extreme_operands(run):
    """Products that saturate, and infinities and NaN in elementwise work."""
    same(run, matmul, "quad", {"a": (16, 64), "b": (16, 64)}, {"gm": 2, "gn": 2}, scale=3e4)
    same(run, temps, "quad", {"x": (9, 70), "b": (9, 70)}, {}, scale=3e4)


@pytest.mark.parametrize("lowering", ["default", "published"])
def test_an_instance_of_more_than_one_window_completes(run, lowering):
    """errata: ack-round. Two accumulators, 388 flits an instance: the published runtime waits for good."""
    shapes = {"x": (16, 2048), "wg": (16, 2048), "wu": (16, 2048)}
    artifact = same(run, swiglu, "quad", shapes, {"gm": 4, "gn": 4, "nk": 1}, Options(lowering), scale=0.1)
    assert max(sum(k == key for r in artifact.rounds for k in r.instances) for key in artifact.stages[0].nodes) > 128


# ---- planted faults --------------------------------------------------------------------------------------


def change(artifact, pick, edit):
    """The artifact with the first payload for which `pick` holds replaced by `edit` of it."""
    rounds = list(artifact.rounds)
    for number, round_ in enumerate(rounds):
        unit = artifact.stages[round_.stage].unit
        for slot, flit in enumerate(round_.flits):
            if pick(unit, flit.payload):
                flits = list(round_.flits)
                flits[slot] = flit._replace(payload=edit(flit.payload))
                rounds[number] = dataclasses.replace(round_, flits=tuple(flits))
                return dataclasses.replace(artifact, rounds=tuple(rounds))
    raise AssertionError("nothing to change")


def on_cluster(op, skip=0, **wanted):
    seen = [0]

    def pick(unit, payload):
        i = cluster.decode(payload)
        if unit != "cluster" or i.op != op or any(getattr(i, name) != value for name, value in wanted.items()):
            return False
        seen[0] += 1
        return seen[0] > skip

    return pick


def cluster_edit(**changes):
    def edit(payload):
        i = cluster.decode(payload)
        layout = cluster.LAYOUTS[i.op]
        values = {name: getattr(i, name) for name in layout.fields if name != "op"}
        return layout.encode(**(values | {name: value(values[name]) for name, value in changes.items()}))

    return edit


def on_word(op):
    def pick(unit, payload):
        i = vector.decode(payload)
        return unit == "vector" and i.op == vector.Envelope.IMEM and vector.decode_word(i.word).op == op

    return pick


def word_edit(**changes):
    def edit(payload):
        i = vector.decode(payload)
        word = vector.decode_word(i.word)
        layout = vector.layout_of(i.word)
        values = {name: getattr(word, name) for name in layout.fields if name != "op"} | changes
        return vector.IMEM.encode(addr=i.addr, word=vector.encode(word.op, **values))

    return edit


FAULTS = {
    "eoff": (on_cluster(cluster.Op.FILL, sel=1), cluster_edit(eoff=lambda v: v + 1)),
    "fbank": (on_cluster(cluster.Op.FILL, 2), cluster_edit(fbank=lambda v: 1 - v)),
    "fill address": (on_cluster(cluster.Op.FILL, 1), cluster_edit(addr=lambda v: v + 256)),
    "acc": (on_cluster(cluster.Op.GEMM, acc=1), cluster_edit(acc=lambda v: 0)),
    "boff": (on_cluster(cluster.Op.GEMM), cluster_edit(boff=lambda v: v + 1)),
    "anchor": (on_cluster(cluster.Op.GEMM), cluster_edit(anchor=lambda v: v + 1)),
    "slot": (on_cluster(cluster.Op.DRAIN), cluster_edit(addr=lambda v: v + 32)),
    "ack to (0,0)": (on_cluster(cluster.Op.DRAIN), cluster_edit(dack_x=lambda v: 0, dack_y=lambda v: 0)),
    "operand order": (on_word(vector.Opcode.VMUL), word_edit(va=1)),
    "constant": (on_word(vector.Opcode.VADD), word_edit(vc=2)),
    "missing op": (on_word(vector.Opcode.VEXP2), word_edit(vd=15)),
    "store offset": (on_word(vector.Opcode.VST), word_edit(offset=0)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_shows(run, fault):
    machine = load("quad")
    shapes, knobs = {"x": (32, 128), "w": (32, 128)}, {"gm": 4, "gn": 8, "nk": 2}
    artifact = compile_kernel(linear_silu, machine, shapes, knobs)
    operands = operands_of(shapes, 1.0)
    wanted = meaning(linear_silu, knobs, operands)["y"]
    broken = change(artifact, *FAULTS[fault])
    try:
        got = run(broken, machine, operands)["y"]
    except NoAnswer as error:
        assert fault == "ack to (0,0)" and "NODE_STATUS" in str(error)
        return
    assert (got != wanted).any() and fault != "ack to (0,0)"
