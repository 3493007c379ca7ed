"""The cpu back end against the interpreter: bytes of integers, undefined behaviour that it finds, what it refuses."""

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from kohakutpu import xpu
from kohakutpu.backends.cpu import CPU, compiler, execute
from kohakutpu.backends.cpu.backend import ordered
from kohakutpu.reference.xpu import Launch, refusals, run
from kohakutpu.xpu import (
    Backend, KernelBuffer, Undefined, Unlowered, Wave, XpuError, XpuLaunchError, f32, i32, kernel, thread, u32,
)  # fmt: skip
from kohakutpu.xpu.launch import KernelStream, Request, Runtime

BYTES = "out: KernelBuffer[i32], a: KernelBuffer[i32], u: KernelBuffer[u8], b: KernelBuffer[i8], n: u32"


def corner(value) -> tuple:
    return (*((value,) if isinstance(value, int) else value), 1, 1)[:3]


@pytest.fixture
def cpu():
    """`cpu(kernel, *arguments, grid=, block=, width=, ...)`: on the cpu back end."""

    def call(kernel, *arguments, grid=1, block=1, width=8, shared=0, checked=True):
        assert CPU.refusal(kernel) is None, CPU.refusal(kernel)
        execute(CPU, Request(kernel, corner(grid), corner(block), shared, arguments), width, checked)

    return call


@pytest.fixture
def agree(cpu):
    """`agree(kernel, *arguments, ...)`: interpreter and both builds of the cpu give the same bytes."""

    def call(kernel, *arguments, grid=1, block=1, width=8, shared=0):
        before = [np.copy(a) for a in arguments if isinstance(a, np.ndarray)]
        arrays = [a for a in arguments if isinstance(a, np.ndarray)]
        run(kernel, arguments, Launch(grid, block, width, shared_bytes=shared))
        expected = [np.copy(a) for a in arrays]
        for checked in (True, False):
            for array, old in zip(arrays, before, strict=True):
                array[...] = old
            cpu(kernel, *arguments, grid=grid, block=block, width=width, shared=shared, checked=checked)
            for array, good in zip(arrays, expected, strict=True):
                np.testing.assert_array_equal(array, good)

    return call


def integers(count=64, kind=np.int32, seed=5):
    limits = np.iinfo(kind)
    return np.random.default_rng(seed).integers(limits.min, limits.max, count, kind, endpoint=True)


def test_a_launch_on_worker_threads(monkeypatch, saxpy):
    runtime = Runtime()
    runtime.register(CPU)
    stream = KernelStream(runtime)
    monkeypatch.setenv("XPU_CPU_WORKERS", "3")
    values = np.random.default_rng(1).standard_normal((2, 30000)).astype(np.float32)
    y, x = (KernelBuffer.of(f32, v) for v in values)
    saxpy.launch(stream, grid=120, block=256)(y, x, 2.5, 29990)
    assert CPU.last_workers == 3
    expected = values[0].copy()
    expected[:29990] += np.float32(2.5) * values[1][:29990]
    assert y.download().tobytes() == expected.tobytes()
    saxpy.launch(stream, grid=1, block=8)(y, x, 0.0, 8)
    assert CPU.last_workers == 1
    report = CPU.geometry()
    assert report.multiprocessors >= 1 and report.wave_size in (4, 8, 16) and report.integrated
    assert report.registers_per_multiprocessor == report.shared_bytes_per_block == 0  # not reported, so no limit


