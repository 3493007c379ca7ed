"""Brings every workgroup rendezvous to a statement of its own, so that a body splits there.

The rewriting keeps the interpreter's order: what an expression evaluates before the rendezvous is kept in a local, and
a rendezvous in an arm that may not run becomes an `If`. Afterwards a rendezvous, or a call of a helper that holds one,
is the whole value of a `Declare` or of an `Evaluate`.
"""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import count

from kohakutpu.xpu import tree
from kohakutpu.xpu.types import BOOL, MEMORY, VOID, SliceType, WaveVectorType
from kohakutpu.xpu.verbs import VERBS


def meets(node: tree.Node) -> bool:
    """True for a node inside which a workgroup meets; helpers that it calls included."""
    for part in tree.walk(node):
        if isinstance(part, tree.Invoke) and VERBS[part.verb].rendezvous == "workgroup":
            return True
        helpers = (part.helper,) if isinstance(part, tree.Call) else ()
        helpers = part.members if isinstance(part, tree.CallTag) else helpers
        if any(meets(statement) for helper in helpers for statement in helper.body):
            return True
    return False


class Hoist:
    """Rewrites bodies; helpers that meet are rewritten once each."""

    def __init__(self):
        self._fresh = count()
        self._helpers: dict[tree.Function, tree.Function] = {}

    def function(self, function: tree.Function) -> tree.Function:
        """A function with its rendezvous in statements of their own."""
        if not any(meets(statement) for statement in function.body):
            return function
        if function not in self._helpers:
            self._helpers[function] = replace(function, body=self.body(function.body))
        return self._helpers[function]

    def body(self, statements: tuple) -> tuple:
        """A block."""
        return tuple(new for statement in statements for new in self.statement(statement))

    def temporary(self, node: tree.Expression, value: tree.Expression | None):
        """A declaration of a fresh local, and its reading."""
        variable = tree.Variable(f"_{next(self._fresh)}", node.type, node.at)
        return tree.Declare(node.at, variable, value), tree.Read(node.at, node.type, variable)

    def statement(self, node: tree.Statement) -> list:
        """The statements that take a statement's place."""
        if not meets(node):
            return [node]
        match node:
            case tree.If(condition=condition, then=then, otherwise=otherwise):
                before, condition = self.expression(condition)
                return [*before, replace(node, condition=condition, then=self.body(then),
                                         otherwise=self.body(otherwise))]  # fmt: skip
            case tree.While(condition=condition, body=body) if meets(condition):
                return self.tested(node, condition, body)
            case tree.While() | tree.ForRange() | tree.ForStripe() | tree.ForBuffer():
                before, node = self.parts(node, skip=("body", "condition"))
                return [*before, replace(node, body=self.body(node.body))]
            case tree.Evaluate(value=value):
                before, value = self.expression(value, whole=True)
                return [*before, tree.Evaluate(node.at, value)]
            case tree.Declare(variable=variable, value=value):
                before, value = self.expression(value, whole=True)
                return [*before, tree.Declare(node.at, variable, value)]
        before, node = self.parts(node)
        return [*before, node]

    def tested(self, node: tree.While, condition, body) -> list:
        """A loop whose test meets: the test moves into the body, which a last test skips the first time."""
        before, condition = self.expression(condition)
        leave = tree.If(node.at, tree.Unary(node.at, BOOL, "not", condition), (tree.Break(node.at, node.loop),), ())
        test = (*before, leave)
        start = []
        if node.test_last:
            first, read = self.temporary(condition, tree.Literal(node.at, BOOL, True))
            start = [first]
            again = tree.Assign(node.at, first.variable, tree.Literal(node.at, BOOL, False))
            test = (tree.If(node.at, read, (again,), test),)
        forever = tree.Literal(node.at, BOOL, True)
        return [*start, replace(node, condition=forever, body=(*test, *self.body(body)), test_last=False)]

    def parts(self, node, skip: tuple = ()):
        """A node with its expressions rewritten in order; what comes before a rendezvous is kept."""
        names = [f.name for f in fields(node) if isinstance(getattr(node, f.name), (tree.Expression, tuple))]
        if isinstance(node, tree.Store):  # the value is computed before the index
            names = ["value", "memory", "index"]
        names = [name for name in names if name not in skip]
        flat: list[tree.Expression] = []
        for name in names:
            value = getattr(node, name)
            found = value if isinstance(value, tuple) else (value,)
            flat += [part for part in found if isinstance(part, tree.Expression)]
        last = max((i for i, part in enumerate(flat) if meets(part)), default=-1)
        before: list[tree.Statement] = []
        made: dict[int, tree.Expression] = {}
        for i, part in enumerate(flat):
            if i <= last:
                more, new = self.expression(part)
                before += more
                if i < last and not isinstance(part.type, (*MEMORY, SliceType, WaveVectorType)):
                    kept, new = self.temporary(part, new)
                    before.append(kept)
                made[id(part)] = new
        changed = {}
        for name in names:
            value = getattr(node, name)
            if isinstance(value, tuple):
                changed[name] = tuple(made.get(id(part), part) for part in value)
            else:
                changed[name] = made.get(id(value), value)
        return before, replace(node, **changed)

    def expression(self, node: tree.Expression, whole: bool = False):
        """(statements before, what remains). A rendezvous becomes a local, unless it is the `whole` value."""
        if not meets(node):
            return [], node
        if isinstance(node, (tree.Logical, tree.Select)):
            return self.lazy(node)
        before, node = self.parts(node)
        here = isinstance(node, tree.Invoke) and VERBS[node.verb].rendezvous == "workgroup"
        if isinstance(node, tree.Call) and any(map(meets, node.helper.body)):
            here, node = True, replace(node, helper=self.function(node.helper))
        if isinstance(node, tree.CallTag) and any(meets(s) for helper in node.members for s in helper.body):
            here, node = True, replace(node, members=tuple(map(self.function, node.members)))
        if here and not whole and node.type is not VOID:
            kept, node = self.temporary(node, node)
            before.append(kept)
        return before, node

    def lazy(self, node):
        """An arm that may not run, as an If."""
        if isinstance(node, tree.Logical):
            before, left = self.expression(node.left)
            kept, read = self.temporary(node, left)
            more, right = self.expression(node.right)
            arm = (*more, tree.Assign(node.at, kept.variable, right))
            ways = (arm, ()) if node.op == "and" else ((), arm)
            return [*before, kept, tree.If(node.at, read, *ways)], read
        before, condition = self.expression(node.condition)
        kept, read = self.temporary(node, None)
        ways = []
        for part in (node.then, node.otherwise):
            more, value = self.expression(part)
            ways.append((*more, tree.Assign(node.at, kept.variable, value)))
        return [*before, kept, tree.If(node.at, condition, *ways)], read


def hoisted(program: tree.Program) -> tree.Function:
    """The kernel with every workgroup rendezvous in a statement of its own."""
    return Hoist().function(program.kernel)
