"""Which variables may differ between the lanes of a wave.

A variable is uniform if every value that it is given is, and if lanes that come together again agree on which they
gave it: an assignment under a condition that varies, to a variable declared outside of it, makes the variable vary.
Lanes that have returned never read again, so that a return changes nothing.
"""

from __future__ import annotations

from kohakutpu.xpu import tree
from kohakutpu.xpu.types import MEMORY, TileType

UNIFORM = ("workgroup.reduce", "wave.ballot_sync", "group.width", "group.row_id", "wave.width")
VARYING = ("thread", "quad", "memory")


def gives_one(node: tree.Invoke) -> bool:
    """True for a verb that gives every lane of a wave the same."""
    verb = node.verb
    return verb in UNIFORM or verb.startswith(("wave.reduce", "group.reduce")) and "segmented" not in verb


def gives_each(node: tree.Invoke) -> bool:
    """True for a verb that may give each lane its own, whatever its arguments are."""
    family, _, word = node.verb.partition(".")
    if node.verb in ("tile.get", "tile.row", "tile.col", "tile.elements", "workgroup.scan"):
        return True
    if family in VARYING:
        return True
    return family in ("wave", "group") and word not in ("mac",) and not gives_one(node)


class Varying:
    """`variables` that may vary, over a kernel and every helper it inlines; found by repetition until none is new."""

    def __init__(self, kernel: tree.Function):
        self.variables: set[tree.Variable] = set()
        self.results: set[tree.Function] = set()
        before = -1
        while before != len(self.variables) + len(self.results):
            before = len(self.variables) + len(self.results)
            self.depths = {parameter: 0 for parameter in kernel.parameters}
            self.depth, self.entry, self.loops = 0, 0, {}
            self.function = kernel
            self.block(kernel.body)

    def differs(self, node: tree.Expression) -> bool:
        """True if an expression may differ between lanes. Notes what it assigns."""
        match node:
            case tree.Literal():
                return False
            case tree.Read(variable=variable):
                return variable in self.variables
            case tree.Assigned(variable=variable, value=value):
                self.give(variable, self.differs(value))
                return variable in self.variables
            case tree.Logical(left=left, right=right):
                first = self.differs(left)
                return self.under(first, lambda: self.differs(right)) or first
            case tree.Select(condition=condition, then=then, otherwise=otherwise):
                which = self.differs(condition)
                arms = [self.under(which, lambda arm=arm: self.differs(arm)) for arm in (then, otherwise)]
                return which or any(arms)
            case tree.Call() | tree.CallTag():
                return self.call(node)
        inner = [self.differs(part) for part in tree.children(node)]
        if isinstance(node, tree.Invoke):
            if node.target is not None and not isinstance(node.target.type, TileType):
                self.give(node.target, True)
            return not gives_one(node) and (any(inner) or gives_each(node))
        if isinstance(node, tree.Load) and node.memory.type is not None:
            return inner[1]
        return any(inner)

    def under(self, divergent: bool, act):
        """Do something where only some lanes of a wave may be."""
        self.depth += divergent
        found = act()
        self.depth -= divergent
        return found

    def give(self, variable: tree.Variable, differs: bool) -> None:
        """A value for a variable."""
        if differs or self.depth > self.depths.get(variable, 0):
            self.variables.add(variable)

    def declare(self, variable: tree.Variable, differs: bool) -> None:
        """A variable's beginning."""
        self.depths[variable] = self.depth
        if differs:
            self.variables.add(variable)

    def call(self, node) -> bool:
        """A helper's result."""
        arguments = [self.differs(argument) for argument in node.arguments]
        picked = isinstance(node, tree.CallTag) and self.differs(node.tag)
        found = picked
        for helper in node.members if isinstance(node, tree.CallTag) else (node.helper,):
            kept = self.function, self.depth, self.loops, self.entry
            self.function, self.loops = helper, {}
            self.depth += picked
            self.entry = self.depth
            for parameter, differs in zip(helper.parameters, arguments, strict=True):
                self.declare(parameter, differs and not isinstance(parameter.type, MEMORY))
            self.block(helper.body)
            self.function, self.depth, self.loops, self.entry = kept
            found = found or helper in self.results
        return found

    def block(self, body: tuple) -> None:
        """Statements in order."""
        for statement in body:
            self.statement(statement)

    def loop(self, node, differs: bool, test: tree.Expression | None = None) -> None:
        """A body; lanes that leave it on their own make it diverge, which a second pass then sees."""
        self.loops[node.loop] = self.depth

        def turn():
            self.block(node.body)
            if test is not None:
                self.differs(test)

        self.under(differs or ("loop", node.loop) in self.results, turn)
        del self.loops[node.loop]

    def statement(self, node: tree.Statement) -> None:
        """One statement."""
        match node:
            case tree.Declare(variable=variable, value=value):
                self.declare(variable, value is not None and self.differs(value))
            case tree.Assign(variable=variable, value=value):
                self.give(variable, self.differs(value))
            case tree.AssignLane(variable=variable, index=index, value=value):
                differs = self.differs(value)
                self.give(variable, self.differs(index) or differs)
            case tree.If(condition=condition, then=then, otherwise=otherwise):
                which = self.differs(condition)
                self.under(which, lambda: self.block(then))
                self.under(which, lambda: self.block(otherwise))
            case tree.While(condition=condition):
                self.loop(node, self.differs(condition), condition)
            case tree.ForRange(variable=variable, start=start, stop=stop):
                first, last = self.differs(start), self.differs(stop)
                self.declare(variable, first)
                self.loop(node, first or last)
            case tree.ForStripe(variable=variable, count=count):
                self.differs(count)
                self.declare(variable, True)
                self.loop(node, True)
            case tree.ForBuffer(index=index, element=value, count=count):
                self.differs(count)
                self.declare(index, True)
                self.declare(value, True)
                self.loop(node, True)
            case tree.Break(loop=loop) | tree.Continue(loop=loop):
                depth = self.loops[loop]
                if self.depth > depth:
                    for passed, at in self.loops.items():
                        if at >= depth:
                            self.results.add(("loop", passed))
            case tree.Return(value=value):
                differs = value is not None and self.differs(value)
                if value is not None and (differs or self.depth > self.entry):
                    self.results.add(self.function)
            case _:
                for part in tree.children(node):
                    self.differs(part)


def assigned(kernel: tree.Function) -> set[tree.Variable]:
    """Variables that are given a value after their declaration, helpers included."""
    found: set[tree.Variable] = set()
    seen: set[tree.Function] = set()

    def look(function: tree.Function) -> None:
        if function in seen:
            return
        seen.add(function)
        for node in (node for statement in function.body for node in tree.walk(statement)):
            if isinstance(node, (tree.Assign, tree.AssignLane, tree.Assigned)):
                found.add(node.variable)
            if isinstance(node, tree.Invoke) and node.target is not None:
                found.add(node.target)
            if isinstance(node, tree.Call):
                look(node.helper)
            if isinstance(node, tree.CallTag):
                for helper in node.members:
                    look(helper)

    look(kernel)
    return found
