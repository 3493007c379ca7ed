"""Programs on the models against the oracle: nothing differs; with a fault something does, and is made small."""

from pathlib import Path

import pytest

from kohakutpu.fuzz.campaign import Campaign, play_case
from kohakutpu.fuzz.generate import Generator
from kohakutpu.fuzz.accesses import Unjudged
from kohakutpu.fuzz.oracle import Oracle
from kohakutpu.fuzz.program import Case, from_text, to_text
from kohakutpu.fuzz.shrink import Finding, Shrinker, up_to
from kohakutpu.machine import load
from kohakutpu.model import faults as registry
from kohakutpu.model.system import System

FOUND = sorted((Path(__file__).parent / "found").glob("*.fuzz"))


@pytest.mark.parametrize("name, count", [("mm_mesh", 40), ("quad", 12), ("1x1_min", 20)])
def test_models_and_oracle_agree(name, count):
    campaign = Campaign(load(name), 21)
    campaign.run(count)
    assert campaign.finding is None, campaign.finding.text
    assert campaign.programs == count
    assert campaign.judged >= count // 2


FAULTS = sorted(name for name in registry.table() if name.split("-")[0] in ("cluster", "memory", "noc", "vector"))
ELSEWHERE = {"cluster-bank-stuck": "mm_mesh_links"}  # mm_mesh has no second bank
UNSEEN = {"memory-late"}  # a matter of time: the gates see it


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault not in UNSEEN])
def test_a_planted_fault_is_found_and_made_small(fault):
    name = ELSEWHERE.get(fault, "mm_mesh")
    for seed in range(8):
        campaign = Campaign(load(name), seed, faults=[fault])
        campaign.run(20)
        if campaign.finding is not None:
            break
    assert campaign.finding is not None
    assert campaign.smallest.size <= 24
    saved = from_text(to_text(campaign.smallest), "saved")
    assert play_case(saved, load(name), faults=[fault]).finding.kind == campaign.finding.kind
    assert play_case(saved, load(name)).finding is None


RACE = """
machine mm_mesh
memory 1
program 0
on cluster0
  CU_INST (1,1)->(2,1) | DRAIN addr=0x20000 n=1
on port0
  MEM_RD_REQ (1,1)->(0,1) last | addr=0x20000
"""


def test_a_race_is_not_judged():
    """The same two statements one after the other are."""
    system = System(load("mm_mesh"), agent="bench")
    case = from_text(RACE, "race")
    with pytest.raises(Unjudged, match="0x20000"):
        Oracle(system).run(case.programs[0])
    Oracle(system).run(from_text(RACE.replace("on port0", "settle\non port0"), "settled").programs[0])


def test_shrinking_keeps_what_fails():
    """A made-up failure: two flits that must both be there, in two statements of one program of many."""
    case = Case("mm_mesh", 0, tuple(generated("mm_mesh", count=12)))
    wanted = [statement.flits[0] for statement in case.programs[7].statements if statement.flits][:2]

    def fails(smaller):
        flits = [flit for program in smaller.programs for statement in program.statements for flit in statement.flits]
        return Finding("answer", "", 7) if all(flit in flits for flit in wanted) else None

    shrinker = Shrinker(fails, "answer", 500)
    smallest = shrinker.shrink(up_to(case, 7))
    assert fails(smallest) and smallest.size == 2


def generated(name, count):
    generator = Generator(load(name), 2)
    return [generator.program(number) for number in range(count)]


def traced(case, folder, skip):
    path = folder / f"{skip}.trace"
    assert play_case(case, load(case.machine), trace=path, skip=skip).finding is None
    return path.read_bytes()


@pytest.mark.parametrize("name", ["mm_mesh", "quad"])
def test_traces_do_not_depend_on_skipping(name, tmp_path):
    case = Case(name, 1, tuple(generated(name, count=6)), latency=5)
    assert traced(case, tmp_path, True) == traced(case, tmp_path, False)


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_what_was_found_once_is_right_now(path, tmp_path):
    """On the models, with skipping and without; tests/fuzz/test_gates.py plays them on the gates."""
    case = from_text(path.read_text(), str(path))
    assert traced(case, tmp_path, True) == traced(case, tmp_path, False)
