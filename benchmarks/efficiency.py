"""Multiply-accumulates a cycle and cluster on ship-sized machines, cycle model, memory latency as the machines have it.

    python benchmarks/efficiency.py [--quick] [--json FILE]

Each case is the library's matmul with the compiler's own tiles, from the first staged flit to the last word in memory,
every word of the result compared with the interpreter. A cluster's peak is 512 multiply-accumulates a cycle. The
command fails where a case stays below its target.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from kohakutpu.compiler import Options, compile_kernel
from kohakutpu.host.compare import compare
from kohakutpu.host.simulate import run_model, run_reference
from kohakutpu.kernels.linear import matmul
from kohakutpu.machine import load

PEAK = 512  # multiply-accumulates a cycle and cluster


@dataclass(frozen=True)
class Case:
    """C[M,N] = A[M,K] @ B[N,K].T; `published` is the share of the peak that the published hardware reached."""

    machine: str
    m: int
    k: int
    n: int
    preq: bool
    target: float
    published: float


CASES = [
    Case("2x2", 256, 256, 256, True, 0.90, 0.876),
    Case("2x4", 256, 256, 1024, True, 0.80, 0.679),
    Case("2x4", 512, 256, 1024, True, 0.85, 0.755),
    Case("2x2", 256, 256, 256, False, 0.75, 0.665),
]


def measure(case: Case, *, check: bool = True) -> dict:
    """Cycles and share of the peak of one case, and whether the result is the interpreter's."""
    machine = load(case.machine)
    shapes = {"a": (case.m, case.k), "b": (case.n, case.k)}
    options = Options(preq=("a", "b") if case.preq else ())
    artifact = compile_kernel(matmul, machine, shapes, {"gm": "auto", "gn": "auto", "nk": "auto"}, options)
    random = np.random.default_rng(0)
    operands = {name: random.normal(0, 0.3, shape).astype(np.float16) for name, shape in shapes.items()}
    begin = time.perf_counter()
    result = run_model(artifact, machine, operands)
    seconds = time.perf_counter() - begin
    equal = None
    if check:
        image = run_reference(matmul, artifact.knobs, operands, machine)
        equal = all(row.equal for row in compare(artifact, image.outputs, result.run.outputs))
    share = case.m * case.k * case.n / (PEAK * len(machine.clusters) * result.cycles)
    tiles = "{gm}x{gn}x{nk}".format(**artifact.knobs)
    return {
        "machine": case.machine, "clusters": len(machine.clusters), "shape": f"{case.m}x{case.k}x{case.n}",
        "operands": "MXFP7 in memory" if case.preq else "FP16, quantised on the way", "tiles": tiles,
        "flits": artifact.flit_count, "cycles": result.cycles, "share": share, "target": case.target,
        "published": case.published, "byte_equal": equal, "seconds": seconds,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only the cases on two clusters")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    cases = [case for case in CASES if case.machine == "2x2"] if args.quick else CASES
    rows = [measure(case) for case in cases]
    console = Console(width=None if Console().is_terminal else 130)
    columns = ("clusters", "M x K x N", "operands", "tile", "flits", "cycles", "% of peak", "target", "published", "bytes")
    table = Table(*columns, box=None)
    for row in rows:
        table.add_row(
            str(row["clusters"]), row["shape"], row["operands"], row["tiles"], str(row["flits"]), f"{row['cycles']:,}",
            f"{100 * row['share']:.1f}", f"{100 * row['target']:.0f}", f"{100 * row['published']:.1f}",
            "equal" if row["byte_equal"] else "DIFFER",
        )  # fmt: skip
    console.print(table)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if all(row["share"] >= row["target"] and row["byte_equal"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
