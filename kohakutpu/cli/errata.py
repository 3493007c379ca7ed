"""Where the published hardware and software are wrong, who is affected, and what this project does."""

from __future__ import annotations

import argparse
import dataclasses
import json

from rich.console import Console
from rich.table import Table

from kohakutpu.errata import REGISTRY

HELP = "list the errata of the published design"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON")


def main(args: argparse.Namespace) -> int:
    entries = list(REGISTRY.values())
    if args.json:
        print(json.dumps([dataclasses.asdict(entry) for entry in entries], indent=1))
        return 0
    console = Console(width=None if Console().is_terminal else 160)
    table = Table("id", "affected", "published behaviour", "here", "`errata:` shows it", show_lines=console.is_terminal)
    for entry in entries:
        table.add_row(entry.id, entry.affected, entry.published, entry.ours, "yes" if entry.reproducible else "no")
    console.print(table)
    return 0
