"""Mathematics, bits, reinterpretation and vectors (spec/xpu.md 1.9)."""

import math

import numpy as np
import pytest

from kohakutpu.xpu import Undefined, bf16, f16, f32, f64, i8, i32, i64, u8, u32
from kohakutpu.xpu.verbs import ONE_ARGUMENT

ORACLE = {
    "exp": math.exp, "exp2": lambda x: 2.0**x, "log": math.log, "log2": math.log2, "log10": math.log10,
    "sin": math.sin, "cos": math.cos, "tan": math.tan, "asin": math.asin, "acos": math.acos, "atan": math.atan,
    "rsqrt": lambda x: 1 / math.sqrt(x), "floor": math.floor, "ceil": math.ceil, "trunc": math.trunc,
    "round": lambda x: math.floor(abs(x) + 0.5), "sqrt": math.sqrt,
}  # fmt: skip


@pytest.mark.parametrize("name", ONE_ARGUMENT)
def test_a_function_rounds_a_float64_result_once(compute, name):
    value = np.float32(0.7)
    assert compute(f"math.{name}(a)", f32, a=(f32, value)) == np.float32(ORACLE[name](float(value)))


@pytest.mark.parametrize(
    "expression, kind, inputs, expected",
    [
        ("math.round(a)", f32, {"a": (f32, -2.5)}, -3.0),
        ("math.round(a)", f32, {"a": (f32, 0.49999997)}, 0.0),
        ("math.atan2(a, b)", f32, {"a": (f32, 1.0), "b": (f32, -1.0)}, np.float32(math.atan2(1, -1))),
        ("math.pow(a, b)", f32, {"a": (f32, 3.0), "b": (i32, 4)}, 81.0),
        ("math.sqrt(a)", f64, {"a": (i32, 2)}, float(np.sqrt(np.float32(2)))),  # an integer becomes float32
        ("math.min(a, b)", f32, {"a": (f32, math.nan), "b": (f32, 1.0)}, 1.0),  # unordered: the second
        ("math.max(a, b)", f32, {"a": (f32, 1.0), "b": (f32, math.nan)}, 1.0),  # unordered: the first
        ("math.max(a, 5)", u8, {"a": (u8, 3)}, 5),
        ("math.min(a, b)", i32, {"a": (i32, -3), "b": (i32, 2)}, -3),
        ("math.abs(a)", i8, {"a": (i8, -128)}, -128),
        ("math.abs(a)", u8, {"a": (u8, 200)}, 200),
        ("math.abs(a)", f32, {"a": (f32, -0.0)}, 0.0),
        ("math.fma(a, b, c)", f64, {"a": (f64, 0.1), "b": (f64, 10.0), "c": (f64, -1.0)}, 2.0**-54),
        ("bits.count(a)", u32, {"a": (u32, 0xF00F)}, 8),
        ("bits.reverse(a)", u32, {"a": (u32, 1)}, 1 << 31),
        ("bits.rotate_left(a, b)", u32, {"a": (u32, 0x80000001), "b": (u32, 33)}, 3),
        ("bits.rotate_right(a, b)", u32, {"a": (u32, 3), "b": (u32, 1)}, 0x80000001),
        (
            "bits.permute(a, b, c)",
            u32,
            {"a": (u32, 0x03020100), "b": (u32, 0x07060504), "c": (u32, 0x7610)},
            0x07060100,
        ),
        ("f32_to_bits(a)", i32, {"a": (f32, -0.0)}, -(1 << 31)),
        ("bits_to_f32(a)", f32, {"a": (i32, 0x3FC00000)}, 1.5),
        ("f64_to_bits(a)", i64, {"a": (f64, 1.0)}, 0x3FF0000000000000),
        ("bits_to_f64(a)", f64, {"a": (i64, 0x3FF8000000000000)}, 1.5),
    ],
)
def test_a_built_in(compute, expression, kind, inputs, expected):
    assert compute(expression, kind, **inputs) == expected


