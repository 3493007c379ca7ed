"""The fast path: many work-items step through the tree together, as numpy arrays under a mask.

It must give the walker's bytes or give up. Whatever it cannot be sure of is a `Bail`: undefined behaviour, two
work-items that touch one element with no barrier between, lanes of a wave apart at a wave operation, a node that it
does not know. The caller then restores memory and lets the walker answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from kohakutpu.xpu import tree
from kohakutpu.xpu.types import BOOL, VOID, Scalar, VectorType, bf16, u32
from kohakutpu.xpu.verbs import VERBS

from . import batch, vectors, waves
from .arithmetic import Fault
from .batch import Bail, check
from .memory import shared
from .tracking import Touched, Tracked
from .walker import element, lanewise


@dataclass
class Frame:
    """One call: the locals, what it returns, and who left which loop how: {(Break | Continue, loop): mask}."""

    values: dict
    result: object = None
    left: dict = field(default_factory=dict)


class Lockstep:
    """A batch of work-items: `groups` whole workgroups in order.

    `arguments` hold the parameters (see `tracking.bind`), `epochs` gives every stretch between barriers its own number.
    """

    def __init__(self, program: tree.Program, groups: list[tuple], grid: tuple, block: tuple, width: int | None,
                 arguments: dict, epochs: Iterator[int], tick, shared_bytes: int | None):  # fmt: skip
        self.program, self.grid, self.block, self.width, self.tick = program, grid, block, width, tick
        self.shared_bytes, self.epochs, self.frame = shared_bytes, epochs, dict(arguments)
        self.size = block[0] * block[1] * block[2]
        self.count = self.size * len(groups)
        linear = np.tile(np.arange(self.size), len(groups))
        self.linear = linear
        self.local = [linear % block[0], linear // block[0] % block[1], linear // (block[0] * block[1])]
        self.group = [np.repeat([group[axis] for group in groups], self.size) for axis in range(3)]
        self.number = np.repeat(np.arange(len(groups), dtype=np.int64), self.size)
        self.everyone = self.live = np.ones(self.count, bool)
        self.arrays: dict = {}
        self.start = next(epochs)
        self.whose = self.number + self.start
        self.begin_epoch(self.start)

    def begin_epoch(self, epoch: int) -> None:
        """Work-items have met: what they touched before is in order."""
        self.epoch, self.me = epoch, np.arange(epoch, epoch + self.count, dtype=np.int64)

    def run(self) -> None:
        """The whole batch."""
        self.block_of(self.program.kernel.body, Frame(self.frame), self.everyone)

    # Statements: each gives the mask of the work-items that go on after it.
    def block_of(self, body: tuple, frame: Frame, mask: np.ndarray) -> np.ndarray:
        """A block."""
        for statement in body:
            self.tick()
            mask = self.statement(statement, frame, mask)
            if not mask.any():
                break
        return mask

    def statement(self, node: tree.Statement, frame: Frame, mask: np.ndarray) -> np.ndarray:
        match node:
            case tree.Declare(variable=variable, value=value):
                zero = value is None
                frame.values[variable] = self.zero(variable.type) if zero else self.value(value, frame, mask)
            case tree.Assign(variable=variable, value=value):
                self.set(variable, self.value(value, frame, mask), frame, mask)
            case tree.AssignLane(variable=variable, index=index, value=value):
                self.assign_lane(variable, index, self.value(value, frame, mask), frame, mask)
            case tree.Store():
                value = self.value(node.value, frame, mask)
                memory = self.value(node.memory, frame, mask)
                self.store(memory, self.index(node.index, frame, mask), value, mask)
            case tree.StoreVector():
                memory = self.value(node.memory, frame, mask)
                index = self.index(node.index, frame, mask)
                for offset, lane in enumerate(self.value(node.value, frame, mask)):
                    self.store(memory, index + offset, lane, mask)
            case tree.Evaluate(value=value):
                self.value(value, frame, mask)
            case tree.If():
                return self.choose(node, frame, mask)
            case tree.While() | tree.ForRange() | tree.ForStripe() | tree.ForBuffer():
                return self.loop(node, frame, mask)
            case tree.Break(loop=loop) | tree.Continue(loop=loop):
                key = (type(node), loop)
                frame.left[key] = frame.left.get(key, False) | mask
                return np.zeros_like(mask)
            case tree.Return(value=value):
                if value is not None:
                    given = self.value(value, frame, mask)
                    frame.result = given if frame.result is None else self.merge(given, frame.result, mask)
                if frame.values is self.frame:
                    self.live = self.live & ~mask
                return np.zeros_like(mask)
            case tree.DeclareShared():
                self.declare_shared(node, frame, mask)
            case _:
                raise Bail(f"{type(node).__name__}")
        return mask

    @staticmethod
    def zero(kind):
        if isinstance(kind, VectorType):
            return (np.zeros((), batch.dtype(kind.element))[()],) * kind.count
        if not isinstance(kind, Scalar):
            raise Bail(f"a local of {kind}")
        return np.zeros((), batch.dtype(kind))[()]

    @staticmethod
    def merge(new, old, mask):
        """The new value where the mask holds."""
        if mask.all():
            return new
        if isinstance(new, tuple):
            return tuple(np.where(mask, a, b) for a, b in zip(new, old, strict=True))
        return np.where(mask, new, old)

    def set(self, variable: tree.Variable, value, frame: Frame, mask) -> None:
        frame.values[variable] = self.merge(value, frame.values[variable], mask)

    def assign_lane(self, variable, index, value, frame: Frame, mask) -> None:
        at = self.index(index, frame, mask)
        old = frame.values[variable]
        check((at < 0) | (at >= len(old)), mask)
        new = tuple(np.where(at == lane, value, have) for lane, have in enumerate(old))
        self.set(variable, new, frame, mask)

    def declare_shared(self, node: tree.DeclareShared, frame: Frame, mask) -> None:
        counts = np.unique(np.broadcast_to(self.index(node.count, frame, mask), mask.shape)[mask])
        if len(counts) != 1 or counts[0] < 1:
            raise Bail("the size of a Shared array")
        count = int(counts[0])
        size = count * node.variable.type.element.size
        if node.dynamic and self.shared_bytes is not None and size > self.shared_bytes:
            raise Bail("a Shared array past the launch's bytes")
        if node not in self.arrays:
            whole = shared(node.variable.name, node.variable.type, count * (self.count // self.size))
            self.arrays[node] = Tracked(whole, True, base=self.number * count, count=count)
        if self.arrays[node].count != count:
            raise Bail("the size of a Shared array")
        frame.values[node.variable] = self.arrays[node]

    def choose(self, node: tree.If, frame: Frame, mask):
        taken = self.value(node.condition, frame, mask)
        if np.ndim(taken) == 0:
            return self.block_of(node.then if taken else node.otherwise, frame, mask)
        yes, no = mask & taken, mask & ~taken
        after = [self.block_of(b, frame, part) for b, part in ((node.then, yes), (node.otherwise, no)) if part.any()]
        return after[0] if len(after) == 1 else after[0] | after[1]

    def loop(self, node, frame: Frame, mask):
        """Turns until nobody is left in it; those come out who finished or broke it."""
        out = np.zeros_like(mask)
        broke, on = (tree.Break, node.loop), (tree.Continue, node.loop)
        turns = self.turns(node, frame, mask)
        active = mask
        while active.any():
            self.tick()
            going = turns(active)
            if going is not active:
                out |= active & ~going
                active = going
                if not active.any():
                    break
            active = self.block_of(node.body, frame, active) | frame.left.pop(on, False)
        return out | frame.left.pop(broke, False)

    def turns(self, node, frame: Frame, mask):
        """A function from who begins a turn to who goes on with it; sets the turn's variables."""
        if isinstance(node, tree.While):
            untested = node.test_last

            def test(active):
                nonlocal untested
                if untested:
                    untested = False
                    return active
                held = self.value(node.condition, frame, active)
                return (active if held else np.zeros_like(active)) if np.ndim(held) == 0 else active & held

            return test
        if isinstance(node, tree.ForRange):
            start, stop = (np.asarray(self.value(part, frame, mask)) for part in (node.start, node.stop))
            step, kind = node.step, node.variable.type
        else:
            stop = np.asarray(self.value(node.count, frame, mask))
            if isinstance(node, tree.ForStripe):
                start, step, kind = self.linear % self.width, self.width, node.variable.type
            else:
                start, step, kind = self.global_id(0), self.grid[0] * self.block[0], u32
        if np.any(np.abs(stop.astype(np.float64)) > 2.0**52) or np.any(np.abs(start.astype(np.float64)) > 2.0**52):
            raise Bail("a loop of very many turns")
        start, stop = start.astype(np.int64), stop.astype(np.int64)
        totals = np.maximum(0, -((start - stop) // step) if step > 0 else -((stop - start) // -step))
        turn = -1

        def counted(active):
            nonlocal turn
            turn += 1
            held = totals > turn
            going = active if np.all(held[active] if np.ndim(held) else held) else active & held
            variable = node.index if isinstance(node, tree.ForBuffer) else node.variable
            frame.values[variable] = (start + turn * step).astype(kind.dtype)[()]
            if isinstance(node, tree.ForBuffer) and going.any():
                memory = self.value(node.memory, frame, going)
                frame.values[node.element] = self.load(memory, start + turn * step, going)
            return going

        return counted

    # Memory.
    def index(self, node, frame: Frame, mask):
        """An index as int64, where nothing wraps; uint64 past that is out of any bounds."""
        value = np.asarray(self.value(node, frame, mask))
        if value.dtype == np.uint64:
            check(value > np.uint64(2**62), mask)
        return value.astype(np.int64)

    def slots(self, tracked: Tracked, index, mask):
        """The slots of an access by the work-items of a mask."""
        index = np.broadcast_to(index, mask.shape)
        index = index if mask is self.everyone else index[mask]
        layout = tracked.memory.layout
        if layout is not None and layout.block:
            index = np.where(index < 0, -1, index + index // layout.block * layout.pad)
        if index.size and not (0 <= index.min() and index.max() < tracked.count):
            raise Bail("out of bounds")
        if tracked.base is None:
            return index
        return index + (tracked.base if mask is self.everyone else tracked.base[mask])

    def touched(self, tracked: Tracked, slots, mask, how) -> None:
        """Note an access with those who tell work-items and workgroups apart."""
        for touched, me, epoch in ((tracked.items, self.me, self.epoch), (tracked.groups, self.whose, self.start)):
            if touched is not None:
                how(touched, slots, me if mask is self.everyone else me[mask], epoch)

    def load(self, tracked: Tracked, index, mask):
        """One element each."""
        slots = self.slots(tracked, index, mask)
        memory = tracked.memory
        if memory.written is not None and not memory.written[slots].all():
            raise Bail("an element that nobody wrote")
        self.touched(tracked, slots, mask, Touched.read)
        found = memory.array[slots]
        if memory.element is bf16:
            found = (found.astype(np.uint32) << np.uint32(16)).view(np.float32)
        elif memory.element is BOOL:
            found = found != 0
        if mask is self.everyone:
            return found
        whole = np.zeros(self.count, found.dtype)
        whole[mask] = found
        return whole

    def store(self, tracked: Tracked, index, value, mask) -> None:
        """One element each."""
        slots = self.slots(tracked, index, mask)
        memory = tracked.memory
        if tracked.items is None:
            raise Bail("a store that nobody expected")
        self.touched(tracked, slots, mask, Touched.write)
        value = np.broadcast_to(value, mask.shape)
        value = value if mask is self.everyone else value[mask]
        if memory.element is bf16:
            value = (np.ascontiguousarray(value).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        memory.array[slots] = value
        if memory.written is not None:
            memory.written[slots] = True

    # Expressions.
    def value(self, node: tree.Expression, frame: Frame, mask):
        """An expression for the work-items of a mask; others hold anything."""
        match node:
            case tree.Literal(type=kind, value=value) if isinstance(kind, Scalar):
                return batch.literal(kind, value)
            case tree.Read(variable=variable):
                return frame.values[variable]
            case tree.Convert(type=kind, value=inner) if isinstance(element(kind), Scalar):
                source, target = element(inner.type), element(kind)
                held = self.value(inner, frame, mask)
                return lanewise(kind, lambda lane: batch.convert(lane, source, target, mask), held)
            case tree.Splat(type=kind, value=inner):
                return (self.value(inner, frame, mask),) * kind.count
            case tree.Unary(op=op, value=inner):
                held = self.value(inner, frame, mask)
                if op == "not":
                    return np.logical_not(held)
                return lanewise(node.type, np.negative if op == "neg" else np.invert, held)
            case tree.Binary(op=op, left=left, right=right):
                a, b, kind = self.value(left, frame, mask), self.value(right, frame, mask), element(node.type)
                return lanewise(node.type, lambda x, y: batch.binary(op, kind, x, y, mask), a, b)
            case tree.Compare(op=op, left=left, right=right):
                a, b = self.value(left, frame, mask), self.value(right, frame, mask)
                return lanewise(node.type, batch.COMPARE[op], a, b)
            case tree.Logical(op=op, left=left, right=right):
                return self.logical(op, self.value(left, frame, mask), right, frame, mask)
            case tree.Select(condition=condition, then=then, otherwise=otherwise):
                return self.select(self.value(condition, frame, mask), then, otherwise, frame, mask)
            case tree.Assigned(variable=variable, value=inner):
                self.set(variable, self.value(inner, frame, mask), frame, mask)
                return frame.values[variable]
            case tree.Load(memory=memory, index=at):
                return self.load(self.value(memory, frame, mask), self.index(at, frame, mask), mask)
            case tree.LoadVector(memory=memory, index=at):
                held, first = self.value(memory, frame, mask), self.index(at, frame, mask)
                return tuple(self.load(held, first + lane, mask) for lane in range(node.type.count))
            case tree.Lane(vector=vector, index=at):
                return self.lane(self.value(vector, frame, mask), self.index(at, frame, mask), mask)
            case tree.MakeVector(lanes=lanes):
                return tuple(self.value(lane, frame, mask) for lane in lanes)
            case tree.Call(helper=helper, arguments=arguments):
                return self.call(helper, [self.value(argument, frame, mask) for argument in arguments], mask)
            case tree.Invoke():
                return self.invoke(node, [self.value(argument, frame, mask) for argument in node.arguments], mask)
        raise Bail(f"{type(node).__name__}")

    def logical(self, op: str, left, right, frame: Frame, mask):
        if np.ndim(left) == 0:
            return self.value(right, frame, mask) if left == (op == "and") else left
        asked = mask & (left if op == "and" else ~left)
        if not asked.any():
            return left
        held = self.value(right, frame, asked)
        return left & held if op == "and" else left | held

    def select(self, taken, then, otherwise, frame: Frame, mask):
        if np.ndim(taken) == 0:
            return self.value(then if taken else otherwise, frame, mask)
        yes, no = mask & taken, mask & ~taken
        if not no.any():
            return self.value(then, frame, mask)
        if not yes.any():
            return self.value(otherwise, frame, mask)
        return self.merge(self.value(then, frame, yes), self.value(otherwise, frame, no), yes)

    @staticmethod
    def lane(vector: tuple, index, mask):
        check((index < 0) | (index >= len(vector)), mask)
        if np.ndim(index) == 0:
            return vector[int(index)]
        found = vector[0]
        for lane, value in enumerate(vector[1:], 1):
            found = np.where(index == lane, value, found)
        return found

    def call(self, helper: tree.Function, arguments: list, mask):
        frame = Frame(dict(zip(helper.parameters, arguments, strict=True)))
        fell = self.block_of(helper.body, frame, mask)
        if helper.result is not VOID and fell.any():
            raise Bail("a helper that ends without its value")
        return frame.result

    # Built-ins.
    def global_id(self, axis: int):
        whole = self.group[axis].astype(np.uint64) * np.uint64(self.block[axis]) + self.local[axis].astype(np.uint64)
        return whole.astype(np.uint32)

    def invoke(self, node: tree.Invoke, arguments: list, mask):
        family, _, word = node.verb.partition(".")
        if family in ("tile", "memory", "async_copy"):
            raise Bail(node.verb)
        scope = VERBS[node.verb].rendezvous
        if scope == "wave":
            return self.wave(node, arguments, mask)
        if scope == "workgroup":
            return self.meet(node, arguments, mask)
        if family == "math":
            kind = element(node.type)
            return lanewise(node.type, lambda *lanes: batch.function(word, kind, *lanes), *arguments)
        if family in ("thread", "workgroup", "wave", "group", "barrier") and node.verb != "group.mac":
            return self.coordinate(family, word)
        return self.each(node, arguments, mask)

    def meet(self, node: tree.Invoke, arguments: list, mask):
        """A barrier of every workgroup of the batch, and what it computes."""
        if not mask.all():
            raise Bail("a barrier that some do not reach")
        self.begin_epoch(next(self.epochs))
        if not arguments:
            return None
        kind, found = node.type, []
        held = batch.lanes_of(arguments[0], kind, self.count)
        for start in range(0, self.count, self.size):
            values = held[start : start + self.size]
            found += waves.workgroup(node.verb, kind, self.width, values, node.options[0])
        return np.array(found, batch.dtype(kind))

    def wave(self, node: tree.Invoke, arguments: list, mask):
        """A wave operation at which every live lane of each wave that is here has arrived."""
        lanes = [batch.lanes_of(v, a.type, self.count) for v, a in zip(arguments, node.arguments, strict=True)]
        found: list = [0] * self.count
        starts = [group + wave for group in range(0, self.count, self.size) for wave in range(0, self.size, self.width)]
        for start in starts:
            stop = min(start + self.width, start // self.size * self.size + self.size)
            if not mask[start:stop].any():
                continue
            if np.any(mask[start:stop] != self.live[start:stop]):
                raise Bail("lanes of a wave apart")
            present = {item - start: tuple(v[item] for v in lanes) for item in range(start, stop) if mask[item]}
            try:
                answer = waves.wave(node.verb, self.width, present, node.options)
            except Fault:
                raise Bail("undefined behaviour") from None
            for lane, value in answer.items():
                found[start + lane] = value
        return None if node.type is VOID else np.array(found, batch.dtype(node.type))

    def coordinate(self, family: str, word: str):
        axis = "xyz".find(word[-1])
        if word.startswith("global"):
            return self.global_id(axis)
        if family == "thread":
            return self.local[axis].astype(np.uint32)
        if family == "workgroup":
            return np.uint32(self.block[axis]) if word.startswith("dim") else self.group[axis].astype(np.uint32)
        kind = np.int32 if family == "group" else np.uint32
        if word == "width":
            return kind(self.width)
        if word == "lane_id":
            return (self.linear % self.width).astype(kind)
        if word == "is_first_lane":
            return self.linear % self.width == 0
        return self.group[0].astype(kind) if word == "row_id" else None

    def each(self, node: tree.Invoke, arguments: list, mask):
        """A built-in that has no batch form, one work-item after another."""
        kinds = [argument.type for argument in node.arguments]
        columns = [self.values_of(value, kind) for value, kind in zip(arguments, kinds, strict=True)]
        results = []
        for item in np.flatnonzero(mask):
            given = [column[item] for column in columns]
            try:
                if node.verb in vectors.PLAIN:
                    results.append(vectors.PLAIN[node.verb](*given))
                elif node.verb == "group.mac":
                    results.append(vectors.method("dot_sum", [*given[1:], given[0]], [*kinds[1:], kinds[0]], node.type))
                else:
                    results.append(vectors.method(node.verb.partition(".")[2], given, kinds, node.type))
            except Fault:
                raise Bail("undefined behaviour") from None
        if isinstance(node.type, VectorType):
            return tuple(
                self.spread([result[lane] for result in results], node.type.element, mask)
                for lane in range(node.type.count)
            )
        return self.spread(results, node.type, mask)

    def values_of(self, value, kind) -> list:
        if isinstance(kind, VectorType):
            return list(zip(*(batch.lanes_of(lane, kind.element, self.count) for lane in value), strict=True))
        return batch.lanes_of(value, kind, self.count)

    def spread(self, values: list, kind: Scalar, mask) -> np.ndarray:
        whole = np.zeros(self.count, batch.dtype(kind))
        whole[mask] = np.array(values, batch.dtype(kind))
        return whole
