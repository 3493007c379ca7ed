"""Images as planes (`L.plane`): what is recorded, and every refusal with what it underlines, when traced or when planned."""

import numpy as np
import pytest

from kohakutpu import lang as L
from kohakutpu.compiler import CompileError, Options, compile_kernel
from kohakutpu.compiler.layouts import ConvEntry, Flat
from kohakutpu.lang import KernelError, ceildiv, dims, kernel, loop, units
from kohakutpu.machine import load
from kohakutpu.reference import interpret

H, W, C, N, M = dims("H, W, C, N, M")
ROWS = L.plane_rows(H, W)


def made(body, rows=ROWS, columns=9 * C):
    """A kernel over an image x, a second one z, a matrix m and weights w."""

    def planes(x=L.In(..., H, W, C), z=L.In(..., H, W, N), m=L.In(..., H, W), w=L.In(N, columns), y=L.Out(..., rows, N), *, gm=2, gn=2):
        body(x, z, m, w, y, gm, gn)

    return kernel(planes)


def inside(taken, opened=lambda p, w, gn: (p.tiles, w.tiles(gn)), nk=1):
    """A body that adds the product of what `taken` makes of (plane, tile index, step) and the weights."""

    def body(x, z, m, w, y, gm, gn):
        p = L.plane(x, gm)
        with units(*opened(p, w, gn)) as (i, j):
            acc = L.tile(gm, gn, nk)
            for s in loop(w.chunks32(nk)):
                acc += taken(p, i, s) @ w[j, s]
            y[i, j] <<= acc

    return body


def convolution(p, i, s):
    return p[i, 0, p.tap(s)]


def marked(error: KernelError) -> str:
    """What is underlined."""
    line, marks = str(error).splitlines()[-2:]
    assert set(marks.strip()) == {"^"}
    return line[marks.index("^") : marks.rindex("^") + 1]


# ---- what is recorded -------------------------------------------------------------------------------------


def test_a_plane_is_printed_as_it_is_written():
    text = made(inside(convolution)).trace(gm=3).pretty()
    assert "acc1 += plane(x, 3)[i, 0, tap(k2)] @ w[j, k2]" in text and "in   x(..., H, W, C)" in text
    shown = made(inside(lambda p, i, s: p[i, 0, s + W])).trace().pretty()
    assert "plane(x, 2)[i, 0, (k2 + W)]" in shown
    assert "plane(x, 2)[i, 0, 0]" in made(inside(lambda p, i, s: p[i, 0, 0])).trace().pretty()


def test_what_a_plane_says_of_itself():
    seen = {}

    def body(x, z, m, w, y, gm, gn):
        p = L.plane(x, gm)
        seen.update(chunks=p.chunks32, rows=str(p.tiles.length), taps=str(p.taps), per=p.tiles.per)
        inside(convolution)(x, z, m, w, y, gm, gn)

    made(body).trace(gm=5)
    assert seen == {"chunks": 1, "rows": str(ROWS), "taps": "(9 * ceildiv(C, 32))", "per": 5}
    assert L.plane_rows(3, 4) == 2 * 6 + 4


def test_a_step_of_a_division_opens_a_tile():
    def body(x, z, m, w, y, gm, gn):
        p = L.plane(x, gm)
        with units(w.tiles(gn)) as j:
            for i in loop(p.tiles.count):
                acc = L.tile(gm, gn, 1)
                for s in loop(w.chunks32(1)):
                    acc += p[p.tiles.at(i), 0, p.tap(s)] @ w[j, s]
                y[y.tiles(gm).at(i), j] <<= acc

    rng = np.random.default_rng(0)
    operands = {"x": rng.normal(0, 1, (3, 4, 32)), "z": np.zeros((3, 4, 8)), "m": np.zeros((3, 4)), "w": rng.normal(0, 1, (8, 288))}
    operands = {name: array.astype(np.float16) for name, array in operands.items()}
    one, other = (
        interpret(each.trace(), each.solve({name: a.shape for name, a in operands.items()}), operands).outputs["y"]
        for each in (made(body), made(inside(convolution)))
    )
    assert (one == other).all() and one.any()


