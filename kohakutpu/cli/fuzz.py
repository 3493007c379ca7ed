"""Play random legal programs on a machine's models, or its gates beside them, and count what they cover.

Exit status: 0 nothing differs, 1 something does (a minimal reproducer is saved), 2 refused.
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from rich.console import Console

from kohakutpu.fuzz.campaign import BATCH, Campaign, check_machine
from kohakutpu.fuzz.coverage import Coverage
from kohakutpu.fuzz.program import ProgramError, from_text, to_text
from kohakutpu.fuzz.report import print_coverage
from kohakutpu.machine import load
from kohakutpu.wording import counted

from .gates import SIMULATORS, gates
from .output import check_outputs, write_atomically

HELP = "random legal programs: models, gates, coverage"
ENGINES = ("model", "rtl")
GATE_TRIES = 100  # each starts a simulator


class FuzzError(ValueError):
    """Arguments that do not go together: says which."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--machine", metavar="M", help="machine, by name or file (default mm_mesh)")
    parser.add_argument("--programs", type=int, metavar="N", help="how many (default 200)")
    parser.add_argument(
        "--start", type=int, default=0, metavar="N", help=f"of a seed's programs, begin with N, a multiple of {BATCH}"
    )
    parser.add_argument("--seed", type=int, default=0, help="which ones (default 0)")
    parser.add_argument(
        "--engine", choices=ENGINES, default="model", help="models against the oracle, or gates against models too"
    )
    parser.add_argument(
        "--simulator", choices=SIMULATORS, default=SIMULATORS[0], help=f"of the gates (default {SIMULATORS[0]})"
    )
    parser.add_argument(
        "--fault", action="append", default=[], metavar="NAME", help="plant a fault in the models (repeatable)"
    )
    parser.add_argument(
        "--gate-fault", metavar="UNIT=NAME", help="plant a fault in the gates of one endpoint or router"
    )
    parser.add_argument("--coverage", type=Path, metavar="FILE", help="write functional coverage as JSON")
    parser.add_argument("--bins", action="store_true", help="name every bin that was not hit, or is left out")
    parser.add_argument(
        "--merge", type=Path, nargs="+", default=[], metavar="FILE", help="add the coverage of earlier runs"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("."), metavar="DIR", help="where a reproducer goes (default here)"
    )
    parser.add_argument("--replay", type=Path, metavar="FILE", help="play a saved file of programs instead")


def _coverage_only(args: argparse.Namespace) -> bool:
    """`--programs 0`: nothing but a merge."""
    return args.programs == 0


def main(args: argparse.Namespace) -> int:
    console = Console(width=None if Console().is_terminal else 120)
    for name in ("seed", "programs", "start"):
        if (given := getattr(args, name)) is not None and given < 0:
            raise FuzzError(f"--{name} {given}: a number from 0 on is expected")
    if args.start % BATCH:
        raise FuzzError(
            f"--start {args.start}: {BATCH} programs share a machine, and the first of them is a multiple of {BATCH}, "
            f"such as {args.start - args.start % BATCH}"
        )
    if _coverage_only(args) and not args.merge:
        raise FuzzError("--programs 0 is for adding coverage files: there is no --merge")
    if args.replay and (args.programs is not None or args.start):
        raise FuzzError("--replay plays what the file holds: it does not go with --programs and --start")
    if args.gate_fault and args.engine != "rtl":
        raise FuzzError("--gate-fault is about the gates: it needs --engine rtl")
    case = None
    if args.replay:
        try:
            case = from_text(args.replay.read_text(), str(args.replay))
        except UnicodeDecodeError as error:
            raise ProgramError(f"{args.replay}: no text ({error.reason} at byte {error.start})") from None
        if args.machine and args.machine != case.machine:
            raise FuzzError(f"--machine {args.machine}, but {args.replay} is of {case.machine}")
    machine = load(case.machine if case else args.machine or "mm_mesh")
    check_machine(machine)
    if not args.out.is_dir():
        raise FuzzError(f"--out {args.out}: no such directory")
    target = args.out / f"{machine.name}-{args.seed}.fuzz"
    check_outputs([path for path in (args.coverage, None if case else target) if path])
    coverage = Coverage(machine)
    for path in args.merge:
        coverage.merge(Coverage.load(path, machine))
    campaign = Campaign(machine, args.seed, faults=args.fault, coverage=coverage)
    if not _coverage_only(args):
        if args.engine == "rtl":
            campaign.tries = GATE_TRIES
            campaign.compare = partial(
                gates("sim.fuzz").compare, gates("sim.fuzz").built(machine, args.simulator, args.gate_fault)
            )
        with console.status("...") if console.is_terminal else nullcontext():
            if case:
                campaign.finding = campaign.play(case)
            else:
                campaign.say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
                try:
                    campaign.run(200 if args.programs is None else args.programs, args.start)
                except KeyboardInterrupt:
                    if campaign.smallest is None:
                        raise
                    campaign.say("stopped; it may not be as small as it could be")
        print_coverage(coverage, console, every_bin=args.bins)
        print_outcome(campaign, args, console)
    else:
        print_coverage(coverage, console, every_bin=args.bins)
    if args.coverage:
        write_atomically(args.coverage, (coverage.to_json() + "\n").encode())
    if campaign.finding is None:
        return 0
    console.print(campaign.finding.text, markup=False, highlight=False, soft_wrap=True)
    if campaign.smallest is not None:
        write_atomically(target, to_text(campaign.smallest).encode())
        console.print(
            f"saved {target}: {counted(campaign.smallest.size, 'flit')}; `kohakutpu fuzz --replay {target}` plays it",
            soft_wrap=True,
        )
    return 1


def print_outcome(campaign: Campaign, args: argparse.Namespace, console: Console) -> None:
    """One line: what was compared with what."""
    against = "models and oracle" if args.engine == "model" else "gates, models and oracle"
    console.print(
        f"{counted(campaign.programs, 'program')}, {counted(campaign.flits, 'flit', 'sent', form=',')}, "
        f"{counted(campaign.cycles, 'cycle', form=',')} on {campaign.machine.name}: {against}; {campaign.judged} "
        "judged by the oracle, "
        f"{campaign.programs - campaign.judged} depend on timing", soft_wrap=True,
    )  # fmt: skip
    for reason, count in campaign.unjudged.most_common():
        console.print(f"  {count} not judged: {reason}", markup=False, highlight=False, soft_wrap=True)
    verdict = (
        "0 differing"
        if campaign.finding is None
        else f"{campaign.finding.kind} differs in program {campaign.finding.program}"
    )
    console.print(verdict, highlight=False)
