"""Building blocks: memory in all its forms, atomics, statements, helpers and function values."""

from functools import partial

import numpy as np

from kohakutpu.xpu import (
    BlockPadded, Function, KernelBuffer, MemoryOrder, Shared, Swizzled, Vector, Wave, async_copy, barrier, bf16,
    break_to, continue_to, define, device, div, do_while, f16, f32, f64, group, i8, i16, i32, i64, kernel, label, lshr,
    math, rem, thread, u8, u16, u32, u64, workgroup,
)  # fmt: skip

NAMES = {
    "KernelBuffer": KernelBuffer, "MemoryOrder": MemoryOrder, "Shared": Shared, "barrier": barrier, "kernel": kernel,
    "thread": thread, "__name__": __name__,
    **{str(kind): kind for kind in (i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64)},
}  # fmt: skip


def wrapped(values, kind):
    mask = (1 << kind.bits) - 1
    plain = np.array([int(value) & mask for value in values], f"uint{kind.bits}")
    return plain.view(kind.dtype)


# Every element type through a buffer and through Shared memory.
COPY = """
@kernel
def copy_{kind}(out: KernelBuffer[{kind}], a: KernelBuffer[{kind}], n: u32):
    s = Shared[{kind}](32)
    i = thread.global_id_x()
    if i < n:
        s[thread.x()] = a[i]
    barrier.workgroup()
    if i < n:
        out[n - 1 - i] = s[thread.x()]
"""


def on_copy(kind, data):
    n = data.size(64)
    a = data.of(kind, n)
    return dict(
        grid=2, block=32, arguments=[data.of(kind, n), a, n],
        expect={"out": a[::-1] if kind is not bf16 else (a[::-1].astype(np.uint32) << 16).view(np.float32)},
    )  # fmt: skip


for KIND in (i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64):
    globals()[f"copy_{KIND}"] = define(COPY.format(kind=KIND), dict(NAMES), f"copy_{KIND}")[f"copy_{KIND}"]
    globals()[f"on_copy_{KIND}"] = partial(on_copy, KIND)


@kernel
def bools(out: KernelBuffer[bool], a: KernelBuffer[bool], flag: bool, n: u32):
    s = Shared[bool](32)
    i = thread.global_id_x()
    if i < n:
        s[thread.x()] = a[i] & flag
        out[3 * i] = s[thread.x()] and flag
        out[3 * i + 1] = a[i] | flag
        out[3 * i + 2] = a[i] != flag


def on_bools(data):
    n = data.size(32)
    a = data.integers(u8, n, 0, 1)
    return dict(
        grid=1, block=32, arguments=[np.zeros(3 * n, np.uint8), a, True, n],
        expect={"out": np.stack([a, np.ones(n), 1 - a], 1).astype(np.uint8)},
    )  # fmt: skip


@kernel
def padded_and_swizzled(out: KernelBuffer[i32], a: KernelBuffer[i32]):
    p = BlockPadded[i32, 8, 1](36)
    s = Swizzled[i32, 4](32)
    t = thread.x()
    p[t] = a[thread.global_id_x()]
    s[t] = a[thread.global_id_x()] * 3
    barrier.workgroup()
    out[2 * thread.global_id_x()] = p[31 - t]
    out[2 * thread.global_id_x() + 1] = s[t ^ 9]


def on_padded_and_swizzled(data):
    a = data.integers(i32, 64)
    rows = a.reshape(2, 32)
    expected = np.stack([rows[:, ::-1], (rows * 3)[:, np.arange(32) ^ 9]], 2)
    return dict(grid=2, block=32, arguments=[np.zeros(128, np.int32), a], expect={"out": expected})


@kernel
def sized_by_the_launch(out: KernelBuffer[i32], a: KernelBuffer[i32], n: u32):
    s = Shared[i32](n)
    t = thread.x()
    s[n - 1 - t] = a[thread.global_id_x()]
    barrier.workgroup()
    out[thread.global_id_x()] = s[t] + s[n - 1 - t]


