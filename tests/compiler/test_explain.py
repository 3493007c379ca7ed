"""Predicted cycles against simulated ones, and the reports made of them."""

import sys
from pathlib import Path

import numpy as np
import pytest

from kohakutpu.cli.main import main
from kohakutpu.compiler import Options, compile_kernel, rounds
from kohakutpu.compiler.explain import explain, summary
from kohakutpu.compiler.predict import predict
from kohakutpu.host.simulate import run_model
from kohakutpu.kernels import layernorm, linear_silu, matmul, mlp, rmsnorm, row_sum, softmax, swiglu
from kohakutpu.kernels.attention import attention
from kohakutpu.kernels.elementwise import gelu
from kohakutpu.machine import load

sys.path.insert(0, str(Path(__file__).parents[1] / "kernels"))
from turns import product_then_gate, scaled_operand  # noqa: E402

AUTO = dict.fromkeys(("gm", "gn", "nk"), "auto")
CASES = [
    (matmul, "quad", {"a": (64, 128), "b": (64, 128)}, {"gm": 8, "gn": 8, "nk": 1}, Options()),
    (matmul, "2x4", {"a": (128, 64), "b": (128, 64)}, AUTO, Options(preq=("a", "b"))),
    (linear_silu, "mm_mesh", {"x": (32, 64), "w": (32, 64)}, {"gm": 8, "gn": 8, "nk": 2}, Options()),
    (linear_silu, "mm_mesh", {"x": (32, 64), "w": (32, 64)}, {"gm": 8, "gn": 8, "nk": 2, "fuse": False}, Options()),
    (linear_silu, "quad", {"x": (32, 64), "w": (32, 64)}, {"gm": 4, "gn": 8, "nk": 2}, Options("published")),
    (swiglu, "quad", {"x": (16, 64), "wg": (32, 64), "wu": (32, 64)}, AUTO, Options()),
    (softmax, "quad", {"x": (64, 64)}, {}, Options()),
    (layernorm, "quad", {"x": (64, 64), "w": (64,), "b": (64,)}, {}, Options()),
    (rmsnorm, "mm_mesh", {"x": (10, 777), "w": (777,)}, {}, Options()),
    (row_sum, "mm_mesh", {"x": (1, 6000)}, {}, Options()),
    (gelu, "quad", {"x": (100, 300)}, {}, Options()),
    (softmax, "quad", {"x": (4, 3000)}, {}, Options()),
    (attention, "quad", {"q": (32, 32), "k": (64, 32), "v": (64, 64)}, {"gm": 4}, Options()),
    (mlp, "ship_3x2", {"x": (64, 64), "up": (64, 64), "down": (64, 64)}, {"gm": 8, "gn": 8, "nk": 2}, Options()),
]


@pytest.mark.parametrize("kernel, machine, shapes, knobs, options", CASES, ids=lambda value: getattr(value, "name", None))
def test_predicted_cycles_are_close(kernel, machine, shapes, knobs, options):
    machine = load(machine)
    artifact = compile_kernel(kernel, machine, shapes, knobs, options)
    random = np.random.default_rng(0)
    operands = {name: random.normal(0, 0.3, shape).astype(np.float16) for name, shape in shapes.items()}
    run = run_model(artifact, machine, operands).run
    prediction = predict(artifact, machine)
    assert len(run.stages) == len(prediction.stages) and sum(run.stages) <= run.elapsed
    assert abs(prediction.cycles / run.elapsed - 1) < 0.08
    for time, measured in zip(prediction.stages, run.stages, strict=True):
        assert abs(time.cycles / measured - 1) < 0.15
        assert max(time.work, time.handing, time.reading, time.writing) <= time.cycles * 1.02


def test_waits_for_credit_are_predicted(monkeypatch):
    """Kicked whole, two cores take all credit: a fifth of the time is lost, and known to be."""
    machine, operands = load("quad"), {"x": np.ones((100, 300), np.float16)}
    cycles = []
    for turns in (rounds._in_turns, lambda unit, windows, credit, most: windows):
        monkeypatch.setattr(rounds, "_in_turns", turns)
        artifact = compile_kernel(gelu, machine, {"x": (100, 300)})
        cycles.append(run_model(artifact, machine, operands).cycles)
        assert abs(predict(artifact, machine).cycles / cycles[-1] - 1) < 0.03
    assert cycles[0] < 0.85 * cycles[1]


def limiter(machine, shapes, knobs, options=Options()):
    machine = load(machine)
    return predict(compile_kernel(matmul, machine, shapes, knobs, options), machine).stages[0].limiter


def test_what_limits_a_product():
    big = {"a": (256, 256), "b": (256, 256)}
    assert limiter("2x2", big, AUTO, Options(preq=("a", "b"))) == "work"
    deep = {"a": (64, 2048), "b": (64, 2048)}
    assert limiter("2x2", deep, {"gm": 8, "gn": 8, "nk": 4}) == "reading"
    assert limiter("2x4", {"a": (512, 64), "b": (512, 64)}, {"gm": 8, "gn": 8, "nk": 2}, Options(preq=("a", "b"))) == "handing"
    assert limiter("2x2", {"a": (8, 32), "b": (8, 32)}, {"gm": 2, "gn": 2, "nk": 1}) == "latency"


