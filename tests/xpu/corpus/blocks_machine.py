"""Building blocks as the machine's vector cores and clusters take them: floats, neighbours, full waves of 16 lanes.

They run everywhere; the other blocks are what the machine refuses by name.
"""

from functools import partial

import numpy as np

from kohakutpu.xpu import (
    CooperativeMatrix, KernelBuffer, Op, Use, Wave, define, device, f16, f32, group, kernel, math, quad, thread, u32,
    wave, workgroup,
)  # fmt: skip

NAMES = {
    "KernelBuffer": KernelBuffer, "Op": Op, "Wave": Wave, "f16": f16, "f32": f32, "group": group, "kernel": kernel,
    "math": math, "quad": quad, "thread": thread, "u32": u32, "wave": wave, "workgroup": workgroup,
    "__name__": __name__,
}  # fmt: skip

ELEMENTWISE = """
@kernel
def machine_{name}(out: KernelBuffer[{kind}], a: KernelBuffer[{kind}], b: KernelBuffer[{kind}], n: u32):
    i = thread.global_id_x()
    if i < n:
        x = a[i]
        y = b[i]
        out[i] = {expression}
"""
# name: (element, expression, oracle in float32)
OPERATIONS = {
    "add": (f32, "x + y", lambda x, y: x + y),
    "sub": (f32, "x - y", lambda x, y: x - y),
    "mul": (f32, "x * y", lambda x, y: x * y),
    "div": (f32, "x / y", lambda x, y: x / y),
    "neg": (f32, "-x", lambda x, y: -x),
    "abs": (f32, "math.abs(x)", lambda x, y: abs(x)),
    "min": (f32, "math.min(x, y)", lambda x, y: np.where(x < y, x, y)),
    "max": (f32, "math.max(x, y)", lambda x, y: np.where(x < y, y, x)),
    "choice": (f32, "x if x < y else y * f32(2.0)", lambda x, y: np.where(x < y, x, y * np.float32(2))),
    "chain": (f32, "(x + y) * (x - y) + f32(0.5) * x", lambda x, y: (x + y) * (x - y) + np.float32(0.5) * x),
    "halves": (f16, "f16(f32(x) * f32(y) + f32(1.0))", lambda x, y: x * y + np.float32(1)),
    "half_operators": (f16, "x + y", lambda x, y: x + y),
}  # fmt: skip


def on_elementwise(kind, oracle, data):
    n = data.size(256)
    a, b = data.floats(kind, n), data.floats(kind, n)
    if data.adversarial:
        b[::6] = a[::6]
    expected = oracle(a.astype(np.float32), b.astype(np.float32))
    return dict(grid=4, block=64, arguments=[np.zeros(n, kind.dtype), a, b, n], expect={"out": expected})


for NAME, (KIND, EXPRESSION, ORACLE) in OPERATIONS.items():
    TEXT = ELEMENTWISE.format(name=NAME, kind=KIND, expression=EXPRESSION)
    globals()[f"machine_{NAME}"] = define(TEXT, dict(NAMES), NAME)[f"machine_{NAME}"]
    globals()[f"on_machine_{NAME}"] = partial(on_elementwise, KIND, ORACLE)

FULL_WAVE = """
@Wave(width=16)
@kernel
def machine_{name}(out: KernelBuffer[f32], a: KernelBuffer[f32]):
    i = thread.global_id_x()
    out[i] = {call}
"""


def butterfly(operation, reach=16):
    def over(waves):
        held, distance = waves, 1
        while distance < reach:
            held = operation(held, held[:, np.arange(16) ^ distance])
            distance *= 2
        return held

    return over


WAVES = {
    "wave_sum": ("wave.reduce_sum_f32(a[i])", butterfly(np.add)),
    "wave_max": ("wave.reduce_max_f32(a[i])", butterfly(np.fmax)),
    "wave_min": ("wave.reduce_min_f32(a[i])", butterfly(np.fmin)),
    "group_sum": ("group.reduce(Op.ADD, a[i])", butterfly(np.add)),
    "segments_of_4": ("wave.reduce_sum_f32_segmented(a[i], 4)", butterfly(np.add, 4)),
    "segments_of_8": ("group.reduce_segmented(8, Op.ADD, a[i])", butterfly(np.add, 8)),
    "largest_of_2": ("wave.reduce_max_f32_segmented(a[i], 2)", butterfly(np.fmax, 2)),
    "rotated_by_8": ("wave.shuffle_xor_sync_f32(a[i], 8)", lambda waves: waves[:, np.arange(16) ^ 8]),
}  # fmt: skip


def on_full_wave(oracle, data):
    a = data.floats(f32, 128)
    return dict(
        grid=2, block=64, arguments=[np.zeros(128, np.float32), a], expect={"out": oracle(a.reshape(8, 16))}
    )  # fmt: skip


for NAME, (CALL, ORACLE) in WAVES.items():
    TEXT = FULL_WAVE.format(name=NAME, call=CALL)
    globals()[f"machine_{NAME}"] = define(TEXT, dict(NAMES), NAME)[f"machine_{NAME}"]
    globals()[f"on_machine_{NAME}"] = partial(on_full_wave, ORACLE)


