"""Corners where two ways of running a kernel may part: walker, fast path and both builds of the cpu give one answer."""

from hashlib import sha256

import numpy as np
import pytest

from kohakutpu.backends.cpu import CPU, execute
from kohakutpu.reference.xpu import Launch, run
from kohakutpu.xpu import Undefined, bf16, f16, f32, f64, i32, i64, u32
from kohakutpu.xpu.launch import Request


def corner(value) -> tuple:
    return (*((value,) if isinstance(value, int) else value), 1, 1)[:3]


def outcomes(kernel, arguments, grid, block, width, shared) -> list:
    """What the walker, the fast path and the cpu's builds leave: digests of memory, or the line that is undefined."""
    request = lambda given: Request(kernel, corner(grid), corner(block), shared, tuple(given))  # noqa: E731
    how = Launch(grid, block, width, shared_bytes=shared)
    ways = [
        lambda given: run(kernel, given, how, walk=True), lambda given: run(kernel, given, how),
        lambda given: execute(CPU, request(given), width, True),
        lambda given: execute(CPU, request(given), width, False),
    ]  # fmt: skip
    found = []
    for way in ways:
        if found and isinstance(found[0], int) and len(found) == 3:
            break  # undefined: a build without checks may do anything
        given = [np.copy(a) if isinstance(a, np.ndarray) else a for a in arguments]
        try:
            way(given)
        except Undefined as raised:
            found.append(raised.at.line)
        else:
            arrays = [np.where(a != a, a.dtype.type("nan"), a) if a.dtype.kind == "f" else a
                      for a in given if isinstance(a, np.ndarray)]  # fmt: skip
            found.append([sha256(a.tobytes()).hexdigest()[:16] for a in arrays])
    return found


def numbers(kind, count=64, seed=3):
    """Random integers, the ends of the type first and again from the 21st on."""
    limits = np.iinfo(kind)
    made = np.random.default_rng(seed).integers(limits.min, limits.max, count, kind, endpoint=True)
    ends = np.array([limits.min, limits.max, 0, 1, limits.max - 1, limits.min + 1, 2, 7], kind)
    made[:8], made[20:28] = ends, ends[::-1]
    return made


SMALL = np.random.default_rng(1).integers(-50, 50, 256, np.int32)
PLAIN = "out: KernelBuffer[i32], a: KernelBuffer[i32], n: u32"
WIDE = "out: KernelBuffer[i64], a: KernelBuffer[i64], b: KernelBuffer[u32], c: KernelBuffer[i32]"


def plain(n=24):
    return [np.zeros(256, np.int32), SMALL, n]


def wide(a=None, c=None):
    return [np.zeros(256, np.int64), numbers(np.int64) if a is None else a, numbers(np.uint32, seed=4),
            numbers(np.int32, seed=5) if c is None else c]  # fmt: skip


HELPERS = """
@device
def twice(x: i32) -> i32:
    return x * 2
@device
def early(x: i32) -> i32:
    s = 0
    for i in range(x & 7):
        if i == 5:
            return s
        s += i * x
    return s
@device
def picked(a: KernelBuffer[i32], i: u32, n: u32) -> i32:
    if i >= n:
        return -7
    if a[i] > 20:
        return a[i] * 2
    return a[i] - 1
@device
def turned(s: Shared[i32], t: i32, x: i32) -> i32:
    v = s[31 - t]
    barrier.workgroup()
    s[t] = v + x
    barrier.workgroup()
    if v > 16:
        return v
    return x + 1
"""

