"""Building blocks: vectors, their operators and each of their methods."""

from functools import partial

import numpy as np

from kohakutpu.xpu import (
    KernelBuffer, Vector, bf16, define, f16, f32, f64, i8, i16, i32, kernel, math, thread, u8, u16, u32,
)  # fmt: skip

NAMES = {
    "KernelBuffer": KernelBuffer, "Vector": Vector, "kernel": kernel, "math": math, "thread": thread,
    "__name__": __name__, **{str(kind): kind for kind in (i8, i16, i32, u8, u16, u32, f16, bf16, f32, f64)},
}  # fmt: skip
VECTORS = 12
# A method, or an expression, of vectors v, w: (expression, lanes in, their count, lanes out, their count or 0, oracle).
TEXT = """
@kernel
def vector_{name}(out: KernelBuffer[{gives}], a: KernelBuffer[{takes}], b: KernelBuffer[{takes}], c: KernelBuffer[i32]):
    i = thread.global_id_x()
    v = a.vload[{count}]({count} * i)
    w = b.vload[{count}]({count} * i)
    r = {expression}
    out.vstore({length} * i, r)
"""
SCALAR = TEXT.replace("out.vstore({length} * i, r)", "out[i] = r")


def words(v):
    return np.ascontiguousarray(v).view(np.int32)


def signed(v):
    return v.view(np.int8).astype(np.int64)


