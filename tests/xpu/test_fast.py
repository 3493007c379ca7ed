"""The fast path gives the walker's bytes or makes way for it (`launch` of conftest compares the two everywhere)."""

import time

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from kohakutpu import xpu
from kohakutpu.reference.xpu import Launch, refusals, run
from kohakutpu.xpu import KernelBuffer, i32


@pytest.fixture(scope="module")
def gemm(bench):
    """The tiled GEMM whose speed benchmarks/xpu_reference.py measures."""
    return bench.tiled_gemm


def test_the_known_kernels_take_the_fast_path(launch, saxpy, gemm):
    rng = np.random.default_rng(3)
    x, y = rng.standard_normal((2, 3000)).astype(np.float32)
    assert launch(saxpy, y, x, 2.5, 2900, grid=12, block=256) == "fast"
    a, b = rng.standard_normal((2, 1024)).astype(np.float32)
    c = np.zeros(1024, np.float32)
    assert launch(gemm, c, a, b, 32, grid=(2, 2), block=(16, 16)) == "fast"
    expected = np.zeros((32, 32), np.float32)
    for k in range(32):
        expected += a.reshape(32, 32)[:, k, None] * b.reshape(32, 32)[None, k, :]
    assert c.tobytes() == expected.tobytes()


def seconds(*arguments, **more) -> float:
    start = time.process_time()
    run(*arguments, **more)
    return time.process_time() - start


