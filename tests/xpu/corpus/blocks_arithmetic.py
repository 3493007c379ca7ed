"""Building blocks: operators, conversions, mathematics and bits, a kernel for each type or verb."""

from functools import partial

import numpy as np

from kohakutpu.xpu import (
    Instantiate, KernelBuffer, Requires, bf16, bits, bits_to_f32, bits_to_f64, define, div, f16, f32, f32_to_bits,
    f64, f64_to_bits, i8, i16, i32, i64, kernel, lshr, math, rem, thread, u8, u16, u32, u64,
)  # fmt: skip

INTEGERS = (i8, i16, i32, i64, u8, u16, u32, u64)
FLOATS = (f16, bf16, f32, f64)
EVERY = (*INTEGERS, *FLOATS)
NAMES = {
    "KernelBuffer": KernelBuffer, "bits": bits, "div": div, "rem": rem, "lshr": lshr, "math": math, "kernel": kernel,
    "thread": thread, "bits_to_f32": bits_to_f32, "bits_to_f64": bits_to_f64, "f32_to_bits": f32_to_bits,
    "f64_to_bits": f64_to_bits, **{str(kind): kind for kind in EVERY}, "__name__": __name__,
}  # fmt: skip


def declare(name: str, text: str, case) -> None:
    """Declare a kernel of a family from its text, and its launch."""
    globals()[name] = define(text, dict(NAMES), name)[name]
    globals()[f"on_{name}"] = case


def wrap(kind, value: int) -> int:
    value &= (1 << kind.bits) - 1
    return value - (1 << kind.bits) if kind.signed and value >> kind.bits - 1 else value


def truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (-1 if (a < 0) != (b < 0) else 1)


def single(kind, memory):
    """Floats as numpy computes with them: float64 as it is, all others in float32."""
    if kind is bf16:
        return (memory.astype(np.uint32) << 16).view(np.float32)
    return memory if kind is f64 else memory.astype(np.float32)


# Integers: the operators of each type.
INTEGER = """
@kernel
def integers_{kind}(out: KernelBuffer[{kind}], a: KernelBuffer[{kind}], b: KernelBuffer[{kind}], n: u32):
    i = thread.global_id_x()
    if i < n:
        x = a[i]
        y = b[i]
        s = y & {top}
        o = i * 22
        out[o] = x + y
        out[o + 1] = x - y
        out[o + 2] = x * y
        out[o + 3] = x & y
        out[o + 4] = x | y
        out[o + 5] = x ^ y
        out[o + 6] = ~x
        out[o + 7] = -x
        out[o + 8] = div(x >> 1, y | 1)
        out[o + 9] = rem(x >> 1, y | 1)
        out[o + 10] = x << s
        out[o + 11] = x >> s
        out[o + 12] = lshr(x, s)
        out[o + 13] = math.min(x, y)
        out[o + 14] = math.max(x, y)
        out[o + 15] = math.abs(x)
        out[o + 16] = 1 if x < y else 0
        out[o + 17] = 1 if x >= y else 0
        out[o + 18] = 1 if x == y else 2 if x != y else 3
        out[o + 19] = 1 if x <= y else 0
        out[o + 20] = {kind}(x > y)
        out[o + 21] = 1 if bool(s) else 0
"""


def on_integers(kind, data):
    n = data.size(96)
    a, b = data.integers(kind, n), data.integers(kind, n)
    if data.adversarial:
        b[::5] = a[::5]
    expected = []
    for x, y in zip(a.tolist(), b.tolist(), strict=True):
        s, odd = y & kind.bits - 1, y | 1
        quotient = truncated(x >> 1, odd)
        plain = (1 << kind.bits) - 1
        row = [x + y, x - y, x * y, x & y, x | y, x ^ y, ~x, -x, quotient, (x >> 1) - quotient * odd, x << s, x >> s,
               (x & plain) >> s, min(x, y), max(x, y), abs(x), x < y, x >= y, 1 if x == y else 2, x <= y,
               x > y, s != 0]  # fmt: skip
        expected += [wrap(kind, value) for value in row]
    return dict(
        grid=3, block=32, arguments=[np.zeros(22 * n, kind.dtype), a, b, n],
        expect={"out": np.array(expected, kind.dtype)},
    )  # fmt: skip


for KIND in INTEGERS:
    declare(f"integers_{KIND}", INTEGER.format(kind=KIND, top=KIND.bits - 1), partial(on_integers, KIND))


