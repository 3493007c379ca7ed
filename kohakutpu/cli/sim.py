"""Compile the example kernels, run them on a machine and hold the results against their meaning.

The machine is its cycle models, its gates in a simulator, or both: then the images of all three must be equal.

On a machine with clusters and vector cores: the fused `linear_silu` (32x64 @ 32x64, gm = gn = 8) and its staged
twin. On one without vector cores the plain matrix product, since an epilogue has nowhere to run; on one without
clusters an elementwise kernel.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from kohakutpu.compiler import compile_kernel
from kohakutpu.compiler.artifact import Artifact
from kohakutpu.host.compare import compare
from kohakutpu.host.simulate import run_model, run_reference
from kohakutpu.lang.kernel import load as load_kernel
from kohakutpu.machine import Machine, load

from .gates import SIMULATORS, gates
from .kernel_options import DEFAULT_MACHINE, ArgumentError, read_array
from .progress import rounds
from .results import print_comparisons, print_machine

HELP = "the example kernels on a machine, compared with their meaning"
ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "linear_silu"
LINEAR = "kohakutpu.kernels.linear"
ENGINES = ("model", "rtl", "both")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--machine", default=DEFAULT_MACHINE, metavar="M", help=f"default {DEFAULT_MACHINE}")
    parser.add_argument("--engine", choices=ENGINES, default="model", help="what runs them (default model)")
    parser.add_argument(
        "--simulator", choices=SIMULATORS, default=SIMULATORS[0], help=f"of the gates (default {SIMULATORS[0]})"
    )
    parser.add_argument(
        "--waves", type=Path, metavar="DIR", help="record waves of the gates into a folder for each kernel"
    )
    parser.add_argument(
        "--fault", action="append", default=[], metavar="NAME", help="inject a fault (`run --list-faults`)"
    )


def cases(machine: Machine) -> list[tuple[str, str, dict[str, object], dict[str, str]]]:
    """(title, kernel, knobs, operand files) of what this machine can run."""
    tile = {"gm": 8, "gn": 8}
    if machine.clusters and machine.vectors:
        files = {"x": "x.npy", "w": "w.npy"}
        kernel = f"{LINEAR}:linear_silu"
        return [("fused", kernel, tile, files), ("staged", kernel, {**tile, "fuse": False}, files)]
    if machine.clusters:
        print(f"{machine.name} has no vector core: running the plain matrix product")
        return [("plain", f"{LINEAR}:matmul", tile, {"a": "x.npy", "b": "w.npy"})]
    print(f"{machine.name} has no cluster: running an elementwise kernel")
    return [("plain", "kohakutpu.kernels.elementwise:silu", {}, {"x": "x.npy"})]


def run_engines(
    args: argparse.Namespace, artifact: Artifact, machine: Machine, operands: dict, title: str
) -> Iterator[tuple]:
    """(engine, what it gave) for each engine that was asked for, as it is done."""
    waves = args.waves and args.waves / title
    if args.engine != "rtl":
        with rounds(f"{title} {artifact.kernel}") as progress:
            yield "model", run_model(artifact, machine, operands, faults=args.fault, progress=progress)
    if args.engine != "model":
        run_rtl = gates("sim.kernels").run_rtl
        yield "rtl", run_rtl(artifact, machine, operands, simulator=args.simulator, waves=waves)
        if waves:
            print(f"{title}: waves in {waves / machine.name}.fst, by unit with gtkwave {waves / 'units.gtkw'}")


def main(args: argparse.Namespace) -> int:
    machine = load(args.machine)
    machine.require_mesh()
    if args.fault and args.engine != "model":
        raise ArgumentError(
            f"--fault {args.fault[0]} is a fault of the models: it does not go with --engine {args.engine}"
        )
    if args.waves and args.engine == "model":
        raise ArgumentError(f"--waves {args.waves} is about the gates: it needs --engine rtl or both")
    equal = True
    for title, reference, knobs, files in cases(machine):
        kernel = load_kernel(reference)
        operands = {name: read_array(name, str(EXAMPLES / file)) for name, file in files.items()}
        artifact = compile_kernel(kernel, machine, {n: a.shape for n, a in operands.items()}, knobs)
        image = run_reference(kernel, knobs, operands, machine)
        for engine, result in run_engines(args, artifact, machine, operands, title):
            name = engine if engine == "model" else f"rtl ({args.simulator})"
            print(f"{title}:", end=" ")
            print_machine(artifact, result, name)
            equal &= print_comparisons(compare(artifact, image.outputs, result.run.outputs), engine)
    if args.fault and equal:
        print(f"fault {', '.join(args.fault)}: injected, and these kernels do not show it")
    return 0 if equal else 1