# ---- refused while it is traced ---------------------------------------------------------------------------


def opening(text):
    """A body that makes a plane in another way, as source would."""
    return lambda x, z, m, w, y, gm, gn: text(x, m, y, gm)


@pytest.mark.parametrize("body, message, mark", [
    (opening(lambda x, m, y, gm: L.plane(m, gm)), r"m\(H, W\): a plane is an image of three axes apart from `...`", "L.plane(m, gm)"),
    (opening(lambda x, m, y, gm: L.plane(L.temp(H, W, C), gm)), "t1 is written by this kernel, and a plane is read from what the host",
     "L.plane(L.temp(H, W, C), gm)"),
    (opening(lambda x, m, y, gm: L.plane(L.plane(x, gm), gm)), "expected a buffer of .*, got PlaneView", "L.plane(L.plane(x, gm), gm)"),
    (opening(lambda x, m, y, gm: L.plane(x, 0)), "plane: gm: expected an integer of at least 1, got 0", "L.plane(x, 0)"),
    (opening(lambda x, m, y, gm: L.plane(x, C)), "plane: gm: expected an integer of at least 1, got C", "L.plane(x, C)"),
    (opening(lambda x, m, y, gm: L.plane(x, gm) + 1), "x is a plane: its slices stand in a product", "L.plane(x, gm) + 1"),
    (opening(lambda x, m, y, gm: L.plane(x, gm).__ilshift__(y)), "x is a plane, which products read and nothing writes",
     "L.plane(x, gm).__ilshift__(y)"),
    (opening(lambda x, m, y, gm: L.plane(x, gm).__setitem__((0, 0, 0), y)), "x is a plane, which products read and nothing writes",
     "L.plane(x, gm).__setitem__((0, 0, 0), y)"),
    (opening(lambda x, m, y, gm: L.plane(x, gm).tap(-1)), "x.tap: expected an index or an integer of at least 0, got -1",
     "L.plane(x, gm).tap(-1)"),
    (opening(lambda x, m, y, gm: L.plane(x, gm).tap(1.5)), "x.tap: expected .* got 1.5", "L.plane(x, gm).tap(1.5)"),
    (inside(lambda p, i, s: p[i, p.tap(s)]), r"x is a plane and has three indices, x\[i, 0, x.tap\(s\)\].*not 2", "p[i, p.tap(s)]"),
    (inside(lambda p, i, s: p[i]), "a plane and has three indices, .*not 1", "p[i]"),
    (inside(lambda p, i, s: p[i, s, p.tap(s)]), r"x\[i, k2, ...\]: a plane has one chunk, 0", "p[i, s, p.tap(s)]"),
    (inside(lambda p, i, s: p[i, 1, p.tap(s)]), "a plane has one chunk, 0", "p[i, 1, p.tap(s)]"),
    (inside(lambda p, i, s: p[i, 0, "up"]), r"x\[i, 0, 'up'\]: expected x.tap\(s\) or a number of lanes", 'p[i, 0, "up"]'),
    (inside(lambda p, i, s: p[i, 0, -1]), "moved down by rows, and -1 is negative", "p[i, 0, -1]"),
    (inside(lambda p, i, s: p[0, 0, p.tap(s)]), r"x\[0, ...\]: expected an index of an open tiling", "p[0, 0, p.tap(s)]"),
    (inside(lambda p, i, s: p[s, 0, p.tap(s)]), r"x: the index k2 divides chunks32 of \(9 \* C\); this plane's own axis, x.tiles",
     "p[s, 0, p.tap(s)]"),
    (inside(convolution, lambda p, w, gn: (w.tiles(2), w.tiles(gn))), "the index i divides tiles of N, 2 groups each; this plane's own",
     "p[i, 0, p.tap(s)]"),
    (inside(convolution, nk=2), "x is cut into chunks of 1 block of 32 and the accumulator has nk=2", None),
    (inside(lambda p, i, s: p[i, 0, p.tap(s)] * 2), "an operand slice stands only in a product", "p[i, 0, p.tap(s)] * 2"),
])  # fmt: skip
def test_refused_when_traced(body, message, mark):
    with pytest.raises(KernelError, match=message) as caught:
        made(body).trace()
    assert mark is None or marked(caught.value) == mark


