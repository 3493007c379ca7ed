"""Every kernel of the library on the gates of mm_mesh and quad: the interpreter's bytes, and the model's flits and cycles."""

import sys
from pathlib import Path

import pytest

from kohakutpu.compiler import compile_kernel
from kohakutpu.host.compare import compare
from kohakutpu.host.simulate import run_model, run_reference
from kohakutpu.machine import load
from sim.kernels import run_rtl

sys.path.insert(0, str(Path(__file__).parent))
from running import LIBRARY, operands_of, small_case  # noqa: E402


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["mm_mesh", "quad"])
@pytest.mark.parametrize("name", LIBRARY)
def test_every_kernel_on_the_gates(name, machine):
    kernel, machine = LIBRARY[name], load(machine)
    shapes, knobs = small_case(kernel)
    artifact = compile_kernel(kernel, machine, shapes, knobs)
    operands = operands_of(shapes, seed=7, specials=0.02)
    gates = run_rtl(artifact, machine, operands)
    compared = compare(artifact, run_reference(kernel, knobs, operands, machine).outputs, gates.run.outputs)
    assert compared and all(row.equal for row in compared), compared[0].first
    model = run_model(artifact, machine, operands)
    assert (gates.cycles, gates.flits) == (model.cycles, model.flits)
    assert (gates.dram_read, gates.dram_written) == (model.dram_read, model.dram_written)
    print(f"\n{name} on {machine.name}: {gates.cycles} cycles, {', '.join(f'{r.buffer} {r.bytes} bytes {r.found}' for r in compared)}")
