"""Methods of vectors (spec/xpu.md 1.9): their types. What they mean is `reference.xpu.vectors`."""

from __future__ import annotations

from .conversions import assign, cast, refuse, wider_float
from .types import VectorType, bf16, f16, f32, i8, i32, integer
from .verb_table import declare


def _vector(value, at, bits: int | None = None, kind: str | None = None, multiple: int = 1) -> VectorType:
    """The type of a vector argument, refused unless it has such lanes."""
    have = value.type
    wanted = f"{bits or 'any'}-bit {kind or 'number'} lanes, a multiple of {multiple} of them"
    if (
        not isinstance(have, VectorType)
        or (bits and have.element.bits != bits)
        or (kind and have.element.kind != kind)
        or have.element.kind == "bool"
        or have.count % multiple
    ):
        refuse(f"{have} where a vector of {wanted} is taken", at)
    return have


def _signedness(signed: bool):
    def typing(arguments, at):
        have = _vector(arguments[0], at, kind="int")
        return arguments, VectorType(integer(have.element.bits, signed), have.count)

    return typing


def _as_words(arguments, at):
    have = _vector(arguments[0], at, 8, "int", 4)
    return arguments, VectorType(i32, have.count // 4)


def _as_bytes(arguments, at):
    have = _vector(arguments[0], at, 32, "int")
    return arguments, VectorType(i8, have.count * 4)


def _widen(arguments, at):
    have = _vector(arguments[0], at, kind="int", multiple=2)
    if have.element.bits == 64:
        refuse("64-bit lanes do not widen", at)
    return arguments, VectorType(integer(have.element.bits * 2, have.element.signed), have.count // 2)


def _narrow(arguments, at):
    first = _vector(arguments[0], at, kind="int")
    if first.element.bits == 8:
        refuse("8-bit lanes do not narrow", at)
    if arguments[1].type != first:
        refuse(f"narrow of {first} and {arguments[1].type}: two vectors of one type are taken", at)
    return arguments, VectorType(integer(first.element.bits // 2, first.element.signed), first.count * 2)


def _to(element, kind=None):
    def typing(arguments, at):
        have = _vector(arguments[0], at, kind=kind)
        return arguments, VectorType(element, have.count)

    return typing


def _bitcast(element):
    def typing(arguments, at):
        have = _vector(arguments[0], at, 32)
        return arguments, VectorType(element, have.count)

    return typing


def _lut4(arguments, at):
    have = _vector(arguments[0], at, kind="int")
    table = _vector(arguments[1], at, 8, "int")
    if table.count != 16:
        refuse(f"a table of {table.count} entries; lut4 takes 16", at)
    return arguments, have


def _dot_sum(arguments, at):
    weights = _vector(arguments[0], at, 8, "int", 4)
    activations = _vector(arguments[1], at, 8, "int", 4)
    if weights.count != activations.count:
        refuse(f"dot_sum of {weights} and {activations}: the lane counts differ", at)
    return [*arguments[:2], assign(arguments[2], i32, "the accumulator")], i32


def _dot(arguments, at):
    left, right = (_vector(value, at) for value in arguments[:2])
    if left.count != right.count or left.element.kind != right.element.kind:
        refuse(f"dot of {left} and {right}", at)
    if left.element.kind == "int":
        if left.element.bits != 8 or right.element.bits != 8 or left.count != 4:
            refuse(f"dot of {left}: integers are exactly 4 lanes of 8 bits; dot_sum takes more", at)
        element = i32
    else:
        element = wider_float(left.element, right.element)
        arguments = [cast(value, VectorType(element, left.count)) for value in arguments[:2]] + arguments[2:]
    return [*arguments[:2], *(assign(value, element, "the accumulator") for value in arguments[2:])], element


def _dot_accum(arguments, at):
    weights = _vector(arguments[0], at, 8, "int", 4)
    activations = _vector(arguments[1], at, 8, "int", 4)
    sums = _vector(arguments[2], at, 32, "int")
    if not weights.count == activations.count == 4 * sums.count:
        refuse(f"dot_accum of {weights} and {activations} into {sums}: 4 lanes go to each sum", at)
    return arguments, sums


declare("vector.as_unsigned", (1,), _signedness(False))
declare("vector.as_signed", (1,), _signedness(True))
declare("vector.as_words", (1,), _as_words)
declare("vector.as_bytes", (1,), _as_bytes)
declare("vector.widen_lo", (1,), _widen)
declare("vector.widen_hi", (1,), _widen)
declare("vector.narrow", (2,), _narrow)
declare("vector.to_f32", (1,), _to(f32))
declare("vector.to_f16", (1,), _to(f16, "float"))
declare("vector.to_bf16", (1,), _to(bf16))
declare("vector.to_i32", (1,), _to(i32))
declare("vector.bitcast_f32", (1,), _bitcast(f32))
declare("vector.bitcast_i32", (1,), _bitcast(i32))
declare("vector.lut4", (2,), _lut4)
declare("vector.dot_sum", (3,), _dot_sum)
declare("vector.dot", (2, 3), _dot)
declare("vector.dot_accum", (3,), _dot_accum)