@kernel
def mixed_signs(
    out: KernelBuffer[i64],
    a: KernelBuffer[i32],
    b: KernelBuffer[u32],
    c: KernelBuffer[i8],
    d: KernelBuffer[u16],
    n: u32,
):
    i = thread.global_id_x()
    if i < n:
        o = i * 12
        out[o] = a[i] + b[i]  # unsigned: not both are signed
        out[o + 1] = c[i] * d[i]  # 16 bits, unsigned
        out[o + 2] = a[i] * c[i]  # 32 bits, signed
        out[o + 3] = div(a[i], b[i] | 1)  # unsigned
        out[o + 4] = rem(c[i], d[i] | 1)
        out[o + 5] = c[i] & b[i]
        out[o + 6] = 1 if a[i] < b[i] else 0  # signed if either is
        out[o + 7] = 1 if c[i] > d[i] else 0
        out[o + 8] = 1 if a[i] == b[i] else 0  # bits at the wider width
        out[o + 9] = c[i] >> (d[i] & 15)  # arithmetic, 16 bits
        out[o + 10] = d[i] << u8(b[i] & 15)
        out[o + 11] = i64(b[i]) - a[i]


def on_mixed_signs(data):
    n = data.size(64)
    a, b, c, d = (data.integers(kind, n) for kind in (i32, u32, i8, u16))
    if data.adversarial:
        b[::4] = a[::4].view(np.uint32)
    expected = []
    for x, y, z, w in zip(*(array.tolist() for array in (a, b, c, d)), strict=True):
        expected += [
            wrap(u32, x + y), wrap(u16, z * w), wrap(i32, x * z), wrap(u32, x) // (y | 1), wrap(u16, z) % (w | 1),
            wrap(u32, z) & y, x < wrap(i32, y), z > wrap(i16, w), wrap(u32, x) == y, z >> (w & 15),
            wrap(u16, w << (y & 15)), y - x,
        ]  # fmt: skip
    return dict(
        grid=2, block=32, arguments=[np.zeros(12 * n, np.int64), a, b, c, d, n],
        expect={"out": np.array(expected, np.int64)},
    )  # fmt: skip


# Floats: the operators of each type.
FLOAT = """
@kernel
def floats_{kind}(out: KernelBuffer[{kind}], flags: KernelBuffer[u8], a: KernelBuffer[{kind}],
                  b: KernelBuffer[{kind}], n: u32):
    i = thread.global_id_x()
    if i < n:
        x = a[i]
        y = b[i]
        o = i * 10
        out[o] = x + y
        out[o + 1] = x - y
        out[o + 2] = x * y
        out[o + 3] = x / y
        out[o + 4] = -x
        out[o + 5] = math.abs(x)
        out[o + 6] = math.min(x, y)
        out[o + 7] = math.max(x, y)
        out[o + 8] = x * y + y
        out[o + 9] = {kind}(x < y)
        f = u8(0)
        f |= 1 if x < y else 0
        f |= 2 if x <= y else 0
        f |= 4 if x > y else 0
        f |= 8 if x >= y else 0
        f |= 16 if x == y else 0
        f |= 32 if x != y else 0
        f |= 64 if bool(x) else 0
        flags[i] = f
"""


def on_floats(kind, data):
    n = data.size(96)
    a, b = data.floats(kind, n), data.floats(kind, n)
    if data.adversarial:
        b[::7] = a[::7]
    x, y = single(kind, a), single(kind, b)

    def settled(values):
        if kind is f16:
            return values.astype(np.float16).astype(np.float32)
        if kind is bf16:
            bits_ = values.astype(np.float32).view(np.uint32)
            rounded = bits_ + np.uint32(0x7FFF) + (bits_ >> np.uint32(16) & np.uint32(1))
            return np.where(np.isnan(values), values, (rounded & np.uint32(0xFFFF0000)).view(np.float32))
        return values

    product = settled(x * y)
    rows = [x + y, x - y, product, x / y, -x, abs(x), np.where(x < y, x, y), np.where(x < y, y, x), product + y,
            (x < y).astype(x.dtype)]
    flags = sum(
        test.astype(np.uint8) << bit for bit, test in enumerate([x < y, x <= y, x > y, x >= y, x == y, x != y, x != 0])
    )
    return dict(
        grid=3, block=32, arguments=[np.zeros(10 * n, kind.dtype), np.zeros(n, np.uint8), a, b, n],
        expect={"out": np.stack([settled(row) for row in rows], 1), "flags": flags},
    )  # fmt: skip


