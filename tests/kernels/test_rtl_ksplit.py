"""K in parts on the gates of quad: the interpreter's bytes, the model's flits and cycles, and lockstep without a difference."""

import re
import sys
from pathlib import Path

import pytest

from kohakutpu import kernels as K
from kohakutpu.cli.main import main
from kohakutpu.compiler import Options
from kohakutpu.machine import load

sys.path.insert(0, str(Path(__file__).parent))
from on_gates import equal_on_gates  # noqa: E402

X = {"x": (12, 300), "w": (16, 300)}
CASES = {
    "one tile": (K.matmul, {"a": (29, 520), "b": (32, 520)}, {"gm": 8, "gn": 8, "nk": 2, "ksplit": 4}, Options()),
    "five tiles, MXFP7": (K.matmul, {"a": (60, 200), "b": (16, 200)}, {"gm": 3, "gn": 4, "nk": 1, "ksplit": 2},
                          Options(preq=("a", "b"))),
    "fused": (K.linear_silu, X, {"gm": 3, "gn": 2, "nk": 1, "ksplit": 2}, Options()),
    "two sums a tile": (K.swiglu, {"x": (12, 128), "wg": (20, 128), "wu": (20, 128)},
                        {"gm": 3, "gn": 5, "nk": 1, "ksplit": 3}, Options()),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_gates_have_the_interpreters_bytes_and_the_models_cycles(name):
    kernel, shapes, knobs, options = CASES[name]
    equal_on_gates(kernel, shapes, load("quad"), knobs, options)


@pytest.mark.slow
@pytest.mark.parametrize("latency", [(), ("--latency-seed", "7")], ids=["20", "random"])
def test_lockstep(latency, capsys):
    words = ["kohakutpu.kernels.linear:matmul", "--machine", "quad", "--shape", "a=29x520", "--shape", "b=32x520"]
    assert main(["lockstep", *words, "--ksplit", "4", *latency]) == 0
    assert re.fullmatch(r"matmul on quad: [\d,]+ events, 0 differing, [\d,]+ cycles both", capsys.readouterr().out.strip())
