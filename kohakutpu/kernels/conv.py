"""Convolutions of images: 3x3, stride 1, zero border, as products over a plane (`L.plane`).

Row `h * (W+2) + w` of a result is position (h, w); the rows between hold values that belong to the border and mean nothing.
`positions` names those that mean something.
"""

from __future__ import annotations

import numpy as np

from kohakutpu import lang as L
from kohakutpu.lang import ceildiv, dims, kernel, loop, units

H, W, C, N = dims("H, W, C, N")
TAPS = 3
GRAIN = 32  # channels that a tap's weights are padded to
COLUMNS = TAPS * TAPS * GRAIN * ceildiv(C, GRAIN)  # of the weights
ROWS = L.plane_rows(H, W)  # of the result


def convolved(x, w, i, j, gm: int, gn: int):
    """The accumulator of tile (i, j) of a plane."""
    acc = L.tile(gm, gn, 1)
    for s in loop(w.chunks32(1)):
        acc += x[i, 0, x.tap(s)] @ w[j, s]
    return acc


@kernel
def conv2d(x=L.In(..., H, W, C), w=L.In(N, COLUMNS), y=L.Out(..., ROWS, N), *, gm=8, gn=8):
    """y = the 3x3 convolution of the image x"""
    x = L.plane(x, gm)
    with units(x.tiles, w.tiles(gn)) as (i, j):
        y[i, j] <<= convolved(x, w, i, j, gm, gn)


@kernel
def conv2d_bias(x=L.In(..., H, W, C), w=L.In(N, COLUMNS), b=L.In(N), y=L.Out(..., ROWS, N), *, gm=8, gn=8):
    """y = conv2d(x) + b, in one pass: small images, whose tiles fit the vector cores"""
    x = L.plane(x, gm)
    with units(x.tiles, w.tiles(gn)) as (i, j):
        y[i, j] <<= convolved(x, w, i, j, gm, gn) + b[j]


@kernel
def conv2d_bias_staged(x=L.In(..., H, W, C), w=L.In(N, COLUMNS), b=L.In(..., ROWS, N), y=L.Out(..., ROWS, N), *, gm=8, gn=8,
                       part=8192):  # fmt: skip
    """y = conv2d(x) + b with the bias repeated for every position (`full_bias`): images of any size"""
    x = L.plane(x, gm)
    t = L.temp(ROWS, N)
    with units(x.tiles, w.tiles(gn)) as (i, j):
        t[i, j] <<= convolved(x, w, i, j, gm, gn)
    y <<= t + b


# ---- between images and results ----------------------------------------------------------------------------


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
    """A bias of [channels] for every row of the result."""
    return np.tile(bias, (L.plane_rows(height, width), 1))
