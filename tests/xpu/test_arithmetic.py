"""Rules 1 to 13 of the arithmetic (spec/xpu.md 2.3), each against values worked out by hand or by C's rules."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohakutpu import xpu
from kohakutpu.reference.xpu import arithmetic
from kohakutpu.xpu import bf16, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64

BIG = 4294967295


@pytest.mark.parametrize(
    "expression, kind, inputs, expected",
    [
        # 1: literals
        ("2147483647 + 1", i64, {}, -(1 << 31)),  # int32 literals wrap as int32
        ("2147483648 + 1", i64, {}, 2147483649),  # a literal past int32 is int64
        ("a + 300", u16, {"a": (u8, 1)}, 45),  # a literal takes the typed operand's type
        ("a - 1", i64, {"a": (u32, 0)}, BIG),
        ("i32(300) + a", i32, {"a": (u8, 1)}, 301),  # a conversion is no literal
        ("a * (2 + 3)", u32, {"a": (u8, 100)}, 244),  # literal op literal stays a literal
        ("-1 - a", u32, {"a": (u8, 1)}, 254),  # so does a negated one
        ("a + 1.5", f64, {"a": (f32, 0.1)}, float(np.float32(0.1)) + 1.5),  # a float literal is float64
        ("a + f32(1.5)", f64, {"a": (f32, 0.1)}, float(np.float32(0.1) + np.float32(1.5))),
        ("a * 3", f64, {"a": (f32, 0.1)}, float(np.float32(0.1) * np.float32(3))),
        ("u64(18446744073709551615)", u64, {}, (1 << 64) - 1),
        # 2: mixed integers
        ("a + b", i64, {"a": (i8, -1), "b": (u32, 1)}, 0),
        ("a + b", i64, {"a": (i8, -1), "b": (u16, 0)}, 65535),  # not signed: one is not
        ("a + b", i64, {"a": (i8, -1), "b": (i16, 0)}, -1),
        ("a * b", i64, {"a": (i32, 1 << 20), "b": (i32, 1 << 12)}, 0),
        ("a - b", i32, {"a": (i32, -(1 << 31)), "b": (i32, 1)}, (1 << 31) - 1),
        # 3: division, remainder, bits
        ("div(a, b)", i32, {"a": (i32, -7), "b": (i32, 2)}, -3),
        ("rem(a, b)", i32, {"a": (i32, -7), "b": (i32, 2)}, -1),
        ("div(a, b)", i64, {"a": (i32, -1), "b": (u32, 2)}, (1 << 31) - 1),
        ("a // b", u32, {"a": (u32, 7), "b": (u32, 2)}, 3),
        ("a % b", i64, {"a": (i32, -1), "b": (u32, 10)}, 5),
        ("a & b", i64, {"a": (i8, -1), "b": (u32, BIG)}, BIG),
        ("a ^ b", i64, {"a": (i8, -1), "b": (i16, 0)}, -1),
        ("a | b", i64, {"a": (i8, -128), "b": (u8, 1)}, 129),
        # 5: shifts
        ("a >> b", i32, {"a": (i32, -8), "b": (u32, 1)}, -4),
        ("a >> b", i64, {"a": (u32, BIG), "b": (i32, 1)}, BIG >> 1),
        ("lshr(a, b)", i32, {"a": (i32, -8), "b": (u32, 1)}, 0x7FFFFFFC),
        ("a << b", i64, {"a": (u8, 255), "b": (u8, 4)}, 0xF0),
        ("a << b", i64, {"a": (u8, 255), "b": (u32, 4)}, 0xFF0),  # the wider of both
        ("a >> b", i64, {"a": (i8, -128), "b": (u16, 7)}, -1),
        # 6: floats
        ("a + b", f64, {"a": (f32, 0.1), "b": (f64, 0.1)}, float(np.float32(0.1)) + 0.1),
        ("a + b", f64, {"a": (f32, 1e8), "b": (i32, 1)}, 1e8),
        ("a * b", f64, {"a": (f16, 1 + 2**-10), "b": (bf16, 1 + 2**-7)}, 1 + 2**-7 + 2**-10 + 2**-17),
        ("rem(a, b)", f64, {"a": (f32, -7.5), "b": (f32, 2.0)}, -1.5),
        ("a / b", f64, {"a": (f32, 1.0), "b": (f32, 3.0)}, float(np.float32(1) / np.float32(3))),
        # 8: unary
        ("-a", i32, {"a": (i32, -(1 << 31))}, -(1 << 31)),
        ("-a", u32, {"a": (u32, 1)}, BIG),
        ("~a", i32, {"a": (u8, 1)}, 254),
        # 9: conversions
        ("i32(a)", i32, {"a": (f32, -2.9)}, -2),
        ("u8(a)", u8, {"a": (f32, -0.9)}, 0),  # -1 < trunc, so 0
        ("u8(a)", u8, {"a": (i32, 511)}, 255),
        ("i64(a)", i64, {"a": (u32, BIG)}, BIG),
        ("u64(a)", u64, {"a": (i8, -1)}, (1 << 64) - 1),
        ("f32(a)", f32, {"a": (u64, (1 << 53) + (1 << 29) + 1)}, float(np.float32(2.0**53 + 2**30))),
        ("i32(b) + i32(bool(a))", i32, {"a": (f32, 0.5), "b": (i32, 0)}, 1),
        ("f16(a)", f16, {"a": (f32, 65520.0)}, np.float16("inf")),
        ("f16(a)", f32, {"a": (f32, 1e-7)}, float(np.float16(1e-7))),  # a subnormal
    ],
)
def test_a_rule(compute, expression, kind, inputs, expected):
    assert compute(expression, kind, **inputs) == expected


@pytest.mark.parametrize(
    "expression, inputs, expected",
    [
        ("a < b", {"a": (u32, BIG), "b": (i32, 1)}, True),  # 4: signed if either is
        ("a < b", {"a": (u32, BIG), "b": (u32, 1)}, False),
        ("a > b", {"a": (u8, 255), "b": (i32, -1)}, True),
        ("a == b", {"a": (i8, -1), "b": (u32, BIG)}, True),  # equality compares bits at the wider width
        ("a == b", {"a": (i8, -1), "b": (u64, BIG)}, False),
        ("a != b", {"a": (f32, math.nan), "b": (f32, math.nan)}, True),  # 6
        ("a == b", {"a": (f32, math.nan), "b": (f32, math.nan)}, False),
        ("a <= b", {"a": (f32, math.nan), "b": (f32, 1.0)}, False),
        ("(a < b) == (b < a)", {"a": (i32, 1), "b": (i32, 2)}, False),  # 7: bool with bool
        ("(a < b) ^ (b < a)", {"a": (i32, 1), "b": (i32, 2)}, True),
        ("not a < b", {"a": (i32, 1), "b": (i32, 2)}, False),
        ("a < b and b < 3", {"a": (i32, 1), "b": (i32, 2)}, True),
        ("a < b or div(a, 0) == 1", {"a": (i32, 1), "b": (i32, 2)}, True),  # 13: the right side never runs
        ("b < a and div(a, 0) == 1", {"a": (i32, 1), "b": (i32, 2)}, False),
    ],
)
def test_a_comparison(compute, expression, inputs, expected):
    assert bool(compute(expression, xpu.types.BOOL, **inputs)) is expected


def test_a_choice_runs_one_arm(compute):
    assert compute("a if a < b else div(a, 0)", i32, a=(i32, 1), b=(i32, 2)) == 1
    with pytest.raises(xpu.Undefined, match="division by zero: 1 / 0"):
        compute("a if b < a else div(a, 0)", i32, a=(i32, 1), b=(i32, 2))


def test_nothing_is_contracted(compute):
    a, b, c = np.float32(1 + 2**-12), np.float32(1 + 2**-12), np.float32(-1)
    assert compute("a * b + c", f32, a=(f32, a), b=(f32, b), c=(f32, c)) == a * b + c
    assert compute("math.fma(a, b, c)", f32, a=(f32, a), b=(f32, b), c=(f32, c)) != a * b + c


def test_compound_assignment_runs_its_right_side_first_and_its_index_twice(launch, body_of):
    body = "out[count.atomic_add(0, 1)] += count.atomic_add(0, 10)"
    kernel = body_of(body, "out: KernelBuffer[i32], count: KernelBuffer[i32]")
    out, count = np.arange(100, 120, dtype=np.int32), np.zeros(1, np.int32)
    launch(kernel, out, count)
    assert count[0] == 12 and out[11] == 110 + 0 and out[10] == 110  # read at 10, stored at 11


def test_an_assignment_gives_the_value_as_stored(compute, launch, body_of):
    kernel = body_of("x: u8 = 0\nout[0] = (x := a)\nout[1] = x", "out: KernelBuffer[i32], a: i32")
    out = np.zeros(2, np.int32)
    launch(kernel, out, 300)
    assert out.tolist() == [44, 44]


def test_an_assignment_converts_to_the_first_type(launch, body_of):
    kernel = body_of("x = i8(0)\nx = a\nx += a\nout[0] = x", "out: KernelBuffer[i32], a: i32")
    out = np.zeros(1, np.int32)
    launch(kernel, out, 100)
    assert out[0] == -56


UNDEFINED = [
    ("a << b", i32, {"a": (i32, 1), "b": (i32, 32)}, "a shift of i32 by 32"),
    ("a >> b", i32, {"a": (i32, 1), "b": (i32, -1)}, "a shift of i32 by -1"),
    ("a >> b", u32, {"a": (u32, 1), "b": (u32, BIG)}, "a shift of u32 by 4294967295"),
    ("lshr(a, b)", u8, {"a": (u8, 1), "b": (u8, 8)}, "a shift of u8 by 8"),
    ("div(a, b)", i32, {"a": (i32, 1), "b": (i32, 0)}, "division by zero: 1 / 0"),
    ("rem(a, b)", i32, {"a": (i32, 1), "b": (i32, 0)}, "division by zero: 1 % 0"),
    ("div(a, b)", i32, {"a": (i32, -(1 << 31)), "b": (i32, -1)}, "i32 overflow: -2147483648 / -1"),
    ("rem(a, b)", i32, {"a": (i32, -(1 << 31)), "b": (i32, -1)}, "i32 overflow: -2147483648 % -1"),
    ("i8(a)", i8, {"a": (f32, 128.0)}, "f32 128.0 converts to i8, which cannot hold it"),
    ("u8(a)", u8, {"a": (f32, -1.0)}, "f32 -1.0 converts to u8, which cannot hold it"),
    ("i32(a)", i32, {"a": (f32, math.nan)}, "f32 nan converts to i32"),
    ("i64(a)", i64, {"a": (f64, math.inf)}, "f64 inf converts to i64"),
]


@pytest.mark.parametrize("expression, kind, inputs, reason", UNDEFINED)
def test_undefined_arithmetic_names_operation_and_line(compute, expression, kind, inputs, reason):
    with pytest.raises(xpu.Undefined) as caught:
        compute(expression, kind, **inputs)
    assert str(caught.value).startswith(f"XPU-REF02: {reason}")
    assert caught.value.at.line == 3 and caught.value.at.text == expression
    assert "workgroup (0, 0, 0), work-item (0, 0, 0)" in str(caught.value)


INTEGERS = (i8, i16, i32, i64, u8, u16, u32, u64)
TYPED = st.sampled_from(INTEGERS).flatmap(lambda t: st.tuples(st.just(t), st.integers(t.low, t.high)))


def expected_integer(op: str, a, b):
    """C's answer with the spec's mixing rules, by arithmetic on unbounded integers."""
    (at, av), (bt, bv) = a, b
    bits = max(at.bits, bt.bits)
    signed = at.signed and bt.signed
    mask = (1 << bits) - 1
    if op in "+-*&|^":
        value = eval(f"av {op} bv", {"av": av & mask, "bv": bv & mask})
    else:
        left, right = (v if signed else v & mask for v in (av, bv))
        if right == 0 or (signed and right == -1 and left == -(1 << bits - 1)):
            return None
        quotient = int(Fraction(left, right))
        value = quotient if op == "div" else left - quotient * right
    value &= mask
    return value - (1 << bits) if signed and value >> (bits - 1) else value


@given(st.sampled_from(["+", "-", "*", "&", "|", "^", "div", "rem"]), TYPED, TYPED)
def test_integers_mix_as_the_rules_say(op, a, b):
    from kohakutpu.xpu import conversions, tree
    from kohakutpu.xpu.errors import Source

    at = Source("", 1, "")
    sides = [tree.Read(at, t, tree.Variable("", t, at)) for t, _ in (a, b)]
    word = {"+": "add", "-": "sub", "*": "mul", "&": "and", "|": "or", "^": "xor"}.get(op, op)
    node = conversions.binary(word, *sides, at)
    values = [arithmetic.convert(value, kind, node.type) for kind, value in (a, b)]
    expected = expected_integer(op, a, b)
    if expected is None:
        with pytest.raises(arithmetic.Fault):
            arithmetic.binary(word, node.type, *values)
    else:
        assert arithmetic.binary(word, node.type, *values) == expected


def test_fma_is_not_rounded_twice(compute):
    """The float64 nearest to this sum is a tie of float32, which the sum itself is not."""
    a, b, c = (1 + 2**-15) * 2**-12, (1 - 2**-15) * 2**-12, 1 + 2**-23
    assert compute("math.fma(a, b, c)", f32, a=(f32, a), b=(f32, b), c=(f32, c)) == np.float32(c)
    assert np.float32(a * b + c) != np.float32(c)


FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(FINITE, FINITE, FINITE)
def test_fma_rounds_once(a, b, c):
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    with np.errstate(all="ignore"):
        found = arithmetic.fma(f32, np.float32(a), np.float32(b), np.float32(c))
        if not np.isfinite(found):
            assert abs(exact) >= Fraction(2) ** 128 - Fraction(2) ** 103
            return
        low, high = np.nextafter(found, np.float32(-np.inf)), np.nextafter(found, np.float32(np.inf))
    distance = abs(exact - Fraction(float(found)))
    for neighbour in (low, high):
        if np.isfinite(neighbour):
            other = abs(exact - Fraction(float(neighbour)))
            assert distance < other or (distance == other and not int(found.view(np.uint32)) & 1)


@given(st.integers(0, 0xFFFF_FFFF))
def test_bfloat16_rounds_to_nearest_even(bits):
    value = np.uint32(bits).view(np.float32)
    rounded = arithmetic.round_bf16(value)
    assert int(rounded.view(np.uint32)) & 0xFFFF == 0
    if np.isnan(value):
        assert np.isnan(rounded)
        return
    low = np.uint32(bits & 0xFFFF_0000).view(np.float32)
    high = (np.uint32(bits & 0xFFFF_0000) + np.uint32(0x10000)).view(np.float32)
    if np.isinf(rounded) or np.isinf(high):
        assert rounded in (low, high)
        return
    gaps = [abs(Fraction(float(value)) - Fraction(float(side))) for side in (low, high)]
    even = low if not bits >> 16 & 1 else high
    assert rounded == (low if gaps[0] < gaps[1] else high if gaps[1] < gaps[0] else even)


@pytest.mark.parametrize("kind", [f16, bf16])
def test_sixteen_bit_floats_compute_in_float32(compute, kind):
    a, b = (1.0009765625, 3.0) if kind is f16 else (1.0078125, 3.0)
    out = compute("a * b + a", kind, a=(kind, a), b=(kind, b))
    first = arithmetic.settle(kind, np.float32(a) * np.float32(b))
    expected = arithmetic.settle(kind, np.float32(first) + np.float32(a))
    stored = np.float32(expected).view(np.uint32) >> np.uint32(16) if kind is bf16 else expected
    assert out == stored


def test_float64_takes_float64(compute):
    assert compute("a / b", f64, a=(f64, 1.0), b=(f32, 3.0)) == 1.0 / 3.0
