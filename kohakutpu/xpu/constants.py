"""Compile-time values: what a name of the surrounding Python means, and integer expressions over template values."""

from __future__ import annotations

import ast
import builtins
import enum
import operator
from itertools import pairwise
from types import FunctionType, ModuleType

from .errors import DeclarationError
from .names import Namespace
from .types import Former, WaveVectorType

_OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.LShift: operator.lshift, ast.RShift: operator.rshift, ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_, ast.BitXor: operator.xor, ast.Eq: operator.eq, ast.NotEq: operator.ne,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Not: operator.not_,
    ast.USub: operator.neg,
}  # fmt: skip


class NotStatic(Exception):
    """The expression is not known before the kernel runs."""


class Names:
    """What the names of a function mean outside of its own body: template values, closure, globals, builtins."""

    def __init__(self, function: FunctionType, values: dict[str, int]):
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        self._closure = {name: cell for name, cell in cells}
        self._globals = function.__globals__
        self._values = values

    def lookup(self, name: str):
        """The object behind a name. Raises NotStatic when nothing is."""
        if name in self._values:
            return self._values[name]
        if name in self._closure:
            try:
                return self._closure[name].cell_contents
            except ValueError:
                raise NotStatic(f"{name} has no value yet") from None
        for table in (self._globals, vars(builtins)):
            if name in table:
                return table[name]
        raise NotStatic(name)


def static(node: ast.expr, lookup):
    """The Python object that an expression names: attributes of modules, types, integer arithmetic.

    `lookup(name)` gives the object behind a name, or raises NotStatic. Nothing of the user's is called.
    """
    match node:
        case ast.Name(id=name):
            return lookup(name)
        case ast.Constant(value=value):
            return value
        case ast.Attribute(value=inner, attr=word):
            owner = static(inner, lookup)
            is_enum = isinstance(owner, type) and issubclass(owner, enum.Enum)
            if isinstance(owner, (ModuleType, Namespace)) or is_enum:
                try:
                    return getattr(owner, word)
                except AttributeError as error:
                    raise DeclarationError(str(error)) from None
            if isinstance(owner, WaveVectorType):
                return (owner, word)
        case ast.Subscript(value=inner, slice=arguments):
            owner = static(inner, lookup)
            parts = arguments.elts if isinstance(arguments, ast.Tuple) else [arguments]
            if isinstance(owner, Former) or getattr(owner, "is_buffer_type", False):
                return owner[tuple(static(part, lookup) for part in parts)]
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _integers(_OPERATORS[type(op)], static(left, lookup), static(right, lookup))
        case ast.UnaryOp(op=ast.USub(), operand=inner) if isinstance(number := static(inner, lookup), float):
            return -number
        case ast.UnaryOp(op=op, operand=inner) if type(op) in _OPERATORS:
            return _integers(_OPERATORS[type(op)], static(inner, lookup))
        case ast.Compare(left=left, ops=ops, comparators=rights) if all(type(op) in _OPERATORS for op in ops):
            values = [static(part, lookup) for part in (left, *rights)]
            return all(_integers(_OPERATORS[type(op)], *pair) for op, pair in zip(ops, pairwise(values), strict=True))
        case ast.BoolOp(op=op, values=parts):
            wanted = isinstance(op, ast.And)
            return wanted if all(bool(static(part, lookup)) == wanted for part in parts) else not wanted
    raise NotStatic(ast.unparse(node))


def _integers(operate, *values):
    if not all(isinstance(value, int) for value in values):
        raise NotStatic("not integers")
    try:
        return operate(*values)
    except (ZeroDivisionError, ValueError) as error:
        raise DeclarationError(f"a constant expression fails: {error}") from None


def evaluate(expression, values: dict[str, int], what: str):
    """An int, or a string of integer arithmetic over template values, as its value."""
    if isinstance(expression, int):
        return expression
    if not isinstance(expression, str):
        raise DeclarationError(f"{what}: expected an integer or an expression as text, not {expression!r}")

    def lookup(name):
        if name not in values:
            raise DeclarationError(f"{what}: `{expression}` names {name}, which is no template value ({list(values)})")
        return values[name]

    try:
        return static(ast.parse(expression.strip(), mode="eval").body, lookup)
    except (SyntaxError, NotStatic) as error:
        raise DeclarationError(f"{what}: `{expression}` is not integer arithmetic over template values") from error


def failing_clause(expression: str, values: dict[str, int], what: str) -> str | None:
    """The first clause of a conjunction that does not hold, or None."""
    try:
        body = ast.parse(expression.strip(), mode="eval").body
    except SyntaxError as error:
        raise DeclarationError(f"{what}: `{expression}` is not an expression") from error
    clauses = body.values if isinstance(body, ast.BoolOp) and isinstance(body.op, ast.And) else [body]
    for clause in clauses:
        text = ast.unparse(clause)
        if not evaluate(text, values, what):
            return text
    return None
