"""Kernels that people know: vectors, reductions, scans, matrices, sorting, random numbers, images."""

from zlib import crc32

import numpy as np

from kohakutpu.xpu import (
    BlockPadded, FastMath, KernelBuffer, Op, Shared, Wave, barrier, bits, f16, f32, group, i32, kernel, lshr, math,
    thread, u8, u32, u64, wave, workgroup,
)  # fmt: skip


def zeros(count, kind=f32):
    return np.zeros(count, kind.dtype)


def wrapped(values, kind):
    mask = (1 << kind.bits) - 1
    return np.array([int(value) & mask for value in np.ravel(values)], f"uint{kind.bits}").view(kind.dtype)


def butterfly(values, operation=np.add):
    """The XOR butterfly over the last axis, whose length is a power of two."""
    held, distance = np.asarray(values, np.float32), 1
    while distance < held.shape[-1]:
        held = operation(held, held[..., np.arange(held.shape[-1]) ^ distance])
        distance *= 2
    return held[..., 0]


def striped(values, lanes):
    """Each lane's sum of elements lane, lane + lanes, ..., in order, in float32."""
    total = np.zeros(lanes, np.float32)
    for start in range(0, len(values), lanes):
        part = values[start : start + lanes]
        total[: len(part)] = total[: len(part)] + part
    return total


@kernel
def saxpy(y: KernelBuffer[f32], x: KernelBuffer[f32], a: f32, n: u32):
    i = thread.global_id_x()
    if i < n:
        y[i] = a * x[i] + y[i]


def on_saxpy(data):
    n = data.size(256)
    x, y = data.floats(f32, n), data.floats(f32, n)
    return dict(grid=4, block=64, arguments=[y, x, 2.5, n], expect={"y": np.float32(2.5) * x + y})


@kernel
def saxpy_half(y: KernelBuffer[f16], x: KernelBuffer[f16], a: f16, n: u32):
    for i, v in x.range(n):
        y[i] = a * v + y[i]


def on_saxpy_half(data):
    n = data.size(200)
    x, y = data.floats(f16, n), data.floats(f16, n)
    product = (np.float32(0.75) * x.astype(np.float32)).astype(np.float16)
    return dict(
        grid=2, block=16, arguments=[y, x, 0.75, n], expect={"y": product.astype(np.float32) + y.astype(np.float32)}
    )


@kernel
def reduce_by_tree(out: KernelBuffer[f32], x: KernelBuffer[f32], n: u32):
    s = Shared[f32](64)
    t = thread.x()
    i = thread.global_id_x()
    s[t] = x[i] if i < n else f32(0.0)
    barrier.workgroup()
    half = u32(32)
    while half > 0:
        if t < half:
            s[t] += s[t + half]
        barrier.workgroup()
        half = half >> 1
    if t == 0:
        out[workgroup.x()] = s[0]


def on_reduce_by_tree(data):
    n = data.size(256)
    x = data.floats(f32, n)
    s = np.zeros((4, 64), np.float32)
    s.ravel()[:n] = x
    while s.shape[1] > 1:
        half = s.shape[1] // 2
        s = s[:, :half] + s[:, half:]
    return dict(grid=4, block=64, arguments=[zeros(4), x, n], expect={"out": s})


@kernel
def sum_with_atomics(total: KernelBuffer[u64], x: KernelBuffer[u32], n: u32):
    mine = u64(0)
    for _, v in x.range(n):
        mine += v
    total.atomic_add(0, mine)


def on_sum_with_atomics(data):
    n = data.size(300)
    x = data.integers(u32, n)
    return dict(
        grid=2, block=32, arguments=[np.array([5], np.uint64), x, n],
        expect={"total": np.array([5 + int(x.astype(object).sum())], np.uint64)},
    )  # fmt: skip