def test_the_reports_name_what_they_should():
    machine = load("ship_3x2")
    artifact = compile_kernel(
        mlp, machine, {"x": (64, 64), "up": (64, 64), "down": (64, 64)}, {"gm": 16, "gn": 16, "nk": 2}
    )
    text = summary(artifact, machine)
    for part in ("stage 0 L1 A: 1 place (0:0..31), 32 entries", "of 512 words sent to", "descriptors 4 of 8",
                 f"memory  {artifact.peak_bytes} bytes", "predicted"):  # fmt: skip
        assert part in text, part
    text = explain(artifact, machine)
    copied = "VC copies t4 (tile:1x1:16x16) to t4_16x2 (entry:16x2): "
    assert f"{copied}4 instances" in summary(artifact, machine) and copied in text and "5 clusters without work: 1 tile;" in text
    narrow = compile_kernel(matmul, machine, {"a": (20, 64), "b": (64, 64)}, {"gm": 16, "gn": 16, "nk": 2})
    assert "a: 69 % of entry:16x2 is padding" in explain(narrow, machine)


def test_the_command(capsys):
    arguments = ["--machine", "quad", "--shape", "a=32x64", "--shape", "b=32x64", "--knob", "gm=auto"]
    assert main(["explain", "kohakutpu.kernels:matmul", *arguments, "--simulate"]) == 0
    out = capsys.readouterr().out
    assert "cycles predicted, " in out and " simulated (" in out and "limited by" in out and "(now)" in out
    assert main(["explain", "kohakutpu.kernels:matmul", "--machine", "quad", "--shape", "a=32x64"]) == 2
    assert "no shape for b" in capsys.readouterr().err


def tiles_of(capsys, *arguments):
    """The lines of tiles: their knobs, and what is said of each."""
    assert main(["explain", *arguments]) == 0
    out = capsys.readouterr().out
    return out, [tuple(line.removeprefix("tile ").split(": ", 1)) for line in out.splitlines() if line.startswith("tile ")]


def test_tiles_have_the_cycles_that_compiling_them_predicts(capsys):
    shapes = {"a": (32, 256), "b": (64, 256)}
    given = ["kohakutpu.kernels:matmul", "--machine", "quad", "--shape", "a=32x256", "--shape", "b=64x256", "--ksplit", "2"]
    out, lines = tiles_of(capsys, *given)
    assert len(lines) == 5 and [knobs for knobs, said in lines if "(now)" in said] == ["gm=8 gn=8 nk=2 ksplit=2"]
    machine, cycles = load("quad"), []
    for knobs, said in lines:
        made = compile_kernel(matmul, machine, shapes, {name: int(n) for name, n in (k.split("=") for k in knobs.split())})
        cycles.append(predict(made, machine).cycles)
        assert said.removesuffix(" (now)") == f"{cycles[-1]:,} cycles predicted"
        if said.endswith("(now)"):
            assert f"matmul on quad: {cycles[-1]:,} cycles predicted" in out
    assert cycles == sorted(cycles)


def test_tiles_of_a_large_product_are_estimates_and_say_so(capsys):
    given = ["kohakutpu.kernels:matmul", "--machine", "quad", "--shape", "a=512x1024", "--shape", "b=512x1024"]
    _, lines = tiles_of(capsys, *given)
    assert lines and all("a rough estimate to choose by" in said for _, said in lines)
    assert any("(now)" in said for _, said in lines)


def advice(kernel, shapes, knobs):
    """Cut, busy units and what moves the limit, of each stage of vector cores on quad."""
    machine = load("quad")
    artifact = compile_kernel(kernel, machine, shapes, knobs)
    assert type(artifact).from_json(artifact.to_json()) == artifact
    said = [line for line in explain(artifact, machine).splitlines() if line.startswith("  limited")]
    return [
        (stage.cut, len(stage.units), line.split("; ", 1)[1])
        for stage, line in zip(artifact.stages, said, strict=True)
        if stage.unit == "vector"
    ]


def test_only_knobs_that_act_are_advised():
    shapes = {"x": (16, 64), "up": (64, 64), "down": (64, 64)}
    (fused,) = advice(linear_silu, {"x": (32, 64), "w": (32, 64)}, {"gm": 4, "gn": 8, "nk": 2})
    assert fused == ("", 2, "moved by larger gm or gn: fewer instances")
    copied = advice(mlp, shapes, {"gm": 4, "gn": 8, "nk": 1})[-1]
    assert copied[0] == "" and copied[2].startswith("no knob: the compiler chooses the cores and runs of a copy")
    more = "moved by more cores: a smaller part"
    assert advice(gelu, {"x": (16, 1024)}, {}) == [("part", 2, more)]
    assert advice(gelu, {"x": (16, 1024)}, {"part": 1024}) == [
        ("part", 4, "no knob: every core works; fewer operations an element would")
    ]
    assert advice(softmax, {"x": (16, 1024)}, {}) == [("part", 2, more)]
    wide = {"x": (3, 8192), "w": (8192,), "b": (8192,)}
    assert advice(layernorm, wide, {"part": 1}) == [("part row", 3, "no knob: an instance is one row already")]
    gate = {"x": (32, 64), "w": (64, 64), "r": (32, 64), "b": (64,)}
    (rows,) = advice(product_then_gate, gate, {"gm": 4, "gn": 8})
    assert rows[:2] == ("slice tiles", 2) and "its per-channel vector makes each a whole row of tiles" in rows[2]
    assert advice(product_then_gate, gate, {"gm": 8, "gn": 8}) == [
        ("slice tiles", 1, "moved by more cores: a smaller gm, as an instance is one row of tiles already")
    ]
    ((cut, _, said),) = advice(scaled_operand, {"x": (32, 64), "w": (64, 64)}, {})
    assert cut == "slice" and said.endswith("fewer instances, on fewer cores (the knob part does not act here)")
