"""Convolutions over a padded plane: 3x3, stride 1, zero border, as nine products that read one operand from nine rows.

An image of H x W positions with a border of zeros is a matrix of (H+2)*(W+2) rows and a column for each channel; the row
of output position p is the sum over the nine taps of row p + tap times that tap's weights. Rows of the result that
belong to the border hold values that mean nothing; `positions` names the others.
"""

from __future__ import annotations

import numpy as np

from kohakutpu import lang as L
from kohakutpu.lang import KernelError, dims, kernel, loop, units

P, C, N = dims("P, C, N")
TAPS = 3
GRAIN = 32  # channels that a tap's weights are padded to


def convolved(x, w, i, j, width: int, gm: int, gn: int):
    """The accumulator of tile (i, j): `width` is that of the plane, border included."""
    if isinstance(width, bool) or not isinstance(width, int) or width < TAPS:
        raise KernelError(f"width={width!r}: the plane's width with its border, at least {TAPS}")
    acc = L.tile(gm, gn, 1)
    chunks = x.chunks32(1)
    for tap in range(TAPS * TAPS):
        down = tap // TAPS * width + tap % TAPS
        for k in loop(chunks):
            acc += x[i, k, down] @ w[j, tap * chunks.count + k]
    return acc


@kernel
def conv2d(x=L.In(..., P, C), w=L.In(N, 9 * C), y=L.Out(..., P, N), *, width=16, gm=8, gn=8):
    """y = the 3x3 convolution of the plane x; C is a multiple of 32"""
    with units(x.tiles(gm), w.tiles(gn)) as (i, j):
        y[i, j] <<= convolved(x, w, i, j, width, gm, gn)


@kernel
def conv2d_bias(x=L.In(..., P, C), w=L.In(N, 9 * C), b=L.In(N), y=L.Out(..., P, N), *, width=16, gm=8, gn=8):
    """y = conv2d(x) + b, in one pass: small planes, whose tiles fit the vector cores"""
    with units(x.tiles(gm), w.tiles(gn)) as (i, j):
        y[i, j] <<= convolved(x, w, i, j, width, gm, gn) + b[j]


@kernel
def conv2d_bias_staged(x=L.In(..., P, C), w=L.In(N, 9 * C), b=L.In(..., P, N), y=L.Out(..., P, N), *, width=16, gm=8, gn=8,
                       part=8192):  # fmt: skip
    """y = conv2d(x) + b with the bias repeated for every position (`full_bias`): planes of any size"""
    t = L.temp(P, N)
    with units(x.tiles(gm), w.tiles(gn)) as (i, j):
        t[i, j] <<= convolved(x, w, i, j, width, gm, gn)
    y <<= t + b


# ---- between images and planes ----------------------------------------------------------------------------


def plane(image: np.ndarray) -> np.ndarray:
    """[..., H, W, channels] as [..., (H+2)*(W+2), channels up to a multiple of 32], border and padding zero."""
    *lead, height, width, channels = image.shape
    held = -(-channels // GRAIN) * GRAIN
    full = np.zeros((*lead, height + TAPS - 1, width + TAPS - 1, held), image.dtype)
    full[..., 1 : height + 1, 1 : width + 1, :channels] = image
    return full.reshape(*lead, -1, held)


def weights(kernels: np.ndarray) -> np.ndarray:
    """[out, in, 3, 3] as the [out, 9 * in] operand of the kernels, `in` up to a multiple of 32."""
    out, channels, *taps = kernels.shape
    if taps != [TAPS, TAPS]:
        raise ValueError(f"weights of {kernels.shape}: expected [out, in, {TAPS}, {TAPS}]")
    held = -(-channels // GRAIN) * GRAIN
    full = np.zeros((out, TAPS * TAPS, held), kernels.dtype)
    full[:, :, :channels] = kernels.reshape(out, channels, -1).transpose(0, 2, 1)
    return full.reshape(out, -1)


def positions(height: int, width: int) -> np.ndarray:
    """int[height, width]: the row of the result that holds each output position."""
    return np.arange(height)[:, None] * (width + TAPS - 1) + np.arange(width)


def full_bias(bias: np.ndarray, height: int, width: int) -> np.ndarray:
    """A bias of [channels] for every row of the plane."""
    return np.tile(bias, ((height + TAPS - 1) * (width + TAPS - 1), 1))
