"""Kernels in whose tilings clusters and vector cores take turns."""

import math

import numpy as np

from kohakutpu import lang as L
from kohakutpu.kernels.linear import product
from kohakutpu.lang import dims, kernel, loop, units

M, K, N, F = dims("M, K, N, F")
LOG2E = math.log2(math.e)


@kernel
def product_then_gate(x=L.In(..., M, K), w=L.In(N, K), r=L.In(..., M, N), b=L.In(N), y=L.Out(..., M, N), *, gm=2, gn=2, nk=1):
    """A stored product, and elementwise work on it that no fused store could do."""
    t = L.temp(M, N)
    with units(x.tiles(gm), w.tiles(gn)) as (i, j):
        t[i, j] <<= product(x, w, i, j, gm, gn, nk)
        y[i, j] <<= L.silu(t[i, j]) * r[i, j] + b[j]


@kernel
def scaled_operand(x=L.In(..., M, K), w=L.In(N, K), y=L.Out(..., M, N), *, gm=2, gn=2, nk=1):
    """Elementwise work on an operand, tile by tile, then its product."""
    t = L.temp(M, K)
    with units(x.tiles(gm)) as i:
        for c in loop(x.columns(8)):
            t[i, c] <<= L.relu(x[i, c]) * 0.5
        for j in loop(w.tiles(gn)):
            y[i, j] <<= product(t, w, i, j, gm, gn, nk)


@kernel
def parts_of_an_operand(x=L.In(M, 64), w=L.In(N, 64), y=L.Out(M, N), *, gm=2, gn=2, nk=1):
    """Parts of a temp, of as many elements as a row of tiles has, then its product."""
    t = L.temp(M, 64)
    with units(x.tiles(gm)) as i:
        t[t.parts(256 * gm).at(i)] <<= L.gelu(x[x.parts(256 * gm).at(i)])
        for j in loop(w.tiles(gn)):
            y[i, j] <<= product(t, w, i, j, gm, gn, nk)


@kernel
def mlp_in_one(x=L.In(..., M, K), up=L.In(F, K), down=L.In(N, F), y=L.Out(..., M, N), *, gm=2, gn=8, nk=1):
    """Clusters, vector cores, clusters: the second product reads what the instances of a whole row have computed."""
    h = L.temp(M, F)
    with units(x.tiles(gm), up.tiles(gn)) as (i, f):
        h[i, f] <<= L.silu(product(x, up, i, f, gm, gn, nk))
        acc = L.tile(gm, gn, nk)
        for k in loop(h.chunks32(nk)):
            acc += h[i, k] @ down[down.tiles(gn).at(f), k]
        y[i, y.columns(gn).at(f)] <<= acc


@kernel
def softmax_in_one(x=L.In(..., M, K), w=L.In(32, K), b=L.In(32), y=L.Out(..., M, 32), *, gm=2, gn=8, nk=1):
    """A product with a table of ones has the sum of a row in each of its elements."""
    ones = L.table(np.ones((32, 32)))
    e, s = L.temp(M, 32), L.temp(M, 32)
    with units(x.tiles(gm), w.tiles(gn)) as (i, j):
        e[i, j] <<= L.exp2((product(x, w, i, j, gm, gn, nk) + b[j]) * LOG2E)
        s[i, j] <<= product(e, ones, i, j, gm, gn, nk)
        y[i, j] <<= e[i, j] / s[i, j]


@kernel
def running_mean(x=L.In(..., M, K), w=L.In(N, K), y=L.Out(..., M, N), *, gm=2, gn=2, nk=1, turns=3):
    """A loop inside the tiling: every turn overwrites the temp that the turn before has read."""
    t = L.temp(M, N)
    y <<= 0.0
    with units(x.tiles(gm), w.tiles(gn)) as (i, j):
        for _ in loop(turns):
            t[i, j] <<= L.silu(product(x, w, i, j, gm, gn, nk))
            y[i, j] <<= (y[i, j] + t[i, j]) * 0.75


@kernel
def row_by_row(x=L.In(..., M, K), w=L.In(N, K), y=L.Out(..., M, N), *, gm=2, gn=2, nk=1):
    """A loop outside: each turn's tiling writes a row of tiles of both buffers."""
    t = L.temp(M, N)
    for s in loop(x.tiles(gm)):
        with units(w.tiles(gn)) as j:
            t[s, j] <<= product(x, w, s, j, gm, gn, nk)
            y[s, j] <<= L.exp2(t[s, j]) + t[s, j]


@kernel
def parts_by_turns(x=L.In(..., M, 32), w=L.In(N, 32), y=L.Out(..., M, N), *, gm=2, gn=2, nk=1):
    """A loop outside whose tilings write a part of an operand each; the product follows when all are there."""
    t = L.temp(M, 32)
    for s in loop(t.parts(48)):
        with units(1):
            t[s] <<= x[s] * 0.5
    with units(t.tiles(gm), w.tiles(gn)) as (i, j):
        y[i, j] <<= product(t, w, i, j, gm, gn, nk)


@kernel
def triangle(x=L.In(..., M, K), w=L.In(N, K), y=L.Out(..., M, N), *, gm=1, gn=1, nk=1):
    """Instance i takes i + 1 turns, and leaves the rest as it is."""
    t = L.temp(M, N)
    y <<= -1.0
    with units(x.tiles(gm)) as i:
        for j in loop(i + 1):
            t[i, t.columns(gn).at(j)] <<= product(x, w, i, w.tiles(gn).at(j), gm, gn, nk)
            y[i, y.columns(gn).at(j)] <<= t[i, t.columns(gn).at(j)] * 2


@kernel
def elementwise_tiles(x=L.In(..., M, N), r=L.In(..., M, N), y=L.Out(..., M, N), *, gm=2, gn=2):
    """No product at all: elementwise work tile by tile, in place."""
    with units(x.tiles(gm), x.columns(gn)) as (i, j):
        y[i, j] <<= x[i, j]
        y[i, j] <<= y[i, j] * r[i, j] + 1


@kernel
def elementwise_turns(r=L.In(..., M, N), y=L.Out(..., M, N), z=L.Out(..., M, N), *, gm=2, gn=2):
    """Turns of a loop that all write the same tiles, so that they stay turns."""
    y <<= r
    z <<= 0.0
    with units(r.tiles(gm), r.columns(gn)) as (i, j):
        for _ in loop(3):
            y[i, j] <<= y[i, j] * 0.5
            z[i, j] <<= z[i, j] + y[i, j]


@kernel
def rows_in_place(x=L.In(..., M, K), w=L.In(N, K), y=L.Out(..., M, N), *, gm=2, gn=2, nk=1):
    """A loop outside, and two stores one after the other of which one is in place."""
    t, u = L.temp(M, N), L.temp(M, N)
    y <<= 1.0
    for s in loop(x.tiles(gm)):
        with units(w.tiles(gn)) as j:
            t[s, j] <<= product(x, w, s, j, gm, gn, nk)
            u[s, j] <<= t[s, j] * 2
            y[s, j] <<= y[s, j] * 0.5 + u[s, j]


@kernel
def first_row_again(r=L.In(..., M, N), y=L.Out(..., M, N), z=L.Out(..., M, N), *, gm=2, gn=2):
    """All of a temp by one statement, and its first row of tiles by another."""
    t = L.temp(M, N)
    t <<= r * 2
    z <<= t + 1
    with units(r.columns(gn)) as j:
        t[t.tiles(gm).at(0), j] <<= r[r.tiles(gm).at(0), j] * 3
        z[z.tiles(gm).at(0), j] <<= r[r.tiles(gm).at(0), j] * 0.5
    y <<= t
