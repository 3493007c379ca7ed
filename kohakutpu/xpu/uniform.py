"""Where every work-item of a workgroup surely arrives: the verbs that combine a workgroup are refused elsewhere.

A value is uniform if it is computed from literals, scalar parameters, workgroup coordinates and results of workgroup
verbs alone; an element of memory is as uniform as its index. Control flow diverges under a condition that is not
uniform, and stays so after a return, break or continue inside it.
"""

from __future__ import annotations

from .errors import Refusal
from .tree import (
    Assign, AssignLane, Assigned, Break, Call, CallTag, Continue, Declare, Evaluate, Expression, ForBuffer, ForRange,
    ForStripe, Function, If, Invoke, Loop, Read, Return, Statement, Variable, While, children,
)  # fmt: skip

COMBINES = ("workgroup.reduce", "workgroup.scan")
UNIFORM = {"workgroup.x", "workgroup.y", "workgroup.z", "workgroup.dim_x", "workgroup.dim_y", "workgroup.dim_z",
           "wave.width", "group.width", "group.row_id", "workgroup.reduce"}  # fmt: skip
VARYING = {"thread.", "wave.", "group.", "quad.", "memory.atomic", "tile.", "async_copy."}


class _Flow:
    """One function under given arguments. `varying` grows until a pass over the body adds nothing."""

    def __init__(self, varying: set[Variable], diverged: bool, inside: str, found: dict):
        self.varying, self.start, self.inside, self.found = varying, diverged, inside, found
        self.diverged = diverged
        self.result_varies = False

    def run(self, body: tuple[Statement, ...]) -> None:
        size = -1
        while size != len(self.varying):
            size = len(self.varying)
            self.diverged = self.start
            self.block(body)

    def varies(self, value: Expression) -> bool:
        """True if two work-items of a workgroup may see different values."""
        if isinstance(value, Read):
            return value.variable in self.varying
        if isinstance(value, (Call, CallTag)):
            return self.call(value)
        inner = [self.varies(part) for part in children(value)]
        if isinstance(value, Assigned):
            self.take(value.variable, inner[0])
        if isinstance(value, Invoke):
            if value.target is not None:
                self.varying.add(value.target)
            if value.verb in COMBINES and self.diverged:
                text = f"{value.verb} in divergent flow: some work-items of the workgroup may not arrive"
                self.found[value] = Refusal(text, value.at, self.inside)
            if value.verb in UNIFORM:
                return False
            return any(inner) or value.verb.startswith(tuple(VARYING))
        return any(inner)

    def call(self, value: Call | CallTag) -> bool:
        arguments = [self.varies(argument) for argument in value.arguments]
        picked = isinstance(value, CallTag) and self.varies(value.tag)
        result = picked
        for helper in value.members if isinstance(value, CallTag) else (value.helper,):
            varying = {p for p, varies in zip(helper.parameters, arguments, strict=True) if varies}
            flow = _Flow(varying, self.diverged or picked, helper.name, self.found)
            flow.run(helper.body)
            result = result or flow.result_varies
        return result

    def take(self, variable: Variable, varies: bool) -> None:
        if varies or self.diverged:
            self.varying.add(variable)

    def block(self, body: tuple[Statement, ...]) -> set:
        """How the block may be left early by some work-items: {(Return | Break | Continue, the loop)}."""
        left = set()
        for statement in body:
            left |= self.statement(statement)
        return left

    def nested(self, varies: bool, *bodies: tuple[Statement, ...]) -> set:
        before = self.diverged
        left = set()
        for body in bodies:
            self.diverged = before or varies
            left |= self.block(body)
        self.diverged = before or bool(left)
        return left

    def loop(self, varies: bool, loop: Loop, body: tuple[Statement, ...]) -> set:
        """A second pass over a body that some work-items leave: its next turn begins without them."""
        before = self.diverged
        left = self.nested(varies, body)
        if any(how is not Continue for how, _ in left):
            self.diverged = before
            left |= self.nested(True, body)
        left = {(how, where) for how, where in left if where is not loop}
        self.diverged = before or bool(left)
        return left

    def statement(self, statement: Statement) -> set:
        match statement:
            case If(condition=condition, then=then, otherwise=otherwise):
                return self.nested(self.varies(condition), then, otherwise)
            case While(loop=loop, condition=condition, body=body):
                left = self.loop(self.varies(condition), loop, body)
                return self.loop(self.varies(condition), loop, body) | left
            case ForRange(loop=loop, variable=variable, start=start, stop=stop, body=body):
                varies = self.varies(start) | self.varies(stop)
                self.take(variable, varies)
                return self.loop(varies, loop, body)
            case ForStripe(loop=loop, variable=variable, count=count, body=body):
                self.varies(count)
                self.varying.add(variable)
                return self.loop(True, loop, body)
            case ForBuffer(loop=loop, index=index, element=element, count=count, body=body):
                self.varies(count)
                self.varying |= {index, element}
                return self.loop(True, loop, body)
            case Return(value=value):
                varies = value is not None and self.varies(value)
                self.result_varies |= varies or self.diverged
                return {(Return, None)} if self.diverged else set()
            case Break(loop=loop) | Continue(loop=loop):
                return {(type(statement), loop)} if self.diverged else set()
            case Declare(variable=variable, value=value):
                self.take(variable, value is not None and self.varies(value))
            case Assign(variable=variable, value=value):
                self.take(variable, self.varies(value))
            case AssignLane(variable=variable, index=index, value=value):
                self.take(variable, self.varies(index) | self.varies(value))
            case Evaluate(value=value):
                self.varies(value)
            case _:
                for part in children(statement):
                    self.varies(part)
        return set()


def check_uniform(kernel: Function) -> list[Refusal]:
    """A refusal for every workgroup verb that stands in divergent flow, in the order of the source."""
    found: dict[Invoke, Refusal] = {}
    _Flow(set(), False, "", found).run(kernel.body)
    return sorted(found.values(), key=lambda refusal: (refusal.inside, refusal.at.line))
