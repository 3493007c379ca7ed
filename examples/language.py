"""The kernel language, a construct at a time: what each kernel here quotes are lines of the tables in docs/kernels.md.

    kohakutpu run examples/language.py:walked --machine quad --random 1 --shape x=13x70 --shape w=24x70
"""

import numpy as np

from kohakutpu import lang as L
from kohakutpu.lang import ceildiv, dims, grid, kernel, loop, stage, sweep, units

M, K, N, H, W, C = dims("M, K, N, H, W, C")


def product(x, w, i, j, gm, gn, nk=1):
    """The accumulator of x[i, :] @ w[j, :].T."""
    acc = L.tile(gm, gn, nk)
    for k in loop(x.chunks32(nk)):
        acc += x[i, k] @ w[j, k]
    return acc


# ---- tilings and loops -----------------------------------------------------------------------------------


@kernel
def tiled(x=L.In(..., M, K), w=L.In(N, K), y=L.Out(..., M, N), *, gm=2, gn=3, nk=2):
    """
    `units(a, b)`
    `loop(n)`
    `buf.tiles(g)`
    `buf.chunks32(n)`
    `L.tile(gm, gn, nk)`
    `acc += a[i, k] @ b[j, k]`
    `y[i, j] <<= acc`
    """
    with units(x.tiles(gm), w.tiles(gn), names=("row", "column")) as (i, j):
        acc = L.tile(gm, gn, nk)
        for k in loop(x.chunks32(nk), name="chunk"):
            acc += x[i, k] @ w[j, k]
        y[i, j] <<= acc


@kernel
def walked(x=L.In(..., M, K), w=L.In(N, K), y=L.Out(..., M, N), *, gm=2, gn=3):
    """
    `units(a, b)`, inside another one
    `buf.columns(g)`
    """
    with stage(x.tiles(gm)) as i:
        with units(y.columns(gn)) as j:
            acc = L.tile(gm, gn, 1)
            for k in sweep(x.chunks32(1)):
                acc += x[i, k] @ w[w.tiles(gn).at(j), k]
            y[i, j] <<= acc


@kernel
def in_turns(x=L.In(..., M, K), w=L.In(N, K), y=L.Out(..., M, N), *, gm=2, gn=3):
    """
    `loop(n)`, outside units
    `x[x.tiles(g).at(b), k]`
    """
    total, part = L.temp(M, N), L.temp(M, N)
    total <<= 0.0
    for s in loop(ceildiv(K, 32)):
        for i, j in grid(x.tiles(gm), w.tiles(gn)):
            acc = L.tile(gm, gn, 1)
            acc += x[i, x.chunks32(1).at(s)] @ w[j, w.chunks32(1).at(s)]
            part[i, j] <<= acc
        total <<= total + part * (s + 1)
    y <<= total


@kernel
def moved_down(x=L.In(..., M, K), w=L.In(N, K), y=L.Out(..., M, N), *, gm=2, gn=3):
    """
    `a[i, k, r]` in a product
    """
    with units(x.tiles(gm), w.tiles(gn)) as (i, j):
        acc = L.tile(gm, gn, 1)
        for r in loop(3):
            for k in loop(x.chunks32(1)):
                acc += x[i, k, r] @ w[j, k]
        y[i, j] <<= acc


@kernel
def image(x=L.In(..., H, W, C), w=L.In(N, 9 * 32 * ceildiv(C, 32)), y=L.Out(..., L.plane_rows(H, W), N), *, gm=3, gn=3):
    """
    `p = L.plane(x, gm)`, `p[i, 0, p.tap(s)]` in a product
    `L.plane_rows(H, W)`
    """
    p = L.plane(x, gm)
    with units(p.tiles, w.tiles(gn)) as (i, j):
        acc = L.tile(gm, gn, 1)
        for s in loop(w.chunks32(1)):
            acc += p[i, 0, p.tap(s)] @ w[j, s]
        y[i, j] <<= acc


@kernel
def placed(x=L.In(..., M, K), w=L.In(N, K), y=L.Out(..., M, N), *, gm=2, gn=3):
    """
    `p = L.region(g, n)`, `p <<= a[i, k]`, `acc += p @ q`
    """
    with units(x.tiles(gm), w.tiles(gn)) as (i, j):
        acc, p, q = L.tile(gm, gn, 1), L.region(gm, 1), L.region(gn, 1)
        for k in loop(x.chunks32(1)):
            p <<= x[i, k]
            q <<= w[j, k]
            acc += p @ q
        y[i, j] <<= acc


# ---- fused epilogues -------------------------------------------------------------------------------------


@kernel
def fused(x=L.In(..., M, K), w=L.In(N, K), b=L.In(N), y=L.Out(..., M, N), *, gm=4, gn=6, fuse=True):
    """
    `y[i, j] <<= value`
    `b[j]` in a tile's value
    `fuse=False`
    """
    with units(x.tiles(gm), w.tiles(gn)) as (i, j):
        y[i, j] <<= L.silu(product(x, w, i, j, gm, gn) + b[j]) / K


