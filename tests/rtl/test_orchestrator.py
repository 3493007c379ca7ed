# amaranth: UnusedElaboratable=no
"""The orchestrator in gates over AXI: equal to the model in every cycle, and every planted fault found."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kohakutpu.machine import load
from rtl import agent, host_port, orchestrator
from sim.runner import BenchError

sys.path.insert(0, str(Path(__file__).parent))
from support.agent_top import AgentTop  # noqa: E402
from support.harness import run_bench  # noqa: E402
from support.top import LinkTop  # noqa: E402


def run(machine, simulator="icarus", tests=None, **faults):
    description = replace(load(machine), staging_flits=24, tx_depth=4, rx_depth=5)
    top = LinkTop(AgentTop(description, **faults))
    return run_bench(top, "bench_orchestrator", name="orchestrator", simulator=simulator, tests=tests, machine=machine)


@pytest.mark.parametrize("machine", ["mm_mesh", "quad"])
def test_orchestrator(machine):
    assert len(run(machine, "verilator").passed) == 13


def test_orchestrator_under_icarus():
    run("quad", "icarus")


FAULTS = [
    *[("orchestrator", fault) for fault in orchestrator.FAULTS],
    *[("host_port", fault) for fault in host_port.FAULTS],
    ("port", "memory-first"), ("port", "write-data-to-agent"), ("side", "stuck-turn"),
]  # fmt: skip


# These find them all.
FINDERS = [
    "everything_in_one_cycle",
    "equals_the_model/pattern=stutter/pauses=0.4",
    "reset_keeps_the_mirror_and_staging",
]


@pytest.mark.parametrize("block, fault", FAULTS, ids=lambda item: item)
def test_every_planted_fault_is_found(block, fault):
    with pytest.raises(BenchError, match="failed: "):
        run("quad", tests=FINDERS, **{block: fault})


def test_a_wrong_row_is_found():
    """Two ports on one row: the last is taken."""
    with pytest.raises(BenchError, match="failed: "):
        run("2x1_6+0", tests=FINDERS, side="first-row")
    run("2x1_6+0", tests=FINDERS)


def test_every_agent_fault_is_planted():
    planted = {fault for block, fault in FAULTS if block in ("port", "side")} | {"first-row"}
    assert planted == set(agent.FAULTS)


GOOD = {"x": 1, "y": 1, "rows": (1,), "holds": True, "grid_hi": 2, "credit_limit": 8, "memory_ports": 1,
        "staging_flits": 4, "tx_depth": 4, "rx_depth": 4, "mover": False}  # fmt: skip


@pytest.mark.parametrize(
    "parameters, message",
    [
        ({"tx_depth": 0}, "tx_depth must be a positive integer, not 0"),
        ({"staging_flits": 2000}, "staging_flits must be at most 1433, not 2000"),
        ({"fault": "late"}, "no fault 'late'; there are: lost-credit"),
    ],
)
def test_wrong_parameters_are_refused(parameters, message):
    with pytest.raises(TypeError, match=message):
        orchestrator.Orchestrator(**GOOD | parameters)
