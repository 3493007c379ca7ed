"""Check, show, draw or convert a machine description: `yaml` makes a description of a text map, `picture` the map of a
description."""

from __future__ import annotations

import argparse
import dataclasses
import json

from rich.console import Console
from rich.table import Table

from kohakutpu.machine import list_machines, load, picture, to_yaml
from kohakutpu.wording import counted

HELP = "check, show, draw or convert a machine"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("check", "show", "picture", "yaml", "list"), help="what to do")
    parser.add_argument("machine", nargs="?", metavar="M", help="a name in machines/, a .yaml file or a .map picture")
    parser.add_argument("--json", action="store_true", help="show: as JSON")


def main(args: argparse.Namespace) -> int:
    if args.action == "list":
        print("\n".join(list_machines()))
        return 0
    if args.machine is None:
        raise MissingArgument(f"machine {args.action} needs a machine; the names are {', '.join(list_machines())}")
    machine = load(args.machine)
    if args.action == "picture":
        print(picture(machine), end="")
    elif args.action == "yaml":
        print(to_yaml(machine), end="")
    elif args.action == "check":
        print(
            f"{machine.name}: {machine.nx}x{machine.ny} routers, {counted(len(machine.ports), 'memory port')}, "
            f"{counted(len(machine.clusters), 'cluster')}, {counted(len(machine.vectors), 'vector core')}: ok"
            + (" (compile only)" if machine.compile_only else "")
        )
    elif args.json:
        print(json.dumps(dataclasses.asdict(machine), indent=1, default=sorted))
    else:
        show(machine)
    return 0


class MissingArgument(ValueError):
    """A subcommand was given too little."""


def show(machine) -> None:
    """The picture, every endpoint with its parameters, and the YAML that says the same."""
    console = Console(width=None if Console().is_terminal else 140)
    if not machine.compile_only:
        console.print(picture(machine), end="", highlight=False, markup=False)
    table = Table("what", "at", "parameters", box=None)
    agent = "an endpoint of its own" if machine.agent.own_endpoint else "answers at memory port 0"
    table.add_row("agent", f"({machine.agent.x},{machine.agent.y})", agent)
    for kind, sites in (
        ("memory port", machine.ports), ("cluster", machine.clusters), ("vector core", machine.vectors),
    ):  # fmt: skip
        for site in sites:
            values = {f.name: getattr(site, f.name) for f in dataclasses.fields(site) if f.name not in ("x", "y")}
            table.add_row(kind, f"({site.x},{site.y})", " ".join(f"{k}={v}" for k, v in values.items()))
    sizes = " ".join(
        f"{name}={getattr(machine, name)}" for name in ("fifo_depth", "staging_flits", "tx_depth", "rx_depth")
    )
    table.add_row("routers, agent", f"{machine.nx}x{machine.ny}", sizes)
    memory = " ".join(f"{k}={v}" for k, v in dataclasses.asdict(machine.memory).items())
    table.add_row("DRAM", "", memory)
    console.print(table)
    console.print()
    console.print(to_yaml(machine), end="", highlight=False, markup=False)
