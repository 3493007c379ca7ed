"""Time to trace and to compile the kernel library, and what the largest product takes.

    python benchmarks/compile_speed.py [--json FILE]

Compiling is everything from a trace to an artifact: stages, byte orders, memory, instructions, rounds; nothing is left
to be refused later. A 4096x4096x4096 matmul with chosen tiles must take less than 5 seconds of processor time and 1
GiB.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

import kohakutpu.kernels
from kohakutpu.compiler import CompileError, compile_kernel
from kohakutpu.kernels import elementwise, matmul
from kohakutpu.lang.extents import Expr, Extents, names_in
from kohakutpu.lang.kernel import Kernel
from kohakutpu.machine import Machine, load

EXTENT = 64  # of every dim of the library's kernels
LARGE = {"a": (4096, 4096), "b": (4096, 4096)}
MOST_SECONDS, MOST_BYTES = 5.0, 1 << 30


def library() -> list[Kernel]:
    """Every kernel of the library."""
    products = [getattr(kohakutpu.kernels, name) for name in kohakutpu.kernels.__all__]
    return products + [made for made in vars(elementwise).values() if isinstance(made, Kernel)]


def shapes_of(kernel: Kernel) -> dict[str, tuple[int, ...]]:
    """Shapes of a kernel's operands with every dim `EXTENT`."""
    axes = [axis for port in kernel.inputs for axis in port.shape if isinstance(axis, Expr)]
    lead = (EXTENT, EXTENT) if any(port.whole for port in kernel.inputs) else ()
    extents = Extents({name: EXTENT for axis in axes for name in names_in(axis)}, lead)
    return {port.name: port.logical_shape(extents) for port in kernel.inputs}


def measure(kernel: Kernel, machine: Machine, shapes: dict, knobs: dict) -> dict:
    """Processor seconds to trace and to compile, and how much came out."""
    begin = time.process_time()
    Kernel(kernel.function).trace(**{name: 8 if value == "auto" else value for name, value in knobs.items()})
    traced = time.process_time()
    row = {"kernel": kernel.name, "machine": machine.name, "shapes": "x".join(map(str, next(iter(shapes.values()))))}
    try:
        artifact = compile_kernel(kernel, machine, shapes, knobs)
    except CompileError as error:
        return row | {"trace": traced - begin, "compile": None, "flits": 0, "refused": str(error).splitlines()[0]}
    seconds = time.process_time() - traced
    return row | {"trace": traced - begin, "compile": seconds, "flits": artifact.flit_count, "refused": None}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    machine = load("ship_3x2")
    rows = [measure(kernel, machine, shapes_of(kernel), {}) for kernel in library()]
    large = measure(matmul, load("2x4"), LARGE, dict.fromkeys(("gm", "gn", "nk"), "auto"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    console = Console(width=None if Console().is_terminal else 130)
    table = Table("kernel", "machine", "first operand", "trace ms", "compile ms", "flits", "", box=None)
    for row in [*rows, large]:
        compiled = "refused" if row["compile"] is None else f"{1000 * row['compile']:.1f}"
        table.add_row(
            row["kernel"], row["machine"], row["shapes"], f"{1000 * row['trace']:.1f}", compiled, f"{row['flits']:,}",
            row["refused"] or "",
        )  # fmt: skip
    console.print(table)
    seconds = large["trace"] + large["compile"]
    used = f"peak memory {peak / 2**20:.0f} MiB of at most {MOST_BYTES >> 20}"
    console.print(f"4096x4096x4096: {seconds:.2f} s of at most {MOST_SECONDS:.0f}; {used}")
    if args.json:
        args.json.write_text(json.dumps({"rows": [*rows, large], "peak_bytes": peak}, indent=1) + "\n")
    return 0 if seconds < MOST_SECONDS and peak < MOST_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