def test_minimum_and_maximum_choose_by_position_among_equals(compute):
    signed = {"a": (f32, 0.0), "b": (f32, -0.0)}
    assert np.signbit(compute("math.min(a, b)", f32, **signed))  # min gives the second of equals
    assert not np.signbit(compute("math.max(a, b)", f32, **signed))  # and max the first


def test_a_signalling_nan_is_copied_as_it_is(launch, body_of):
    kernel = body_of("out[0] = data[0]", "out: KernelBuffer[f32], data: KernelBuffer[f32]")
    data = np.array([0x7F800001], np.uint32)
    out = np.zeros(1, np.float32)
    launch(kernel, out, data.view(np.float32))
    assert out.view(np.uint32)[0] == 0x7F800001


@pytest.fixture
def vector(launch, body_of):
    """`vector(body, out type, a=..., b=...)`: 64 outputs after a body over buffers a and b."""

    def call(body, kind, **inputs):
        parameters = ", ".join(
            [f"out: KernelBuffer[{kind}]", *(f"{name}: KernelBuffer[{t}]" for name, (t, _) in inputs.items())]
        )
        out = np.zeros(64, kind.dtype)
        launch(body_of(body, parameters), out, *(np.asarray(v).astype(t.dtype) for t, v in inputs.values()))
        return out.tolist()

    return call


BYTES = np.array([-128, -1, 0, 1, 2, 3, 100, 127, 5, 6, 7, 8, 9, 10, 11, 12], np.int8)
UNSIGNED = BYTES.view(np.uint8)


@pytest.mark.parametrize(
    "expression, kind, expected",
    [
        ("v.as_unsigned()", u8, UNSIGNED.tolist()),
        ("v.as_words()", i32, BYTES.view(np.int32).tolist()),
        ("v.as_words().as_bytes()", i8, BYTES.tolist()),
        ("v.widen_lo()", i32, BYTES[:8].tolist()),
        ("v.widen_hi()", i32, BYTES[8:].tolist()),
        ("v.as_unsigned().widen_lo()", i32, UNSIGNED[:8].tolist()),
        ("v.widen_lo().narrow(v.widen_hi())", i8, BYTES.tolist()),
        ("v.as_unsigned().as_signed()", i8, BYTES.tolist()),
        ("v.to_f32()", f32, BYTES.astype(float).tolist()),
        ("v.as_unsigned().to_f32()", f32, UNSIGNED.astype(float).tolist()),
        ("v.to_f32().to_f16()", f32, BYTES.astype(float).tolist()),
        ("v.to_bf16().to_i32()", i32, BYTES.tolist()),
        ("v.as_words().bitcast_f32().bitcast_i32()", i32, BYTES.view(np.int32).tolist()),
        ("v + v", i8, (BYTES + BYTES).tolist()),
        ("v * 3", i8, (BYTES * np.int8(3)).tolist()),
        ("v.as_unsigned() >> 4", u8, (UNSIGNED >> 4).tolist()),
        ("v >> 4", i8, (BYTES >> 4).tolist()),
        ("v & 15", i8, (BYTES & 15).tolist()),
        ("-v", i8, (-BYTES).tolist()),
        ("math.max(v, 3)", i8, np.maximum(BYTES, 3).tolist()),
        ("v.lut4(v)", i8, [int(BYTES[lane & 15]) for lane in BYTES]),
        ("Vector[i32, 2](7)", i32, [7, 7]),
        ("Vector[i32, 2]()", i32, [0, 0]),
        ("Vector[i32, 3](1, 2, 3)", i32, [1, 2, 3]),
        ("Vector[i32, 16](v)", i32, BYTES.tolist()),
        ("v.dot_accum(v.as_unsigned(), Vector[i32, 4](1, 2, 3, 4))", i32,
         [j + 1 + int((BYTES[4 * j : 4 * j + 4].astype(int) ** 2).sum()) for j in range(4)]),
    ],
)  # fmt: skip
def test_a_vector_expression(vector, expression, kind, expected):
    found = vector(f"v = a.vload[16](0)\nout.vstore(0, {expression})", kind, a=(i8, BYTES))
    assert found[: len(expected)] == expected and not any(found[len(expected) :])