for KIND in FLOATS:
    declare(f"floats_{KIND}", FLOAT.format(kind=KIND), partial(on_floats, KIND))


# C's fmod, which the type's own float computes.
REMAINDER = """
@kernel
def remainder_{kind}(out: KernelBuffer[{kind}], a: KernelBuffer[{kind}], b: KernelBuffer[{kind}], n: u32):
    i = thread.global_id_x()
    if i < n:
        out[i] = rem(a[i], b[i])
"""


def on_remainder(kind, data):
    n = data.size(64)
    a, b = data.floats(kind, n), data.floats(kind, n)
    return dict(
        grid=2, block=32, arguments=[np.zeros(n, kind.dtype), a, b, n],
        expect={"out": np.fmod(single(kind, a), single(kind, b))},
    )  # fmt: skip


for KIND in FLOATS:
    declare(f"remainder_{KIND}", REMAINDER.format(kind=KIND), partial(on_remainder, KIND))


# Conversions from each type to every other.
CONVERSION = """
@kernel
def convert_{kind}({outs}, a: KernelBuffer[{kind}], n: u32):
    i = thread.global_id_x()
    if i < n:
        x = a[i]
{body}
"""


def on_convert(kind, data):
    n = data.size(64)
    a = data.finite(kind, n, 20.0) if kind.kind == "float" else data.integers(kind, n)
    if kind.kind == "float":
        numbers = single(kind, a).astype(np.float64)
        a, numbers = a[np.abs(numbers) < 120], numbers[np.abs(numbers) < 120]
        n = len(a)
    expect, outs = {}, []
    for target in EVERY:
        outs.append(np.zeros(n, target.dtype))
        if kind.kind == "float":
            values = np.abs(numbers) if target.kind == "int" and not target.signed else numbers
            values = (
                np.trunc(values) if target.kind == "int" else values.astype(np.float32) if target is not f64 else values
            )
        elif target.kind == "int":
            values = np.array([wrap(target, value) for value in a.tolist()], target.dtype)
        else:
            values = a.astype(np.float64 if target is f64 else np.float32)
        expect[f"to_{target}"] = values
    return dict(grid=2, block=32, arguments=[*outs, a, n], expect=expect)


for KIND in EVERY:
    lines = [
        f"        to_{target}[i] = {target}("
        + ("math.abs(x))" if KIND.kind == "float" and target.kind == "int" and not target.signed else "x)")
        for target in EVERY
    ]
    outs = ", ".join(f"to_{target}: KernelBuffer[{target}]" for target in EVERY)
    declare(
        f"convert_{KIND}", CONVERSION.format(kind=KIND, outs=outs, body="\n".join(lines)), partial(on_convert, KIND)
    )


# Mathematics: a function each.
FUNCTION = """
@kernel
def math_{name}(out: KernelBuffer[{kind}], a: KernelBuffer[{kind}], b: KernelBuffer[{kind}],
                c: KernelBuffer[{kind}], n: u32):
    i = thread.global_id_x()
    if i < n:
        out[i] = math.{verb}({arguments})
"""
EXACT = {
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "sqrt": np.sqrt,
    "round": lambda a: np.where(np.isfinite(a), np.copysign(np.floor(np.abs(a.astype(np.float64)) + 0.5), a), a),
}  # fmt: skip
ONCE = {
    "exp": np.exp, "exp2": np.exp2, "log": np.log, "log2": np.log2, "log10": np.log10, "sin": np.sin, "cos": np.cos,
    "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "rsqrt": lambda a: 1 / np.sqrt(a),
    "atan2": np.arctan2, "pow": np.power,
}  # fmt: skip
TWO = ("atan2", "pow")


def on_math(verb, kind, data):
    n = data.size(64)
    a, b, c = (data.floats(kind, n) for _ in range(3))
    if verb in EXACT:
        expected, close = EXACT[verb](a.astype(np.float32) if kind is f16 else a), {}
    elif verb == "fma":
        expected, close = (
            (a.astype(np.float64) * b + c).astype(np.float32),
            {"out": (1.2e-7, 0)},
        )  # float64 rounds the sum before float32 does
    else:
        wide = [values.astype(np.float64) for values in ((a, b) if verb in TWO else (a,))]
        expected, close = ONCE[verb](*wide).astype(kind.dtype), {"out": (3e-16 if kind is f64 else 1.2e-7, 0)}
    return dict(
        grid=2, block=32, arguments=[np.zeros(n, kind.dtype), a, b, c, n], expect={"out": expected}, close=close
    )  # fmt: skip


