"""Every kernel of the library on the gates of mm_mesh and quad: the interpreter's bytes, and the model's flits and cycles."""

import sys
from pathlib import Path

import pytest

from kohakutpu.machine import load

sys.path.insert(0, str(Path(__file__).parent))
from on_gates import equal_on_gates  # noqa: E402
from running import LIBRARY, small_case  # noqa: E402


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["mm_mesh", "quad"])
@pytest.mark.parametrize("name", LIBRARY)
def test_every_kernel_on_the_gates(name, machine):
    kernel, machine = LIBRARY[name], load(machine)
    shapes, knobs = small_case(kernel)
    gates, compared = equal_on_gates(kernel, shapes, machine, knobs, seed=7)
    print(f"\n{name} on {machine.name}: {gates.cycles} cycles, {', '.join(f'{r.buffer} {r.bytes} bytes {r.found}' for r in compared)}")