@kernel
def gated(x=L.In(..., M, K), gate=L.In(N, K), up=L.In(N, K), y=L.Out(..., M, N), *, gm=4, gn=6):
    """
    `y[i, j] <<= value`, over two accumulators
    """
    scale = L.column_index(N)
    with units(x.tiles(gm), gate.tiles(gn)) as (i, j):
        opened = product(x, gate, i, j, gm, gn)
        passed = product(x, up, i, j, gm, gn)
        y[i, j] <<= L.where(L.greater(opened, 0.25), L.fma(passed, opened, scale[j]), -passed)


@kernel
def computed(x=L.In(..., M, K), w=L.In(N, K), r=L.In(..., M, N), b=L.In(N), y=L.Out(..., M, N), *, gm=2, gn=3):
    """
    `y[i, j] <<= value` without an accumulator
    """
    t = L.temp(M, N)
    with units(x.tiles(gm), w.tiles(gn)) as (i, j):
        t[i, j] <<= product(x, w, i, j, gm, gn)
        y[i, j] <<= L.silu(t[i, j]) * r[i, j] + b[j]


@kernel
def in_runs(x=L.In(..., M, K), w=L.In(N, K), r=L.In(..., M, N), b=L.In(N), y=L.Out(..., M, N), *, gm=2, gn=3):
    """
    `y[i, j] <<= value` without an accumulator
    `a ** n`
    """
    t = L.temp(M, N)
    with units(x.tiles(gm), w.tiles(gn)) as (i, j):
        t[i, j] <<= product(x, w, i, j, gm, gn)
        y[i, j] <<= t[i, j] ** 2 * r[i, j] + b[j]


# ---- whole buffers and their parts -----------------------------------------------------------------------


@kernel
def any_shape(a=L.In(...), b=L.In(...), y=L.Out(...), *, part=64):
    """
    `y <<= value`
    `part=8192`
    `a + b`, `a - b`, `a * b`
    `a / b`
    `a ** n`
    `-a`, `abs(a)`
    `maximum(a, b)`, `minimum(a, b)`
    """
    y <<= L.maximum(-a + 1.5, L.minimum(a * b, 0.5)) - abs(b) / 3 + b**2


@kernel
def functions(x=L.In(..., M, N), y=L.Out(..., M, N)):
    """
    `exp2(a)`, `log2(a)`, `recip(a)`, `rsqrt(a)`
    `fma(a, b, c)`
    `where(less(a, b), t, f)`
    `sqrt_approx(v)`
    `sqrt_newton(v)`
    """
    size = L.absolute(x) + 0.25
    roots = L.sqrt_approx(size) + L.sqrt_newton(size) * L.rsqrt(size)
    y <<= L.where(L.less(x, 0), L.fma(L.log2(size), 2, roots), L.where(L.equal(x, 0), 0, L.exp2(-size) + L.recip(size)))


@kernel
def activations(x=L.In(..., M, N), a=L.Out(..., M, N), b=L.Out(..., M, N)):
    """
    `sigmoid(v)`
    `silu(v)`
    `relu(v)`
    `gelu(v)`
    """
    a <<= L.sigmoid(x) + L.relu(x)
    b <<= L.gelu(x) - L.silu(x)


@kernel
def by_parts(x=L.In(..., M, N), w=L.In(..., M, N), y=L.Out(..., M, N), *, p=64):
    """
    `buf.parts(p)`
    `y[e] <<= value`
    """
    with units(x.parts(p)) as e:
        y[e] <<= x[e] * w[e] + 1


@kernel
def tables(x=L.In(..., M, N), y=L.Out(..., M, N), *, period=3):
    """
    `L.table(array)`
    `L.column_index(N)`, `L.row_index(M, period)`
    `L.temp(M, N)`
    """
    t = L.temp(M, N)
    t <<= L.where(L.greater(L.column_index(N), L.row_index(M, period)), -1, x)
    y <<= t * L.table(np.linspace(-1, 1, 24))


# ---- rows ------------------------------------------------------------------------------------------------


@kernel
def row_numbers(x=L.In(..., M, N), y=L.Out(..., M, N), spread=L.Out(..., M, 1)):
    """
    `row_sum(v)`, `row_max(v)`, `row_min(v)`
    """
    spread <<= L.row_max(x) - L.row_min(x)
    y <<= (x - L.row_mean(x, N)) * L.rsqrt(L.row_sum(x * x) + 1e-5)


@kernel
def other_rows(x=L.In(..., 12, 48), s=L.In(4, 48), y=L.Out(..., 12, 48)):
    """
    `x.as_rows(width)`
    `x.rows_from(first, count)`
    `x.per_group(rows)`
    `x.repeated()`
    """
    t = L.temp(12, 48)
    folded = t.as_rows(16)
    folded <<= x.as_rows(16) - L.row_max(x.as_rows(16))
    for n in loop(3):
        quarter = y.rows_from(n * 4, 4)
        quarter <<= t.rows_from(8 - n * 4, 4) * (n + 1) + s
    last = y.rows_from(0)
    last <<= y - t.per_group(4) + s.repeated()