@Wave(width=16)
@kernel
def dot_product(out: KernelBuffer[f32], a: KernelBuffer[f32], b: KernelBuffer[f32], n: u32):
    mine = f32(0.0)
    for i in group.stripe(n):
        mine += a[i] * b[i]
    total = wave.reduce_sum_f32(mine)
    if wave.is_first_lane():
        out[0] = total


def on_dot_product(data):
    n = data.size(160)
    a, b = data.floats(f32, n), data.floats(f32, n)
    return dict(grid=1, block=16, arguments=[zeros(1), a, b, n], expect={"out": butterfly(striped(a * b, 16))})


@Wave(width=16)
@kernel
def argmax(value: KernelBuffer[f32], where: KernelBuffer[u32], x: KernelBuffer[f32], n: u32):
    best = f32(-3e38)
    at = u32(0xFFFFFFFF)
    i = wave.lane_id()
    while i < n:
        if x[i] > best:
            best = x[i]
            at = i
        i += 16
    top = wave.reduce_max_f32(best)
    first = wave.reduce_min(at if best == top else u32(0xFFFFFFFF))
    if wave.is_first_lane():
        value[0] = top
        where[0] = first


def on_argmax(data):
    n = data.size(120)
    x = data.floats(f32, n)
    over = np.where(np.isnan(x) | (x <= np.float32(-3e38)), -np.inf, x)
    return dict(
        grid=1, block=16, arguments=[zeros(1), zeros(1, u32), x, n],
        expect={"value": [over.max()], "where": np.array([over.argmax()], np.uint32)},
    )  # fmt: skip


@kernel
def scan_by_doubling(out: KernelBuffer[i32], x: KernelBuffer[i32], n: u32):
    a = Shared[i32](64)
    b = Shared[i32](64)
    t = thread.x()
    a[t] = x[t] if t < n else 0
    barrier.workgroup()
    step = u32(1)
    while step < 64:
        b[t] = a[t] + a[t - step] if t >= step else a[t]
        barrier.workgroup()
        a[t] = b[t]
        barrier.workgroup()
        step *= 2
    if t < n:
        out[t] = a[t]


def on_scan_by_doubling(data):
    n = data.size(64)
    x = data.integers(i32, n)
    sums = wrapped(np.cumsum(x.astype(object)), i32)
    return dict(grid=1, block=64, arguments=[zeros(n, i32), x, n], expect={"out": sums})


@Wave(width=16)
@kernel
def scan_of_blocks(out: KernelBuffer[i32], sums: KernelBuffer[i32], x: KernelBuffer[i32], n: u32):
    i = thread.global_id_x()
    v = x[i] if i < n else 0
    before = workgroup.scan(Op.ADD, v)
    if i < n:
        out[i] = before
    if thread.x() == workgroup.dim_x() - 1:
        sums[workgroup.x()] = before + v


def on_scan_of_blocks(data):
    n = data.size(128)
    x = data.integers(i32, n)
    blocks = np.zeros((4, 32), object)
    blocks.ravel()[:n] = x.astype(object)
    totals = np.cumsum(blocks, 1)
    return dict(
        grid=4, block=32, arguments=[zeros(n, i32), zeros(4, i32), x, n],
        expect={"out": wrapped((totals - blocks).ravel()[:n], i32), "sums": wrapped(totals[:, -1], i32)},
    )  # fmt: skip


@kernel
def add_offsets(x: KernelBuffer[i32], offsets: KernelBuffer[i32], n: u32):
    i = thread.global_id_x()
    if i < n:
        x[i] += offsets[workgroup.x()]


def on_add_offsets(data):
    n = data.size(128)
    x, offsets = data.integers(i32, n), data.integers(i32, 4)
    return dict(grid=4, block=32, arguments=[x, offsets, n], expect={"x": x + np.repeat(offsets, 32)[:n]})


@kernel
def histogram(counts: KernelBuffer[u32], x: KernelBuffer[u8], n: u32):
    local = Shared[u32](32)
    t = thread.x()
    local[t] = 0
    barrier.workgroup()
    for _, v in x.range(n):
        local.atomic_add(v >> 3, 1)
    barrier.workgroup()
    counts.atomic_add(t, local[t])


