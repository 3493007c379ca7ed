"""Runs library kernels on the cycle models and beside the interpreter; the library, and a small case of each kernel."""

from __future__ import annotations

import numpy as np

from kohakutpu import kernels
from kohakutpu.compiler import Artifact, Options, compile_kernel
from kohakutpu.host.simulate import ModelRun, run_model, run_reference
from kohakutpu.kernels import elementwise
from kohakutpu.lang import Extents
from kohakutpu.lang.extents import Expr, names_in
from kohakutpu.lang.kernel import Kernel
from kohakutpu.machine import Machine, load

SPECIALS = np.array([0x0000, 0x8000, 0x7C00, 0xFC00, 0x7E00, 0x0001, 0x8001, 0x7BFF, 0xFBFF], np.uint16)

VECTOR = {made.name: made for made in vars(elementwise).values() if isinstance(made, Kernel)}
LIBRARY = {name: getattr(kernels, name) for name in kernels.__all__} | VECTOR
SMALL = {"M": 13, "K": 70, "N": 24, "F": 32, "H": 2, "W": 3, "C": 40, "G": 3, "Q": 10, "D": 40, "V": 16}


def dims_of(kernel: Kernel) -> list[str]:
    """The names of the extents that the operands fix."""
    return sorted({name for port in kernel.inputs for axis in port.shape if isinstance(axis, Expr) for name in names_in(axis)})


def small_case(kernel: Kernel) -> tuple[dict, dict]:
    """(shapes, knobs) of an uneven shape that every machine with a cluster and a vector core takes."""
    dims = {name: SMALL.get(name, 32) for name in dims_of(kernel)}
    if kernel in (kernels.attention, kernels.flash_attention):
        dims["K"] = 64
    lead = (9, 70) if any(port.whole for port in kernel.inputs) else ()
    extents = Extents(dims, lead)
    knobs = {"gm": 5, "gn": 8, "nk": 1, "causal": True, "keys": 61}
    return {port.name: port.logical_shape(extents) for port in kernel.inputs}, {k: v for k, v in knobs.items() if k in kernel.knobs}


def operands_of(shapes, *, seed: int = 0, deviation: float = 1.0, specials: float = 0.0) -> dict[str, np.ndarray]:
    """Normal operands, a share of them zeros, infinities, NaN and the like."""
    rng = np.random.default_rng(seed)
    made = {}
    for name, shape in shapes.items():
        bits = rng.normal(0, deviation, shape).astype(np.float16).view(np.uint16)
        made[name] = np.where(rng.random(shape) < specials, rng.choice(SPECIALS, shape), bits)
    return made


def equal_bytes(
    kernel: Kernel, shapes, machine: Machine | str, knobs=None, options: Options = Options(), **given  # noqa: B008
) -> tuple[Artifact, ModelRun]:
    """Compile, run on the models, interpret; AssertionError unless every result has the interpreter's bits."""
    machine = load(machine) if isinstance(machine, str) else machine
    knobs = knobs or {}
    artifact = compile_kernel(kernel, machine, shapes, knobs, options)
    operands = operands_of(shapes, **given)
    run = run_model(artifact, machine, operands)
    wanted = run_reference(kernel, knobs, operands, machine, constants=options.constants).outputs
    assert wanted
    for name, want in wanted.items():
        found = run.run.outputs[name].view(np.uint16)
        wrong = np.argwhere(found != want)
        assert not len(wrong), f"{kernel.name}: {len(wrong)} elements of {name} differ, first at {wrong[0].tolist()}"
    return artifact, run


def flits(artifact: Artifact) -> int:
    """Instruction flits of all rounds."""
    return sum(len(round_.flits) for round_ in artifact.rounds)
