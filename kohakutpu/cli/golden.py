"""Check every golden file of a directory against formats, unit models and the whole machine."""

from __future__ import annotations

import argparse
import json
import time
from contextlib import nullcontext
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kohakutpu.conformance.cycles import rows_of
from kohakutpu.conformance.cycles import table as table_of_cycles
from kohakutpu.conformance.registry import CHECKS, GoldenError, survey

from .output import check_writable, write_atomically

HELP = "check golden vectors and recordings"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", type=Path, metavar="DIR", help="directory of golden files")
    parser.add_argument("--only", action="append", metavar="FILE", help="check only this file (repeatable)")
    parser.add_argument("--cycles", type=Path, metavar="OUT", help="write the table of cycles, published and ours (.md or .json)")


def main(args: argparse.Namespace) -> int:
    if args.cycles:
        check_writable(args.cycles)
    known, unknown = survey(args.directory)
    if args.only:
        known = [name for name in known if name in args.only]
        if not known:
            raise GoldenError(f"--only {', '.join(args.only)}: no such golden file in {args.directory}")
    console = Console(width=None if Console().is_terminal else 140)
    table = Table("file", "what", "compared", "different", "left out", "seconds", box=None)
    tallies, rows = [], []
    for name in known:
        with console.status(f"{name} ...") if console.is_terminal else nullcontext():
            start = time.perf_counter()
            found = CHECKS[name](args.directory / name)
            spent = time.perf_counter() - start
        for index, tally in enumerate(found):
            left = ", ".join(f"{count} {erratum}" for erratum, count in tally.left_out.items())
            table.add_row(
                name if index == 0 else "", tally.what, f"{tally.compared:,} {tally.unit}",
                f"{tally.mismatched:,}", left, f"{spent:.1f}" if index == 0 else "",
            )  # fmt: skip
        rows += rows_of(name, found)
        tallies += found
    console.print(table)
    for tally in tallies:
        if not tally.ok:
            console.print(f"{tally.file}: {tally.what}: {tally.first or 'nothing was compared'}", style="bold", soft_wrap=True)
    for name in unknown:
        console.print(f"{name}: not a known golden file, not checked")
    compared = sum(tally.compared for tally in tallies)
    wrong = sum(tally.mismatched for tally in tallies)
    slower = sum(ours > theirs for _, _, theirs, ours in rows)
    if rows:
        console.print(f"{len(rows)} cycle counts beside the published hardware's, {slower} above it")
    if args.cycles:
        text = json.dumps(rows, indent=1) if args.cycles.suffix == ".json" else table_of_cycles(rows)
        write_atomically(args.cycles, text.encode())
    failed = [tally for tally in tallies if not tally.ok]
    console.print(f"{len(known)} files, {compared:,} compared, {wrong:,} different")
    return 1 if failed else 0

