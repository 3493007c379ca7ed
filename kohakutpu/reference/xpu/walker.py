"""The definition of what a kernel means: a walk over its typed tree, one work-item at a time.

Every step is a generator. It runs through to the end unless the work-item must wait for others: then it yields an
`Arrival`, and goes on with the value that it is sent. `schedule` drives the walkers of a workgroup.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import numpy as np

from kohakutpu.xpu import tree
from kohakutpu.xpu.errors import Undefined
from kohakutpu.xpu.types import VOID, FunctionType, Scalar, TileType, VectorType, u32
from kohakutpu.xpu.verbs import VERBS

from . import arithmetic, vectors
from .arithmetic import Fault
from .memory import Memory, shared

GATHERED = ("tile.mma", "tile.store")


@dataclass(frozen=True)
class Arrival:
    """A work-item at a rendezvous: where, and the arguments that it brings."""

    scope: str
    node: tree.Invoke
    arguments: tuple


@dataclass(frozen=True)
class Place:
    """A work-item's coordinates. `width` is None for a kernel that does not depend on it."""

    group: tuple[int, int, int]
    local: tuple[int, int, int]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    width: int | None

    @property
    def linear(self) -> int:
        """x + y*dimX + z*dimX*dimY."""
        return self.local[0] + self.block[0] * (self.local[1] + self.block[1] * self.local[2])

    @property
    def lane(self) -> int:
        """The lane in its wave."""
        return self.linear % self.width

    @property
    def wave(self) -> int:
        """The wave in its workgroup."""
        return self.linear // self.width

    def __str__(self) -> str:
        return f"workgroup {self.group}, work-item {self.local}"


@dataclass(frozen=True)
class Leave:
    """How a block ended early: by Break or Continue of `loop`, or by Return of `value`."""

    kind: type
    loop: tree.Loop | None = None
    value: object = None


@dataclass(frozen=True)
class Formats:
    """The modules that say what numbers are: `values` alone, `tiles` in cooperative matrices."""

    values: ModuleType
    tiles: ModuleType


def zero(kind, formats: Formats):
    """The value of a local without an initialiser."""
    if isinstance(kind, VectorType):
        return (formats.values.zero(kind.element),) * kind.count
    if isinstance(kind, TileType):
        return formats.tiles.zeros(kind)
    return 0 if isinstance(kind, FunctionType) else formats.values.zero(kind)


def lanewise(kind, compute, *values):
    """A scalar operation on scalars, or on each lane of vectors."""
    if isinstance(kind, VectorType):
        return tuple(compute(*lanes) for lanes in zip(*values, strict=True))
    return compute(*values)


def element(kind):
    """The primitive of a scalar or vector type."""
    return kind.element if isinstance(kind, VectorType) else kind


