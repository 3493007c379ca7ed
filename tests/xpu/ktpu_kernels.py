"""Kernels that the machine runs, beside those of benchmarks/xpu_kernels.py: one source for models, gates, `kohakutpu
compile`."""

from kohakutpu.lang.elementwise import LOG2E
from kohakutpu.xpu import (
    CooperativeMatrix,
    KernelBuffer,
    Op,
    Use,
    Wave,
    barrier,
    device,
    f16,
    f32,
    group,
    kernel,
    math,
    thread,
    u32,
    wave,
    workgroup,
)


@kernel
def gelu(y: KernelBuffer[f16], x: KernelBuffer[f16], n: u32):
    i = thread.global_id_x()
    if i >= n:
        return
    v = f32(x[i])
    y[i] = v / (math.exp2((v * v * v * f32(0.044715) + v) * f32(-2.302208198)) + f32(1.0))


@kernel
def softmax(y: KernelBuffer[f16], x: KernelBuffer[f16], n: u32):
    row = workgroup.x() * n
    best = f32(-60000.0)
    for i in range(thread.x(), n, 32):
        best = math.max(best, f32(x[row + i]))
    best = workgroup.reduce(Op.MAX, best)
    total = f32(0.0)
    for i in range(thread.x(), n, 32):
        e = math.exp(f32(x[row + i]) - best)
        y[row + i] = e
        total += e
    total = workgroup.reduce(Op.ADD, total)
    for i in range(thread.x(), n, 32):
        y[row + i] = f32(y[row + i]) / total


@kernel
def rmsnorm(y: KernelBuffer[f16], x: KernelBuffer[f16], w: KernelBuffer[f16], n: u32):
    row = workgroup.x() * n
    total = f32(0.0)
    for i in group.stripe(n):
        v = f32(x[row + i])
        total += v * v
    total = wave.reduce_sum_f32(total)
    scale = math.rsqrt(total / f32(n) + f32(1e-5))
    for i in group.stripe(n):
        y[row + i] = f16(f32(x[row + i]) * scale * f32(w[i]))


@device
def silu(v: f32) -> f32:
    return v / (math.exp2(v * f32(-LOG2E)) + f32(1.0))


@Wave(width=16)
@kernel
def gemm(y: KernelBuffer[f16], x: KernelBuffer[f16], w: KernelBuffer[f16], depth: u32, cols: u32, activate: u32):
    acc: CooperativeMatrix[f16, 16, 16, Use.ACCUMULATOR]
    a: CooperativeMatrix[f16, 16, 32, Use.A]
    b: CooperativeMatrix[f16, 32, 16, Use.B]
    acc.splat(0)
    row = workgroup.y() * 16
    col = workgroup.x() * 16
    for i in range(depth // 32):
        a.load(x, row * depth + i * 32, 0, depth)
        b.load(w, col * depth + i * 32, 1, depth)
        acc.mma(a, b)
    if activate == 1:
        for e in range(acc.elements()):
            acc.set(e, silu(acc.get(e)))
    acc.store(y, row * cols + col, 0, cols)


@Wave(width=16)
@kernel
def attention(
    out: KernelBuffer[f32], q: KernelBuffer[f16], k: KernelBuffer[f16], v: KernelBuffer[f16], s: KernelBuffer[f16],
    o: KernelBuffer[f16], keys: u32, scale: f32,
):  # fmt: skip
    """16 queries of depth 32 for each workgroup, against 32 keys at a time.

    Scores, weights and values stand [key or value][query], so that a query is a lane.
    """
    query = thread.x()
    tile = workgroup.x() * 512
    home = workgroup.x() * 256
    best = f32(-60000.0)
    total = f32(0.0)
    a: CooperativeMatrix[f16, 16, 32, Use.A]
    a.load(q, tile, 0, 32)
    for first in range(0, keys, 32):
        scores: CooperativeMatrix[f16, 16, 32, Use.ACCUMULATOR]
        b: CooperativeMatrix[f16, 32, 32, Use.B]
        b.load(k, first * 32, 1, 32)
        scores.mma(a, b)
        scores.store(s, tile, 1, 16)
        barrier.workgroup()
        top = best
        for j in range(32):
            top = math.max(top, f32(s[tile + j * 16 + query]) * scale)
        shrink = math.exp(best - top)
        total *= shrink
        for j in range(32):
            p = math.exp(f32(s[tile + j * 16 + query]) * scale - top)
            s[tile + j * 16 + query] = p
            total += p
        best = top
        barrier.workgroup()
        weights: CooperativeMatrix[f16, 16, 32, Use.A]
        values: CooperativeMatrix[f16, 32, 16, Use.B]
        part: CooperativeMatrix[f16, 16, 16, Use.ACCUMULATOR]
        weights.load(s, tile, 1, 16)
        values.load(v, first * 16, 0, 16)
        part.mma(weights, values)
        part.store(o, home, 1, 16)
        barrier.workgroup()
        for d in range(16):
            at = home + d * 16 + query
            if first == 0:
                out[at] = f32(o[at])
            else:
                out[at] = math.fma(out[at], shrink, f32(o[at]))
        barrier.workgroup()
    inverse = f32(1.0) / total
    for d in range(16):
        out[home + d * 16 + query] *= inverse
