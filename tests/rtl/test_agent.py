# amaranth: UnusedElaboratable=no
"""Agent ports in gates. With an agent behind them they are part of `test_orchestrator`."""

import sys
from pathlib import Path

import pytest

from rtl import agent
from sim.port_checker import Checked
from sim.runner import BenchError

sys.path.insert(0, str(Path(__file__).parent))
from support.harness import run_bench  # noqa: E402
from support.stray_top import StrayTop  # noqa: E402
from support.top import LinkTop  # noqa: E402


def run(fault=None, simulator="icarus"):
    port = Checked(StrayTop(fault=fault), node=None, unit=False)
    return run_bench(LinkTop(port), "bench_agent", name="stray_port", simulator=simulator)


def test_a_memory_port_without_an_agent():
    assert len(run().passed) == 3


def test_a_planted_fault_is_found():
    with pytest.raises(BenchError, match="failed: "):
        run("write-data-to-agent")


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: agent.AgentPort(agent=False, memory=False), "serves an agent, a memory engine or both"),
        (lambda: agent.AgentPort(agent=True, memory=True, fault="x"), "no fault 'x'"),
        (lambda: agent.AgentSide(rows=()), r"rows must be the rows \(0 to 15\) of its ports, not \(\)"),
        (lambda: agent.AgentSide(rows=(1, 16)), "not \\(1, 16\\)"),
    ],
)
def test_wrong_parameters_are_refused(build, message):
    with pytest.raises(TypeError, match=message):
        build()
