"""The clusters' work of one instance of a tiling, and what fused stores make of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kohakutpu.lang.extents import Extents
from kohakutpu.lang.slices import check_product, check_shift, check_slice
from kohakutpu.lang.source import Source
from kohakutpu.lang.trace import Buffer, Contract, Open, Store, TileLeaf

from .events import Event, accumulators
from .refusals import CompileError
from .stages import ClusterStage, Drain, Epilogue, EpilogueStage, Key, Operand, Send, Sweep

Span = tuple[int, int]  # of elements along an axis: the first, and the one past the last


@dataclass
class Tiling:
    """What the instances of a tiling fill in: the clusters' stage, an epilogue's by (store, turn of the loop it stands in),
    and which instance writes which tile (buffer, copy, i, j).

    `fuse` and `landing` say how a fused store leaves; `divided` has the (gm, gn) by which buffers are written, here and
    elsewhere; `written` refuses an operand's rows and columns (first, end) of which something is not.
    """

    buffers: Mapping[str, Buffer]
    extents: Extents
    fuse: bool
    landing: Mapping[tuple[int, str], str]
    divided: dict[str, tuple[int, int]]
    stage: ClusterStage
    written: Callable[[Operand, Span, Span, Source], None]
    epilogues: dict[tuple[int, int], EpilogueStage] = field(default_factory=dict)
    tiles: dict[tuple[str, int, int, int], Key] = field(default_factory=dict)

    def fused(self, statement: Store) -> bool:
        """The store takes accumulators straight from clusters."""
        return self.fuse and not statement.expression.is_copy and bool(accumulators(statement))


class Instance:
    """Orders the sweeps and drains of one instance: one accumulator, so a tile leaves before the next one opens."""

    def __init__(self, tiling: Tiling, copy: int, key: Key):
        self.tiling = tiling
        self.copy = copy
        self.key = key
        self.program: list[Sweep | Drain | Send] = []
        self.sweeps: dict[tuple[str, int], int] = {}
        self.sent: dict[tuple[str, int, int], int] = {}  # (accumulator, opening, sweeps) -> slot
        self.drained: set[tuple[int, str]] = set()  # (event, accumulator) that has left
        self.left: set[tuple[str, int]] = set()

    def run(self, events: list[Event]) -> list[Sweep | Drain | Send]:
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

    def _sweep(self, event: Event, opened: Open) -> None:
        statement = event.statement
        tiling = self.tiling
        operands = []
        check_product(statement.a, statement.b, event.known, statement.source)
        for part in (statement.a, statement.b):
            buffer = tiling.buffers[part.buffer]
            tile, chunk = check_slice(part, buffer, tiling.extents, event.known, statement.source)
            shift = check_shift(part, event.known, statement.source)
            operand = Operand(part.buffer, self.copy if buffer.batched else 0, tile, chunk, shift)
            if part.plane is None:
                (rows, depth), (down, along) = buffer.element_shape(tiling.extents), part.axes
                first = min(tile * down.step + shift, rows)
                tiling.written(operand, (first, min(first + down.step, rows)), along.span(chunk, depth), statement.source)
            operands.append(operand)
        accumulator = event.accumulator(statement.accumulator)
        step = self.sweeps.get(accumulator, 0)
        self.sweeps[accumulator] = step + 1
        self.program.append(Sweep(*operands, step, opened.gm, opened.gn, opened.nk, statement.id))

    def _drain_if(self, events: list[Event], position: int, accumulator: tuple[str, int]) -> None:
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

    def _leave(self, event: Event, accumulator: tuple[str, int]) -> None:
        statement = event.statement
        tiling = self.tiling
        if tiling.fused(statement):
            version = (*accumulator, self.sweeps[accumulator])
            if version not in self.sent:
                self.sent[version] = len(self.sent)
                gm, gn = (axis.per for axis in statement.target.axes)
                self.program.append(Send(self.sent[version], gm, gn, statement.id))
                self.tiling.stage.sends = True
            return
        i, j = self._place(event)
        name = tiling.landing.get((statement.id, accumulator[0]), statement.target.buffer)
        self._claim(name, statement, i, j)
        self.program.append(Drain(name, self._copy_of(name), i, j, statement.id))

    def _store(self, event: Event) -> None:
        """The vector side of a fused store."""
        statement = event.statement
        tiling = self.tiling
        if not tiling.fused(statement):
            return
        i, j = self._place(event)
        self._claim(statement.target.buffer, statement, i, j)
        leaves = [leaf for leaf in statement.expression.leaves if isinstance(leaf, TileLeaf)]
        versions = [event.accumulator(leaf.accumulator) for leaf in leaves]
        slots = tuple(self.sent[(*version, self.sweeps[version])] for version in versions)
        gm, gn = (axis.per for axis in statement.target.axes)
        # A store inside a loop is one stage for each time round.
        turn = sum(1 for (number, _), e in self.tiling.epilogues.items() if number == statement.id and self.key in e.instances)
        stage = self.tiling.epilogues.get((statement.id, turn))
        if stage is None:
            stage = EpilogueStage(self.tiling.stage.grid, statement, gm, gn, [leaf.accumulator for leaf in leaves], {}, 0)
            self.tiling.epilogues[statement.id, turn] = stage
        stage.instances[self.key] = Epilogue(self._copy_of(statement.target.buffer), i, j, slots)

    def _place(self, event: Event) -> tuple[int, int]:
        target = event.statement.target
        buffer = self.tiling.buffers[target.buffer]
        return check_slice(target, buffer, self.tiling.extents, event.known, event.statement.source)

    def _copy_of(self, name: str) -> int:
        return self.copy if self.tiling.buffers[name].batched else 0

    def _claim(self, name: str, statement: Store, i: int, j: int) -> None:
        """Each tile of a buffer is written once in a tiling, and always by tiles of one size."""
        tiling = self.tiling
        claim(tiling.divided, name, statement)
        place = (name, self._copy_of(name), i, j)
        if place in tiling.tiles:
            raise CompileError(
                f"the tile ({i}, {j}) of {name} is written twice in one tiling, by instances {tiling.tiles[place]} and "
                f"{self.key}",
                statement.source,
            )
        tiling.tiles[place] = self.key


def claim(divided: dict[str, tuple[int, int]], name: str, statement: Store) -> None:
    """A buffer is always written by tiles of one size, which is noted in `divided`."""
    per = tuple(axis.per for axis in statement.target.axes)
    if divided.setdefault(name, per) != per:
        raise CompileError(
            f"{name} is written in tiles of {per[0]}x{per[1]} here and of {divided[name][0]}x{divided[name][1]} elsewhere",
            statement.source,
        )
