"""The golden cluster cases on the gates, as a checker of golden files wants them."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path

from cluster_scenario import AT, PORT, UNITS
from support.harness import run_bench
from support.top import LinkTop

from kohakutpu.conformance.cluster import CLUSTER, GOLDEN_UNIT
from kohakutpu.conformance.cluster import PORT as GOLDEN_PORT
from kohakutpu.conformance.report import Tally
from kohakutpu.isa.flit import xy
from rtl.cluster import Cluster
from sim.port_checker import Checked


def check_cluster_rtl(path: Path, simulator: str = "verilator", fault: str | None = None) -> list[Tally]:
    """Every case of `cluster.npz` through one simulation: FP16 results, the raw accumulator after each chunk, and the
    cycles of the model. Raises `BenchError` when the simulation itself fails."""
    assert (CLUSTER, GOLDEN_PORT) == (AT, PORT) and UNITS["banked"].items() <= vars(GOLDEN_UNIT).items()
    (x, y), port = xy(AT), xy(PORT)
    top = LinkTop(Checked(Cluster(x=x, y=y, port=port, **UNITS["banked"], fault=fault), node=AT, outstanding=64))
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "tallies"
        run_bench(
            top, "bench_cluster_golden", name="cluster", simulator=simulator, golden=path.resolve(), result=result
        )
        return pickle.loads(result.read_bytes())
