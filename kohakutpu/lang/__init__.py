"""The kernel language: write a kernel once, trace it once for every shape.

    from kohakutpu import lang as L
    from kohakutpu.lang import dims, kernel, loop, units

    M, K, N = dims("M, K, N")

    @kernel
    def linear_silu(x=L.In(..., M, K), w=L.In(N, K), y=L.Out(..., M, N), *, gm=8, gn=8, nk=2):
        with units(x.tiles(gm), w.tiles(gn)) as (i, j):
            acc = L.tile(gm, gn, nk)
            for k in loop(x.chunks32(nk)):
                acc += x[i, k] @ w[j, k]
            y[i, j] <<= L.silu(acc)

`trace` holds what a traced kernel is; this layer imports neither the compiler nor the interpreter.
"""

from .elementwise import (
    absolute, equal, exp2, fma, gelu, greater, less, log2, maximum, minimum, recip, relu, row_max, row_mean, row_min,
    row_sum, rsqrt, sigmoid, silu, sqrt_approx, sqrt_newton, where,
)  # fmt: skip
from .extents import Extents, ceildiv, dims, plane_rows, resolve
from .kernel import In, Kernel, Out, column_index, kernel, load, row_index, table, temp
from .plane import plane
from .recorder import grid, loop, stage, sweep, units
from .source import KernelError, Source
from .trace import Trace
from .values import region, tile

__all__ = [
    "Extents", "In", "Kernel", "KernelError", "Out", "Source", "Trace", "absolute", "ceildiv", "column_index",
    "dims", "equal", "exp2",
    "fma", "gelu", "greater", "grid", "kernel", "less", "load", "log2", "loop", "maximum", "minimum", "plane", "plane_rows",
    "recip", "region", "relu",
    "resolve", "row_index", "row_max", "row_mean", "row_min", "row_sum", "rsqrt", "sigmoid", "silu", "sqrt_approx",
    "sqrt_newton", "stage", "sweep", "table",
    "temp", "tile", "units", "where",
]  # fmt: skip
