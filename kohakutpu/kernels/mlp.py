"""Two products with an activation between them; the hidden values stay on the machine.

They leave the first product as tiles and enter the second as operands: the vector cores copy them into that order.
"""

from __future__ import annotations

from kohakutpu import lang as L
from kohakutpu.lang import dims, kernel, units

from .linear import activation, product

M, K, F, N = dims("M, K, F, N")

@kernel
def mlp(x=L.In(..., M, K), up=L.In(F, K), down=L.In(N, F), y=L.Out(..., M, N), *, act="silu", gm=8, gn=8, nk=2,
        part=8192):  # fmt: skip
    """y = act(x @ up.T) @ down.T; act is relu, silu, gelu or None"""
    t = L.temp(M, F)
    with units(x.tiles(gm), up.tiles(gn)) as (i, j):
        t[i, j] <<= product(x, up, i, j, gm, gn, nk)
    h = t
    if act is not None:
        h = L.temp(M, F)
        h <<= activation(act)(t)
    with units(h.tiles(gm), down.tiles(gn)) as (i, j):
        y[i, j] <<= product(h, down, i, j, gm, gn, nk)


@kernel
def gated_mlp(x=L.In(..., M, K), gate=L.In(F, K), up=L.In(F, K), down=L.In(N, F), y=L.Out(..., M, N), *, act="silu",
              gm=8, gn=8, nk=2, part=8192):  # fmt: skip
    """y = (act(x @ gate.T) * (x @ up.T)) @ down.T"""
    g, u, h = L.temp(M, F), L.temp(M, F), L.temp(M, F)
    with units(x.tiles(gm), gate.tiles(gn)) as (i, j):
        g[i, j] <<= product(x, gate, i, j, gm, gn, nk)
        u[i, j] <<= product(x, up, i, j, gm, gn, nk)
    h <<= (g if act is None else activation(act)(g)) * u
    with units(h.tiles(gm), down.tiles(gn)) as (i, j):
        y[i, j] <<= product(h, down, i, j, gm, gn, nk)
