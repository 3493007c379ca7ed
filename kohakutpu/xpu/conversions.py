"""Which type an operator works in: the literal, mixing, shift and comparison rules of spec/xpu.md 2.3.

Everything here returns expressions whose conversions are explicit; nothing computes a value.
"""

from __future__ import annotations

from typing import NoReturn

from .errors import Source
from .tree import Binary, Compare, Convert, Expression, Literal, Splat
from .types import BOOL, MEMORY, FunctionType, Scalar, VectorType, f32, f64, i32, i64, integer

ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "div": "/", "rem": "%"}
BITWISE = {"and": "&", "or": "|", "xor": "^"}
SHIFTS = {"shl": "<<", "shr": ">>", "lshr": "lshr"}
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
SPELLING = ARITHMETIC | BITWISE | SHIFTS | COMPARISONS


class Unread(Exception):
    """A construct that has no meaning; `construct` None when it has been reported already."""

    def __init__(self, construct: str | None, at: Source | None = None):
        super().__init__(construct)
        self.construct, self.at = construct, at


def refuse(construct: str, at: Source) -> NoReturn:
    """End the reading of a statement."""
    raise Unread(construct, at)


def integer_literal(value: int, at: Source) -> Literal:
    """Rule 1: int32, or int64 past it."""
    if not i64.low <= value <= i64.high:
        refuse(f"the integer {value} is past int64; u64({value}) says it", at)
    return Literal(at, i32 if i32.low <= value <= i32.high else i64, value, bare=True)


def element_of(kind) -> Scalar:
    """The primitive of a scalar or vector type."""
    return kind.element if isinstance(kind, VectorType) else kind


def is_number(kind) -> bool:
    """True for primitives and vectors."""
    return isinstance(kind, (Scalar, VectorType))


def with_element(kind, element: Scalar):
    """The same shape with other elements."""
    return VectorType(element, kind.count) if isinstance(kind, VectorType) else element


def cast(value: Expression, kind, at: Source | None = None) -> Expression:
    """An explicit conversion between primitives, or lane by lane (rule 9)."""
    if value.type == kind:
        return value
    at = at or value.at
    bare = isinstance(value, Literal) and isinstance(kind, Scalar)
    if bare and kind.kind == "int" and value.type.kind == "int" and kind.low <= value.value <= kind.high:
        return Literal(at, kind, value.value)
    if bare and kind.kind == "float" and value.type == f64:
        return Literal(at, kind, value.value)
    return Convert(at, kind, value)


def assign(value: Expression, kind, what: str, at: Source | None = None) -> Expression:
    """The conversion of an assignment, an argument or a result to a declared type (rule 10)."""
    at = at or value.at
    have = value.type
    if have == kind:
        return value
    if isinstance(have, VectorType) and isinstance(kind, VectorType) and have.count != kind.count:
        refuse(f"{what}: {have.count} lanes cannot become {kind.count}", at)
    if is_number(have) and is_number(kind) and isinstance(have, VectorType) == isinstance(kind, VectorType):
        if (element_of(have) is BOOL) != (element_of(kind) is BOOL):
            refuse(f"{what}: {have} does not become {kind} by itself; {element_of(kind)}(...) says it", at)
        return cast(value, kind, at)
    if isinstance(have, Scalar) and isinstance(kind, VectorType):
        refuse(f"{what}: a scalar is not a vector; {kind}(...) broadcasts it", at)
    refuse(f"{what}: {kind} expected, not {have}", at)


def condition(value: Expression, what: str) -> Expression:
    """Rule 13: conditions are bool."""
    if value.type is not BOOL:
        refuse(f"{what} must be bool, not {value.type}; compare it (x != 0)", value.at)
    return value


def index(value: Expression, what: str = "an index") -> Expression:
    """Rule 12: an index is an integer."""
    if not isinstance(value.type, Scalar) or value.type.kind != "int":
        refuse(f"{what} must be an integer, not {value.type}", value.at)
    return value


def wider_float(left: Scalar, right: Scalar) -> Scalar:
    """Rule 6 for two types of which one is a float."""
    floats = [t for t in (left, right) if t.kind == "float"]
    if f64 in floats:
        return f64
    return floats[0] if len(set(floats)) == 1 else f32


