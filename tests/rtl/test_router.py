# amaranth: UnusedElaboratable=no
"""The router in gates: equal to the model in every cycle, and every planted fault found."""

import sys
from pathlib import Path

import pytest

from rtl import router
from sim.runner import BenchError

sys.path.insert(0, str(Path(__file__).parent))
from support.harness import run_bench  # noqa: E402
from support.top import LinkTop  # noqa: E402

MIDDLE = {"x": 2, "y": 2, "nx": 3, "ny": 3, "depth": 4}


def run(simulator="icarus", fault=None, x=2, y=2, nx=3, ny=3, depth=4):
    device = router.Router(x=x, y=y, grid_x=nx, grid_y=ny, fifo_depth=depth, fault=fault)
    return run_bench(
        LinkTop(device), "bench_router", name="router", simulator=simulator, x=x, y=y, nx=nx, ny=ny, depth=depth
    )


@pytest.mark.parametrize(
    "simulator, place",
    [
        ("verilator", MIDDLE),
        ("icarus", MIDDLE),
        ("icarus", {**MIDDLE, "x": 1, "depth": 2}),
        ("icarus", {**MIDDLE, "y": 3, "depth": 3}),
        ("icarus", {"x": 1, "y": 1, "nx": 1, "ny": 1, "depth": 32}),
        ("icarus", {"x": 14, "y": 14, "nx": 14, "ny": 14, "depth": 2}),
    ],
)
def test_router(simulator, place):
    assert len(run(simulator, **place).passed) == 10


@pytest.mark.parametrize("fault", router.FAULTS)
def test_every_planted_fault_is_found(fault):
    with pytest.raises(BenchError, match="failed: "):
        run(fault=fault, x=3)


GOOD = {"x": 1, "y": 1, "grid_x": 2, "grid_y": 2, "fifo_depth": 4}


@pytest.mark.parametrize(
    "parameters, message",
    [
        ({"x": 3}, r"Router \(3,1\) does not lie in a 2x2 grid of at most 14x14"),
        ({"grid_y": 15}, "does not lie in a 2x15 grid"),
        ({"fifo_depth": 1}, "fifo_depth must be at least 2 for one flit a cycle, not 1"),
        ({"x": 0}, "x must be a positive integer, not 0"),
        ({"fault": "slow"}, "no fault 'slow'; there are: wrong-clamp"),
    ],
)
def test_wrong_parameters_are_refused(parameters, message):
    with pytest.raises(TypeError, match=message):
        router.Router(**GOOD | parameters)
