"""From a trace and its extents to stages: every loop and every instance unrolled.

A tiling becomes one cluster stage, and one vector stage for each fused epilogue in it; a whole-buffer statement
becomes a vector stage.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from kohakutpu.lang.extents import Extents, indices_in, resolve
from kohakutpu.lang.shapes import settled, shape_of, statement_shape
from kohakutpu.lang.slices import check_slice
from kohakutpu.lang.source import Source, located
from kohakutpu.lang.trace import (
    READ_ONLY, Assign, Buffer, BufferLeaf, Constant, Expression, Loop, Slice, SliceLeaf, Store, TileLeaf, Trace, Units,
)  # fmt: skip

from .apart import gap, require_apart
from .events import Event, Place, events, flatten, writes
from .instances import Instance, Span, Tiling, claim
from .layouts import HALVES, LANES, WORD, Flat, Layout, Tile
from .refusals import UNROLLED, CompileError
from .splitting import VectorStore, depends, split
from .stages import ClusterStage, ElementwiseStage, Key, Operand, Program, RowStage, Spans


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
        for statement in node.body:
            target = BufferLeaf(statement.target.buffer)
            self._assign(target, _whole(statement.expression), node.indices[0].axis.per, statement)

    # ---- tilings ----

    def _units(self, node: Units, known: dict[str, int]) -> None:
        if _by_parts(node):
            self._parts(node)
            return
        with located(node.source):
            grid = tuple(resolve(count, known) for count in node.counts)
        points = list(itertools.product(*map(range, grid)))
        self._land(node)
        if depends(node.body, self.trace.fuse):
            self._split(node, grid, {point: self._events(node, known, point) for point in points})
            return
        statements = [s.id for s in flatten(node.body)]
        self._clusters(grid, statements, points, lambda point: self._events(node, known, point))
        self._staged(node)

    def _events(self, node: Units, known: dict[str, int], point: Key) -> list[Event]:
        """The events of one instance of one batch element."""
        bound = known | {index.name: value for index, value in zip(node.indices, point, strict=True)}
        found = list(itertools.islice(events(node.body, bound), UNROLLED + 1))
        self._count(len(found), node.source)
        self.unrolled += len(found)
        return found

    def _clusters(self, grid: Key, statements: list[int], points: Sequence[Key], made: Callable[[Key], list[Event]]) -> None:
        """The clusters' work of a tiling, whose instances' events are `made`, and the fused stores that it feeds."""
        batch = self.extents.batch
        stage = ClusterStage(((batch,) if batch > 1 else ()) + grid, {}, statements)
        tiling = Tiling(self.buffers, self.extents, self.trace.fuse, self.landing, self.tiling, stage, self._require_operand)
        for copy in range(batch):
            for point in points:
                key = ((copy,) if batch > 1 else ()) + point
                stage.programs[key] = Instance(tiling, copy, key).run(made(point))
        self._add_tiles(tiling.tiles)
        self.out.stages.append(stage)
        epilogues = tiling.epilogues.values()
        for epilogue in epilogues:
            epilogue.slots = 1 + max(slot for e in epilogues for i in e.instances.values() for slot in i.slots)
            self.out.stages.append(epilogue)

    def _split(self, node: Units, grid: Key, instances: dict[Key, list[Event]]) -> None:
        """A tiling in which clusters and vector cores take turns, or with stores that read no accumulator."""
        more = (self.extents.batch - 1) * sum(map(len, instances.values()))
        self._count(more, node.source)
        self.unrolled += more
        for event in itertools.chain.from_iterable(instances.values()):
            self._check_places(event)
        for segment in split(instances, self.trace.fuse, node.source):
            if segment.events:
                statements = sorted({event.statement.id for found in segment.events.values() for event in found})
                self._clusters(grid, statements, list(segment.events), segment.events.__getitem__)
            for store in segment.stores:
                self._store(store)

    def _check_places(self, event: Event) -> None:
        """Refuse what a store reads and writes past the end of a buffer, and parts that do not meet."""
        statement = event.statement
        if not isinstance(statement, Store):
            return
        slices = _slices(statement)
        target, *others = (
            check_slice(part, self.buffers[part.buffer], self.extents, event.known, statement.source) for part in slices
        )
        for part, place in zip(slices[1:], others, strict=True):
            if part.kinds == ("parts",) and place != target:
                raise CompileError(
                    f"part {place[0]} of {part.buffer} does not meet part {target[0]} of {statement.target.buffer}, which is "
                    "written: index both alike",
                    statement.source,
                )

    def _store(self, store: VectorStore) -> None:
        """A store of vector cores: over whole buffers where it writes all of one, else over the places that it writes."""
        statement, target = store.statement, store.statement.target
        shape = self.buffers[target.buffer].element_shape(self.extents)
        steps = [axis.step for axis in target.axes]
        lengths = (math.prod(shape),) if target.kinds == ("parts",) else shape
        expression = Expression(tuple(self._landed_leaf(node, statement.id) for node in statement.expression.nodes))
        if len(store.places) == math.prod(-(-length // step) for length, step in zip(lengths, steps, strict=True)):
            landed = statement.id in {number for number, _ in self.landing}
            self._assign(BufferLeaf(target.buffer), expression, self.trace.part if landed else math.prod(steps), statement)
            return
        channels = [leaf.slice.buffer for leaf in statement.expression.leaves
                    if isinstance(leaf, SliceLeaf) and len(leaf.slice.indices) < len(target.indices)]  # fmt: skip
        if channels:
            raise CompileError(
                f"{channels[0]} is read along the columns of {target.buffer}, of which this tiling does not write every tile; "
                "write all of it, or add the vector in a tiling that does",
                statement.source,
            )
        names = [leaf.buffer for leaf in expression.leaves if isinstance(leaf, BufferLeaf)]
        if target.kinds == ("parts",):
            layout, spans = self._part_spans(store, names, shape)
        else:
            layout, spans = self._tile_spans(store, names, shape)
        self.out.stages.append(ElementwiseStage(target.buffer, expression, math.prod(steps), statement, (), layout, spans))

    def _part_spans(self, store: VectorStore, names: list[str], shape: tuple[int, ...]) -> tuple[Layout, Spans]:
        """The words of some parts of row-major buffers."""
        (axis,), elements, name = store.statement.target.axes, math.prod(shape), store.statement.target.buffer
        if axis.step % HALVES:
            raise CompileError(
                f"parts of {axis.step} elements of {name}, of which this tiling does not write every one, begin inside words of "
                f"memory ({HALVES} elements); use a multiple",
                store.statement.source,
            )
        spans = []
        for (part,) in store.places:
            span = axis.span(part, elements)
            for read in names:
                self._require_complete(read, "an operand", store.statement.source, span)
            self.spans.setdefault(name, []).append(span)
            spans.append((span[0] // HALVES, -(-(span[1] - span[0]) // HALVES)))
        if gap(self.spans[name], 0, elements) is None:
            self.written[name] = None
        return Flat(shape), tuple(spans)

    def _tile_spans(self, store: VectorStore, names: list[str], shape: tuple[int, ...]) -> tuple[Layout, Spans]:
        """The words of some tiles of buffers that lie in tiles."""
        statement, name = store.statement, store.statement.target.buffer
        gm, gn = (axis.per for axis in statement.target.axes)
        layout = Tile(*shape, gm, gn)
        claim(self.tiling, name, statement)
        copies = range(self.buffers[name].copies(self.extents))
        for read in names:
            for place in store.places:
                self._require_tile(read, place, statement)
        self._add_tiles((name, copy, *place) for copy in copies for place in store.places)
        return layout, tuple((layout.offset(*place) // WORD, layout.words) for place in store.places)

    def _add_tiles(self, tiles: Iterable[tuple[str, int, int, int]]) -> None:
        """Note that these tiles (buffer, copy, i, j) are written."""
        names = set()
        for name, *place in tiles:
            if self.written.setdefault(name, set()) is not None:
                self.written[name].add(tuple(place))
                names.add(name)
        for name in names - self.spans.keys():
            sizes = zip(self.buffers[name].element_shape(self.extents), self.tiling[name], strict=True)
            if len(self.written[name]) == self.buffers[name].copies(self.extents) * math.prod(-(-n // (LANES * per)) for n, per in sizes):
                self.written[name] = None

    def _count(self, more: int, source: Source) -> None:
        """Refuse what has too many statements to unroll, with those of before."""
        if self.unrolled + more > UNROLLED:
            raise CompileError(
                f"this unrolls to {self.unrolled + more} statements or more, above {UNROLLED}; use a larger gm, "
                "gn or nk",
                source,
            )

    # ---- a fused store that is to be staged ----

    def _land(self, node: Units) -> None:
        """The temps that hold accumulators of fused stores under fuse=False."""
        self.landing.clear()
        if self.trace.fuse:
            return
        for statement in flatten(node.body):
            if not isinstance(statement, Store) or statement.expression.is_copy:
                continue
            target = self.buffers[statement.target.buffer]
            for leaf in statement.expression.leaves:
                if isinstance(leaf, TileLeaf):
                    name = next(name for number in self.names if (name := f"land{number}") not in self.buffers)
                    self.buffers[name] = Buffer(name, "temp", target.shape, target.batched, False, statement.source)
                    self.landing[statement.id, leaf.accumulator] = name

    def _staged(self, node: Units) -> None:
        for statement in flatten(node.body):
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
        return [s.source for s in self.trace.statements if writes(s) == name][-1]

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

    def _require_tile(self, name: str, place: Place, statement: Store) -> None:
        """One tile of a buffer, divided as the target of the store is, has been written."""
        written = self.written.get(name, set())
        if self.buffers[name].role in READ_ONLY or written is None:
            return
        if name in self.spans or self.tiling.get(name) != tuple(axis.per for axis in statement.target.axes):
            self._require_complete(name, "an operand", statement.source)
        elif (0, *place) not in written:
            raise CompileError(f"{name} is read in its tile {place}, which nothing has written", statement.source)

    def _require_operand(self, operand: Operand, rows: Span, columns: Span, source: Source) -> None:
        """What a product reads of a buffer has been written."""
        name = operand.buffer
        written = self.written.get(name, set())
        if self.buffers[name].role in READ_ONLY or written is None or rows[0] == rows[1]:
            return
        if name in self.spans:
            width = self.buffers[name].element_shape(self.extents)[1]
            for row in range(*rows):
                self._require_complete(name, "an operand", source, (row * width + columns[0], row * width + columns[1]))
            return
        if name not in self.tiling:
            self._require_complete(name, "an operand", source)
        down, along = (LANES * per for per in self.tiling[name])
        for i, j in itertools.product(range(rows[0] // down, -(-rows[1] // down)), range(columns[0] // along, -(-columns[1] // along))):
            if (operand.copy, i, j) not in written:
                raise CompileError(f"an operand {name} is incomplete: nothing has written its tile ({i}, {j})", source)


def _unrolled(body, known: dict[str, int], batch: int) -> int:
    """At least how many statements a body unrolls to: a count that depends on an index is taken at index 0."""
    total = 0
    for node in body:
        if isinstance(node, Loop):
            turns = max(resolve(node.count, known), 0)
            total += turns * _unrolled(node.body, known | {node.index.name: 0}, batch)
        elif isinstance(node, Units):
            points = math.prod(resolve(count, known) for count in node.counts)
            total += 1 if _by_parts(node) else batch * points * _unrolled(node.body, known | {i.name: 0 for i in node.indices}, batch)
        else:
            total += 1
    return max(total, 1)


def _by_parts(node: Units) -> bool:
    """A tiling by parts whose statements each store the part that is its index."""
    return len(node.indices) == 1 and all(
        isinstance(statement, Store)
        and all(part.kinds == ("parts",) and part.indices == node.indices for part in _slices(statement))
        for statement in node.body
    )


def _slices(statement: Store) -> list[Slice]:
    """What a store writes and reads."""
    return [statement.target, *(leaf.slice for leaf in statement.expression.leaves if isinstance(leaf, SliceLeaf))]


def _whole(expression: Expression) -> Expression:
    """Parts of buffers as the whole buffers they are parts of."""
    nodes = [BufferLeaf(n.slice.buffer) if isinstance(n, SliceLeaf) else n for n in expression.nodes]
    return Expression(tuple(nodes))
