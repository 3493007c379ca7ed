"""Kernels that people know: normalisation, attention, quantised weights, tiles with epilogues."""

import numpy as np

from kohakutpu.xpu import (
    CooperativeMatrix, KernelBuffer, Op, Shared, Use, Vector, Wave, WaveVector, barrier, device, f16, f32, group, i8,
    i32, kernel, math, thread, u8, u16, u32, wave, workgroup,
)  # fmt: skip
from kohakutpu.xpu.memory import KernelBuffer as Buffer


def zeros(count, kind=f32):
    return np.zeros(count, kind.dtype)


def rows_of(data, rows, cols, kind=f32):
    """Rows of floats, and as float64; adversarial ones stay finite where an oracle is wanted."""
    x = data.finite(kind, rows * cols, 3.0)
    return x, x.astype(np.float64).reshape(rows, cols)


@Wave(width=16)
@kernel
def softmax(y: KernelBuffer[f32], x: KernelBuffer[f32], n: u32):
    row = workgroup.x() * n
    best = f32(-3e38)
    for i in range(thread.x(), n, 16):
        best = math.max(best, x[row + i])
    best = workgroup.reduce(Op.MAX, best)
    total = f32(0.0)
    for i in range(thread.x(), n, 16):
        e = math.exp(x[row + i] - best)
        y[row + i] = e
        total += e
    total = workgroup.reduce(Op.ADD, total)
    for i in range(thread.x(), n, 16):
        y[row + i] /= total


def on_softmax(data):
    n = data.size(48)
    x, wide = rows_of(data, 3, n)
    if data.adversarial:
        x[::5] = np.float32(-3e38)
        wide = x.astype(np.float64).reshape(3, n)
    e = np.exp(wide - wide.max(1, keepdims=True))
    return dict(
        grid=3, block=16, arguments=[zeros(3 * n), x, n], expect={"y": e / e.sum(1, keepdims=True)}, close={"y": 1e-6}
    )  # fmt: skip


@kernel
def softmax_specials(y: KernelBuffer[f32], x: KernelBuffer[f32], n: u32):
    """A work-item per row, on whatever floats there are."""
    row = thread.global_id_x() * n
    best = x[row]
    for i in range(1, n):
        best = math.max(best, x[row + i])
    total = f32(0.0)
    for i in range(n):
        y[row + i] = math.exp(x[row + i] - best)
        total += y[row + i]
    for i in range(n):
        y[row + i] = y[row + i] / total


def on_softmax_specials(data):
    n = data.size(12)
    x = data.floats(f32, 8 * n)
    rows = x.reshape(8, n)
    best = rows[:, 0].copy()
    for i in range(1, n):
        best = np.where(best < rows[:, i], rows[:, i], best)
    e = np.exp((rows - best[:, None]).astype(np.float64)).astype(np.float32)
    total = np.zeros(8, np.float32)
    for i in range(n):
        total = total + e[:, i]
    return dict(
        grid=2, block=4, arguments=[zeros(8 * n), x, n], expect={"y": e / total[:, None]}, close={"y": (1e-6, 0)}
    )


@Wave(width=16)
@kernel
def softmax_online(y: KernelBuffer[f32], x: KernelBuffer[f32], n: u32):
    """One pass for the largest and the sum, rescaled as the largest grows."""
    row = workgroup.x() * n
    best = f32(-3e38)
    total = f32(0.0)
    for i in group.stripe(n):
        v = x[row + u32(i)]
        top = math.max(best, v)
        total = total * math.exp(best - top) + math.exp(v - top)
        best = top
    top = wave.reduce_max_f32(best)
    total = wave.reduce_sum_f32(total * math.exp(best - top))
    for i in group.stripe(n):
        y[row + u32(i)] = math.exp(x[row + u32(i)] - top) / total


def on_softmax_online(data):
    n = data.size(40)
    x, wide = rows_of(data, 4, n)
    e = np.exp(wide - wide.max(1, keepdims=True))
    return dict(
        grid=4, block=16, arguments=[zeros(4 * n), x, n], expect={"y": e / e.sum(1, keepdims=True)}, close={"y": 2e-6}
    )  # fmt: skip


