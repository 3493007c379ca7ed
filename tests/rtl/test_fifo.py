# amaranth: UnusedElaboratable=no
"""The FIFO in gates: equal to the models' FIFO at every depth, and every planted fault found."""

import sys
from pathlib import Path

import pytest

from rtl import fifo
from sim.runner import BenchError

sys.path.insert(0, str(Path(__file__).parent))
from support.fifo_bank import FifoBank  # noqa: E402
from support.harness import run_bench  # noqa: E402


@pytest.mark.parametrize("simulator", ["verilator", "icarus"])
def test_fifo(simulator):
    run_bench(FifoBank(), "bench_fifo", name="fifo_bank", simulator=simulator)


@pytest.mark.parametrize("fault", fifo.FAULTS)
def test_every_planted_fault_is_found(fault):
    with pytest.raises(BenchError, match="failed: "):
        run_bench(FifoBank(fault=fault), "bench_fifo", name="fifo_bank", simulator="icarus")


@pytest.mark.parametrize(
    "parameters, message",
    [
        ({"width": 0}, "width must be a positive integer, not 0"),
        ({"depth": 2.0}, "depth must be a positive integer, not 2.0"),
        ({"depth": True}, "depth must be a positive integer, not True"),
        ({"fault": "leaks"}, "no fault 'leaks'; there are: push-when-full, late-head"),
    ],
)
def test_wrong_parameters_are_refused(parameters, message):
    with pytest.raises(TypeError, match=message):
        fifo.Fifo(**{"width": 8, "depth": 4, **parameters})
