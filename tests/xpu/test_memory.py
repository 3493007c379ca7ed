"""Buffers, views, Shared memory, wide accesses, atomics and copies (spec/xpu.md 1.3, 1.9)."""

import numpy as np
import pytest

from kohakutpu import xpu
from kohakutpu.xpu import (
    HostUse,
    KernelBuffer,
    Residency,
    Undefined,
    XpuError,
    alignment,
    f16,
    f32,
    i8,
    i32,
    tree,
    u8,
    u32,
)


def test_fresh_memory_is_poison(monkeypatch):
    assert np.isnan(KernelBuffer(f32, 4).download()).all()
    monkeypatch.setenv("XPU_POISON", "0")
    assert not KernelBuffer(f32, 4).download().any()


def test_upload_download_and_views_share_storage(launch, body_of):
    data = KernelBuffer.of(u8, np.arange(16, dtype=np.uint8))
    words, halves = data.word_view(), data.half_view()
    assert words.download().tolist() == np.arange(16, dtype=np.uint8).view(np.uint32).tolist()
    assert halves.element is f16 and halves.count == 8 and data.word_view(f32).element is f32
    part = data.slice(4, 8)
    launch(body_of("out[0] = 99", "out: KernelBuffer[u8]"), part)
    assert data.download()[4] == 99 and words.download()[1] & 0xFF == 99
    data.upload(np.zeros(16, np.uint8))
    assert not part.download().any()


@pytest.mark.parametrize(
    "act, reason",
    [
        (lambda b: b.slice(2, 4), r"slice\(2, 4\) of a buffer of 4 elements"),
        (lambda b: b.word_view(), "word_view sees bytes, a multiple of 4 of them"),
        (lambda b: KernelBuffer(u8, 3).half_view(), "half_view sees bytes, a multiple of 2 of them"),
        (lambda b: KernelBuffer(u8, 4).word_view(f16), "as 32-bit elements; this holds 4 of u8, to be seen as f16"),
        (lambda b: b.upload(np.zeros(3, np.float32)), "upload of 3 elements into a buffer of 4"),
        (lambda b: b.upload(np.zeros(4)), "upload of float64 into a buffer of f32: float32 is expected"),
        (lambda b: b.host_load(0), "host_load and host_store need pinned or unified memory"),
        (lambda b: b.slice(0, 1).free(), "a view does not own its memory"),
        (lambda b: (b.free(), b.free(), b.download()), "this buffer was freed"),
        (lambda b: KernelBuffer(f32, 0), "a positive count of elements is expected, not 0"),
        (lambda b: KernelBuffer(float, 1), "the element is a primitive type such as f32"),
    ],
)
def test_a_buffer_refuses(act, reason):
    with pytest.raises(XpuError, match=reason):
        act(KernelBuffer(f32, 4))


def test_only_kernels_index_elements():
    with pytest.raises(HostUse):
        KernelBuffer(f32, 4)[0]
    with pytest.raises(HostUse):
        KernelBuffer(f32, 4)[0] = 1
    pinned = KernelBuffer(f32, 4, Residency.PINNED)
    pinned.host_store(1, 2.5)
    assert pinned.host_load(1) == 2.5


@pytest.mark.parametrize(
    "body, reason",
    [
        ("out[n] = 1", r"a write of out\[4\], which has 4 elements"),
        ("out[0 - n] = 1", r"a write of out\[-4\], which has 4 elements"),
        ("out[0] = out[n]", r"a read of out\[4\], which has 4 elements"),
        ("v = out.vload[4](1)", r"a read of out\[4\], which has 4 elements"),
        ("out.vstore(1, Vector[i32, 4](n))", r"a write of out\[4\], which has 4 elements"),
        ("s = Shared[i32](4)\ns[0] = 1\nout[0] = s[1]", r"a read of s\[1\], which no work-item wrote"),
        ("s = Shared[i32](4)\ns[n] = 1", r"a write of s\[4\], which has 4 elements"),
        ("s = Shared[i32](n - 4)", "0 elements of Shared s"),
        (
            "s = Shared[i32](n + i32(thread.x()))\nbarrier.workgroup()",
            "5 elements of Shared s, to which another gave 4",
        ),
    ],
)
def test_undefined_memory_use(launch, body_of, body, reason):
    kernel = body_of(body, "out: KernelBuffer[i32], n: i32")
    with pytest.raises(Undefined, match=f"XPU-REF02: {reason}"):
        launch(kernel, np.zeros(4, np.int32), 4, block=2)


