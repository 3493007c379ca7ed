"""Cooperative matrices and their epilogue verbs (spec/xpu.md 1.9)."""

import numpy as np
import pytest

from kohakutpu.reference.xpu import arithmetic
from kohakutpu.xpu import Undefined, bf16, f16, f32, f64, i8, i32, u8

RNG = np.random.default_rng(7)


def stored(kind, values):
    """Values in a type's memory dtype."""
    if kind is bf16:
        return (arithmetic.round_bf16(np.asarray(values, np.float32)).view(np.uint32) >> 16).astype(np.uint16)
    return np.asarray(values).astype(kind.dtype)


def held(kind, memory):
    """The numbers that memory holds."""
    return (memory.astype(np.uint32) << 16).view(np.float32) if kind is bf16 else memory


MULTIPLY = """
acc: CooperativeMatrix[{acc}, 4, 6, Use.ACCUMULATOR]
a: CooperativeMatrix[{left}, 4, 5, Use.A]
b: CooperativeMatrix[{right}, 5, 6, Use.B]
acc.splat({start})
a.load(x, 0, 0, 5)
b.load(w, 1, 1, 5)
acc.mma(a, b)
acc.store(out, 0, 0, 6)
"""


@pytest.mark.parametrize(
    "acc, left, right",
    [(f32, f16, f16), (f32, bf16, bf16), (f32, f32, f32), (f16, f16, f16), (bf16, bf16, bf16), (f64, f64, f64),
     (f64, f32, f32), (i32, i8, i8), (i32, u8, i8), (i8, i8, i8)],
)  # fmt: skip
def test_mma_sums_over_k_in_order(launch, body_of, acc, left, right):
    kernel = body_of(MULTIPLY.format(acc=acc, left=left, right=right, start=3),
                     f"out: KernelBuffer[{acc}], x: KernelBuffer[{left}], w: KernelBuffer[{right}]")  # fmt: skip
    if acc.kind == "int":
        x = RNG.integers(left.low, left.high + 1, 20).astype(left.dtype)
        w = RNG.integers(right.low, right.high + 1, 31).astype(right.dtype)
    else:
        x, w = stored(left, RNG.standard_normal(20)), stored(right, RNG.standard_normal(31))
    out = np.zeros(24, acc.dtype)
    launch(kernel, out, x, w, block=4, width=4)
    rows, cols = held(left, x).reshape(4, 5), held(right, w[1:]).reshape(6, 5).T  # column by column, offset 1
    work = {"int": np.int64}.get(acc.kind, np.float64 if acc is f64 else np.float32)
    total = np.full((4, 6), 3, work)
    for k in range(5):
        total = total + rows[:, k, None].astype(work) * cols[None, k, :].astype(work)
    np.testing.assert_array_equal(out.reshape(4, 6), stored(acc, total))


def test_mma_into_float16_rounds_once_at_the_end(launch, body_of):
    kernel = body_of(MULTIPLY.format(acc="f16", left="f16", right="f16", start=0),
                     "out: KernelBuffer[f16], x: KernelBuffer[f16], w: KernelBuffer[f16]")  # fmt: skip
    x, w = np.full(20, 1.001, np.float16), np.full(31, 1.001, np.float16)
    out = np.zeros(24, np.float16)
    launch(kernel, out, x, w, block=4, width=4)
    single, each = np.float32(0), np.float16(0)
    for _ in range(5):
        single = single + np.float32(x[0]) * np.float32(w[0])
        each = np.float16(np.float32(each) + np.float32(np.float16(np.float32(x[0]) * np.float32(w[0]))))
    assert out[0] == np.float16(single) != each


