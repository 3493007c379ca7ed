"""Building blocks: coordinates, barriers, waves, groups, quads and workgroup verbs, a kernel each."""

from functools import partial, reduce

import numpy as np

from kohakutpu.xpu import (
    KernelBuffer, MemoryOrder, Op, Shared, Wave, barrier, define, f32, group, i8, i32, i64, kernel, quad, thread, u8,
    u32, u64, wave, workgroup,
)  # fmt: skip

WIDTH = 16
BLOCK = 48  # three waves
NAMES = {
    "KernelBuffer": KernelBuffer, "Wave": Wave, "Op": Op, "barrier": barrier, "group": group, "kernel": kernel,
    "quad": quad, "thread": thread, "wave": wave, "workgroup": workgroup, "f32": f32, "i32": i32, "i64": i64, "u8": u8,
    "u32": u32, "u64": u64, "__name__": __name__,
}  # fmt: skip


@Wave(width=WIDTH)
@kernel
def coordinates(out: KernelBuffer[u32]):
    linear = thread.x() + thread.y() * workgroup.dim_x() + thread.z() * workgroup.dim_x() * workgroup.dim_y()
    size = workgroup.dim_x() * workgroup.dim_y() * workgroup.dim_z()
    o = ((workgroup.x() + 2 * workgroup.y() + 4 * workgroup.z()) * size + linear) * 18
    out[o] = thread.x()
    out[o + 1] = thread.y()
    out[o + 2] = thread.z()
    out[o + 3] = thread.global_id_x()
    out[o + 4] = thread.global_id_y()
    out[o + 5] = thread.global_id_z()
    out[o + 6] = workgroup.x()
    out[o + 7] = workgroup.y()
    out[o + 8] = workgroup.z()
    out[o + 9] = workgroup.dim_x()
    out[o + 10] = workgroup.dim_y()
    out[o + 11] = workgroup.dim_z()
    out[o + 12] = wave.width()
    out[o + 13] = wave.lane_id()
    out[o + 14] = 1 if wave.is_first_lane() else 0
    out[o + 15] = group.width()
    out[o + 16] = group.lane_id()
    out[o + 17] = group.row_id()


def on_coordinates(data):
    grid, block = (2, 2, 3), (5, 4, 2)
    rows = []
    for gz, gy, gx, z, y, x in np.ndindex(*grid[::-1], *block[::-1]):
        lane = (x + 5 * y + 20 * z) % WIDTH
        rows.append(
            [x, y, z, gx * 5 + x, gy * 4 + y, gz * 2 + z, gx, gy, gz, 5, 4, 2, WIDTH, lane, lane == 0, WIDTH, lane, gx]
        )
    expected = np.array(rows, np.uint32)
    return dict(grid=grid, block=block, arguments=[np.zeros(expected.size, np.uint32)], expect={"out": expected})


# A wave verb each; where a verb is defined without some lanes, every third has left.
VERB = """
@Wave(width={width})
@kernel
def {name}(out: KernelBuffer[{gives}], a: KernelBuffer[{takes}], b: KernelBuffer[u32]):
    i = thread.global_id_x()
{leave}    out[i] = {call}
"""
LEAVE = "    if thread.x() % 3 == 1:\n        return\n"


def lanes_of(values, block, width):
    """The waves of one workgroup after another, as slices."""
    for start in range(0, len(values), block):
        for first in range(start, start + block, width):
            yield slice(first, min(first + width, start + block))


def wrapped(values, kind):
    mask = (1 << kind.bits) - 1
    return np.array([value & mask for value in values], f"uint{kind.bits}").view(kind.dtype)


def everyone(operation, kind):
    def over(values, _, active):
        kept = [int(v) for v, on in zip(values, active, strict=True) if on]
        return wrapped([reduce(operation, kept)] * len(values), kind)

    return over


def exclusive(operation, start, kind):
    def over(values, _, active):
        result, total = [], start
        for value, on in zip(values.tolist(), active, strict=True):
            result.append(total)
            total = operation(total, value) & (1 << kind.bits) - 1 if on else total
        return wrapped(result, kind)

    return over


