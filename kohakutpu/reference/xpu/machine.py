"""The machine's arithmetic of single values: float16 and float32 are E8M15 words, an operation of the vector ALU each.

Memory keeps its own formats: a load widens FP16 exactly and rounds FP32, a store saturates to FP16 and is exact to
FP32. Source: spec/xpu.md 7.2 and 7.3; docs/formats.md. A float value is a word as an int; `arithmetic` has the same
functions for the host's rules, and everything of integers.
"""

from __future__ import annotations

import math

import numpy as np

from kohakutpu.formats import alu, e8m15
from kohakutpu.formats.alu import AluOp
from kohakutpu.xpu import tree
from kohakutpu.xpu.errors import Refusal
from kohakutpu.xpu.types import BOOL, Op, Scalar, SliceType, TileType, VectorType, WaveVectorType, bf16, f16, f64

from . import arithmetic as host

LOG2_E, LN_2, LOG10_2 = math.log2(math.e), math.log(2.0), math.log10(2.0)


def _execute(op: AluOp, **operands: int) -> int:
    fields = dict.fromkeys("abc") | {field: np.array([word], np.uint32) for field, word in operands.items()}
    return int(alu.execute(op, **fields)[0][0])


def literal(kind: Scalar, value):
    """A constant as an instruction carries it: truncated."""
    return e8m15.constant(value) if kind.kind == "float" else value


def zero(kind: Scalar):
    """The value of a local without an initialiser."""
    return False if kind is BOOL else 0


def read(array: np.ndarray, kind: Scalar, index: int):
    """An element as a value."""
    if kind.kind != "float":
        return host.read(array, kind, index)
    bits = array[index : index + 1].view(f"uint{kind.bits}")
    return int((e8m15.from_fp16 if kind is f16 else e8m15.from_fp32)(bits)[0])


def write(array: np.ndarray, kind: Scalar, index: int, value) -> None:
    """A value as an element."""
    if kind.kind != "float":
        host.write(array, kind, index, value)
        return
    word = np.array([value], np.uint32)
    array[index : index + 1] = (e8m15.to_fp16 if kind is f16 else e8m15.to_fp32)(word).view(kind.dtype)


def convert(value, source: Scalar, target: Scalar):
    """Rule 9. To float16 rounds and saturates; an integer is a constant of the instruction stream."""
    if source.kind == "float":
        if target is BOOL:
            return bool(value & e8m15.MAGNITUDE)
        word = np.array([value], np.uint32)
        return int(e8m15.from_fp16(e8m15.to_fp16(word))[0]) if target is f16 and source is not f16 else value
    if target.kind == "float":
        return e8m15.constant(float(int(value)))
    return host.convert(value, source, target)


def chosen(kind, value):
    """What a select writes: zeros and NaNs are made canonical."""
    element = kind.element if isinstance(kind, VectorType) else kind
    if element.kind != "float":
        return value
    words = np.array(value if isinstance(value, tuple) else (value,), np.uint32)
    found = tuple(map(int, alu.canonical(words)))
    return found if isinstance(value, tuple) else found[0]


def binary(op: str, kind: Scalar, left, right):
    """One operation; a quotient is the product with the reciprocal."""
    if kind.kind != "float":
        return host.binary(op, kind, left, right)
    if op == "add":
        return _execute(AluOp.VADD, a=left, c=right)
    if op == "sub":
        return _execute(AluOp.VSUB, a=left, c=right)
    return _execute(AluOp.VMUL, a=left, b=right if op == "mul" else _execute(AluOp.VINV, a=right))


def compare(op: str, kind: Scalar, left, right) -> bool:
    """A comparison; != of a NaN is true, all others false."""
    if kind.kind != "float":
        return host.compare(op, kind, left, right)
    a, b = np.array([left], np.uint32), np.array([right], np.uint32)
    less, greater, equal = (bool(test(a, b)[0]) for test in (alu.less, alu.greater, alu.equal))
    return {"lt": less, "gt": greater, "eq": equal, "le": less or equal, "ge": greater or equal, "ne": not equal}[op]


def negate(kind: Scalar, value):
    """Rule 8."""
    return _execute(AluOp.VNEG, a=value) if kind.kind == "float" else host.negate(kind, value)


def _product(value: int, factor: float) -> int:
    return _execute(AluOp.VMUL, a=value, b=e8m15.constant(factor))


