"""Kernels over rows (the last axis): reductions, softmax, norms. Rows of any width.

Nothing of a row is written to memory between its reductions; one that a core's L1 does not hold is read once for each.
"""

from __future__ import annotations

from kohakutpu import lang as L
from kohakutpu.lang import dims, kernel
from kohakutpu.lang.elementwise import LOG2E

M, N, G = dims("M, N, G")


def centred(x):
    """x - mean(x), and the reciprocal of N that made the mean."""
    scale = L.recip(N)
    return x - L.row_sum(x * scale), scale


@kernel
def in_rows(x=L.In(..., M, N), y=L.Out(..., M, N), *, part=8192):
    """x, which then lies row by row: out of the tiles of a product."""
    rows = y.rows_from(0)
    rows <<= x


@kernel
def row_sum(x=L.In(..., M, N), y=L.Out(..., M, 1), *, part=8192):
    """The sum of each row."""
    y <<= L.row_sum(x)


@kernel
def row_max(x=L.In(..., M, N), y=L.Out(..., M, 1), *, part=8192):
    """The greatest element of each row."""
    y <<= L.row_max(x)


@kernel
def row_min(x=L.In(..., M, N), y=L.Out(..., M, 1), *, part=8192):
    """The least element of each row."""
    y <<= L.row_min(x)


@kernel
def row_stats(x=L.In(..., M, N), mean=L.Out(..., M, 1), variance=L.Out(..., M, 1), *, part=8192):
    """The mean of each row, and the mean square of what is left when it is taken off."""
    mean <<= L.row_mean(x, N)
    d, scale = centred(x)
    variance <<= L.row_sum(d * scale * d)


@kernel
def softmax(x=L.In(..., M, N), y=L.Out(..., M, N), *, part=8192):
    """exp(x) / row_sum(exp(x)), the row's maximum taken off first."""
    e = L.exp2((x - L.row_max(x)) * LOG2E)
    y <<= e / L.row_sum(e)


@kernel
def rmsnorm(x=L.In(..., M, N), w=L.In(N), y=L.Out(..., M, N), *, eps=1e-5, part=8192):
    """x / sqrt(mean(x^2) + eps) * w"""
    y <<= x * L.rsqrt(L.row_sum(x * L.recip(N) * x) + eps) * w


@kernel
def layernorm(x=L.In(..., M, N), w=L.In(N), b=L.In(N), y=L.Out(..., M, N), *, eps=1e-5, part=8192):
    """(x - mean) / sqrt(variance + eps) * w + b"""
    d, scale = centred(x)
    y <<= d * L.rsqrt(L.row_sum(d * scale * d) + eps) * w + b


@kernel
def group_norm(x=L.In(..., G, N), w=L.In(G, N), b=L.In(G, N), y=L.Out(..., G, N), *, eps=1e-5, part=8192):
    """The same over groups: x[g] are the elements of group g, all its channels and places; each has its w and b."""
    d, scale = centred(x)
    y <<= d * L.rsqrt(L.row_sum(d * scale * d) + eps) * w + b


@kernel
def group_norm_silu(x=L.In(..., G, N), w=L.In(G, N), b=L.In(G, N), y=L.Out(..., G, N), *, eps=1e-5, part=8192):
    """silu(group_norm(x))"""
    d, scale = centred(x)
    y <<= L.silu(d * L.rsqrt(L.row_sum(d * scale * d) + eps) * w + b)
