# amaranth: UnusedElaboratable=no
"""The matmul cluster in gates: equal to the model in every cycle of random lives, and every planted fault found."""

import sys
from pathlib import Path

import pytest

from kohakutpu.isa.flit import xy
from rtl.cluster import FAULTS, Cluster
from sim.port_checker import Checked
from sim.runner import BenchError

sys.path.insert(0, str(Path(__file__).parent))
from cluster_golden import check_cluster_rtl  # noqa: E402
from cluster_scenario import AT, PORT, UNITS  # noqa: E402
from support.harness import run_bench  # noqa: E402
from support.top import LinkTop  # noqa: E402

SAMPLE = Path(__file__).parents[1] / "data" / "golden" / "cluster.npz"
LIVES, RESETS, CONFORMS = "lives_like_the_model", "resets_in_mid_flight", "conforms"
# What its own bench finds (test_cluster_parts): a life rarely meets the case, or anything would do.
PARTS = {
    "l1-layout", "l1-scales", "l1-transparent", "array-borrow", "lane-sticky", "lane-tie", "lane-saturate",
    "accumulator-reuse",
}  # fmt: skip
BANKS = {"cluster-bank-stuck", "sweep-offset"}  # nothing to see where a side has no second bank


def cluster(sizes="small", **parameters):
    (x, y), port = xy(AT), xy(PORT)
    return Cluster(**{"x": x, "y": y, "port": port, **UNITS[sizes], **parameters})


def run(*tests, sizes="small", simulator="verilator", fault=None, **environment):
    top = LinkTop(Checked(cluster(sizes, fault=fault), node=AT, outstanding=64))
    return run_bench(top, "bench_cluster", name="cluster", simulator=simulator, tests=tests, sizes=sizes, **environment)


def seeds(count):
    return ",".join(map(str, range(1, count + 1)))


def test_cluster():
    run(LIVES, RESETS, CONFORMS, seeds=seeds(8))


def test_cluster_on_icarus():
    run(LIVES, simulator="icarus", seeds="9", length=60)


@pytest.mark.parametrize("sizes", ["banked", "narrow", "wide"])
def test_other_sizes(sizes):
    """Two banks and the shipped depths; the smallest of everything with 10 and with 16 fraction bits."""
    run(LIVES, sizes=sizes, simulator="icarus", seeds="1,2", length=50)


@pytest.mark.slow
@pytest.mark.parametrize("sizes, count", [("small", 200), ("banked", 60), ("narrow", 60), ("wide", 60)])
def test_many_lives(sizes, count):
    (
        run(LIVES, RESETS, sizes=sizes, seeds=seeds(count))
        if sizes == "small"
        else run(LIVES, sizes=sizes, seeds=seeds(count))
    )


@pytest.mark.parametrize("fault", sorted(FAULTS.keys() - PARTS))
def test_every_planted_fault_is_found(fault):
    sizes = "wide" if fault in BANKS else "small"
    with pytest.raises(BenchError, match=f"failed: {LIVES}"):
        run(LIVES, sizes=sizes, simulator="icarus", fault=fault, seeds=seeds(3), length=60)


def test_golden_cases():
    """A sample; `tests/sysnode/test_rtl_golden.py` has them all."""
    for tally in check_cluster_rtl(SAMPLE, "icarus"):
        assert tally.ok, tally.first


def test_golden_cases_find_a_planted_fault():
    fp16, raw, cycles = check_cluster_rtl(SAMPLE, "icarus", fault="lane-tie")
    assert raw.mismatched and "after chunk" in raw.first and cycles.mismatched


@pytest.mark.parametrize("parameters, message", [
    ({"tiles": 4}, "Cluster tiles must be a power of two from 8 to 32768, not 4"),
    ({"tiles": 24}, "tiles must be a power of two from 8 to 32768, not 24"),
    ({"a_entries": 1024}, "Cluster a_entries must be a power of two from 4 to 512, not 1024"),
    ({"b_entries": 2}, "b_entries must be a power of two from 4 to 512, not 2"),
    ({"mantissa": 9}, "Cluster mantissa must be an integer from 10 to 16, not 9"),
    ({"mantissa": 17}, "not 17"),
    ({"inst_depth": 0}, "Cluster inst_depth must be a positive integer, not 0"),
    ({"recv_depth": "8"}, "recv_depth must be a positive integer, not '8'"),
    ({"fault": "sticky"}, "Cluster has no fault 'sticky'; there are: cluster-bank-stuck"),
])  # fmt: skip
def test_wrong_parameters_are_refused(parameters, message):
    with pytest.raises(TypeError, match=message):
        cluster(**parameters)
