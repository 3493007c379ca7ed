"""A launch of an XPU kernel from options, lowered for a machine: grid, block, counts of buffers, scalars, template."""

from __future__ import annotations

import argparse
import ast
import math
import re
from typing import TYPE_CHECKING

import numpy as np

from kohakutpu.xpu.kernel import Kernel
from kohakutpu.xpu.launch import requested
from kohakutpu.xpu.types import BufferType, FunctionType

from .kernel_options import DEFAULTS, ArgumentError, knobs_of, pairs, shapes_of

if TYPE_CHECKING:
    from kohakutpu.backends.ktpu import Lowered

TILE_ONLY = ("lowering", "preq", "relayout", "constants", "bands", "ksplit")
OURS = ("grid", "block", "arg")


def launch_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--grid", metavar="4x2", help="an XPU kernel's workgroups (default 1)")
    parser.add_argument("--block", metavar="64", help="an XPU kernel's work-items in a workgroup (default 16)")
    parser.add_argument(
        "--arg", action="append", default=[], metavar="n=700", help="an XPU kernel's scalar argument (repeatable)"
    )


def only_tiles(args: argparse.Namespace) -> None:
    """Refuse a launch's options for a kernel of the tile language."""
    for name in OURS:
        if getattr(args, name):
            what = "a kernel of tiles, not an XPU kernel, and is not launched over a grid"
            raise ArgumentError(f"--{name}: {args.kernel} is {what}")


def _extents(option: str, text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*){0,2}", text):
        raise ArgumentError(f"{option} {text}: expected one to three positive numbers joined by x, such as 4x2")
    return tuple(int(extent) for extent in text.split("x"))


def _scalar(name: str, kind, text: str):
    """A scalar's value: a number, true or false, or the name of a helper for a parameter that takes one."""
    if isinstance(kind, FunctionType):
        found = [member for member in kind.members if member.name == text]
        if not found:
            have = ", ".join(member.name for member in kind.members)
            raise ArgumentError(f"--arg {name}={text}: expected one of {have}")
        return found[0]
    if text in ("true", "false"):
        return text == "true"
    try:
        value = float(text) if text in ("inf", "-inf", "nan") else ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = text
    if not isinstance(value, (int, float)):
        raise ArgumentError(f"--arg {name}={text}: expected a {kind}")
    return value


def lowered(kernel: Kernel, args: argparse.Namespace) -> Lowered:
    """The launch that the options describe, its buffers filled with zeros.

    Raises ArgumentError for options that do not fit the kernel, XpuLaunchError for what the machine cannot do.
    """
    from kohakutpu.backends.ktpu import KtpuBackEnd  # here: it registers, and other commands must not

    for name in TILE_ONLY:
        if getattr(args, name) != DEFAULTS[name]:
            raise ArgumentError(f"--{name}: {args.kernel} is an XPU kernel, which has no such choice")
    values = knobs_of(args)
    if kernel.is_template or values:
        kernel = kernel.instance(**values)
    shapes, scalars = shapes_of(args), pairs(args.arg, "--arg", "name=value")
    given = []
    for parameter in kernel.program.kernel.parameters:
        name, kind = parameter.name, parameter.type
        if isinstance(kind, BufferType):
            if name not in shapes:
                what = f"the elements of the {kind.element} buffer {name}"
                raise ArgumentError(f"{kernel.name}: --shape {name}=N is missing, {what}")
            given.append(np.zeros(math.prod(shapes.pop(name)), kind.element.dtype))
        elif name not in scalars:
            raise ArgumentError(f"{kernel.name}: --arg {name}=VALUE is missing, a {kind}")
        else:
            given.append(_scalar(name, kind, scalars.pop(name)))
    for option, left in (("--shape", shapes), ("--arg", scalars)):
        for name in left:
            what = "buffer" if option == "--shape" else "scalar parameter"
            raise ArgumentError(f"{option} {name}: {kernel.name} has no such {what}")
    backend = KtpuBackEnd(args.machine)
    grid, block = _extents("--grid", args.grid or "1"), _extents("--block", args.block or "16")
    return backend.lower(requested(kernel, backend, grid, block, 0, tuple(given)))
