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

from .extents import Extents, ceildiv, dims, resolve
from .kernel import In, Kernel, Out, kernel, load, temp
from .recorder import loop, units
from .source import KernelError, Source
from .trace import Trace
from .values import (
    absolute, exp2, gelu, log2, maximum, minimum, recip, relu, rsqrt, sigmoid, silu, tile,
)  # fmt: skip

__all__ = [
    "Extents", "In", "Kernel", "KernelError", "Out", "Source", "Trace", "absolute", "ceildiv", "dims", "exp2", "gelu",
    "kernel", "load", "log2", "loop", "maximum", "minimum", "recip", "relu", "resolve", "rsqrt", "sigmoid", "silu",
    "temp", "tile", "units",
]  # fmt: skip
