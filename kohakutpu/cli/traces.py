"""Traces on the command line: what `view` and `report` share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from kohakutpu.noc.trace import Trace
from kohakutpu.view.measure import Measures, measure
from kohakutpu.view.survey import Survey

from .kernel_options import ArgumentError


def trace_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "traces", nargs="+", metavar="[NAME=]TRACE", help="written by run --trace; its name is the file's otherwise"
    )
    parser.add_argument(
        "--from",
        type=int,
        dest="first",
        metavar="CYCLE",
        help="the first cycle to look at (default: of the first flit)",
    )
    parser.add_argument(
        "--to", type=int, dest="end", metavar="CYCLE", help="the cycle after the last (default: after the last flit)"
    )


def measures_of(args: argparse.Namespace, bins: Callable[[Survey, int], int] | None = None) -> list[Measures]:
    """Every trace that is named, measured. Refuses two of one name, and what `Trace`, `Survey` and `measure` refuse."""
    named: dict[str, Path] = {}
    for item in args.traces:
        name, _, path = item.rpartition("=")
        if Path(item).exists():
            name, path = "", item
        name = name or Path(path).name.split(".")[0]
        if name in named:
            raise ArgumentError(
                f"two traces are called {name}: {named[name]} and {path}; give one a name (other={path})"
            )
        named[name] = Path(path)
    surveys = {name: Survey(Trace(path)) for name, path in named.items()}
    return [
        measure(
            survey, title=name, window=(args.first, args.end),
            most_bins=bins(survey, len(surveys)) if bins else 1,
        )
        for name, survey in surveys.items()
    ]  # fmt: skip
