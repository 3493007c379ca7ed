"""Cycles of products whose result has few tiles, K whole and K in parts on several clusters; cycle model.

    python benchmarks/ksplit.py [--quick] [--json FILE]

Each case is the library's matmul with the compiler's own tiles, once as it is and once with `ksplit="auto"`; then one
tile on one cluster and in every number of parts. Predicted beside simulated cycles; every word of a result is compared
with the interpreter. The command fails where a byte differs, or where K in parts was chosen and is slower.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from products import CHOSEN, Product
from rich.console import Console
from rich.table import Table

from kohakutpu.compiler import AUTO, CompileError
from kohakutpu.compiler.predict import predict
from kohakutpu.machine import load

CASES = [
    Product("ship_3x2", 32, 1024, 32), Product("2x4", 32, 1024, 32), Product("2x4", 16, 4096, 16),
    Product("2x4", 64, 2048, 128),
    Product("ship_3x2", 16, 4096, 64), Product("ship_3x2", 64, 1024, 64), Product("2x4", 32, 1024, 32, preq=True),
    Product("2x4", 32, 8192, 32, preq=True),
]  # fmt: skip
ONE_TILE = {"gm": 8, "gn": 8, "nk": 4}  # of CASES[:2]


def measure(case: Product, ksplit: int | str, knobs: dict = CHOSEN) -> dict | None:
    """Cycles of one case, and whether the result is the interpreter's; None where the machine has too few clusters."""
    try:
        artifact = case.compiled(knobs, ksplit=ksplit)
    except CompileError:
        return None
    predicted = predict(artifact, load(case.machine)).cycles
    return case.run(artifact) | {"parts": artifact.knobs.get("ksplit", 1), "predicted": predicted}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only the first two cases")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    rows = []
    for case in CASES[:2] if args.quick else CASES:
        rows += [measure(case, 1), measure(case, AUTO)]
    slower = [
        cut
        for whole, cut in zip(rows[::2], rows[1::2], strict=True)
        if cut["parts"] > 1 and cut["cycles"] >= whole["cycles"]
    ]
    for case in [] if args.quick else CASES[:2]:
        rows += [row for parts in range(1, 9) if (row := measure(case, parts, ONE_TILE)) is not None]
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
