"""Vector methods, bits and reinterpretation (spec/xpu.md 1.9) on tuples of lane values."""

from __future__ import annotations

import numpy as np

from kohakutpu.xpu.types import Scalar, VectorType, f32, i8, i32, integer

from . import arithmetic
from .arithmetic import convert, wrap

MASK = 0xFFFF_FFFF


def bits_to_float(value: int, bits: int):
    """The float of a width whose bits are an integer's."""
    return np.array(value & (1 << bits) - 1, f"uint{bits}").view(f"float{bits}")[()]


def float_to_bits(value, bits: int) -> int:
    """A float's bits as a signed integer."""
    return int(np.array(value, f"float{bits}").view(f"int{bits}"))


def rotate_left(value: int, amount: int) -> int:
    """32 bits to the left, the amount taken mod 32."""
    amount %= 32
    return (value << amount | value >> (32 - amount)) & MASK


def permute(low: int, high: int, selector: int) -> int:
    """Byte i of the result is the byte of {low, high} that the low three bits of selector nibble i name."""
    data = (low | high << 32).to_bytes(8, "little")
    return int.from_bytes(bytes(data[selector >> 4 * i & 7] for i in range(4)), "little")


PLAIN = {
    "bits_to_f32": lambda value: bits_to_float(value, 32),
    "bits_to_f64": lambda value: bits_to_float(value, 64),
    "f32_to_bits": lambda value: float_to_bits(value, 32),
    "f64_to_bits": lambda value: float_to_bits(value, 64),
    "bits.count": int.bit_count,
    "bits.reverse": lambda value: int(f"{value:032b}"[::-1], 2),
    "bits.rotate_left": rotate_left,
    "bits.rotate_right": lambda value, amount: rotate_left(value, -amount),
    "bits.permute": permute,
}


def _convert_lanes(vector, kind: VectorType, gives: VectorType, values=arithmetic):
    return tuple(values.convert(lane, kind.element, gives.element) for lane in vector)


def _as_words(vector, kind, gives, values):
    data = bytes(lane & 0xFF for lane in vector)
    return tuple(int.from_bytes(data[i : i + 4], "little", signed=True) for i in range(0, len(data), 4))


def _as_bytes(vector, kind, gives, values):
    return tuple(wrap(i8, lane >> 8 * i) for lane in vector for i in range(4))


def _widen_lo(vector, kind, gives, values):
    return vector[: gives.count]


def _widen_hi(vector, kind, gives, values):
    return vector[gives.count :]


def _narrow(vector, kind, gives, values, other, _):
    return tuple(wrap(gives.element, lane) for lane in vector + other)


def _bitcast(vector, kind: VectorType, gives: VectorType, values):
    if kind.element.kind == gives.element.kind == "int":
        return _convert_lanes(vector, kind, gives)
    if gives.element is f32:
        return vector if kind.element is f32 else tuple(bits_to_float(lane, 32) for lane in vector)
    return tuple(float_to_bits(lane, 32) for lane in vector)


def _lut4(vector, kind, gives, values, table, table_kind):
    return tuple(convert(table[lane & 15], table_kind.element, gives.element) for lane in vector)


def _signed(lane: int) -> int:
    return wrap(i8, lane)


def _dot_sum(vector, kind, gives, values, activations, _, total, __):
    return wrap(i32, total + sum(w * _signed(a) for w, a in zip(vector, activations, strict=True)))


def _dot(vector, kind: VectorType, gives: Scalar, values, other, _, *accumulator):
    if kind.element.kind == "int":
        own = integer(8, kind.element.signed)
        total = sum(a * wrap(own, b) for a, b in zip(vector, other, strict=True))
        return wrap(i32, total + (accumulator[0] if accumulator else 0))
    return values.dot(gives, vector, other, accumulator[0] if accumulator else values.zero(gives))


def _dot_accum(vector, kind, gives, values, activations, _, sums, __):
    products = [w * _signed(a) for w, a in zip(vector, activations, strict=True)]
    return tuple(wrap(gives.element, total + sum(products[4 * j : 4 * j + 4])) for j, total in enumerate(sums))


METHODS = {
    "as_unsigned": _convert_lanes, "as_signed": _convert_lanes, "to_f32": _convert_lanes, "to_f16": _convert_lanes,
    "to_bf16": _convert_lanes, "to_i32": _convert_lanes, "as_words": _as_words, "as_bytes": _as_bytes,
    "widen_lo": _widen_lo, "widen_hi": _widen_hi, "narrow": _narrow, "bitcast_f32": _bitcast, "bitcast_i32": _bitcast,
    "lut4": _lut4, "dot_sum": _dot_sum, "dot": _dot, "dot_accum": _dot_accum,
}  # fmt: skip


def method(name: str, arguments: list, kinds: list, gives, values=arithmetic):
    """A vector method: the receiver first, then each argument with its type. `values` says what a float is."""
    rest = [part for pair in zip(arguments[1:], kinds[1:], strict=True) for part in pair]
    return METHODS[name](arguments[0], kinds[0], gives, values, *rest)
