"""The bring-up ladder on the gates: verdicts, measurements and cycles as on the models, the mover's absence by name.

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


def on_models(machine, mover, **options):
    """The record of a climb on the models, with a mover or without.

    The routers' pointers run freely: a step that takes other cycles would change who is served first in a later one.
    """

    def opener():
        transport = ModelTransport(System(load(machine)))
        if not mover:
            transport.system.orchestrator.mover = None
        return transport

    *_, made = climb(load(machine), opener, transport="rtl", **options)
    return json.loads(json.dumps(made.to_dict()))


def compared(machine, folder, first="link", last="repeat"):
    """The record of the gates, which has to be that of the models: verdicts, measurements, and every step's cycles."""
    status, gates = on_gates(machine, folder, "--from", first, "--until", last)
    mover = gates["steps"][NAMES.index("mover")]
    built = mover["verdict"] == "passed"
    assert built or mover["verdict"] == "not present" and "no memory mover" in mover["text"]
    assert gates == on_models(machine, built, first=first, last=last)
    assert status == 0 and [step["step"] for step in gates["steps"]] == NAMES
    return gates


def test_gates_answer_as_the_models_do(tmp_path):
    gates = compared("mm_mesh", tmp_path, "enumerate", "unit")
    verdicts = [step["verdict"] for step in gates["steps"] if step["step"] != "mover"]
    assert verdicts == ["not run"] * 3 + ["passed"] * 4 + ["not run"] * 3


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["mm_mesh", "quad"])
def test_the_whole_ladder(machine, tmp_path, capsys):
    gates = compared(machine, tmp_path)
    assert {step["verdict"] for step in gates["steps"]} <= {"passed", "not present"}
    with capsys.disabled():
        cycles = sum(step["elapsed"] for step in gates["steps"])
        print(f"\n{gates['summary']}; {cycles:,} cycles, each step's as on the models")
