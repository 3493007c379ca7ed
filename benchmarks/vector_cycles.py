"""Kernel cycles of the library's vector kernels: the published core's by its own formulas beside our model's.

    python benchmarks/vector_cycles.py

For each kernel, at 64x64 on one vector core of `quad` (fused epilogues: at 32x64 @ 64x64, on all four): the cycles of
our program on the published core, of the published program on it where there is one, and of our program on ours
(memory answering after 20 cycles in all of them). Status 1 when a kernel takes more than half.
"""

from __future__ import annotations

import sys

from kohakutpu.compiler import Artifact, CompileError, Options, compile_kernel
from kohakutpu.conformance.vector_cycles import our_cycles, published_cycles
from kohakutpu.kernels import elementwise, linear, rows
from kohakutpu.lang import Kernel
from kohakutpu.machine import load

SHAPE = (64, 64)
FUSED = [linear.linear_silu, linear.linear_relu, linear.linear_gelu, linear.linear_scale, linear.linear_bias,
         linear.geglu, linear.swiglu]  # fmt: skip
ROW = "{:14} {:>22} {:>26} {:>6} {:>8}"


def streams(artifact: Artifact) -> list[list[int]]:
    """The instructions of each vector core, in order."""
    found: dict[int, list[int]] = {}
    for round_ in artifact.rounds:
        if artifact.stages[round_.stage].unit == "vector":
            for kick in round_.kicks:
                flits = round_.flits[kick.base : kick.base + kick.count]
                found.setdefault(kick.node, []).extend(flit.payload for flit in flits)
    return list(found.values())


def vector_kernels() -> list[Kernel]:
    """Every kernel of the library that works on vector cores."""
    found = [made for module in (elementwise, rows) for made in vars(module).values() if isinstance(made, Kernel)]
    return found + FUSED


def measure(kernel: Kernel) -> tuple[int, int | None, int]:
    """(our program, the published program) on the published core, and our program on ours."""
    if kernel in FUSED:
        shapes = {port.name: {"x": (32, 64), "b": (64,)}.get(port.name, (64, 64)) for port in kernel.inputs}
        knobs, published = {"gm": 4, "gn": 8}, Options("published")
    else:
        shapes = {port.name: SHAPE if port.batched else SHAPE[-len(port.shape) :] for port in kernel.inputs}
        knobs, published = {}, Options("published", "arrays")
    machine = load("quad")
    ours = streams(compile_kernel(kernel, machine, shapes, knobs))
    try:
        theirs = streams(compile_kernel(kernel, machine, shapes, knobs, published))
    except CompileError:
        theirs = None
    sums = [[sum(count(stream)) for stream in ours] for count in (published_cycles, our_cycles)]
    published = None if theirs is None else sum(sum(published_cycles(stream)) for stream in theirs)
    return sum(sums[0]), published, sum(sums[1])


def main() -> int:
    print(ROW.format("kernel", "our program, their core", "their program, their core", "ours", "ratio"))
    slow = 0
    for kernel in vector_kernels():
        same, published, ours = measure(kernel)
        worst = ours / min(same, published or same)
        slow += worst > 0.5
        print(ROW.format(kernel.name, same, published or "-", ours, f"{worst:.3f}"))
    return int(slow > 0)


if __name__ == "__main__":
    sys.exit(main())
