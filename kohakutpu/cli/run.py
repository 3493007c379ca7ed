"""Run a kernel on the cycle models or the gates and compare with the reference interpreter, or interpret it alone.

Exit status: 0 byte-equal, 1 a difference, 2 refused, 3 no transport, 4 the machine stopped.
"""

from __future__ import annotations

import argparse
import io
import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kohakutpu.compiler import Artifact, compile_kernel, settle
from kohakutpu.host.compare import compare, digest
from kohakutpu.host.driver import Driver, NoAnswer
from kohakutpu.host.loader import Loader, Run
from kohakutpu.host.simulate import random_operands, run_model, run_reference
from kohakutpu.host.transports import open_transport
from kohakutpu.lang.kernel import Kernel
from kohakutpu.machine import Machine, load
from kohakutpu.model import faults
from kohakutpu.reference import Image, exact
from kohakutpu.wording import counted

from .gates import SIMULATORS, gates
from .kernel_options import (
    ArgumentError, kernel_arguments, kernel_of, knobs_of, options_of, pairs, read_array, shapes_of,
)  # fmt: skip
from .output import check_outputs, write_atomically
from .progress import rounds
from .results import print_comparisons, print_machine

HELP = "run a kernel and compare with its meaning"
MOST_ELEMENTS = 1 << 28  # of a random operand; no machine's memory holds more
ENGINES = ("model", "rtl", "reference")


def arguments(parser: argparse.ArgumentParser) -> None:
    kernel_arguments(parser)
    parser.add_argument("--engine", choices=ENGINES, default="model", help="what runs it (default model)")
    parser.add_argument(
        "--transport", metavar="T", help="run it on whatever answers there instead (docs/transports.md)"
    )
    parser.add_argument(
        "--simulator", choices=SIMULATORS, help=f"of the gates, for --engine rtl (default {SIMULATORS[0]})"
    )
    parser.add_argument(
        "--in", action="append", default=[], dest="inputs", metavar="x=x.npy", help="an operand (repeatable)"
    )
    parser.add_argument(
        "--random", type=int, metavar="SEED", help="normal operands of the given --shape, deviation 0.3"
    )
    parser.add_argument("--out", action="append", default=[], metavar="y=y.npy", help="write a result (repeatable)")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write what was measured and compared, as JSON")
    parser.add_argument("--precision", action="store_true", help="compare with float64 too: percentiles of the error")
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="write every accepted flit and what units did (docs/trace.md)"
    )
    parser.add_argument(
        "--waves", type=Path, metavar="DIR", help="record waves of the gates, with views of them (--engine rtl)"
    )
    parser.add_argument(
        "--fault", action="append", default=[], metavar="NAME",
        help="inject a fault (repeatable); for --engine rtl PLACE=NAME, such as cluster0=lane-tie",
    )  # fmt: skip
    parser.add_argument(
        "--list-faults", action=ListFaults,
        help="print the faults of the models and exit (of the gates: docs/verification.md)",
    )  # fmt: skip
    parser.add_argument("--no-skip", action="store_true", help="visit every block in every cycle (slow, same cycles)")
    parser.add_argument(
        "--timeout", type=int, metavar="CYCLES", help="cycle budget of each wait (on a card, in seconds)"
    )


class ListFaults(argparse.Action):
    """Prints the faults, one a line, name first, and ends."""

    def __init__(self, option_strings, dest, **options):
        super().__init__(option_strings, dest, nargs=0, **options)

    def __call__(self, parser, *_):
        width = max(map(len, faults.table()))
        for name, meaning in faults.table().items():
            print(f"{name:{width}}  {meaning}")
        parser.exit(0)