def test_shared_is_one_array_per_workgroup_and_forgets_between_them(launch, body_of):
    kernel = body_of("""
s = Shared[u32](4)
if workgroup.x() == 0:
    s[thread.x()] = thread.x()
barrier.workgroup()
out[thread.global_id_x()] = s[3 - thread.x()]
""", "out: KernelBuffer[u32]")  # fmt: skip
    out = np.zeros(4, np.uint32)
    launch(kernel, out, block=4)
    assert out.tolist() == [3, 2, 1, 0]
    with pytest.raises(Undefined, match="which no work-item wrote.*workgroup .1, 0, 0., work-item .0, 0, 0."):
        launch(kernel, np.zeros(8, np.uint32), grid=2, block=4)


def test_block_padding_counts_slots_and_swizzling_is_not_seen(launch, body_of):
    body = "s = BlockPadded[i32, 8, 1](72)\nfor i in range(n):\n    s[i] = i\nfor i in range(n):\n    out[i] = s[i]"
    out = np.zeros(65, np.int32)
    launch(body_of(body, "out: KernelBuffer[i32], n: i32"), out, 64)
    assert out.tolist() == [*range(64), 0]
    with pytest.raises(Undefined, match=r"a write of s\[64\] at slot 72, which has 72 slots"):
        launch(body_of(body, "out: KernelBuffer[i32], n: i32"), out, 65)
    swizzled = body.replace("BlockPadded[i32, 8, 1](72)", "Swizzled[i32, 8](64)")
    launch(body_of(swizzled, "out: KernelBuffer[i32], n: i32"), out, 64)
    assert out.tolist() == [*range(64), 0]


def test_the_launch_bounds_the_array_it_sizes(launch, body_of):
    kernel = body_of("s = Shared[i32](n)\ns[n - 1] = 5\nout[0] = s[n - 1]", "out: KernelBuffer[i32], n: i32")
    out = np.zeros(1, np.int32)
    launch(kernel, out, 16, shared_bytes=64)
    assert out[0] == 5
    with pytest.raises(Undefined, match="68 bytes of Shared s, where the launch gives 64"):
        launch(kernel, out, 17, shared_bytes=64)


@pytest.mark.parametrize("align", ["", ", align=1", ", align=16"])
def test_a_wide_access_reads_the_same_elements_whatever_it_promises(launch, body_of, align):
    kernel = body_of(f"out.vstore(1, data.vload[16](3{align}){align})", "out: KernelBuffer[i8], data: KernelBuffer[i8]")
    out, data = np.zeros(20, np.int8), np.arange(20, dtype=np.int8)
    launch(kernel, out, data)
    assert out.tolist() == [0, *range(3, 19), 0, 0, 0]


@pytest.mark.parametrize(
    "index, align, proven",
    [
        ("row * blocks * 144 + 16 + 32 * g", 0, 16), ("o", 16, 1), ("o * 4", 0, 4), ("(o << 3) + 8", 0, 8),
        ("o & -8", 0, 8), ("i64(o * 16) + 2", 0, 2), ("0", 0, 16), ("o | 4", 0, 1), ("u8(o) * 32", 0, 16),
    ],
)  # fmt: skip
def test_alignment_is_proven_from_the_index(body_of, index, align, proven):
    stated = f", align={align}" if align else ""
    kernel = body_of(f"v = data.vload[16]({index}{stated})",
                     "data: KernelBuffer[i8], row: i32, blocks: i32, g: i32, o: i32")  # fmt: skip
    assert not kernel.program.refusals
    (load,) = [n for n in tree.walk(kernel.program.kernel.body[0]) if isinstance(n, tree.LoadVector)]
    assert (load.align, load.proven) == (align, proven)


def test_a_proof_holds_for_random_values():
    at = xpu.Source("", 1, "")
    rng = np.random.default_rng(5)
    for _ in range(300):
        a, b, shift = (int(v) for v in rng.integers(0, 12, 3))
        value = tree.Binary(
            at, i32, "add", tree.Binary(at, i32, "mul", tree.Literal(at, i32, a), tree.Literal(at, i32, b)),
            tree.Binary(at, i32, "shl", tree.Literal(at, i32, b), tree.Literal(at, i32, shift)),
        )  # fmt: skip
        assert (a * b + (b << shift)) % alignment.multiple(value) == 0


@pytest.mark.parametrize(
    "verb, kind, old, value, new",
    [
        ("atomic_add", i32, 2**31 - 1, 1, -(2**31)), ("atomic_sub", u32, 0, 1, 2**32 - 1),
        ("atomic_min", i32, -1, 1, -1), ("atomic_min", u32, 2**32 - 1, 1, 1), ("atomic_max", i32, -1, 1, 1),
        ("atomic_and", i32, 12, 10, 8), ("atomic_or", i32, 12, 10, 14), ("atomic_xor", i32, 12, 10, 6),
        ("atomic_exchange", i32, 12, 10, 10), ("atomic_add", f32, 1.5, 2.0, 3.5),
        ("atomic_min", f32, np.nan, 2.0, 2.0), ("atomic_max", f32, 1.0, np.nan, 1.0),
        ("atomic_exchange", f32, 1.0, 2.5, 2.5),
    ],
)  # fmt: skip
@pytest.mark.parametrize("where", ["buffer", "Shared"])
def test_an_atomic_gives_the_old_value(launch, body_of, verb, kind, old, value, new, where):
    shared = f"data = Shared[{kind}](1)\ndata[0] = out[0]\n" if where == "Shared" else "data = 0\n"
    body = f"{shared}q = data.{verb}(0, value, MemoryOrder.SEQ_CST)\nout[1] = q\nout[0] = data[0]"
    if where == "buffer":
        body = f"q = out.{verb}(0, value, order=MemoryOrder.RELAXED)\nout[1] = q"
    out = np.array([old, 0], kind.dtype)
    launch(body_of(body, f"out: KernelBuffer[{kind}], value: {kind}"), out, value)
    np.testing.assert_array_equal(out, np.array([new, old], kind.dtype))


