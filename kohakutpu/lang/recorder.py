"""The trace in the making: open tilings and loops, fresh names, and what may stand where."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from kohakutpu.wording import counted

from .extents import Axis, Expr, Index, Name, indices_in, names_in
from .source import KernelError, Source, here
from .trace import (
    ELEMENTS, READ_ONLY, Assign, Buffer, BufferLeaf, Constant, Contract, Expression, Loop, Node, Slice, SliceLeaf,
    Statement, Store, TileLeaf, Units,
)  # fmt: skip

LETTERS = "ijklmnopqrstuvwxyz"  # of indices, by depth
_ACTIVE: list[Recorder] = []


def active() -> Recorder:
    """The recorder of the kernel being traced."""
    if not _ACTIVE:
        raise KernelError("kernel syntax outside a kernel: nothing is being traced", here())
    return _ACTIVE[-1]


class Recorder:
    """Collects one trace. `enter`/`leave` bracket the call of the kernel's function."""

    def __init__(self, knobs: dict[str, object], buffers: dict[str, Buffer]):
        self.knobs = knobs
        self.buffers = buffers
        self.elements = Name(ELEMENTS)
        # An index and a dim are told apart by name wherever extents are resolved.
        self._dims = {ELEMENTS}.union(*(names_in(extent) for buffer in buffers.values() for extent in buffer.shape))
        self.body: list = []
        self._bodies = [self.body]
        self._open: list[Index] = []
        self._units_open = 0
        self.fresh_count = 0
        self._statements = 0
        self._tiles: dict[str, tuple[int, int]] = {}  # of the accumulators that statements may use here
        self._accumulated: set[str] = set()
        self._written: set[str] = set()
        self._filled: dict[int, tuple[object, Source]] = {}
        self.broken: KernelError | None = None

    def __enter__(self) -> Recorder:
        _ACTIVE.append(self)
        return self

    def __exit__(self, *_) -> None:
        _ACTIVE.pop()

    # ---- names and places ----

    def fresh(self, stem: str) -> str:
        """A name not used before in this trace."""
        self.fresh_count += 1
        name = f"{stem}{self.fresh_count}"
        return self.fresh(stem) if name in self.buffers or name in self._dims or name in self._open_names else name

    def next_id(self) -> int:
        self._statements += 1
        return self._statements - 1

    def emit(self, node: Node) -> None:
        if isinstance(node, (Contract, Store, Assign)):
            self._require_in_scope(node)
        self._bodies[-1].append(node)

    def _require_in_scope(self, statement: Statement) -> None:
        """Python names outlive tilings and loops; what they stand for does not."""
        for extent in _extents(statement):
            for index in indices_in(extent):
                self.require_open(index, statement.source)
        if isinstance(statement, Contract):
            self.require_tile(statement.accumulator, statement.source)
            return
        for leaf in statement.expression.leaves:
            if isinstance(leaf, TileLeaf):
                self.require_tile(leaf.accumulator, statement.source)

    def require_own(self, buffer: Buffer) -> None:
        if self.buffers.get(buffer.name) is not buffer:
            raise KernelError(f"{buffer.name} is a buffer of another kernel, or of another trace of this one", here())

    def require_tile(self, accumulator: str, source: Source) -> None:
        if accumulator not in self._tiles:
            raise KernelError(
                f"{accumulator} is used outside the tiling that opened it; store it there, to a temp", source
            )

    def require_top(self, message: str) -> None:
        if self.broken is not None:
            raise self.broken
        if self._units_open:
            raise KernelError(message, here())

    @property
    def in_units(self) -> bool:
        return self._units_open > 0

    def require_units(self, message: str) -> None:
        if not self._units_open:
            raise KernelError(message, here())

    def require_open(self, index: Index, source: Source | None = None) -> None:
        if not any(index is known for known in self._open):
            raise KernelError(f"the index {index} is used outside the tiling or loop that bound it", source or here())

    # ---- what statements say ----

    def tile_shape(self, accumulator: str, source: Source) -> tuple[int, int]:
        self.require_tile(accumulator, source)
        return self._tiles[accumulator]

    def record_open(self, accumulator: str, gm: int, gn: int) -> None:
        self._tiles[accumulator] = (gm, gn)

    def record_contract(self, accumulator: str, a: Slice, b: Slice, source: Source) -> None:
        for part in (a, b):
            self._require_written(part.buffer, source)
        self._accumulated.add(accumulator)

    def record_fill(self, region, source: Source) -> None:
        self._filled[id(region)] = (region, source)

    def record_use(self, *regions) -> None:
        for region in regions:
            self._filled.pop(id(region), None)

    def require_used(self) -> None:
        """Every region that was filled is multiplied after its last filling."""
        for _, source in self._filled.values():
            raise KernelError("a region is filled here and not multiplied after that", source)

    def require_accumulated(self, accumulator: str, source: Source) -> None:
        if accumulator not in self._accumulated:
            raise KernelError(f"{accumulator} is stored before anything was accumulated in it", source)

    def record_write(self, target: Buffer, expression: Expression, source: Source) -> None:
        self.require_own(target)
        for leaf in expression.leaves:
            if isinstance(leaf, BufferLeaf):
                self._require_written(leaf.buffer, source)
            elif isinstance(leaf, SliceLeaf):
                self._require_written(leaf.slice.buffer, source)
        if target.role in READ_ONLY:
            what = "an input port" if target.role == "in" else "a table"
            raise KernelError(f"{target.name} is {what} and cannot be written", source)
        self._written.add(target.name)

    def _require_written(self, name: str, source: Source) -> None:
        if self.buffers[name].role not in READ_ONLY and name not in self._written:
            raise KernelError(f"{name} is read before anything was written to it", source)

    @property
    def never_written(self) -> list[Buffer]:
        return [b for b in self.buffers.values() if b.role not in READ_ONLY and b.name not in self._written]

    # ---- tilings and loops ----

    def open_loop(self, axis: Axis, name: str | None, source: Source) -> Iterator[Index]:
        self._require_count(axis, source)
        index = Index(self.fresh(self._letter()) if name is None else name, axis)
        self._push(index, source)
        body: list = []
        self._bodies.append(body)
        finished = False
        try:
            yield index
            finished = True
        finally:
            if finished:
                self._bodies.pop()
                self._open.pop()
                self.emit(Loop(index, axis.count, tuple(body), source))
            elif self.broken is None:
                self.broken = KernelError(
                    "a loop over a kernel index was left early; it is recorded once, whole", source
                )

    def open_units(self, axes: tuple[Axis, ...], names: tuple[str, ...] | None, source: Source) -> tuple[Index, ...]:
        if names is not None and len(names) != len(axes):
            raise KernelError(f"units has {counted(len(axes), 'axis', plural='axes')} and {len(names)} names", source)
        indices = []
        for position, axis in enumerate(axes):
            self._require_count(axis, source)
            index = Index(names[position] if names else self._letter(), axis)
            self._push(index, source)
            indices.append(index)
        self._units_open += 1
        self._bodies.append([])
        return tuple(indices)

    def close_units(self, indices: tuple[Index, ...], source: Source) -> None:
        body = tuple(self._bodies.pop())
        self._units_open -= 1
        del self._open[-len(indices) :]
        if not body:
            raise KernelError("units with nothing in it", source)
        if not self._units_open:
            self._tiles.clear()
            self.emit(Units(indices, tuple(index.axis.count for index in indices), body, source))
            return
        # A tiling inside a tiling is a view: the instance walks it, the last index fastest.
        for index in reversed(indices):
            body = (Loop(index, index.axis.count, body, source),)
        self.emit(*body)

    def _require_count(self, axis: Axis, source: Source) -> None:
        for index in indices_in(axis.count):
            self.require_open(index, source)

    @property
    def _open_names(self) -> set[str]:
        return {index.name for index in self._open}

    def _letter(self) -> str:
        """A name for an index: i, j, .. by depth, then i2, j2, ..; one that no dim and no open index has."""
        every = (f"{letter}{turn or ''}" for turn in itertools.chain((0,), itertools.count(2)) for letter in LETTERS)
        free = (name for name in every if name not in self._dims)
        return next(name for name in itertools.islice(free, len(self._open), None) if name not in self._open_names)

    def _push(self, index: Index, source: Source) -> None:
        if not isinstance(index.name, str) or not index.name.isidentifier():
            raise KernelError(f"an index is named by an identifier, not {index.name!r}", source)
        if index.name in self._open_names:
            raise KernelError(f"the index {index.name} is open already", source)
        if index.name in self._dims:
            raise KernelError(f"the index {index.name} has the name of a dim", source)
        self._open.append(index)


