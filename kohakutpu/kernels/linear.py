"""Matrix products with an elementwise end, x @ w.T with w stored [out][in].

Each has one body for both forms: fused by default, and with `fuse=False` through a buffer in memory.
"""

from __future__ import annotations

from kohakutpu import lang as L
from kohakutpu.lang import KernelError, dims, kernel, loop, units

M, K, N = dims("M, K, N")

ACTIVATIONS = {"relu": L.relu, "silu": L.silu, "gelu": L.gelu}


def activation(name: str):
    """The function of that name."""
    if name not in ACTIVATIONS:
        raise KernelError(f"act={name!r} is none of {', '.join(map(repr, ACTIVATIONS))}")
    return ACTIVATIONS[name]


def product(x, w, i, j, gm: int, gn: int, nk: int):
    """The accumulator of x[i, :] @ w[j, :].T."""
    acc = L.tile(gm, gn, nk)
    for k in loop(x.chunks32(nk)):
        acc += x[i, k] @ w[j, k]
    return acc


@kernel
def matmul(a=L.In(..., M, K), b=L.In(N, K), c=L.Out(..., M, N), *, gm=8, gn=8, nk=2):
    """c = a @ b.T"""
    with units(a.tiles(gm), b.tiles(gn)) as (i, j):
        c[i, j] <<= product(a, b, i, j, gm, gn, nk)


@kernel
def linear_transposed(x=L.In(..., M, K), w=L.In(N, K), y=L.Out(..., N, M), *, gm=8, gn=8, nk=2):
    """y = (x @ w.T).T, as attention reads its values: [value][key]"""
    with units(w.tiles(gm), x.tiles(gn)) as (i, j):
        y[i, j] <<= product(w, x, i, j, gm, gn, nk)


@kernel
def bmm(a=L.In(..., M, K), b=L.In(..., N, K), c=L.Out(..., M, N), *, gm=8, gn=8, nk=2):
    """c = a @ b.T for every pair of a batch"""
    with units(a.tiles(gm), b.tiles(gn)) as (i, j):
        c[i, j] <<= product(a, b, i, j, gm, gn, nk)


@kernel
def linear_silu(x=L.In(..., M, K), w=L.In(N, K), y=L.Out(..., M, N), *, gm=8, gn=8, nk=2, fuse=True):
    """y = silu(x @ w.T)"""
    with units(x.tiles(gm), w.tiles(gn)) as (i, j):
        y[i, j] <<= L.silu(product(x, w, i, j, gm, gn, nk))


@kernel
def linear_relu(x=L.In(..., M, K), w=L.In(N, K), y=L.Out(..., M, N), *, gm=8, gn=8, nk=2, fuse=True):
    """y = max(x @ w.T, 0)"""
    with units(x.tiles(gm), w.tiles(gn)) as (i, j):
        y[i, j] <<= L.relu(product(x, w, i, j, gm, gn, nk))


@kernel
def linear_gelu(x=L.In(..., M, K), w=L.In(N, K), y=L.Out(..., M, N), *, gm=8, gn=8, nk=2, fuse=True):
    """y = gelu(x @ w.T), the tanh form"""
    with units(x.tiles(gm), w.tiles(gn)) as (i, j):
        y[i, j] <<= L.gelu(product(x, w, i, j, gm, gn, nk))


@kernel
def linear_scale(x=L.In(..., M, K), w=L.In(N, K), y=L.Out(..., M, N), *, s=1.0, gm=8, gn=8, nk=2, fuse=True):
    """y = s * (x @ w.T)"""
    with units(x.tiles(gm), w.tiles(gn)) as (i, j):
        y[i, j] <<= product(x, w, i, j, gm, gn, nk) * s


@kernel
def linear_bias(x=L.In(..., M, K), w=L.In(N, K), b=L.In(N), y=L.Out(..., M, N), *, gm=8, gn=8, nk=2):
    """y = x @ w.T + b"""
    with units(x.tiles(gm), w.tiles(gn)) as (i, j):
        y[i, j] <<= product(x, w, i, j, gm, gn, nk) + b[j]


@kernel
def linear_bias_act(x=L.In(..., M, K), w=L.In(N, K), b=L.In(N), y=L.Out(..., M, N), *, act="relu", gm=8, gn=8, nk=2):
    """y = act(x @ w.T + b); act is relu, silu or gelu"""
    with units(x.tiles(gm), w.tiles(gn)) as (i, j):
        y[i, j] <<= activation(act)(product(x, w, i, j, gm, gn, nk) + b[j])


@kernel
def linear_silu_staged(x=L.In(..., M, K), w=L.In(N, K), y=L.Out(..., M, N), *, gm=8, gn=8, nk=2, part=8192):
    """y = silu(x @ w.T), the product written to a buffer first"""
    t = L.temp(M, N)
    with units(x.tiles(gm), w.tiles(gn)) as (i, j):
        t[i, j] <<= product(x, w, i, j, gm, gn, nk)
    y <<= L.silu(t)


@kernel
def linear_add(x=L.In(..., M, K), w=L.In(N, K), r=L.In(..., M, N), y=L.Out(..., M, N), *, gm=8, gn=8, nk=2, part=8192):
    """y = x @ w.T + r"""
    t = L.temp(M, N)
    with units(x.tiles(gm), w.tiles(gn)) as (i, j):
        t[i, j] <<= product(x, w, i, j, gm, gn, nk)
    y <<= t + r


@kernel
def linear_add_act(x=L.In(..., M, K), w=L.In(N, K), r=L.In(..., M, N), y=L.Out(..., M, N), *, act="relu", gm=8, gn=8,
                   nk=2, part=8192):  # fmt: skip
    """y = act(x @ w.T + r); act is relu, silu or gelu"""
    t = L.temp(M, N)
    with units(x.tiles(gm), w.tiles(gn)) as (i, j):
        t[i, j] <<= product(x, w, i, j, gm, gn, nk)
    y <<= activation(act)(t + r)


@kernel
def linear_gate_add(x=L.In(..., M, K), w=L.In(N, K), g=L.In(..., M, N), r=L.In(..., M, N), y=L.Out(..., M, N), *, gm=8,
                    gn=8, nk=2, part=8192):  # fmt: skip
    """y = r + g * (x @ w.T)"""
    t = L.temp(M, N)
    with units(x.tiles(gm), w.tiles(gn)) as (i, j):
        t[i, j] <<= product(x, w, i, j, gm, gn, nk)
    y <<= r + g * t


@kernel
def geglu(x=L.In(..., M, K), wg=L.In(N, K), wu=L.In(N, K), y=L.Out(..., M, N), *, gm=8, gn=8, nk=2, fuse=True):
    """y = (x @ wu.T) * gelu(x @ wg.T)"""
    with units(x.tiles(gm), wg.tiles(gn)) as (i, j):
        gate = product(x, wg, i, j, gm, gn, nk)
        up = product(x, wu, i, j, gm, gn, nk)
        y[i, j] <<= up * L.gelu(gate)


@kernel
def swiglu(x=L.In(..., M, K), wg=L.In(N, K), wu=L.In(N, K), y=L.Out(..., M, N), *, gm=8, gn=8, nk=2, fuse=True):
    """y = (x @ wu.T) * silu(x @ wg.T)"""
    with units(x.tiles(gm), wg.tiles(gn)) as (i, j):
        gate = product(x, wg, i, j, gm, gn, nk)
        up = product(x, wu, i, j, gm, gn, nk)
        y[i, j] <<= up * L.silu(gate)
