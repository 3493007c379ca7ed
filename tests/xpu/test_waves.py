"""Coordinates, waves, quads, groups, workgroups and their rendezvous (spec/xpu.md 1.8, 2.2)."""

import numpy as np
import pytest

from kohakutpu.xpu import Refused, Undefined, f32, i32, i64, types, u32, u64

SIXTEEN = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3]
EIGHT = SIXTEEN[:8]
BIG = 0xFFFFFFFF


def test_coordinates(launch, body_of):
    names = ["thread.x", "thread.y", "thread.z", "thread.global_id_x", "thread.global_id_y", "thread.global_id_z",
             "workgroup.x", "workgroup.y", "workgroup.z", "workgroup.dim_x", "workgroup.dim_y", "workgroup.dim_z",
             "wave.width", "wave.lane_id", "group.width", "group.lane_id", "group.row_id"]  # fmt: skip
    body = "g = count.atomic_add(0, 1)\n" + "\n".join(f"out[g * 20 + {i}] = i32({n}())" for i, n in enumerate(names))
    body += "\nout[g * 20 + 17] = i32(wave.is_first_lane())"
    out, count = np.zeros(20 * 48, np.int32), np.zeros(1, np.int32)
    launch(
        body_of(body, "out: KernelBuffer[i32], count: KernelBuffer[i32]"),
        out,
        count,
        grid=(1, 2, 2),
        block=(2, 3, 2),
        width=4,
    )
    rows = iter(out.reshape(48, 20)[:, :18].tolist())
    for gz in range(2):  # workgroups x fastest, then y, then z; work-items in linear order
        for gy in range(2):
            for linear in range(12):
                x, y, z = linear % 2, linear // 2 % 3, linear // 6
                place = [x, y, z, x, gy * 3 + y, gz * 2 + z, 0, gy, gz, 2, 3, 2]
                assert next(rows) == [*place, 4, linear % 4, 4, linear % 4, 0, int(linear % 4 == 0)]


def test_a_global_index_wraps_at_32_bits():
    from kohakutpu.reference.xpu import HOST
    from kohakutpu.reference.xpu.walker import Place, Walker

    place = Place((1 << 31, 0, 0), (3, 0, 0), (1 << 32, 1, 1), (4, 1, 1), None)
    assert Walker(place, {}, False, lambda: None, HOST, None).global_id(0) == 3


