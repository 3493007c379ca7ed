"""Building blocks: cooperative matrices, their fragments and their epilogue verbs."""

from fractions import Fraction
from functools import partial

import numpy as np

from kohakutpu.xpu import (
    CooperativeMatrix, KernelBuffer, Shared, Use, Wave, WaveVector, barrier, bf16, define, f16, f32, f64, i8, i32,
    kernel, thread, u8, u32,
)  # fmt: skip

NAMES = {
    "CooperativeMatrix": CooperativeMatrix, "KernelBuffer": KernelBuffer, "Shared": Shared, "Use": Use, "Wave": Wave,
    "WaveVector": WaveVector, "barrier": barrier, "kernel": kernel, "thread": thread, "__name__": __name__,
    **{str(kind): kind for kind in (f16, bf16, f32, f64, i8, i32, u8, u32)},
}  # fmt: skip


def define_here(name: str, text: str, case) -> None:
    globals()[name] = define(text, dict(NAMES), name)[name]
    globals()[f"on_{name}"] = case


def held(kind, memory):
    return (memory.astype(np.uint32) << 16).view(np.float32) if kind is bf16 else memory


MULTIPLY = """
@Wave(width=16)
@kernel
def {name}(out: KernelBuffer[{total}], x: KernelBuffer[{left}], y: KernelBuffer[{right}]):
    acc: CooperativeMatrix[{total}, 8, 12, Use.ACCUMULATOR]
    a: CooperativeMatrix[{left}, 8, 6, Use.A]
    b: CooperativeMatrix[{right}, 6, 12, Use.B]
    acc.splat(3)
    a.load(x, 2, 0, 7)
    b.load(y, 1, 1, 6)
    acc.mma(a, b)
    acc.mma(a, b)
    acc.store(out, 0, 0, 12)
"""


def on_multiply(total, left, right, data):
    x, y = (
        data.of(kind, count) if kind.kind == "int" else data.floats(kind, count)
        for kind, count in ((left, 60), (right, 80))
    )
    a = np.lib.stride_tricks.as_strided(held(left, x)[2:], (8, 6), (7 * held(left, x).itemsize, held(left, x).itemsize))
    b = held(right, y)[1:73].reshape(12, 6).T
    work = np.int64 if total.kind == "int" else np.float64 if total is f64 else np.float32
    acc = np.full((8, 12), 3, work)
    for _ in range(2):
        for k in range(6):
            acc = acc + a[:, k, None].astype(work) * b[None, k, :].astype(work)
        acc = acc.astype(np.float16).astype(np.float32) if total is f16 else acc
    expected = acc.astype(total.dtype) if total.kind == "int" else acc
    return dict(grid=1, block=16, arguments=[np.zeros(96, total.dtype), x, y], expect={"out": expected})


for TOTAL, LEFT, RIGHT in ((f32, f16, f16), (f32, bf16, bf16), (f32, f32, f32), (f16, f16, f16), (f64, f64, f64),
                           (i32, i8, i8), (i32, u8, i8), (i32, u8, u8)):  # fmt: skip
    NAME = f"mma_{TOTAL}_{LEFT}_{RIGHT}"
    define_here(
        NAME, MULTIPLY.format(name=NAME, total=TOTAL, left=LEFT, right=RIGHT), partial(on_multiply, TOTAL, LEFT, RIGHT)
    )


@Wave(width=16)
@kernel
def tile_through_shared(out: KernelBuffer[f32], a: KernelBuffer[f32]):
    """Both layouts, Shared and buffer, rows longer than the tile's."""
    s = Shared[f32](80)
    t: CooperativeMatrix[f32, 8, 8, Use.ACCUMULATOR]
    t.load(a, 3, 0, 9)
    t.store(s, 4, 1, 9)
    barrier.workgroup()
    t.load(s, 4, 0, 9)
    t.store(out, 1, 0, 8)


def on_tile_through_shared(data):
    a, out = data.floats(f32, 80), data.floats(f32, 70)
    tile = np.stack([a[3 + 9 * r : 11 + 9 * r] for r in range(8)])
    expected = out.copy()
    expected[1:65] = tile.T.ravel()
    return dict(grid=1, block=16, arguments=[out, a], expect={"out": expected})


@Wave(width=16)
@kernel
def fragment_elements(out: KernelBuffer[f32], where: KernelBuffer[i32], a: KernelBuffer[f32]):
    t: CooperativeMatrix[f32, 4, 12, Use.ACCUMULATOR]
    t.load(a, 0, 0, 12)
    for e in range(t.elements()):
        where[(t.row(e) * 12 + t.col(e)) * 2] = i32(t.row(e))
        where[(t.row(e) * 12 + t.col(e)) * 2 + 1] = i32(t.col(e))
        t.set(e, t.get(e) * f32(2.0) + f32(t.col(e)))
    t.store(out, 0, 0, 12)


def on_fragment_elements(data):
    a = data.floats(f32, 48)
    rows, columns = np.indices((4, 12))
    expected = a.reshape(4, 12) * np.float32(2) + columns.astype(np.float32)
    return dict(
        grid=1, block=16, arguments=[np.zeros(48, np.float32), np.full(96, -1, np.int32), a],
        expect={"out": expected, "where": np.stack([rows, columns], 2)},
    )  # fmt: skip


