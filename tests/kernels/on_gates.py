"""What every test of compiled kernels on the gates asks."""

from __future__ import annotations

from kohakutpu.compiler import Options, compile_kernel
from kohakutpu.host.compare import compare
from kohakutpu.host.simulate import run_model, run_reference
from kohakutpu.lang.kernel import Kernel
from kohakutpu.machine import Machine
from sim.kernels import run_rtl

from running import operands_of


def equal_on_gates(kernel: Kernel, shapes, machine: Machine, knobs, options: Options = Options(), *, seed: int = 0):  # noqa: B008 - frozen
    """The gates leave the interpreter's bytes, in the model's cycles, with its flits and its memory traffic.

    Gives the run of the gates and the compared buffers.
    """
    artifact = compile_kernel(kernel, machine, shapes, knobs, options)
    operands = operands_of(shapes, seed=seed, specials=0.02)
    gates = run_rtl(artifact, machine, operands)
    compared = compare(artifact, run_reference(kernel, knobs, operands, machine).outputs, gates.run.outputs)
    assert compared and all(row.equal for row in compared), compared[0].first
    model = run_model(artifact, machine, operands)
    assert (gates.cycles, gates.flits) == (model.cycles, model.flits)
    assert (gates.dram_read, gates.dram_written) == (model.dram_read, model.dram_written)
    return gates, compared
