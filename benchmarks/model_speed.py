"""Speed of the cycle models: simulated cycles a second and host time a flit-hop, event skipping on and off.

    python benchmarks/model_speed.py [--quick] [--json FILE]

Every case runs with skipping on and off in this one process; both must take the same number of cycles. The time is
that of the machine alone: building it, packing operands and interpreting the kernel are left out.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from kohakutpu.compiler import compile_kernel
from kohakutpu.host.driver import Driver
from kohakutpu.host.loader import Loader
from kohakutpu.host.model_transport import ModelTransport
from kohakutpu.kernels.linear import linear_silu, matmul
from kohakutpu.machine import load
from kohakutpu.model.system import System

# (machine, kernel, operand shapes, knobs)
FUSED = (linear_silu, {"x": (32, 64), "w": (32, 64)}, {"gm": 8, "gn": 8})
LARGE = (matmul, {"a": (512, 512), "b": (512, 512)}, {"gm": 16, "gn": 16, "nk": 2})
CASES = [("mm_mesh", *FUSED), ("quad", *FUSED), ("ship_3x2", *FUSED), ("ship_3x2", *LARGE)]


def measure(machine_name: str, kernel, shapes, knobs, *, skip: bool, repeat: int) -> dict:
    """The best of `repeat` runs: cycles, flit-hops, seconds, block steps."""
    machine = load(machine_name)
    artifact = compile_kernel(kernel, machine, shapes, knobs)
    random = np.random.default_rng(0)
    operands = {name: random.normal(0, 0.3, shape).astype(np.float16) for name, shape in shapes.items()}
    best = None
    for _ in range(repeat):
        system = System(machine, skip=skip)
        loader = Loader(Driver(ModelTransport(system)))
        loader.load(artifact, operands)
        begin_cycles = system.engine.now
        begin = time.perf_counter()
        run = loader.execute(artifact)
        seconds = time.perf_counter() - begin
        row = {
            "machine": machine_name, "kernel": kernel.name, "skip": skip, "cycles": int(run.elapsed),
            "seconds": seconds,
            "simulated": system.engine.now - begin_cycles, "hops": system.traffic().hops, "steps": system.engine.steps,
        }  # fmt: skip
        if best is None or seconds < best["seconds"]:
            best = row
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only the small kernels")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    rows, differing = [], 0
    for case in CASES[:3] if args.quick else CASES:
        large = case[1] is matmul
        pair = [measure(*case, skip=skip, repeat=1 if large else 5) for skip in (True, False)]
        differing += pair[0]["cycles"] != pair[1]["cycles"]
        rows += pair
    console = Console(width=None if Console().is_terminal else 130)
    table = Table(
        "machine", "kernel", "skipping", "cycles", "flit-hops", "seconds", "cycles/s", "us/flit-hop", "speed-up",
        box=None,
    )  # fmt: skip
    for on, off in zip(rows[::2], rows[1::2]):
        for row in (on, off):
            table.add_row(
                row["machine"], row["kernel"], "on" if row["skip"] else "off", f"{row['cycles']:,}", f"{row['hops']:,}",
                f"{row['seconds']:.4f}", f"{row['simulated'] / row['seconds']:,.0f}",
                f"{1e6 * row['seconds'] / row['hops']:.1f}",
                f"{off['seconds'] / on['seconds']:.1f}" if row["skip"] else "",
            )  # fmt: skip
    console.print(table)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    console.print(f"peak memory {peak:.0f} MiB; {differing} cases whose cycles differ with skipping")
    if args.json:
        args.json.write_text(json.dumps({"rows": rows, "peak_mib": peak}, indent=1) + "\n")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