BAD = [
    ("acc.mma(a, a)", "the shapes do not chain"),
    ("acc.mma(acc, acc)", "uses A and B into an accumulator are taken"),
    ("n: CooperativeMatrix[i8, 4, 4, Use.B]\nacc.mma(a, n)", "integers and floats do not mix"),
    ("acc.mma(1, a)", "i32 where a cooperative matrix is taken"),
    ("acc.load(x, 0, 0, 4)\nq = acc.rows()", "has no rows; it has col, elements, from_words, get"),
    ("acc.from_words(1, 2, 3, 4)", "it makes int8 operands of 16 x 16 only"),
    ("acc.rank1_accum(x.at(0), WaveVector[f32, 4].broadcast(1))", "row factors are a slice of Shared, not of Kernel"),
    ("acc.rank1_accum(s.at(0), WaveVector[f32, 8].broadcast(1))", "column factors are a WaveVector[f32, 4]"),
    ("acc.rank1_accum(s.at(0), 4)", "column factors are a WaveVector[f32, 4]: of_slice, broadcast or of_lane"),
    (
        "acc.rank1_accum(s[0], WaveVector[f32, 4].broadcast(1))",
        "row factors are a slice of Shared[f32]: memory.at(offset)",
    ),
    ("q = WaveVector[f32, 4].of_row(1)", "WaveVector has no of_row; it has of_slice, broadcast and of_lane"),
    ("q = WaveVector[f32, 4].of_slice(a, 1)", "of_slice of CooperativeMatrix[f16, 4, 8, 0]; memory of f32 is taken"),
    ("acc.scaled_accum_i32(acc, WaveVector[i32, 4].broadcast(1))", "a tile of i32 of the same shape is taken"),
    ("take(a)", "take: t: CooperativeMatrix[f16, 8, 8, 0] expected, not CooperativeMatrix[f16, 4, 8, 0]"),
    ("b: CooperativeMatrix[f32, 4, 4, 3]", "a number and a Use were expected"),
    ("acc = a", "which is not assigned as a whole"),
]


@pytest.mark.parametrize("body, reason", BAD)
def test_a_tile_verb_that_is_refused(kernel_of, reasons, body, reason):
    before = ("acc: CooperativeMatrix[f32, 4, 4, Use.ACCUMULATOR]\na: CooperativeMatrix[f16, 4, 8, Use.A]\n"
              "s = Shared[f32](64)\n")  # fmt: skip
    lines = "\n".join("    " + line for line in (before + body).splitlines())
    helper = "@device\ndef take(t: CooperativeMatrix[f16, 8, 8, Use.A]):\n    pass\n"
    kernel = kernel_of(f"{helper}@kernel\ndef k(x: KernelBuffer[f32]):\n{lines}\n")
    assert any(reason in text for text in reasons(kernel)), reasons(kernel)


def test_a_tile_goes_to_a_helper_by_value_at_its_exact_shape(launch, kernel_of):
    kernel = kernel_of("""
@device
def put(t: CooperativeMatrix[f32, 2, 2, Use.ACCUMULATOR], out: KernelBuffer[f32]):
    t.splat(7)
    t.store(out, 4, 0, 2)
@kernel
def k(out: KernelBuffer[f32]):
    t: CooperativeMatrix[f32, 2, 2, Use.ACCUMULATOR]
    t.splat(3)
    put(t, out)
    t.store(out, 0, 0, 2)
""")
    out = np.zeros(8, np.float32)
    launch(kernel, out, width=1)
    assert out.tolist() == [3] * 4 + [7] * 4


def test_a_load_sees_what_its_wave_stored_without_a_barrier(launch, body_of):
    kernel = body_of("""
s = Shared[i8](16)
s[thread.x()] = i8(thread.x())
a: CooperativeMatrix[i8, 4, 4, Use.A]
a.load(s, 0, 1, 4)
a.store(out, 0, 0, 4)
""", "out: KernelBuffer[i8]")  # fmt: skip
    out = np.zeros(16, np.int8)
    launch(kernel, out, block=16, width=16)
    assert out.reshape(4, 4).T.ravel().tolist() == list(range(16))


def test_each_lane_computes_from_its_own_arguments(launch, body_of):
    kernel = body_of("""
a: CooperativeMatrix[i8, 2, 2, Use.A]
at = 4 * i32(thread.x())
a.load(x, at, 0, 2)
a.store(out, at, 1, 2)
""", "out: KernelBuffer[i8], x: KernelBuffer[i8]")  # fmt: skip
    x, out = np.arange(16, dtype=np.int8), np.zeros(16, np.int8)
    launch(kernel, out, x, block=4, width=4)
    assert out.tolist() == x.reshape(4, 2, 2).transpose(0, 2, 1).ravel().tolist()


@pytest.mark.parametrize("layout", [2, -1])
def test_a_layout_past_1_is_undefined(launch, body_of, layout):
    kernel = body_of("a: CooperativeMatrix[i8, 4, 4, Use.A]\na.load(out, 0, n, 4)", "out: KernelBuffer[i8], n: i32")
    with pytest.raises(Undefined, match=f"a tile layout of {layout}; 0 is row by row, 1 column by column"):
        launch(kernel, np.zeros(16, np.int8), layout, width=1)