_ONE = {"exp2": AluOp.VEXP2, "log2": AluOp.VLOG2, "rsqrt": AluOp.VRSQRT, "abs": AluOp.VABS}
FUNCTIONS = {
    **{name: lambda a, op=op: _execute(op, a=a) for name, op in _ONE.items()},
    "min": lambda a, b: _execute(AluOp.VMIN, a=a, b=b),
    "max": lambda a, b: _execute(AluOp.VMAX, a=a, b=b),
    "fma": lambda a, b, c: _execute(AluOp.VFMA, a=a, b=b, c=c),
    "sqrt": lambda a: _execute(AluOp.VMUL, a=a, b=_execute(AluOp.VRSQRT, a=a)),
    "exp": lambda a: _execute(AluOp.VEXP2, a=_product(a, LOG2_E)),
    "log": lambda a: _product(_execute(AluOp.VLOG2, a=a), LN_2),
    "log10": lambda a: _product(_execute(AluOp.VLOG2, a=a), LOG10_2),
    "pow": lambda a, b: _execute(AluOp.VEXP2, a=_execute(AluOp.VMUL, a=b, b=_execute(AluOp.VLOG2, a=a))),
}


def function(name: str, kind: Scalar, *values):
    """A function below `math`, composed of seeds and products."""
    return FUNCTIONS[name](*values) if kind.kind == "float" else host.function(name, kind, *values)


def identity(op: Op):
    """What an inactive lane holds in a float reduction."""
    return {Op.ADD: 0, Op.MAX: e8m15.SIGN | e8m15.INFINITY, Op.MIN: e8m15.INFINITY}[op]


def combine(op: Op, left, right):
    """One step of a float reduction."""
    code = {Op.ADD: AluOp.VADD, Op.MAX: AluOp.VMAX, Op.MIN: AluOp.VMIN}[op]
    return _execute(code, a=left, **{"c" if op is Op.ADD else "b": right})


def dot(kind: Scalar, left: tuple, right: tuple, total):
    """Products summed in lane order, an operation each."""
    for a, b in zip(left, right, strict=True):
        total = binary("add", kind, total, binary("mul", kind, a, b))
    return total


NOT_HERE = {"f32_to_bits", "bits_to_f32", "f64_to_bits", "bits_to_f64", "vector.bitcast_f32", "vector.to_i32",
            "tile.scaled_accum_into", "tile.scaled_accum_into2", "tile.rank1_accum", "tile.scaled_accum_i32",
            "tile.from_words"}  # fmt: skip


def _refused(node: tree.Node) -> str | None:
    kind = getattr(node, "type", None) or getattr(getattr(node, "variable", None), "type", None)
    held = (VectorType, TileType, SliceType, WaveVectorType)
    element = kind.element if isinstance(kind, held) or hasattr(kind, "element") else kind
    if element in (f64, bf16):
        wide = "; f32(...) says a literal's width" if element is f64 else ""
        return f"{element} on the machine, which computes in E8M15 from float16 and float32 memory{wide}"
    if isinstance(kind, TileType) and (kind.element.kind == "int" or (kind.use < 2 and kind.element is not f16)):
        return f"{kind} on the machine: operands are float16, and products of integers are not exact there"
    if isinstance(node, tree.Convert):
        source = getattr(node.value.type, "element", node.value.type)
        if getattr(source, "kind", "") == "float" and element.kind == "int":
            return f"{source} to {element} on the machine, which has no integers in its vector core"
    if isinstance(node, tree.Binary) and element.kind == "float" and node.op == "rem":
        return "rem of floats on the machine"
    if isinstance(node, tree.Invoke):
        name = node.verb.partition(".")[2]
        unknown = node.verb.startswith("math.") and element.kind == "float" and name not in FUNCTIONS
        of_float = node.verb.startswith("memory.") and element.kind == "float"
        if node.verb in NOT_HERE or unknown or of_float:
            return f"{node.verb} on the machine"
        fills = node.verb in ("tile.splat", "tile.load") and node.arguments[0].type.use == 2
        if fills and not (node.verb == "tile.splat" and _is_zero(node.arguments[1])):
            return f"{node.verb} of an accumulator on the machine, where it starts at zero"
    return None


def _is_zero(value: tree.Expression) -> bool:
    return _is_zero(value.value) if isinstance(value, tree.Convert) else getattr(value, "value", None) == 0


def refusals(program: tree.Program) -> list[Refusal]:
    """What the machine's arithmetic does not define in a kernel, one entry for a line and reason."""
    found: dict[tuple, Refusal] = {}
    for function in program.functions:
        inside = "" if function is program.kernel else function.name
        parts = [tree.Read(p.at, p.type, p) for p in function.parameters]
        parts += [node for statement in function.body for node in tree.walk(statement)]
        for node in parts:
            why = _refused(node)
            if why:
                found.setdefault((why, node.at.line), Refusal(why, node.at, inside))
    return list(found.values())
