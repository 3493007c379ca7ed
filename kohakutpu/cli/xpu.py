"""XPU kernels: what the interpreter makes of them, recorded launches judged by it, and which kernels were checked."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from kohakutpu.conformance.xpu import census, held, replay
from kohakutpu.conformance.xpu.load import LoadError, load
from kohakutpu.reference.xpu import SURVEYED, survey
from kohakutpu.wording import counted

from .output import check_writable, write_atomically

HELP = "survey XPU kernels, replay recorded launches"
COMPARED = ("pass", "fail", "held", "stale")


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text}: seconds, 0 for no limit")
    return value


def _corpus(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", type=Path, metavar="DIR", help="what XPU_RECORD wrote")
    parser.add_argument(
        "--kernels", action="append", metavar="WHERE",
        help="a .py file, a folder of them or a module (repeatable; default: the .py files in DIR)",
    )  # fmt: skip
    parser.add_argument("--held", type=Path, metavar="FILE", help="known disagreements and stated bounds")
    parser.add_argument(
        "--budget", type=_seconds, default=60, metavar="S", help="seconds for a launch (60; 0: no limit)"
    )


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    conform = actions.add_parser("conform", help="replay every recorded launch; writes DIR/conformance.tsv")
    _corpus(conform)
    conform.add_argument(
        "--dump", action="store_true", help="leave the reference's bytes of a failed launch as a<i>.ref"
    )
    conform.set_defaults(act=_conform)
    census = actions.add_parser("census", help="which kernel was compared on which back end")
    _corpus(census)
    census.add_argument("--backend", action="append", required=True, metavar="NAME", help="a back end (repeatable)")
    census.add_argument("--excuses", type=Path, metavar="FILE", help="kernel, back end and plan item, tab separated")
    census.set_defaults(act=_census)
    surveyed = actions.add_parser("survey", help="one line a kernel: RUNS, or REFUSED with the first reason")
    surveyed.add_argument("where", nargs="+", metavar="WHERE", help="a .py file, a folder of them or a module")
    surveyed.set_defaults(act=_survey)


def main(args: argparse.Namespace) -> int:
    return args.act(args)


def _judged(args: argparse.Namespace, dump: bool) -> tuple[list, list[replay.Judgement], held.HeldList]:
    listed = held.load(args.held) if args.held else held.HeldList()
    if not args.directory.is_dir():
        raise replay.ConformanceError(f"{args.directory}: a directory of recorded launches is expected")
    if not args.kernels and not any(args.directory.glob("*.py")):
        raise LoadError(f"{args.directory} holds no .py file: --kernels says where the kernels are")
    kernels = load(args.kernels or [str(args.directory)])

    def progress(one: replay.Judgement) -> None:
        print(f"{one.launch} ({one.backend}): {one.outcome}", file=sys.stderr)

    judged = replay.conform(args.directory, kernels, listed, args.budget, dump, progress)
    for number in listed.ignored:
        print(f"note: {args.held}:{number} has fewer than three fields and says nothing", file=sys.stderr)
    for entry in listed.entries:
        if not any(one.kernel == entry.kernel and entry.backend in (one.backend, "*") for one in judged):
            print(f"note: {args.held}:{entry.line}: no launch of {entry.kernel} was recorded", file=sys.stderr)
    for stray in replay.recordings(args.directory)[1]:
        if stray.name != "__pycache__":
            print(f"note: {stray} is no recorded launch", file=sys.stderr)
    return kernels, judged, listed


def _conform(args: argparse.Namespace) -> int:
    output = args.directory / "conformance.tsv"
    if args.directory.is_dir():
        check_writable(output)
    _, judged, _ = _judged(args, args.dump)
    write_atomically(output, replay.table(judged).encode())
    for one in judged:
        if one.outcome != "pass":
            print(f"{one.launch} ({one.backend}): {one.outcome}: {one.detail}")
    counts = Counter(one.outcome for one in judged)
    words = ", ".join(f"{counts[word]} {word}" for word in replay.OUTCOMES if counts[word])
    print(f"kohakutpu: conformance: {counted(len(judged), 'launch', plural='launches')}: {words}")
    if not any(counts[word] for word in COMPARED):
        print("kohakutpu: conformance: nothing was compared")
        return 1
    return int(any(one.fails for one in judged))


def _census(args: argparse.Namespace) -> int:
    excused = census.load_excuses(args.excuses) if args.excuses else {}
    kernels, judged, _ = _judged(args, False)
    lines = census.census(kernels, args.backend, judged, excused)
    print(census.table(lines), end="")
    failing = [one for one in lines if one.fails]
    print(f"{counted(len(lines), 'line')}, {len(failing)} neither checked nor excused", file=sys.stderr)
    return int(bool(failing))


def _survey(args: argparse.Namespace) -> int:
    kernels = load(args.where)
    print(SURVEYED)
    for kernel in kernels:
        print(survey(kernel))
    return 0
