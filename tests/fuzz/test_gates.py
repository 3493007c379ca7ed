"""Random programs on the gates: every record of every trace is the model's; a fault planted on either side is found."""

from functools import partial
from pathlib import Path

import pytest

from kohakutpu.fuzz.campaign import Campaign
from kohakutpu.fuzz.coverage import Coverage
from kohakutpu.fuzz.program import from_text
from kohakutpu.machine import load

pytest.importorskip("cocotb", reason="the gates need the rtl extra")
from sim import fuzz  # noqa: E402

MACHINE = load("mm_mesh")
FOUND = sorted((Path(__file__).parent / "found").glob("*.fuzz"))


def campaign(seed, *, faults=(), gate_fault=None, simulator="verilator", **options):
    on = fuzz.built(MACHINE, simulator, gate_fault)
    return Campaign(MACHINE, seed, faults=faults, compare=partial(fuzz.compare, on), **options)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("count", [200, pytest.param(5000, marks=[pytest.mark.slow, pytest.mark.timeout(36000)])])
def test_programs_on_the_gates(count):
    played = campaign(seed=count, coverage=Coverage(MACHINE))
    played.run(count)
    assert played.finding is None, played.finding.text
    assert played.programs == count
    if count == 5000:
        assert played.coverage.share >= 0.95, played.coverage.missing()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_what_was_found_once_is_right_now(path):
    case = from_text(path.read_text(), str(path))
    on = fuzz.built(load(case.machine), "verilator")
    played = Campaign(load(case.machine), 0, compare=partial(fuzz.compare, on))
    assert played.play(case) is None


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "fault",
    ["memory-last", *(pytest.param(name, marks=pytest.mark.slow) for name in ("cluster-pacing", "vector-drain-slip"))],
)
def test_a_fault_of_the_models_is_found_against_the_gates(fault):
    played = campaign(0, faults=[fault], tries=8)
    played.run(8)
    assert played.finding.kind == "trace" and played.finding.text.count("cycle") == 2
    assert played.smallest.size < 400


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "fault", ["cluster0=sequencer-early-retire", "vector0=vector-page-crossed", "r11=stuck-pointer"]
)
def test_a_fault_of_the_gates_is_found(fault):
    played = campaign(0, gate_fault=fault, tries=8)
    played.run(100)
    assert played.finding is not None and played.finding.kind in ("trace", "rules")
    assert played.smallest.size < 400
