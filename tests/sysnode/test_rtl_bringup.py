"""The bring-up ladder on the gates: the same verdicts and bytes as on the models, the mover's absence said by name.

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


def digests(facts):
    """Every sha256 in a step's facts, in order, wherever it is."""
    found = []
    for name, fact in facts.items():
        found += [fact] if name == "sha256" else digests(fact) if isinstance(fact, dict) else []
    return found


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["mm_mesh", "quad"])
def test_gates_climb_as_the_models_do(machine, tmp_path, capsys):
    (ours, model), (theirs, gates) = (report(transport, machine, tmp_path) for transport in ("model", "rtl"))
    assert ours == theirs == 0
    for step, other in zip(model["steps"], gates["steps"], strict=True):
        if step["step"] == "mover":
            assert (step["verdict"], other["verdict"]) == ("passed", "not present") and "no memory mover" in other[
                "text"
            ]
            continue
        assert step["verdict"] == other["verdict"] == "passed"
        assert digests(step["facts"]) == digests(other["facts"])
        assert bool(digests(step["facts"])) == (step["number"] > NAMES.index("flit") + 1)
    assert [step["step"] for step in gates["steps"]] == NAMES
    with capsys.disabled():
        pairs = zip(model["steps"], gates["steps"], strict=True)
        same = sum(step["elapsed"] == other["elapsed"] for step, other in pairs)
        print(f"\n{gates['summary']}; {same} of {len(NAMES)} steps take the same cycles as on the models")


@pytest.mark.slow
def test_a_fault_of_the_gates_shows_in_its_step(tmp_path, capsys):
    status, record = report("rtl", "mm_mesh", tmp_path, "--fault", "cluster0=lane-tie", "--from", "unit")
    assert status == 1 and record["exit_status"] == 1
    failed = [step["step"] for step in record["steps"] if step["verdict"] == "wrong answer"]
    assert failed and failed[0] in ("unit", "all-units", "kernel", "repeat")
    assert "elements differ" in next(step["text"] for step in record["steps"] if step["step"] == failed[0])
