"""How many cycles a second the gates run at in Verilator and Icarus, beside the cycle model, for the fused example
kernel.

    python benchmarks/rtl_speed.py [machine ...]

Default: mm_mesh and quad. Builds are taken from the cache, so run it twice to see what a compile costs.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kohakutpu.cli.kernel_options import read_array  # noqa: E402
from kohakutpu.cli.sim import EXAMPLES, cases  # noqa: E402
from kohakutpu.compiler import compile_kernel  # noqa: E402
from kohakutpu.host.simulate import run_model  # noqa: E402
from kohakutpu.lang.kernel import load as load_kernel  # noqa: E402
from kohakutpu.machine import load  # noqa: E402
from sim.kernels import run_rtl  # noqa: E402
from sim.machine import build  # noqa: E402
from sim.runner import SIMULATORS  # noqa: E402


def rows(name: str):
    """(machine, what ran it, seconds to build, cycles, seconds to run) of each engine, with equal results."""
    machine = load(name)
    _, reference, knobs, files = cases(machine)[0]
    kernel = load_kernel(reference)
    operands = {operand: read_array(operand, str(EXAMPLES / file)) for operand, file in files.items()}
    artifact = compile_kernel(kernel, machine, {n: a.shape for n, a in operands.items()}, knobs)
    start = time.perf_counter()
    model = run_model(artifact, machine, operands)
    yield name, "model", 0.0, model.cycles, time.perf_counter() - start
    for simulator in SIMULATORS:
        start = time.perf_counter()
        build(machine, simulator=simulator)
        built = time.perf_counter() - start
        gates = run_rtl(artifact, machine, operands, simulator=simulator)
        assert gates.run.images == model.run.images, f"{name} under {simulator}: the image is not the model's"
        yield name, simulator, built, gates.simulated, gates.seconds


def main(machines: list[str]) -> None:
    table = Table("machine", "engine", box=None)
    for title in ("build, s", "cycles", "run, s", "cycles/s"):
        table.add_column(title, justify="right")
    for name in machines:
        for machine, engine, built, cycles, seconds in rows(name):
            table.add_row(machine, engine, f"{built:.1f}", f"{cycles:,}", f"{seconds:.2f}", f"{cycles / seconds:,.0f}")
    Console(width=None if Console().is_terminal else 100).print(table)


if __name__ == "__main__":
    main(sys.argv[1:] or ["mm_mesh", "quad"])
