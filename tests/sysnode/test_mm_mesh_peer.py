"""The peer bench on the cycle models: 163 checks, what they settle check by check, and the faults that these find."""

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from kohakutpu.formats.words import to_ints
from kohakutpu.machine import load
from kohakutpu.model.system import System

sys.path.insert(0, str(Path(__file__).parent))
import peer_scenario as peer  # noqa: E402
import peer_settled as settled  # noqa: E402


class ModelPort:
    """A `System` with the bench in the agent's place."""

    def __init__(self, **options):
        self.system = System(load("mm_mesh"), agent="bench", **options)

    def received(self):
        return [flit for _, flit in self.system.bench.received]

    def inject(self, flits):
        for flit in flits:
            self.system.bench.inject(flit)

    def wait(self, condition, budget):
        return self.system.engine.run(condition, budget)

    def advance(self, cycles):
        self.system.engine.advance(cycles)

    def memory_word(self, index):
        return bytes(self.system.memory.read(32 * index, 32))


def run(**options) -> peer.Checks:
    return peer.run(ModelPort(**options), *peer.operands())


def test_peer_bench(capsys):
    checks = run()
    with capsys.disabled():
        print(f"\nmm_mesh peer bench on the model: {checks.summary()}")
    assert checks.errors == []
    assert checks.count == peer.CHECKS


def test_without_skipping_the_bench_passes_too():
    assert run(skip=False).errors == []


def test_the_bench_sends_the_recorded_flits(golden):
    """Flit for flit the stimulus that was recorded with the published hardware."""
    data = np.load(golden / "mesh.npz")
    recorded = data["f1_cudata_fused_flits"][data["f1_cudata_fused_dir"] == 0]
    a, b = data["f1_cudata_fused_A_q"].astype(np.int8), data["f1_cudata_fused_B_q"].astype(np.int8)
    sent = [flit.to_int() for phase in peer.phases(a, b) for flit in phase]
    assert len(sent) == 99
    assert sent == to_ints(recorded)


def evidence(program, **options) -> settled.Evidence:
    links = defaultdict(list)
    saw = lambda cycle, link, flit: links[link.name].append(flit)  # noqa: E731
    system = System(load("mm_mesh"), agent="bench", on_transfer=saw, **options)
    for pause, flits in settled.groups(program):
        system.engine.advance(pause)
        for flit in flits:
            system.bench.inject(flit)
    system.engine.advance(2000)
    return settled.Evidence(links, *(bytes(system.memory.read(*where)) for where in settled.IMAGES))


@pytest.mark.parametrize("check", settled.CHECKS, ids=lambda check: check.__name__)
def test_settled(check):
    check(evidence(settled.CHECKS[check]))


@pytest.mark.parametrize("name", settled.BROKEN)
def test_a_program_that_is_not_so_is_seen(name):
    check, program, message = settled.BROKEN[name]
    with pytest.raises(AssertionError, match=message):
        check(evidence(program))


@pytest.mark.parametrize("fault, check", settled.PLANTED.items(), ids=settled.PLANTED)
def test_a_planted_fault_is_seen(fault, check):
    with pytest.raises(AssertionError):
        check(evidence(settled.CHECKS[check], faults=[fault]))


def test_the_published_core_leaves_a_rejected_burst_unanswered():
    """Erratum `reject-silent`: whoever waits for the answer waits for good."""
    check = settled.a_rejected_burst_is_answered
    with pytest.raises(AssertionError, match="answers"):
        check(evidence(settled.CHECKS[check], errata=["reject-silent"]))