@pytest.mark.parametrize(
    "expression, kind, of, values, expected",
    [
        ("wave.shuffle_sync(v, 7 - t)", u32, u32, EIGHT, EIGHT[::-1]),
        ("wave.shuffle_xor_sync(v, 1)", u32, u32, EIGHT, [1, 3, 1, 4, 9, 5, 6, 2]),
        ("wave.shuffle_xor_sync(v, 8)", u32, u32, EIGHT, EIGHT),  # past the edge: itself
        ("wave.shuffle_up_sync(v, 2)", u32, u32, EIGHT, [3, 1, 3, 1, 4, 1, 5, 9]),
        ("wave.shuffle_down_sync(v, 2)", u32, u32, EIGHT, [4, 1, 5, 9, 2, 6, 2, 6]),
        ("wave.shuffle_sync_f32(v, 7 - t)", f32, f32, EIGHT, EIGHT[::-1]),
        ("wave.shuffle_xor_sync_f32(v, 4)", f32, f32, EIGHT, [5, 9, 2, 6, 3, 1, 4, 1]),
        ("wave.shuffle_sync_i64(v, 0)", i64, i64, [-5] * 8, [-5] * 8),
        ("wave.shuffle_xor_sync_i64(v, 1)", i64, i64, EIGHT, [1, 3, 1, 4, 9, 5, 6, 2]),
        ("wave.shuffle_up_sync_i64(v, 7)", i64, i64, EIGHT, [*EIGHT[:7], 3]),
        ("wave.shuffle_down_sync_i64(v, 7)", i64, i64, EIGHT, [6, *EIGHT[1:]]),
        ("wave.rotate(v, 3)", u32, u32, EIGHT, EIGHT[3:] + EIGHT[:3]),
        ("wave.rotate(v, 11)", u32, u32, EIGHT, EIGHT[3:] + EIGHT[:3]),
        ("wave.ballot_sync(v > 3)", u64, u32, EIGHT, [0b10110100] * 8),
        ("wave.reduce_sum(v)", u32, u32, [BIG, 2, 0, 0, 0, 0, 0, 0], [1] * 8),
        ("wave.reduce_max(v)", u32, u32, [BIG, 2, 0, 0, 0, 0, 0, 0], [BIG] * 8),
        ("wave.reduce_min(v)", u32, u32, [BIG, 2, 5, 7, 9, 9, 9, 9], [2] * 8),
        ("wave.reduce_and(v)", u32, u32, [7, 6, 7, 7, 7, 7, 7, 7], [6] * 8),
        ("wave.reduce_or(v)", u32, u32, [1, 2, 4, 0, 0, 0, 0, 0], [7] * 8),
        ("wave.reduce_xor(v)", u32, u32, [1, 3, 4, 0, 0, 0, 0, 0], [6] * 8),
        ("wave.reduce_sum_i64(v)", i64, i64, [2**63 - 1, 1, 0, 0, 0, 0, 0, 0], [-(2**63)] * 8),
        ("wave.reduce_max_i64(v)", i64, i64, [-1, -2, -3, -4, -5, -6, -7, -8], [-1] * 8),
        ("wave.reduce_min_i64(v)", i64, i64, [-1, -2, -3, -4, 5, 6, 7, 8], [-4] * 8),
        ("wave.prefix_sum(v)", u32, u32, EIGHT, [0, 3, 4, 8, 9, 14, 23, 25]),
        ("wave.prefix_product(v)", u32, u32, EIGHT, [1, 3, 3, 12, 12, 60, 540, 1080]),
        ("wave.prefix_sum_i64(v)", i64, i64, EIGHT, [0, 3, 4, 8, 9, 14, 23, 25]),
        ("wave.reduce_max_f32(v)", f32, f32, EIGHT, [9] * 8),
        ("wave.reduce_min_f32(v)", f32, f32, EIGHT, [1] * 8),
        ("group.reduce(Op.MAX, v)", f32, f32, EIGHT, [9] * 8),
        ("group.reduce(Op.MIN, v)", f32, f32, EIGHT, [1] * 8),
        ("group.reduce(Op.ADD, v)", f32, f32, EIGHT, [31] * 8),
        ("group.reduce_segmented(4, Op.MAX, v)", f32, f32, EIGHT, [4] * 4 + [9] * 4),
        ("wave.reduce_sum_f32_segmented(v, 2)", f32, f32, EIGHT, [4, 4, 5, 5, 14, 14, 8, 8]),
        ("wave.reduce_max_f32_segmented(v, 64)", f32, f32, EIGHT, [9] * 8),  # clamped to the width
        ("quad.broadcast(v, 2)", u32, u32, EIGHT, [4] * 4 + [2] * 4),
        ("quad.swap_horizontal(v)", u32, u32, EIGHT, [1, 3, 1, 4, 9, 5, 6, 2]),
        ("quad.swap_vertical(v)", u32, u32, EIGHT, [4, 1, 3, 1, 2, 6, 5, 9]),
        ("quad.swap_diagonal(v)", u32, u32, EIGHT, [1, 4, 1, 3, 6, 2, 9, 5]),
        ("quad.all(v < 5)", types.BOOL, u32, EIGHT, [1] * 4 + [0] * 4),
        ("quad.any(v > 5)", types.BOOL, u32, EIGHT, [0] * 4 + [1] * 4),
    ],
)
def test_a_wave_verb(lanes, expression, kind, of, values, expected):
    assert lanes(expression, kind, values, of, width=8) == expected


def test_a_float_sum_is_the_butterfly_over_the_full_width(lanes):
    values = np.array([1e8, 1, -1e8, 1, 3, 5, 1, 7], np.float32)
    held = values.copy()
    for distance in (1, 2, 4):
        held = np.array([held[i] + held[i ^ distance] for i in range(8)], np.float32)
    found = lanes("wave.reduce_sum_f32(v)", f32, values, f32, width=8)
    assert found == held.tolist()
    in_order = np.float32(0)
    for value in values:
        in_order += value
    assert found[0] != in_order  # lane order would be another answer


def test_inactive_lanes_hold_the_identity(lanes):
    assert lanes("wave.reduce_sum_f32(v)", f32, [1, 2, 3, 4, 5], f32, width=8) == [15.0] * 5
    assert lanes("wave.reduce_max_f32(v)", f32, [-1, -2, -3], f32, width=8) == [-1.0] * 3
    assert lanes("wave.reduce_min(v)", u32, [7, 5, 9], u32, width=8) == [5] * 3
    assert lanes("quad.all(v > 0)", types.BOOL, [7, 5, 9], u32, width=8) == [0] * 3
    early = "if t >= 6:\n    return"
    assert lanes("wave.reduce_sum(v)", u32, EIGHT, u32, width=8, before=early) == [23] * 6 + [0, 0]
    assert lanes("wave.ballot_sync(v > 3)", u64, EIGHT, u32, width=8, before=early) == [0b110100] * 6 + [0, 0]