AGREE = [
    "out[t] = a[t] >> (a[t + 1] & 31)",
    "out[t] = div(a[t], a[t + 1] | 1) + rem(a[t], 7)",
    "x = 0\nwhile x < i32(t) and a[x] != 0:\n    x += 1\n    if a[x] % u32(3) == 0:\n        continue\n"
    "    if x > 9:\n        break\nout[t] = x",
    "total = 0\nfor i in label(\"rows\", range(5)):\n    for j in range(t):\n        if a[j] > a[i]:\n"
    "            continue_to(\"rows\")\n        total += a[j]\n        if total < -9:\n            break_to(\"rows\")\n"
    "out[t] = total",
    "v = u.vload[16](t)\nw = b.vload[16](t * 2)\nout[t] = v.dot_sum(w, 5)",
    "v = b.vload[4](t)\nout[t] = v.dot(b.vload[4](t + 1)) + i32(Vector[i16, 4](v)[i32(t) & 3])",
    "v = Vector[i32, 4](1, 2, 3, 4)\nv[i32(t & 3)] = a[t]\nout[t] = v[0] + v[1] * v[2] - v[3]",
    "s = Shared[i32](24)\ns[t] = a[t]\nbarrier.workgroup()\nfor i in range(3):\n    x = s[(t + 1) % 24]\n"
    "    barrier.workgroup()\n    s[t] = x + i\n    barrier.workgroup()\nout[t] = s[23 - t]",
    "s = Shared[i32](24)\nif n > 5:\n    s[t] = a[t]\n    barrier.workgroup()\n    out[t] = s[(t + 7) % 24]\n"
    "else:\n    out[t] = 1",
    "x = a[t] & 255\nout[t] = workgroup.reduce(Op.ADD, x) * 3 + workgroup.scan(Op.MAX, x)",
    "x = a[t] & 255\nif workgroup.reduce(Op.MAX, x) > 100 and workgroup.reduce(Op.MIN, x) < 200:\n    out[t] = x",
    "k = 0\nwhile workgroup.reduce(Op.ADD, k) < 100:\n    k += i32(t)\nout[t] = k",
    "if t % 3 == 1:\n    return\nout[t] = i32(wave.reduce_sum(t)) + i32(wave.prefix_sum(u32(a[t]))) "
    "+ i32(wave.ballot_sync(a[t] > 0))",
    "out[t] = i32(wave.shuffle_up_sync(u32(a[t]), u32(u[0] & 3)) ^ wave.rotate(u32(a[t]), u32(u[1])))",
    "out[t] = i32(wave.shuffle_up_sync(t, 0 - t) + wave.shuffle_down_sync(t, u32(0) - t) * 100 "
    "+ wave.shuffle_xor_sync(t, 0 - t))",
    "i = thread.global_id_x()\nw = t // 16\nout[t] = a[i % 8] + a[i & 15] * i32(w) + a[i64(t) + 3] + a[lshr(t, 3)] "
    "+ a[i32(t) & 7] + rem(i32(t), 16) * div(i32(i), 8) + a[u8(t)] + i32(i8(t - 20) >> 3)",
    "for i, x in a.range(n):\n    out[i] = x + 1",
    "total = 0\nfor k in group.stripe(50):\n    total += a[k]\nout[t] = total",
    "for i in range(23, -1, -2):\n    out[t] += a[i] if i < i32(t) else 1",
    "old = Shared[i32](1)\nif t == 0:\n    old[0] = 0\nbarrier.workgroup()\nold.atomic_add(0, a[t])\n"
    "barrier.workgroup()\nold.atomic_xor(0, 77)\nbarrier.workgroup()\nout[t] = old[0]",
    "x = a[t]\nout[t] = i32(bits.permute(u32(x), u32(n), u32(x) >> 3) + bits.reverse(u32(x)) + bits.count(u32(x)))",
]  # fmt: skip


@pytest.mark.parametrize("body", AGREE, ids=range(len(AGREE)))
def test_integers_agree_on_every_bit(agree, body_of, body):
    declared = body_of("t = thread.x()\n" + body, BYTES)
    out, data = np.zeros(64, np.int32), integers()
    agree(declared, out, data, integers(64, np.uint8), integers(64, np.int8), 20, block=24)


BARRIERS = """
@device
def gather(s: Shared[i32], t: u32, rounds: i32) -> i32:
    total = 0
    for r in range(rounds):
        if s[t] > 40:
            barrier.workgroup()
            s[t] = s[t] - 3
        else:
            s[t] = s[t] + 1
            barrier.workgroup()
        total += s[t]
    return total
@kernel
def k(out: KernelBuffer[i32], rounds: i32):
    s = Shared[i32](16)
    t = thread.x()
    s[t] = 7
    out[t] = gather(s, t, rounds) + 1
"""


