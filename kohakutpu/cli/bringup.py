"""Climb the bring-up ladder on whatever a transport leads to: models, gates or a board. docs/bringup.md.

Exit status: 0 passed, 1 a wrong answer, 2 refused (not this machine, or not to be trusted), 3 no transport, 4 no
answer. The memory's contents are lost.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from kohakutpu.host.bringup import STEPS, Report, Verdict, climb, plan
from kohakutpu.host.bringup.page import line, page
from kohakutpu.host.transports import KINDS, open_transport, prepare
from kohakutpu.machine import load

from .kernel_options import DEFAULT_MACHINE, ArgumentError
from .output import check_outputs, write_atomically

HELP = "the bring-up ladder: link to kernels, a verdict a step"


def arguments(parser: argparse.ArgumentParser) -> None:
    ways = ", ".join(usage for usage, _ in KINDS.values())
    steps = ", ".join(f"{step.number} {step.name}" for step in STEPS)
    parser.add_argument(
        "--transport",
        default="model",
        metavar="T",
        help=f"the way to the machine: {ways} (default model; docs/transports.md)",
    )
    parser.add_argument(
        "--machine", default=DEFAULT_MACHINE, metavar="M", help=f"what should be there (default {DEFAULT_MACHINE})"
    )
    parser.add_argument("--from", dest="first", metavar="STEP", help=f"the first step, by name or number: {steps}")
    parser.add_argument("--until", dest="last", metavar="STEP", help="the last step")
    parser.add_argument("--runs", type=int, default=6, metavar="N", help="repetitions of the last step (default 6)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of random data and operands (default 1)")
    parser.add_argument(
        "--timeout", type=number, metavar="T", help="bound of each wait, in cycles or, on a board, seconds"
    )
    parser.add_argument(
        "--fault", action="append", default=[], metavar="NAME", help="plant a fault in a simulated machine (repeatable)"
    )
    parser.add_argument("--dry-run", action="store_true", help="say which steps would run, and touch nothing")
    parser.add_argument("--report", type=Path, metavar="FILE.json", help="write every verdict and measurement")
    parser.add_argument("--page", type=Path, metavar="FILE.html", help="write the report as a page for people")


def number(text: str) -> int | float:
    """A number as it was written: cycles are whole."""
    return int(text) if text.isdecimal() else float(text)


def dry_run(args: argparse.Namespace, machine) -> int:
    print(f"{machine.name} over {args.transport}: nothing is opened")
    for result in plan(machine, args.first, args.last):
        step = result.step
        print(f"{step.number:2} {step.name:10} {'would not run: ' + result.text if result.text else step.title}")
    return 0


def main(args: argparse.Namespace) -> int:
    machine = load(args.machine)
    if args.runs < 2:
        raise ArgumentError(f"--runs {args.runs}: at least 2, or there is nothing to compare")
    if args.seed < 0:
        raise ArgumentError(f"--seed {args.seed}: a seed is not negative")
    if args.timeout is not None and not args.timeout > 0:
        raise ArgumentError(f"--timeout {args.timeout:g}: expected more than 0")
    check_outputs([path for path in (args.report, args.page) if path])
    prepare(args.transport, machine, faults=args.fault)
    if args.dry_run:
        if args.report or args.page:
            raise ArgumentError("--dry-run has nothing to report: it does not go with --report and --page")
        return dry_run(args, machine)
    results = climb(
        machine, lambda: open_transport(args.transport, machine, faults=args.fault), transport=args.transport,
        first=args.first, last=args.last, runs=args.runs, seed=args.seed, timeout=args.timeout,
    )  # fmt: skip
    report = None
    for result in results:
        if isinstance(result, Report):
            report = result
        elif result.verdict not in (Verdict.NOT_RUN, Verdict.DOES_NOT_APPLY):
            print(line(result), flush=True)
    print(report.summary)
    if args.report:
        write_atomically(args.report, (json.dumps(report.to_dict(), indent=1) + "\n").encode())
    if args.page:
        write_atomically(args.page, page(report).encode())
    return int(report.status)