def on_sized_by_the_launch(data):
    n = data.size(32)
    a = data.integers(i32, 2 * n)
    rows = a.reshape(2, n)
    return dict(
        grid=2, block=n, shared_bytes=4 * n, arguments=[np.zeros(2 * n, np.int32), a, n],
        expect={"out": rows + rows[:, ::-1]},
    )  # fmt: skip


@kernel
def copied_asynchronously(out: KernelBuffer[i16], a: KernelBuffer[i16], n: i32):
    s = Shared[i16](80)
    async_copy.copy(s, 3, a, 2, n)
    async_copy.commit()
    async_copy.wait(0)
    barrier.workgroup()
    i = i32(thread.x())
    while i < n:
        out[i] = s[i + 3] + 1
        i += i32(workgroup.dim_x())


def on_copied_asynchronously(data):
    n = data.size(70)
    a = data.integers(i16, 80)
    return dict(grid=1, block=16, arguments=[np.zeros(n, np.int16), a, n], expect={"out": a[2 : 2 + n] + np.int16(1)})


@kernel
def wide_accesses(out: KernelBuffer[i8], words: KernelBuffer[i32], a: KernelBuffer[i8], start: i32):
    s = Shared[i8](128)
    t = i32(thread.x())
    v = a.vload[16](16 * t)
    s.vstore(16 * t, v, align=16)
    barrier.workgroup()
    out.vstore(32 * t, s.vload[16](16 * (7 - t)), align=4)
    out.vstore(32 * t + 16, a.vload[16](start + 16 * t, align=1))
    words.vstore(4 * t, v.as_words())


def on_wide_accesses(data):
    start = 0 if data.kind == "random" else 5
    a = data.integers(i8, 128 + start)
    rows = np.concatenate([a[:128].reshape(8, 16)[::-1], a[start : 128 + start].reshape(8, 16)], 1)
    return dict(
        grid=1, block=8, arguments=[np.zeros(256, np.int8), np.zeros(32, np.int32), a, start],
        expect={"out": rows, "words": a[:128].view(np.int32)},
    )  # fmt: skip


@kernel
def aliased(words: KernelBuffer[u32], halves: KernelBuffer[f16], raw: KernelBuffer[u8]):
    i = thread.x()
    words[i] = words[i] * 3 + u32(raw[4 * i + 32])
    raw[4 * i + 64] = u8(halves[2 * i] != halves[2 * i])


def on_aliased(data):
    """Three views of one allocation, at three offsets."""
    raw = data.integers(u8, 128)
    slab = KernelBuffer.of(u8, raw)
    words = raw[:32].view(np.uint32) * np.uint32(3) + raw[32:64:4]
    after = raw.copy()
    after[:32] = words.view(np.uint8)
    after[64:96:4] = np.isnan(raw[96:128].view(np.float16)[::2])
    return dict(
        grid=1, block=8, arguments=[slab.slice(0, 32).word_view(), slab.slice(96, 32).half_view(), slab],
        expect={"raw": after},
    )  # fmt: skip


# Atomics: one kernel each. Every work-item adds its own, in an order that must not show: the results are sums, bounds
# and bits; what an atomic gives back is checked where only one work-item touches an element.
ATOMIC = """
@kernel
def atomic_{name}(out: KernelBuffer[{kind}], old: KernelBuffer[{kind}], a: KernelBuffer[{kind}]):
    s = Shared[{kind}](4)
    i = thread.global_id_x()
    t = thread.x()
    if t < 4:
        s[t] = {kind}({start})
    barrier.workgroup()
    s.atomic_{verb}(t & 3, {value})
    old[i] = out.atomic_{verb}(8 + i, {value}, order=MemoryOrder.{order})
    barrier.workgroup()
    if t < 4:
        out.atomic_{verb}(t, s[t])
"""
FOLDS = {
    "add": (0, lambda a, b: a + b), "sub": (0, lambda a, b: a - b), "min": (100, min), "max": (-100, max),
    "and": (-1, lambda a, b: a & b), "or": (0, lambda a, b: a | b), "xor": (0, lambda a, b: a ^ b),
}  # fmt: skip


