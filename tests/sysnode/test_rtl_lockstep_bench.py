"""The peer bench and random traffic on models and gates, every record of their traces, under several memory
latencies."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kohakutpu.fuzz.campaign import Campaign, play_case
from kohakutpu.fuzz.generate import Generator
from kohakutpu.fuzz.program import Case, Program, Statement
from kohakutpu.machine import load
from kohakutpu.noc.trace import Trace
from sim import fuzz

sys.path.insert(0, str(Path(__file__).parent))
import peer_scenario as peer  # noqa: E402

SEED, TRAFFIC = 77, 8  # random programs beside the bench's four
LATENCIES = {"1": (1, None), "20": (20, None), "random": (20, 9)}  # of the memory, and the seed that draws it
ALWAYS = ("mm_mesh", "random")  # what every test run plays; the nightly plays them all
CASES = [
    pytest.param(name, latency, marks=[pytest.mark.slow] * ((name, latency) != ALWAYS))
    for name in ("mm_mesh", "quad", "uneven")
    for latency in LATENCIES
]


def bench(machine, drawn):
    """The peer bench between the machine's last cluster and its last vector core, then random traffic of all kinds."""
    at = peer.Places(machine.agent.node, machine.clusters[-1].node, machine.vectors[-1].node)
    phases = peer.phases(*peer.operands(), at)
    programs = [Program(number, (Statement("bench", tuple(flits)),)) for number, flits in enumerate(phases)]
    made = Generator(machine, SEED)
    programs += [made.program(number) for number in range(len(programs), len(programs) + TRAFFIC)]
    return Case(machine.name, SEED, tuple(programs), drawn)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name, latency", CASES)
def test_bench_and_traffic_are_equal_in_every_cycle(name, latency, capsys):
    machine, (cycles, drawn) = load(name), LATENCIES[latency]
    assert machine.memory.latency == 20
    events = 0

    def compare(case, played, trace):
        nonlocal events
        model = Trace(trace)
        events = model.flits + model.levels + model.events
        return fuzz.compare(fuzz.built(machine, "verilator"), case, played, trace, latency=cycles)

    with_latency = replace(machine, memory=replace(machine.memory, latency=cycles))
    campaign = Campaign(with_latency, SEED, compare=compare)
    assert campaign.play(bench(machine, drawn)) is None
    assert campaign.programs == 4 + TRAFFIC and campaign.judged > 4 and events > 5000
    with capsys.disabled():
        print(
            f"\nbench and traffic on {name}, latency {latency}: {events:,} events, 0 differing, {campaign.cycles:,} "
            "cycles both"
        )


def test_another_latency_on_one_side_is_found(tmp_path):
    """The comparison can fail: gates with the machine's latency, models with one cycle less."""
    machine = load("mm_mesh")
    case, trace = bench(machine, None), tmp_path / "model"
    played = play_case(case, replace(machine, memory=replace(machine.memory, latency=19)), trace=trace)
    found = fuzz.compare(fuzz.built(machine, "verilator"), case, played, trace)
    assert found.kind == "trace" and "program 2" in found.text
