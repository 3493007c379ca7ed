# amaranth: UnusedElaboratable=no
"""The endpoint base in gates: equal to the model in every cycle, and every planted fault found."""

import sys
from pathlib import Path

import pytest

from kohakutpu.isa.flit import node
from rtl import endpoint
from sim.port_checker import Checked
from sim.runner import BenchError

sys.path.insert(0, str(Path(__file__).parent))
from support.harness import run_bench  # noqa: E402
from support.top import LinkTop  # noqa: E402
from support.worker import Worker  # noqa: E402

DEPTHS = {"inst_depth": 12, "recv_depth": 8}


def run(simulator="icarus", fault=None, tests=None, **depths):
    depths = DEPTHS | depths
    worker = Worker(x=2, y=1, unit_type=0x0A10, version=4, buffers=3, fault=fault, **depths)
    top = LinkTop(Checked(worker, node=node(2, 1), bound=2000))
    return run_bench(top, "bench_endpoint", name="worker", simulator=simulator, tests=tests, **depths)


@pytest.mark.parametrize("simulator", ["verilator", "icarus"])
def test_endpoint_base(simulator):
    assert len(run(simulator).passed) == 10


def test_smallest_depths():
    run(inst_depth=1, recv_depth=1)


@pytest.mark.parametrize("fault", endpoint.FAULTS)
def test_every_planted_fault_is_found(fault):
    with pytest.raises(BenchError, match="failed: "):
        run(fault=fault)


@pytest.mark.parametrize(
    "parameters, message",
    [
        ({"inst_depth": 0}, "inst_depth must be a positive integer, not 0"),
        ({"recv_depth": "8"}, "recv_depth must be a positive integer, not '8'"),
        ({"fault": "sticky"}, "no fault 'sticky'; there are: lost-completion"),
    ],
)
def test_wrong_parameters_are_refused(parameters, message):
    with pytest.raises(TypeError, match=message):
        endpoint.EndpointBase(**{"x": 2, "y": 1, "unit_type": 1, "version": 1, "buffers": 1, **DEPTHS, **parameters})