@pytest.mark.parametrize("kind, expected, new", [(i32, 5, 9), (i32, 6, 5), (f32, 5.0, 9.0)])
def test_compare_and_exchange(launch, body_of, kind, expected, new):
    kernel = body_of("out[1] = out.atomic_compare_exchange(0, e, 9)", f"out: KernelBuffer[{kind}], e: {kind}")
    out = np.array([5, 0], kind.dtype)
    launch(kernel, out, expected)
    assert out.tolist() == [new, 5]


def test_float_compare_and_exchange_compares_values(launch, body_of):
    kernel = body_of("out[1] = out.atomic_compare_exchange(0, f32(0.0), f32(2.0))", "out: KernelBuffer[f32]")
    out = np.array([-0.0, 1], np.float32)
    launch(kernel, out)
    assert out[0] == 2.0 and np.signbit(out[1])


@pytest.mark.parametrize(
    "kind, call, reason",
    [
        ("f32", "out.atomic_and(0, 1)", "float atomics are add, min, max, exchange and compare_exchange on f32"),
        ("f64", "out.atomic_add(0, 1)", "atomic_add on f64: float atomics are"),
        ("i8", "out.atomic_add(0, 1)", "atomic_add on i8: atomics have 32 or 64 bits"),
    ],
)
def test_an_atomic_that_is_refused(body_of, reasons, kind, call, reason):
    assert reason in reasons(body_of(call, f"out: KernelBuffer[{kind}]"))[0]


def test_atomics_happen_in_work_item_order(launch, body_of):
    kernel = body_of(
        "out[thread.global_id_x()] = count.atomic_add(0, 1)", "out: KernelBuffer[u32], count: KernelBuffer[u32]"
    )
    out, count = np.zeros(12, np.uint32), np.zeros(1, np.uint32)
    launch(kernel, out, count, grid=3, block=4)
    assert out.tolist() == list(range(12)) and count[0] == 12


def test_aliased_buffers_are_one_memory(launch, body_of):
    kernel = body_of("a[0] = 5\nout[0] = b[0]", "out: KernelBuffer[i32], a: KernelBuffer[i32], b: KernelBuffer[i32]")
    memory, out = KernelBuffer.of(i32, np.zeros(4, np.int32)), np.zeros(1, np.int32)
    launch(kernel, out, memory, memory.slice(0, 2))
    assert out[0] == 5


def test_async_copy_is_striped_over_the_workgroup(launch, body_of):
    kernel = body_of("""
s = Shared[i8](16)
async_copy.copy(s, 2, data, 1, n)
async_copy.commit()
async_copy.wait(0)
barrier.workgroup()
out[thread.x()] = s[2 + thread.x()]
if thread.x() == 0:
    out[4] = s[6]
    if n < 5:
        out[4] = s[2 + n]
""", "out: KernelBuffer[i8], data: KernelBuffer[i8], n: i32")  # fmt: skip
    out, data = np.zeros(5, np.int8), np.arange(10, dtype=np.int8)
    launch(kernel, out, data, 5, block=4)
    assert out.tolist() == [1, 2, 3, 4, 5]
    with pytest.raises(Undefined, match=r"a read of s\[6\], which no work-item wrote"):
        launch(kernel, out, data, 4, block=4)


def test_async_copy_between_other_memories_is_refused(body_of, reasons):
    found = reasons(body_of("async_copy.copy(out, 0, out, 0, 1)", "out: KernelBuffer[i8]"))
    assert "async_copy.copy from KernelBuffer[i8] to KernelBuffer[i8]; it goes from a buffer to Shared" in found[0]


def test_bools_take_a_byte(launch, body_of):
    kernel = body_of("out[0] = a[1] and flag", "out: KernelBuffer[bool], a: KernelBuffer[bool], flag: bool")
    out = np.zeros(1, np.uint8)
    launch(kernel, out, np.array([0, 7], np.uint8), True)
    assert out[0] == 1 and i8.size == xpu.types.BOOL.size == 1