UNDEFINED = [
    ("wave.shuffle_sync(v, 8)", "", "shuffle from lane 8 of a wave of 8"),
    ("wave.shuffle_sync(v, 7)", "if t == 7:\n    return", "shuffle from lane 7, which is inactive"),
    ("wave.rotate(v, 1)", "if t == 7:\n    return", "rotate from lane 7, which is inactive"),
    ("quad.broadcast(v, 4)", "", "quad.broadcast from member 4 of 4"),
    ("u32(wave.reduce_sum_f32_segmented(f32(v), t + 1))", "", r"a segment that differs between lanes: \[1, 2"),
    ("u32(wave.reduce_sum_f32_segmented(f32(v), 3))", "", "a segment of 3 lanes, no power of two"),
    ("wave.reduce_sum(v)", "if t == 7:\n    v = wave.reduce_max(v)",
     "lanes of one wave at different wave operations: wave.reduce_sum .line 7.* and wave.reduce_max"),
    ("v", "if t == 7:\n    return\nbarrier.workgroup()",
     r"barrier.workgroup, which work-item \(7, 0, 0\) returned without reaching"),
    ("v", "if t == 7:\n    barrier.workgroup()\nelse:\n    barrier.workgroup()",
     "work-items at different barriers: barrier.workgroup .line 8.* and barrier.workgroup"),
    ("v", "if t == 7:\n    barrier.workgroup()\nelse:\n    barrier.wave()", "the workgroup cannot proceed"),
]  # fmt: skip


@pytest.mark.parametrize("expression, before, reason", UNDEFINED)
def test_an_undefined_rendezvous(lanes, expression, before, reason):
    with pytest.raises(Undefined, match=f"XPU-REF02: {reason}"):
        lanes(expression, u32, EIGHT, u32, width=8, before=before)


def test_a_kernel_with_a_wave_operation_needs_a_width(launch, body_of):
    kernel = body_of("out[0] = i32(wave.width())")
    out = np.zeros(1, np.int32)
    with pytest.raises(Refused, match="a wave operation, and neither the launch nor @Wave gives the width"):
        launch(kernel, out)
    with pytest.raises(Refused, match="a wave of 6 lanes: a power of two from 1 to 64 is expected"):
        launch(kernel, out, width=6)
    launch(kernel, out, width=16)
    assert out[0] == 16


def test_the_launch_overrides_the_declared_width(launch, kernel_of):
    kernel = kernel_of("@kernel\n@Wave(width=4)\ndef k(out: KernelBuffer[i32]):\n    out[0] = group.width()\n")
    out = np.zeros(1, np.int32)
    launch(kernel, out)
    assert out[0] == 4
    launch(kernel, out, width=8)
    assert out[0] == 8


@pytest.mark.parametrize("op, expected", [("ADD", 80), ("MAX", 9), ("MIN", 1)])
def test_a_workgroup_reduction_reaches_every_work_item(lanes, op, expected):
    assert lanes(f"workgroup.reduce(Op.{op}, v)", i32, SIXTEEN, i32, width=4) == [expected] * 16
    assert lanes(f"workgroup.reduce(Op.{op}, v)", i64, SIXTEEN, i64, width=4) == [expected] * 16
    assert lanes(f"workgroup.reduce(Op.{op}, v)", f32, SIXTEEN, f32, width=4) == [expected] * 16


def test_a_float_workgroup_sum_takes_butterflies_left_to_right(lanes):
    values = np.array([1, 0, 0, 0, 1e8, 0, 0, 0, -1e8, 0, 0, 0], np.float32)
    waves = [(a + b) + (c + d) for a, b, c, d in values.reshape(3, 4)]
    total = waves[0] + waves[1] + waves[2]
    assert total != waves[2] + waves[1] + waves[0]
    assert lanes("workgroup.reduce(Op.ADD, v)", f32, values, f32, width=4) == [total] * 12


@pytest.mark.parametrize(
    "op, first, combine", [("ADD", 0, np.add), ("MAX", -(2**31), np.maximum), ("MIN", 2**31 - 1, np.minimum)]
)
def test_a_workgroup_scan_is_exclusive_over_the_linear_order(lanes, op, first, combine):
    expected = [first, *combine.accumulate(np.array(SIXTEEN, np.int32)).tolist()[:-1]]
    assert lanes(f"workgroup.scan(Op.{op}, v)", i32, SIXTEEN, i32, width=4) == expected