def butterfly(operation, identity, reach=None):
    def over(values, _, active):
        width = len(active)
        held = np.where(active, values, np.float32(identity)).astype(np.float32)
        distance = 1
        while distance < (reach or width):
            held = operation(held, held[np.arange(width) ^ distance])
            distance *= 2
        return held

    return over


def moved(source):
    """From the lane that `source(lane, amount, width)` names; past the edge a lane reads itself."""

    def over(values, amounts, active):
        width = len(values)
        places = [source(lane, int(amount), width) for lane, amount in enumerate(amounts)]
        return np.array([values[p if 0 <= p < width else lane] for lane, p in enumerate(places)])

    return over


def ballot(values, _, active):
    bits = sum(1 << lane for lane, (value, on) in enumerate(zip(values, active, strict=True)) if on and value > 7)
    return np.full(len(values), bits, np.uint64)


def votes(combine):
    def over(values, _, active):
        yes = [bool(on and value > 7) for value, on in zip(values, active, strict=True)]
        return np.array([combine(yes[lane & ~3 : (lane & ~3) + 4]) for lane in range(len(values))], np.uint8)

    return over


ADD, MAX, MIN = (lambda a, b: a + b), max, min
SAME = lambda lane, amount, width: amount
# name: (element taken, element given, call, oracle over a wave, whether lanes may leave)
WAVES = {
    "shuffle_sync": (u32, u32, "{v}, b[i]", moved(SAME), False),
    "shuffle_sync_f32": (f32, f32, "{v}, b[i]", moved(SAME), False),
    "shuffle_sync_i64": (i64, i64, "{v}, b[i]", moved(SAME), False),
    "shuffle_xor_sync": (u32, u32, "{v}, 5", moved(lambda lane, _, w: lane ^ 5), False),
    "shuffle_xor_sync_f32": (f32, f32, "{v}, 8", moved(lambda lane, _, w: lane ^ 8), False),
    "shuffle_xor_sync_i64": (i64, i64, "{v}, 1", moved(lambda lane, _, w: lane ^ 1), False),
    "shuffle_up_sync": (u32, u32, "{v}, 3", moved(lambda lane, _, w: lane - 3), False),
    "shuffle_up_sync_i64": (i64, i64, "{v}, 1", moved(lambda lane, _, w: lane - 1), False),
    "shuffle_down_sync": (u32, u32, "{v}, 3", moved(lambda lane, _, w: lane + 3), False),
    "shuffle_down_sync_i64": (i64, i64, "{v}, 9", moved(lambda lane, _, w: lane + 9), False),
    "rotate": (u32, u32, "{v}, 5", moved(lambda lane, _, w: (lane + 5) % w), False),
    "ballot_sync": (u32, u64, "{v} > 7", ballot, True),
    "reduce_sum": (u32, u32, "{v}", everyone(ADD, u32), True),
    "reduce_max": (u32, u32, "{v}", everyone(MAX, u32), True),
    "reduce_min": (u32, u32, "{v}", everyone(MIN, u32), True),
    "reduce_and": (u32, u32, "{v}", everyone(lambda a, b: a & b, u32), True),
    "reduce_or": (u32, u32, "{v}", everyone(lambda a, b: a | b, u32), True),
    "reduce_xor": (u32, u32, "{v}", everyone(lambda a, b: a ^ b, u32), True),
    "reduce_sum_i64": (i64, i64, "{v}", everyone(ADD, i64), True),
    "reduce_max_i64": (i64, i64, "{v}", everyone(MAX, i64), True),
    "reduce_min_i64": (i64, i64, "{v}", everyone(MIN, i64), True),
    "reduce_sum_f32": (f32, f32, "{v}", butterfly(np.add, 0), True),
    "reduce_max_f32": (f32, f32, "{v}", butterfly(np.fmax, -np.inf), True),
    "reduce_min_f32": (f32, f32, "{v}", butterfly(np.fmin, np.inf), True),
    "reduce_sum_f32_segmented": (f32, f32, "{v}, 4", butterfly(np.add, 0, 4), True),
    "reduce_max_f32_segmented": (f32, f32, "{v}, 8", butterfly(np.fmax, -np.inf, 8), True),
    "prefix_sum": (u32, u32, "{v}", exclusive(ADD, 0, u32), True),
    "prefix_product": (u32, u32, "{v}", exclusive(lambda a, b: a * b, 1, u32), True),
    "prefix_sum_i64": (i64, i64, "{v}", exclusive(ADD, 0, i64), True),
}  # fmt: skip
GROUPS = {
    "group.reduce_add": (f32, f32, "group.reduce(Op.ADD, {v})", butterfly(np.add, 0), True),
    "group.reduce_max": (f32, f32, "group.reduce(Op.MAX, {v})", butterfly(np.fmax, -np.inf), True),
    "group.reduce_min": (f32, f32, "group.reduce(Op.MIN, {v})", butterfly(np.fmin, np.inf), True),
    "group.reduce_segmented": (f32, f32, "group.reduce_segmented(2, Op.ADD, {v})", butterfly(np.add, 0, 2), True),
    "quad.broadcast": (u32, u32, "quad.broadcast({v}, 2)", moved(lambda lane, _, w: (lane & ~3) + 2), False),
    "quad.swap_horizontal": (u32, u32, "quad.swap_horizontal({v})", moved(lambda lane, _, w: lane ^ 1), False),
    "quad.swap_vertical": (u32, u32, "quad.swap_vertical({v})", moved(lambda lane, _, w: lane ^ 2), False),
    "quad.swap_diagonal": (u32, u32, "quad.swap_diagonal({v})", moved(lambda lane, _, w: lane ^ 3), False),
    "quad.all": (u32, u8, "1 if quad.all({v} > 7) else 0", votes(all), True),
    "quad.any": (u32, u8, "1 if quad.any({v} > 7) else 0", votes(any), True),
}  # fmt: skip