# name: (parameters, body, arguments, launch, whether it is undefined)
KERNELS = {
    "mixed signs": (WIDE, """
t = thread.x()
out[t] = a[t] + b[t] * c[t]
out[t + 16] = (b[t] ^ c[t]) - c[t]
out[t + 32] = 1 if b[t] < c[t] else 0
out[t + 48] = 1 if a[t] < b[t] else 0
out[t + 64] = div(c[t], b[t] | 1) + rem(a[t], b[t] | 1)
""", wide(), {"block": 16}, False),
    "shifts up to the width": (WIDE, """
t = thread.x()
out[t] = (a[t] << (b[t] & 63)) ^ (a[t] >> (b[t] & 63)) ^ lshr(a[t], u32(c[t]) & 63)
out[t + 16] = (i16(c[t]) >> 15) + lshr(i8(c[t]), 3) + (u8(200) << 7) + (b[t] >> u8(t))
""", wide(), {"block": 16}, False),
    "a shift of a narrow type past it": (WIDE, "t = thread.x()\nout[t] = u8(c[t]) << u8(t + 3)", wide(), {"block": 16},
                                         True),
    "the least number by -1": (WIDE, "t = thread.x()\nout[t] = div(a[t], c[t])",
                               wide(np.full(64, np.iinfo(np.int64).min), np.array([1] * 5 + [-1] * 59, np.int32)),
                               {"block": 16}, True),
    "loops with labels": (PLAIN, """
t = i32(thread.global_id_x())
s = 0
for i in label("o", range(6)):
    for j in label("m", range(5, -3, -2)):
        for k in range(i):
            if a[(t + k) & 255] > 40:
                continue_to("o")
            if a[(t + j + 8) & 255] < -45:
                break_to("m")
            if s > 400:
                break_to("o")
            s += k * j + 1
        s -= 1
    s += 7
out[t] = s
""", plain(), {"grid": 2, "block": 48}, False),
    "function values": (PLAIN, """
t = i32(thread.global_id_x())
f: Function[twice, early] = twice
if rem(t, 3) == 1:
    f = early
out[t] = f(a[t]) + f(f(t))
""", plain(), {"grid": 2, "block": 40}, False),
    "helpers that return early, at a guard": (PLAIN, """
t = thread.global_id_x()
out[t] = picked(a, t, n)
if t < n:
    out[t] += picked(a, t + 1, n + 3)
""", plain(29), {"grid": 2, "block": 32}, False),
    "helpers that meet": (PLAIN, """
t = i32(thread.x())
s = Shared[i32](32)
s[t] = t
barrier.workgroup()
x = 0
for i in range(3):
    x += turned(s, t, x)
out[t] = x
""", plain(), {"block": 32}, False),
    "loops beside barriers": (PLAIN, """
t = i32(thread.x())
s = Shared[i32](24)
s[t] = a[t]
acc = 0
v = Vector[i32, 3](t, 2, 3)
for i in label("o", range(4)):
    barrier.workgroup()
    for j in range(3):
        acc += s[rem(t + i * j, 24)]
        v[rem(j, 3)] = v[rem(j, 3)] + acc
        if acc > 60:
            acc -= 7
            continue
        acc ^= 3
    if n > 100:
        break_to("o")
    barrier.workgroup()
    s[t] = acc + i
out[t] = acc + v[0] * v[1] - v[2]
""", plain(), {"block": 24}, False),
    "a barrier that some miss": (PLAIN, "if thread.x() < 20:\n    barrier.workgroup()", plain(), {"block": 24}, True),
    "quads in part": (PLAIN, """
t = thread.x()
if t % 4 == 1:
    return
out[t] = 1 if quad.all(a[t] > -30) else 0
out[t + 128] = 1 if quad.any(a[t] > 30) else 0
""", plain(), {"block": 32, "widths": (4, 8, 16)}, False),
    "atomics in part of a wave": (PLAIN, """
t = thread.x()
if a[t] > 0:
    out[t + 10] = out.atomic_sub(0, a[t])
out.atomic_xor(1, a[t])
out[t + 90] = out.atomic_compare_exchange(2, i32(t), i32(t) + 1)
""", plain(), {"block": 40, "widths": (1, 4, 16)}, False),
    "padded Shared": (PLAIN, """
t = thread.x()
p = BlockPadded[i32, 4, 3](40)
p[t] = a[t]
barrier.workgroup()
out[t] = p[23 - t]
""", plain(), {"block": 24}, False),
    "padded Shared below its beginning": (PLAIN, """
t = i32(thread.x())
p = BlockPadded[i32, 8, 1](36)
p[t] = a[t]
barrier.workgroup()
out[t] = p[t - 3]
""", plain(), {"block": 24}, True),
    "one array in two sizes": (PLAIN, """
t = i32(thread.x())
p = Shared[i32](n + u32(t >> 3))
p[t] = t
""", plain(), {"block": 24, "shared": 960}, True),
    "one array in each workgroup's size": (PLAIN, """
t = thread.x()
p = Shared[i32](workgroup.x() + 24)
p[t] = a[t]
barrier.workgroup()
out[workgroup.x() * 24 + t] = p[t ^ 1]
""", plain(), {"grid": 5, "block": 24, "shared": 960}, False),
    "vectors of three": ("o: KernelBuffer[u8], b: KernelBuffer[u8]", """
t = i32(thread.x())
v = b.vload[3](t * 3)
w = b.vload[3](i64(t) + 5)
x = (v ^ w) + v * 3
x[t & 1] = b[t]
x[2] = -x[0] if t > 4 else x[2]
o.vstore(t * 3, x)
""", [np.zeros(64, np.uint8), numbers(np.uint8)], {"block": 12}, False),
    "counts at the ends of types": (PLAIN, """
s = i64(0)
for k in range(i64(9223372036854775800), i64(9223372036854775807), 3):
    s += k - 9223372036854775800
for k in range(u8(250), u8(255), 2):
    s += i64(k)
for k in range(i8(-128), i8(127), 100):
    s += i64(k)
out[thread.x()] = i32(s)
""", plain(), {"block": 3}, False),
}  # fmt: skip


