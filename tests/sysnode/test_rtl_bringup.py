"""The bring-up ladder on the gates: verdicts, measurements and cycles as on the models.

The command is the same but for `--transport`, as it would be on a board.
"""

import json

import pytest

from kohakutpu.cli.main import main
from kohakutpu.host.bringup import STEPS, climb
from kohakutpu.host.model_transport import ModelTransport
from kohakutpu.machine import load
from kohakutpu.model.system import System

NAMES = [step.name for step in STEPS]


def on_gates(machine, folder, *options):
    """(exit status, the record) of a climb by the command."""
    path = folder / "gates.json"
    status = main(["bringup", "--transport", "rtl", "--machine", machine, "--report", str(path), *options])
    return status, json.loads(path.read_text())


def on_models(machine, **options):
    """The record of a climb on the models."""
    *_, made = climb(load(machine), lambda: ModelTransport(System(load(machine))), transport="rtl", **options)
    return json.loads(json.dumps(made.to_dict()))


def compared(machine, folder, first="link", last="repeat"):
    """The record of the gates, which has to be that of the models: verdicts, measurements, and every step's cycles."""
    status, gates = on_gates(machine, folder, "--from", first, "--until", last)
    assert gates == on_models(machine, first=first, last=last)
    assert status == 0 and [step["step"] for step in gates["steps"]] == NAMES
    return gates


def test_gates_answer_as_the_models_do(tmp_path):
    gates = compared("mm_mesh", tmp_path, "enumerate", "unit")
    verdicts = [step["verdict"] for step in gates["steps"]]
    assert verdicts == ["not run"] * 3 + ["passed"] * 5 + ["not run"] * 3


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["mm_mesh", "quad"])
def test_the_whole_ladder(machine, tmp_path, capsys):
    gates = compared(machine, tmp_path)
    assert {step["verdict"] for step in gates["steps"]} == {"passed"}
    with capsys.disabled():
        cycles = sum(step["elapsed"] for step in gates["steps"])
        print(f"\n{gates['summary']}; {cycles:,} cycles, each step's as on the models")
