"""Kernel cycles of the library's vector kernels: the published core's by its own formulas beside our model's.

    python benchmarks/vector_cycles.py

For each kernel of the library that has work for vector cores, every extent 64 unless `SIZES` says, on `quad`, the sum
over its cores: the cycles of our program on the published core, of the published program on it where there is one, and
of our program on ours (memory answering after 20 cycles in all of them). Status 1 when a kernel takes more than half.
"""

from __future__ import annotations

import sys

from kohakutpu import kernels
from kohakutpu.compiler import Artifact, CompileError, Options, compile_kernel
from kohakutpu.conformance.vector_cycles import our_cycles, published_cycles
from kohakutpu.kernels import elementwise
from kohakutpu.lang import Extents, Kernel
from kohakutpu.lang.extents import Expr, names_in
from kohakutpu.machine import load

NO_VECTOR_WORK = ("matmul", "bmm", "linear_transposed", "conv2d")
EXTENT = 64
FUSED = (
    "linear_silu", "linear_relu", "linear_gelu", "linear_scale", "linear_bias", "linear_bias_act", "geglu", "swiglu",
)  # fmt: skip
SIZES = dict.fromkeys(FUSED, {"M": 32}) | {
    "conv2d_bias": {"H": 4, "W": 4, "N": 32}, "conv2d_bias_staged": {"H": 8, "W": 8, "N": 32},
}
KNOBS = dict.fromkeys(FUSED, {"gm": 4, "gn": 8}) | {
    "conv2d_bias": {"gm": 9, "gn": 8}, "attention": {"causal": True},
}  # fmt: skip
ROW = "{:18} {:>22} {:>26} {:>6} {:>8}"


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
    """Every kernel of the library that has work for vector cores."""
    products = [getattr(kernels, name) for name in kernels.__all__ if name not in NO_VECTOR_WORK]
    return [made for made in vars(elementwise).values() if isinstance(made, Kernel)] + products


def shapes_of(kernel: Kernel) -> dict[str, tuple[int, ...]]:
    """The shapes of a kernel's operands at its `SIZES`."""
    axes = [axis for port in kernel.inputs for axis in port.shape if isinstance(axis, Expr)]
    sizes = {name: EXTENT for axis in axes for name in names_in(axis)} | SIZES.get(kernel.name, {})
    extents = Extents(sizes, (EXTENT, EXTENT) if any(port.whole for port in kernel.inputs) else ())
    return {port.name: port.logical_shape(extents) for port in kernel.inputs}


def measure(kernel: Kernel) -> tuple[int, int | None, int]:
    """(our program, the published program) on the published core, and our program on ours."""
    machine, shapes, knobs = load("quad"), shapes_of(kernel), KNOBS.get(kernel.name, {})
    ours = streams(compile_kernel(kernel, machine, shapes, knobs))
    theirs = None
    for constants in ("registers", "arrays"):  # whichever of them has a published program; fused ones are in registers
        try:
            theirs = streams(compile_kernel(kernel, machine, shapes, knobs, Options("published", constants)))
        except CompileError:
            continue
        break
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
