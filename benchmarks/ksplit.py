"""Cycles of products whose result has few tiles, K whole and K in parts on several clusters; cycle model.

    python benchmarks/ksplit.py [--quick] [--json FILE]

Each case is the library's matmul with the compiler's own tiles, once as it is and once with `ksplit="auto"`; then one tile
on one cluster and in every number of parts. Predicted beside simulated cycles; every word of a result is compared with
the interpreter. The command fails where a byte differs, or where K in parts was chosen and is slower.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kohakutpu.compiler import AUTO, CompileError, Options, compile_kernel
from kohakutpu.compiler.predict import predict
from kohakutpu.host.compare import compare
from kohakutpu.host.simulate import random_operands, run_model, run_reference
from kohakutpu.kernels.linear import matmul
from kohakutpu.machine import load

CHOSEN = dict.fromkeys(("gm", "gn", "nk"), AUTO)


@dataclass(frozen=True)
class Case:
    """C[M,N] = A[M,K] @ B[N,K].T; `tile` is None where the compiler chooses."""

    machine: str
    m: int
    k: int
    n: int
    preq: bool = False
    tile: tuple[int, int, int] | None = None


CASES = [
    Case("ship_3x2", 32, 1024, 32), Case("2x4", 32, 1024, 32), Case("2x4", 16, 4096, 16), Case("2x4", 64, 2048, 128),
    Case("ship_3x2", 16, 4096, 64), Case("ship_3x2", 64, 1024, 64), Case("2x4", 32, 1024, 32, preq=True),
    Case("2x4", 32, 8192, 32, preq=True),
]  # fmt: skip
ONE_TILE = [Case("ship_3x2", 32, 1024, 32, tile=(8, 8, 4)), Case("2x4", 32, 1024, 32, tile=(8, 8, 4))]


def measure(case: Case, ksplit: int | str) -> dict | None:
    """Cycles of one case, and whether the result is the interpreter's; None where the machine has too few clusters."""
    machine = load(case.machine)
    shapes = {"a": (case.m, case.k), "b": (case.n, case.k)}
    options = Options(preq=("a", "b") if case.preq else (), ksplit=ksplit)
    knobs = dict(zip(CHOSEN, case.tile, strict=True)) if case.tile else CHOSEN
    try:
        artifact = compile_kernel(matmul, machine, shapes, knobs, options)
    except CompileError:
        return None
    operands = random_operands(shapes, 0)
    result = run_model(artifact, machine, operands)
    image = run_reference(matmul, artifact.knobs, operands, machine)
    return {
        "machine": case.machine, "clusters": len(machine.clusters), "shape": f"{case.m}x{case.k}x{case.n}",
        "operands": "MXFP7" if case.preq else "FP16", "tile": "{gm}x{gn}x{nk}".format(**artifact.knobs),
        "parts": artifact.knobs.get("ksplit", 1), "predicted": predict(artifact, machine).cycles, "cycles": result.cycles,
        "byte_equal": all(row.equal for row in compare(artifact, image.outputs, result.run.outputs)),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only the first two cases")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    rows = []
    for case in CASES[:2] if args.quick else CASES:
        rows += [measure(case, 1), measure(case, AUTO)]
    slower = [cut for whole, cut in zip(rows[::2], rows[1::2], strict=True) if cut["parts"] > 1 and cut["cycles"] >= whole["cycles"]]
    for case in [] if args.quick else ONE_TILE:
        rows += [row for parts in range(1, 9) if (row := measure(case, parts)) is not None]
    console = Console(width=None if Console().is_terminal else 130)
    table = Table("clusters", "M x K x N", "operands", "tile", "parts of K", "predicted", "cycles", "bytes", box=None)
    for row in rows:
        table.add_row(
            f"{row['clusters']} ({row['machine']})", row["shape"], row["operands"], row["tile"], str(row["parts"]),
            f"{row['predicted']:,}", f"{row['cycles']:,}", "equal" if row["byte_equal"] else "DIFFER",
        )  # fmt: skip
    console.print(table)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if not slower and all(row["byte_equal"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
