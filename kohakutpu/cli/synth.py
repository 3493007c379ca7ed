"""Map a machine's Verilog to FPGA primitives with Yosys: a table by block, and an error for latches, loops and undriven
nets."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.table import Table

from kohakutpu.machine import load

from .gates import gates
from .kernel_options import DEFAULT_MACHINE

HELP = "LUTs, registers, memories and DSPs of a machine's RTL"
FAMILIES = ("xcup", "xc7")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("machine", nargs="?", default=DEFAULT_MACHINE, metavar="M", help=f"default {DEFAULT_MACHINE}")
    parser.add_argument(
        "--family", choices=FAMILIES, default=FAMILIES[0], help=f"UltraScale+ or 7-series (default {FAMILIES[0]})"
    )


def main(args: argparse.Namespace) -> int:
    synthesis = gates("rtl.synthesis")
    machine = load(args.machine)
    rows = synthesis.blocks(machine, args.family)
    table = Table("block", box=None)
    for title in ("number", "LUT", "of them RAM", "FF", "BRAM", "DSP", "published"):
        table.add_column(title, justify="right")
    for block, count, cost in rows:
        published = ", ".join(f"{n} {kind}" for kind, n in synthesis.PUBLISHED.get(block, {}).items())
        table.add_row(
            block, str(count), f"{cost.lut:,}", f"{cost.lutram:,}", f"{cost.ff:,}", f"{cost.bram:g}", str(cost.dsp),
            published,
        )  # fmt: skip
    console = Console(width=None if Console().is_terminal else 120)
    console.print(f"{machine.name} on {synthesis.FAMILIES[args.family]}, each row one block with all below it")
    console.print(table)
    console.print("no latches, no combinational loops, no undriven nets")
    return 0