def _extents(statement: Statement) -> Iterator[Expr | int]:
    """Whatever of a statement may hold an index."""
    if isinstance(statement, Contract):
        yield from (*statement.a.indices, statement.a.shift, *statement.b.indices, statement.b.shift)
        return
    views = [statement.view] if isinstance(statement, Assign) else []
    if isinstance(statement, Store):
        yield from statement.target.indices
    for leaf in statement.expression.leaves:
        if isinstance(leaf, SliceLeaf):
            yield from leaf.slice.indices
        elif isinstance(leaf, BufferLeaf):
            views.append(leaf.view)
        elif isinstance(leaf, Constant) and not isinstance(leaf.value, float):
            yield leaf.value
    for view in views:
        if view is not None:
            yield from (extent for extent in (view.width, view.first, view.count, view.group) if extent is not None)


def axis_of(given) -> Axis:
    """What units and loop accept: a division of a buffer, or a count."""
    if isinstance(given, Axis):
        return given
    if isinstance(given, (int, Expr)) and not isinstance(given, bool):
        if isinstance(given, int) and given < 1:
            raise KernelError(f"a tiling or loop of {counted(given, 'step')}", here())
        return Axis("count", 0, given, given)
    raise KernelError(f"expected buffer.tiles(..), .chunks32(..), .parts(..) or a count, got {given!r}", here())


