"""Every built-in of the kernel language (spec/xpu.md 1.8 and 1.9), and the types of those that are no methods.

`VERBS` is the one table. The front end types calls from it, the interpreter and the lowerings implement its names. A
name is the seed's in snake case (`Wave.reduceSumF32` is `wave.reduce_sum_f32`); "vector.", "tile." and "memory."
mark methods, whose first argument is the receiver.
"""

from __future__ import annotations

from . import tile_verbs, vector_verbs  # noqa: F401 - they enter their methods into the table
from .conversions import alike, assign, cast, element_of, index, is_number, refuse, wider_float, with_element
from .tree import Expression, Splat
from .types import (
    BOOL, MEMORY, VOID, BufferType, MemoryOrder, Op, Scalar, SharedType, VectorType, f32, f64, i8, i32, i64, u32, u64,
)  # fmt: skip
from .verb_table import VERBS, Verb, argument, declare, fixed

__all__ = ["VERBS", "Verb"]


def _simple(name: str, parameters: tuple, gives, **more) -> None:
    declare(name, (len(parameters),), fixed(*parameters, gives=gives), **more)


# Coordinates.
for _name in ("x", "y", "z", "global_id_x", "global_id_y", "global_id_z"):
    _simple(f"thread.{_name}", (), u32)
_simple("thread.clock", (), u64)
for _name in ("x", "y", "z", "dim_x", "dim_y", "dim_z"):
    _simple(f"workgroup.{_name}", (), u32)
_simple("group.width", (), i32, width=True)
_simple("group.lane_id", (), i32, width=True)
_simple("group.row_id", (), i32)
_simple("wave.width", (), u32, width=True)
_simple("wave.lane_id", (), u32, width=True)
_simple("wave.is_first_lane", (), BOOL, width=True)

# Barriers and fences.
ORDER = (("order", MemoryOrder, MemoryOrder.ACQ_REL),)
_simple("barrier.workgroup", (), VOID, rendezvous="workgroup")
_simple("barrier.wave", (), VOID, rendezvous="wave", width=True)
_simple("barrier.workgroup_memory", (), VOID, options=ORDER)
_simple("barrier.device_memory", (), VOID, options=ORDER)


def _wave(name: str, parameters: tuple, gives, **more) -> None:
    _simple(f"wave.{name}", parameters, gives, rendezvous="wave", width=True, **more)


# Waves.
for _form in ("shuffle", "shuffle_xor", "shuffle_up", "shuffle_down"):
    _wave(f"{_form}_sync", (u32, u32), u32)
    _wave(f"{_form}_sync_i64", (i64, u32), i64)
_wave("shuffle_sync_f32", (f32, u32), f32)
_wave("shuffle_xor_sync_f32", (f32, u32), f32)
_wave("rotate", (u32, u32), u32)
_wave("ballot_sync", (BOOL,), u64)
for _form in ("sum", "max", "min", "and", "or", "xor"):
    _wave(f"reduce_{_form}", (u32,), u32)
for _form in ("sum", "max", "min"):
    _wave(f"reduce_{_form}_i64", (i64,), i64)
    _wave(f"reduce_{_form}_f32", (f32,), f32)
for _form in ("sum", "max"):
    _wave(f"reduce_{_form}_f32_segmented", (f32, u32), f32)
_wave("prefix_sum", (u32,), u32)
_wave("prefix_product", (u32,), u32)
_wave("prefix_sum_i64", (i64,), i64)

# Groups, workgroups, quads.
OPERATION = (("op", Op, None),)
_simple("group.reduce", (f32,), f32, rendezvous="wave", width=True, options=OPERATION)
_simple("group.reduce_segmented", (u32, f32), f32, rendezvous="wave", width=True, options=OPERATION)
_simple("group.mac", (i32, VectorType(i8, 16), VectorType(i8, 16)), i32)
for _form in ("horizontal", "vertical", "diagonal"):
    _simple(f"quad.swap_{_form}", (u32,), u32, rendezvous="wave", width=True)
_simple("quad.broadcast", (u32, u32), u32, rendezvous="wave", width=True)
_simple("quad.all", (BOOL,), BOOL, rendezvous="wave", width=True)
_simple("quad.any", (BOOL,), BOOL, rendezvous="wave", width=True)


def _workgroup_verb(name: str, kinds: tuple[Scalar, ...]) -> None:
    def typing(arguments, at):
        (value,) = arguments
        if value.type not in kinds:
            refuse(f"{name} of {value.type}; it takes {', '.join(map(str, kinds))}", at)
        return [value], value.type

    declare(name, (1,), typing, rendezvous="workgroup", width=True, options=OPERATION)


_workgroup_verb("workgroup.reduce", (f32, i32, i64))
_workgroup_verb("workgroup.scan", (i32, i64))