def test_refused_of_two_planes_and_closed_indices():
    def other(x, z, m, w, y, gm, gn):
        q = L.plane(z, gm)
        inside(lambda p, i, s: p[i, 0, q.tap(s)])(x, z, m, w, y, gm, gn)

    with pytest.raises(KernelError, match=r"x\[i, 0, tap\(k2\)\]: a tap of another plane; expected x.tap\(k2\)"):
        made(other).trace()
    with pytest.raises(KernelError, match="x is tiled by 3 groups of 4 and the accumulator has gm=2"):
        made(lambda x, z, m, w, y, gm, gn: wider(x, w, y, gn)).trace()

    def late(x, z, m, w, y, gm, gn):
        p = L.plane(x, gm)
        with units(p.tiles, w.tiles(gn)) as (i, j):
            acc = L.tile(gm, gn, 1)
            for s in loop(w.chunks32(1)):
                t = p.tap(s)
                acc += p[i, 0, t] @ w[j, s]
            for s in loop(w.chunks32(1)):
                acc += p[i, 0, t] @ w[j, s]
            y[i, j] <<= acc

    with pytest.raises(KernelError, match="the index k2 is used outside the tiling or loop that bound it"):
        made(late).trace()


def test_refused_of_what_outlived_its_loop_or_kernel():
    kept = []

    def late(x, z, m, w, y, gm, gn):
        p = L.plane(x, gm)
        with units(p.tiles, w.tiles(gn)) as (i, j):
            acc = L.tile(gm, gn, 1)
            for s in loop(w.chunks32(1)):
                product = p[i, 0, p.tap(s)] @ w[j, w.chunks32(1).at(0)]
                acc += product
            acc += product
            y[i, j] <<= acc
        kept.append(p)

    with pytest.raises(KernelError, match="the index k2 is used outside the tiling or loop that bound it") as caught:
        made(late).trace()
    assert caught.value.source.text == "acc += product"

    def first(x, z, m, w, y, gm, gn):
        kept.extend([L.plane(x, gm), x])
        inside(convolution)(x, z, m, w, y, gm, gn)

    made(first).trace()
    with pytest.raises(KernelError, match="x is a buffer of another kernel, or of another trace"):
        made(inside(lambda p, i, s: kept[0][i, 0, p.tap(s)])).trace()
    with pytest.raises(KernelError, match="x is a buffer of another kernel, or of another trace"):
        made(opening(lambda x, m, y, gm: L.plane(kept[1], gm))).trace()


def wider(x, w, y, gn):
    p = L.plane(x, 3)
    with units(p.tiles, w.tiles(gn)) as (i, j):
        acc = L.tile(2, gn, 1)
        for s in loop(w.chunks32(1)):
            acc += p[i, 0, p.tap(s)] @ w[j, s]
        y[i, j] <<= acc


def test_a_result_has_the_rows_that_are_swept():
    """A result of every position of the plane would have rows that no tile writes (errata: conv-plane)."""
    every = ceildiv((H + 2) * (W + 2), 4) * 4
    with pytest.raises(KernelError, match=r"y: the index i divides an axis of .* and this one has") as caught:
        made(inside(convolution), rows=every).trace()
    assert marked(caught.value) == "y[i, j]"


# ---- refused when it is planned, by the compiler and the interpreter alike ---------------------------------


def shapes(h=3, w=4, c=32, n=8, columns=None):
    return {"x": (h, w, c), "z": (h, w, n), "m": (h, w), "w": (n, columns or 9 * c)}


