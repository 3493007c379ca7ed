"""Serve a machine over a socket, so that scripts in other processes drive it one after the other (docs/transports.md,
socket).

Ends with Ctrl-C, or when a client goes without an end.
"""

from __future__ import annotations

import argparse
import signal

from kohakutpu.host.transports import open_transport
from kohakutpu.host.transports.serving import Server
from kohakutpu.host.transports.stream import parse_address
from kohakutpu.machine import load

from .kernel_options import DEFAULT_MACHINE

HELP = "serve a machine over a socket"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--listen", required=True, metavar="PATH|HOST:PORT", help="a UNIX socket, or a port of this computer"
    )
    parser.add_argument(
        "--transport", default="model", metavar="T", help="the way to the machine (default model; docs/transports.md)"
    )
    parser.add_argument("--machine", default=DEFAULT_MACHINE, metavar="M", help=f"default {DEFAULT_MACHINE}")
    parser.add_argument("--fault", action="append", default=[], metavar="NAME", help="plant a fault (repeatable)")


def main(args: argparse.Namespace) -> int:
    machine = load(args.machine)
    machine.require_mesh()
    address = parse_address(args.listen)
    with open_transport(args.transport, machine, faults=args.fault) as transport:
        said = f"{machine.name} ({args.transport}) is served on {args.listen}; Ctrl-C ends it"
        engine = getattr(transport, "engine", args.transport)
        server = Server(transport, machine, address, engine=engine, ready=lambda: print(said, flush=True))
        before = {number: signal.signal(number, lambda *_: server.stop()) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            server.run()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    print(f"{server.executed:,} requests done")
    return 0