def test_a_barrier_in_a_helper_in_a_branch_that_all_take(agree, cpu, kernel_of):
    declared = kernel_of(BARRIERS)
    agree(declared, np.zeros(16, np.int32), 3, block=16)
    agree(declared, np.zeros(12, np.int32), 5, block=12, width=4)


REDUCED = "workgroup.reduce(Op.ADD, y & 7)"
AFTER_A_RETURN = [
    f"if n < 3 and {REDUCED} > 20:\n    return",
    f"if n < 3 and {REDUCED} > 20:\n    y += 2",
    f"if {REDUCED} > 99 or n == 1:\n    return",
    f"if n < 1 or {REDUCED} > 20:\n    y += 2",
    f"if n == 0 or {REDUCED} > 99:\n    return",
    "z = x * 3 + n\nw = a.vload[4](n)\nbarrier.workgroup()\ny += z + w[0] + w[3]",
]


@pytest.mark.parametrize("width", [1, 4, 16])
@pytest.mark.parametrize("body", AFTER_A_RETURN, ids=range(len(AFTER_A_RETURN)))
def test_what_is_declared_after_a_return_outlives_a_rendezvous(agree, body_of, body, width):
    declared = body_of(
        "t = thread.x()\nx = a[thread.global_id_x()]\ny = i32(t)\nif n > 1:\n    return\n"
        + body + "\nout[thread.global_id_x()] = x * 31 + y",
        "out: KernelBuffer[i32], a: KernelBuffer[i32], n: i32",
    )  # fmt: skip
    for n in (0, 1, 3):
        agree(declared, np.zeros(36, np.int32), np.arange(36, dtype=np.int32), n, grid=3, block=12, width=width)


UNDEFINED = [
    ("out[0] = a[i32(t) + 60]", "a read of a[64], which has 64 elements", 4),
    ("out[i32(t) - 3] = 1", "a write of out[-3], which has 64 elements", 0),
    ("out[t] = 5 << a[t]", "a shift of i32 by 32: 5 << 32", 6),
    ("out[t] = div(9, a[t] - 29)", "division by zero: 9 / 0", 3),
    ("x = -2147483647 - 1\nout[t] = div(x, -1 if t == 5 else 1)", "i32 overflow: -2147483648 / -1", 5),
    ("out[t] = i32(u8(f32(n) * f32(50 * a[t] - 1100)))", "f32 300.0 converts to u8, which cannot hold it", 2),
    ("s = Shared[i32](8)\nif t != 2:\n    s[t] = 1\nbarrier.workgroup()\nout[t] = s[7 - t]",
     "a read of s[2], which no work-item wrote", 5),
    ("if t < 3:\n    barrier.workgroup()", "barrier.workgroup, which a work-item does not reach", 3),
    ("if t == 4:\n    return\nx = workgroup.reduce(Op.ADD, 1)\nout[t] = x", "refused", 0),
    ("if t < 3:\n    out[t] = i32(wave.reduce_sum(t))\nelse:\n    out[t] = i32(wave.reduce_max(t))",
     "lanes of one wave at different wave operations: wave.reduce_max, which others reached before", 3),
    ("out[t] = i32(wave.shuffle_sync(t, t + 5))", "shuffle from lane 8 of a wave of 8", 3),
    ("if t == 6:\n    return\nout[t] = i32(wave.shuffle_xor_sync(t, 2))", "from lane 6, which is inactive", 4),
    ("out[t] = i32(wave.reduce_sum_f32_segmented(f32(t), 3))", "a segment of 3 lanes, no power of two", 0),
    ("v = a.vload[4](0)\nout[t] = v[i32(t)]", "lane 4 of a Vector[i32, 4]", 4),
    ("if t == 7:\n    out[t] = missing(t)", "missing ends without the i32 that it promises", 7),
    ("d = Shared[i32](n)\nd[t] = 1", "60 elements of Shared d, where the launch gives 16", 0),
]  # fmt: skip


