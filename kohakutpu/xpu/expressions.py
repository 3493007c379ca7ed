"""Reading expressions: Python syntax to typed nodes. What the syntax cannot say is refused with the helper that can."""

from __future__ import annotations

import ast
import enum

from . import conversions as rules
from .calls import Calls
from .constants import NotStatic, static
from .conversions import Unread, refuse
from .errors import DeclarationError, Source
from .tree import (
    Assigned, Binary, Expression, Lane, Literal, Load, Logical, Read, Select, Unary, Variable,
)  # fmt: skip
from .types import BOOL, MEMORY, VOID, FunctionType, Scalar, TileType, VectorType, f64, i32

BINARY = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "div", ast.Mod: "rem",
    ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor", ast.LShift: "shl", ast.RShift: "shr",
}  # fmt: skip
COMPARE = {ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge"}
COMPONENTS = {"x": 0, "y": 1, "z": 2, "w": 3}
NO_MEANING = {
    ast.Lambda: "a lambda", ast.ListComp: "a comprehension", ast.GeneratorExp: "a comprehension",
    ast.SetComp: "a comprehension", ast.DictComp: "a comprehension", ast.Dict: "a dict", ast.Set: "a set",
    ast.List: "a list", ast.Tuple: "a tuple", ast.JoinedStr: "a string", ast.Await: "await", ast.Yield: "yield",
    ast.YieldFrom: "yield", ast.Starred: "an unpacking", ast.Slice: "a slice",
}  # fmt: skip


class Expressions(Calls):
    """The expression half of the reader of one function."""

    def at(self, node: ast.AST) -> Source:
        """A node's place: its line in the file and its own text on one line."""
        text = " ".join((ast.get_source_segment(self.text, node) or ast.unparse(node)).split())
        return Source(self.file, self.first_line + node.lineno - 1, text if len(text) <= 60 else text[:57] + "...")

    def static(self, node: ast.expr):
        """The compile-time object that an expression names. Raises NotStatic; locals hide outer names."""

        def lookup(name):
            if self.find(name) is not None or name in self.assigned:
                raise NotStatic(name)
            return self.names.lookup(name)

        try:
            return static(node, lookup)
        except DeclarationError as error:
            refuse(str(error), self.at(node))

    def static_or_none(self, node: ast.expr):
        """`static`, or None where the expression is not known before the kernel runs."""
        try:
            return self.static(node)
        except NotStatic:
            return None

    def all(self, *nodes: ast.expr) -> list[Expression]:
        """Several expressions; every refusal among them is recorded, not only the first."""
        values, failed = [], False
        for node in nodes:
            try:
                values.append(self.read(node))
            except Unread as unread:
                self.record(unread, node)
                failed = True
        if failed:
            raise Unread(None)
        return values

    def value(self, node: ast.expr) -> Expression:
        """An expression that has a value."""
        value = self.read(node)
        if value.type is VOID:
            refuse("this call gives no value", self.at(node))
        return value

    def read(self, node: ast.expr, expected=None) -> Expression:
        """Any expression. A helper's name is a value only where `expected` is a function type."""
        at = self.at(node)
        if isinstance(expected, FunctionType):
            helper = self.static_or_none(node)
            if helper is not None and getattr(helper, "is_device_helper", False):
                if helper not in expected.members:
                    refuse(f"{helper.name} is not one of {expected}", at)
                return Literal(at, expected, expected.members.index(helper))
        reader = getattr(self, f"read_{type(node).__name__}", None)
        if reader is None:
            refuse(f"{NO_MEANING.get(type(node), type(node).__name__)} has no meaning in a kernel", at)
        return reader(node, at)

    def read_Constant(self, node, at):
        value = node.value
        if isinstance(value, bool):
            return Literal(at, BOOL, value)
        if isinstance(value, int):
            return rules.integer_literal(value, at)
        if isinstance(value, float):
            return Literal(at, f64, value)
        names = {str: "a string", bytes: "a string", complex: "a complex number", type(None): "None"}
        refuse(f"{names.get(type(value), repr(value))} has no meaning in a kernel", at)

    def read_Name(self, node, at):
        variable = self.find(node.id)
        if isinstance(variable, Variable):
            return Read(at, variable.type, variable)
        if variable is not None:
            raise Unread(None)
        if node.id in self.assigned:
            refuse(f"{node.id} has no value here: it is bound in another block; declare it before ({node.id}: f32)", at)
        return self.constant(node, at)

    def constant(self, node, at) -> Expression:
        """A number that the surrounding Python names."""
        try:
            value = self.static(node)
        except NotStatic as missing:
            refuse(f"{missing} names nothing", at)
        if isinstance(value, enum.IntEnum):
            return rules.integer_literal(int(value), at)
        if type(value) in (bool, int, float):
            return self.read_Constant(ast.Constant(value), at)
        refuse(f"{ast.unparse(node)} is {type(value).__name__} {value!r}, no value of the kernel language"[:200], at)

    def read_Attribute(self, node, at):
        if self.static_or_none(node) is not None:
            return self.constant(node, at)
        if isinstance(node.value, ast.Name) and self.find(node.value.id) is None:
            refuse(f"{ast.unparse(node)} names nothing", at)
        owner = self.value(node.value)
        if isinstance(owner.type, VectorType) and node.attr in COMPONENTS:
            if COMPONENTS[node.attr] >= owner.type.count:
                refuse(f"{owner.type} has no .{node.attr}", at)
            return Lane(at, owner.type.element, owner, Literal(at, i32, COMPONENTS[node.attr]))
        refuse(f"{owner.type} has no field {node.attr}; vectors have .x .y .z .w", at)

    def read_Subscript(self, node, at):
        memory, position = self.all(node.value, node.slice)
        if isinstance(memory.type, MEMORY):
            return Load(at, memory.type.element, memory, rules.index(position))
        if isinstance(memory.type, VectorType):
            return Lane(at, memory.type.element, memory, rules.index(position))
        refuse(f"{memory.type} has no elements to index", at)

    def read_UnaryOp(self, node, at):
        if isinstance(node.op, ast.UAdd):
            refuse("unary + has no meaning in a kernel; `x += 1` increments", at)
        if at.text.startswith("--"):
            refuse("`--` reads as a decrement and is none; `x -= 1` decrements", at)
        value = self.value(node.operand)
        if isinstance(node.op, ast.Not):
            return Unary(at, BOOL, "not", rules.condition(value, "the operand of not"))
        element = rules.element_of(value.type)
        op = {ast.USub: "neg", ast.Invert: "invert"}[type(node.op)]
        if not isinstance(element, Scalar) or element is BOOL or (op == "invert" and element.kind == "float"):
            word = "not" if element is BOOL else "f32_to_bits"
            refuse(f"{'-' if op == 'neg' else '~'} of {value.type}; {word} may be meant", at)
        return Unary(at, value.type, op, value, getattr(value, "bare", False))

    def read_BinOp(self, node, at):
        if isinstance(node.op, (ast.Pow, ast.MatMult)):
            word = "math.pow" if isinstance(node.op, ast.Pow) else "tile.mma"
            refuse(f"this operator has no meaning in a kernel; {word} says it", at)
        left, right = self.all(node.left, node.right)
        return self.operate(node.op, left, right, at)

    def operate(self, op: ast.operator, left: Expression, right: Expression, at: Source) -> Binary:
        """A Python operator where Python and the language mean the same; otherwise the helper that is exact."""
        result = rules.binary(BINARY[type(op)], left, right, at)
        element = rules.element_of(result.type)
        if isinstance(op, ast.Div) and element.kind != "float":
            refuse("/ of integers is a float in Python; div(a, b) truncates toward zero", at)
        if isinstance(op, ast.FloorDiv) and element.kind == "float":
            refuse("// of floats floors; math.floor(a / b) says it", at)
        if isinstance(op, ast.Mod) and element.kind == "float":
            refuse("% of floats takes the divisor's sign in Python; rem(a, b) is C's fmod", at)
        floors = isinstance(op, (ast.FloorDiv, ast.Mod)) and element.kind == "int" and element.signed
        if floors and not (self.not_negative(left) and self.not_negative(right)):
            word = "div" if isinstance(op, ast.FloorDiv) else "rem"
            sign = "//" if word == "div" else "%"
            refuse(f"{sign} of signed integers floors in Python; {word}(a, b) truncates toward zero", at)
        return result

    @staticmethod
    def not_negative(value: Expression) -> bool:
        """True for a literal that is not negative: where flooring and truncation agree."""
        return isinstance(value, Literal) and value.value >= 0

    def read_Compare(self, node, at):
        if len(node.ops) > 1:
            refuse("a chained comparison has no meaning in a kernel; `a < b and b < c` says it", at)
        if type(node.ops[0]) not in COMPARE:
            refuse("`in` and `is` have no meaning in a kernel; == compares", at)
        left, right = self.all(node.left, node.comparators[0])
        return rules.compare(COMPARE[type(node.ops[0])], left, right, at)

    def read_BoolOp(self, node, at):
        op = "and" if isinstance(node.op, ast.And) else "or"
        values = [rules.condition(value, f"an operand of {op}") for value in self.all(*node.values)]
        result = values[0]
        for value in values[1:]:
            result = Logical(at, BOOL, op, result, value)
        return result

    def read_IfExp(self, node, at):
        condition, then, otherwise = self.all(node.test, node.body, node.orelse)
        then, otherwise = rules.alike(then, otherwise, "a choice", at)
        if then.type is VOID or isinstance(then.type, TileType):
            refuse(f"a choice of {then.type}: only numbers and vectors can be chosen", at)
        return Select(at, then.type, rules.condition(condition, "the condition"), then, otherwise)

    def read_NamedExpr(self, node, at):
        variable = self.find(node.target.id)
        if not isinstance(variable, Variable):
            refuse(f"{node.target.id} := binds a new name inside an expression; declare it before", at)
        self.assignable(variable, at)
        value = rules.assign(self.value(node.value), variable.type, node.target.id)
        return Assigned(at, variable.type, variable, value)