def on_wave(takes, gives, oracle, leaves, data):
    n = 2 * BLOCK
    a = data.floats(f32, n) if takes is f32 else data.integers(takes, n, *((0, 20) if gives in (u64, u8) else ()))
    b = data.integers(u32, n, 0, WIDTH - 1)
    active = np.arange(n) % BLOCK % 3 != 1 if leaves else np.ones(n, bool)
    out = data.of(gives, n)
    expected = out.copy()
    for part in lanes_of(a, BLOCK, WIDTH):
        expected[part] = np.where(active[part], oracle(a[part], b[part], active[part]), out[part])
    return dict(grid=2, block=BLOCK, arguments=[out, a, b], expect={"out": expected})


def declare(name: str, call: str, takes, gives, oracle, leaves) -> None:
    text = VERB.format(width=WIDTH, name=name, takes=takes, gives=gives, call=call, leave=LEAVE if leaves else "")
    globals()[name] = define(text, dict(NAMES), name)[name]
    globals()[f"on_{name}"] = partial(on_wave, takes, gives, oracle, leaves)


for VERB_NAME, (TAKES, GIVES, ARGUMENTS, ORACLE, LEAVES) in WAVES.items():
    declare(f"wave_{VERB_NAME}", f"wave.{VERB_NAME}({ARGUMENTS.format(v='a[i]')})", TAKES, GIVES, ORACLE, LEAVES)
for VERB_NAME, (TAKES, GIVES, CALL, ORACLE, LEAVES) in GROUPS.items():
    declare(VERB_NAME.replace(".", "_"), CALL.format(v="a[i]"), TAKES, GIVES, ORACLE, LEAVES)


@Wave(width=32)
@kernel
def wide_wave_sum(out: KernelBuffer[f32], a: KernelBuffer[f32]):
    """A wave of 32: two passes of a 16-lane machine."""
    out[thread.x()] = wave.reduce_sum_f32(a[thread.x()])


def on_wide_wave_sum(data):
    a = data.floats(f32, 64)
    expected = np.concatenate(
        [butterfly(np.add, 0)(a[:32], None, np.ones(32, bool)), butterfly(np.add, 0)(a[32:], None, np.ones(32, bool))]
    )
    return dict(grid=1, block=64, arguments=[np.zeros(64, np.float32), a], expect={"out": expected})


WORKGROUP = """
@Wave(width={width})
@kernel
def workgroup_{name}(out: KernelBuffer[{kind}], a: KernelBuffer[{kind}]):
    i = thread.global_id_x()
    out[i] = workgroup.{verb}(Op.{op}, a[i])
"""
OPERATIONS = {"ADD": (ADD, np.add, 0), "MAX": (MAX, np.fmax, -np.inf), "MIN": (MIN, np.fmin, np.inf)}