@pytest.mark.parametrize("body, text, item", UNDEFINED, ids=[text for _, text, _ in UNDEFINED])
def test_undefined_behaviour_ends_a_checked_launch(cpu, kernel_of, body, text, item):
    lines = "\n".join("    " + line for line in ("t = thread.x()\n" + body).splitlines())
    declared = kernel_of(f"""
@device
def missing(t: u32) -> i32:
    if t < 7:
        return 1
@kernel
def k({BYTES}):
{lines}
""")
    arguments = [np.zeros(64, np.int32), np.arange(26, 90, dtype=np.int32), integers(64, np.uint8),
                 integers(64, np.int8), 60]  # fmt: skip
    arguments[4] = 60 if "Shared[i32](n)" in body else 1
    if text == "refused":
        assert refusals(declared)
        return
    with pytest.raises(Undefined) as walked:
        run(declared, [*map(np.copy, arguments[:4]), arguments[4]], Launch(1, 8, 8, shared_bytes=64), walk=True)
    with pytest.raises(Undefined) as caught:
        cpu(declared, *arguments, block=8, shared=64)
    assert text in caught.value.operation and caught.value.where == f"workgroup (0, 0, 0), work-item ({item}, 0, 0)"
    assert caught.value.at.line == walked.value.at.line


def test_the_lowest_workgroup_that_fails_is_reported(cpu, body_of):
    declared = body_of(
        "i = thread.global_id_x()\nif i % 1000 == 999:\n    out[i + 90000] = 1", "out: KernelBuffer[i32]"
    )
    for _ in range(5):
        with pytest.raises(Undefined, match=r"workgroup \(85, 0, 0\), work-item \(119, 0, 0\)"):
            cpu(declared, np.zeros(100000, np.int32), grid=700, block=128)


def test_a_broken_align_statement_reads_rounded_down_and_is_reported(cpu, body_of):
    declared = body_of("v = a.vload[4](n, align=16)\nout.vstore(0, v)",
                       "out: KernelBuffer[i32], a: KernelBuffer[i32], n: u32")  # fmt: skip
    out, a = np.zeros(4, np.int32), np.arange(32, dtype=np.int32)
    cpu(declared, out, a, 8)
    assert out.tolist() == [8, 9, 10, 11]
    with pytest.raises(XpuLaunchError, match="a broken align statement: 16 bytes are promised of a, and the index is "
                       "10 .line 3, near `a.vload.4..n, align=16.`") as caught:  # fmt: skip
        cpu(declared, out, a, 10)
    assert caught.value.code == 8 and out.tolist() == [8, 9, 10, 11]
    cpu(declared, out, a, 10, checked=False)  # an unchecked build reads what is there
    assert out.tolist() == [10, 11, 12, 13]
    proven = body_of(
        "out.vstore(0, a.vload[4](n * 4, align=16))", "out: KernelBuffer[i32], a: KernelBuffer[i32], n: u32"
    )
    cpu(proven, out, a, 3)
    assert out.tolist() == [12, 13, 14, 15]


