"""The kernels that benchmarks measure and that tests/xpu holds to the bit."""

from kohakutpu.xpu import (
    KernelBuffer, Shared, Wave, barrier, f16, f32, group, i32, kernel, math, thread, u8, u32, wave, workgroup,
)  # fmt: skip


@kernel
def saxpy(y: KernelBuffer[f32], x: KernelBuffer[f32], a: f32, n: u32):
    i = thread.global_id_x()
    if i < n:
        y[i] = a * x[i] + y[i]


@Wave(16)
@kernel
def softmax_of_a_wave(y: KernelBuffer[f32], x: KernelBuffer[f32], n: u32, pitch: u32):
    """A row of `n` elements, `pitch` from the next, for each workgroup."""
    row = workgroup.x() * pitch
    best = f32(-3e38)
    for i in group.stripe(n):
        best = math.max(best, x[row + i])
    best = wave.reduce_max_f32(best)
    total = f32(0.0)
    for i in group.stripe(n):
        e = math.exp(x[row + i] - best)
        y[row + i] = e
        total += e
    scale = f32(1.0) / wave.reduce_sum_f32(total)
    for i in group.stripe(n):
        y[row + i] *= scale


@kernel
def gemm(c: KernelBuffer[f32], a: KernelBuffer[f32], b: KernelBuffer[f32], n: u32):
    """A workgroup of 32 x 4 work-items computes 32 x 32 elements, eight rows to a work-item."""
    rows = Shared[f32](1024)
    cols = Shared[f32](1024)
    x = thread.x()
    y = thread.y()
    row = workgroup.y() * 32 + y * 8
    col = workgroup.x() * 32 + x
    t0 = f32(0.0)
    t1 = f32(0.0)
    t2 = f32(0.0)
    t3 = f32(0.0)
    t4 = f32(0.0)
    t5 = f32(0.0)
    t6 = f32(0.0)
    t7 = f32(0.0)
    for t in range(n // 32):
        for r in range(8):
            rows[(y * 8 + r) * 32 + x] = a[(row + r) * n + t * 32 + x]
            cols[(y * 8 + r) * 32 + x] = b[(t * 32 + y * 8 + r) * n + col]
        barrier.workgroup()
        for k in range(32):
            v = cols[k * 32 + x]
            t0 += rows[(y * 8 + 0) * 32 + k] * v
            t1 += rows[(y * 8 + 1) * 32 + k] * v
            t2 += rows[(y * 8 + 2) * 32 + k] * v
            t3 += rows[(y * 8 + 3) * 32 + k] * v
            t4 += rows[(y * 8 + 4) * 32 + k] * v
            t5 += rows[(y * 8 + 5) * 32 + k] * v
            t6 += rows[(y * 8 + 6) * 32 + k] * v
            t7 += rows[(y * 8 + 7) * 32 + k] * v
        barrier.workgroup()
    c[(row + 0) * n + col] = t0
    c[(row + 1) * n + col] = t1
    c[(row + 2) * n + col] = t2
    c[(row + 3) * n + col] = t3
    c[(row + 4) * n + col] = t4
    c[(row + 5) * n + col] = t5
    c[(row + 6) * n + col] = t6
    c[(row + 7) * n + col] = t7


@kernel
def tiled_gemm(c: KernelBuffer[f32], a: KernelBuffer[f32], b: KernelBuffer[f32], n: u32):
    """A workgroup of 16 x 16 work-items computes 16 x 16 elements, one each."""
    rows = Shared[f32](256)
    cols = Shared[f32](256)
    x = thread.x()
    y = thread.y()
    row = workgroup.y() * 16 + y
    col = workgroup.x() * 16 + x
    total = f32(0.0)
    for t in range(n // 16):
        rows[y * 16 + x] = a[row * n + t * 16 + x]
        cols[y * 16 + x] = b[(t * 16 + y) * n + col]
        barrier.workgroup()
        for k in range(16):
            total += rows[y * 16 + k] * cols[k * 16 + x]
        barrier.workgroup()
    c[row * n + col] = total


@Wave(16)
@kernel
def q4_gemv(out: KernelBuffer[f32], packed: KernelBuffer[u8], scales: KernelBuffer[f16], x: KernelBuffer[f32], n: u32):
    """A row per wave: blocks of 32 weights, 16 bytes of nibbles (low ones first) minus 8, and a float16 scale."""
    row = workgroup.x()
    total = f32(0.0)
    for g in range(n // 32 // 16):
        at = row * (n // 32) + u32(g) * 16 + wave.lane_id()
        q = packed.vload[16](at * 16)
        low = q & 15
        high = q >> 4
        first = (u32(g) * 16 + wave.lane_id()) * 32
        part = f32(0.0)
        for k in range(16):
            part += f32(i32(low[k]) - 8) * x[first + k] + f32(i32(high[k]) - 8) * x[first + k + 16]
        total += part * f32(scales[at])
    total = wave.reduce_sum_f32(total)
    if wave.is_first_lane():
        out[row] = total