def test_dot_sum_takes_weights_by_their_sign_and_activations_as_signed(vector):
    body = "w = a.vload[16](0)\nout[0] = w.as_unsigned().dot_sum(w.as_unsigned(), 5)\nout[1] = w.dot_sum(w, 5)"
    found = vector(body, i32, a=(i8, BYTES))
    mixed = int((UNSIGNED.astype(int) * BYTES.astype(int)).sum()) + 5
    assert found[:2] == [mixed, int((BYTES.astype(int) ** 2).sum()) + 5] and mixed != found[1]


def test_dot_of_bytes_takes_both_by_the_receivers_sign(vector):
    body = "w = a.vload[4](0)\nu = w.as_unsigned()\nout[0] = u.dot(w)\nout[1] = w.dot(u)\nout[2] = u.dot(u, -7)"
    found = vector(body, i32, a=(i8, BYTES))
    unsigned, signed = (int((x[:4].astype(int) ** 2).sum()) for x in (UNSIGNED, BYTES))
    assert found[:3] == [unsigned, signed, unsigned - 7]


def test_dot_of_floats_sums_in_lane_order_in_float32(vector):
    values = np.array([1e8, 1.0, -1e8, 0.25], np.float32)
    ones = np.ones(4, np.float32)
    found = vector("out[0] = a.vload[4](0).dot(b.vload[4](0))", f32, a=(f32, values), b=(f32, ones))
    assert found[0] == 0.25
    assert vector(
        "out[0] = a.vload[4](0).to_f16().dot(b.vload[4](0).to_f16())", f32, a=(f32, [1, 2, 3, 4]), b=(f32, [0.1] * 4)
    )[0] == float(  # fmt: skip
        np.float16(sum((np.float32(x) * np.float32(np.float16(0.1)) for x in (1, 2, 3, 4)), np.float32(0)))
    )


def test_group_mac_adds_a_signed_dot(vector):
    found = vector("out[0] = group.mac(3, a.vload[16](0), a.vload[16](0))", i32, a=(i8, BYTES))
    assert found[0] == 3 + int((BYTES.astype(int) ** 2).sum())


def test_lanes_are_read_and_written(vector):
    body = """
v = a.vload[4](0)
v[1] = 50
v.w = v.x
v[2] += 1
for k in range(4):
    out[k] = v[k]
"""
    assert vector(body, i32, a=(i8, [1, 2, 3, 4]))[:4] == [1, 50, 4, 1]


def test_a_lane_out_of_range_is_undefined(vector):
    with pytest.raises(Undefined, match=r"lane 4 of a Vector\[i8, 4\]"):
        vector("v = a.vload[4](0)\nk = i32(a[0])\nout[0] = v[k]", i32, a=(i8, [4, 2, 3, 4]))


def test_vectors_of_bool_compare_lane_by_lane(vector):
    found = vector("v = a.vload[4](0)\nm = v < 3\nout[0] = 1 if m[0] else 0\nout[1] = 1 if m[3] else 0", i32,
                   a=(i8, [1, 2, 3, 4]))  # fmt: skip
    assert found[:2] == [1, 0]


def test_to_i32_out_of_range_is_undefined(vector):
    with pytest.raises(Undefined, match=r"f32 3e\+09 converts to i32"):
        vector("out.vstore(0, a.vload[2](0).to_i32())", i32, a=(f32, [1.0, 3e9]))


def test_bfloat16_lives_in_memory_as_its_bits(vector):
    found = vector("out.vstore(0, a.vload[2](0).to_bf16())", bf16, a=(f32, [1.00390625, -2.5]))
    assert found[:2] == [0x3F80, 0xC020]  # the first is a tie, to even


def test_float16_is_kept_as_half(vector):
    assert vector("out[0] = a[0]", f16, a=(f32, [1.0001]))[0] == float(np.float16(1.0001))
