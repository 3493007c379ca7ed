"""K in parts on the cycle models: the interpreter's bytes or a refusal, what plans that do not wait lead to, and cycles."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kohakutpu import kernels as K
from kohakutpu.cli.main import main
from kohakutpu.compiler import CompileError, Options, compile_kernel, ksplit, settle
from kohakutpu.compiler.predict import predict
from kohakutpu.host.driver import NoAnswer
from kohakutpu.host.simulate import run_model, run_reference
from kohakutpu.lang import Extents, KernelError
from kohakutpu.machine import load

sys.path.insert(0, str(Path(__file__).parent))
from running import equal_bytes, operands_of  # noqa: E402

LONG = {"a": (32, 1024), "b": (32, 1024)}
TILE = {"gm": 8, "gn": 8, "nk": 4}
AUTO = dict.fromkeys(("gm", "gn", "nk"), "auto")
LIBRARY = [K.matmul, K.bmm, K.linear_silu, K.linear_bias_act, K.linear_silu_staged, K.linear_add, K.geglu, K.swiglu]


@st.composite
def calls(draw, kernel):
    """Shapes, knobs, options and a machine."""
    sizes = st.one_of(st.integers(1, 40), st.integers(33, 300))
    dims = {name: draw(sizes if name == "K" else st.integers(1, 30)) for port in kernel.inputs for name in map(str, port.shape)}
    lead = (draw(st.integers(1, 2)),) if any(port.batched for port in kernel.inputs) and draw(st.booleans()) else ()
    shapes = {port.name: port.logical_shape(Extents(dims, lead)) for port in kernel.inputs}
    knobs = {name: draw(st.integers(1, most)) for name, most in (("gm", 8), ("gn", 8), ("nk", 3)) if name in kernel.knobs}
    knobs["ksplit"] = draw(st.integers(2, 7))
    if draw(st.booleans()):
        knobs["fuse"] = False
    preq = ("a", "b") if kernel is K.matmul and draw(st.booleans()) else ()
    machine = draw(st.sampled_from(["quad", "ship_3x2", "uneven", "2x4"]))
    return shapes, knobs, Options(preq=preq), machine


def check_calls(kernel, count):
    """(machine and parts of each call whose K was in parts and whose bytes are right, calls that were refused)."""
    split, refused = [], []

    @settings(max_examples=count, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(calls(kernel))
    def check(call):
        shapes, knobs, options, machine = call
        try:
            compile_kernel(kernel, load(machine), shapes, knobs, options)
        except CompileError as error:
            assert str(error)
            refused.append(call)
            return
        artifact, _ = equal_bytes(kernel, shapes, machine, knobs, options, specials=0.02)
        if any(stage.helpers for stage in artifact.stages):
            split.append((machine, knobs["ksplit"]))

    check()
    return split, refused


@pytest.mark.parametrize("kernel", LIBRARY, ids=lambda kernel: kernel.name)
def test_bytes_are_the_interpreters_or_the_call_is_refused(kernel):
    split, _ = check_calls(kernel, 25)
    assert len(split) > 2, "hardly anything was in parts"


@pytest.mark.slow
@pytest.mark.parametrize("kernel", LIBRARY, ids=lambda kernel: kernel.name)
def test_many_calls(kernel):
    split, refused = check_calls(kernel, 300)
    machines, parts = (set(column) for column in zip(*split, strict=True))
    assert len(split) > 25 and len(machines) == 4 and len(parts) > 3 and refused, "hardly anything was in parts"


@pytest.mark.parametrize("machine, parts", [("ship_3x2", 6), ("2x4", 8), ("quad", 3), ("uneven", 2)])
def test_a_tile_on_every_cluster(machine, parts):
    tile = TILE | ({"nk": 2} if machine == "uneven" else {})
    artifact, run = equal_bytes(K.matmul, LONG, machine, tile | {"ksplit": parts}, specials=0.02)
    (stage,) = artifact.stages
    assert len(stage.units) == parts and not set(stage.nodes.values()) & {n for nodes in stage.helpers.values() for n in nodes}
    _, whole = equal_bytes(K.matmul, LONG, machine, tile, specials=0.02)
    assert run.cycles < 0.75 * whole.cycles
    assert abs(predict(artifact, load(machine)).cycles / run.cycles - 1) < 0.05
    wrong = [run.run.outputs[name] != whole.run.outputs[name] for name in whole.run.outputs]
    assert np.mean(wrong) > 0.001, "K whole and K in parts are told apart by nothing here"


def test_convolution_and_attention():
    """Several contractions of one accumulator in two loops, and products in stages of a loop."""
    equal_bytes(K.conv2d, {"x": (3, 4, 32), "w": (12, 288)}, "quad", {"gm": 4, "gn": 3, "ksplit": 4})
    artifact, _ = equal_bytes(
        K.flash_attention, {"q": (12, 64), "k": (128, 64), "v": (24, 128)}, "ship_3x2",
        {"gm": 3, "gn": 8, "nk": 1, "ksplit": 2},
    )  # fmt: skip
    assert sum(bool(stage.helpers) for stage in artifact.stages) > 1


# ---- plans that are wrong ---------------------------------------------------------------------------------


def outcome(monkeypatch, name, wrong, knobs, shapes={"a": (8, 256), "b": (8, 256)}):  # noqa: B006
    """What a run on ship_3x2 is, planned with `wrong` in place of a function of `ksplit`: 'equal', 'differs' or 'stops'."""
    monkeypatch.setattr(ksplit, name, wrong)
    try:
        equal_bytes(K.matmul, shapes, "ship_3x2", {"gm": 2, "gn": 2, "nk": 1} | knobs)
    except NoAnswer:
        return "stops"
    except AssertionError:
        return "differs"
    return "equal"


def test_sums_that_are_sent_too_early_are_seen(monkeypatch):
    """Without the wait between accumulating and adding up, a cluster that is slower gets a sum before it is ready."""
    right = ksplit.divide

    def together(stage, work, sources):
        phases = right(stage, work, sources)
        for node, ops in phases[1].items():
            phases[0].setdefault(node, []).extend(ops)
        return [phases[0], *phases[2:]]

    slow = {"gm": 16, "gn": 16, "nk": 8, "ksplit": 2}, {"a": (64, 768), "b": (64, 768)}  # two chunks there, one here
    assert outcome(monkeypatch, "divide", right, *slow) == "equal"
    assert outcome(monkeypatch, "divide", together, *slow) in ("differs", "stops")


def test_sums_that_come_in_another_order_are_seen(monkeypatch):
    """One after another to the first cluster, in place of neighbours first."""
    right = ksplit._joined

    def one_by_one(now):
        for place in range(1, 6):
            yield {
                node: [(key, sent)]
                for team, key, one in now
                for node, sent in [(team[place], ksplit.Peer(team[0], 2, 2, one.sweeps[0].statement))]
            }

    assert outcome(monkeypatch, "_joined", right, {"ksplit": 6}) == "equal"
    assert outcome(monkeypatch, "_joined", one_by_one, {"ksplit": 6}) == "differs"


def test_parts_that_are_cut_elsewhere_are_seen(monkeypatch):
    """The longer parts last."""
    right = ksplit.cut
    backwards = lambda sweeps, parts: [  # noqa: E731
        [ksplit.replace(sweep, step=n) for n, sweep in enumerate(sweeps[len(sweeps) * p // parts : len(sweeps) * (p + 1) // parts])]
        for p in range(parts)
    ]
    assert outcome(monkeypatch, "cut", right, {"ksplit": 3}) == "equal"
    assert outcome(monkeypatch, "cut", backwards, {"ksplit": 3}) == "differs"


@pytest.mark.parametrize("fault, expected", [("cluster-ack-source", NoAnswer), ("cluster-drain-ack", NoAnswer)])
def test_a_machine_that_does_not_answer_for_sums_is_noticed(fault, expected):
    machine, knobs = load("quad"), TILE | {"ksplit": 4}
    artifact = compile_kernel(K.matmul, machine, LONG, knobs)
    with pytest.raises(expected):
        run_model(artifact, machine, operands_of(LONG), faults=[fault], timeout=20_000)


# ---- what is chosen -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("machine, shapes, splits", [
    ("ship_3x2", LONG, True), ("2x4", LONG, True), ("2x2", {"a": (256, 256), "b": (256, 256)}, False),
    ("quad", {"a": (64, 64), "b": (64, 64)}, False), ("mm_mesh", LONG, False),
])  # fmt: skip
def test_k_is_cut_where_that_is_faster(machine, shapes, splits):
    machine = load(machine)
    whole, cut = (settle(K.matmul, machine, shapes, AUTO, Options(ksplit=parts)) for parts in (None, "auto"))
    assert (cut["ksplit"] > 1) == splits
    artifacts = [compile_kernel(K.matmul, machine, shapes, knobs) for knobs in (whole, cut)]
    if not splits:
        assert artifacts[0].digest == artifacts[1].digest
        return
    predicted = [predict(artifact, machine).cycles for artifact in artifacts]
    assert predicted[1] * 1.05 < predicted[0]
    operands = operands_of(shapes)
    runs = [run_model(artifact, machine, operands) for artifact in artifacts]
    assert runs[1].cycles < 0.9 * runs[0].cycles
    wanted = run_reference(K.matmul, artifacts[1].knobs, operands, machine).outputs["c"]
    assert np.array_equal(runs[1].run.outputs["c"].view(np.uint16), wanted)


def test_the_command_chooses_too_and_says_so(capsys):
    words = ["kohakutpu.kernels.linear:matmul", "--machine", "ship_3x2", "--shape", "a=32x1024", "--shape", "b=32x1024"]
    assert main(["run", *words, "--random", "1", "--knob", "nk=4", "--ksplit", "auto"]) == 0
    assert "byte-equal" in capsys.readouterr().out
    assert main(["explain", *words, "--knob", "nk=4", "--ksplit", "3"]) == 0
    out = capsys.readouterr().out
    assert "K is in 3 parts, each on a cluster of its own: 2 sums sent to another cluster, in 4 phases that the host awaits" in out
    assert "matmul on ship_3x2: 3,192 cycles predicted" in out and "tile gm=8 gn=8 nk=4 ksplit=3: 3,192 cycles predicted (now)" in out
    assert main(["explain", *words]) == 0
    assert "5 clusters without work: 1 tile; smaller gm or gn makes more, and ksplit gives a tile several clusters" in capsys.readouterr().out
    assert main(["compile", *words, "--ksplit", "2"]) == 0
    assert "knobs   fuse=True part=8192 ksplit=2 gm=8 gn=8 nk=2" in capsys.readouterr().out
    for bad in ("0", "-1", "two", "1.5"):
        with pytest.raises(SystemExit) as end:
            main(["run", *words, f"--ksplit={bad}"])
        assert end.value.code == 2 and f"{bad!r}: expected a number of parts, at least 1, or auto" in capsys.readouterr().err


@pytest.mark.parametrize("parts", [0, -1, 2.5, True, "many"])
def test_parts_that_are_no_number_are_refused_before_tiles_are_chosen(parts):
    with pytest.raises(KernelError, match="knob ksplit: expected an integer of at least 1"):
        settle(K.matmul, load("quad"), {"a": (16, 64), "b": (16, 64)}, {"gm": "auto", "ksplit": parts}, Options())
