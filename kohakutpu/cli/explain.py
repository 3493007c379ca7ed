"""What limits each stage of a compiled kernel, and the knob that moves it; predicted cycles beside simulated ones."""

from __future__ import annotations

import argparse

import numpy as np

from kohakutpu.compiler import AUTO, compile_kernel
from kohakutpu.compiler.explain import explain
from kohakutpu.compiler.tiles import candidates
from kohakutpu.host.simulate import run_model
from kohakutpu.machine import load

from .kernel_options import kernel_arguments, kernel_of, knobs_of, options_of, shapes_of
from .progress import rounds

HELP = "what limits each stage of a kernel, and the knob that moves it"
SHOWN = 5  # tiles


def arguments(parser: argparse.ArgumentParser) -> None:
    kernel_arguments(parser)
    parser.add_argument(
        "--simulate", action="store_true", help="run it too, and show simulated cycles beside the predicted ones"
    )


def main(args: argparse.Namespace) -> int:
    kernel, machine, shapes, knobs = kernel_of(args), load(args.machine), shapes_of(args), knobs_of(args)
    artifact = compile_kernel(kernel, machine, shapes, knobs, options_of(args))
    simulated = None
    if args.simulate:
        random = np.random.default_rng(0)
        operands = {name: random.normal(0, 0.3, shape).astype(np.float16) for name, shape in shapes.items()}
        with rounds(kernel.name) as progress:
            simulated = run_model(artifact, machine, operands, progress=progress).run.stages
    if args.ksplit is not None or "ksplit" in knobs:
        knobs["ksplit"] = AUTO  # K whole and in any number of parts, beside what was taken
    tiles = [
        tile
        for place, tile in enumerate(candidates(kernel, machine, shapes, knobs, args.preq))
        if place < SHOWN or tile.knobs.items() <= artifact.knobs.items()
    ]
    print(explain(artifact, machine, simulated, tiles))
    return 0
