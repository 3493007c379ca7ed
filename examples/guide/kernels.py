"""The kernels of the guide in docs/kernels.md: a product, its activation fused, a gated pair, and the layer around it; and
a convolution."""

from kohakutpu import lang as L
from kohakutpu.lang import ceildiv, dims, kernel, loop, units

M, K, F, N, H, W, C = dims("M, K, F, N, H, W, C")


def product(x, w, i, j, gm, gn, nk):
    """The accumulator of x[i, :] @ w[j, :].T."""
    acc = L.tile(gm, gn, nk)
    for k in loop(x.chunks32(nk)):
        acc += x[i, k] @ w[j, k]
    return acc


@kernel
def matmul(x=L.In(M, K), w=L.In(F, K), y=L.Out(M, F), *, gm=4, gn=8, nk=2):
    with units(x.tiles(gm), w.tiles(gn)) as (i, j):
        y[i, j] <<= product(x, w, i, j, gm, gn, nk)


@kernel
def activated(x=L.In(M, K), w=L.In(F, K), y=L.Out(M, F), *, gm=4, gn=8, nk=2):
    with units(x.tiles(gm), w.tiles(gn)) as (i, j):
        y[i, j] <<= L.silu(product(x, w, i, j, gm, gn, nk))


@kernel
def gated(x=L.In(M, K), gate=L.In(F, K), up=L.In(F, K), y=L.Out(M, F), *, gm=4, gn=8, nk=2):
    with units(x.tiles(gm), gate.tiles(gn)) as (i, j):
        g = product(x, gate, i, j, gm, gn, nk)
        u = product(x, up, i, j, gm, gn, nk)
        y[i, j] <<= u * L.silu(g)


@kernel
def layer(x=L.In(M, K), gate=L.In(F, K), up=L.In(F, K), down=L.In(N, F), y=L.Out(M, N), *, gm=4, gn=8, nk=2):
    h = L.temp(M, F)
    with units(x.tiles(gm), gate.tiles(gn)) as (i, j):
        g = product(x, gate, i, j, gm, gn, nk)
        u = product(x, up, i, j, gm, gn, nk)
        h[i, j] <<= u * L.silu(g)
    with units(h.tiles(gm), down.tiles(gn)) as (i, j):
        y[i, j] <<= product(h, down, i, j, gm, gn, nk)


@kernel
def convolution(x=L.In(..., H, W, C), w=L.In(N, 9 * 32 * ceildiv(C, 32)), b=L.In(N), y=L.Out(..., L.plane_rows(H, W), N), *, gm=5, gn=8):
    x = L.plane(x, gm)
    with units(x.tiles, w.tiles(gn)) as (i, j):
        acc = L.tile(gm, gn, 1)
        for s in loop(w.chunks32(1)):
            acc += x[i, 0, x.tap(s)] @ w[j, s]
        y[i, j] <<= L.relu(acc + b[j])
