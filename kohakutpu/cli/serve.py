"""Serve a machine over a socket, so that scripts in other processes drive it one after the other (docs/transports.md,
socket).

Exit status: 0 ended by Ctrl-C or SIGTERM once it served, 130 or 143 before that; 1 the gates broke a rule; 2 refused; 3
no way to the machine, the address is taken, or a client went without an end.
"""

from __future__ import annotations

import argparse
import signal
from contextlib import ExitStack

from kohakutpu.host.transports import open_transport, prepare
from kohakutpu.host.transports.serving import Server
from kohakutpu.host.transports.stream import check_listen, parse_address
from kohakutpu.machine import load
from kohakutpu.wording import counted

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
    check_listen(address)
    prepare(args.transport, machine, faults=args.fault)
    print(f"opening {args.transport} to {machine.name}", flush=True)
    with ExitStack() as stack:
        transport = stack.enter_context(open_transport(args.transport, machine, faults=args.fault))
        said = f"ready on {args.listen}: {machine.name} ({args.transport}); Ctrl-C or SIGTERM ends it"
        engine = getattr(transport, "engine", args.transport)
        server = Server(transport, machine, address, engine=engine, ready=lambda: print(said, flush=True))
        # From here on a signal is an end in order, also while the transport is closed.
        for number in (signal.SIGINT, signal.SIGTERM):
            stack.callback(signal.signal, number, signal.signal(number, lambda *_: server.stop()))
        server.run()
        transport.close()
    print(f"{counted(server.executed, 'request', form=',')} done")
    return 0