class Walker:
    """One work-item. `arrays` are the workgroup's Shared arrays, `tick` counts a statement against the budget."""

    def __init__(self, place: Place, arrays: dict, fragments: bool, tick, formats: Formats, shared_bytes: int | None):
        self.place, self.arrays, self.fragments, self.tick = place, arrays, fragments, tick
        self.formats, self.values_of, self.shared_bytes = formats, formats.values, shared_bytes

    def run(self, kernel: tree.Function, arguments: list):
        """The kernel from start to end, as a generator of arrivals."""
        frame = dict(zip(kernel.parameters, arguments, strict=True))
        yield from self.block(kernel.body, frame)

    def undefined(self, fault: Fault, at) -> Undefined:
        return Undefined(str(fault), at, str(self.place))

    # Statements.
    def block(self, body: tuple, frame: dict):
        for statement in body:
            self.tick()
            try:
                left = yield from STATEMENTS[type(statement)](self, statement, frame)
            except Fault as fault:
                raise self.undefined(fault, statement.at) from None
            if left is not None:
                return left
        return None

    def declare(self, node: tree.Declare, frame):
        kind = node.variable.type
        frame[node.variable] = (
            zero(kind, self.formats) if node.value is None else (yield from self.value(node.value, frame))
        )

    def declare_shared(self, node: tree.DeclareShared, frame):
        count = yield from self.value(node.count, frame)
        if count < 1:
            raise Fault(f"{count} elements of Shared {node.variable.name}")
        size = count * node.variable.type.element.size
        if node.dynamic and self.shared_bytes is not None and size > self.shared_bytes:
            raise Fault(f"{size} bytes of Shared {node.variable.name}, where the launch gives {self.shared_bytes}")
        if node not in self.arrays:
            self.arrays[node] = shared(node.variable.name, node.variable.type, count, self.values_of)
        held = self.arrays[node]
        if len(held.array) != count:
            raise Fault(f"{count} elements of Shared {node.variable.name}, to which another gave {len(held.array)}")
        frame[node.variable] = held

    def assign(self, node: tree.Assign, frame):
        frame[node.variable] = yield from self.value(node.value, frame)

    def assign_lane(self, node: tree.AssignLane, frame):
        value = yield from self.value(node.value, frame)
        index = yield from self.value(node.index, frame)
        vector = frame[node.variable]
        self.lane_of(vector, index, node.variable.type)
        frame[node.variable] = vector[:index] + (value,) + vector[index + 1 :]

    def store(self, node: tree.Store, frame):
        value = yield from self.value(node.value, frame)
        memory = yield from self.value(node.memory, frame)
        memory.store((yield from self.value(node.index, frame)), value)

    def store_vector(self, node: tree.StoreVector, frame):
        memory = yield from self.value(node.memory, frame)
        index = yield from self.value(node.index, frame)
        value = yield from self.value(node.value, frame)
        for offset, lane in enumerate(value):
            memory.store(index + offset, lane)

    def evaluate(self, node: tree.Evaluate, frame):
        yield from self.value(node.value, frame)

    def choose(self, node: tree.If, frame):
        taken = yield from self.value(node.condition, frame)
        return (yield from self.block(node.then if taken else node.otherwise, frame))

    def turn(self, node, frame):
        """One turn of a loop: None to go on, False to leave the loop, or how an outer construct is left."""
        left = yield from self.block(node.body, frame)
        if left is None or left.loop is not node.loop:
            return left
        return None if left.kind is tree.Continue else False

    def loop(self, node, frame, turns):
        """A counted loop; `turns` sets the variables of each turn."""
        for variables in turns:
            self.tick()
            frame.update(variables)
            left = yield from self.turn(node, frame)
            if left is not None:
                return left or None
        return None

    def repeat(self, node: tree.While, frame):
        late = node.test_last
        while late or (yield from self.value(node.condition, frame)):
            late = False
            self.tick()
            left = yield from self.turn(node, frame)
            if left is not None:
                return left or None
        return None

    def for_range(self, node: tree.ForRange, frame):
        start = yield from self.value(node.start, frame)
        stop = yield from self.value(node.stop, frame)
        return (yield from self.loop(node, frame, ({node.variable: i} for i in range(start, stop, node.step))))

    def for_stripe(self, node: tree.ForStripe, frame):
        count = yield from self.value(node.count, frame)
        turns = ({node.variable: i} for i in range(self.place.lane, count, self.place.width))
        return (yield from self.loop(node, frame, turns))

    def for_buffer(self, node: tree.ForBuffer, frame):
        memory = yield from self.value(node.memory, frame)
        count = yield from self.value(node.count, frame)
        step = self.place.grid[0] * self.place.block[0]
        turns = ({node.index: i, node.element: memory.load(i)} for i in range(self.global_id(0), count, step))
        return (yield from self.loop(node, frame, turns))

    def leave(self, node, frame):
        return Leave(type(node), node.loop)
        yield  # never reached; every step is a generator

    def give(self, node: tree.Return, frame):
        value = None if node.value is None else (yield from self.value(node.value, frame))
        return Leave(tree.Return, value=value)

    # Expressions.
    def value(self, node: tree.Expression, frame: dict):
        """An expression's value; undefined behaviour is reported at the innermost expression that shows it."""
        try:
            return (yield from EXPRESSIONS[type(node)](self, node, frame))
        except Fault as fault:
            raise self.undefined(fault, node.at) from None

    def values(self, nodes, frame):
        found = []
        for node in nodes:
            found.append((yield from self.value(node, frame)))
        return found

    def literal(self, node: tree.Literal, frame):
        return self.values_of.literal(node.type, node.value) if isinstance(node.type, Scalar) else node.value
        yield

    def read(self, node: tree.Read, frame):
        return frame[node.variable]
        yield

    def convert(self, node: tree.Convert, frame):
        value = yield from self.value(node.value, frame)
        if isinstance(node.type, FunctionType):
            return value
        source, target = element(node.value.type), element(node.type)
        return lanewise(node.type, lambda lane: self.values_of.convert(lane, source, target), value)

    def splat(self, node: tree.Splat, frame):
        return ((yield from self.value(node.value, frame)),) * node.type.count

    def unary(self, node: tree.Unary, frame):
        value = yield from self.value(node.value, frame)
        if node.op == "not":
            return not value
        kind = element(node.type)
        if node.op == "neg":
            return lanewise(node.type, lambda lane: self.values_of.negate(kind, lane), value)
        return lanewise(node.type, lambda lane: arithmetic.wrap(kind, ~lane), value)

    def binary(self, node: tree.Binary, frame):
        left = yield from self.value(node.left, frame)
        right = yield from self.value(node.right, frame)
        kind = element(node.type)
        return lanewise(node.type, lambda a, b: self.values_of.binary(node.op, kind, a, b), left, right)

    def compare(self, node: tree.Compare, frame):
        left = yield from self.value(node.left, frame)
        right = yield from self.value(node.right, frame)
        kind = element(node.left.type)
        return lanewise(node.type, lambda a, b: self.values_of.compare(node.op, kind, a, b), left, right)

    def logical(self, node: tree.Logical, frame):
        left = yield from self.value(node.left, frame)
        return (yield from self.value(node.right, frame)) if left == (node.op == "and") else left

    def select(self, node: tree.Select, frame):
        taken = yield from self.value(node.condition, frame)
        return self.values_of.chosen(node.type, (yield from self.value(node.then if taken else node.otherwise, frame)))

    def assigned(self, node: tree.Assigned, frame):
        frame[node.variable] = yield from self.value(node.value, frame)
        return frame[node.variable]

    def load(self, node: tree.Load, frame):
        memory = yield from self.value(node.memory, frame)
        return memory.load((yield from self.value(node.index, frame)))

    def load_vector(self, node: tree.LoadVector, frame):
        memory = yield from self.value(node.memory, frame)
        index = yield from self.value(node.index, frame)
        return tuple(memory.load(index + offset) for offset in range(node.type.count))

    @staticmethod
    def lane_of(vector: tuple, index: int, kind: VectorType):
        if not 0 <= index < kind.count:
            raise Fault(f"lane {index} of a {kind}")
        return vector[index]

    def lane(self, node: tree.Lane, frame):
        vector = yield from self.value(node.vector, frame)
        return self.lane_of(vector, (yield from self.value(node.index, frame)), node.vector.type)

    def make_vector(self, node: tree.MakeVector, frame):
        return tuple((yield from self.values(node.lanes, frame)))

    def slice(self, node: tree.Slice, frame):
        return tuple((yield from self.values((node.memory, node.offset), frame)))

    def make_wave_vector(self, node: tree.MakeWaveVector, frame):
        return (node.form, *(yield from self.values(node.arguments, frame)))

    def enter(self, helper: tree.Function, arguments: list):
        """A helper's value: memory by reference, everything else a value that nothing changes in place."""
        frame = dict(zip(helper.parameters, arguments, strict=True))
        left = yield from self.block(helper.body, frame)
        if left is None and helper.result is not VOID:
            raise Fault(f"{helper.name} ends without the {helper.result} that it promises")
        return None if left is None else left.value

    def call(self, node: tree.Call, frame):
        return (yield from self.enter(node.helper, (yield from self.values(node.arguments, frame))))

    def call_tag(self, node: tree.CallTag, frame):
        tag = yield from self.value(node.tag, frame)
        arguments = yield from self.values(node.arguments, frame)
        if tag >= len(node.members):
            return None if node.type is VOID else zero(node.type, self.formats)
        return (yield from self.enter(node.members[tag], arguments))

    # Built-ins.
    def global_id(self, axis: int) -> int:
        place = self.place
        return arithmetic.wrap(u32, place.group[axis] * place.block[axis] + place.local[axis])

    def invoke(self, node: tree.Invoke, frame):
        arguments = yield from self.values(node.arguments, frame)
        verb = VERBS[node.verb]
        scope = verb.rendezvous or ("wave" if self.fragments and node.verb in GATHERED else "")
        if scope:
            result = yield Arrival(scope, node, tuple(arguments))
        else:
            result = self.plain(node, arguments)
        if node.target is not None:
            frame[node.target] = result
        return result

    def plain(self, node: tree.Invoke, arguments: list):
        """A built-in for which nobody waits."""
        family, _, word = node.verb.partition(".")
        kinds = [argument.type for argument in node.arguments]
        if node.verb in vectors.PLAIN:
            return vectors.PLAIN[node.verb](*arguments)
        if family == "math":
            kind = element(node.type)
            return lanewise(node.type, lambda *lanes: self.values_of.function(word, kind, *lanes), *arguments)
        if family == "vector":
            return vectors.method(word, arguments, kinds, node.type, self.values_of)
        if node.verb == "group.mac":
            total, left, right = arguments
            return vectors.method("dot_sum", [left, right, total], [kinds[1], kinds[2], kinds[0]], node.type)
        if family == "memory":
            return atomic(word, arguments)
        if family == "tile":
            return self.tile(word, arguments, kinds)
        if node.verb == "async_copy.copy":
            return self.copy(*arguments)
        return self.coordinate(node.verb)

    def copy(self, into: Memory, into_at: int, source: Memory, source_at: int, count: int) -> None:
        """This work-item's stripe of a copy into Shared memory."""
        size = self.place.block[0] * self.place.block[1] * self.place.block[2]
        for index in range(self.place.linear, count, size):
            into.store(into_at + index, source.load(source_at + index))

    def tile(self, word: str, arguments: list, kinds: list):
        """A tile verb that reads no memory."""
        tile, *rest = arguments
        kind, place, tiles = kinds[0], self.place, self.formats.tiles
        if word == "splat":
            return tiles.splat(kind, rest[0])
        if word == "mma":
            return tiles.mma(tuple(kinds), tile, *rest)
        if word == "store":
            return tiles.store(kind, tile, *rest)
        if word == "elements":
            return tiles.elements(kind, place.lane, place.width)
        row, col = tiles.owned(kind, place.lane, place.width, rest[0])
        if word in ("row", "col"):
            return row if word == "row" else col
        if word == "get":
            return tiles.element_value(kind.element, tile, row, col)
        return tiles.changed(tile, row, col, rest[1])

    def coordinate(self, verb: str):
        place = self.place
        family, _, word = verb.partition(".")
        axis = "xyz".find(word[-1])
        match family, word:
            case "thread", _ if word.startswith("global"):
                return self.global_id(axis)
            case "thread", _:
                return place.local[axis]
            case "workgroup", _:
                return (place.block if word.startswith("dim") else place.group)[axis]
            case _, "width":
                return place.width
            case _, "lane_id":
                return place.lane
            case _, "is_first_lane":
                return place.lane == 0
            case _, "row_id":
                return place.group[0]
        return None  # fences, commit and wait order nothing where memory is sequentially consistent


