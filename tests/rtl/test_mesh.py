# amaranth: UnusedElaboratable=no
"""Meshes in gates: equal to the model on every link and in every cycle, and every planted router fault found."""

import sys
from pathlib import Path

import pytest

from kohakutpu.machine import load
from kohakutpu.noc.router import RouteTable
from rtl import router
from rtl.mesh import Mesh
from sim.runner import BenchError

sys.path.insert(0, str(Path(__file__).parent))
from support.harness import run_bench  # noqa: E402
from support.mesh_top import MeshTop, grid  # noqa: E402
from support.top import LinkTop  # noqa: E402

DEPTH = 4


def run(nx, ny, simulator, faults=None, depth=DEPTH, **options):
    top = LinkTop(MeshTop(grid(nx, ny, depth), faults=faults))
    return run_bench(top, "bench_mesh", name="mesh", simulator=simulator, nx=nx, ny=ny, depth=depth, **options)


@pytest.mark.parametrize(
    "nx, ny, simulator", [(2, 2, "icarus"), (3, 3, "verilator"), (4, 4, "icarus"), (2, 1, "icarus")]
)
def test_mesh(nx, ny, simulator):
    assert len(run(nx, ny, simulator).passed) == 5


@pytest.mark.parametrize("name", ["mm_mesh", "uneven", pytest.param("quad", marks=pytest.mark.slow)])
def test_mesh_of_a_machine(name):
    """Traffic between all endpoints of machines that are held against their models as a whole, too."""
    machine = load(name)
    top = LinkTop(MeshTop(machine))
    sizes = {"nx": machine.nx, "ny": machine.ny, "depth": machine.fifo_depth}
    assert len(run_bench(top, "bench_mesh", name="mesh", simulator="icarus", mesh_of=name, **sizes).passed) == 5


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3, 4])
def test_mesh_with_much_more_traffic(size):
    run(size, size, "verilator", factor=10, tests=["random_traffic"])


@pytest.mark.parametrize("fault", router.FAULTS)
def test_every_planted_fault_is_found(fault):
    with pytest.raises(BenchError, match="failed: "):
        run(2, 2, "icarus", faults={(2, 1): fault})


def test_the_port_checker_names_a_router_that_does_not_hold():
    with pytest.raises(BenchError, match="_: in_changed, "):
        run(2, 2, "icarus", faults={(2, 1): "lost-hold"}, tests=["flood"])


@pytest.mark.parametrize("nx, ny", [(1, 1), (2, 2), (4, 3), (1, 14), (14, 14)])
def test_masked_turns_are_the_model_s(nx, ny):
    for y in range(1, ny + 1):
        for x in range(1, nx + 1):
            assert router.masked_turns(x, y, nx, ny) == RouteTable(x, y, nx, ny).masked


def test_a_fault_where_no_router_is_refused():
    with pytest.raises(TypeError, match=r"faults at \[\(3, 1\)\]: there is no router on a 2x1 grid"):
        Mesh(load("mm_mesh"), faults={(3, 1): "lost-hold"})
