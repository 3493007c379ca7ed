# amaranth: UnusedElaboratable=no
"""The parts of the cluster in gates, vector by vector against the formats, and the faults that a whole life would
miss."""

import sys
from pathlib import Path

import pytest

from rtl import cluster_accumulator, cluster_array, cluster_l1, cluster_lane
from rtl.cluster_accumulator import Accumulator
from rtl.cluster_array import Array
from rtl.cluster_l1 import Delay, L1Side
from rtl.cluster_lane import Lane
from sim.runner import BenchError

sys.path.insert(0, str(Path(__file__).parent))
from cluster_parts import Lanes, Operands  # noqa: E402
from support.harness import run_bench  # noqa: E402

LANES = ["lane_additions", "lane_conversions", "lane_halves"]
SPEC = ["lane_vectors_of_the_spec"]  # for 14 fraction bits


def run(top, name, tests, simulator="icarus", **environment):
    return run_bench(top, "bench_cluster_parts", name=name, simulator=simulator, tests=tests, **environment)


def test_lanes():
    run(Lanes(mantissa=14), "lanes", [*SPEC, *LANES], simulator="verilator", vectors=250_000)


@pytest.mark.parametrize("mantissa", [10, 11, 12, 13, 15, 16])
def test_lanes_of_every_width(mantissa):
    run(Lanes(mantissa=mantissa), "lanes", LANES, mantissa=mantissa, vectors=6000)


@pytest.mark.slow
@pytest.mark.parametrize("mantissa", range(10, 17))
def test_many_vectors(mantissa):
    run(Lanes(mantissa=mantissa), "lanes", LANES, simulator="verilator", mantissa=mantissa, vectors=1_000_000)


def test_array():
    run(Array(), "array", ["array_sums"], vectors=16_000)


def test_operands():
    run(Operands(), "operands", ["operands_in_both_layouts"])


@pytest.mark.parametrize("mantissa", [10, 14, 16])
def test_accumulator(mantissa):
    run(
        Accumulator(tiles=8, mantissa=mantissa), "accumulator", ["accumulator_commands"], mantissa=mantissa,
        vectors=16_000,
    )  # fmt: skip


@pytest.mark.parametrize("fault, test", list(zip(cluster_lane.FAULTS, LANES)))
def test_the_lanes_find_planted_faults(fault, test):
    """The spec's tables do, and random vectors do."""
    with pytest.raises(BenchError, match=f"failed: {SPEC[0]}, {test}"):
        run(Lanes(mantissa=14, fault=fault), "lanes", [*SPEC, test], vectors=6000)


@pytest.mark.parametrize("fault", cluster_array.FAULTS)
def test_the_array_finds_planted_faults(fault):
    with pytest.raises(BenchError, match="failed: array_sums"):
        run(Array(fault=fault), "array", ["array_sums"], vectors=3000)


@pytest.mark.parametrize("fault", cluster_l1.FAULTS)
def test_the_operands_find_planted_faults(fault):
    with pytest.raises(BenchError, match="failed: operands_in_both_layouts"):
        run(Operands(fault=fault), "operands", ["operands_in_both_layouts"])


@pytest.mark.parametrize("fault", cluster_accumulator.FAULTS.keys() - cluster_lane.FAULTS)
def test_the_accumulator_finds_planted_faults(fault):
    with pytest.raises(BenchError, match="failed: accumulator_commands"):
        run(Accumulator(tiles=8, mantissa=14, fault=fault), "accumulator", ["accumulator_commands"], vectors=6000)


@pytest.mark.parametrize("part, parameters, message", [
    (Lane, {"mantissa": 9}, "Lane mantissa must be an integer from 10 to 16, not 9"),
    (Lane, {"mantissa": 14, "fault": "x"}, "Lane has no fault 'x'; there are: lane-sticky"),
    (Accumulator, {"tiles": 4, "mantissa": 14}, "Accumulator tiles must be a power of two from 8 to 32768, not 4"),
    (L1Side, {"entries": 3, "layout": "A"}, "L1Side entries must be a power of two from 4 to 512, not 3"),
    (L1Side, {"entries": 8, "layout": "C"}, "L1Side layout must be 'A' or 'B', not 'C'"),
    (Delay, {"width": 8, "cycles": 2}, "Delay cycles must be an integer from 3 to 64, not 2"),
])  # fmt: skip
def test_wrong_parameters_are_refused(part, parameters, message):
    with pytest.raises(TypeError, match=message):
        part(**parameters)
