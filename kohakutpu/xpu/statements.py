"""Reading statements: scopes, declarations, assignments and loops of one function."""

from __future__ import annotations

import ast

from . import conversions as rules
from .alignment import proven
from .conversions import Unread, refuse
from .errors import Refusal, Source
from .expressions import COMPONENTS, Expressions
from .names import Namespace, Syntax
from .tree import (
    Assign, AssignLane, Break, Continue, Declare, DeclareShared, Evaluate, ForBuffer, ForRange, ForStripe, If, Literal,
    Loop, Read, Return, Statement, Store, StoreVector, Variable, While,
)  # fmt: skip
from .types import (
    BOOL, MEMORY, VOID, FunctionType, Scalar, SharedType, TileType, VectorType, i32, u32,
)  # fmt: skip

NO_MEANING = {
    ast.Try: "an exception", ast.Raise: "an exception", ast.Assert: "an exception", ast.With: "with",
    ast.Import: "an import", ast.ImportFrom: "an import", ast.Global: "global", ast.Nonlocal: "nonlocal",
    ast.FunctionDef: "a nested function", ast.ClassDef: "a class", ast.Delete: "del", ast.Match: "match",
    ast.AsyncFor: "async", ast.AsyncWith: "async", ast.AsyncFunctionDef: "async", ast.TryStar: "an exception",
}  # fmt: skip
POISON = object()