def fused(a, b, c) -> np.float32:
    """a * b + c of float32, rounded once."""
    if not np.isfinite([a, b, c]).all():
        return a * b + c
    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    near = np.float32(float(exact))
    if not np.isfinite(near):
        return near
    options = [near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))]
    finite = [option for option in options if np.isfinite(option)]
    return min(finite, key=lambda v: (abs(Fraction(float(v)) - exact), v.view(np.uint32) & 1))


EPILOGUE = """
@Wave(width=16)
@kernel
def epilogue_{name}(out: KernelBuffer[f32], x: KernelBuffer[{kind}], start: KernelBuffer[f32], rows: KernelBuffer[f32],
                    cols: KernelBuffer[f32]):
    s = Shared[f32](16)
    t: CooperativeMatrix[{kind}, 4, 8, Use.ACCUMULATOR]
    into: CooperativeMatrix[f32, 4, 8, Use.ACCUMULATOR]
    s[thread.x()] = rows[thread.x()]
    barrier.workgroup()
    t.load(x, 0, 0, 8)
    into.load(start, 0, 0, 8)
    {verb}
    {target}.store(out, 0, 0, 8)
"""
SLICE, STRIDED = "WaveVector[f32, 8].of_slice(cols, 1)", "WaveVector[f32, 8].of_slice(cols, 0, 2)"
SPREAD, LANE = "WaveVector[f32, 8].broadcast(cols[5])", "WaveVector[f32, 8].of_lane(cols[thread.x() % 8])"
EPILOGUES = {
    "scaled": (f32, f"t.scaled_accum_into(into, s.at(2), {SLICE})", "into", slice(1, 9)),
    "scaled_strided": (f32, f"t.scaled_accum_into(into, s.at(2), {STRIDED})", "into", slice(0, 16, 2)),
    "scaled_broadcast": (i32, f"t.scaled_accum_into(into, s.at(2), {SPREAD})", "into", [5] * 8),
    "scaled_of_lane": (i32, f"t.scaled_accum_into(into, s.at(2), {LANE})", "into", slice(0, 8)),
    "scaled_twice": (f32, f"t.scaled_accum_into2(into, s.at(2), {SLICE}, s.at(6), {STRIDED})", "into", slice(1, 9)),
    "rank1": (f32, f"t.rank1_accum(s.at(2), {SLICE})", "t", slice(1, 9)),
}  # fmt: skip


def on_epilogue(name, data):
    kind, _, _, taken = EPILOGUES[name]
    x = data.integers(i32, 32, -5000, 5000) if kind is i32 else data.finite(f32, 32, 100)
    start, rows, cols = data.finite(f32, 32, 10), data.finite(f32, 16), data.finite(f32, 16)
    tile, into, factors = x.astype(np.float32).reshape(4, 8), start.reshape(4, 8), cols[taken]
    expected = np.zeros((4, 8), np.float32)
    for r, c in np.ndindex(4, 8):
        if name == "rank1":
            expected[r, c] = fused(rows[2 + r], factors[c], tile[r, c])
            continue
        expected[r, c] = fused(rows[2 + r] * factors[c], tile[r, c], into[r, c])
        if name == "scaled_twice":
            expected[r, c] = fused(rows[6 + r], cols[2 * c], expected[r, c])
    return dict(grid=1, block=16, arguments=[np.zeros(32, np.float32), x, start, rows, cols], expect={"out": expected})


for NAME, (KIND, VERB, TARGET, _) in EPILOGUES.items():
    define_here(
        f"epilogue_{NAME}", EPILOGUE.format(name=NAME, kind=KIND, verb=VERB, target=TARGET), partial(on_epilogue, NAME)
    )


@Wave(width=16)
@kernel
def epilogue_integers(out: KernelBuffer[i32], x: KernelBuffer[i32], start: KernelBuffer[i32], cols: KernelBuffer[i32]):
    t: CooperativeMatrix[i32, 4, 8, Use.ACCUMULATOR]
    into: CooperativeMatrix[i32, 4, 8, Use.ACCUMULATOR]
    t.load(x, 0, 0, 8)
    into.load(start, 0, 0, 8)
    t.scaled_accum_i32(into, WaveVector[i32, 8].of_slice(cols, 0))
    into.store(out, 0, 0, 8)


def on_epilogue_integers(data):
    low, high = -(1 << 23), (1 << 23) - 1
    x, cols = data.integers(i32, 32, low, high), data.integers(i32, 8, low, high)
    start = data.integers(i32, 32)
    total = start.astype(np.int64) + (x.astype(np.int64).reshape(4, 8) * cols).ravel()
    return dict(
        grid=1, block=16, arguments=[np.zeros(32, np.int32), x, start, cols], expect={"out": total.astype(np.int32)}
    )


FROM_WORDS = """
@Wave(width=32)
@kernel
def words_to_{use}(out: KernelBuffer[i8], data: KernelBuffer[u32]):
    t: CooperativeMatrix[i8, 16, 16, Use.{use}]
    w = data.vload[4](4 * (thread.x() % 16))
    t.from_words(w.x, w.y, w.z, w.w)
    t.store(out, 0, 0, 16)
"""


def on_words(use, data):
    words = data.integers(u32, 64)
    tile = words.view(np.int8).reshape(16, 16)
    return dict(
        grid=1, block=32, arguments=[np.zeros(256, np.int8), words], expect={"out": tile if use == "A" else tile.T}
    )


for USE in "AB":
    define_here(f"words_to_{USE}", FROM_WORDS.format(use=USE), partial(on_words, USE))