for VERB in (*EXACT, *ONCE, "fma"):
    TAKES = "a[i], b[i], c[i]" if VERB == "fma" else "a[i], b[i]" if VERB in TWO else "a[i]"
    declare(
        f"math_{VERB}", FUNCTION.format(name=VERB, verb=VERB, kind=f32, arguments=TAKES), partial(on_math, VERB, f32)
    )
for VERB, KIND in (("exp", f64), ("sqrt", f64), ("floor", f64), ("round", f64), ("sqrt", f16), ("ceil", f16)):
    NAME = f"{VERB}_{KIND}"
    declare(
        f"math_{NAME}", FUNCTION.format(name=NAME, verb=VERB, kind=KIND, arguments="a[i]"), partial(on_math, VERB, KIND)
    )


@kernel
def bit_verbs(out: KernelBuffer[u32], a: KernelBuffer[u32], b: KernelBuffer[u32], n: u32):
    i = thread.global_id_x()
    if i < n:
        o = i * 5
        out[o] = bits.count(a[i])
        out[o + 1] = bits.reverse(a[i])
        out[o + 2] = bits.rotate_left(a[i], b[i])
        out[o + 3] = bits.rotate_right(a[i], b[i])
        out[o + 4] = bits.permute(a[i], b[i], b[i] & 0x7777)


def on_bit_verbs(data):
    n = data.size(64)
    a, b = data.integers(u32, n), data.integers(u32, n)
    expected = []
    for x, y in zip(a.tolist(), b.tolist(), strict=True):
        k, pool = y % 32, x.to_bytes(4, "little") + y.to_bytes(4, "little")
        expected += [
            x.bit_count(), int(f"{x:032b}"[::-1], 2), wrap(u32, x << k | x >> (32 - k)),
            wrap(u32, x >> k | x << (32 - k)),
            int.from_bytes(bytes(pool[(y & 0x7777) >> 4 * j & 15] for j in range(4)), "little"),
        ]  # fmt: skip
    return dict(
        grid=2, block=32, arguments=[np.zeros(5 * n, np.uint32), a, b, n],
        expect={"out": np.array(expected, np.uint32)},
    )  # fmt: skip


@kernel
def bit_casts(
    a: KernelBuffer[i32], b: KernelBuffer[f32], c: KernelBuffer[i64], d: KernelBuffer[f64], x: KernelBuffer[i32],
    y: KernelBuffer[i64], n: u32,
):  # fmt: skip
    i = thread.global_id_x()
    if i < n:
        b[i] = bits_to_f32(x[i])
        a[i] = f32_to_bits(b[i])
        d[i] = bits_to_f64(y[i])
        c[i] = f64_to_bits(d[i])


def on_bit_casts(data):
    n = data.size(64)
    x, y = data.floats(f32, n).view(np.int32), data.floats(f64, n).view(np.int64)
    outs = [np.zeros(n, kind) for kind in ("int32", "float32", "int64", "float64")]
    return dict(
        grid=2, block=32, arguments=[*outs, x, y, n],
        expect={"a": x, "b": x.view(np.float32), "c": y, "d": y.view(np.float64)},
    )  # fmt: skip


@Instantiate(dict(FACTOR=3, SHIFT=1), dict(FACTOR=-5, SHIFT=0))
@Requires("FACTOR % 2 == 1 and SHIFT < 8")
@kernel
def template(out: KernelBuffer[i32], a: KernelBuffer[i32], n: u32, *, FACTOR, SHIFT):
    i = thread.global_id_x()
    if i < n:
        out[i] = (a[i] * FACTOR >> SHIFT) + FACTOR


def on_template(factor, shift, data):
    n = data.size(64)
    a = data.integers(i32, n)
    expected = [wrap(i32, (wrap(i32, value * factor) >> shift) + factor) for value in a.tolist()]
    return dict(
        grid=2, block=32, arguments=[np.zeros(n, np.int32), a, n], expect={"out": np.array(expected, np.int32)}
    )  # fmt: skip


on_template_3_1, on_template_m5_0 = partial(on_template, 3, 1), partial(on_template, -5, 0)