@Wave(width=16)
@kernel
def layernorm(y: KernelBuffer[f32], x: KernelBuffer[f32], w: KernelBuffer[f32], b: KernelBuffer[f32], n: u32):
    row = workgroup.x() * n
    total = f32(0.0)
    for i in range(thread.x(), n, 32):
        total += x[row + i]
    mean = workgroup.reduce(Op.ADD, total) / f32(n)
    spread = f32(0.0)
    for i in range(thread.x(), n, 32):
        d = x[row + i] - mean
        spread += d * d
    scale = math.rsqrt(workgroup.reduce(Op.ADD, spread) / f32(n) + f32(1e-5))
    for i in range(thread.x(), n, 32):
        y[row + i] = (x[row + i] - mean) * scale * w[i] + b[i]


def on_layernorm(data):
    n = data.size(70)
    x, wide = rows_of(data, 3, n)
    w, b = data.finite(f32, n), data.finite(f32, n)
    expected = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5) * w + b
    return dict(
        grid=3, block=32, arguments=[zeros(3 * n), x, w, b, n], expect={"y": expected}, close={"y": 2e-6}
    )  # fmt: skip


@Wave(width=16)
@kernel
def rmsnorm(y: KernelBuffer[f16], x: KernelBuffer[f16], w: KernelBuffer[f16], n: u32):
    row = workgroup.x() * n
    total = f32(0.0)
    for i in group.stripe(n):
        v = f32(x[row + u32(i)])
        total += v * v
    total = wave.reduce_sum_f32(total)
    scale = math.rsqrt(total / f32(n) + f32(1e-5))
    for i in group.stripe(n):
        y[row + u32(i)] = f16(f32(x[row + u32(i)]) * scale * f32(w[i]))


def on_rmsnorm(data):
    n = data.size(64)
    x, wide = rows_of(data, 4, n, f16)
    w = data.finite(f16, n)
    expected = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5) * w
    return dict(grid=4, block=16, arguments=[zeros(4 * n, f16), x, w, n], expect={"y": expected}, close={"y": 1e-3})


@kernel
def rope(x: KernelBuffer[f32], half: u32, position: i32, base: f32):
    i = thread.global_id_x()
    if i >= half:
        return
    angle = f32(position) * math.pow(base, f32(-2.0) * f32(i) / f32(2 * half))
    c = math.cos(angle)
    s = math.sin(angle)
    a = x[2 * i]
    b = x[2 * i + 1]
    x[2 * i] = a * c - b * s
    x[2 * i + 1] = a * s + b * c


def on_rope(data):
    half = data.size(24)
    x, wide = rows_of(data, half, 2)
    angle = 7 * 10000.0 ** (-np.arange(half) / half)
    turned = (wide[:, 0] + 1j * wide[:, 1]) * np.exp(1j * angle)
    return dict(
        grid=2, block=16, arguments=[x, half, 7, 10000.0], expect={"x": np.stack([turned.real, turned.imag], 1)},
        close={"x": 1e-6},
    )  # fmt: skip


@device
def sigmoid(v: f32) -> f32:
    return f32(1.0) / (f32(1.0) + math.exp(-v))


@kernel
def gelu(y: KernelBuffer[f32], x: KernelBuffer[f32], n: u32):
    """Through tanh, and tanh through exp."""
    i = thread.global_id_x()
    if i < n:
        v = x[i]
        u = f32(0.7978845608) * (v + f32(0.044715) * v * v * v)
        y[i] = v * sigmoid(f32(2.0) * u)


def on_gelu(data):
    n = data.size(96)
    x = data.floats(f32, n)
    wide = x.astype(np.float64)
    inner = np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)
    made = dict(grid=3, block=32, arguments=[zeros(n), x, n])
    if data.adversarial:  # overflow and NaN come where float32 has them, which float64 does not say
        return made
    return made | dict(expect={"y": 0.5 * wide * (1 + np.tanh(inner))}, close={"y": 2e-6})


@kernel
def silu_gate(y: KernelBuffer[f16], gate: KernelBuffer[f16], up: KernelBuffer[f16], n: u32):
    for i, g in gate.range(n):
        v = f32(g)
        y[i] = f16(v * sigmoid(v) * f32(up[i]))


def on_silu_gate(data):
    n = data.size(128)
    gate, wide = rows_of(data, 1, n, f16)
    up = data.finite(f16, n)
    return dict(
        grid=2, block=32, arguments=[zeros(n, f16), gate, up, n],
        expect={"y": wide / (1 + np.exp(-wide)) * up}, close={"y": 1e-3},
    )  # fmt: skip


