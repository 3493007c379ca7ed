"""XPU kernels on the gates: programs of the ktpu back end give the interpreter's bytes, in the models' cycles."""

from pathlib import Path

import numpy as np
import pytest

from kohakutpu.backends.ktpu import KtpuBackEnd
from kohakutpu.conformance.xpu.load import module_of
from kohakutpu.host.simulate import run_model
from kohakutpu.reference.xpu import MACHINE, Launch, run
from kohakutpu.xpu.launch import Request
from sim.kernels import run_rtl


@pytest.fixture(scope="module")
def bench():
    """tests/xpu/test_ktpu.py, whose kernels and cases these are."""
    return module_of(Path(__file__).resolve().parents[1] / "xpu/test_ktpu.py")


def gemm(bench):
    x, w = bench.random(bench.f16, 32 * 64, deviation=0.5), bench.random(bench.f16, 32 * 64, seed=7, deviation=0.5)
    return [np.full(32 * 32, 7, np.float16), x, w, 64, 32, 1], {"grid": (2, 2)}


ARGUMENTS = {"gemm": gemm, "attention": lambda bench: bench.attending(2, 64)}
LONG = ["attention", "saxpy", "gelu", "softmax", "softmax_of_a_wave", "gemm"]
NAMES = ["rmsnorm", *(pytest.param(name, marks=pytest.mark.slow) for name in LONG)]


@pytest.mark.parametrize("name", NAMES)
def test_interpreter_model_and_gates_agree(bench, name):
    declared = bench.kernels_by_name()[name]
    arguments, how = ARGUMENTS[name](bench) if name in ARGUMENTS else bench.CASES[name]()
    grid, block = (bench.corner(how.get(key, default)) for key, default in (("grid", 1), ("block", 16)))
    expected = [np.copy(a) if isinstance(a, np.ndarray) else a for a in arguments]
    run(declared, expected, Launch(grid, block, 16), MACHINE)
    lowered = KtpuBackEnd("mm_mesh").lower(Request(declared, grid, block, 0, tuple(arguments)))

    def both(artifact, operands):
        model = run_model(artifact, lowered.machine, operands)
        gates = run_rtl(artifact, lowered.machine, operands)
        assert gates.run.images == model.run.images and gates.flits == model.flits and gates.hops == model.hops
        assert gates.cycles == model.cycles
        return gates.run

    assert lowered.run(both) > 0
    for found, wanted in zip(arguments, expected, strict=True):
        if isinstance(found, np.ndarray):
            assert found.tobytes() == wanted.tobytes()
