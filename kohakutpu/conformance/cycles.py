"""The table of cycles: every recorded program and case of the published hardware, and ours beside it."""

from __future__ import annotations

from pathlib import Path

from .registry import CHECKS
from .report import Tally

Row = tuple[str, str, int, int]
HEADING = """# Cycles beside the published hardware

Made by `kohakutpu golden DIR --cycles docs/cycles.md` from the full set of recordings; a test holds it to what the
models do. Published cycles were recorded on the published gates; ours are the cycle models'. No row is slower.

* `cluster.npz`: GEMM, sweep, drain and send of each case, from the start of the instruction until the unit is free.
* `vector_core.npz`, `vector_core_published.npz`: kernel cycles of each program.
* `mesh.npz`: for each wait of the bench, from the first flit injected before it to the last arrival it waits for.

"""


def rows_of(name: str, tallies: list[Tally]) -> list[Row]:
    """(file, case, published, ours) of one file's tallies."""
    return [(name, *row) for tally in tallies for row in tally.cycles]


def table(rows: list[Row]) -> str:
    """The page: a summary by file, then every row."""
    lines = [HEADING + "| file | rows | ours / published, least | median | greatest |", "|---|---:|---:|---:|---:|"]
    for name in dict.fromkeys(row[0] for row in rows):
        ratios = sorted(ours / theirs for file, _, theirs, ours in rows if file == name)
        lines.append(
            f"| {name} | {len(ratios)} | {ratios[0]:.2f} | {ratios[len(ratios) // 2]:.2f} | {ratios[-1]:.2f} |"
        )
    lines += ["", "| file | case | published | ours | ours / published |", "|---|---|---:|---:|---:|"]
    lines += [f"| {file} | {case} | {theirs} | {ours} | {ours / theirs:.2f} |" for file, case, theirs, ours in rows]
    return "\n".join(lines) + "\n"


def measure(folder: Path) -> list[Row]:
    """Every row of the golden files in `folder`."""
    return [
        row for name, check in CHECKS.items() if (folder / name).exists() for row in rows_of(name, check(folder / name))
    ]