@Wave(width=16)
@kernel
def attention_decode(
    out: KernelBuffer[f32], q: KernelBuffer[f32], k: KernelBuffer[f32], v: KernelBuffer[f32], keys: u32, depth: u32,
    scale: f32,
):  # fmt: skip
    """One query against a cache: a workgroup per head, two heads per group of keys."""
    scores = Shared[f32](64)
    head = workgroup.x()
    base = (head >> 1) * keys * depth
    t = thread.x()
    best = f32(-3e38)
    if t < keys:
        s = f32(0.0)
        for j in range(depth):
            s += q[head * depth + j] * k[base + t * depth + j]
        best = s * scale
    scores[t] = best
    top = workgroup.reduce(Op.MAX, best)
    p = f32(0.0)
    if t < keys:
        p = math.exp(scores[t] - top)
    scores[t] = p
    total = workgroup.reduce(Op.ADD, p)
    barrier.workgroup()
    if t < depth:
        acc = f32(0.0)
        for j in range(keys):
            acc += scores[j] * v[base + j * depth + t]
        out[head * depth + t] = acc / total


def attended(q, k, v, scale):
    s = q @ k.T * scale
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v


def on_attention_decode(data):
    heads, keys, depth = 4, data.size(64), 16
    q, wide = rows_of(data, heads, depth)
    k, v = (data.finite(f32, heads // 2 * keys * depth) for _ in range(2))
    ks, vs = (array.astype(np.float64).reshape(heads // 2, keys, depth) for array in (k, v))
    expected = [attended(wide[h], ks[h // 2], vs[h // 2], 0.25) for h in range(heads)]
    return dict(
        grid=heads, block=64, arguments=[zeros(heads * depth), q, k, v, keys, depth, 0.25],
        expect={"out": np.array(expected)}, close={"out": 1e-5},
    )  # fmt: skip


@kernel
def attention_combine(
    out: KernelBuffer[f32], state: KernelBuffer[f32], partial: KernelBuffer[f32], largest: KernelBuffer[f32],
    sums: KernelBuffer[f32], parts: u32, depth: u32,
):  # fmt: skip
    """Splits of one head's keys come together; an empty split holds the sentinel -3e38."""
    d = thread.global_id_x()
    if d < depth:
        top = f32(-3e38)
        for p in range(parts):
            top = math.max(top, largest[p])
        total = f32(0.0)
        acc = f32(0.0)
        for p in range(parts):
            w = math.exp(largest[p] - top)
            total += w * sums[p]
            acc += w * partial[p * depth + d]
        out[d] = acc / total
        if d == 0:
            state[0] = top
            state[1] = f32(-3e38)


def on_attention_combine(data):
    parts, depth = 6, data.size(32)
    partial, wide = rows_of(data, parts, depth)
    largest, sums = data.finite(f32, parts), np.abs(data.finite(f32, parts)) + np.float32(0.1)
    largest[2::3] = np.float32(-3e38)
    w = np.exp(largest.astype(np.float64) - largest.max())
    return dict(
        grid=1, block=32, arguments=[zeros(depth), zeros(2), partial, largest, sums, parts, depth],
        expect={"out": w @ wide / (w @ sums), "state": [largest.max(), np.float32(-3e38)]},
        close={"out": 1e-6},
    )  # fmt: skip


@Wave(width=16)
@kernel
def attention_tile(
    out: KernelBuffer[f32], q: KernelBuffer[f16], k: KernelBuffer[f16], v: KernelBuffer[f16], keys: u32, scale: f32
):
    """Flash style: scores of 16 queries against 16 keys at a time as a tile, softmax as it goes."""
    s = Shared[f32](256)
    query = thread.x()
    a: CooperativeMatrix[f16, 16, 16, Use.A]
    a.load(q, 0, 0, 16)
    best = f32(-3e38)
    total = f32(0.0)
    for first in range(0, keys, 16):
        scores: CooperativeMatrix[f32, 16, 16, Use.ACCUMULATOR]
        b: CooperativeMatrix[f16, 16, 16, Use.B]
        scores.splat(0)
        b.load(k, first * 16, 1, 16)
        scores.mma(a, b)
        scores.store(s, 0, 0, 16)
        barrier.workgroup()
        top = best
        for j in range(16):
            top = math.max(top, s[query * 16 + j] * scale)
        shrink = math.exp(best - top)
        total *= shrink
        for d in range(8):
            out[query * 8 + d] *= shrink
        for j in range(16):
            p = math.exp(s[query * 16 + j] * scale - top)
            total += p
            for d in range(8):
                out[query * 8 + d] += p * f32(v[(first + j) * 8 + d])
        best = top
        barrier.workgroup()
    for d in range(8):
        out[query * 8 + d] /= total


def on_attention_tile(data):
    keys = 32
    (q, qs), (k, ks), (v, vs) = (rows_of(data, rows, cols, f16) for rows, cols in ((16, 16), (keys, 16), (keys, 8)))
    return dict(
        grid=1, block=16, arguments=[zeros(128), q, k, v, keys, 0.25], expect={"out": attended(qs, ks, vs, 0.25)},
        close={"out": 1e-5},
    )  # fmt: skip


@kernel
def append_to_cache(cache: KernelBuffer[f16], fresh: KernelBuffer[f16], position: u32, width: u32):
    i = thread.global_id_x()
    if i < width:
        cache[position * width + i] = fresh[i]


def on_append_to_cache(data):
    width = data.size(24)
    cache, fresh = data.floats(f16, 5 * width), data.floats(f16, width)
    expected = cache.reshape(5, width).copy()
    expected[3] = fresh
    return dict(grid=2, block=16, arguments=[cache, fresh, 3, width], expect={"cache": expected})


@kernel
def top_k(out: KernelBuffer[u32], x: KernelBuffer[f32], n: u32, count: u32):
    """A router's choice: a work-item per row, the first of equals wins."""
    row = thread.global_id_x()
    for r in range(count):
        best = f32(-3e38)
        where = u32(0xFFFFFFFF)
        for i in range(n):
            seen = False
            for j in range(r):
                if out[row * count + j] == i:
                    seen = True
                    break
            if not seen and x[row * n + i] > best:
                best = x[row * n + i]
                where = i
        out[row * count + r] = where


def on_top_k(data):
    n, count = data.size(20), 4
    x = data.floats(f32, 4 * n)
    rows = np.where(np.isnan(x) | (x <= np.float32(-3e38)), -np.inf, x.astype(np.float64)).reshape(4, n)
    expected = np.full((4, count), 0xFFFFFFFF, np.uint32)
    for row, values in enumerate(rows):
        order = [i for i in np.argsort(-values, kind="stable") if values[i] > -np.inf][:count]
        expected[row, : len(order)] = order
    return dict(grid=2, block=2, arguments=[zeros(4 * count, u32), x, n, count], expect={"out": expected})


@kernel
def q8_0_gemv(
    out: KernelBuffer[f32], raw: KernelBuffer[i8], halves: KernelBuffer[f16], acts: KernelBuffer[i8],
    d: KernelBuffer[f32], blocks: u32,
):  # fmt: skip
    """Rows of blocks of 34 bytes: a float16 scale and 32 int8."""
    row = thread.global_id_x()
    total = f32(0.0)
    for b in range(blocks):
        at = (row * blocks + b) * 34
        scale = f32(halves[at // 2])
        acc = 0
        for g in range(2):
            w = raw.vload[16](at + 2 + 16 * g, align=2)
            acc = w.dot_sum(acts.vload[16](b * 32 + 16 * g, align=16), acc)
        total += scale * d[b] * f32(acc)
    out[row] = total


def on_q8_0_gemv(data):
    rows, blocks = 6, 3
    scales, weights = data.finite(f16, rows * blocks).reshape(rows, blocks), data.integers(i8, rows * blocks * 32)
    weights = weights.reshape(rows, blocks, 32)
    slab = Buffer.of(i8, np.concatenate([scales[..., None].view(np.int8), weights], 2).ravel())
    acts, d = data.integers(i8, blocks * 32), data.finite(f32, blocks)
    sums = (weights.astype(int) * acts.astype(int).reshape(blocks, 32)).sum(2)
    total = np.zeros(rows, np.float32)
    for b in range(blocks):
        total = total + scales[:, b].astype(np.float32) * d[b] * sums[:, b].astype(np.float32)
    return dict(
        grid=2, block=3, arguments=[zeros(rows), slab, slab.half_view(), acts, d, blocks], expect={"out": total}
    )  # fmt: skip


@kernel
def q4_0_gemv(
    out: KernelBuffer[f32], raw: KernelBuffer[u8], halves: KernelBuffer[f16], x: KernelBuffer[f32], blocks: u32
):
    """Blocks of 18 bytes: a float16 scale, 16 bytes of nibbles less 8; low nibbles come first."""
    row = thread.global_id_x()
    total = f32(0.0)
    for b in range(blocks):
        at = (row * blocks + b) * 18
        scale = f32(halves[at // 2])
        term = f32(0.0)
        for j in range(16):
            q = raw[at + 2 + j]
            term += f32(i32(q & 15) - 8) * x[b * 32 + j]
            term += f32(i32(q >> 4) - 8) * x[b * 32 + 16 + j]
        total += scale * term
    out[row] = total


def on_q4_0_gemv(data):
    rows, blocks = 8, 2
    scales = data.finite(f16, rows * blocks).reshape(rows, blocks)
    packed = data.integers(u8, rows * blocks * 16).reshape(rows, blocks, 16)
    slab = Buffer.of(u8, np.concatenate([scales[..., None].view(np.uint8), packed], 2).ravel())
    x = data.finite(f32, blocks * 32)
    total = np.zeros(rows, np.float32)
    for b in range(blocks):
        term = np.zeros(rows, np.float32)
        for j in range(16):
            term = term + ((packed[:, b, j] & 15).astype(np.float32) - 8) * x[b * 32 + j]
            term = term + ((packed[:, b, j] >> 4).astype(np.float32) - 8) * x[b * 32 + 16 + j]
        total = total + scales[:, b].astype(np.float32) * term
    return dict(grid=2, block=4, arguments=[zeros(rows), slab, slab.half_view(), x, blocks], expect={"out": total})


@device
def q4_k_scale(raw: KernelBuffer[u8], at: u32, j: u32) -> u8:
    return raw[at + 4 + j] & 63 if j < 4 else (raw[at + 8 + j] & 15) | ((raw[at + j] >> 6) << 4)


@device
def q4_k_least(raw: KernelBuffer[u8], at: u32, j: u32) -> u8:
    return raw[at + 8 + j] & 63 if j < 4 else (raw[at + 8 + j] >> 4) | ((raw[at + 4 + j] >> 6) << 4)


@Wave(width=16)
@kernel
def q4_k_gemv(
    out: KernelBuffer[f32], raw: KernelBuffer[u8], halves: KernelBuffer[f16], acts: KernelBuffer[i8],
    sums: KernelBuffer[i32], d: KernelBuffer[f32], blocks: u32,
):  # fmt: skip
    """Blocks of 144 bytes for 256 weights: scale, least, 12 packed bytes of 6-bit scales, 128 bytes of nibbles.

    A wave per row, a sub-block of 32 weights per lane.
    """
    row = workgroup.x()
    lane = wave.lane_id()
    total = f32(0.0)
    for unit in range(lane, blocks * 8, 16):
        b = unit >> 3
        j = unit & 7
        at = (row * blocks + b) * 144
        acc = 0
        for h in range(2):
            q = raw.vload[16](at + 16 + 32 * (j >> 1) + 16 * h)
            nibbles = q & 15 if (j & 1) == 0 else q >> 4
            acc = nibbles.dot_sum(acts.vload[16](b * 256 + 32 * j + 16 * h), acc)
        scale = f32(halves[at // 2]) * f32(q4_k_scale(raw, at, j)) * f32(acc)
        least = f32(halves[at // 2 + 1]) * f32(q4_k_least(raw, at, j)) * f32(sums[b * 8 + j])
        total += (scale - least) * d[b]
    total = wave.reduce_sum_f32(total)
    if lane == 0:
        out[row] = total


def on_q4_k_gemv(data):
    rows, blocks = 3, 2
    random = data.random
    scales, leasts = (random.integers(0, 64, (rows, blocks, 8)) for _ in range(2))
    pair = data.finite(f16, rows * blocks * 2, 0.1).reshape(rows, blocks, 2)
    packed = np.zeros((rows, blocks, 12), np.uint8)
    packed[..., :4] = scales[..., :4] | (scales[..., 4:] >> 4) << 6
    packed[..., 4:8] = leasts[..., :4] | (leasts[..., 4:] >> 4) << 6
    packed[..., 8:] = scales[..., 4:] & 15 | (leasts[..., 4:] & 15) << 4
    nibbles = data.integers(u8, rows * blocks * 128).reshape(rows, blocks, 4, 32)
    slab = np.concatenate([pair.view(np.uint8), packed, nibbles.reshape(rows, blocks, 128)], 2)
    raw = Buffer.of(u8, slab.ravel())
    acts, d = data.integers(i8, blocks * 256), np.abs(data.finite(f32, blocks))
    by_sub = acts.astype(int).reshape(blocks, 8, 32)
    weights = np.stack([nibbles & 15, nibbles >> 4], 3).reshape(rows, blocks, 8, 32).astype(int)
    dots, sums = (weights * by_sub).sum(3), by_sub.sum(2)
    wide = pair.astype(np.float64)
    terms = wide[..., :1] * scales * dots - wide[..., 1:] * leasts * sums
    expected = (terms * d[:, None].astype(np.float64)).sum((1, 2))
    return dict(
        grid=rows, block=16,
        arguments=[zeros(rows), raw, raw.half_view(), acts, sums.astype(np.int32).ravel(), d, blocks],
        expect={"out": expected}, close={"out": 1e-5},
    )  # fmt: skip


@Wave(width=16)
@kernel
def quantise_q8(out: KernelBuffer[i8], scales: KernelBuffer[f32], sums: KernelBuffer[i32], x: KernelBuffer[f32]):
    """A block of 32 per wave: the largest magnitude becomes 127."""
    block = workgroup.x()
    lane = wave.lane_id()
    a = x[block * 32 + 2 * lane]
    b = x[block * 32 + 2 * lane + 1]
    largest = wave.reduce_max_f32(math.max(math.abs(a), math.abs(b)))
    inverse = f32(127.0) / largest if largest > f32(0.0) else f32(0.0)
    first = i8(math.round(a * inverse))
    second = i8(math.round(b * inverse))
    out[block * 32 + 2 * lane] = first
    out[block * 32 + 2 * lane + 1] = second
    total = wave.reduce_sum(u32(i32(first) + i32(second)))
    if lane == 0:
        scales[block] = largest / f32(127.0)
        sums[block] = i32(total)


def on_quantise_q8(data):
    x = data.finite(f32, 128)
    if data.adversarial:
        x[32:64] = 0
    rows = x.reshape(4, 32)
    largest = np.abs(rows).max(1, keepdims=True)
    inverse = np.where(largest > 0, np.float32(127) / np.where(largest > 0, largest, 1), np.float32(0))
    scaled = (rows * inverse).astype(np.float64)
    q = np.copysign(np.floor(np.abs(scaled) + 0.5), scaled)
    return dict(
        grid=4, block=16, arguments=[zeros(128, i8), zeros(4), zeros(4, i32), x],
        expect={"out": q.astype(np.int8), "scales": largest / np.float32(127), "sums": q.sum(1).astype(np.int32)},
    )  # fmt: skip


@kernel
def mxfp4_gemv(out: KernelBuffer[f32], packed: KernelBuffer[u8], exponents: KernelBuffer[u8], acts: KernelBuffer[i8],
               blocks: u32):  # fmt: skip
    """Four-bit floats by a table of doubled values, 32 to a block with a power-of-two scale."""
    row = thread.global_id_x()
    table = Vector[i8, 16](0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
    total = f32(0.0)
    for b in range(blocks):
        q = packed.vload[16]((row * blocks + b) * 16, align=16)
        low = (q & 15).lut4(table)
        high = (q >> 4).lut4(table)
        acc = low.as_signed().dot_sum(acts.vload[16](b * 32), 0)
        acc = high.as_signed().dot_sum(acts.vload[16](b * 32 + 16), acc)
        total += f32(acc) * math.exp2(f32(i32(exponents[row * blocks + b]) - 128))
    out[row] = total


def on_mxfp4_gemv(data):
    rows, blocks = 6, 3
    packed, acts = data.integers(u8, rows * blocks * 16), data.integers(i8, blocks * 32)
    exponents = data.integers(u8, rows * blocks, 120, 130)
    table = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])
    q, a = packed.reshape(rows, blocks, 16), acts.astype(int).reshape(blocks, 32)
    sums = (table[q & 15] * a[:, :16]).sum(2) + (table[q >> 4] * a[:, 16:]).sum(2)
    scales = np.exp2(exponents.reshape(rows, blocks).astype(np.float32) - 128)
    total = np.zeros(rows, np.float32)
    for b in range(blocks):
        total = total + sums[:, b].astype(np.float32) * scales[:, b]
    return dict(grid=2, block=3, arguments=[zeros(rows), packed, exponents, acts, blocks], expect={"out": total})


@Wave(width=16)
@kernel
def gemm_with_silu(out: KernelBuffer[f16], a: KernelBuffer[f16], b: KernelBuffer[f16], n: u32, k: u32):
    """A wave per tile of 16 x 16; the activation on fragments, before the result is stored."""
    row = workgroup.y() * 16
    col = workgroup.x() * 16
    acc: CooperativeMatrix[f32, 16, 16, Use.ACCUMULATOR]
    left: CooperativeMatrix[f16, 16, 16, Use.A]
    right: CooperativeMatrix[f16, 16, 16, Use.B]
    narrow: CooperativeMatrix[f16, 16, 16, Use.ACCUMULATOR]
    acc.splat(0)
    for first in range(0, k, 16):
        left.load(a, row * k + first, 0, k)
        right.load(b, first * n + col, 0, n)
        acc.mma(left, right)
    for e in range(acc.elements()):
        v = acc.get(e)
        narrow.set(e, f16(v * sigmoid(v)))
    narrow.store(out, row * n + col, 0, n)


def on_gemm_with_silu(data):
    m, n, k = 32, 16, 32
    (a, left), (b, right) = rows_of(data, m, k, f16), rows_of(data, k, n, f16)
    total = left @ right
    return dict(
        grid=(1, 2), block=16, arguments=[zeros(m * n, f16), a, b, n, k],
        expect={"out": total / (1 + np.exp(-total))}, close={"out": 1e-3},
    )  # fmt: skip


@Wave(width=16)
@kernel
def int8_gemm_scaled(
    out: KernelBuffer[f32], a: KernelBuffer[i8], b: KernelBuffer[i8], row_scales: KernelBuffer[f32],
    col_scales: KernelBuffer[f32], k: u32,
):  # fmt: skip
    """Integer products of one block of k at a time, scaled by row and column into float sums."""
    s = Shared[f32](16)
    t = thread.x()
    facc: CooperativeMatrix[f32, 16, 16, Use.ACCUMULATOR]
    facc.splat(0)
    for block in range(0, k, 32):
        acc: CooperativeMatrix[i32, 16, 16, Use.ACCUMULATOR]
        left: CooperativeMatrix[i8, 16, 32, Use.A]
        right: CooperativeMatrix[i8, 32, 16, Use.B]
        acc.splat(0)
        left.load(a, block, 0, k)
        right.load(b, block, 1, k)
        acc.mma(left, right)
        s[t] = row_scales[(block >> 5) * 16 + t]
        barrier.workgroup()
        acc.scaled_accum_into(facc, s.at(0), WaveVector[f32, 16].of_lane(col_scales[(block >> 5) * 16 + t]))
        barrier.workgroup()
    facc.store(out, 0, 0, 16)


def on_int8_gemm_scaled(data):
    k = 64
    a, b = data.integers(i8, 16 * k), data.integers(i8, 16 * k)
    row_scales, col_scales = data.finite(f32, 32), data.finite(f32, 32)
    left, right = a.astype(np.int64).reshape(16, 2, 32), b.astype(np.int64).reshape(16, 2, 32)
    total = np.zeros((16, 16))
    for block in range(2):
        factors = np.outer(row_scales[block * 16 :][:16].astype(np.float64), col_scales[block * 16 :][:16])
        total += factors * (left[:, block] @ right[:, block].T)
    return dict(
        grid=1, block=16, arguments=[zeros(256), a, b, row_scales, col_scales, k], expect={"out": total},
        close={"out": 1e-6},
    )  # fmt: skip


@kernel
def cross_entropy(loss: KernelBuffer[f32], logits: KernelBuffer[f32], target: KernelBuffer[u16], classes: u32):
    row = thread.global_id_x()
    top = f32(-3e38)
    for c in range(classes):
        top = math.max(top, logits[row * classes + c])
    total = f32(0.0)
    for c in range(classes):
        total += math.exp(logits[row * classes + c] - top)
    loss[row] = math.log(total) + top - logits[row * classes + target[row]]


def on_cross_entropy(data):
    classes = data.size(16)
    logits, wide = rows_of(data, 8, classes)
    target = data.integers(u16, 8, 0, classes - 1)
    top = wide.max(1)
    loss = np.log(np.exp(wide - top[:, None]).sum(1)) + top - wide[np.arange(8), target]
    return dict(
        grid=2, block=4, arguments=[zeros(8), logits, target, classes], expect={"loss": loss}, close={"loss": 1e-5}
    )  # fmt: skip