def to_bf16(values):
    bits = np.asarray(values, np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    return np.where(np.isnan(values), values, (rounded & np.uint32(0xFFFF0000)).view(np.float32))


def in_order(products, start):
    total = start.copy()
    for lane in range(products.shape[1]):
        total = total + products[:, lane]
    return total


METHODS = {
    "as_unsigned": ("v.as_unsigned()", i16, 8, u16, 8, lambda v, w, c: v.view(np.uint16)),
    "as_signed": ("v.as_signed()", u8, 8, i8, 8, lambda v, w, c: v.view(np.int8)),
    "as_words": ("v.as_words()", u8, 16, i32, 4, lambda v, w, c: words(v)),
    "as_bytes": ("v.as_bytes()", u32, 4, i8, 16, lambda v, w, c: np.ascontiguousarray(v).view(np.int8)),
    "widen_lo": ("v.widen_lo()", i8, 16, i16, 8, lambda v, w, c: v[:, :8]),
    "widen_hi": ("v.widen_hi()", u16, 8, u32, 4, lambda v, w, c: v[:, 4:]),
    "widen_unsigned_bytes": ("v.widen_lo().widen_hi()", u8, 16, u32, 4, lambda v, w, c: v[:, 4:8]),
    "narrow": ("v.narrow(w)", i32, 4, i16, 8, lambda v, w, c: np.concatenate([v, w], 1).astype(np.int16)),
    "to_f32": ("v.to_f32()", u8, 8, f32, 8, lambda v, w, c: v),
    "to_f16": ("v.to_f16()", f32, 8, f16, 8, lambda v, w, c: v),
    "to_bf16": ("v.to_bf16()", f32, 4, bf16, 4, lambda v, w, c: v),
    "to_i32": ("v.to_i32()", i16, 8, i32, 8, lambda v, w, c: v),
    "to_i32_of_floats": ("Vector[f32, 4](v).to_i32()", i16, 4, i32, 4, lambda v, w, c: v),
    "bitcast_f32": ("v.bitcast_f32()", u32, 4, f32, 4, lambda v, w, c: np.ascontiguousarray(v).view(np.float32)),
    "bitcast_i32": ("v.bitcast_i32()", f32, 4, i32, 4, lambda v, w, c: words(v)),
    "lut4": ("v.lut4(w)", u8, 16, u8, 16, lambda v, w, c: np.take_along_axis(w, (v & 15).astype(int), 1)),
    "lut4_signed_table": ("v.lut4(w.as_signed()).as_signed()", u8, 16, i8, 16,
                          lambda v, w, c: np.take_along_axis(w.view(np.int8), (v & 15).astype(int), 1)),
    "dot_sum": ("v.dot_sum(w, c[i])", i8, 16, i32, 0, lambda v, w, c: (signed(v) * signed(w)).sum(1) + c),
    "dot_sum_unsigned": ("v.dot_sum(w.as_signed(), c[i])", u8, 16, i32, 0,
                         lambda v, w, c: (v.astype(np.int64) * signed(w)).sum(1) + c),
    # Weights are unsigned, activations too by their type: they count as signed all the same.
    "dot_sum_activations": ("v.dot_sum(w, c[i])", u8, 8, i32, 0,
                            lambda v, w, c: (v.astype(np.int64) * signed(w)).sum(1) + c),
    "dot_bytes": ("v.dot(w.as_unsigned(), c[i])", i8, 4, i32, 0, lambda v, w, c: (signed(v) * signed(w)).sum(1) + c),
    "dot_unsigned_bytes": ("v.dot(w)", u8, 4, i32, 0, lambda v, w, c: (v.astype(np.int64) * w.astype(np.int64)).sum(1)),
    "dot_f32": ("v.dot(w, f32(c[i]))", f32, 4, f32, 0, lambda v, w, c: in_order(v * w, c.astype(np.float32))),
    "dot_f16": ("v.dot(w)", f16, 4, f16, 0,
                lambda v, w, c: in_order(v.astype(np.float32) * w.astype(np.float32), np.zeros(len(v), np.float32))),
    "dot_accum": ("v.dot_accum(w, Vector[i32, 2](c[i], 7))", u8, 8, i32, 2,
                  lambda v, w, c: (v.astype(np.int64) * signed(w)).reshape(-1, 2, 4).sum(2)
                  + np.stack([c, 0 * c + 7], 1)),
    "operators": ("(v + w) * w - (v ^ w) + (v & 12)", i16, 8, i16, 8,
                  lambda v, w, c: (v + w) * w - (v ^ w) + (v & np.int16(12))),
    "shifts": ("(v >> 4) | (v << 3)", u8, 16, u8, 16, lambda v, w, c: (v >> np.uint8(4)) | (v << np.uint8(3))),
    "signed_shift": ("v >> 4", i8, 16, i8, 16, lambda v, w, c: v >> np.int8(4)),
    "float_operators": ("v * w + v / w", f32, 4, f32, 4, lambda v, w, c: v * w + v / w),
    "bfloat_operators": ("v.to_bf16() * w.to_bf16()", f32, 4, bf16, 4,
                         lambda v, w, c: to_bf16(to_bf16(v) * to_bf16(w))),
    "minimum": ("math.min(v, w)", u8, 8, u8, 8, lambda v, w, c: np.minimum(v, w)),
    "square_root": ("math.sqrt(v)", f32, 4, f32, 4, lambda v, w, c: np.sqrt(v)),
    "comparison": ("i32((v < w)[1]) + 2 * i32((v >= w)[3])", i32, 4, i32, 0,
                   lambda v, w, c: (v[:, 1] < w[:, 1]) + 2 * (v[:, 3] >= w[:, 3])),
    "lane": ("v[3] * 1", u8, 8, i32, 0, lambda v, w, c: v[:, 3]),
    "lane_of_words": ("i32(v.y) - 1", u16, 4, i32, 0, lambda v, w, c: v[:, 1].astype(np.int64) - 1),
    "lane_at_run_time": ("i32(v[c[i] & 7]) >> 1", u8, 8, i32, 0,
                         lambda v, w, c: np.take_along_axis(v, (c & 7)[:, None], 1)[:, 0].astype(np.int32) >> 1),
}  # fmt: skip


def on_vectors(takes, count, gives, length, oracle, data):
    n = VECTORS
    if takes in (f16, f32) and gives is not i32:
        a, b = data.floats(takes, n * count), data.floats(takes, n * count)
    else:
        a, b = data.of(takes, n * count), data.of(takes, n * count)
    c = data.integers(i32, n, *((-1000, 1000) if gives is f32 else ()))
    expected = np.asarray(oracle(a.reshape(n, count), b.reshape(n, count), c))
    if gives.kind == "int":
        expected = (
            expected.astype(np.int64).astype(gives.dtype)
            if expected.dtype.kind != "b"
            else expected.astype(gives.dtype)
        )
    return dict(
        grid=3, block=4, arguments=[np.zeros(n * max(length, 1), gives.dtype), a, b, c], expect={"out": expected}
    )  # fmt: skip


for NAME, (EXPRESSION, TAKES, COUNT, GIVES, LENGTH, ORACLE) in METHODS.items():
    FORM = (TEXT if LENGTH else SCALAR).format(
        name=NAME, takes=TAKES, gives=GIVES, count=COUNT, length=LENGTH, expression=EXPRESSION
    )
    globals()[f"vector_{NAME}"] = define(FORM, dict(NAMES), NAME)[f"vector_{NAME}"]
    globals()[f"on_vector_{NAME}"] = partial(on_vectors, TAKES, COUNT, GIVES, LENGTH, ORACLE)


@kernel
def vector_lanes(out: KernelBuffer[i32], a: KernelBuffer[u8]):
    """Lanes of unsigned vectors, read where their sign would show, and written one by one."""
    i = thread.global_id_x()
    v = a.vload[4](4 * i)
    r = Vector[i32, 4](9)
    r[0] = v[0]
    r[1] = v.y + 1000
    r[2] = v[2] >> 1
    r[3] = 1 if i32(v.w) > 127 else 0
    out.vstore(4 * i, r)


def on_vector_lanes(data):
    a = data.integers(u8, 64)
    v = a.reshape(16, 4).astype(np.int32)
    low = (v[:, 1] + 1000) % 256  # the literal takes the lane's type
    return dict(
        grid=2, block=8, arguments=[np.zeros(64, np.int32), a],
        expect={"out": np.stack([v[:, 0], low, v[:, 2] >> 1, v[:, 3] > 127], 1).astype(np.int32)},
    )  # fmt: skip
