"""From a trace and its extents to stages: every loop and every instance unrolled.

A tiling becomes one cluster stage, and one vector stage for each fused epilogue in it; a whole-buffer statement
becomes a vector stage.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kohakutpu.lang.extents import Extents, indices_in, resolve
from kohakutpu.lang.shapes import settled, shape_of, statement_shape
from kohakutpu.lang.slices import check_product, check_shift, check_slice
from kohakutpu.lang.source import Source, located
from kohakutpu.lang.trace import (
    READ_ONLY, Assign, Buffer, BufferLeaf, Constant, Contract, Expression, Loop, Open, SliceLeaf, Statement, Store, TileLeaf, Trace, Units,
)  # fmt: skip

from .apart import gap, require_apart
from .refusals import UNROLLED, CompileError
from .stages import (
    ClusterStage, Drain, ElementwiseStage, Epilogue, EpilogueStage, Key, Operand, Program, RowStage, Send, Sweep,
)  # fmt: skip


@dataclass(frozen=True)
class _Event:
    """A statement of one instance with every index bound; accumulators by the number of their opening."""

    statement: Statement
    known: dict[str, int]
    opened: dict[str, int]

    def accumulator(self, name: str) -> tuple[str, int]:
        return name, self.opened[name]


def build(trace: Trace, extents: Extents) -> Program:
    """The program of a trace. Raises CompileError, naming the line, for what cannot be run as written."""
    return _Builder(trace, extents).build()


class _Builder:
    def __init__(self, trace: Trace, extents: Extents):
        self.trace = trace
        self.extents = extents
        self.buffers = dict(trace.buffers)
        self.landing: dict[tuple[int, str], str] = {}  # (store, accumulator) -> temp, in the tiling being built
        self.out = Program([], self.buffers)
        self.names = itertools.count(trace.fresh + 1)
        self.unrolled = 0  # statements of instances so far
        self.written: dict[str, set[tuple[int, int, int]] | None] = {}  # tiles written; None: all of it
        self.spans: dict[str, list[tuple[int, int]]] = {}  # elements written by statements over whole buffers
        self.tiling: dict[str, tuple[int, int]] = {}  # buffer -> (gm, gn) of the tiles written to it

    def build(self) -> Program:
        self._require_numbers()
        for node in self.trace.body:
            with located(node.source):
                self._count(_unrolled([node], dict(self.extents.dims), self.extents.batch), node.source)
        self._walk(self.trace.body, dict(self.extents.dims))
        for buffer in self.trace.outputs:
            self._require_complete(buffer.name, "the result", self._last_writer(buffer.name))
        return self.out

    def _require_numbers(self) -> None:
        """Extents that stand for numbers in an expression are numbers."""
        for statement in self.trace.statements:
            for leaf in statement.expression.leaves if isinstance(statement, (Store, Assign)) else ():
                if isinstance(leaf, Constant) and not isinstance(leaf.value, float) and not indices_in(leaf.value):
                    with located(statement.source):
                        leaf.number(self.extents.dims)

    def _walk(self, body, known: dict[str, int]) -> None:
        for node in body:
            if isinstance(node, Loop):
                with located(node.source):
                    count = resolve(node.count, known)
                for value in range(count):
                    self._walk(node.body, known | {node.index.name: value})
            elif isinstance(node, Units):
                self._units(node, known)
            elif isinstance(node, Assign):
                target = settled(BufferLeaf(node.target, node.view), self.buffers, self.extents, known, node.source)
                self._assign(target, self._bound(node, known), self.trace.part, node)
            else:
                raise CompileError("this statement stands outside units", node.source)

    # ---- whole buffers ----

    def _assign(self, target: BufferLeaf, expression: Expression, part: int, statement: Statement) -> None:
        """`target` and the expression's leaves are settled."""
        source = statement.source
        shape = statement_shape(target, expression, self.buffers, self.extents, source)
        leaves = [leaf for leaf in expression.leaves if isinstance(leaf, BufferLeaf)]
        for leaf in leaves:
            self._require_complete(leaf.buffer, "an operand", source, self._span(leaf))
        require_apart(target, leaves, self._span, source)
        self._fill(target)
        shapes = {leaf: shape_of(leaf, self.buffers, self.extents) for leaf in (target, *leaves)}
        viewed = any(leaf.view for leaf in shapes)
        if viewed or expression.reductions or any(own != shape for own in shapes.values()):
            self.out.stages.append(RowStage(target, expression, part, statement, shape, shapes))
        else:
            self.out.stages.append(ElementwiseStage(target.buffer, expression, part, statement))

    def _span(self, leaf: BufferLeaf) -> tuple[int, int]:
        """The elements, row-major, between the first and the last one that a settled leaf names."""
        if leaf.view is None:
            return 0, math.prod(self.buffers[leaf.buffer].element_shape(self.extents))
        return leaf.view.first * leaf.view.width, (leaf.view.first + leaf.view.count) * leaf.view.width

    def _fill(self, target: BufferLeaf) -> None:
        """Note that a statement writes all that a settled target names."""
        spans = self.spans.setdefault(target.buffer, [])
        spans.append(self._span(target))
        if gap(spans, *self._span(BufferLeaf(target.buffer))) is None:
            self.written[target.buffer] = None

    def _bound(self, statement: Assign, known: dict[str, int]) -> Expression:
        """The expression with the indices of loops outside as numbers, and its views settled."""
        nodes = []
        for node in statement.expression.nodes:
            if isinstance(node, Constant) and not isinstance(node.value, float) and indices_in(node.value):
                with located(statement.source):
                    node = Constant(node.number(known))
            elif isinstance(node, BufferLeaf):
                node = settled(node, self.buffers, self.extents, known, statement.source)
            nodes.append(node)
        return Expression(tuple(nodes))

    def _parts(self, node: Units) -> None:
        """A tiling by parts: each statement covers every part, so it is a statement over whole buffers."""
        if len(node.indices) != 1:
            raise CompileError("a tiling by parts has that one axis", node.source)
        for statement in node.body:
            if not isinstance(statement, Store) or statement.target.kinds != ("parts",):
                raise CompileError("a tiling by parts holds only stores of parts", statement.source)
            slices = [leaf.slice for leaf in statement.expression.leaves if isinstance(leaf, SliceLeaf)]
            for part in (statement.target, *slices):
                if part.indices != node.indices:
                    raise CompileError(
                        f"{part.buffer}: a part is indexed by the tiling's index alone", statement.source
                    )
            target = BufferLeaf(statement.target.buffer)
            self._assign(target, _whole(statement.expression), node.indices[0].axis.per, statement)

    # ---- tilings ----

    def _units(self, node: Units, known: dict[str, int]) -> None:
        if any(index.axis.kind == "parts" for index in node.indices):
            self._parts(node)
            return
        for statement in _flatten(node.body):
            if isinstance(statement, Store) and statement.target.kinds == ("parts",):
                raise CompileError("a part is stored by a tiling of parts alone, outside any other", statement.source)
        with located(node.source):
            grid = tuple(resolve(count, known) for count in node.counts)
        batch = self.extents.batch
        points = list(itertools.product(*map(range, grid)))
        self._check_hazards(node)
        stage = ClusterStage(((batch,) if batch > 1 else ()) + grid, {}, [s.id for s in _flatten(node.body)])
        epilogues: dict[tuple[int, int], EpilogueStage] = {}  # (store, turn of the loop it stands in)
        tiles: dict[tuple[str, int, int, int], Key] = {}
        self._land(node)
        for copy in range(batch):
            for point in points:
                key = ((copy,) if batch > 1 else ()) + point
                bound = known | {index.name: value for index, value in zip(node.indices, point, strict=True)}
                instance = _Instance(self, copy, key, stage, epilogues, tiles)
                events = list(itertools.islice(_events(node.body, bound, {}), UNROLLED + 1))
                self._count(len(events), node.source)
                self.unrolled += len(events)
                stage.programs[key] = instance.run(events)
        for buffer, copy, i, j in tiles:
            if self.written.setdefault(buffer, set()) is not None:
                self.written[buffer].add((copy, i, j))
        self.out.stages.append(stage)
        for epilogue in epilogues.values():
            epilogue.slots = 1 + max(slot for e in epilogues.values() for i in e.instances.values() for slot in i.slots)
            self.out.stages.append(epilogue)
        self._staged(node)

    def _count(self, more: int, source: Source) -> None:
        """Refuse what has too many statements to unroll, with those of before."""
        if self.unrolled + more > UNROLLED:
            raise CompileError(
                f"this unrolls to {self.unrolled + more} statements or more, above {UNROLLED}; use a larger gm, "
                "gn or nk",
                source,
            )

    def _check_hazards(self, node: Units) -> None:
        """No statement of a tiling may read what another writes: instances run in any order."""
        writes = {s.target.buffer: s for s in _flatten(node.body) if isinstance(s, Store)}
        for statement in _flatten(node.body):
            for name in _reads(statement):
                if name in writes:
                    raise CompileError(
                        f"{name} is read here and written in the same tiling ({writes[name].source}), whose instances "
                        "do not wait for each other; use a second tiling",
                        statement.source,
                    )

    # ---- a fused store that is to be staged ----

    def _fused(self, statement: Store) -> bool:
        return self.trace.fuse and not statement.expression.is_copy

    def _land(self, node: Units) -> None:
        """The temps that hold accumulators of fused stores under fuse=False."""
        self.landing.clear()
        if self.trace.fuse:
            return
        for statement in _flatten(node.body):
            if not isinstance(statement, Store) or statement.expression.is_copy:
                continue
            target = self.buffers[statement.target.buffer]
            for leaf in statement.expression.leaves:
                if isinstance(leaf, TileLeaf):
                    name = next(name for number in self.names if (name := f"land{number}") not in self.buffers)
                    self.buffers[name] = Buffer(name, "temp", target.shape, target.batched, False, statement.source)
                    self.landing[statement.id, leaf.accumulator] = name

    def _staged(self, node: Units) -> None:
        for statement in _flatten(node.body):
            if not isinstance(statement, Store) or (statement.id not in {number for number, _ in self.landing}):
                continue
            for (number, _), name in self.landing.items():
                if number == statement.id:
                    self._require_complete(
                        name, "fuse=False needs a tiling that covers the result; the landed tile", statement.source
                    )
            nodes = [self._landed_leaf(leaf, statement.id) for leaf in statement.expression.nodes]
            self._assign(BufferLeaf(statement.target.buffer), Expression(tuple(nodes)), self.trace.part, statement)

    def _landed_leaf(self, node, statement: int):
        if isinstance(node, TileLeaf):
            return BufferLeaf(self.landing[statement, node.accumulator])
        return BufferLeaf(node.slice.buffer) if isinstance(node, SliceLeaf) else node

    # ---- completeness ----

    def _last_writer(self, name: str) -> Source:
        return [s.source for s in self.trace.statements if _writes(s) == name][-1]

    def _require_complete(self, name: str, role: str, source: Source, span: tuple[int, int] | None = None) -> None:
        """All of a buffer, or the elements of `span`, has been written."""
        buffer = self.buffers[name]
        if buffer.role in READ_ONLY or (name in self.written and self.written[name] is None):
            return
        if name in self.spans:
            missing = gap(self.spans[name], *(span or self._span(BufferLeaf(name))))
            if missing is not None:
                place = [int(axis) for axis in np.unravel_index(missing, buffer.element_shape(self.extents))]
                raise CompileError(f"{role} {name} is incomplete: nothing has written its element {place}", source)
            return
        tiles = self.written.get(name, set())
        if name in self.tiling:
            rows, columns = buffer.element_shape(self.extents)
            gm, gn = self.tiling[name]
            grid = (-(-rows // (4 * gm)), -(-columns // (4 * gn)))
            for place in itertools.product(range(buffer.copies(self.extents)), range(grid[0]), range(grid[1])):
                if place not in tiles:
                    raise CompileError(
                        f"{role} {name} is incomplete: no instance writes its tile ({place[1]}, {place[2]}) of "
                        f"{grid[0]}x{grid[1]}",
                        source,
                    )
            return
        raise CompileError(f"{role} {name} is incomplete: nothing has written to it", source)


class _Instance:
    """Orders the sweeps and drains of one instance: one accumulator, so a tile leaves before the next one opens."""

    def __init__(self, builder: _Builder, copy: int, key: Key, stage: ClusterStage, epilogues, tiles):
        self.builder = builder
        self.copy = copy
        self.key = key
        self.stage = stage
        self.epilogues = epilogues
        self.tiles = tiles
        self.program: list[Sweep | Drain | Send] = []
        self.sweeps: dict[tuple[str, int], int] = {}
        self.sent: dict[tuple[str, int, int], int] = {}  # (accumulator, opening, sweeps) -> slot
        self.drained: set[tuple[int, str]] = set()  # (event, accumulator) that has left
        self.left: set[tuple[str, int]] = set()

    def run(self, events: list[_Event]) -> list[Sweep | Drain | Send]:
        current: tuple[str, int] | None = None
        opened: dict[tuple[str, int], Open] = {}
        for position, event in enumerate(events):
            statement = event.statement
            if isinstance(statement, Open):
                opened[event.accumulator(statement.accumulator)] = statement
            elif isinstance(statement, Contract):
                accumulator = event.accumulator(statement.accumulator)
                if current is not None and accumulator != current:
                    for later in range(position + 1, len(events)):
                        self._drain_if(events, later, current)
                    self.left.add(current)
                if accumulator in self.left:
                    raise CompileError(
                        f"{accumulator[0]} is accumulated again after another accumulator was begun; a cluster holds "
                        "one, so finish each in a loop of its own",
                        statement.source,
                    )
                current = accumulator
                self._sweep(event, opened[accumulator])
            elif isinstance(statement, Store):
                for leaf in statement.expression.leaves:
                    if isinstance(leaf, TileLeaf):
                        accumulator = event.accumulator(leaf.accumulator)
                        if accumulator not in self.sweeps:
                            raise CompileError(
                                f"{accumulator[0]} is stored before anything was accumulated in it", statement.source
                            )
                        self._drain_if(events, position, accumulator)
                self._store(event)
        stored = {e.accumulator(leaf.accumulator) for e in events if isinstance(e.statement, Store)
                  for leaf in e.statement.expression.leaves if isinstance(leaf, TileLeaf)}  # fmt: skip
        for accumulator in self.sweeps:
            if accumulator not in stored:
                raise CompileError(f"{accumulator[0]} is accumulated and never stored", opened[accumulator].source)
        return self.program

    def _sweep(self, event: _Event, opened: Open) -> None:
        statement = event.statement
        builder = self.builder
        operands = []
        check_product(statement.a, statement.b, event.known, statement.source)
        for part in (statement.a, statement.b):
            buffer = builder.buffers[part.buffer]
            tile, chunk = check_slice(part, buffer, builder.extents, event.known, statement.source)
            shift = check_shift(part, event.known, statement.source)
            operands.append(Operand(part.buffer, self.copy if buffer.batched else 0, tile, chunk, shift))
        accumulator = event.accumulator(statement.accumulator)
        step = self.sweeps.get(accumulator, 0)
        self.sweeps[accumulator] = step + 1
        self.program.append(Sweep(*operands, step, opened.gm, opened.gn, opened.nk, statement.id))

    def _drain_if(self, events: list[_Event], position: int, accumulator: tuple[str, int]) -> None:
        """Emit what the store at `position` needs of an accumulator, unless it has left already."""
        event = events[position]
        statement = event.statement
        if not isinstance(statement, Store):
            return
        for leaf in statement.expression.leaves:
            if not isinstance(leaf, TileLeaf) or event.opened.get(leaf.accumulator) != accumulator[1]:
                continue
            if leaf.accumulator != accumulator[0] or (position, leaf.accumulator) in self.drained:
                continue
            self.drained.add((position, leaf.accumulator))
            self._leave(event, accumulator)

    def _leave(self, event: _Event, accumulator: tuple[str, int]) -> None:
        statement = event.statement
        builder = self.builder
        if builder._fused(statement):
            version = (*accumulator, self.sweeps[accumulator])
            if version not in self.sent:
                self.sent[version] = len(self.sent)
                gm, gn = (axis.per for axis in statement.target.axes)
                self.program.append(Send(self.sent[version], gm, gn, statement.id))
                self.stage.sends = True
            return
        i, j = self._place(event)
        name = builder.landing.get((statement.id, accumulator[0]), statement.target.buffer)
        self._claim(name, statement, i, j)
        self.program.append(Drain(name, self._copy_of(name), i, j, statement.id))

    def _store(self, event: _Event) -> None:
        """The vector side of a fused store."""
        statement = event.statement
        builder = self.builder
        if not builder._fused(statement):
            return
        i, j = self._place(event)
        self._claim(statement.target.buffer, statement, i, j)
        leaves = [leaf for leaf in statement.expression.leaves if isinstance(leaf, TileLeaf)]
        versions = [event.accumulator(leaf.accumulator) for leaf in leaves]
        slots = tuple(self.sent[(*version, self.sweeps[version])] for version in versions)
        gm, gn = (axis.per for axis in statement.target.axes)
        # A store inside a loop is one stage for each time round.
        turn = sum(1 for (number, _), e in self.epilogues.items() if number == statement.id and self.key in e.instances)
        stage = self.epilogues.get((statement.id, turn))
        if stage is None:
            stage = EpilogueStage(self.stage.grid, statement, gm, gn, [leaf.accumulator for leaf in leaves], {}, 0)
            self.epilogues[statement.id, turn] = stage
        stage.instances[self.key] = Epilogue(self._copy_of(statement.target.buffer), i, j, slots)

    def _place(self, event: _Event) -> tuple[int, int]:
        target = event.statement.target
        buffer = self.builder.buffers[target.buffer]
        return check_slice(target, buffer, self.builder.extents, event.known, event.statement.source)

    def _copy_of(self, name: str) -> int:
        return self.copy if self.builder.buffers[name].batched else 0

    def _claim(self, name: str, statement: Store, i: int, j: int) -> None:
        """Each tile of a buffer is written once in a tiling, and always by tiles of one size."""
        builder = self.builder
        per = tuple(axis.per for axis in statement.target.axes)
        if builder.tiling.setdefault(name, per) != per:
            raise CompileError(
                f"{name} is written in tiles of {per[0]}x{per[1]} here and of "
                f"{builder.tiling[name][0]}x{builder.tiling[name][1]} elsewhere",
                statement.source,
            )
        place = (name, self._copy_of(name), i, j)
        if place in self.tiles:
            raise CompileError(
                f"the tile ({i}, {j}) of {name} is written twice in one tiling, by instances {self.tiles[place]} and "
                f"{self.key}",
                statement.source,
            )
        self.tiles[place] = self.key


def _events(body, known: dict[str, int], opened: dict[str, int]) -> Iterator[_Event]:
    """The statements of one instance in order, loops unrolled. `opened` counts the openings of each accumulator."""
    for node in body:
        if isinstance(node, Loop):
            for value in range(resolve(node.count, known)):
                yield from _events(node.body, known | {node.index.name: value}, opened)
        else:
            if isinstance(node, Open):
                opened[node.accumulator] = opened.get(node.accumulator, 0) + 1
            yield _Event(node, known, dict(opened))


def _unrolled(body, known: dict[str, int], batch: int) -> int:
    """At least how many statements a body unrolls to: a count that depends on an index is taken at index 0."""
    total = 0
    for node in body:
        if isinstance(node, Loop):
            turns = max(resolve(node.count, known), 0)
            total += turns * _unrolled(node.body, known | {node.index.name: 0}, batch)
        elif isinstance(node, Units):
            points = math.prod(resolve(count, known) for count in node.counts)
            parts = any(index.axis.kind == "parts" for index in node.indices)
            total += 1 if parts else batch * points * _unrolled(node.body, known | {i.name: 0 for i in node.indices}, batch)
        else:
            total += 1
    return max(total, 1)


def _flatten(body) -> Iterator[Statement]:
    for node in body:
        if isinstance(node, Loop):
            yield from _flatten(node.body)
        else:
            yield node


def _writes(statement: Statement) -> str | None:
    if isinstance(statement, Store):
        return statement.target.buffer
    return statement.target if isinstance(statement, Assign) else None


def _reads(statement: Statement) -> list[str]:
    if isinstance(statement, Contract):
        return [statement.a.buffer, statement.b.buffer]
    if isinstance(statement, Store):
        return [leaf.slice.buffer for leaf in statement.expression.leaves if isinstance(leaf, SliceLeaf)]
    return []


def _whole(expression: Expression) -> Expression:
    """Parts of buffers as the whole buffers they are parts of."""
    nodes = [BufferLeaf(n.slice.buffer) if isinstance(n, SliceLeaf) else n for n in expression.nodes]
    return Expression(tuple(nodes))
