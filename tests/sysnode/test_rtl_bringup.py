"""The bring-up ladder on the gates: verdicts, measurements and cycles as on the models, the mover's absence by name.

The command is the same but for `--transport`, as it would be on a board.
"""

import json

import pytest

from kohakutpu.cli.main import main
from kohakutpu.host.bringup import STEPS

NAMES = [step.name for step in STEPS]


def report(transport, machine, folder, *options):
    """(exit status, the record) of a climb."""
    path = folder / f"{transport.partition(':')[0]}.json"
    status = main(["bringup", "--transport", transport, "--machine", machine, "--report", str(path), *options])
    return status, json.loads(path.read_text())


def same(model, gates):
    """Both passed every step, with equal measurements and cycles; only a mover may be missing."""
    for step, other in zip(model["steps"], gates["steps"], strict=True):
        if step["step"] == "mover" and other["verdict"] == "not present":
            assert step["verdict"] == "passed" and "no memory mover" in other["text"]
        else:
            assert step == other
    assert [step["step"] for step in gates["steps"]] == NAMES


def test_gates_answer_as_the_models_do(tmp_path):
    options = ("--from", "enumerate", "--until", "unit")
    (ours, model), (theirs, gates) = (report(way, "mm_mesh", tmp_path, *options) for way in ("model", "rtl"))
    assert ours == theirs == 0
    same(model, gates)
    assert [step["verdict"] for step in model["steps"]] == ["not run"] * 3 + ["passed"] * 5 + ["not run"] * 3


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["mm_mesh", "quad"])
def test_the_whole_ladder(machine, tmp_path, capsys):
    (ours, model), (theirs, gates) = (report(way, machine, tmp_path) for way in ("model", "rtl"))
    assert ours == theirs == 0
    same(model, gates)
    assert {step["verdict"] for step in model["steps"]} == {"passed"}
    with capsys.disabled():
        cycles = sum(step["elapsed"] for step in gates["steps"])
        print(f"\n{gates['summary']}; {cycles:,} cycles, each step's as on the models")


@pytest.mark.slow
def test_a_fault_of_the_gates_shows_in_its_step(tmp_path):
    status, record = report("rtl", "mm_mesh", tmp_path, "--fault", "cluster0=lane-tie", "--from", "unit")
    assert status == record["exit_status"] == 1
    (failed,) = [step for step in record["steps"] if step["verdict"] == "wrong answer"]
    assert failed["step"] in ("unit", "all-units", "kernel") and "elements differ" in failed["text"]
