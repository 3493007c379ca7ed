"""Kernels that people know, written as they would be, against numpy."""

import numpy as np
import pytest

RNG = np.random.default_rng(23)


def exact(found, expected):
    np.testing.assert_array_equal(found, expected)


def test_softmax_of_a_row_per_workgroup(launch, body_of):
    kernel = body_of("""
row = workgroup.x() * n
best = f32(-3e38)
for i in range(thread.x(), n, 8):
    best = math.max(best, x[row + i])
best = workgroup.reduce(Op.MAX, best)
total = f32(0.0)
for i in range(thread.x(), n, 8):
    e = math.exp(x[row + i] - best)
    y[row + i] = e
    total += e
total = workgroup.reduce(Op.ADD, total)
for i in range(thread.x(), n, 8):
    y[row + i] /= total
""", "y: KernelBuffer[f32], x: KernelBuffer[f32], n: u32")  # fmt: skip
    x = RNG.standard_normal((3, 20)).astype(np.float32)
    y = np.zeros(60, np.float32)
    assert launch(kernel, y, x.ravel(), 20, grid=3, block=8, width=4) == "fast"
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(y.reshape(3, 20), e / e.sum(1, keepdims=True), rtol=1e-6)


def test_rmsnorm(launch, body_of):
    kernel = body_of("""
row = workgroup.x() * n
total = f32(0.0)
for i in group.stripe(n):
    v = f32(x[row + i])
    total += v * v
total = wave.reduce_sum_f32(total)
scale = math.rsqrt(total / f32(n) + f32(1e-5))
for i in group.stripe(n):
    y[row + i] = f16(f32(x[row + i]) * scale * f32(w[i]))
""", "y: KernelBuffer[f16], x: KernelBuffer[f16], w: KernelBuffer[f16], n: u32")  # fmt: skip
    x, w = RNG.standard_normal((4, 50)).astype(np.float16), RNG.standard_normal(50).astype(np.float16)
    y = np.zeros(200, np.float16)
    assert launch(kernel, y, x.ravel(), w, 50, grid=4, block=16, width=16) == "fast"
    wide = x.astype(np.float64)
    expected = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5) * w
    np.testing.assert_allclose(y.reshape(4, 50), expected, rtol=2e-3, atol=1e-5)


def test_rope(launch, body_of):
    kernel = body_of("""
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
""", "x: KernelBuffer[f32], half: u32, position: i32, base: f32")  # fmt: skip
    x = RNG.standard_normal(24).astype(np.float32)
    pairs = x.astype(np.float64).reshape(12, 2).copy()
    assert launch(kernel, x, 12, 7, 10000.0, grid=2, block=8) == "fast"
    angle = 7 * 10000.0 ** (-np.arange(12) / 12)
    turned = (pairs[:, 0] + 1j * pairs[:, 1]) * np.exp(1j * angle)
    np.testing.assert_allclose(x.reshape(12, 2), np.stack([turned.real, turned.imag], 1), rtol=1e-5, atol=1e-6)


def test_transpose_through_padded_shared_memory(launch, body_of):
    kernel = body_of("""
tile = BlockPadded[i32, 8, 1](72)
x = thread.x()
y = thread.y()
tile[y * 8 + x] = a[(workgroup.y() * 8 + y) * cols + workgroup.x() * 8 + x]
barrier.workgroup()
out[(workgroup.x() * 8 + y) * rows + workgroup.y() * 8 + x] = tile[x * 8 + y]
""", "out: KernelBuffer[i32], a: KernelBuffer[i32], rows: u32, cols: u32")  # fmt: skip
    a, out = np.arange(16 * 24, dtype=np.int32), np.zeros(16 * 24, np.int32)
    assert launch(kernel, out, a, 16, 24, grid=(3, 2), block=(8, 8)) == "fast"
    exact(out.reshape(24, 16), a.reshape(16, 24).T)


def test_histogram_with_atomics_in_shared_memory(launch, body_of):
    kernel = body_of("""
counts = Shared[u32](16)
t = thread.x()
counts[t] = 0
barrier.workgroup()
for i, value in data.range(n):
    counts.atomic_add(value & 15, 1)
barrier.workgroup()
out.atomic_add(t, counts[t])
""", "out: KernelBuffer[u32], data: KernelBuffer[u8], n: u32")  # fmt: skip
    data, out = RNG.integers(0, 256, 500).astype(np.uint8), np.zeros(16, np.uint32)
    launch(kernel, out, data, 490, grid=3, block=16)
    exact(out, np.bincount(data[:490] & 15, minlength=16))


def test_compaction_by_a_scan(launch, body_of):
    kernel = body_of("""
value = data[thread.x()]
keep = 1 if value % 3 == 0 else 0
place = workgroup.scan(Op.ADD, keep)
if keep == 1:
    out[place] = value
""", "out: KernelBuffer[u32], data: KernelBuffer[u32]")  # fmt: skip
    data, out = RNG.integers(0, 100, 64).astype(np.uint32), np.zeros(64, np.uint32)
    assert launch(kernel, out, data, block=64, width=16) == "fast"
    kept = data[data % 3 == 0]
    exact(out[: len(kept)], kept)
    assert not out[len(kept) :].any()