def operands_of(kernel: Kernel, args: argparse.Namespace) -> dict[str, np.ndarray]:
    """The operands: files, or random ones of the given shapes. Refuses a mixture and a missing operand."""
    files = pairs(args.inputs, "--in", "name=file.npy")
    names = [port.name for port in kernel.inputs]
    unknown = sorted((files.keys() | shapes_of(args).keys()) - set(names))
    if unknown:
        raise ArgumentError(f"{kernel.name} has no operand {', '.join(unknown)}; it has {', '.join(names)}")
    if args.random is None:
        missing = [name for name in names if name not in files]
        if missing:
            raise ArgumentError(
                f"no value for {', '.join(missing)}: give --in {missing[0]}=file.npy, or --random and --shape"
            )
        arrays = {name: read_array(name, files[name]) for name in names}
        for name, shape in shapes_of(args).items():
            if arrays[name].shape != shape:
                raise ArgumentError(
                    f"--shape {name}={'x'.join(map(str, shape))}, but {files[name]} has {arrays[name].shape}"
                )
        return arrays
    if files:
        raise ArgumentError("--random makes every operand: it does not go with --in")
    if args.random < 0:
        raise ArgumentError(f"--random {args.random}: a seed is not negative")
    shapes = shapes_of(args)
    kernel.solve(shapes)
    for name, shape in shapes.items():
        if math.prod(shape) > MOST_ELEMENTS:
            raise ArgumentError(f"--shape {name}={'x'.join(map(str, shape))}: more than {MOST_ELEMENTS:,} elements")
    return random_operands({name: shapes[name] for name in names}, args.random)


def write_outputs(targets: dict[str, str], outputs: dict[str, np.ndarray]) -> None:
    for name, path in targets.items():
        buffer = io.BytesIO()
        np.save(buffer, outputs[name].view(np.float16))
        write_atomically(Path(path), buffer.getvalue())


@dataclass(frozen=True)
class TransportRun:
    """A `Run` on a machine of which only its registers and its memory are seen."""

    run: Run

    def to_dict(self) -> dict:
        return {"elapsed": self.run.elapsed, "unit": self.run.unit}

    def print(self, artifact: Artifact, transport: str) -> None:
        took = f"{self.run.elapsed:.6g} {self.run.unit}"
        print(
            f"{artifact.kernel} on {artifact.machine}, {transport}: {took}, "
            f"{counted(artifact.flit_count, 'instruction flit')}"
        )


def run_on(args: argparse.Namespace, artifact: Artifact, machine: Machine, operands: dict[str, np.ndarray]):
    """What the models or the gates did: a `ModelRun` or an `RtlRun`; a `TransportRun` where nobody counts."""
    if args.transport is not None:
        with (
            open_transport(args.transport, machine, faults=args.fault) as transport,
            rounds(artifact.kernel) as progress,
        ):
            return TransportRun(
                Loader(Driver(transport, timeout=args.timeout), progress=progress).run(artifact, operands)
            )
    if args.engine == "rtl":
        return gates("sim.kernels").run_rtl(
            artifact, machine, operands, simulator=args.simulator or SIMULATORS[0], trace=args.trace,
            timeout=args.timeout,
            waves=args.waves, faults=pairs(args.fault, "--fault", "place=name, such as cluster0=lane-tie"),
        )  # fmt: skip
    with rounds(artifact.kernel) as progress:
        return run_model(
            artifact, machine, operands, faults=args.fault, skip=not args.no_skip, trace=args.trace, progress=progress,
            timeout=args.timeout,
        )  # fmt: skip


def numbers(
    kernel: Kernel, knobs: dict[str, object], operands: dict[str, np.ndarray], image: Image, beside: bool
) -> dict:
    """Print what saturated, and `beside` float64 what the number formats cost; the same as a record."""
    trace = kernel.trace(**knobs)
    lines = exact.saturations(trace, image)
    record: dict = {"saturated": lines}
    if beside:
        extents = kernel.solve({name: array.shape for name, array in operands.items()})
        rows = exact.compare(image.outputs, exact.evaluate(trace, extents, operands))
        record["precision"] = [row.to_dict() for row in rows]
        lines = [*map(str, rows), *(lines or ["no element saturated"])]
    for line in lines:
        print(f"  {line}")
    return record


