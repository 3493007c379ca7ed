"""Assembly text to flits (72 digits) and instruction payloads (64 digits), one a line; the inverse of `disasm`."""

from __future__ import annotations

import argparse

from kohakutpu.isa.assembler import assemble
from kohakutpu.isa.flit import Flit

from .disasm import InputError, read

HELP = "assembly text to flits"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a file, or - for standard input")


def main(args: argparse.Namespace) -> int:
    items = assemble(read(args.file))
    if not items:
        raise InputError(f"{args.file}: no instruction in it")
    for item in items:
        print(f"{item.to_int():072x}" if isinstance(item, Flit) else f"{item:064x}")
    return 0
