"""Plan a whole model: its kernels, the copies between them, every buffer with its place and its life, and what it
costs.

MODEL names a function that is given a session, pins what stays in memory and returns the model function
(docs/models.md).
"""

from __future__ import annotations

import argparse
import inspect
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FunctionType, ModuleType

from kohakutpu.lang.kernel import Kernel
from kohakutpu.lang.kernel import load as load_object
from kohakutpu.lang.source import KernelError, at
from kohakutpu.machine import load
from kohakutpu.session import Session

from .kernel_options import ArgumentError, knobs_of, machine_argument, shapes_of

HELP = "plan a whole model: kernels, copies, memory"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="module:function or path.py:function")
    machine_argument(parser)
    parser.add_argument(
        "--shape", action="append", default=[], metavar="x=8x16x20", help="an input's shape (repeatable)"
    )
    parser.add_argument(
        "--knob", action="append", default=[], metavar="preq=True", help="an argument of the function (repeatable)"
    )


def _is_model(module: ModuleType, value: object) -> bool:
    """Whether an object of a module may be what MODEL names: a function of its own that takes an argument."""
    return isinstance(value, FunctionType) and value.__module__ == module.__name__ and value.__code__.co_argcount > 0


@contextmanager
def _refusing(file: str) -> Iterator[None]:
    """An error of Python's in the model's file is refused with its line there, as one in the body of a kernel is."""
    try:
        yield
    except KernelError:
        raise
    except Exception as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        if not lines or hasattr(error, "exit_status"):
            raise
        raise KernelError(f"{type(error).__name__}: {error}", at(file, lines[-1])) from error


def main(args: argparse.Namespace) -> int:
    machine, shapes, knobs = load(args.machine), shapes_of(args), knobs_of(args)
    build = load_object(args.model, (FunctionType, Kernel), "model", _is_model)
    if isinstance(build, Kernel):
        raise ArgumentError(
            f"{args.model} is a kernel: `kohakutpu compile` shows those; a function of a session is expected"
        )
    session = Session(machine)
    try:
        inspect.signature(build).bind(session, **knobs)
    except TypeError as error:
        raise ArgumentError(f"{args.model} is given a session and {knobs or 'no knobs'}: {error}") from error
    file = build.__code__.co_filename
    with _refusing(file):
        function = build(session, **knobs)
    if not callable(function):
        raise ArgumentError(
            f"{args.model} returned {type(function).__name__}: expected a model function, to be planned"
        )
    with _refusing(file):
        plan = session.plan(function, **shapes)
    print(plan.summary())
    return 0