@pytest.mark.parametrize("name", KERNELS)
def test_all_ways_give_one_answer(kernel_of, name):
    parameters, body, arguments, how, undefined = KERNELS[name]
    lines = "\n".join("    " + line for line in body.strip("\n").splitlines())
    declared = kernel_of(f"{HELPERS}\n@kernel\ndef k({parameters}):\n{lines}\n")
    for width in how.get("widths", (1, 8)):
        walked, *others = outcomes(declared, arguments, how.get("grid", 1), how["block"], width, how.get("shared", 0))
        assert isinstance(walked, int) == undefined and all(other == walked for other in others), width


FLOATS = [0, -0.0, 1, 65504, 65520, 65519.99, 1e-8, 5.96e-8, 2.98e-8, 2.9802325e-8, np.inf, -np.inf, np.nan, 3.4e38,
          1e-45, 6.1e-5, 6.09e-5, 2049, 2051, 1.00048828125, 1.00146484375, 3.3895314e38, 3.3961775e38, 1e-40,
          1.1754942e-38, -65520, 0.1, 0.3, 123456.789, -7.7, 16777217, 9007199254740993]  # fmt: skip


def as_memory(kind) -> np.ndarray:
    """FLOATS in a type's memory; a bfloat16 cut off."""
    with np.errstate(all="ignore"):
        if kind is bf16:
            return (np.array(FLOATS, np.float32).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        return np.array(FLOATS).astype(kind.dtype)


@pytest.mark.parametrize("source", [f16, bf16, f32, f64, i32, u32, i64], ids=str)
def test_conversions_to_every_float_at_the_ends(kernel_of, source):
    """NaN, infinities, subnormal numbers, ties; products and sums in the wider type of two."""
    source_memory = numbers(source.dtype, 32) if source.kind == "int" else as_memory(source)
    outs = "".join(f"    o{n}[t] = {kind}(a[t])\n    p{n}[t] = {kind}(a[t] * b{n}[31 - t] - a[(t + 7) % 32])\n"
                   for n, kind in enumerate((f16, bf16, f32, f64)))  # fmt: skip
    parameters = ", ".join(f"o{n}: KernelBuffer[{kind}], p{n}: KernelBuffer[{kind}], b{n}: KernelBuffer[{kind}]"
                           for n, kind in enumerate((f16, bf16, f32, f64)))  # fmt: skip
    declared = kernel_of(f"@kernel\ndef k(a: KernelBuffer[{source}], {parameters}):\n    t = thread.x()\n{outs}")
    more = [array for kind in (f16, bf16, f32, f64)
            for array in (as_memory(kind), as_memory(kind), as_memory(kind))]  # fmt: skip
    walked, *others = outcomes(declared, [source_memory, *more], 1, 32, 8, 0)
    assert not isinstance(walked, int) and all(other == walked for other in others)
