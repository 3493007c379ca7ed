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


NIGHTLY, PART = 5000, 500  # programs of the nightly's seed, in parts that can go side by side


@pytest.mark.timeout(1800)
def test_programs_on_the_gates():
    played = campaign(seed=200)
    played.run(200)
    assert played.finding is None, played.finding.text
    assert played.programs == 200


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, NIGHTLY, PART))
def test_many_programs_on_the_gates(start):
    played = campaign(seed=NIGHTLY)
    played.run(PART, start)
    assert played.finding is None, played.finding.text
    assert played.programs == PART


@pytest.mark.slow
def test_many_programs_cover_what_can_be_reached():
    """The same programs on the models alone: coverage is of what was sent and of the model's trace."""
    played = Campaign(MACHINE, NIGHTLY, coverage=Coverage(MACHINE))
    played.run(NIGHTLY)
    assert played.finding is None, played.finding.text
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
