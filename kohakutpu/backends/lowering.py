"""The seam: one walk over the typed tree, and the virtual methods that a target implements.

The walk decides the order of evaluation, takes vectors apart into lanes, and inlines helpers. What a value is, how
control flows and where memory lies are the target's. A method that a target does not implement refuses its node by
name, so that nothing is lowered to something else in silence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NoReturn

from kohakutpu.xpu import tree
from kohakutpu.xpu.errors import Refusal
from kohakutpu.xpu.types import MEMORY, VOID, FunctionType, Scalar, TileType, VectorType, u32


class Unlowered(Exception):
    """XPU-N01, XPU-N02 or XPU-N04: a construct that a target has no code for. `reason` is the launch's, of REASONS."""

    def __init__(self, refusal: Refusal, reason: int = 0):
        super().__init__(str(refusal))
        self.refusal, self.reason = refusal, reason


@dataclass(eq=False)
class Frame:
    """One activation of a function: what its variables stand for, and the target's own state of it."""

    function: tree.Function
    values: dict[tree.Variable, Any] = field(default_factory=dict)
    state: dict[Any, Any] = field(default_factory=dict)


def element(kind) -> Scalar:
    """The primitive of a scalar or a vector; a function is its tag."""
    return u32 if isinstance(kind, FunctionType) else kind.element if isinstance(kind, VectorType) else kind


def lanewise(kind, compute, *values):
    """A scalar operation on scalars, or on each lane of vectors, which are tuples."""
    if isinstance(kind, VectorType):
        return tuple(compute(*lanes) for lanes in zip(*values, strict=True))
    return compute(*values)


