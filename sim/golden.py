"""Which golden file is driven through which gates: block benches of `tests/rtl`, and replays on the whole machine."""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from collections.abc import Callable
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


def _counted(path: Path, what: str, run: Callable[..., object], /, **options: object) -> list[Tally]:
    """What `run(result=...)` says it compared, one by one: a row for each kind. It fails at the first difference."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "counts"
        try:
            run(result=result, **options)
        except BenchError as error:
            failed = Tally(path.name, what, "benches", compared=1)
            failed.differ(1, str(error))
            return [failed]
        counts = json.loads(result.read_text())
    return [Tally(path.name, what, kind.replace("_", " "), compared=count) for kind, count in counts.items()]


def quantiser(path: Path, simulator: str) -> list[Tally]:
    with np.load(path) as data:
        tally = Tally(path.name, "converter, both layouts", "entries", compared=2 * len(data["fp16"]))
    try:
        _benches("test_quantiser").run(simulator, golden=path.resolve())
    except BenchError as error:
        tally.differ(1, str(error))
    return [tally]


def alu(path: Path, simulator: str) -> list[Tally]:
    wrap = path.name == "errata_exp2_wrap.npz"
    what = "ALU of a lane" + (", published exp2" if wrap else "")
    return _counted(path, what, _benches("test_vector_units").run, golden=path.parent.resolve(), simulator=simulator,
                    tests=["alu_gives_what_was_recorded"], exp2_wrap=wrap, files=[path.name])  # fmt: skip


def conversions(path: Path, simulator: str) -> list[Tally]:
    return _counted(path, "conversions", _benches("test_vector_units").run, golden=path.parent.resolve(),
                    simulator=simulator, tests=["conversions"])  # fmt: skip


def vector_core(path: Path, simulator: str) -> list[Tally]:
    return _counted(path, "recorded kernels, exp2 as published", _benches("test_vector").run,
                    bench="bench_vector_golden", test="recorded_kernels", simulator=simulator, planted=True, golden=path.resolve())  # fmt: skip


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
