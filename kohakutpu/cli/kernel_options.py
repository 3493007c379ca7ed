"""What every subcommand that takes a kernel understands: kernel, machine, shapes, knobs, options, arrays."""

from __future__ import annotations

import argparse
import ast
import re
import tokenize
from pathlib import Path

import numpy as np

from kohakutpu.compiler import AUTO, CONSTANTS, LOWERINGS, RELAYOUTS, Options
from kohakutpu.lang.kernel import Kernel, load
from kohakutpu.machine import list_machines

DEFAULT_MACHINE = "mm_mesh"
MOST_EXTENT = 1 << 32
DEFAULTS = {
    "lowering": LOWERINGS[0], "preq": [], "relayout": RELAYOUTS[0], "constants": CONSTANTS[0], "bands": "on",
    "ksplit": None,
}  # fmt: skip


class ArgumentError(ValueError):
    """An option whose value is not understood: names the option, the value and the form."""


def machine_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--machine", default=DEFAULT_MACHINE, metavar="M",
        help="a name in machines/, a .yaml file or a .map picture "
        f"(default {DEFAULT_MACHINE}; {', '.join(list_machines())})",
    )  # fmt: skip


def kernel_arguments(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    several = {"nargs": "?"} if optional else {}
    parser.add_argument("kernel", metavar="KERNEL", help="module:function or path.py:function", **several)
    machine_argument(parser)
    parser.add_argument(
        "--shape", action="append", default=[], metavar="a=32x64", help="an operand's shape (repeatable)"
    )
    parser.add_argument(
        "--knob", action="append", default=[], metavar="gm=8",
        help="a compile-time knob (repeatable); gm, gn, nk and ksplit may be auto",
    )  # fmt: skip
    parser.add_argument("--lowering", choices=LOWERINGS, default=DEFAULTS["lowering"], help="instruction selection")
    parser.add_argument(
        "--preq", action="append", default=DEFAULTS["preq"], metavar="w",
        help="an operand to quantise as it is uploaded (repeatable)",
    )  # fmt: skip
    parser.add_argument(
        "--relayout", choices=RELAYOUTS, default=DEFAULTS["relayout"], help="who copies a temp into another byte order"
    )
    parser.add_argument(
        "--bands", choices=("on", "off"), default=DEFAULTS["bands"],
        help="whether neighbouring statements share a program",
    )  # fmt: skip
    parser.add_argument(
        "--constants", choices=CONSTANTS, default=DEFAULTS["constants"], help="where numbers in expressions are held"
    )
    parser.add_argument(
        "--ksplit", type=_parts, metavar="N",
        help="parts of K, each on a cluster of its own (changes rounding), or auto; the knob of that name",
    )  # fmt: skip


def _parts(text: str) -> int | str:
    """`--ksplit`: a number of parts, or auto."""
    if text == AUTO:
        return text
    if not re.fullmatch(r"[1-9]\d*", text):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number of parts, at least 1, or {AUTO}")
    return int(text)


def pairs(items: list[str], option: str, form: str) -> dict[str, str]:
    """`name=value` options as a dict; refuses another form and a name given twice."""
    found: dict[str, str] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name or not value:
            raise ArgumentError(f"{option} {item!r}: expected {form}")
        if name in found:
            raise ArgumentError(f"{option} {item!r}: {name} was given already")
        found[name] = value
    return found


def shapes_of(args: argparse.Namespace) -> dict[str, tuple[int, ...]]:
    """`--shape a=32x64` as {name: (32, 64)}."""
    shapes = {}
    for name, text in pairs(args.shape, "--shape", "name=32x64").items():
        if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", text):
            raise ArgumentError(f"--shape {name}={text}: expected positive extents joined by x, such as {name}=32x64")
        shapes[name] = tuple(int(extent) for extent in text.split("x"))
        if max(shapes[name]) > MOST_EXTENT:
            raise ArgumentError(f"--shape {name}={text}: an extent is at most {MOST_EXTENT:,}")
    return shapes


def knobs_of(args: argparse.Namespace) -> dict[str, object]:
    """`--knob gm=8` as {name: value}: Python literals, anything else a string."""
    knobs = {}
    for name, text in pairs(args.knob, "--knob", "name=value").items():
        try:
            knobs[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            knobs[name] = text
    return knobs


def options_of(args: argparse.Namespace) -> Options:
    return Options(
        lowering=args.lowering, constants=args.constants, preq=tuple(args.preq), relayout=args.relayout,
        bands=args.bands == "on", ksplit=args.ksplit,
    )  # fmt: skip


def kernel_of(args: argparse.Namespace) -> Kernel:
    return load(args.kernel)


def read_array(name: str, path: str) -> np.ndarray:
    """An FP16 operand from a .npy file: float16, or uint16 taken as bit patterns; nothing is converted."""
    if not Path(path).is_file():
        raise ArgumentError(f"--in {name}={path}: there is no such file")
    try:
        array = np.load(Path(path), allow_pickle=False)
    except (ValueError, EOFError, SyntaxError, tokenize.TokenError, MemoryError):
        raise ArgumentError(f"--in {name}={path}: not a .npy array of numbers") from None
    if not isinstance(array, np.ndarray) or array.dtype not in (np.dtype(np.float16), np.dtype(np.uint16)):
        kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise ArgumentError(
            f"--in {name}={path}: expected float16 values or uint16 bit patterns, got {kind}; nothing is converted in "
            "silence, so save array.astype(numpy.float16)"
        )
    return array
