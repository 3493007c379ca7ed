"""What limits each stage of a compiled kernel, and the knob that moves it; predicted cycles beside simulated ones."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from kohakutpu.compiler import AUTO, CompileError, Options, compile_kernel
from kohakutpu.compiler.artifact import Artifact
from kohakutpu.compiler.explain import explain, shown, taken
from kohakutpu.compiler.predict import predict
from kohakutpu.compiler.tiles import COMPARED, FEW_SWEEPS, KSPLIT, Choice, candidates
from kohakutpu.host.simulate import run_model
from kohakutpu.lang.kernel import Kernel
from kohakutpu.machine import Machine, load

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
    options = options_of(args)
    artifact = compile_kernel(kernel, machine, shapes, knobs, options)
    simulated = None
    if args.simulate:
        random = np.random.default_rng(0)
        operands = {name: random.normal(0, 0.3, shape).astype(np.float16) for name, shape in shapes.items()}
        with rounds(kernel.name) as progress:
            simulated = run_model(artifact, machine, operands, progress=progress).run.stages
    if args.ksplit is not None or "ksplit" in knobs:
        knobs["ksplit"] = AUTO  # K whole and in any number of parts, beside what was taken
    print(explain(artifact, machine, simulated, _rivals(artifact, kernel, machine, shapes, knobs, options)))
    return 0


def _rivals(
    artifact: Artifact,
    kernel: Kernel,
    machine: Machine,
    shapes: Mapping[str, tuple[int, ...]],
    knobs: Mapping[str, object],
    options: Options,
) -> list[tuple[Choice, int | None]]:
    """The best tiles and the artifact's own, each with the predicted cycles of the whole kernel, the least first; None for
    all of them, in the order of the estimate, where a product is too large for many tiles to be compiled."""
    distinct = {}  # a kernel may lack a knob that the choice varies
    for tile in candidates(kernel, machine, shapes, knobs, options.preq):
        distinct.setdefault(tuple(shown(artifact, tile).items()), tile)
    found, options = list(distinct.values()), replace(options, ksplit=None)
    held = [tile for tile in found if taken(artifact, tile)]
    few = found[:COMPARED]
    if any(tile.sweeps > FEW_SWEEPS for tile in few):
        return [(tile, None) for place, tile in enumerate(found) if place < SHOWN or tile in held]
    timed: list[tuple[Choice, int | None]] = [(tile, predict(artifact, machine).cycles) for tile in held]
    for tile in few:
        if tile not in held:
            try:
                rival = compile_kernel(kernel, machine, shapes, {**knobs, **shown(artifact, tile), KSPLIT: tile.ksplit}, options)
            except CompileError:  # the estimate does not know all that must fit
                continue
            timed.append((tile, predict(rival, machine).cycles))
    timed.sort(key=lambda pair: (pair[1], pair[0].rank))
    return [pair for place, pair in enumerate(timed) if place < SHOWN or pair[0] in held]
