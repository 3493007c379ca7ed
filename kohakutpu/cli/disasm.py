"""Flits or instruction payloads, one hexadecimal number a line, or a trace written by `run --trace`, to assembly text.

A number of more than 64 digits is a whole flit, one of at most 64 a CU_INST payload. What follows `#` or `;` is a
comment, and of a line with several words the last one counts, so that hexadecimal listings can be fed as they are. Of a
trace each line is the cycle, the link or track, and the flit or what the track shows.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from kohakutpu.isa.assembler import disassemble
from kohakutpu.isa.flit import FLIT_WIDTH, Flit
from kohakutpu.isa.signals import UnitType
from kohakutpu.noc.trace import MAGIC, OLD_MAGIC, Level, Trace, Transfer
from kohakutpu.noc.trace_tracks import value_text
from kohakutpu.wording import counted

HELP = "flits to assembly text"
UNITS = {"cluster": UnitType.CLUSTER, "vector": UnitType.VECTOR}
_HEX = re.compile(r"(?:0x)?([0-9a-fA-F]+)")


class InputError(ValueError):
    """A line that is no flit and no payload: names file and line."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a file, or - for standard input")
    parser.add_argument("--levels", action="store_true", help="of a trace, the levels too, not only flits and events")
    parser.add_argument("--unit", choices=sorted(UNITS), help="what the payloads are for, where they alone do not say")


def read(name: str) -> str:
    """The text of a file, or of standard input for `-`."""
    if name == "-":
        return sys.stdin.read()
    try:
        return Path(name).read_text()
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: not a text file ({error.reason} at byte {error.start})") from None


def parse(text: str, name: str) -> list[Flit | int]:
    """The flits and payloads of a listing. Raises `InputError` naming the line."""
    items: list[Flit | int] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = re.split(r"[#;]", line, maxsplit=1)[0].split()
        if not words:
            continue
        found = _HEX.fullmatch(words[-1])
        if not found:
            raise InputError(f"{name}:{number}: expected a hexadecimal flit or payload, got {words[-1]!r}")
        digits = found[1]
        value = int(digits, 16)
        if value >> FLIT_WIDTH:
            raise InputError(f"{name}:{number}: {len(digits)} digits are more than a {FLIT_WIDTH}-bit flit")
        items.append(Flit.from_int(value) if len(digits) > 64 else value)
    return items


def is_trace(name: str) -> bool:
    if name == "-" or not Path(name).is_file():
        return False
    with open(name, "rb") as file:
        return file.read(len(MAGIC)) in (MAGIC, OLD_MAGIC)


def print_trace(name: str, *, levels: bool) -> None:
    """The records of a trace, a line each: cycle, link or track, assembly text or value."""
    trace = Trace(name)
    print(
        f"# machine {trace.machine}, {counted(trace.cycles, 'cycle')}, {counted(trace.flits, 'flit')}, "
        f"{counted(trace.events, 'event')}, {counted(trace.levels, 'level')}"
    )
    for record in trace:
        if isinstance(record, Transfer):
            name, text = trace.links[record.link], disassemble([record.flit]).rstrip()
        elif isinstance(record, Level) and not levels:
            continue
        else:
            track = trace.tracks[record.track]
            name, text = track.name, value_text(track, record.value)
        print(f"{record.cycle:>8} {name:18} {text}")


def main(args: argparse.Namespace) -> int:
    if is_trace(args.file):
        print_trace(args.file, levels=args.levels)
        return 0
    items = parse(read(args.file), "standard input" if args.file == "-" else args.file)
    if not items:
        raise InputError(f"{args.file}: no flit and no payload in it")
    print(disassemble(items, unit=UNITS.get(args.unit)), end="")
    return 0