FAULTS = {
    "dot-activation-sign": ("out[t] = i32(u.vload[4](t).dot_sum(b.vload[4](t), 0))", 24),
    "vector-lane-sign": ("v = u.vload[4](t)\nout[t] = i32(v[0]) + i32(v.widen_lo()[1])", 24),
    "call-result-sign": ("out[t] = i32(i64(high(t)) >> 8)", 24),
    "wave-sum-order": ("out[t] = f32_to_bits(wave.reduce_sum_f32(f32(a[t]) / f32(7.0)))", 64),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_defect_is_caught(cpu, agree, kernel_of, monkeypatch, fault):
    body, block = FAULTS[fault]
    lines = "\n".join("    " + line for line in body.splitlines())
    text = f"@device\ndef high(t: u32) -> u32:\n    return t + u32(0xF0000000)\n@kernel\ndef k({BYTES}):\n"
    declared = kernel_of(text + "    t = thread.x()\n" + lines)
    arguments = [np.zeros(64, np.int32), integers(), integers(64, np.uint8), integers(64, np.int8), 1]
    agree(declared, *arguments, block=block)
    right = arguments[0].copy()
    monkeypatch.setenv("XPU_FAULT", fault)
    cpu(declared, *arguments, block=block)
    assert arguments[0].tobytes() != right.tobytes()
    monkeypatch.setenv("XPU_FAULT", "no-such")
    with pytest.raises(XpuError, match="XPU_FAULT=no-such: the faults are dot-activation-sign, "):
        cpu(declared, *arguments, block=block)


def test_what_has_no_code_is_refused_by_name(kernel_of):
    clock = kernel_of("@kernel\ndef k(out: KernelBuffer[u64]):\n    out[0] = thread.clock()")
    assert CPU.refusal(clock).startswith("XPU-N01: thread.clock") and "line" in CPU.refusal(clock)

    @Backend("ktpu")
    @kernel
    def elsewhere(out: KernelBuffer[i32]):
        out[0] = 1

    @Unlowered(backend="cpu", tracked="plan 7", hold=True)
    @kernel
    def held(out: KernelBuffer[i32]):
        out[0] = 1

    assert "leaves it out" in CPU.refusal(elsewhere) and "[tracked: plan 7]" in CPU.refusal(held)
    out = KernelBuffer(i32, 1)
    runtime = Runtime()
    runtime.register(CPU)
    with pytest.raises(XpuLaunchError, match="elsewhere on cpu: no device code registered"):
        elsewhere.launch(KernelStream(runtime), grid=1)(out)


def test_a_helper_has_a_body_for_the_back_end(cpu, kernel_of):
    text = """
@device
def own(a: i32) -> i32:
    {body}
@own.arm("cpu")
def own(a: i32) -> i32:
    return a * 3
@kernel
def k(out: KernelBuffer[i32]):
    out[thread.x()] = own(i32(thread.x()))
"""
    for body in ("...", "return a * 2"):
        out = np.zeros(8, np.int32)
        cpu(kernel_of(text.format(body=body)), out, block=8)
        assert out.tolist() == list(range(0, 24, 3))
    run(kernel_of(text.format(body="return a * 2")), [out], Launch(1, 8))
    assert out.tolist() == list(range(0, 16, 2))  # the interpreter reads the portable one


def test_a_barrier_in_a_function_value_is_refused(kernel_of):
    declared = kernel_of("""
@device
def meet(s: Shared[i32], t: u32):
    barrier.workgroup()
@device
def pass_(s: Shared[i32], t: u32):
    s[t] = 1
@kernel
def k(out: KernelBuffer[i32], op: Function[meet, pass_]):
    s = Shared[i32](8)
    op(s, thread.x())
""")
    assert CPU.refusal(declared).startswith("XPU-N02: a barrier inside a function value's call cannot be taken apart")


@pytest.mark.parametrize("name, value", [("XPU_CPU_WORKERS", "0"), ("XPU_CPU_WAVE_WIDTH", "3"), ("XPU_UB_TRAPS", "1")])
def test_a_wrong_setting_is_refused(monkeypatch, name, value, saxpy):
    monkeypatch.setenv(name, value)
    y = np.zeros(4, np.float32)
    with pytest.raises(XpuError, match=f"{name}='?{value}'?: "):
        CPU.run(Request(saxpy, (1, 1, 1), (4, 1, 1), 0, (y, y, 1.0, 4)))


def test_the_width_is_the_declared_one_else_the_hosts(monkeypatch, saxpy):
    @Wave(width=32)
    @kernel
    def wide(out: KernelBuffer[u32]):
        out[thread.x()] = xpu.wave.lane_id()

    assert CPU.width_of(wide) == 32 and CPU.width_of(saxpy) == compiler.host_width()
    monkeypatch.setenv("XPU_CPU_WAVE_WIDTH", "4")
    assert CPU.width_of(saxpy) == 4


def test_atomics_keep_one_thread_only_where_order_shows(body_of):
    parameters = "out: KernelBuffer[u32], a: KernelBuffer[u32]"
    assert not ordered(body_of("out.atomic_add(0, a[0])\nout.atomic_sub(0, 1)", parameters).program)
    for body in (
        "a[1] = out.atomic_add(0, 1)",
        "out.atomic_exchange(0, 1)",
        "out.atomic_add(0, 1)\nout.atomic_xor(0, 1)",
    ):
        assert ordered(body_of(body, parameters).program)


TILES = """
acc: CooperativeMatrix[f32, 16, 16, Use.ACCUMULATOR]
a: CooperativeMatrix[f16, 16, 16, Use.A]
b: CooperativeMatrix[f16, 16, 16, Use.B]
wave_number = thread.x() // 16
acc.splat(0)
for k in range(n // 16):
    a.load(x, wave_number * 16 * n + k * 16, 0, n)
    b.load(w, k * 16, 1, n)
    acc.mma(a, b)
acc.store(out, wave_number * 256, 0, 16)
"""


def test_a_wave_multiplies_tiles(agree, body_of):
    declared = body_of(TILES, "out: KernelBuffer[f32], x: KernelBuffer[f16], w: KernelBuffer[f16], n: u32")
    x, w = np.random.default_rng(3).standard_normal((2, 32 * 48)).astype(np.float16)
    agree(declared, np.zeros(512, np.float32), x, w, 48, block=32, width=16)


def test_tiles_and_locals_outlive_barriers(agree, body_of):
    body = """
acc: CooperativeMatrix[f32, 8, 8, Use.ACCUMULATOR]
b: CooperativeMatrix[f32, 8, 8, Use.B]
acc.splat(1)
b.load(w, 0, 0, 8)
s = Shared[f32](128)
half = thread.x() // 8
start = 64 * half
k = 0
while k < 3 and workgroup.reduce(Op.MAX, k) < 9:
    a: CooperativeMatrix[f32, 8, 8, Use.A]
    for j in range(8):
        s[start + j * 8 + thread.x() % 8] = x[(k * 8 + j) * 16 + thread.x()]
    barrier.workgroup()
    a.load(s, 64 - start, 1, 8)
    acc.mma(a, b)
    barrier.workgroup()
    k += 1
acc.store(out, start, 0, 8)
"""
    declared = body_of(body, "out: KernelBuffer[f32], x: KernelBuffer[f32], w: KernelBuffer[f32]")
    x, w = np.random.default_rng(8).integers(-9, 9, (2, 384)).astype(np.float32)
    agree(declared, np.zeros(128, np.float32), x, w, block=16, width=8)


def test_lanes_that_go_apart_over_a_tile_are_refused_when_they_do(cpu, body_of):
    for body, text in (
        ("a.load(x, 4 * i32(thread.x()), 0, 2)", "the offset differs between the lanes of a wave, whose tile is one"),
        ("if thread.x() == n:\n    a.splat(1)", "tile.splat, which only some lanes of a wave reach"),
    ):
        declared = body_of("a: CooperativeMatrix[i8, 2, 2, Use.A]\n" + body, "x: KernelBuffer[i8], n: u32")
        with pytest.raises(XpuLaunchError, match=text) as caught:
            cpu(declared, np.zeros(16, np.int8), 1, block=4, width=4, checked=False)
        assert caught.value.code == 0


def test_wrong_arguments_are_refused(cpu, saxpy):
    y = np.zeros(4, np.float32)
    for arguments, text in (
        ((y, y, 1.0), "3 arguments, where 4 are taken"),
        ((y, y.astype(np.float64), 1.0, 4), r"argument x: a buffer of f32 \(float32\) expected, not float64"),
        ((y, y, 1.0, -1), "argument n: a u32 expected, not -1"),
        ((y, y, True, 4), "argument a: a f32 expected, not True"),
    ):
        with pytest.raises(xpu.Refused, match=text):
            cpu(saxpy, *arguments)


def generated_agrees(generated, kernel_of, near, random, width: int) -> str:
    """A generated kernel on interpreter and cpu: the same memory, the same refusal, or undefined on both.

    Functions with a bound are exchanged for exact ones, so that every bit must be the same.
    """
    text = generated.Generator(random).kernel().replace("math.exp(", "math.ceil(").replace("math.sin(", "math.trunc(")
    declared = kernel_of(text)
    arguments = generated.arguments(random)
    if refusals(declared):
        assert CPU.refusal(declared)
        return "refused"
    copies = [np.copy(a) if isinstance(a, np.ndarray) else a for a in arguments]
    grid = generated.COUNT // generated.BLOCK
    error = None
    try:
        run(declared, arguments, Launch(grid, generated.BLOCK, width))
    except Undefined as raised:
        error = raised
    request = Request(declared, (grid, 1, 1), (generated.BLOCK, 1, 1), 0, tuple(copies))
    try:
        execute(CPU, request, width, True)
    except Undefined as raised:
        assert error is not None, f"only cpu found this undefined: {raised}"
        return "undefined"
    assert error is None, f"cpu did not find: {error}"
    for found, expected in zip(copies[:2], arguments[:2], strict=True):
        near(found, expected, 0, 0)
    return "agreed"


@settings(max_examples=12, deadline=None)
@given(st.randoms(use_true_random=False))
def test_some_generated_kernels_agree(generated, kernel_of, near, random):
    event(generated_agrees(generated, kernel_of, near, random, generated.WIDTH))


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from([1, 2, 4, 8, 16, 64]))
def test_generated_kernels_agree(generated, kernel_of, near, random, width):
    event(generated_agrees(generated, kernel_of, near, random, width))