def main(args: argparse.Namespace) -> int:
    kernel, machine, knobs = kernel_of(args), load(args.machine), knobs_of(args)
    targets = pairs(args.out, "--out", "name=file.npy")
    unknown = sorted(targets.keys() - {port.name for port in kernel.outputs})
    if unknown:
        raise ArgumentError(
            f"{kernel.name} has no output {', '.join(unknown)}; it has {', '.join(p.name for p in kernel.outputs)}"
        )
    if args.timeout is not None and args.timeout < 1:
        raise ArgumentError(f"--timeout {args.timeout}: expected at least one cycle")
    check_outputs([path for path in (*map(Path, targets.values()), args.report, args.trace) if path])
    if args.transport is not None:
        given = {
            "--engine": args.engine != "model", "--no-skip": args.no_skip, "--trace": args.trace, "--waves": args.waves,
        }  # fmt: skip
        if wrong := [name for name, value in given.items() if value]:
            raise ArgumentError(f"--transport {args.transport} is what runs it: it does not go with {wrong[0]}")
        args.engine = args.transport
    elif args.no_skip and args.engine != "model":
        raise ArgumentError(f"--no-skip is about the cycle models: it does not go with --engine {args.engine}")
    if args.fault and args.engine == "reference":
        raise ArgumentError("--fault is about machines: it does not go with --engine reference")
    if (
        args.transport is None
        and args.engine == "model"
        and (placed := [fault for fault in args.fault if "=" in fault])
    ):
        raise ArgumentError(f"--fault {placed[0]}: PLACE=NAME plants a fault in the gates, and goes with --engine rtl")
    for name, given in (("--simulator", args.simulator), ("--waves", args.waves)):
        if given is not None and args.engine != "rtl":
            raise ArgumentError(f"{name} is about the gates: it does not go with --engine {args.engine}")
    if args.waves and args.waves.exists() and not args.waves.is_dir():
        raise ArgumentError(f"--waves {args.waves}: expected a folder, and it is a file")
    operands = operands_of(kernel, args)
    shapes = {name: array.shape for name, array in operands.items()}
    knobs = settle(kernel, machine, shapes, knobs, options_of(args))
    if args.engine == "reference":
        if args.trace:
            raise ArgumentError("--trace needs a machine that runs: it does not go with --engine reference")
        image = run_reference(kernel, knobs, operands, machine, constants=args.constants)
        for name, value in image.outputs.items():
            print(f"{name}: {2 * value.size} bytes, sha256 {digest(value)}")
        costs = numbers(kernel, knobs, operands, image, args.precision)
        write_outputs(targets, dict(image.outputs))
        if args.report:
            record = {
                "engine": "reference", **costs,
                "outputs": {n: {"bytes": 2 * v.size, "sha256": digest(v)} for n, v in image.outputs.items()},
            }  # fmt: skip
            write_atomically(args.report, (json.dumps(record, indent=1) + "\n").encode())
        return 0
    artifact = compile_kernel(kernel, machine, shapes, knobs, options_of(args))
    ran = {
        "engine": args.engine, "kernel": artifact.kernel, "machine": machine.name, "artifact": artifact.digest,
        "faults": sorted(args.fault),
    }  # fmt: skip
    try:
        result = run_on(args, artifact, machine, operands)
    except NoAnswer as hang:
        if args.report:
            stopped = {**ran, "stopped": str(hang).splitlines(), "byte_equal": False}
            write_atomically(args.report, (json.dumps(stopped, indent=1) + "\n").encode())
        raise
    image = run_reference(kernel, knobs, operands, machine, constants=args.constants)
    rows = compare(artifact, image.outputs, result.run.outputs)
    if isinstance(result, TransportRun):
        result.print(artifact, args.transport)
    else:
        print_machine(artifact, result, args.engine)
    equal = print_comparisons(rows, args.engine)
    costs = numbers(kernel, knobs, operands, image, args.precision)
    if args.fault and equal:
        print(f"  fault {', '.join(args.fault)}: injected, and this kernel does not show it")
    write_outputs(targets, dict(result.run.outputs))
    if args.report:
        record = {**ran, **result.to_dict(), **costs, "buffers": [row.to_dict() for row in rows], "byte_equal": equal}
        write_atomically(args.report, (json.dumps(record, indent=1) + "\n").encode())
    return 0 if equal else 1