def test_fragments_belong_to_lanes_and_come_together(launch, body_of):
    kernel = body_of("""
t: CooperativeMatrix[f32, 4, 4, Use.ACCUMULATOR]
t.load(x, 0, 0, 4)
for i in range(t.elements()):
    if (t.row(i) + t.col(i)) % 2 == 0:
        t.set(i, t.get(i) * f32(t.row(i) * 4 + t.col(i)))
t.store(out, 0, 0, 4)
count[thread.x()] = t.elements()
""", "out: KernelBuffer[f32], x: KernelBuffer[f32], count: KernelBuffer[u32]")  # fmt: skip
    x, out, count = np.full(16, 2, np.float32), np.zeros(16, np.float32), np.zeros(8, np.uint32)
    launch(kernel, out, x, count, block=8, width=8)
    assert out.tolist() == [2 * i if (i // 4 + i % 4) % 2 == 0 else 2 for i in range(16)]
    assert count.tolist() == [2] * 8
    with pytest.raises(Undefined, match="element 4 of the 4 that lane 0 owns"):
        bad = body_of("t: CooperativeMatrix[f32, 4, 4, 2]\nq = t.get(n)\nt.set(0, q)", "n: i32")
        launch(bad, 4, block=4, width=4)


EPILOGUE = """
s = Shared[f32](8)
for i in range(8):
    s[i] = rows[i]
barrier.wave()
t: CooperativeMatrix[{element}, 4, 4, Use.ACCUMULATOR]
into: CooperativeMatrix[f32, 4, 4, Use.ACCUMULATOR]
t.load(tile, 0, 0, 4)
into.load(start, 0, 0, 4)
{verb}
{target}.store(out, 0, 0, 4)
"""
ROWS = RNG.standard_normal(8).astype(np.float32)
COLS = RNG.standard_normal(16).astype(np.float32)
START = RNG.standard_normal(16).astype(np.float32)


def fused(a, b, c):
    """fma of float32 numbers, through exact rationals."""
    from fractions import Fraction

    exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
    near = np.float32(float(exact))
    around = [near, np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))]
    return min(around, key=lambda v: (abs(Fraction(float(v)) - exact), int(v.view(np.uint32)) & 1))


def scaled(tile, cols, rows=ROWS):
    return [[fused(np.float32(rows[r] * cols[c]), np.float32(tile[r, c]), START.reshape(4, 4)[r, c]) for c in range(4)]
            for r in range(4)]  # fmt: skip


@pytest.mark.parametrize(
    "columns, values",
    [
        ("WaveVector[f32, 4].of_slice(cols, 2)", COLS[2:6]),
        ("WaveVector[f32, 4].of_slice(cols, 1, 3)", COLS[1:11:3]),
        ("WaveVector[f32, 4].broadcast(cols[5])", COLS[[5] * 4]),
        ("WaveVector[f32, 4].of_lane(cols[thread.x() % 4])", COLS[:4]),
    ],
)
@pytest.mark.parametrize("element", [f32, i32])
def test_scaled_accumulation_is_one_fma_with_the_rounded_factor(launch, body_of, columns, values, element):
    verb = f"t.scaled_accum_into(into, s.at(0), {columns})"
    kernel = body_of(EPILOGUE.format(element=element, verb=verb, target="into"),
                     f"out: KernelBuffer[f32], tile: KernelBuffer[{element}], start: KernelBuffer[f32], "
                     "rows: KernelBuffer[f32], cols: KernelBuffer[f32]")  # fmt: skip
    tile = (RNG.standard_normal(16) * 1000).astype(element.dtype)
    out = np.zeros(16, np.float32)
    launch(kernel, out, tile, START, ROWS, COLS, block=8, width=8)
    np.testing.assert_array_equal(out.reshape(4, 4), scaled(tile.reshape(4, 4), values))


def test_the_other_epilogues(launch, body_of):
    parameters = ("out: KernelBuffer[f32], tile: KernelBuffer[f32], start: KernelBuffer[f32], rows: KernelBuffer[f32], "
                  "cols: KernelBuffer[f32]")  # fmt: skip
    tile, out = RNG.standard_normal(16).astype(np.float32), np.zeros(16, np.float32)
    first, second = "WaveVector[f32, 4].of_slice(cols, 0)", "WaveVector[f32, 4].of_slice(cols, 4)"
    verb = f"t.scaled_accum_into2(into, s.at(0), {first}, s.at(4), {second})"
    kernel = body_of(EPILOGUE.format(element="f32", verb=verb, target="into"), parameters)
    launch(kernel, out, tile, START, ROWS, COLS, block=4, width=4)
    one = scaled(tile.reshape(4, 4), COLS)
    expected = [[fused(ROWS[4 + r], COLS[4 + c], one[r][c]) for c in range(4)] for r in range(4)]
    np.testing.assert_array_equal(out.reshape(4, 4), expected)
    kernel = body_of(EPILOGUE.format(element="f32", verb=f"t.rank1_accum(s.at(0), {first})", target="t"), parameters)
    launch(kernel, out, tile, START, ROWS, COLS, block=4, width=4)
    expected = [[fused(ROWS[r], COLS[c], tile.reshape(4, 4)[r, c]) for c in range(4)] for r in range(4)]
    np.testing.assert_array_equal(out.reshape(4, 4), expected)