class Meetings:
    """Random kernels whose workgroups meet inside loops, branches and helpers that all work-items take alike.

    No work-item touches what another wrote or will write with no barrier between: the answer is not one of order.
    """

    HELPER = """
@device
def turned(s: Shared[i32], t: u32, v: i32, n: i32) -> i32:
    s[t] = v
    barrier.workgroup()
    if n > 2:
        return s[(t + 1) % 12] + v
    v = s[(t + 5) % 12]
    barrier.workgroup()
    s[t] = v + n
    barrier.workgroup()
    return s[(t + 7) % 12]
"""

    def __init__(self, random):
        self.random, self.fresh = random, 0

    def block(self, depth: int, loops: int) -> list[str]:
        lines = [line for _ in range(self.random.randrange(1, 4)) for line in self.statement(depth, loops)]
        return ["    " + line for line in lines]

    def alike(self) -> str:
        """A condition that all work-items share."""
        return self.random.choice(["n > 1", "n == 2", "rem(workgroup.reduce(Op.MAX, x), 3) == 0",
                                   "n < 3 and workgroup.reduce(Op.ADD, y & 7) > 20",
                                   "workgroup.reduce(Op.MIN, x) < 0 or n == 1"])  # fmt: skip

    def statement(self, depth: int, loops: int) -> list[str]:
        self.fresh += 1
        number, kind = self.fresh, self.random.randrange(12 if depth else 6)
        match kind:
            case 0:
                return ["s[t] = (x * 3 + i32(t)) & 1023", "barrier.workgroup()", f"x = s[(t + {number}) % 12] - y",
                        "barrier.workgroup()"]  # fmt: skip
            case 1:
                return ["y += workgroup.scan(Op.ADD, x & 7)"]
            case 2:
                return ["barrier.workgroup()", "x = turned(s, t, x, n) + y", "barrier.workgroup()"]
            case 3:
                return ["if x % u32(3) == 1:", "    x += 5", "    for j in range(x & 3):", "        y += j"]
            case 4:
                return ["x = x if workgroup.reduce(Op.MAX, y) > 3 else y + 1"]
            case 5:
                return [f"if {self.alike()}:", f"    {self.random.choice(['return', 'y += 2'])}"]
            case 6 | 7:
                lines = [f"if {self.alike()}:", *self.block(depth - 1, loops)]
                return lines + (["else:", *self.block(depth - 1, loops)] if number % 2 else [])
            case 8 | 9:
                name, word = f"i{number}", self.random.choice(["break", "continue", "pass"])
                leave = [f"    if {name} == {self.random.randrange(3)}:", f"        {word}"]
                body = self.block(depth - 1, loops + 1)
                place = self.random.randrange(len(body) + 1) if all(not b.startswith("     ") for b in body) else 0
                if body[place : place + 1] == ["    barrier.workgroup()"]:  # who leaves before it has met as well
                    leave.insert(1, "        barrier.workgroup()")
                return [f"for {name} in range(n):", *body[:place], *leave, *body[place:]]
            case _:
                return [f"c{number} = 0", f"while c{number} < 3 and ({self.alike()}):", f"    c{number} += 1",
                        *self.block(depth - 1, loops + 1)]  # fmt: skip

    def kernel(self) -> str:
        body = ["t = thread.x()", "s = Shared[i32](12)", "s[t] = 0", "barrier.workgroup()"]
        body += ["x = a[thread.global_id_x()]", "y = i32(t)"]
        for _ in range(self.random.randrange(2, 5)):
            body += self.statement(2, 0)
        body += ["out[thread.global_id_x()] = x * 31 + y"]
        head = "@kernel\ndef k(out: KernelBuffer[i32], a: KernelBuffer[i32], n: i32):\n"
        return self.HELPER + head + "\n".join("    " + line for line in body) + "\n"