def on_workgroup(verb, op, kind, data):
    block = 37 if data.kind != "random" else BLOCK
    a = data.of(kind, 2 * block)
    whole, floats, identity = OPERATIONS[op]
    expected = a.copy()
    for start in (0, block):
        part = a[start : start + block]
        if kind is f32:
            partials = []
            for first in range(0, block, WIDTH):
                lanes = np.full(WIDTH, identity, np.float32)
                lanes[: len(part[first : first + WIDTH])] = part[first : first + WIDTH]
                partials.append(butterfly(floats, identity)(lanes, None, np.ones(WIDTH, bool))[0])
            found = [reduce(floats, partials)] * block
        elif verb == "reduce":
            found = wrapped([reduce(whole, part.tolist())] * block, kind)
        else:
            start_at = {"ADD": 0, "MAX": kind.low, "MIN": kind.high}[op]
            found = wrapped([reduce(whole, part[:k].tolist(), start_at) for k in range(block)], kind)
        expected[start : start + block] = found
    return dict(grid=2, block=block, arguments=[np.zeros(2 * block, kind.dtype), a], expect={"out": expected})


for VERB_NAME, KINDS in (("reduce", (f32, i32, i64)), ("scan", (i32, i64))):
    for OP in OPERATIONS:
        for KIND in KINDS:
            NAME = f"{VERB_NAME}_{OP.lower()}_{KIND}"
            TEXT = WORKGROUP.format(width=WIDTH, name=NAME, kind=KIND, verb=VERB_NAME, op=OP)
            globals()[f"workgroup_{NAME}"] = define(TEXT, dict(NAMES), NAME)[f"workgroup_{NAME}"]
            globals()[f"on_workgroup_{NAME}"] = partial(on_workgroup, VERB_NAME, OP, KIND)


@kernel
def barriers_and_fences(out: KernelBuffer[i32], a: KernelBuffer[i32], n: u32):
    s = Shared[i32](32)
    t = thread.x()
    s[t] = a[thread.global_id_x()]
    barrier.workgroup()
    width = u32(16)
    while width > 0:
        if t < width:
            s[t] = s[t] + s[t + width]
        barrier.workgroup()
        width >>= 1
    barrier.workgroup_memory()
    barrier.device_memory(order=MemoryOrder.SEQ_CST)
    if t == 0:
        out[workgroup.x()] = s[0]
    barrier.workgroup()
    s[t] = i32(n)
    barrier.workgroup()
    out[3 + thread.global_id_x()] = s[31 - t] + i32(t)


def on_barriers_and_fences(data):
    a = data.integers(i32, 96)
    sums = wrapped([int(part.astype(object).sum()) for part in a.reshape(3, 32)], i32)
    return dict(
        grid=3, block=32, arguments=[np.zeros(99, np.int32), a, 5],
        expect={"out": np.concatenate([sums, np.tile(5 + np.arange(32), 3)])},
    )  # fmt: skip


@Wave(width=16)
@kernel
def wave_barrier(out: KernelBuffer[i32], a: KernelBuffer[i32]):
    s = Shared[i32](32)
    s[thread.x()] = a[thread.x()]
    barrier.wave()
    out[thread.x()] = s[thread.x() ^ 15]


def on_wave_barrier(data):
    a = data.integers(i32, 32)
    return dict(grid=1, block=32, arguments=[np.zeros(32, np.int32), a], expect={"out": a[np.arange(32) ^ 15]})


@kernel
def group_mac(out: KernelBuffer[i32], a: KernelBuffer[i8], b: KernelBuffer[i8]):
    i = thread.global_id_x()
    out[i] = group.mac(out[i], a.vload[16](16 * i, align=16), b.vload[16](16 * i, align=16))


def on_group_mac(data):
    n = 24
    out, a, b = data.integers(i32, n, -1000, 1000), data.integers(i8, 16 * n), data.integers(i8, 16 * n)
    products = (a.astype(np.int32) * b.astype(np.int32)).reshape(n, 16)
    return dict(grid=3, block=8, arguments=[out, a, b], expect={"out": out + products.sum(1)})
