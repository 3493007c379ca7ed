"""Which operations a kernel exercises, and on which types: what a census of a corpus counts.

An operation is an operator, a conversion, an access of memory, a built-in or a statement; its type is the primitive
that it works on, "" where it has none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from kohakutpu.xpu import tree
from kohakutpu.xpu.kernel import Kernel
from kohakutpu.xpu.types import BOOL, MEMORY, Scalar, TileType, VectorType, bf16, f16, f32, f64
from kohakutpu.xpu.types import i8, i16, i32, i64, u8, u16, u32, u64  # fmt: skip

INTEGERS = (i8, i16, i32, i64, u8, u16, u32, u64)
FLOATS = (f16, bf16, f32, f64)
ARITHMETIC = ("add", "sub", "mul", "div", "rem")
BITWISE = ("and", "or", "xor", "shl", "shr", "lshr")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
STATEMENTS = {
    tree.If: "if", tree.While: "while", tree.ForRange: "for range", tree.ForStripe: "for stripe",
    tree.ForBuffer: "for buffer", tree.Break: "break", tree.Continue: "continue", tree.Return: "return",
    tree.Call: "call", tree.CallTag: "call of a function value", tree.Logical: "and, or", tree.Select: "choice",
    tree.Assigned: "walrus", tree.Slice: "slice", tree.MakeWaveVector: "wave vector",
}  # fmt: skip

Operation = tuple[str, str]


def _element(kind) -> str:
    """The primitive of a type; "" of what has none."""
    if isinstance(kind, (VectorType, TileType, MEMORY)):
        kind = kind.element
    return str(kind) if isinstance(kind, Scalar) else ""


def _memory(node) -> str:
    return "Shared" if node.memory.variable.kind == "shared" else "buffer"


def operation(node: tree.Node) -> Operation | None:
    """(what a node does, on which type), or None for a node that is part of another operation."""
    lanes = " of vectors" if isinstance(getattr(node, "type", None), VectorType) else ""
    match node:
        case tree.Binary(op=op) | tree.Unary(op=op):
            return op + lanes, _element(node.type)
        case tree.Compare(op=op, left=left):
            return op, _element(left.type)
        case tree.Convert(value=value):
            return f"convert to {_element(node.type)}", _element(value.type)
        case tree.Load():
            return f"load from {_memory(node)}", _element(node.type)
        case tree.LoadVector():
            return f"vload from {_memory(node)}", _element(node.type)
        case tree.Store():
            return f"store to {_memory(node)}", _element(node.memory.type)
        case tree.StoreVector():
            return f"vstore to {_memory(node)}", _element(node.memory.type)
        case tree.Lane(vector=vector):
            return "lane", _element(vector.type)
        case tree.AssignLane(variable=variable):
            return "lane assigned", _element(variable.type)
        case tree.Invoke(verb=verb, arguments=arguments):
            kinds = [node.type, *(argument.type for argument in arguments)]
            if verb.partition(".")[0] in ("memory", "tile", "vector"):
                kinds = kinds[1:]
            return verb, next((_element(kind) for kind in kinds if _element(kind)), "")
    return (STATEMENTS[type(node)], "") if type(node) in STATEMENTS else None


def operations(kernel: Kernel) -> set[Operation]:
    """Every operation of a kernel and its helpers."""
    statements = (statement for function in kernel.program.functions for statement in function.body)
    return {found for one in statements for node in tree.walk(one) if (found := operation(node))}


def universe() -> set[Operation]:
    """The operators, comparisons, conversions and accesses that the language has, on every type that takes them."""
    found = {(op, str(kind)) for op in ARITHMETIC for kind in (*INTEGERS, *FLOATS)}
    found |= {(op, str(kind)) for op in (*BITWISE, "invert") for kind in INTEGERS}
    found |= {("neg", str(kind)) for kind in (*INTEGERS, *FLOATS)} | {("not", "bool")}
    found |= {(op, str(kind)) for op in COMPARISONS for kind in (*INTEGERS, *FLOATS)}
    found |= {(op, "bool") for op in ("eq", "ne", "and", "or")}
    kinds = (BOOL, *INTEGERS, *FLOATS)
    found |= {(f"convert to {a}", str(b)) for a in kinds for b in kinds if a is not b}
    places = [f"{verb} {memory}" for verb in ("load from", "store to") for memory in ("buffer", "Shared")]
    return found | {(place, str(kind)) for place in places for kind in kinds}


def counted(kernels: Iterable[Kernel]) -> dict[Operation, set[str]]:
    """{operation: the names of the kernels that exercise it}."""
    found: dict[Operation, set[str]] = defaultdict(set)
    for kernel in kernels:
        for one in operations(kernel):
            found[one].add(kernel.name)
    return dict(found)