def test_integer_epilogue_fits_24_bits(launch, body_of):
    kernel = body_of("""
t: CooperativeMatrix[i32, 2, 2, Use.ACCUMULATOR]
into: CooperativeMatrix[i32, 2, 2, Use.ACCUMULATOR]
t.load(tile, 0, 0, 2)
into.splat(7)
t.scaled_accum_i32(into, WaveVector[i32, 2].of_slice(cols, 0))
into.store(out, 0, 0, 2)
""", "out: KernelBuffer[i32], tile: KernelBuffer[i32], cols: KernelBuffer[i32]")  # fmt: skip
    out, tile = np.zeros(4, np.int32), np.array([1, -2, 8388607, -8388608], np.int32)
    launch(kernel, out, tile, np.array([1000, 3], np.int32), width=1)
    assert out.tolist() == [1007, 1, (8388607 * 1000 + 7 + 2**31) % 2**32 - 2**31, -8388608 * 3 + 7]
    with pytest.raises(Undefined, match="scaled_accum_i32 of a tile of 8388608, past 24 signed bits"):
        launch(kernel, out, np.array([8388608, 0, 0, 0], np.int32), np.array([1, 1], np.int32), width=1)
    with pytest.raises(Undefined, match="scaled_accum_i32 of a column factor of 8388608, past 24 signed bits"):
        launch(kernel, out, tile, np.array([1, 8388608], np.int32), width=1)


@pytest.mark.parametrize("use", ["A", "B"])
def test_words_become_a_row_or_a_column_per_lane(launch, body_of, use):
    kernel = body_of(f"""
t: CooperativeMatrix[i8, 16, 16, Use.{use}]
w = data.vload[4](4 * (thread.x() % 16))
t.from_words(w.x, w.y, w.z, w.w)
t.store(out, 0, 0, 16)
""", "out: KernelBuffer[i8], data: KernelBuffer[u32]")  # fmt: skip
    data = RNG.integers(0, 256, 256).astype(np.uint8)
    out = np.zeros(256, np.int8)
    launch(kernel, out, data.view(np.uint32), block=32, width=32)
    found = out.reshape(16, 16)
    np.testing.assert_array_equal(found if use == "A" else found.T, data.view(np.int8).reshape(16, 16))


@pytest.mark.parametrize(
    "body, width, reason",
    [
        ("w = data[thread.x()]\nt.from_words(w, w, w, w)", 32, r"from_words, for which lanes \[0, 16\] disagree"),
        ("t.from_words(1, 1, 1, 1)", 8, "from_words without an active lane for line 8"),
        (
            "f.rank1_accum(s.at(0), WaveVector[f32, 16].of_lane(f32(thread.x())))",
            32,
            r"column 0 of WaveVector.of_lane, for which lanes \[0, 16\] disagree",
        ),
        (
            "f.rank1_accum(s.at(0), WaveVector[f32, 16].of_lane(1))",
            8,
            "column 8 of WaveVector.of_lane, whose lanes are all",
        ),
    ],
)
def test_lanes_that_disagree_are_undefined(launch, body_of, body, width, reason):
    before = ("t: CooperativeMatrix[i8, 16, 16, Use.A]\nf: CooperativeMatrix[f32, 16, 16, Use.ACCUMULATOR]\n"
              "s = Shared[f32](16)\nfor i in range(16):\n    s[i] = 1\n")  # fmt: skip
    kernel = body_of(before + body, "data: KernelBuffer[u32]")
    with pytest.raises(Undefined, match=reason):
        launch(kernel, np.arange(32, dtype=np.uint32), block=width, width=width)


def test_a_kernel_with_a_tile_needs_a_width(launch, body_of):
    from kohakutpu.xpu import Refused

    with pytest.raises(Refused, match="neither the launch nor @Wave gives the width"):
        launch(body_of("t: CooperativeMatrix[f32, 4, 4, 2]\nt.splat(1)", "n: i32"), 1)
