"""Attention, and row statements over the tiles that a product leaves: the interpreter's bytes, the meaning, refusals."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kohakutpu import lang as L
from kohakutpu.compiler import CompileError, compile_kernel
from kohakutpu.compiler.layouts import Tile
from kohakutpu.host.simulate import run_reference
from kohakutpu.kernels.attention import attention, flash_attention
from kohakutpu.kernels.linear import product
from kohakutpu.lang import KernelError, dims, kernel, units
from kohakutpu.machine import load
from kohakutpu.reference import evaluate

sys.path.insert(0, str(Path(__file__).parent))
from running import equal_bytes, flits, operands_of  # noqa: E402

M, K, N = dims("M, K, N")


def shapes(queries, keys, depth, values, lead=()):
    return {"q": (*lead, queries, depth), "k": (*lead, keys, depth), "v": (*lead, values, keys)}


CASES = [
    (shapes(32, 64, 32, 64), {"gm": 4}),
    (shapes(13, 64, 40, 32, (2,)), {"gm": 2, "causal": True}),
    (shapes(26, 96, 32, 24), {"gm": 2, "causal": True, "period": 13, "keys": 77}),
    (shapes(8, 32, 64, 16, (2, 2)), {"gm": 1, "keys": 20, "nk": 2, "scale": 0.25}),
]


@pytest.mark.parametrize("machine", ["mm_mesh", "quad", "ship_3x2"])
@pytest.mark.parametrize("case", CASES, ids=["plain", "causal", "grouped causal, tail masked", "tail masked"])
def test_library(case, machine):
    equal_bytes(attention, case[0], machine, case[1])


def test_more_keys_than_a_register_holds():
    artifact, _ = equal_bytes(attention, shapes(16, 256, 32, 32), "ship_3x2", {"gm": 2, "causal": True})
    equal_bytes(attention, shapes(8, 160, 32, 32), "quad", {"gm": 2})


@pytest.mark.parametrize("keys, knobs", [(640, {"causal": True, "period": 3, "keys": 600}), (1024, {}), (1024, {"causal": True})])
def test_more_keys_than_l1_holds(keys, knobs):
    artifact, _ = equal_bytes(attention, shapes(6, keys, 32, 16), "quad", {"gm": 1, **knobs})
    assert [len(stage.statements) for stage in artifact.stages if stage.unit == "vector"] == [1, 0]


@pytest.mark.parametrize("keys, knobs", [(288, {"keys": 277}), (480, {}), (2016, {"keys": 2000, "period": 3})])
def test_rows_of_tiles_that_take_more_than_an_image(keys, knobs):
    """The last piece is shorter, and code for four rows of either length too much: they are copied into rows first."""
    artifact, _ = equal_bytes(attention, shapes(6, keys, 32, 16, (2,)), "quad", {"gm": 1, "causal": True, **knobs})
    copied, computed = (stage for stage in artifact.stages if stage.statements and stage.unit == "vector")
    assert copied.statements == computed.statements


def test_flits_at_most_the_published_ones():
    """64 queries, 128 keys of 64, values of 64 (spec: measured word counts)."""
    machine = load("ship_3x2")
    for knobs, published in (({}, 2228), ({"causal": True}, 4198), ({"keys": 77}, 2578)):
        artifact = compile_kernel(attention, machine, shapes(64, 128, 64, 64), {"nk": 2, **knobs})
        assert flits(artifact) <= published


FLASH = [
    (shapes(16, 64, 32, 32), {"gm": 2, "block": 32}),
    (shapes(26, 130, 32, 24, (2,)), {"gm": 2, "gn": 3, "block": 64, "causal": True, "period": 13, "keys": 127}),
    (shapes(5, 70, 40, 8), {"gm": 1, "gn": 2, "block": 32, "scale": 0.3}),
]


@pytest.mark.parametrize("machine", ["mm_mesh", "quad", "ship_3x2"])
@pytest.mark.parametrize("case", FLASH, ids=["plain", "grouped causal, tail masked", "ragged"])
def test_flash(case, machine):
    if case is FLASH[1]:
        case = (shapes(10, 70, 32, 24), case[1] | {"keys": 69, "period": 5})
    equal_bytes(flash_attention, case[0], machine, case[1])


SMALL = [
    (shapes(1, 1, 1, 1), {}),
    (shapes(2, 33, 1, 1), {"causal": True}),
    (shapes(24, 5, 3, 1), {"causal": True, "period": 3, "keys": 1}),
    (shapes(7, 1, 33, 33), {"causal": True, "period": 1}),
    (shapes(1, 40, 32, 31), {"keys": 1}),
]


@pytest.mark.parametrize("case", SMALL, ids=["ones", "one value", "one value, eight groups, one key", "seven groups", "one query"])
def test_flash_of_small_sizes(case):
    equal_bytes(flash_attention, case[0], "quad", {"gm": 2, "gn": 3, "block": 32, **case[1]})


@pytest.mark.slow
def test_flash_of_every_small_size():
    for values in range(1, 34):
        equal_bytes(flash_attention, shapes(2, 3, 1, values), "mm_mesh", {"gm": 1, "gn": 2, "block": 32})
    for groups in range(1, 9):
        for causal in (False, True):
            for keys in (None, 1, 33):
                for queries, depth, values in ((1, 1, 1), (3, 33, 5)):
                    knobs = {"gm": 2, "gn": 2, "block": 32, "causal": causal, "period": queries, "keys": keys}
                    equal_bytes(flash_attention, shapes(groups * queries, 33, depth, values), "quad", knobs)


def test_flash_in_no_more_flits_than_published():
    machine = load("ship_3x2")
    for knobs, published in (({}, 2228), ({"causal": True}, 4198), ({"keys": 77}, 2578)):
        artifact = compile_kernel(flash_attention, machine, shapes(64, 128, 64, 64), {"nk": 2, **knobs})
        assert flits(artifact) <= published


def test_flash_needs_no_more_memory_for_more_keys():
    temps = []
    for keys in (64, 256):
        artifact = compile_kernel(flash_attention, load("ship_3x2"), shapes(16, keys, 32, 32), {"gm": 2, "block": 64})
        temps.append(sum(image.bytes for image in artifact.buffers if image.role == "temp"))
    assert temps[0] == temps[1]


@pytest.mark.parametrize("made, case", [(attention, c) for c in CASES] + [(flash_attention, c) for c in FLASH])
def test_meaning(made, case):
    sizes, knobs = case
    operands = operands_of(sizes, seed=4)
    found = run_reference(made, knobs, operands, load("quad")).outputs["o"].view(np.float16).astype(np.float64)
    q, k, v = (operands[name].view(np.float16).astype(np.float64) for name in "qkv")
    scores = q @ k.swapaxes(-1, -2) * knobs.get("scale", 1 / np.sqrt(q.shape[-1]))
    rows, columns = np.indices(scores.shape[-2:])
    if knobs.get("causal"):
        scores = np.where(columns > rows % knobs.get("period", scores.shape[-2]), -np.inf, scores)
    scores = np.where(columns >= knobs.get("keys", scores.shape[-1]), -np.inf, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = weights / weights.sum(-1, keepdims=True) @ v.swapaxes(-1, -2)
    assert np.abs(found - wanted).max() <= 8e-2 * np.abs(wanted).max()
    exact = evaluate(made.trace(**knobs), made.solve(sizes), operands)["o"]
    assert np.allclose(exact, wanted, rtol=1e-9, atol=1e-12)


# ---- rows of tiles ------------------------------------------------------------------------------------


def over_tiles(value, scale=1.0):
    def made(x=L.In(..., M, K), w=L.In(N, K), g=L.In(N), h=L.In(M, 1), y=L.Out(..., M, N), *, gm=2, gn=2, nk=1, part=8192):
        t = L.temp(M, N)
        with units(x.tiles(gm), w.tiles(gn)) as (i, j):
            t[i, j] <<= product(x, w, i, j, gm, gn, nk)
        y <<= value(t, g, h)

    return kernel(made)


def sizes_of(m, k, n, lead=()):
    return {"x": (*lead, m, k), "w": (n, k), "g": (n,), "h": (m, 1)}


@pytest.mark.parametrize("m, n, gm, gn", [(8, 16, 2, 4), (13, 77, 2, 3), (5, 9, 3, 1), (32, 128, 4, 8), (7, 130, 1, 5), (6, 250, 1, 8)])
def test_rows_of_tiles(m, n, gm, gn):
    def narrow(t, g, h):
        return (t - L.row_max(t)) * g + L.where(L.less(t, h), t, L.row_sum(L.exp2(t)))

    made = over_tiles(narrow if n <= 128 else lambda t, g, h: (t - L.row_max(t)) * g + h)
    equal_bytes(made, sizes_of(m, 40, n, (2,)), "quad", {"gm": gm, "gn": gn, "part": 512})


def test_the_sign_of_a_zero_survives():
    """What vanishes in the accumulator leaves it as a signed zero, and a reciprocal sees the sign."""
    made = over_tiles(lambda t, g, h: L.maximum(L.recip(t), -3) * L.row_min(h + g * 0))
    artifact, run = equal_bytes(made, sizes_of(12, 32, 24), "quad", {"gm": 2, "gn": 2}, deviation=1e-3)
    signs = {0xFC00, 0x7C00} & set(run.run.outputs["y"].view(np.uint16).reshape(-1).tolist())
    assert signs or (run.run.outputs["y"] != 0).any()


def test_rows_of_a_computed_tile_and_of_two():
    def made(x=L.In(M, K), w=L.In(N, K), v=L.In(N, K), y=L.Out(M, N)):
        t, u, s = L.temp(M, N), L.temp(M, N), L.temp(M, N)
        with units(x.tiles(2), w.tiles(2)) as (i, j):
            t[i, j] <<= L.silu(product(x, w, i, j, 2, 2, 1))
        with units(x.tiles(2), v.tiles(2)) as (i, j):
            u[i, j] <<= product(x, v, i, j, 2, 2, 1)
        s <<= t * u
        y <<= s / L.row_sum(abs(s) + 0.5)

    made = kernel(made)
    equal_bytes(made, {"x": (15, 32), "w": (8, 32), "v": (8, 32)}, "quad")
    artifact = compile_kernel(made, load("quad"), {"x": (15, 32), "w": (8, 32), "v": (8, 32)})
    assert {artifact.buffer(name).layout.key for name in ("t1", "t2", "t3")} == {"tile:2x1:2x2"}


def over_sum(e):
    return e / L.row_sum(e)


WIDE = {
    "softmax": lambda t, g, h: over_sum(L.exp2((t - 60) - L.row_max(t - 60))),
    "elementwise": lambda t, g, h: L.where(L.less(t, h), t * g, g - t),
    "of one number": lambda t, g, h: (t - L.row_min(abs(t * g) + 1)) * L.row_sum(h * t),
}


@pytest.mark.parametrize("value", WIDE)
@pytest.mark.parametrize(
    "m, n, gm, gn, part",
    [(13, 1300, 2, 8, 8192), (6, 1000, 1, 5, 1), (8, 1216, 2, 128, 8192),
     *(pytest.param(*case, marks=pytest.mark.slow) for case in ((9, 900, 3, 40, 8192), (5, 1500, 1, 7, 512), (21, 3001, 1, 64, 8192)))],
)  # fmt: skip
def test_rows_of_tiles_that_do_not_fit_l1(value, m, n, gm, gn, part):
    """Four rows at a time, in segments that begin and end anywhere in a tile."""
    made = over_tiles(lambda t, g, h: WIDE[value](t, g, h) + g * h * 0.01)
    artifact, _ = equal_bytes(made, sizes_of(m, 33, n, (2,)), "quad", {"gm": gm, "gn": gn, "part": part}, specials=1e-3)
    assert isinstance(artifact.buffer("t1").layout, Tile)


def one_of_rows_of_tiles(x=L.In(M, K), w=L.In(N, K), r=L.In(3, N), y=L.Out(M, 1), *, gm=1, gn=8, nk=1, part=8192, threes=False):
    t = L.temp(M, N)
    with units(x.tiles(gm), w.tiles(gn)) as (i, j):
        t[i, j] <<= product(x, w, i, j, gm, gn, nk)
    y <<= L.row_max(t + (r.repeated() if threes else r.rows_from(2, 1))) * L.row_sum(t)


def test_one_number_of_rows_of_tiles_that_do_not_fit_l1():
    made = kernel(one_of_rows_of_tiles)
    equal_bytes(made, {"x": (7, 32), "w": (1801, 32), "r": (3, 1801)}, "quad")
    with pytest.raises(CompileError, match=r"one row of \[6, 1801\] is in tiles, of which 4 rows at a time are read, and r has no 4 rows"):
        compile_kernel(made, load("quad"), {"x": (6, 32), "w": (1801, 32), "r": (3, 1801)}, {"threes": True})


def products(left, right):
    """Two products in tiles, and rows beside them in one elementwise statement."""

    def made(x=L.In(..., M, K), w=L.In(N, K), a=L.In(..., M, K), b=L.In(N, K), r=L.In(..., M, N), y=L.Out(..., M, N),
             z=L.Out(..., M, 1), *, part=8192):  # fmt: skip
        t, u, e = L.temp(M, N), L.temp(M, N), L.temp(M, N)
        with units(x.tiles(left[0]), w.tiles(left[1])) as (i, j):
            t[i, j] <<= product(x, w, i, j, *left, 1)
        with units(a.tiles(right[0]), b.tiles(right[1])) as (i, j):
            u[i, j] <<= product(a, b, i, j, *right, 1)
        e <<= r - L.row_max(r)
        y <<= L.fma(L.recip(t), e, u) - r
        z <<= L.row_sum(t * 0.5)

    return kernel(made)


SIDES = [(13, 40, (2, 4), (2, 4)), (9, 1, (1, 2), (1, 2)), (40, 24, (2, 3), (4, 1)), (6, 200, (1, 8), (2, 8))]


@pytest.mark.parametrize("m, n, left, right", SIDES)
def test_tiles_beside_rows_and_other_tiles(m, n, left, right):
    """Each is read as it lies; also where rows have one element, and no register is left for a usual transposition."""
    sizes = {"x": (2, m, 32), "w": (n, 32), "a": (2, m, 32), "b": (n, 32), "r": (2, m, n)}
    artifact, _ = equal_bytes(products(left, right), sizes, "quad", {"part": 512}, specials=0.02)
    orders = [artifact.buffer(name).layout for name in ("t1", "t2", "y", "r")]
    assert [isinstance(order, Tile) for order in orders] == [True, True, False, False]


def test_tiles_beside_rows_are_refused_where_they_cannot_be_read():
    with pytest.raises(CompileError, match="would need two byte orders: tile:.* and rows; only a temp"):
        compile_kernel(in_place, load("quad"), {"x": (8, 32), "w": (24, 32), "r": (8, 24)})


@kernel
def in_place(x=L.In(M, K), w=L.In(N, K), r=L.In(M, N), y=L.Out(M, N)):
    with units(x.tiles(1), w.tiles(8)) as (i, j):
        y[i, j] <<= product(x, w, i, j, 1, 8, 1)
    y <<= y + (r - L.row_max(r))
    y <<= y + r


def test_refusals():
    with pytest.raises(CompileError, match=r"t2 has rows of 16384 columns; vector cores copy those of at most 16383.*relayout='host'"):
        compile_kernel(attention, load("quad"), shapes(3, 16384, 32, 4), {"gm": 1})
    for keys in (0, -1, 2.5, True):
        for made in (attention, flash_attention):
            with pytest.raises(KernelError, match=f"keys={keys}: how many of the keys are real") as caught:
                made.trace(keys=keys)
            assert caught.value.source.text == "check_keys(keys)"
    for block in (0, 31, 40, -32, 64.0):
        with pytest.raises(KernelError, match=f"block={block}: keys are taken in blocks of a multiple of 32"):
            flash_attention.trace(block=block)
    with pytest.raises(KernelError, match="the period M is not a number"):
        attention.trace(causal=True, period=M)
    with pytest.raises(KernelError, match="indices up to 4095 are not all FP16 numbers"):
        compile_kernel(attention, load("ship_3x2"), shapes(8, 4096, 32, 32), {"gm": 2, "causal": True})


def examples(count):
    ran = []

    @settings(max_examples=count, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.integers(1, 24), st.integers(1, 4), st.integers(1, 70), st.integers(1, 40), st.lists(st.integers(1, 2), max_size=2),
           st.integers(1, 4), st.integers(1, 3), st.booleans(), st.booleans(), st.booleans(), st.sampled_from(["mm_mesh", "quad"]))  # fmt: skip
    def check(queries, keys, depth, values, lead, gm, gn, causal, grouped, tail, machine):
        keys *= 32
        knobs = {"gm": gm, "gn": 8 * gn, "nk": 1, "causal": causal}
        knobs |= {"period": queries} if grouped else {}
        knobs |= {"keys": max(1, keys - 9)} if tail else {}
        queries *= 2 if grouped else 1
        try:
            equal_bytes(attention, shapes(queries, keys, depth, values, tuple(lead)), machine, knobs)
        except CompileError as error:
            assert error.source is not None
            ran.append(False)
        else:
            ran.append(True)

    check()
    assert sum(ran) > 0.5 * len(ran), f"{sum(ran)} of {len(ran)} compiled"


def test_any_attention():
    examples(6)


@pytest.mark.slow
def test_many_attentions():
    examples(300)