@Wave(width=16)
@kernel
def machine_workgroup_sum(out: KernelBuffer[f32], a: KernelBuffer[f32], n: u32):
    """Sums of rows of 64, a workgroup each; every work-item holds the sum, and scales its element."""
    i = thread.global_id_x()
    v = a[i] * f32(0.5)
    out[i] = workgroup.reduce(Op.ADD, v) + v


def on_machine_workgroup_sum(data):
    a = data.finite(f32, 128)
    half = a * np.float32(0.5)
    partials = butterfly(np.add)(half.reshape(8, 16))[:, 0].reshape(2, 4)
    totals = partials[:, 0]
    for k in range(1, 4):
        totals = totals + partials[:, k]
    return dict(
        grid=2, block=64, arguments=[np.zeros(128, np.float32), a, 128],
        expect={"out": np.repeat(totals, 64) + half},
    )  # fmt: skip


@Wave(width=16)
@kernel
def machine_softmax(y: KernelBuffer[f32], x: KernelBuffer[f32], n: u32, pitch: u32):
    row = workgroup.x() * pitch
    best = f32(-60000.0)
    for i in group.stripe(n):
        best = math.max(best, x[row + u32(i)])
    best = wave.reduce_max_f32(best)
    total = f32(0.0)
    for i in group.stripe(n):
        e = math.exp(x[row + u32(i)] - best)
        y[row + u32(i)] = e
        total += e
    total = wave.reduce_sum_f32(total)
    for i in group.stripe(n):
        y[row + u32(i)] = y[row + u32(i)] / total


def on_machine_softmax(data):
    n, pitch = data.size(64), 64
    x = data.finite(f32, 3 * pitch, 4.0)
    wide = x.astype(np.float64).reshape(3, pitch)[:, :n]
    e = np.exp(wide - wide.max(1, keepdims=True))
    expected = np.zeros((3, pitch))
    expected[:, :n] = e / e.sum(1, keepdims=True)
    return dict(
        grid=3, block=16, arguments=[np.zeros(3 * pitch, np.float32), x, n, pitch], expect={"y": expected},
        close={"y": 1e-6},
    )  # fmt: skip


@Wave(width=16)
@kernel
def machine_rmsnorm(y: KernelBuffer[f16], x: KernelBuffer[f16], w: KernelBuffer[f16], n: u32, pitch: u32):
    row = workgroup.x() * pitch
    total = f32(0.0)
    for i in group.stripe(n):
        v = f32(x[row + u32(i)])
        total += v * v
    total = wave.reduce_sum_f32(total)
    scale = math.rsqrt(total / f32(n) + f32(1e-5))
    for i in group.stripe(n):
        y[row + u32(i)] = f16(f32(x[row + u32(i)]) * scale * f32(w[i]))


def on_machine_rmsnorm(data):
    n, pitch = data.size(96), 96
    x, w = data.finite(f16, 4 * pitch), data.finite(f16, pitch)
    wide = x.astype(np.float64).reshape(4, pitch)[:, :n]
    expected = np.zeros((4, pitch))
    expected[:, :n] = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5) * w[:n]
    return dict(
        grid=4, block=16, arguments=[np.zeros(4 * pitch, np.float16), x, w, n, pitch], expect={"y": expected},
        close={"y": 1e-3},
    )  # fmt: skip


@device
def silu(v: f32) -> f32:
    return v / (math.exp2(v * f32(-1.44269504)) + f32(1.0))


@kernel
def machine_silu(y: KernelBuffer[f16], x: KernelBuffer[f16], n: u32):
    i = thread.global_id_x()
    if i < n:
        y[i] = silu(f32(x[i]))


def on_machine_silu(data):
    n = data.size(256)
    x = data.floats(f16, n)
    wide = x.astype(np.float64)
    made = dict(grid=4, block=64, arguments=[np.zeros(n, np.float16), x, n])
    if data.adversarial:  # infinities meet where float64 does not
        return made
    return made | dict(expect={"y": wide / (1 + np.exp(-wide))}, close={"y": 1e-3})


@Wave(width=16)
@kernel
def machine_gemm(
    y: KernelBuffer[f16], x: KernelBuffer[f16], w: KernelBuffer[f16], depth: u32, cols: u32, activate: u32
):
    """A wave per tile; on the machine a product of the clusters, the activation on its way out."""
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


def on_machine_gemm(data):
    m, n, depth = 32, 16, 64
    activate = 0 if data.kind == "random" else 1
    x, w = data.finite(f16, m * depth), data.finite(f16, n * depth)
    total = x.astype(np.float64).reshape(m, depth) @ w.astype(np.float64).reshape(n, depth).T
    expected = total / (1 + np.exp(-total)) if activate else total
    return dict(
        grid=(1, 2), block=16, arguments=[np.zeros(m * n, np.float16), x, w, depth, n, activate],
        expect={"y": expected}, close={"y": 2e-3},
    )  # fmt: skip