class Reader(Expressions):
    """Reads one function. `session` reads the helpers; refusals go to `session.refusals`."""

    def __init__(self, session, name: str, is_kernel: bool, definition: ast.FunctionDef, text: str, file: str,
                 first_line: int, names):  # fmt: skip
        self.session, self.name, self.is_kernel = session, name, is_kernel
        self.definition, self.text, self.file, self.first_line, self.names = definition, text, file, first_line, names
        self.scopes: list[dict[str, object]] = [{}]
        self.loops: list[Loop] = []
        self.result = VOID
        self.assigned = {n.id for n in ast.walk(definition) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        self.assigned |= {argument.arg for argument in definition.args.args}

    def find(self, name: str):
        """The variable of a name, POISON if its declaration was refused, None if nothing binds it here."""
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return None

    def record(self, unread: Unread, node: ast.AST) -> None:
        """Keep a refusal, unless it follows from one that was kept."""
        if unread.construct is not None:
            where = "" if self.is_kernel else self.name
            self.session.refusals.append(Refusal(unread.construct, unread.at or self.at(node), where))

    def bind(self, name: str, kind, at: Source, role: str = "local") -> Variable:
        """A new variable in the innermost block."""
        variable = Variable(name, kind, at, role)
        self.scopes[-1][name] = variable
        return variable

    def assignable(self, variable: Variable, at: Source) -> None:
        """Refuse to assign what cannot be."""
        if variable.kind == "loop":
            refuse(f"{variable.name} counts a loop whose bounds are read once; a while loop may change its counter", at)
        if isinstance(variable.type, (*MEMORY, TileType)):
            refuse(f"{variable.name} is {variable.type}, which is not assigned as a whole", at)

    def body(self, nodes: list[ast.stmt], scope: dict[str, object] | None = None) -> tuple[Statement, ...]:
        """A block, in a scope of its own."""
        self.scopes.append(scope or {})
        statements = []
        for node in nodes:
            try:
                statements += self.statement(node)
            except Unread as unread:
                self.record(unread, node)
                for inner in ast.walk(node):
                    bound = isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
                    if bound and self.find(inner.id) is None:
                        self.scopes[-1][inner.id] = POISON
        self.scopes.pop()
        return tuple(statements)

    def statement(self, node: ast.stmt) -> list[Statement]:
        """One statement of Python as typed statements."""
        at = self.at(node)
        reader = getattr(self, f"read_{type(node).__name__}", None)
        if type(node) in NO_MEANING or reader is None:
            refuse(f"{NO_MEANING.get(type(node), type(node).__name__)} has no meaning in a kernel", at)
        return reader(node, at)

    def read_Pass(self, node, at):
        return []

    def read_Expr(self, node, at):
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return []
        if isinstance(node.value, ast.Call):
            word = self.static_or_none(node.value.func)
            if isinstance(word, Syntax) and word.verb in ("break_to", "continue_to"):
                return [self.leave(Break if word.verb == "break_to" else Continue, self.label(node.value, at), at)]
            if isinstance(node.value.func, ast.Attribute) and node.value.func.attr == "vstore":
                return [self.vstore(node.value, at)]
            return [Evaluate(at, self.read(node.value))]
        if isinstance(node.value, ast.NamedExpr):
            return [Evaluate(at, self.read(node.value))]
        refuse("an expression whose value goes nowhere", at)

    def vstore(self, node: ast.Call, at: Source) -> Statement:
        """`memory.vstore(index, value, align=bytes)`."""
        memory = self.value(node.func.value)
        if not isinstance(memory.type, MEMORY):
            refuse(f"{memory.type} has no vstore", at)
        position, value = self.arguments(ast.Call(node.func, node.args, []), 2, at)
        if not isinstance(value.type, VectorType):
            refuse(f"vstore of {value.type}; it takes a vector", at)
        size = memory.type.element.size
        value = rules.assign(value, VectorType(memory.type.element, value.type.count), "vstore")
        align = self.alignment(node, value.type.count * size, at)
        return StoreVector(at, memory, rules.index(position), value, align, proven(position, size))

    # Declarations and assignments.
    def read_AnnAssign(self, node, at):
        if not isinstance(node.target, ast.Name):
            refuse("only a name is declared", at)
        name = node.target.id
        if isinstance(self.find(name), Variable):
            refuse(f"{name} is declared already", at)
        kind = self.type_of(node.annotation)
        if isinstance(kind, SharedType):
            refuse(f"Shared memory is declared by its size: {name} = {kind}(n)", at)
        if isinstance(kind, TileType) and node.value is not None:
            refuse("a tile is declared without a value; splat or load fills it", at)
        if not isinstance(kind, (Scalar, VectorType, TileType, FunctionType)):
            refuse(f"a local of type {kind}", at)
        value = None
        if node.value is not None:
            value = rules.assign(self.read(node.value, kind), kind, name)
        return [Declare(at, self.bind(name, kind, at), value)]

    def type_of(self, node: ast.expr):
        """The type that an annotation names."""
        kind = self.static_or_none(node)
        kind = BOOL if kind is bool else kind
        if kind is None or isinstance(kind, (int, float, str, Namespace)):
            refuse(f"{ast.unparse(node)} is no type of the kernel language", self.at(node))
        return kind

    def read_Assign(self, node, at):
        if len(node.targets) > 1:
            refuse("a = b = c has no meaning in a kernel; assign one after the other", at)
        (target,) = node.targets
        if isinstance(target, ast.Name):
            return [self.assign_name(target.id, node.value, at)]
        if isinstance(target, (ast.Subscript, ast.Attribute)):
            value = self.value(node.value)
            return [self.store(target, lambda _: value, at)]
        refuse("storing into this: a name, an element or a lane is expected", at)

    def assign_name(self, name: str, node: ast.expr, at: Source) -> Statement:
        variable = self.find(name)
        if isinstance(variable, Variable):
            self.assignable(variable, at)
            return Assign(at, variable, rules.assign(self.read(node, variable.type), variable.type, name))
        if isinstance(node, ast.Call):
            kind = self.static_or_none(node.func)
            if isinstance(kind, SharedType):
                return self.declare_shared(name, kind, node, at)
        value = self.value(node)
        if not isinstance(value.type, (Scalar, VectorType, FunctionType)):
            refuse(f"{name} = {value.type}: only numbers, vectors and functions are assigned", at)
        return Declare(at, self.bind(name, value.type, at), value)

    def declare_shared(self, name: str, kind: SharedType, node: ast.Call, at: Source) -> Statement:
        """`name = Shared[T](n)`; n a constant, or an expression: the one array that the launch sizes."""
        constant = self.static_or_none(node.args[0]) if len(node.args) == 1 else None
        (count,) = self.arguments(node, 1, at)
        dynamic = not isinstance(count, Literal) and type(constant) is not int
        if type(constant) is int:
            count = rules.integer_literal(constant, at)
        if isinstance(count, Literal) and count.value < 1:
            refuse(f"{count.value} elements of Shared", at)
        if dynamic:
            self.session.dynamic.append(at)
            if len(self.session.dynamic) > 1:
                refuse("a second Shared array sized at run time; the launch sizes one", at)
        return DeclareShared(at, self.bind(name, kind, at, "shared"), rules.index(count, "a size"), dynamic)

    def store(self, target: ast.expr, make, at: Source) -> Statement:
        """An element of memory or a lane of a local vector takes `make(its present value)`."""
        present = self.value(target)
        owner = target.value
        if isinstance(target, ast.Attribute) and target.attr in COMPONENTS:
            position = Literal(at, i32, COMPONENTS[target.attr])
        elif isinstance(target, ast.Subscript):
            position = present.index
        else:
            refuse("storing into this: a name, an element or a lane is expected", at)
        memory = self.value(owner)
        value = make(present)
        if isinstance(memory.type, MEMORY):
            return Store(at, memory, position, rules.assign(value, memory.type.element, "the element"))
        if not isinstance(memory, Read):
            refuse("storing into a lane of a computed vector", at)
        return AssignLane(at, memory.variable, position, rules.assign(value, memory.type.element, "the lane"))

    def read_AugAssign(self, node, at):
        """Rule 10: the right side runs first, then the target is read, then stored."""
        right = self.value(node.value)
        before: list[Statement] = []
        if not isinstance(right, (Literal, Read)) and not getattr(right, "bare", False):
            held = Variable("", right.type, at)
            before, right = [Declare(at, held, right)], Read(right.at, right.type, held)
        if isinstance(node.op, (ast.Pow, ast.MatMult)):
            refuse("this operator has no meaning in a kernel; math.pow and tile.mma say it", at)
        if isinstance(node.target, ast.Name):
            target = self.value(node.target)
            if not isinstance(target, Read):
                refuse(f"{node.target.id} is a constant of the surrounding Python", at)
            self.assignable(target.variable, at)
            value = rules.assign(self.operate(node.op, target, right, at), target.type, node.target.id)
            return [*before, Assign(at, target.variable, value)]
        return [*before, self.store(node.target, lambda present: self.operate(node.op, present, right, at), at)]

    # Control flow.
    def read_If(self, node, at):
        condition = self.condition(node.test, "if")
        then, otherwise = self.body(node.body), self.body(node.orelse)
        if condition is None:
            raise Unread(None)
        return [If(at, condition, then, otherwise)]

    def condition(self, node: ast.expr, word: str):
        """A bool, or None after recording why there is none, so that the body's refusals are listed too."""
        try:
            return rules.condition(self.value(node), f"the condition of {word}")
        except Unread as unread:
            self.record(unread, node)
            return None

    def read_Return(self, node, at):
        if node.value is None:
            if self.result is not VOID:
                refuse(f"{self.name} must return {self.result}", at)
            return [Return(at, None)]
        if self.is_kernel:
            refuse("a kernel returns no value", at)
        if self.result is VOID:
            refuse(f"{self.name} declares no result; `-> f32` after its parameters does", at)
        return [Return(at, rules.assign(self.read(node.value, self.result), self.result, "the result"))]

    def label(self, node: ast.Call, at: Source) -> str:
        """The label that a call states first."""
        name = self.static_or_none(node.args[0]) if node.args else None
        if not isinstance(name, str) or not name.isidentifier():
            refuse("a label is a constant name in quotes", at)
        return name

    def leave(self, kind, label: str | None, at: Source) -> Statement:
        inside = [loop for loop in self.loops if label is None or loop.label == label]
        if not inside:
            refuse(f"no loop around this is labelled {label}", at)
        return kind(at, inside[-1])

    def read_Break(self, node, at):
        return [self.leave(Break, None, at)]

    def read_Continue(self, node, at):
        return [self.leave(Continue, None, at)]

    def wrapped(self, node: ast.expr, word: str) -> ast.Call | None:
        """The call of a syntax word, if the expression is one."""
        if isinstance(node, ast.Call):
            target = self.static_or_none(node.func)
            if isinstance(target, Syntax) and target.verb == word:
                return node
        return None

    def begin(self, node: ast.For | ast.While, over: ast.expr, at: Source) -> tuple[Loop, ast.expr]:
        """A loop's identity, and what it runs over without its label."""
        if node.orelse:
            refuse("else after a loop has no meaning in a kernel", at)
        call = self.wrapped(over, "label")
        if call is None:
            return Loop(None), over
        if len(call.args) != 2 or call.keywords:
            refuse("label takes a name and what the loop runs over", at)
        name = self.label(call, at)
        if any(loop.label == name for loop in self.loops):
            refuse(f"a loop around this is labelled {name} already", at)
        return Loop(name), call.args[1]

    def turn(self, loop: Loop, nodes: list[ast.stmt], *variables: Variable) -> tuple[Statement, ...]:
        """A loop's body."""
        self.loops.append(loop)
        body = self.body(nodes, {variable.name: variable for variable in variables})
        self.loops.pop()
        return body

    def read_While(self, node, at):
        loop, test = self.begin(node, node.test, at)
        late = self.wrapped(test, "do_while")
        if late is not None:
            if len(late.args) != 1 or late.keywords:
                refuse("do_while takes the test", at)
            test = late.args[0]
        condition = self.condition(test, "while")
        body = self.turn(loop, node.body)
        if condition is None:
            raise Unread(None)
        return [While(at, loop, condition, body, late is not None)]

    def counter(self, node: ast.expr, kind, at: Source) -> Variable:
        if not isinstance(node, ast.Name):
            refuse("a loop counts with one name", at)
        if isinstance(self.find(node.id), Variable):
            refuse(f"{node.id} is declared already; a loop's counter is its own", at)
        return Variable(node.id, kind, at, "loop")

    def read_For(self, node, at):
        loop, over = self.begin(node, node.iter, at)
        if not isinstance(over, ast.Call):
            refuse("for runs over range(...), group.stripe(n) or buffer.range(n)", at)
        target = self.static_or_none(over.func)
        if target is range:
            return [self.for_range(node, loop, over, at)]
        if isinstance(target, Syntax) and target.verb == "group.stripe":
            (count,) = self.arguments(over, 1, at)
            rules.index(count, "a count")
            variable = self.counter(node.target, count.type, at)
            return [ForStripe(at, loop, variable, count, self.turn(loop, node.body, variable))]
        if isinstance(over.func, ast.Attribute) and over.func.attr == "range" and target is None:
            return [self.for_buffer(node, loop, over, at)]
        refuse("for runs over range(...), group.stripe(n) or buffer.range(n)", at)

    def for_range(self, node: ast.For, loop: Loop, over: ast.Call, at: Source) -> Statement:
        step = 1
        if len(over.args) == 3:
            step = self.static_or_none(over.args[2])
            if type(step) is not int or step == 0:
                refuse("a range's step is a constant other than 0; a while loop may step by anything", at)
        values = self.arguments(ast.Call(over.func, over.args[:2], over.keywords), (1, 2), at)
        for value in values:
            rules.index(value, "a bound")
        if len(values) == 1:
            values.insert(0, Literal(at, i32, 0, bare=True))
        start, stop = rules.alike(*values, "a range", at)
        kind = start.type
        variable = self.counter(node.target, kind, at)
        return ForRange(at, loop, variable, start, stop, step, self.turn(loop, node.body, variable))

    def for_buffer(self, node: ast.For, loop: Loop, over: ast.Call, at: Source) -> Statement:
        memory = self.value(over.func.value)
        (count,) = self.arguments(over, 1, at)
        if not isinstance(memory.type, MEMORY):
            refuse(f"{memory.type} has no elements to run over", at)
        if not isinstance(node.target, ast.Tuple) or len(node.target.elts) != 2:
            refuse("for index, element in buffer.range(n) binds two names", at)
        index = self.counter(node.target.elts[0], u32, at)
        element = self.counter(node.target.elts[1], memory.type.element, at)
        element = Variable(element.name, element.type, at)
        count = rules.index(count, "a count")
        return ForBuffer(at, loop, index, element, memory, count, self.turn(loop, node.body, index, element))