# Mathematics: lane by lane over vectors, a scalar beside a vector in every lane.
def _floats(arguments: list[Expression]) -> list[Expression]:
    """The arguments in the widest float among them; an integer becomes float32 unless it is a literal that adapts."""
    kinds = []
    for value in arguments:
        element = element_of(value.type) if is_number(value.type) else None
        if element is None or element is BOOL:
            refuse(f"a number or a vector is taken, not {value.type}", value.at)
        bare = getattr(value, "bare", False) and element.kind == "int"
        kinds += [] if bare else [element if element.kind == "float" else f32]
    wide = kinds[0] if kinds else f32
    for kind in kinds[1:]:
        wide = wider_float(wide, kind)
    return _lanes([cast(value, with_element(value.type, wide)) for value in arguments])


def _lanes(arguments: list[Expression]) -> list[Expression]:
    """Vectors of one lane count, scalars spread over it."""
    vectors = [value.type for value in arguments if isinstance(value.type, VectorType)]
    if not vectors:
        return arguments
    if len({kind.count for kind in vectors}) > 1:
        refuse("the lane counts differ", arguments[0].at)
    return [
        value if isinstance(value.type, VectorType)
        else Splat(value.at, VectorType(value.type, vectors[0].count), value)
        for value in arguments
    ]  # fmt: skip


def _float_function(arguments, at):
    arguments = _floats(arguments)
    return arguments, arguments[0].type


def _chosen(arguments, at):
    left, right = arguments
    if isinstance(left.type, VectorType) != isinstance(right.type, VectorType):
        vector, scalar = (left, right) if isinstance(left.type, VectorType) else (right, left)
        spread = assign(scalar, vector.type.element, f"the scalar beside {vector.type}")
        left, right = _lanes([spread if value is scalar else value for value in arguments])
    left, right = alike(left, right, "min or max", at)
    if not is_number(left.type) or element_of(left.type) is BOOL:
        refuse(f"min or max of {left.type}", at)
    return [left, right], left.type


def _absolute(arguments, at):
    (value,) = arguments
    if not is_number(value.type) or element_of(value.type) is BOOL:
        refuse(f"abs of {value.type}", at)
    return arguments, value.type


ONE_ARGUMENT = (
    "floor", "ceil", "trunc", "round", "sqrt", "exp", "exp2", "log", "log2", "log10", "sin", "cos", "tan", "asin",
    "acos", "atan", "rsqrt",
)  # fmt: skip
for _name in ONE_ARGUMENT:
    declare(f"math.{_name}", (1,), _float_function)
for _name in ("atan2", "pow"):
    declare(f"math.{_name}", (2,), _float_function)
declare("math.fma", (3,), _float_function)
declare("math.min", (2,), _chosen)
declare("math.max", (2,), _chosen)
declare("math.abs", (1,), _absolute)

# Bits.
_simple("bits_to_f32", (i32,), f32)
_simple("f32_to_bits", (f32,), i32)
_simple("bits_to_f64", (i64,), f64)
_simple("f64_to_bits", (f64,), i64)
_simple("bits.count", (u32,), u32)
_simple("bits.reverse", (u32,), u32)
_simple("bits.rotate_left", (u32, u32), u32)
_simple("bits.rotate_right", (u32, u32), u32)
_simple("bits.permute", (u32, u32, u32), u32)


# Atomics: load, operate, store in work-item order; the value is the old one.
def _atomic(name: str, floats: bool, extra: int = 0) -> None:
    def typing(arguments, at):
        memory, position, *values = arguments
        if not isinstance(memory.type, MEMORY):
            refuse(f"{name} of {memory.type}; atomics work on buffers and Shared", at)
        element = memory.type.element
        if element.kind == "float" and (element is not f32 or not floats):
            refuse(f"{name} on {element}: float atomics are add, min, max, exchange and compare_exchange on f32", at)
        if element.kind != "float" and element.bits < 32:
            refuse(f"{name} on {element}: atomics have 32 or 64 bits", at)
        values = [assign(value, element, "an atomic's operand") for value in values]
        return [memory, index(position), *values], element

    declare(f"memory.{name}", (3 + extra,), typing, options=(("order", MemoryOrder, MemoryOrder.RELAXED),), atomic=True)


for _name in ("add", "min", "max", "exchange"):
    _atomic(f"atomic_{_name}", True)
for _name in ("sub", "and", "or", "xor"):
    _atomic(f"atomic_{_name}", False)
_atomic("atomic_compare_exchange", True, 1)


# Copies into Shared memory, striped over the workgroup.
def _copy(arguments, at):
    into, into_at, source, source_at, count = arguments
    if not isinstance(into.type, SharedType) or not isinstance(source.type, BufferType):
        refuse(f"async_copy.copy from {source.type} to {into.type}; it goes from a buffer to Shared", at)
    if into.type.element != source.type.element:
        refuse(f"async_copy.copy of {source.type.element} into {into.type.element}", at)
    numbers = [argument(value, i64, at) for value in (into_at, source_at, count)]
    return [into, numbers[0], source, numbers[1], numbers[2]], VOID


declare("async_copy.copy", (5,), _copy)
_simple("async_copy.commit", (), VOID)
_simple("async_copy.wait", (i32,), VOID)