def meetings_agree(kernel_of, random, width: int) -> str:
    """The same bytes of interpreter and cpu, of a kernel whose groups the fast path, which sees any order, ran
    alone."""
    text = Meetings(random).kernel()
    declared = kernel_of(text)
    if refusals(declared):
        return "refused"
    assert CPU.refusal(declared) is None, CPU.refusal(declared)
    a, n = integers(36, seed=random.randrange(99)), random.randrange(4)
    expected, alone = np.zeros(36, np.int32), np.zeros(36, np.int32)
    run(declared, [expected, a, n], Launch(3, 12, width))
    for first in range(0, 36, 12):
        path = run(declared, [alone[first : first + 12], a[first : first + 12], n], Launch(1, 12, width))
        assert path == "fast", f"a generated kernel whose answer is the order of its work-items, n={n}:{text}"
    np.testing.assert_array_equal(alone, expected)
    for checked in (True, False):
        found = np.zeros(36, np.int32)
        execute(CPU, Request(declared, (3, 1, 1), (12, 1, 1), 0, (found, a, n)), width, checked)
        np.testing.assert_array_equal(found, expected)
    return "agreed"


@pytest.mark.parametrize("seed", [5893, 7610, 17036, 7439, 20040])
def test_a_loop_that_is_left_before_a_barrier_agrees(kernel_of, seed):
    """Seeds with a break or a continue between a read of Shared memory and the barrier before the next write."""
    assert meetings_agree(kernel_of, Random(seed), 1) == "agreed"


@settings(max_examples=5, deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from([4, 16]))
def test_some_kernels_that_meet_agree(kernel_of, random, width):
    event(meetings_agree(kernel_of, random, width))


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from([1, 4, 8, 16]))
def test_kernels_that_meet_agree(kernel_of, random, width):
    event(meetings_agree(kernel_of, random, width))


ORDER_OF_ITEMS = (
    "makes_way",
    "several_readers",
    "earlier_lanes",
    "memory_is_restored",
    "overlapping",
    "work_item_order",
    "own_arguments",
)


@pytest.mark.slow
def test_every_kernel_of_the_interpreters_tests_agrees():
    """All of them but those whose answer is the order of work-items between barriers, which a wave does not keep."""
    apart = " or ".join((*ORDER_OF_ITEMS, "scalars_come_as_bits", "whatever_it_promises", "generated", "cpu", "fifty"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(Path(__file__).parent), "-k",
         f"not ({apart})"],
        capture_output=True, text=True, env=os.environ | {"XPU_TEST_CPU": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