class LoweringTarget:
    """The walk, and what a target must say. `name` is the back end's."""

    name = ""

    def __init__(self, program: tree.Program):
        self.program = program
        self.frame = Frame(program.kernel)
        self.frames: list[Frame] = []  # those of the callers

    def refuse(self, what: str, at, code: str = "XPU-N01", reason: int = 0) -> NoReturn:
        """No code for a construct."""
        inside = self.frame.function.name if self.frames else ""
        raise Unlowered(Refusal(f"{code}: {what}", at, inside), reason)

    # The walk.
    def value(self, node: tree.Expression):
        """An expression's value, in the interpreter's order of evaluation."""
        match node:
            case tree.Literal(type=kind, value=value):
                return self.literal(element(kind), value)
            case tree.Read(variable=variable):
                return self.read(variable)
            case tree.Convert(type=kind, value=inner):
                source, target = element(inner.type), element(kind)
                return lanewise(kind, lambda lane: self.convert(node, lane, source, target), self.value(inner))
            case tree.Splat(type=kind, value=inner):
                return (self.value(inner),) * kind.count
            case tree.Unary(op=op, value=inner):
                kind = element(node.type)
                return lanewise(node.type, lambda lane: self.unary(node, op, kind, lane), self.value(inner))
            case tree.Binary(op=op, left=left, right=right):
                kind, a, b = element(node.type), self.value(left), self.value(right)
                return lanewise(node.type, lambda x, y: self.binary(node, op, kind, x, y), a, b)
            case tree.Compare(op=op, left=left, right=right):
                kind, a, b = element(left.type), self.value(left), self.value(right)
                return lanewise(node.type, lambda x, y: self.compare(node, op, kind, x, y), a, b)
            case tree.Logical():
                return self.logical(node)
            case tree.Select():
                return self.select(node)
            case tree.Assigned(variable=variable, value=inner):
                self.assign(variable, self.value(inner))
                return self.read(variable)
            case tree.Load(memory=memory, index=index):
                return self.load(node, self.value(memory), self.value(index))
            case tree.LoadVector(memory=memory, index=index):
                return self.load_vector(node, self.value(memory), self.value(index))
            case tree.Lane(vector=vector, index=index):
                lanes = self.value(vector)
                if isinstance(index, tree.Literal) and 0 <= index.value < len(lanes):
                    return lanes[index.value]
                return self.lane(node, lanes, self.value(index))
            case tree.MakeVector(lanes=lanes):
                return tuple(self.value(lane) for lane in lanes)
            case tree.Slice(memory=memory, offset=offset):
                return (self.value(memory), self.value(offset))
            case tree.MakeWaveVector(form=form, arguments=arguments):
                return (form, *(self.value(argument) for argument in arguments))
            case tree.Call(helper=helper, arguments=arguments):
                return self.call(node, helper, [self.value(argument) for argument in arguments])
            case tree.CallTag(tag=tag, arguments=arguments):
                return self.call_tag(node, self.value(tag), [self.value(argument) for argument in arguments])
            case tree.Invoke(arguments=arguments):
                result = self.invoke(node, [self.value(argument) for argument in arguments])
                if node.target is not None:
                    self.assign(node.target, result)
                return result
        raise AssertionError(f"the tree has a node that no walk knows: {node!r}")

    def invoke(self, node: tree.Invoke, arguments: list):
        """A built-in, by its family."""
        family, _, word = node.verb.partition(".")
        kinds = [argument.type for argument in node.arguments]
        if family == "math":
            kind = element(node.type)
            return lanewise(node.type, lambda *lanes: self.function(node, word, kind, *lanes), *arguments)
        if family == "vector" or node.verb == "group.mac":
            return self.vector_method(node, "mac" if family == "group" else word, arguments, kinds)
        if family == "memory":
            return self.atomic(node, word.removeprefix("atomic_"), *arguments)
        if family == "tile":
            return self.tile(node, word, arguments, kinds)
        if family == "async_copy":
            return self.copy(node, *arguments) if word == "copy" else None
        if family in ("bits", "bits_to_f32", "bits_to_f64", "f32_to_bits", "f64_to_bits"):
            return self.bit_verb(node, word or family, arguments)
        if node.verb in COORDINATES or family == "thread":
            return self.coordinate(node, family, word)
        if node.verb in ("barrier.workgroup_memory", "barrier.device_memory"):
            return self.fence(node)
        return self.collective(node, family, word, arguments)

    def body(self, function: tree.Function, arguments: list, node) -> Frame:
        """Enter a helper: its frame, with the arguments bound. The caller leaves it by restoring `self.frame`."""
        if not function.portable:
            self.refuse(f"{function.name} has back-end arms and no portable body", node.at)
        self.frame = Frame(function)
        for parameter, value in zip(function.parameters, arguments, strict=True):
            if isinstance(parameter.type, MEMORY):
                self.frame.values[parameter] = value
            else:
                self.declare(parameter, value)
        return self.frame

    # What a target says. Values of scalars are its own; a vector is a tuple of them.
    def _missing(self, what: str, node) -> NoReturn:
        self.refuse(f"{what} has no code on {self.name}", node.at)

    def literal(self, kind: Scalar, value):
        """A constant."""
        raise NotImplementedError

    def read(self, variable: tree.Variable):
        """A variable's value."""
        raise NotImplementedError

    def declare(self, variable: tree.Variable, value) -> None:
        """A variable's start; None is zero."""
        raise NotImplementedError

    def assign(self, variable: tree.Variable, value) -> None:
        """A variable's new value."""
        raise NotImplementedError

    def convert(self, node, value, source: Scalar, target: Scalar):
        """Rule 9."""
        self._missing(f"a conversion from {source} to {target}", node)

    def unary(self, node, op: str, kind: Scalar, value):
        """neg, invert, not."""
        self._missing(f"{op} of {kind}", node)

    def binary(self, node, op: str, kind: Scalar, left, right):
        """An operator on two values of one type."""
        self._missing(f"{op} of {kind}", node)

    def compare(self, node, op: str, kind: Scalar, left, right):
        """A comparison of two values of one type."""
        self._missing(f"a comparison of {kind}", node)

    def logical(self, node: tree.Logical):
        """and, or; the right side only if the left has not decided."""
        self._missing(f"{node.op} of conditions", node)

    def select(self, node: tree.Select):
        """Exactly one arm."""
        self._missing("a choice", node)

    def load(self, node, memory, index):
        """One element."""
        self._missing("a read of memory", node)

    def load_vector(self, node, memory, index):
        """Consecutive elements."""
        self._missing("vload", node)

    def lane(self, node, lanes: tuple, index):
        """A lane by an index that is no constant."""
        self._missing("a vector's lane by a computed index", node)

    def call(self, node, helper: tree.Function, arguments: list):
        """A helper's value."""
        self._missing(f"a call of {helper.name}", node)

    def call_tag(self, node: tree.CallTag, tag, arguments: list):
        """The helper that a tag names."""
        self._missing("a function value", node)

    def function(self, node, word: str, kind: Scalar, *values):
        """A function below `math`."""
        self._missing(f"math.{word} of {kind}", node)

    def vector_method(self, node, word: str, arguments: list, kinds: list):
        """A method of vectors."""
        self._missing(node.verb, node)

    def bit_verb(self, node, word: str, arguments: list):
        """Bits and reinterpretation."""
        self._missing(node.verb, node)

    def atomic(self, node, op: str, memory, index, *values):
        """An atomic; gives the old value."""
        self._missing(node.verb, node)

    def tile(self, node, word: str, arguments: list, kinds: list[TileType]):
        """A verb of cooperative matrices."""
        self._missing(node.verb, node)

    def copy(self, node, into, into_at, source, source_at, count) -> None:
        """async_copy.copy."""
        self._missing(node.verb, node)

    def coordinate(self, node, family: str, word: str):
        """Where a work-item stands."""
        self._missing(node.verb, node)

    def fence(self, node) -> None:
        """A fence without a rendezvous."""

    def collective(self, node, family: str, word: str, arguments: list):
        """A rendezvous of a wave or a workgroup."""
        self._missing(node.verb, node)


COORDINATES = {
    f"{family}.{word}"
    for family, words in {
        "workgroup": ("x", "y", "z", "dim_x", "dim_y", "dim_z"),
        "group": ("width", "lane_id", "row_id"),
        "wave": ("width", "lane_id", "is_first_lane"),
    }.items()
    for word in words
}


def void(kind) -> bool:
    """True for what gives no value."""
    return kind is VOID