def atomic(word: str, arguments: list):
    """Load, operate, store; the value is the old one."""
    memory, index, *values = arguments
    kind, old, op = memory.element, memory.load(index), word.removeprefix("atomic_")
    new = values[-1]
    if op == "compare_exchange":
        new = new if old == values[0] else old
    elif op in ("min", "max"):
        if kind.kind == "float":
            new = (np.fmin if op == "min" else np.fmax)(old, new)
        else:
            new = min(old, new) if op == "min" else max(old, new)
    elif op != "exchange":
        new = arithmetic.binary(op, kind, old, new)
    memory.store(index, new)
    return old


STATEMENTS = {
    tree.Declare: Walker.declare, tree.DeclareShared: Walker.declare_shared, tree.Assign: Walker.assign,
    tree.AssignLane: Walker.assign_lane, tree.Store: Walker.store, tree.StoreVector: Walker.store_vector,
    tree.Evaluate: Walker.evaluate, tree.If: Walker.choose, tree.While: Walker.repeat, tree.ForRange: Walker.for_range,
    tree.ForStripe: Walker.for_stripe, tree.ForBuffer: Walker.for_buffer, tree.Break: Walker.leave,
    tree.Continue: Walker.leave, tree.Return: Walker.give,
}  # fmt: skip
EXPRESSIONS = {
    tree.Literal: Walker.literal, tree.Read: Walker.read, tree.Convert: Walker.convert, tree.Splat: Walker.splat,
    tree.Unary: Walker.unary, tree.Binary: Walker.binary, tree.Compare: Walker.compare, tree.Logical: Walker.logical,
    tree.Select: Walker.select, tree.Assigned: Walker.assigned, tree.Load: Walker.load,
    tree.LoadVector: Walker.load_vector, tree.Lane: Walker.lane, tree.MakeVector: Walker.make_vector,
    tree.Slice: Walker.slice, tree.MakeWaveVector: Walker.make_wave_vector, tree.Call: Walker.call,
    tree.CallTag: Walker.call_tag, tree.Invoke: Walker.invoke,
}  # fmt: skip