def test_top_k_by_selection(launch, body_of):
    kernel = body_of("""
for r in range(k):
    best = f32(-3e38)
    where = u32(0)
    for i in range(n):
        seen = False
        for j in range(r):
            if out[j] == i:
                seen = True
                break
        if not seen and x[i] > best:
            best = x[i]
            where = i
    out[r] = where
""", "out: KernelBuffer[u32], x: KernelBuffer[f32], n: u32, k: u32")  # fmt: skip
    x, out = RNG.standard_normal(20).astype(np.float32), np.zeros(5, np.uint32)
    launch(kernel, out, x, 20, 5)
    exact(out, np.argsort(-x)[:5])


def test_q8_matrix_times_vector(launch, body_of):
    """Rows of blocks of 34 bytes: a float16 scale and 32 int8; activations are int8 with one float32 scale a block."""
    kernel = body_of("""
row = thread.global_id_x()
total = f32(0.0)
for b in range(blocks):
    at = (row * blocks + b) * 34
    scale = f32(halves[at // 2])
    acc = 0
    for g in range(2):
        w = bytes_.vload[16](at + 2 + 16 * g, align=2)
        acc = w.dot_sum(acts.vload[16](b * 32 + 16 * g, align=16), acc)
    total += scale * d[b] * f32(acc)
out[row] = total
""",
        "out: KernelBuffer[f32], bytes_: KernelBuffer[i8], halves: KernelBuffer[f16], acts: KernelBuffer[i8], "
        "d: KernelBuffer[f32], blocks: u32")  # fmt: skip
    from kohakutpu.xpu import KernelBuffer, f16, i8

    rows, blocks = 6, 3
    scales = RNG.standard_normal((rows, blocks)).astype(np.float16)
    weights = RNG.integers(-128, 128, (rows, blocks, 32)).astype(np.int8)
    raw = np.concatenate([scales[..., None].view(np.int8), weights], 2).ravel()
    slab = KernelBuffer.of(i8, raw)
    acts, d = RNG.integers(-128, 128, blocks * 32).astype(np.int8), RNG.standard_normal(blocks).astype(np.float32)
    out = np.zeros(rows, np.float32)
    assert launch(kernel, out, slab, slab.half_view(f16), acts, d, blocks, grid=2, block=3) == "fast"
    sums = (weights.astype(int) * acts.astype(int).reshape(blocks, 32)).sum(2)
    total = np.zeros(rows, np.float32)
    for b in range(blocks):
        total = total + scales[:, b].astype(np.float32) * d[b] * sums[:, b].astype(np.float32)
    exact(out, total)


def test_mxfp4_by_a_table(launch, body_of):
    kernel = body_of("""
table = Vector[i8, 16](0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
q = packed.vload[16](thread.x() * 16)
low = q.lut4(table)
high = (q >> 4).lut4(table)
first = acts.vload[16](0)
second = acts.vload[16](16)
out[thread.x()] = high.as_signed().dot_sum(second, low.as_signed().dot_sum(first, 0))
""", "out: KernelBuffer[i32], packed: KernelBuffer[u8], acts: KernelBuffer[i8]")  # fmt: skip
    packed, acts = RNG.integers(0, 256, 64).astype(np.uint8), RNG.integers(-128, 128, 32).astype(np.int8)
    out = np.zeros(4, np.int32)
    launch(kernel, out, packed, acts, block=4)
    table = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])
    q = packed.reshape(4, 16)
    exact(out, (table[q & 15] * acts[:16].astype(int)).sum(1) + (table[q >> 4] * acts[16:].astype(int)).sum(1))


@pytest.mark.parametrize("heads", [1, 2])
def test_attention_of_one_query(launch, body_of, heads):
    kernel = body_of("""
scores = Shared[f32](64)
head = workgroup.x()
t = thread.x()
best = f32(-3e38)
if t < keys:
    s = f32(0.0)
    for j in range(depth):
        s += q[head * depth + j] * k[t * depth + j]
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
        acc += scores[j] * v[j * depth + t]
    out[head * depth + t] = acc / total
""", "out: KernelBuffer[f32], q: KernelBuffer[f32], k: KernelBuffer[f32], v: KernelBuffer[f32], keys: u32, "
        "depth: u32, scale: f32")  # fmt: skip
    keys, depth = 23, 8
    q = RNG.standard_normal((heads, depth)).astype(np.float32)
    k, v = RNG.standard_normal((2, keys, depth)).astype(np.float32)
    out = np.zeros(heads * depth, np.float32)
    path = launch(
        kernel, out, q.ravel(), k.ravel(), v.ravel(), keys, depth, depth**-0.5, grid=heads, block=64, width=32
    )
    assert path == "fast"
    s = q.astype(np.float64) @ k.astype(np.float64).T * depth**-0.5
    p = np.exp(s - s.max(1, keepdims=True))
    np.testing.assert_allclose(out.reshape(heads, depth), p / p.sum(1, keepdims=True) @ v, rtol=1e-5, atol=1e-6)
