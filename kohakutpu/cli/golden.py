"""Check every golden file of a directory against formats, unit models and the whole machine."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kohakutpu.conformance.cycles import rows_of
from kohakutpu.conformance.cycles import table as table_of_cycles
from kohakutpu.conformance.registry import CHECKS, GoldenError, survey
from kohakutpu.conformance.report import Tally
from kohakutpu.wording import counted

from .gates import SIMULATORS, gates
from .output import check_writable, write_atomically

ENGINES = ("model", "rtl")
NO_BENCH = "the gates have no bench for it"
HELP = "check golden vectors and recordings"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", type=Path, metavar="DIR", help="directory of golden files")
    parser.add_argument(
        "--engine", choices=ENGINES, default=ENGINES[0], help="what is checked: formats and models, or gates"
    )
    parser.add_argument(
        "--simulator", choices=SIMULATORS, default=SIMULATORS[0], help=f"of the gates (default {SIMULATORS[0]})"
    )
    parser.add_argument("--only", action="append", metavar="FILE", help="check only this file (repeatable)")
    parser.add_argument(
        "--cycles", type=Path, metavar="OUT", help="write the table of cycles, published and ours (.md or .json)"
    )


def checks_of(args: argparse.Namespace) -> tuple[dict[str, Callable[[Path], list[Tally]]], dict[str, str]]:
    """(check by file, why there is none by file) for the engine that was asked for."""
    if args.engine == "model":
        return CHECKS, {}
    golden = gates("sim.golden")
    checks = {name: partial(check, simulator=args.simulator) for name, check in golden.CHECKS.items()}
    reasons = {name: golden.NOT_FOR_GATES.get(name, NO_BENCH) for name in CHECKS.keys() - checks.keys()}
    return checks, reasons


def unserved(known: list[str], without: dict[str, str]) -> list[str]:
    """Files that nothing checks although something should."""
    return [name for name in known if without.get(name) == NO_BENCH]


def main(args: argparse.Namespace) -> int:
    if args.cycles:
        check_writable(args.cycles)
    known, unknown = survey(args.directory)
    if args.only:
        known = [name for name in known if name in args.only]
        if not known:
            raise GoldenError(f"--only {', '.join(args.only)}: no such golden file in {args.directory}")
    checks, without = checks_of(args)
    if args.only and not checks.keys() & set(known):
        raise GoldenError("; ".join(f"{name}: {without[name]}" for name in known))
    console = Console(width=None if Console().is_terminal else 140)
    table = Table("file", "what", "compared", "different", "left out", "seconds", box=None)
    tallies, rows = [], []
    for name in [name for name in known if name in checks]:
        with console.status(f"{name} ...") if console.is_terminal else nullcontext():
            start = time.perf_counter()
            found = checks[name](args.directory / name)
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
            text = f"{tally.file}: {tally.what}: {tally.first or 'nothing was compared'}"
            console.print(text, style="bold", soft_wrap=True, markup=False)
    for name in sorted(without.keys() & set(known)):
        console.print(f"{name}: not checked: {without[name]}")
    for name in unknown:
        console.print(f"{name}: not a known golden file, not checked")
    compared = sum(tally.compared for tally in tallies)
    wrong = sum(tally.mismatched for tally in tallies)
    slower = sum(ours > theirs for _, _, theirs, ours in rows)
    if rows:
        console.print(f"{counted(len(rows), 'cycle count')} beside the published hardware's, {slower} above it")
    if args.cycles:
        text = json.dumps(rows, indent=1) if args.cycles.suffix == ".json" else table_of_cycles(rows)
        write_atomically(args.cycles, text.encode())
    failed = [tally for tally in tallies if not tally.ok]
    console.print(f"{counted(len(checks.keys() & set(known)), 'file')}, {compared:,} compared, {wrong:,} different")
    return 1 if failed or unserved(known, without) else 0
