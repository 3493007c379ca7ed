"""All FP16 patterns, every NaN among them, through every copy: the interpreter's bits, or refused by name."""

import numpy as np
import pytest

from kohakutpu import lang as L
from kohakutpu.compiler import CompileError, Options, compile_kernel, prepare
from kohakutpu.compiler.layouts import Tile
from kohakutpu.host.simulate import run_model, run_reference
from kohakutpu.kernels import in_rows, rows
from kohakutpu.kernels.linear import product
from kohakutpu.lang import dims, kernel, units
from kohakutpu.machine import load

M, K, N = dims("M, K, N")
EVERY = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16).reshape(512, 128)
NANS = ((EVERY & 0x7C00) == 0x7C00) & ((EVERY & 0x3FF) != 0)
SOME = np.concatenate([EVERY[NANS], EVERY[~NANS][::30][:2050]]).reshape(32, 128)  # all NaNs, and a share of the others
LIES = Tile(512, 128, 2, 8)

patterns = pytest.mark.parametrize("x", [SOME, pytest.param(EVERY, marks=pytest.mark.slow)], ids=["NaNs", "all"])


def folded(x, y):
    into = y.as_rows(64)
    into <<= x.as_rows(64)


def halves(x, y):
    head, tail = y.rows_from(0, 256), y.rows_from(256)
    head <<= x.rows_from(256)
    tail <<= x.rows_from(0, 256)


def assign(y, value):
    y <<= value


def through(x, y):
    t = L.temp(M, N)
    t <<= x
    y <<= t


COPIES = {
    "plain": lambda x, y: assign(y, x),
    "as_rows": folded,
    "rows_from": halves,
    "repeated": lambda x, y: assign(y, x.rows_from(256).repeated()),
    "per_group": lambda x, y: assign(y, x.per_group(2)),
    "through a temp": through,
}


def zeros(*shape):
    return np.zeros(shape, np.uint16)


def unit(size):
    return np.eye(size, dtype=np.float16).view(np.uint16)


def differing(found, want):
    return int((found.view(np.uint16) != want).sum())


def equal(made, operands, options=Options()):  # noqa: B008 - frozen
    machine = load("quad")
    artifact = compile_kernel(made, machine, {name: array.shape for name, array in operands.items()}, {}, options)
    found = run_model(artifact, machine, operands).run.outputs
    for name, want in run_reference(made, {}, operands, machine).outputs.items():
        assert differing(found[name], want) == 0, name
    return artifact


@pytest.mark.parametrize("copy", COPIES)
def test_copies_of_rows_keep_every_pattern(copy):
    def made(x=L.In(M, N), y=L.Out(M, N)):
        COPIES[copy](x, y)

    equal(kernel(made), {"x": EVERY})


def test_patterns_in_columns_of_one():
    def made(x=L.In(M, 1), y=L.Out(M, 16)):
        y <<= x

    equal(kernel(made), {"x": EVERY[NANS].reshape(-1, 1)})


@kernel
def beside_tiles(x=L.In(M, N), a=L.In(M, K), b=L.In(N, K), y=L.Out(M, N), z=L.Out(M, N)):
    t = L.temp(M, N)
    with units(a.tiles(2), b.tiles(8)) as (i, j):
        t[i, j] <<= product(a, b, i, j, 2, 8, 1)
    y <<= L.where(L.less(t, 1e4), x, t)
    out = z.rows_from(0)
    out <<= x


@kernel
def beside_tiles_to_a_product(x=L.In(M, N), a=L.In(M, K), b=L.In(N, K), w=L.In(N, N), y=L.Out(M, N), z=L.Out(M, N)):
    t, u = L.temp(M, N), L.temp(M, N)
    with units(a.tiles(2), b.tiles(8)) as (i, j):
        t[i, j] <<= product(a, b, i, j, 2, 8, 1)
    u <<= x
    y <<= L.where(L.less(t, 1e4), u, t)
    with units(u.tiles(2), w.tiles(8)) as (i, j):
        z[i, j] <<= product(u, w, i, j, 2, 8, 1)


def beside(x):
    return {"x": x, "a": zeros(len(x), 32), "b": zeros(128, 32)}


@patterns
def test_what_is_copied_keeps_out_of_tiles(x):
    """It would share the tiles of what it is compared with, and be copied out of them."""
    artifact = equal(beside_tiles, beside(x))
    assert artifact.buffer("x").layout.key == "flat" and isinstance(artifact.buffer("t1").layout, Tile)


@patterns
@pytest.mark.parametrize("relayout", ["machine", "host"])
def test_what_a_product_reads_keeps_out_of_tiles(x, relayout):
    """A product takes a NaN as a large number with its sign and fraction."""
    equal(beside_tiles_to_a_product, {**beside(x), "w": unit(128)}, Options(relayout=relayout))


def test_copies_out_of_tiles_are_refused_where_another_nan_may_be():
    machine, lies = load("quad"), Options(layouts={"x": LIES})
    with pytest.raises(CompileError, match="x lies in tiles and may hold a NaN other than 0x7e00") as caught:
        compile_kernel(in_rows, machine, {"x": EVERY.shape}, {}, lies)
    assert caught.value.source.text == "rows <<= x"
    artifact = prepare(in_rows, machine, {"x": EVERY.shape}, {}, lies, quiet=("x",)).artifact()
    x = np.where(NANS, 0x7E00, EVERY).astype(np.uint16)
    found = run_model(artifact, machine, {"x": x}).run.outputs["y"]
    assert differing(found, x) == 0


@kernel
def overwritten(x=L.In(M, N), a=L.In(M, K), b=L.In(N, K), w=L.In(N, N), z=L.Out(M, N)):
    t = L.temp(M, N)
    with units(a.tiles(2), b.tiles(8)) as (i, j):
        t[i, j] <<= product(a, b, i, j, 2, 8, 1)
    t <<= x
    with units(t.tiles(2), w.tiles(8)) as (i, j):
        z[i, j] <<= product(t, w, i, j, 2, 8, 1)


@patterns
def test_a_copy_into_a_products_tiles_is_refused_but_for_the_host(x):
    operands = {**beside(x), "w": unit(128)}
    with pytest.raises(CompileError, match="t1 lies in tiles and may hold a NaN other than 0x7e00"):
        equal(overwritten, operands)
    equal(overwritten, operands, Options(relayout="host"))


@pytest.mark.parametrize("made", [rows.row_sum, rows.row_max, rows.row_min, rows.softmax], ids=lambda made: made.name)
@pytest.mark.parametrize("tile", [None, LIES], ids=["rows", "tiles"])
def test_what_computes_takes_any_nan(made, tile):
    equal(made, {"x": EVERY}, Options(layouts={"x": tile} if tile else {}))