def common(op: str, left: Expression, right: Expression, at: Source) -> Scalar:
    """The primitive that both operands of `op` become. Both must be numbers."""
    lt, rt = element_of(left.type), element_of(right.type)
    sign = SPELLING[op]
    lbare, rbare = getattr(left, "bare", False), getattr(right, "bare", False)
    if BOOL in (lt, rt):
        if lt is not rt or op not in ("eq", "ne", "and", "or", "xor"):
            refuse(f"{lt} {sign} {rt}: bool goes only with bool, in == != & | ^", at)
        return BOOL
    if lbare != rbare and (lt if lbare else rt).kind == "int":
        lt = rt = rt if lbare else lt
    if "float" in (lt.kind, rt.kind):
        if op in BITWISE or op in SHIFTS:
            refuse(f"{lt} {sign} {rt}: bits of a float; f32_to_bits gives them", at)
        return wider_float(lt, rt)
    bits = max(lt.bits, rt.bits)
    if op in SHIFTS:
        return integer(bits, lt.signed)
    if op in COMPARISONS:
        return integer(bits, lt.signed or rt.signed)
    return integer(bits, lt.signed and rt.signed)


def _shape(left: Expression, right: Expression, sign: str, at: Source):
    """Both operands in one shape: a scalar beside a vector takes its element type and fills its lanes (rule 11)."""
    lt, rt = left.type, right.type
    for value in (left, right):
        if not is_number(value.type):
            refuse(f"{sign} works on numbers and vectors, not {value.type}", value.at)
    if isinstance(lt, VectorType) and isinstance(rt, VectorType):
        if lt.count != rt.count:
            refuse(f"{lt} {sign} {rt}: the lane counts differ", at)
    elif isinstance(lt, VectorType):
        right = Splat(right.at, lt, assign(right, lt.element, f"the scalar beside {lt}"))
    elif isinstance(rt, VectorType):
        left = Splat(left.at, rt, assign(left, rt.element, f"the scalar beside {rt}"))
    return left, right


def binary(op: str, left: Expression, right: Expression, at: Source) -> Binary:
    """An arithmetic, bitwise or shift operator. A shift's amount keeps its own sign: it is converted as a value."""
    bare = getattr(left, "bare", False) and getattr(right, "bare", False)
    left, right = _shape(left, right, SPELLING[op], at)
    element = common(op, left, right, at)
    kind = with_element(left.type, element)
    amount = element
    if op in SHIFTS:
        amount = integer(element.bits, element_of(right.type).signed)
    return Binary(at, kind, op, cast(left, kind), cast(right, with_element(kind, amount)), bare)


def compare(op: str, left: Expression, right: Expression, at: Source) -> Compare:
    """A comparison; of vectors, a vector of bool."""
    left, right = _shape(left, right, SPELLING[op], at)
    element = common(op, left, right, at)
    kind = with_element(left.type, element)
    return Compare(at, with_element(kind, BOOL), op, cast(left, kind), cast(right, kind))


def alike(left: Expression, right: Expression, what: str, at: Source) -> tuple[Expression, Expression]:
    """Two values of which one is chosen: bare literals adapt, then the types must be one.

    The choice would otherwise carry the type of whichever value it took, which no compiled code can.
    """
    lbare, rbare = getattr(left, "bare", False), getattr(right, "bare", False)
    if lbare != rbare and isinstance(left.type, Scalar) and isinstance(right.type, Scalar):
        literal, other = (left, right) if lbare else (right, left)
        if literal.type.kind == "int" and other.type is not BOOL:
            literal = cast(literal, other.type)
            left, right = (literal, other) if lbare else (other, literal)
    elif lbare and rbare and left.type != right.type:
        wide = common("add", left, right, at)
        left, right = cast(left, wide), cast(right, wide)
    if left.type != right.type:
        refuse(f"{what} of {left.type} and {right.type}: the result would carry either type; convert one", at)
    if isinstance(left.type, MEMORY) or isinstance(left.type, FunctionType):
        refuse(f"{what} of {left.type}: only values can be chosen", at)
    return left, right
