"""Which golden file is driven through which gates: block benches of `tests/rtl`, and replays on the whole machine."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

from kohakutpu.conformance.report import Tally

from . import golden_mesh
from .runner import BenchError
from .toolchain import ROOT

BENCHES = ROOT / "tests" / "rtl"
# Files that say nothing about gates, and why.
NOT_FOR_GATES = {
    "vector_core_published.npz": "recorded with every erratum of the published core in force: for the models",
    "flits/linear_silu_fused.txt": "an encoding reference: nothing for gates to do",
    "flits/linear_silu_staged.txt": "an encoding reference: nothing for gates to do",
}


def _benches(module: str):
    """A test module of `tests/rtl`, for its `run`."""
    if str(BENCHES) not in sys.path:
        sys.path.insert(0, str(BENCHES))
    return importlib.import_module(module)


def _verdict(path: Path, what: str, unit: str, count: int, bench: Callable[[], object]) -> list[Tally]:
    """`count` things of a file that a block bench compares one by one; it fails at the first difference."""
    tally = Tally(path.name, what, unit, compared=count)
    try:
        bench()
    except BenchError as error:
        tally.differ(1, str(error))
    return [tally]


def _rows(path: Path, wanted: Callable[[str], bool]) -> int:
    with np.load(path) as data:
        return sum(len(data[name]) for name in data.files if wanted(name))


def quantiser(path: Path, simulator: str) -> list[Tally]:
    count = 2 * _rows(path, lambda name: name == "fp16")
    bench = _benches("test_quantiser")
    return _verdict(path, "converter, both layouts", "entries", count, lambda: bench.run(simulator, golden=path.resolve()))


@cache
def _alu_bench(folder: Path, simulator: str, wrap: bool) -> str:
    """What the ALU bench says about both ALU files of a folder: nothing, or the first difference."""
    try:
        _benches("test_vector_units").run(folder, simulator, tests=["alu_gives_what_was_recorded"], exp2_wrap=wrap)
    except BenchError as error:
        return str(error)
    return ""


def alu(path: Path, simulator: str) -> list[Tally]:
    wrap = path.name == "errata_exp2_wrap.npz"
    tally = Tally(path.name, "ALU of a lane" + (", published exp2" if wrap else ""), "results")
    tally.compared = _rows(path, lambda name: name.endswith("_out"))
    difference = _alu_bench(path.parent.resolve(), simulator, wrap)
    tally.differ(int(bool(difference)), difference)
    return [tally]


def conversions(path: Path, simulator: str) -> list[Tally]:
    count = _rows(path, lambda name: "_to_" in name)
    bench = _benches("test_vector_units")
    return _verdict(
        path, "conversions", "words", count, lambda: bench.run(path.parent.resolve(), simulator, tests=["conversions"])
    )


def vector_core(path: Path, simulator: str) -> list[Tally]:
    with np.load(path) as data:
        count = int(data["n_programs"])
    bench = _benches("test_vector")
    return _verdict(path, "recorded kernels, exp2 as published", "programs", count, lambda: bench.run(
        "bench_vector_golden", "recorded_kernels", simulator, planted=True, golden=path.resolve()))  # fmt: skip


def cluster(path: Path, simulator: str) -> list[Tally]:
    return _benches("cluster_golden").check_cluster_rtl(path, simulator)


CHECKS: dict[str, Callable[[Path, str], list[Tally]]] = {
    "mx_quant.npz": quantiser,
    "vec_alu.npz": alu,
    "vec_alu_extra.npz": alu,
    "vec_cvt.npz": conversions,
    "errata_exp2_wrap.npz": alu,
    "cluster.npz": cluster,
    "vector_core.npz": vector_core,
    "mesh.npz": lambda path, simulator: golden_mesh.check_mesh(path, simulator=simulator),
    "mesh_links.npz": lambda path, simulator: golden_mesh.check_mesh_links(path, simulator=simulator),
}
