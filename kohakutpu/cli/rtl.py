"""Write the Verilog of a machine: equal descriptions give equal bytes."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kohakutpu.machine import load

from .gates import gates
from .kernel_options import DEFAULT_MACHINE
from .output import check_writable, write_atomically

HELP = "write a machine's Verilog"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("machine", nargs="?", default=DEFAULT_MACHINE, metavar="M", help=f"default {DEFAULT_MACHINE}")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="OUT.v", help="the file to write (default: standard output)"
    )


def main(args: argparse.Namespace) -> int:
    top = gates("rtl.top")
    machine = load(args.machine)
    if args.output is not None:
        check_writable(args.output)
    text = top.machine_verilog(machine)
    if args.output is None:
        sys.stdout.write(text)
        return 0
    write_atomically(args.output, text.encode())
    print(f"{args.output}: {machine.name}, {len(text)} bytes, top module {top.TOP}, sha256 {top.digest_of(text)}")
    return 0