DIVERGENT = [
    ("if t == 0:\n    s = workgroup.reduce(Op.ADD, v)", True),
    ("if n == 0:\n    s = workgroup.reduce(Op.ADD, v)", False),
    ("if t == 0:\n    return\ns = workgroup.reduce(Op.ADD, v)", True),
    ("if n == 0:\n    return\ns = workgroup.reduce(Op.ADD, v)", False),
    ("for i in range(n):\n    s = workgroup.reduce(Op.ADD, v)", False),
    ("for i in range(v):\n    s = workgroup.reduce(Op.ADD, v)", True),
    ("for i in range(n):\n    s = workgroup.scan(Op.ADD, v)\n    if t == 3:\n        break", True),
    ("for i in range(n):\n    s = workgroup.scan(Op.ADD, v)\n    if t == 3:\n        continue", False),
    ("for i in range(n):\n    if t == 3:\n        continue\n    s = workgroup.scan(Op.ADD, v)", True),
    ("for i in range(n):\n    if t == 3:\n        break\ns = workgroup.scan(Op.ADD, v)", False),
    ("m = 0\nwhile m < n:\n    m += workgroup.reduce(Op.MAX, v)", False),
    ("m = 0\nwhile m < n:\n    m += v\n    s = workgroup.reduce(Op.MAX, v)", True),
    ("m = 0\nif t == 1:\n    m = 1\nif m == 0:\n    s = workgroup.reduce(Op.ADD, v)", True),
    ("if data[n] == 0:\n    s = workgroup.reduce(Op.ADD, v)", False),
    ("x = helper(v) if n == 0 else 0", False),
    ("if t == 0:\n    x = helper(v)", True),
    ("for i, e in data.range(n):\n    x = helper(e)", True),
]


@pytest.mark.parametrize("body, refused", DIVERGENT)
def test_a_workgroup_verb_in_divergent_flow_is_refused(kernel_of, reasons, body, refused):
    lines = "\n".join("    " + line for line in ("t = i32(thread.x())\nv = data[t]\n" + body).splitlines())
    text = "@device\ndef helper(v: i32) -> i32:\n    return workgroup.reduce(Op.ADD, v)\n"
    found = reasons(kernel_of(f"{text}@kernel\ndef k(data: KernelBuffer[i32], n: i32):\n{lines}\n"))
    assert bool(found) == refused
    assert all("in divergent flow: some work-items of the workgroup may not arrive" in reason for reason in found)


def test_a_tree_reduction_with_barriers(launch, body_of):
    kernel = body_of("""
s = Shared[f32](64)
t = thread.x()
s[t] = data[thread.global_id_x()]
barrier.workgroup()
step = u32(32)
while step > 0:
    if t < step:
        s[t] += s[t + step]
    barrier.workgroup()
    step >>= 1
if t == 0:
    out[workgroup.x()] = s[0]
""", "out: KernelBuffer[f32], data: KernelBuffer[f32]")  # fmt: skip
    data = np.random.default_rng(1).standard_normal(192).astype(np.float32)
    out = np.zeros(3, np.float32)
    launch(kernel, out, data, grid=3, block=64)
    expected = data.reshape(3, 64)
    while expected.shape[1] > 1:
        half = expected.shape[1] // 2
        expected = expected[:, :half] + expected[:, half:]
    assert out.tolist() == expected[:, 0].tolist()


def test_fences_and_wave_barriers_order_nothing(lanes):
    before = "barrier.workgroup_memory()\nbarrier.device_memory(order=MemoryOrder.SEQ_CST)\nbarrier.wave()"
    assert lanes("v", u32, EIGHT, u32, width=4, before=before) == EIGHT


def test_waves_move_before_the_barrier(lanes):
    before = "if t < 4:\n    v = wave.reduce_sum(v)\nbarrier.workgroup()"
    assert lanes("v", u32, EIGHT, u32, width=4, before=before) == [9] * 4 + EIGHT[4:]


def test_the_same_run_gives_the_same_bytes_and_the_same_error(lanes):
    failing = "if t == 5:\n    v = data[v + 100]\nif t == 2:\n    v = data[v + 200]"
    texts = set()
    for _ in range(3):
        with pytest.raises(Undefined) as caught:
            lanes("v", u32, EIGHT, u32, width=4, before=failing)
        texts.add(str(caught.value))
    assert len(texts) == 1 and "work-item (2, 0, 0)" in texts.pop()