def test_the_fast_path_is_fifty_times_the_walker(saxpy, gemm):
    count, part = 1 << 20, 1 << 13
    x = np.ones(count, np.float32)
    saxpy.program, gemm.program  # noqa: B018 - reading the source is not part of a run
    fast = min(seconds(saxpy, [x.copy(), x, 2.5, count], Launch(count // 256, 256)) for _ in range(2))
    walked = seconds(saxpy, [x[:part].copy(), x[:part], 2.5, part], Launch(part // 256, 256), walk=True)
    assert walked * (count // part) > 50 * fast
    tiles = [np.ones(96 * 96, np.float32) for _ in range(3)]
    fast = min(seconds(gemm, [*tiles, 96], Launch((6, 6), (16, 16))) for _ in range(2))
    walked = seconds(gemm, [*tiles, 96], Launch(1, (16, 16)), walk=True)
    assert walked * 36 > 50 * fast


MAKES_WAY = [
    ("out[0] = i32(thread.x())", "a write of what another work-item touched"),
    ("out[thread.x()] = out[thread.x() + 1]", "a write of what another work-item touched"),
    ("out[thread.x() + 1] = out[thread.x()]", "a write of what another work-item touched"),
    ("if thread.x() == 0:\n    out[9] = 5\nr = out[9]", "a read of what another work-item wrote"),
    ("out[0] = q.atomic_add(0, 1)", "memory.atomic_add"),
    ("t: CooperativeMatrix[i32, 4, 4, 2]\nt.splat(7)\nt.store(out, 0, 0, 4)", "tile.splat"),
    ("if thread.x() > 0:\n    out[thread.x()] = i32(wave.reduce_sum(1))", "lanes of a wave apart"),
    ("x: f64 = f64(q[0])\nout[thread.x()] = i32(math.fma(x, x, x))", "fma of float64"),
]


@pytest.mark.parametrize("body, why", MAKES_WAY)
def test_it_makes_way_and_says_why(body_of, launch, capsys, monkeypatch, body, why):
    monkeypatch.setenv("XPU_REF_COMPILE_LOG", "1")
    declared = body_of(body, "out: KernelBuffer[i32], q: KernelBuffer[i32]")
    path = launch(declared, np.arange(64, dtype=np.int32), np.ones(4, np.int32), block=8, width=4)
    assert path == "walk" and capsys.readouterr().err == f"k: walked: {why}\n"


def test_order_between_workgroups_is_the_walkers(launch, body_of):
    body = """
s = Shared[i32](4)
g = i32(workgroup.x())
s[thread.x()] = out[4 * g + i32(thread.x())]
barrier.workgroup()
out[4 * g + 4 + i32(thread.x())] = s[3 - i32(thread.x())] + 1
"""
    out = np.arange(24, dtype=np.int32)
    assert launch(body_of(body), out, grid=5, block=4) == "walk"
    assert out.reshape(6, 4)[:, 0].tolist() == [0, 4, 2, 6, 4, 8]


def test_a_helper_may_store_and_lanes_may_have_returned(launch, kernel_of):
    kernel = kernel_of("""
@device
def put(memory: KernelBuffer[u32], at: u32, value: u32):
    memory[at] = value
@kernel
def k(out: KernelBuffer[u32]):
    if thread.x() % 4 == 3:
        return
    put(out, thread.x(), wave.reduce_sum(thread.x()))
""")
    out = np.zeros(8, np.uint32)
    assert launch(kernel, out, block=8, width=4) == "fast"
    assert out.tolist() == [3, 3, 3, 0, 15, 15, 15, 0]


def test_the_last_of_several_readers_may_write(launch, body_of):
    out = np.arange(17, dtype=np.int32)
    kernel = body_of("r = out[0]\nif thread.x() == 7:\n    out[0] = 5\nout[8 + thread.x()] = r")
    assert launch(kernel, out, block=8) == "fast"
    assert out[0] == 5 and not out[8:16].any()
    kernel = body_of("r = out[0]\nif thread.x() == 6:\n    out[0] = 9\nout[8 + thread.x()] = r")
    assert launch(kernel, out, block=8) == "walk"
    assert out[0] == 9 and out[8:16].tolist() == [5] * 7 + [9]


def test_an_earlier_lanes_write_after_a_later_lanes_read_is_the_walkers(launch, body_of):
    out = np.zeros(16, np.int32)
    body = """
t = i32(thread.x())
r = 0
if t == 7:
    r = out[0]
if t == 3:
    r = out[0]
if t == 3:
    out[0] = 50
out[8 + t] = r
"""
    assert launch(body_of(body), out, block=8) == "walk"
    assert out[15] == 50 and out[11] == 0


def test_overlapping_buffers_are_walked(launch, body_of):
    memory = KernelBuffer.of(i32, np.arange(16, dtype=np.int32))
    kernel = body_of("a[thread.x()] = b[thread.x()]", "a: KernelBuffer[i32], b: KernelBuffer[i32]")
    assert launch(kernel, memory.slice(0, 8), memory.slice(8, 8), block=8) == "fast"
    assert launch(kernel, memory.slice(0, 8), memory.slice(7, 8), block=8) == "walk"


def test_the_environment_keeps_it_out(launch, saxpy, monkeypatch):
    monkeypatch.setenv("XPU_REF_WALK", "1")
    x = np.ones(4, np.float32)
    assert launch(saxpy, x, x.copy(), 2.0, 4) == "walk"


def test_memory_is_restored_before_the_walker_runs(launch, body_of):
    kernel = body_of("out[t0] += 1\nout[t0] = out[0]".replace("t0", "thread.x()"))
    out = np.arange(8, dtype=np.int32)
    assert launch(kernel, out, block=8) == "walk"
    assert out.tolist() == [1] * 8


@settings(max_examples=200)
@given(st.randoms(use_true_random=False))
def test_generated_kernels_agree_or_are_refused_alike(generated, kernel_of, launch, random):
    kernel = kernel_of(generated.Generator(random).kernel())
    arguments = generated.arguments(random)
    if refusals(kernel):
        event("refused")
        with pytest.raises(xpu.Refused):
            run(kernel, arguments, Launch())
        return
    try:
        event(launch(kernel, *arguments, grid=generated.COUNT // generated.BLOCK, block=generated.BLOCK,
                     width=generated.WIDTH))  # fmt: skip
    except xpu.Undefined:
        event("undefined")
