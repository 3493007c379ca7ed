"""Tilings in which clusters and vector cores take turns, on the gates of quad: the interpreter's bytes, the model's cycles."""

import re
import sys
from pathlib import Path

import pytest

from kohakutpu.cli.main import main
from kohakutpu.machine import load

sys.path.insert(0, str(Path(__file__).parent))
import turns  # noqa: E402
from on_gates import equal_on_gates  # noqa: E402

CASES = {
    "there and back": (turns.mlp_in_one, {"x": (6, 64), "up": (64, 64), "down": (64, 64)}, {"gn": 16}),
    "loop outside": (turns.row_by_row, {"x": (2, 9, 40), "w": (12, 40)}, {"gm": 2, "gn": 3}),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_gates_have_the_interpreters_bytes_and_the_models_cycles(name):
    made, shapes, knobs = CASES[name]
    equal_on_gates(made, shapes, load("quad"), knobs)


@pytest.mark.slow
def test_lockstep(capsys):
    words = [f"{turns.__file__}:mlp_in_one", "--machine", "quad", "--knob", "gn=16"]
    for shape in ("x=6x64", "up=64x64", "down=64x64"):
        words += ["--shape", shape]
    assert main(["lockstep", *words]) == 0
    assert re.fullmatch(r"mlp_in_one on quad: [\d,]+ events, 0 differing, [\d,]+ cycles both", capsys.readouterr().out.strip())
