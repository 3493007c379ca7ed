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
from dataclasses import dataclass, field
from pathlib import Path

from products import CHOSEN, Product
from rich.console import Console
from rich.table import Table

PEAK = 512  # multiply-accumulates a cycle and cluster


@dataclass(frozen=True)
class Case(Product):
    """A product; shares of the peak: `target`, and what the published hardware reached."""

    target: float = field(kw_only=True)
    published: float = field(kw_only=True)


CASES = [
    Case("2x2", 256, 256, 256, preq=True, target=0.90, published=0.876),
    Case("2x4", 256, 256, 1024, preq=True, target=0.80, published=0.679),
    Case("2x4", 512, 256, 1024, preq=True, target=0.85, published=0.755),
    Case("2x2", 256, 256, 256, preq=False, target=0.75, published=0.665),
]


def measure(case: Case) -> dict:
    """Cycles and share of the peak of one case, and whether the result is the interpreter's."""
    artifact = case.compiled(CHOSEN)
    row = case.run(artifact)
    share = case.m * case.k * case.n / (PEAK * row["clusters"] * row["cycles"])
    return row | {"flits": artifact.flit_count, "share": share, "target": case.target, "published": case.published}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only the cases on two clusters")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    cases = [case for case in CASES if case.machine == "2x2"] if args.quick else CASES
    rows = [measure(case) for case in cases]
    console = Console(width=None if Console().is_terminal else 130)
    columns = (
        "clusters", "M x K x N", "operands", "tile", "flits", "cycles", "% of peak", "target", "published", "bytes",
    )  # fmt: skip
    table = Table(*columns, box=None)
    for row in rows:
        table.add_row(
            str(row["clusters"]), row["shape"], row["operands"], row["tile"], str(row["flits"]), f"{row['cycles']:,}",
            f"{100 * row['share']:.1f}", f"{100 * row['target']:.0f}", f"{100 * row['published']:.1f}",
            "equal" if row["byte_equal"] else "DIFFER",
        )  # fmt: skip
    console.print(table)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if all(row["share"] >= row["target"] and row["byte_equal"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