def on_atomic(verb, kind, data):
    n, block = 32, 16
    start, fold = FOLDS[verb]
    start = wrapped([start], kind)[0].item() if kind.kind == "int" else start
    if kind.kind == "int":
        a = data.integers(kind, n)
        out = data.integers(kind, 8 + n)
    else:  # numbers whose sums are exact, in whatever order
        a, out = (data.integers(i32, count, -1000, 1000).astype(kind.dtype) for count in (n, 8 + n))
    expected = [value.item() for value in out]
    old = list(expected[8:])
    for first in range(0, n, block):
        shared = [start] * 4
        for t in range(block):
            value = a[first + t].item()
            shared[t & 3] = fold(shared[t & 3], value)
            expected[8 + first + t] = fold(expected[8 + first + t], value)
            if kind.kind == "int":
                shared[t & 3] = wrapped([shared[t & 3]], kind)[0].item()
        for t in range(4):
            expected[t] = fold(expected[t], shared[t])
    settle = (
        (lambda values: wrapped(values, kind)) if kind.kind == "int" else (lambda values: np.array(values, kind.dtype))
    )
    return dict(
        grid=2, block=block, arguments=[out, np.zeros(n, kind.dtype), a],
        expect={"out": settle(expected), "old": settle(old)},
    )  # fmt: skip


ORDERS = ("RELAXED", "ACQUIRE", "RELEASE", "ACQ_REL", "SEQ_CST")
for NUMBER, (VERB, KIND) in enumerate(
    [(verb, kind) for verb in FOLDS for kind in (i32, u32, i64, u64)] + [(verb, f32) for verb in ("add", "min", "max")]
):
    NAME = f"{VERB}_{KIND}"
    TEXT = ATOMIC.format(name=NAME, kind=KIND, verb=VERB, value="a[i]", start=FOLDS[VERB][0], order=ORDERS[NUMBER % 5])
    globals()[f"atomic_{NAME}"] = define(TEXT, dict(NAMES), NAME)[f"atomic_{NAME}"]
    globals()[f"on_atomic_{NAME}"] = partial(on_atomic, VERB, KIND)


@kernel
def atomic_exchanges(out: KernelBuffer[i32], old: KernelBuffer[i32], real: KernelBuffer[f32], a: KernelBuffer[i32]):
    i = thread.global_id_x()
    old[3 * i] = out.atomic_exchange(2 * i, a[i])
    old[3 * i + 1] = out.atomic_compare_exchange(2 * i + 1, 7, a[i])
    old[3 * i + 2] = i32(real.atomic_exchange(i, f32(a[i] & 1023)))
    real.atomic_compare_exchange(i, 5.0, f32(-1.0))


def on_atomic_exchanges(data):
    n = 24
    a, out = data.integers(i32, n), data.integers(i32, 2 * n, 6, 8)
    real = data.integers(i32, n, 0, 100).astype(np.float32)
    a[::3] = 5
    pairs = out.reshape(n, 2)
    after = np.stack([a, np.where(pairs[:, 1] == 7, a, pairs[:, 1])], 1)
    masked = (a & 1023).astype(np.float32)
    return dict(
        grid=3, block=8, arguments=[out, np.zeros(3 * n, np.int32), real, a],
        expect={"out": after, "old": np.column_stack([pairs, real.astype(np.int32)]),
                "real": np.where(masked == 5, np.float32(-1), masked)},
    )  # fmt: skip