class units:  # noqa: N801 - a context manager of the language, written like a keyword
    """`with units(x.tiles(gm), w.tiles(gn)) as (i, j)`: the body once per point, spread over the machine's units.

    Yields one index, or a tuple of them. Points are independent: the machine runs them in any order. Inside another
    tiling it is a view of the instance's own work, which one unit walks in order.
    """

    def __init__(self, *axes, names: tuple[str, ...] | None = None):
        self._source = here()
        self._axes = tuple(axis_of(axis) for axis in axes)
        if not axes:
            raise KernelError("units needs at least one axis", self._source)
        self._names = names

    def __enter__(self) -> Index | tuple[Index, ...]:
        self._indices = active().open_units(self._axes, self._names, self._source)
        return self._indices if len(self._indices) > 1 else self._indices[0]

    def __exit__(self, kind, *_) -> None:
        if kind is None:
            active().close_units(self._indices, self._source)


stage = units


def grid(*axes, names: tuple[str, ...] | None = None) -> Iterator[Index | tuple[Index, ...]]:
    """`for i, j in grid(x.tiles(gm), w.tiles(gn))`: `units` as a `for`, whose body is recorded once."""
    tiling = units(*axes, names=names)
    recorder, source = active(), here()

    def once() -> Iterator[Index | tuple[Index, ...]]:
        finished = False
        with tiling as indices:
            try:
                yield indices
                finished = True
            finally:
                if not finished and recorder.broken is None:
                    recorder.broken = KernelError("a grid was left early; it is recorded once, whole", source)

    return once()


def loop(count, name: str | None = None) -> Iterator[Index]:
    """`for k in loop(x.chunks32(nk))`: the body for each index in ascending order."""
    return active().open_loop(axis_of(count), name, here())


sweep = loop