@pytest.mark.parametrize("body, columns, given, message", [
    (inside(convolution), M, shapes(columns=320), r"tap\(k2\) is step 9 of a window of 3x3 taps by 1 block of 32 channels, which has steps 0 to 8"),
    (inside(lambda p, i, s: p[i, 0, p.tap(18)]), 9 * C, shapes(c=64), r"tap\(18\) is step 18 .* 2 blocks .* steps 0 to 17"),
    (inside(lambda p, i, s: p[i, 0, p.tap(s - 1)]), 9 * C, shapes(), r"tap\(\(k2 - 1\)\) is step -1 of a window"),
    (inside(lambda p, i, s: p[i, 0, 15]), 9 * C, shapes(), r"plane\(x, 2\)\[i, 0, 15\] is moved by 15 lanes; of the 32 lanes of each of 1 block, "
     "a window of 3x3 taps begins at 0 to 14"),
    (inside(lambda p, i, s: p[i, 0, 32]), 9 * C, shapes(), "is moved by 32 lanes; of the 32 lanes of each of 1 block"),
    (inside(lambda p, i, s: p[i, 0, s - 1]), 9 * C, shapes(), r"plane\(x, 2\)\[i, 0, \(k2 - 1\)\]: .* and -1 is negative"),
    (inside(convolution), 9 * C, shapes(c=40), "w has 360 columns, and meets x, whose 40 channels are 64 columns for each tap, "
     "the last of them zeros: expected 576 columns for 3x3 taps, or a multiple of 64"),
])  # fmt: skip
def test_refused_when_planned(body, columns, given, message):
    one = made(body, columns=columns)
    with pytest.raises(KernelError, match=message) as caught:
        compile_kernel(one, load("quad"), given)
    assert caught.value.source is not None and "acc += taken" in str(caught.value)
    operands = {name: np.ones(shape, np.float16) for name, shape in given.items()}
    with pytest.raises(KernelError, match=message) as caught:
        interpret(one.trace(), one.solve(given), operands)
    assert caught.value.source is not None


def plain(x=L.In(..., H, W, C), w=L.In(N, 9 * C), y=L.Out(..., ROWS, N), *, gm=2, gn=2):
    inside(convolution)(x, None, None, w, y, gm, gn)


def twice(x=L.In(..., H, W, C), w=L.In(N, 9 * C), y=L.Out(..., ROWS, N), z=L.Out(..., ROWS, N), *, gm=2, gn=2):
    inside(convolution)(x, None, None, w, y, gm, gn)
    inside(convolution)(x, None, None, w, z, gm + 1, gn)


def residual(x=L.In(..., H, W, C), w=L.In(N, 9 * C), y=L.Out(..., ROWS, N), z=L.Out(..., H, W, C), *, gm=2, gn=2):
    inside(convolution)(x, None, None, w, y, gm, gn)
    z <<= x * 2


def rows(x=L.In(..., H, W, C), w=L.In(N, 9 * C), y=L.Out(..., ROWS, N), z=L.Out(..., H, W, 1), *, gm=2, gn=2):
    inside(convolution)(x, None, None, w, y, gm, gn)
    z <<= L.row_sum(x)


SMALL = {"x": (3, 4, 32), "w": (8, 288)}


@pytest.mark.parametrize("function, knobs, options, message", [
    (plain, {}, Options(preq=("x",)), "preq: x is a plane, read from every lane on"),
    (plain, {"gm": 300, "gn": 1}, Options(), "x: a FILL of 300 entries .* use a smaller gm or nk"),
    (plain, {}, Options(layouts={"x": Flat((3, 4, 32))}), "x would need two byte orders: flat .* and conv:1:2"),
    (plain, {}, Options(layouts={"x": ConvEntry(3, 4, 32, 3)}), "x would need two byte orders: conv:1:3 .* and conv:1:2"),
    (twice, {}, Options(), "x would need two byte orders: conv:1:2 .* and conv:1:3"),
    (residual, {}, Options(), "x is a plane here, and an operand of elementwise work too, whose result would lie as conv:1:2"),
    (rows, {}, Options(), "x would need two byte orders: flat .* and conv:1:2"),
])  # fmt: skip
def test_byte_orders_that_a_plane_does_not_have(function, knobs, options, message):
    with pytest.raises(CompileError, match=message):
        compile_kernel(kernel(function), load("quad"), SMALL, knobs, options)


def test_an_image_that_lies_as_a_plane_already():
    artifact = compile_kernel(kernel(plain), load("quad"), SMALL, {}, Options(layouts={"x": ConvEntry(3, 4, 32, 2)}))
    assert artifact.buffer("x").layout.key == "conv:1:2"
