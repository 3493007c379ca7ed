# amaranth: UnusedElaboratable=no
"""Ten times the random traffic for the blocks whose benches draw everything from one seed; the others have longer lives
of their own (`test_many_lives`, `test_many_random_lives`, `test_mesh_with_much_more_traffic`, `test_many_vectors`)."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import test_agent  # noqa: E402
import test_endpoint  # noqa: E402
import test_orchestrator  # noqa: E402
import test_quantiser  # noqa: E402
import test_router  # noqa: E402
from support.fifo_bank import FifoBank  # noqa: E402
from support.harness import run_bench, seed  # noqa: E402

BLOCKS = {
    "fifo": lambda: run_bench(FifoBank(), "bench_fifo", name="fifo_bank"),
    "router": lambda: test_router.run("verilator", **test_router.MIDDLE),
    "router-corner": lambda: test_router.run("verilator", x=1, y=1),
    "endpoint": lambda: test_endpoint.run("verilator"),
    "agent": lambda: test_agent.run(simulator="verilator"),
    "orchestrator": lambda: test_orchestrator.run("mm_mesh", "verilator"),
    "orchestrator-two-ports": lambda: test_orchestrator.run("quad", "verilator"),
    "quantiser": lambda: test_quantiser.run(step=16),
}


@pytest.mark.slow
@pytest.mark.parametrize("number", range(10))
@pytest.mark.parametrize("block", BLOCKS)
def test_another_seed(block, number, monkeypatch):
    monkeypatch.setenv("KOHAKUTPU_SEED", str(seed() + 1 + number))
    BLOCKS[block]()