def on_histogram(data):
    n = data.size(400)
    x = data.integers(u8, n)
    return dict(
        grid=3, block=32, arguments=[zeros(32, u32), x, n],
        expect={"counts": np.bincount(x >> 3, minlength=32).astype(np.uint32)},
    )  # fmt: skip


@kernel
def transpose(out: KernelBuffer[f32], a: KernelBuffer[f32], rows: u32, cols: u32):
    tile = BlockPadded[f32, 8, 1](72)
    x = thread.x()
    y = thread.y()
    column = workgroup.x() * 8 + x
    row = workgroup.y() * 8 + y
    if row < rows and column < cols:
        tile[y * 8 + x] = a[row * cols + column]
    barrier.workgroup()
    column = workgroup.y() * 8 + x
    row = workgroup.x() * 8 + y
    if row < cols and column < rows:
        out[row * rows + column] = tile[x * 8 + y]


def on_transpose(data):
    rows, cols = data.size(24), data.size(16)
    a = data.floats(f32, rows * cols)
    grid = ((cols + 7) // 8, (rows + 7) // 8)
    return dict(
        grid=grid, block=(8, 8), arguments=[zeros(rows * cols), a, rows, cols], expect={"out": a.reshape(rows, cols).T}
    )  # fmt: skip


@kernel
def matmul_naive(c: KernelBuffer[f32], a: KernelBuffer[f32], b: KernelBuffer[f32], m: u32, n: u32, k: u32):
    row = thread.global_id_y()
    col = thread.global_id_x()
    if row < m and col < n:
        total = f32(0.0)
        for i in range(k):
            total += a[row * k + i] * b[i * n + col]
        c[row * n + col] = total


def product(a, b):
    """a @ b in float32, summed over k in order."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for k in range(a.shape[1]):
        total = total + a[:, k, None] * b[None, k, :]
    return total


def on_matmul_naive(data):
    m, n, k = data.size(16), data.size(12), data.size(20)
    a, b = data.floats(f32, m * k), data.floats(f32, k * n)
    return dict(
        grid=(2, 2), block=(8, 8), arguments=[zeros(m * n), a, b, m, n, k],
        expect={"c": product(a.reshape(m, k), b.reshape(k, n))},
    )  # fmt: skip


@kernel
def matmul_tiled(c: KernelBuffer[f32], a: KernelBuffer[f32], b: KernelBuffer[f32], m: u32, n: u32, k: u32):
    left = Shared[f32](64)
    right = Shared[f32](64)
    x = thread.x()
    y = thread.y()
    row = workgroup.y() * 8 + y
    col = workgroup.x() * 8 + x
    total = f32(0.0)
    for first in range(0, k, 8):
        left[y * 8 + x] = a[row * k + first + x] if row < m and first + x < k else f32(0.0)
        right[y * 8 + x] = b[(first + y) * n + col] if first + y < k and col < n else f32(0.0)
        barrier.workgroup()
        for i in range(8):
            total += left[y * 8 + i] * right[i * 8 + x]
        barrier.workgroup()
    if row < m and col < n:
        c[row * n + col] = total


def on_matmul_tiled(data):
    m, n, k = data.size(16), data.size(16), data.size(24)
    a, b = data.floats(f32, m * k), data.floats(f32, k * n)
    k8 = -(-k // 8) * 8  # the padding's zeros are multiplied too
    left, right = np.zeros((m, k8), np.float32), np.zeros((k8, n), np.float32)
    left[:, :k], right[:k] = a.reshape(m, k), b.reshape(k, n)
    return dict(
        grid=(2, 2), block=(8, 8), arguments=[zeros(m * n), a, b, m, n, k], expect={"c": product(left, right)}
    )  # fmt: skip


@Wave(width=16)
@kernel
def gemv(y: KernelBuffer[f32], a: KernelBuffer[f32], x: KernelBuffer[f32], cols: u32):
    row = workgroup.x()
    mine = f32(0.0)
    for i in group.stripe(cols):
        mine += a[row * cols + i] * x[i]
    total = group.reduce(Op.ADD, mine)
    if thread.x() == 0:
        y[row] = total


def on_gemv(data):
    rows, cols = 5, data.size(64)
    a, x = data.floats(f32, rows * cols), data.floats(f32, cols)
    return dict(
        grid=rows, block=16, arguments=[zeros(rows), a, x, cols],
        expect={"y": [butterfly(striped(row * x, 16)) for row in a.reshape(rows, cols)]},
    )  # fmt: skip


@kernel
def heat_stencil(out: KernelBuffer[f32], a: KernelBuffer[f32], width: i32, height: i32, rate: f32):
    x = i32(thread.global_id_x())
    y = i32(thread.global_id_y())
    if x < width and y < height:
        c = a[y * width + x]
        left = a[y * width + math.max(x - 1, 0)]
        right = a[y * width + math.min(x + 1, width - 1)]
        up = a[math.max(y - 1, 0) * width + x]
        down = a[math.min(y + 1, height - 1) * width + x]
        out[y * width + x] = c + rate * (left + right + up + down - f32(4.0) * c)


def on_heat_stencil(data):
    height, width = data.size(14), data.size(16)
    a = data.floats(f32, width * height)
    p = np.pad(a.reshape(height, width), 1, "edge")
    around = p[1:-1, :-2] + p[1:-1, 2:] + p[:-2, 1:-1] + p[2:, 1:-1]
    expected = p[1:-1, 1:-1] + np.float32(0.1) * (around - np.float32(4) * p[1:-1, 1:-1])
    return dict(
        grid=(2, 2), block=(8, 8), arguments=[zeros(width * height), a, width, height, 0.1], expect={"out": expected}
    )  # fmt: skip


@kernel
def convolution_1d(out: KernelBuffer[f32], x: KernelBuffer[f32], taps: KernelBuffer[f32], n: i32):
    s = Shared[f32](40)
    t = i32(thread.x())
    start = i32(workgroup.x()) * 32 - 4
    for k in range(t, 40, 32):
        i = start + k
        s[k] = x[i] if i >= 0 and i < n else f32(0.0)
    barrier.workgroup()
    if start + 4 + t < n:
        total = f32(0.0)
        for j in range(9):
            total += taps[j] * s[t + j]
        out[start + 4 + t] = total


def on_convolution_1d(data):
    n = data.size(96)
    x, taps = data.floats(f32, n), data.finite(f32, 9)
    padded, total = np.pad(x, (4, 4)), np.zeros(n, np.float32)
    for j in range(9):
        total = total + taps[j] * padded[j : j + n]
    return dict(grid=3, block=32, arguments=[zeros(n), x, taps, n], expect={"out": total})


@kernel
def convolution_2d(
    out: KernelBuffer[f32], image: KernelBuffer[f32], weights: KernelBuffer[f32], side: i32, channels: i32
):
    x = i32(thread.global_id_x())
    y = i32(thread.global_id_y())
    if x < side and y < side:
        total = f32(0.0)
        for c in range(channels):
            for dy in range(-1, 2):
                for dx in range(-1, 2):
                    if x + dx >= 0 and x + dx < side and y + dy >= 0 and y + dy < side:
                        pixel = image[(c * side + y + dy) * side + x + dx]
                        total += pixel * weights[(c * 3 + dy + 1) * 3 + dx + 1]
        out[y * side + x] = total


def on_convolution_2d(data):
    side, channels = data.size(12), 2
    image, weights = data.finite(f32, channels * side * side), data.finite(f32, channels * 9)
    padded = np.pad(image.reshape(channels, side, side), ((0, 0), (1, 1), (1, 1)))
    total = np.zeros((side, side), np.float32)
    for c, dy, dx in np.ndindex(channels, 3, 3):
        total = total + padded[c, dy : dy + side, dx : dx + side] * weights[(c * 3 + dy) * 3 + dx]
    return dict(
        grid=(2, 2), block=(8, 8), arguments=[zeros(side * side), image, weights, side, channels], expect={"out": total}
    )  # fmt: skip


@kernel
def bitonic_sort(x: KernelBuffer[i32]):
    s = Shared[i32](64)
    t = thread.x()
    s[t] = x[t]
    barrier.workgroup()
    size = u32(2)
    while size <= 64:
        stride = size >> 1
        while stride > 0:
            other = t ^ stride
            mine = s[t]
            theirs = s[other]
            barrier.workgroup()
            ascending = (t & size) == 0
            lower = (t < other) == ascending
            s[t] = math.min(mine, theirs) if lower else math.max(mine, theirs)
            barrier.workgroup()
            stride = stride >> 1
        size *= 2
    x[t] = s[t]


def on_bitonic_sort(data):
    x = data.integers(i32, 64)
    return dict(grid=1, block=64, arguments=[x], expect={"x": np.sort(x)})


@Wave(width=16)
@kernel
def compaction(out: KernelBuffer[u32], count: KernelBuffer[i32], x: KernelBuffer[u32], n: u32):
    i = thread.x()
    keep = 1 if i < n and x[i] % 3 == 0 else 0
    place = workgroup.scan(Op.ADD, keep)
    if keep == 1:
        out[place] = x[i]
    total = workgroup.reduce(Op.ADD, keep)
    if i == 0:
        count[0] = total


def on_compaction(data):
    n = data.size(64)
    x = data.integers(u32, n)
    kept = x[x % 3 == 0]
    expected = np.zeros(64, np.uint32)
    expected[: len(kept)] = kept
    return dict(
        grid=1, block=64, arguments=[zeros(64, u32), zeros(1, i32), x, n],
        expect={"out": expected, "count": np.array([len(kept)], np.int32)},
    )  # fmt: skip


@kernel
def xorshift_uniform(out: KernelBuffer[f32], state: KernelBuffer[u32], draws: u32):
    i = thread.global_id_x()
    s = state[i] | 1
    for j in range(draws):
        s ^= s << 13
        s ^= s >> 17
        s ^= s << 5
        out[i * draws + j] = f32(s >> 8) * f32(1.0 / 16777216.0)
    state[i] = s


def on_xorshift_uniform(data):
    state = data.integers(u32, 32)
    s, rows = state | np.uint32(1), []
    for _ in range(3):
        for left, amount in ((True, 13), (False, 17), (True, 5)):
            s = s ^ (s << np.uint32(amount) if left else s >> np.uint32(amount))
        rows.append((s >> np.uint32(8)).astype(np.float32) / np.float32(1 << 24))
    return dict(grid=2, block=16, arguments=[zeros(96), state, 3], expect={"out": np.stack(rows, 1), "state": s})


@kernel
def philox(out: KernelBuffer[u32], key: u64, n: u32):
    i = thread.global_id_x()
    if i < n:
        a = u32(i)
        b = u32(0)
        c = u32(7)
        d = u32(0)
        left = u32(key)
        right = u32(key >> 32)
        for _ in range(10):
            high = u32(u64(a) * u64(0xD2511F53) >> 32)
            low = a * 0xD2511F53
            high2 = u32(u64(c) * u64(0xCD9E8D57) >> 32)
            low2 = c * 0xCD9E8D57
            a = high2 ^ b ^ left
            b = low2
            c = high ^ d ^ right
            d = low
            left += 0x9E3779B9
            right += 0xBB67AE85
        out[4 * i] = a
        out[4 * i + 1] = b
        out[4 * i + 2] = c
        out[4 * i + 3] = d


def on_philox(data):
    n = data.size(32)
    key = int(data.integers(u64, 1)[0])
    expected = []
    for i in range(n):
        a, b, c, d, left, right = i, 0, 7, 0, key & 0xFFFFFFFF, key >> 32
        for _ in range(10):
            first, second = a * 0xD2511F53, c * 0xCD9E8D57
            a, b, c, d = second >> 32 ^ b ^ left, second & 0xFFFFFFFF, first >> 32 ^ d ^ right, first & 0xFFFFFFFF
            left, right = left + 0x9E3779B9 & 0xFFFFFFFF, right + 0xBB67AE85 & 0xFFFFFFFF
        expected += [a, b, c, d]
    return dict(grid=2, block=16, arguments=[zeros(4 * n, u32), key, n], expect={"out": np.array(expected, np.uint32)})


@kernel
def crc32_of_rows(out: KernelBuffer[u32], x: KernelBuffer[u8], length: u32):
    row = thread.global_id_x()
    crc = u32(0xFFFFFFFF)
    for i in range(length):
        crc ^= x[row * length + i]
        for _ in range(8):
            crc = (crc >> 1) ^ u32(0xEDB88320) if (crc & 1) == 1 else crc >> 1
    out[row] = ~crc


def on_crc32_of_rows(data):
    length = data.size(9)
    x = data.integers(u8, 16 * length)
    sums = [crc32(row.tobytes()) for row in x.reshape(16, length)]
    return dict(grid=2, block=8, arguments=[zeros(16, u32), x, length], expect={"out": np.array(sums, np.uint32)})


@kernel
def game_of_life(out: KernelBuffer[u8], cells: KernelBuffer[u8], side: u32):
    x = thread.global_id_x()
    y = thread.global_id_y()
    if x < side and y < side:
        count = 0
        for dy in range(3):
            for dx in range(3):
                if dx != 1 or dy != 1:
                    count += cells[(y + dy + side - 1) % side * side + (x + dx + side - 1) % side]
        alive = cells[y * side + x] == 1
        out[y * side + x] = 1 if count == 3 or (alive and count == 2) else 0


def on_game_of_life(data):
    side = data.size(16)
    cells = data.integers(u8, side * side, 0, 1)
    board = cells.reshape(side, side)
    around = sum(np.roll(board, (dy, dx), (0, 1)) for dy in (-1, 0, 1) for dx in (-1, 0, 1)) - board
    expected = (around == 3) | (board == 1) & (around == 2)
    return dict(
        grid=(2, 2), block=(8, 8), arguments=[zeros(side * side, u8), cells, side],
        expect={"out": expected.astype(np.uint8)},
    )  # fmt: skip


@kernel
def mandelbrot(out: KernelBuffer[u32], side: u32, limit: u32):
    i = thread.global_id_x()
    if i < side * side:
        cx = f32(i % side) / f32(side) * f32(3.0) - f32(2.0)
        cy = f32(i // side) / f32(side) * f32(2.0) - f32(1.0)
        x = f32(0.0)
        y = f32(0.0)
        n = u32(0)
        while n < limit and x * x + y * y <= f32(4.0):
            nx = x * x - y * y + cx
            y = f32(2.0) * x * y + cy
            x = nx
            n += 1
        out[i] = n


def on_mandelbrot(data):
    side, limit = data.size(12), 20
    one = np.float32
    expected = []
    for i in range(side * side):
        cx, cy = one(i % side) / one(side) * one(3) - one(2), one(i // side) / one(side) * one(2) - one(1)
        x, y, n = one(0), one(0), 0
        while n < limit and x * x + y * y <= one(4):
            x, y, n = x * x - y * y + cx, one(2) * x * y + cy, n + 1
        expected.append(n)
    return dict(
        grid=3, block=64, arguments=[zeros(side * side, u32), side, limit],
        expect={"out": np.array(expected, np.uint32)},
    )  # fmt: skip


@kernel
def n_body(force: KernelBuffer[f32], place: KernelBuffer[f32], mass: KernelBuffer[f32], n: u32):
    i = thread.global_id_x()
    if i < n:
        fx = f32(0.0)
        fy = f32(0.0)
        for j in range(n):
            dx = place[2 * j] - place[2 * i]
            dy = place[2 * j + 1] - place[2 * i + 1]
            inverse = math.rsqrt(dx * dx + dy * dy + f32(0.01))
            pull = mass[j] * inverse * inverse * inverse
            fx += dx * pull
            fy += dy * pull
        force[2 * i] = fx
        force[2 * i + 1] = fy


def on_n_body(data):
    n = data.size(24)
    place, mass = data.finite(f32, 2 * n), data.finite(f32, n)
    p = place.astype(np.float64).reshape(n, 2)
    gap = p[None] - p[:, None]
    pull = mass[None] * ((gap**2).sum(2) + 0.01) ** -1.5
    return dict(
        grid=2, block=16, arguments=[zeros(2 * n), place, mass, n],
        expect={"force": (gap * pull[..., None]).sum(1)}, close={"force": 1e-5},
    )  # fmt: skip


@kernel
def gather_rows(out: KernelBuffer[f16], table: KernelBuffer[f16], ids: KernelBuffer[i32], width: u32, rows: i32):
    row = workgroup.x()
    id = ids[row]
    for i in range(thread.x(), width, 16):
        out[row * width + i] = table[u32(id) * width + i] if id >= 0 and id < rows else f16(0.0)


def on_gather_rows(data):
    width, rows = data.size(24), 6
    table, ids = data.floats(f16, rows * width), data.integers(i32, 8, -2, 9)
    expected = np.zeros((8, width), np.float16)
    inside = (ids >= 0) & (ids < rows)
    expected[inside] = table.reshape(rows, width)[ids[inside]]
    return dict(
        grid=8, block=16, arguments=[zeros(8 * width, f16), table, ids, width, rows], expect={"out": expected}
    )  # fmt: skip


@kernel
def bit_reversal(planes: KernelBuffer[u32], x: KernelBuffer[u32], n: u32):
    """Bits swapped in ever wider groups, beside the verb that reverses them."""
    row = thread.global_id_x()
    if row < n:
        v = x[row]
        v = lshr(v, 1) & 0x55555555 | (v & 0x55555555) << 1
        v = lshr(v, 2) & 0x33333333 | (v & 0x33333333) << 2
        v = lshr(v, 4) & 0x0F0F0F0F | (v & 0x0F0F0F0F) << 4
        v = bits.permute(v, 0, 0x0123)
        planes[2 * row] = v
        planes[2 * row + 1] = bits.count(v ^ bits.reverse(x[row]))


def on_bit_reversal(data):
    n = data.size(48)
    x = data.integers(u32, n)
    reversed_ = [int(f"{v:032b}"[::-1], 2) for v in x.tolist()]
    expected = np.stack([np.array(reversed_, np.uint32), np.zeros(n, np.uint32)], 1)
    return dict(grid=2, block=32, arguments=[zeros(2 * n, u32), x, n], expect={"planes": expected})


@FastMath()
@kernel
def fast_polynomial(out: KernelBuffer[f32], x: KernelBuffer[f32], n: u32):
    """Horner's rule, which a back end may contract and reassociate here."""
    i = thread.global_id_x()
    if i < n:
        v = x[i]
        out[i] = (((v * f32(0.1) + f32(0.7)) * v - f32(0.3)) * v + f32(1.1)) * v + v / f32(3.0)


def on_fast_polynomial(data):
    """Numbers without an overflow, which contraction would avoid."""
    n = data.size(128)
    x = data.integers(i32, n, -4000, 4000).astype(np.float32) / np.float32(1000)
    wide = x.astype(np.float64)
    expected = (((wide * 0.1 + 0.7) * wide - 0.3) * wide + 1.1) * wide + wide / 3
    return dict(grid=4, block=32, arguments=[zeros(n), x, n], expect={"out": expected}, close={"out": 1e-6})