@kernel
def loops(out: KernelBuffer[i32], a: KernelBuffer[i32], n: i32):
    i = i32(thread.global_id_x())
    if i >= n:
        return
    x = a[i] & 15
    total = 0
    y: i32
    if (y := x * 2) > 20:
        total += y
    for j in range(x):
        if j == 3:
            continue
        if j == 11:
            break
        total += j
    for j in range(x, -1, -3):
        total += 100 * j
    while x > 0:
        x = div(x, 2)
        total += 10000
    while do_while(x < 2):
        x += 1
        total ^= 5
    for p in label("rows", range(4)):
        for q in range(4):
            if q == (a[i] & 3):
                continue_to("rows")
            if p * q == 6:
                break_to("rows")
            total += 7
    out[i] = total if (a[i] & 1) == 0 else -total
    if a[i] > 0 and div(1000, a[i]) > 1 or a[i] == -5:
        out[i] += 1


def on_loops(data):
    n = data.size(64)
    a = data.integers(i32, n)
    a[:4] = [0, -5, 3, 2]
    expected = []
    for value in a.tolist():
        x = value & 15
        total = 2 * x if x > 10 else 0
        total += sum(j for j in range(min(x, 11)) if j != 3)
        total += sum(100 * j for j in range(x, -1, -3))
        while x > 0:
            x //= 2
            total += 10000
        for _ in range(2):
            total ^= 5
        turns = 0
        for p in range(4):
            stop = False
            for q in range(4):
                if q == value & 3:
                    break
                if p * q == 6:
                    stop = True
                    break
                turns += 7
            if stop:
                break
        total += turns
        result = total if value & 1 == 0 else -total
        expected.append(result + (1 if value > 0 and 1000 // value > 1 or value == -5 else 0))
    return dict(grid=2, block=32, arguments=[np.zeros(n, np.int32), a, n], expect={"out": np.array(expected, np.int32)})


@Wave(width=16)
@kernel
def stripes_and_walks(out: KernelBuffer[i32], a: KernelBuffer[i32], n: u32):
    total = 0
    for k in group.stripe(n):
        total += a[k]
    out[thread.global_id_x()] = total
    for i, e in a.range(n):
        a[i] = e * 2


def on_stripes_and_walks(data):
    """One workgroup: what a stripe reads is what the walk writes."""
    n = data.size(50)
    a = data.integers(i32, 50)
    lanes = [wrapped([a[lane:n:16].astype(object).sum()], i32)[0] for lane in range(16)]
    after = np.where(np.arange(50) < n, a * np.int32(2), a)
    return dict(
        grid=1, block=16, arguments=[np.zeros(16, np.int32), a, n], expect={"out": np.array(lanes), "a": after}
    )  # fmt: skip


@device
def low_byte(value: u32) -> u8:
    return u8(value)


@device
def difference(a: u16, b: u16) -> u16:
    return a - b


@device
def clamp(value: i32, top: i8) -> i32:
    if value > top:
        return top
    return value


@device
def put(memory: KernelBuffer[i32], at: i32, v: Vector[i32, 2]):
    memory[at] = v.x
    memory[at + 1] = v[1] + clamp(memory[at], 50)


@kernel
def helper_results(
    out: KernelBuffer[i32], pairs: KernelBuffer[i32], a: KernelBuffer[u32], b: KernelBuffer[u16], n: u32
):
    """Unsigned results of calls: what they widen to, compare with and shift shows their sign."""
    i = thread.global_id_x()
    if i < n:
        o = i * 6
        out[o] = i32(low_byte(a[i]))
        out[o + 1] = low_byte(a[i]) >> 3
        out[o + 2] = difference(b[i], 1000) + i32(1)
        out[o + 3] = 1 if i64(difference(b[i], 1000)) > 40000 else 0
        out[o + 4] = div(i32(low_byte(a[i])), 3)
        out[o + 5] = clamp(i32(a[i]), 300)
        put(pairs, i32(2 * i), Vector[i32, 2](i32(a[i]), 3))


def on_helper_results(data):
    n = data.size(48)
    a, b = data.integers(u32, n), data.integers(u16, n)
    signed = a.view(np.int32).astype(np.int64)
    low, gap = (a & 255).astype(np.int64), (b - np.uint16(1000)).astype(np.int64)
    rows = [low, low >> 3, gap + 1, gap > 40000, low // 3, np.where(signed > 44, 44, signed)]  # i8(300) is 44
    pairs = np.stack([signed, 3 + np.where(signed > 50, 50, signed)], 1)
    return dict(
        grid=2, block=32, arguments=[np.zeros(6 * n, np.int32), np.zeros(2 * n, np.int32), a, b, n],
        expect={"out": np.stack(rows, 1).astype(np.int32), "pairs": pairs.astype(np.int32)},
    )  # fmt: skip


@device
def doubled(a: i32) -> i32:
    return a * 2


@device
def negated(a: i32) -> i32:
    return -a


@kernel
def function_values(out: KernelBuffer[i32], a: KernelBuffer[i32], given: Function[doubled, negated]):
    i = thread.global_id_x()
    own: Function[doubled, negated] = doubled
    if (a[i] & 1) == 1:
        own = negated
    out[2 * i] = own(a[i])
    out[2 * i + 1] = given(a[i])


def on_function_values(data):
    a = data.integers(i32, 32)
    given = {"random": 1, "ragged": 0}.get(data.kind, 9)  # 9 is out of range: zero
    own = np.where(a & 1 == 1, -a, a * np.int32(2))
    other = {1: -a, 0: a * np.int32(2), 9: a * 0}[given]
    return dict(
        grid=2, block=16, arguments=[np.zeros(64, np.int32), a, given], expect={"out": np.stack([own, other], 1)}
    )  # fmt: skip


@kernel
def choices(out: KernelBuffer[i32], a: KernelBuffer[i32], n: i32):
    """Only the arm that is chosen runs: the other would be undefined."""
    i = i32(thread.global_id_x())
    if i < n:
        out[i] = div(100, a[i]) if a[i] != 0 else a[i + 1 - 1]
        ok = i + 1 < n and a[i + 1] > 0
        out[n + i] = rem(lshr(a[i], 1), 10) if ok or a[i] == 1 else -1


def on_choices(data):
    n = data.size(32)
    a = data.integers(i32, n, -200, 200)
    a[:3] = [0, 1, 0]
    first = [0 if v == 0 else abs(100) // abs(v) * (1 if v > 0 else -1) for v in a.tolist()]
    ok = np.append(a[1:] > 0, False) | (a == 1)
    second = np.where(ok, [v if v >= 0 else v for v in ((a.view(np.uint32) >> 1) % 10).astype(np.int32)], -1)
    return dict(
        grid=1, block=32, arguments=[np.zeros(2 * n, np.int32), a, n], expect={"out": np.concatenate([first, second])}
    )  # fmt: skip


@kernel
def extremes(out: KernelBuffer[f32], a: KernelBuffer[f32], n: u32):
    """Order of equals: min gives the second operand, max the first; NaNs by position."""
    i = thread.global_id_x()
    if i < n:
        out[4 * i] = math.min(a[i], f32(0.0))
        out[4 * i + 1] = math.min(f32(0.0), a[i])
        out[4 * i + 2] = math.max(a[i], f32(0.0))
        out[4 * i + 3] = math.max(f32(0.0), a[i])


def on_extremes(data):
    n = data.size(64)
    a, zero = data.floats(f32, n), np.float32(0)
    rows = [
        np.where(a < zero, a, zero),
        np.where(zero < a, zero, a),
        np.where(a < zero, zero, a),
        np.where(zero < a, a, zero),
    ]
    return dict(grid=2, block=32, arguments=[np.zeros(4 * n, np.float32), a, n], expect={"out": np.stack(rows, 1)})
