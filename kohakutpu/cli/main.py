"""The `kohakutpu` command: one module per subcommand, one meaning per exit status.

0 done and right; 1 a wrong answer; 2 refused (bad input); 3 no transport; 4 the machine did not answer; 130 stopped by
Ctrl-C, 143 by SIGTERM.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kohakutpu import __version__

COMMANDS = (
    "compile", "explain", "plan", "run", "sim", "lockstep", "fuzz", "view", "report", "disasm", "asm", "machine",
    "errata", "golden",
    "rtl", "synth", "xpu", "bringup", "serve", "sweep", "ci", "build",
)  # fmt: skip

OURS = ("kohakutpu", "rtl", "sim", "fpga")  # packages whose errors say enough without a traceback

OK, WRONG, REFUSED, NO_TRANSPORT, NO_ANSWER = range(5)
STOPPED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM  # as shells have it


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kohakutpu", description="Simulator, kernel compiler and co-verification harness for KohakuTPU."
    )
    parser.add_argument("--version", action="version", version=f"kohakutpu {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in COMMANDS:
        module = importlib.import_module(f"kohakutpu.cli.{name}")
        command = commands.add_parser(name, help=module.HELP, description=module.__doc__)
        module.arguments(command)
        command.set_defaults(handler=module.main)
    return parser


def status_of(error: Exception) -> int | None:
    """The exit status of an error the project itself names; None for anything else."""
    if isinstance(error, OSError):
        return REFUSED
    for kind in type(error).__mro__:
        if kind.__module__.split(".")[0] in OURS:
            return getattr(error, "exit_status", REFUSED)
    return None


def said(error: Exception) -> str:
    """An error as one reads it; of the system's own, the path and the reason."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror[:1].lower()}{error.strerror[1:]}"
    return str(error)


class Escape(RuntimeError):
    """Code that was loaded tried to end the process: a run that did not happen must not look like one that did."""


class Terminated(KeyboardInterrupt):
    """SIGTERM: ends a command as Ctrl-C does, with everything that it has started."""


@contextmanager
def termination() -> Iterator[None]:
    """SIGTERM raises `Terminated`, once: another one, as process groups often get, must not disturb the end."""

    def end(*_) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise Terminated

    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield  # somebody else's process
        return
    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def handle(args: argparse.Namespace) -> int:
    try:
        return args.handler(args)
    except SystemExit as error:
        raise Escape(
            f"the code that was loaded ended the process (status {error.code}) before there was a result"
        ) from error


def main(argv: list[str] | None = None) -> int:
    command = "error"
    try:
        args = build_parser().parse_args(argv)
        command = args.command
        with termination():
            return handle(args)
    except BrokenPipeError:
        # The reader of a pipe has gone; keep the interpreter from complaining about it on exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except KeyboardInterrupt as stop:
        print(f"kohakutpu {command}: stopped", file=sys.stderr)
        return TERMINATED if isinstance(stop, Terminated) else STOPPED
    except Exception as error:
        status = status_of(error)
        if status is None:
            raise
        sys.stdout.flush()
        print(f"kohakutpu {command}: {said(error)}", file=sys.stderr)
        return status


if __name__ == "__main__":
    sys.exit(main())
