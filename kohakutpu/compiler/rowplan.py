"""Statements over rows before anything has an address: which operands, and which core computes which rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kohakutpu.lang.source import Source
from kohakutpu.lang.trace import BufferLeaf

from .artifact import BufferImage
from .core import CoreState, CoreWriter
from .layouts import HALVES, WORD, Tile
from .programs import CHUNK
from .refusals import UNROLLED, CompileError
from .rowwords import AD_QUAD, AD_SAME, AD_WINDOW, QUAD
from .stages import Key, Result, RowStage


STRIDES = 1 << 17  # a descriptor's stride is below this


@dataclass(frozen=True)
class RowSpan:
    """One instance: a batch element's rows from `first` on."""

    copy: int
    first: int
    rows: int


@dataclass(frozen=True)
class Leaf:
    """A filled operand: its node and buffer, words of a row, and its layout if it is tiles.

    Row i of the statement reads row `first + step * (i // group % period)` of the buffer; without a period the rows
    go on to the end.
    """

    node: int
    name: str
    words: int
    rows: int  # of the statement
    first: int = 0
    step: int = 1
    group: int = 1
    period: int | None = None
    tile: Tile | None = None

    @property
    def quad(self) -> int:
        """Words of four rows of a leaf that is tiles."""
        return self.tile.grid[1] * self.tile.gn

    @property
    def cycle(self) -> int:
        """Rows after which the pattern begins again, or a row moves on."""
        return self.group * (self.period or 1)

    @property
    def plain(self) -> bool:
        return self.group == 1 and self.period is None and not self.tile

    @property
    def repeated(self) -> bool:
        """One row serves all."""
        return self.rows > 1 and not self.tile and (self.period == 1 or self.group >= self.rows)

    def row(self, i: int) -> int:
        """The buffer's row that row i reads."""
        place = i // self.group
        return self.first + self.step * (place % self.period if self.period else place)

    def fits(self, rows: int) -> bool:
        """Whether runs of so many rows, from a multiple of it on, find what they read side by side."""
        if self.repeated or self.plain or self.tile or self.kept(rows):
            return True
        if rows > self.group and self.step * self.words * WORD >= STRIDES:
            return False
        inside = rows % self.group == 0 or self.group % rows == 0
        return inside and (self.period is None or self.cycle % rows == 0)

    def kept(self, rows: int) -> bool:
        """All runs of so many rows read the same."""
        return self.repeated or bool(self.period) and not self.tile and rows % self.cycle == 0

    def held(self, rows: int) -> int:
        """Rows of it that a run of so many rows has in L1."""
        if self.repeated:
            return 1
        return self.period if self.kept(rows) else max(1, rows // self.group)


@dataclass(frozen=True)
class KeptRow:
    """What a band stores before its last result: its node and buffer, words of a row, the buffer's row that row 0 is
    written to, whether it is one number a row, and whether it is drained."""

    node: int
    name: str
    words: int
    first: int
    single: bool
    drained: bool


@dataclass
class RowPlan:
    """A statement over rows before anything has an address."""

    stage: RowStage
    leaves: list[Leaf]
    result_words: int  # of a row
    spans: dict[Key, RowSpan]
    grid: Key
    per: int  # rows of an instance, but of the last
    kept: list[KeptRow]

    @property
    def tiled(self) -> bool:
        return any(leaf.tile for leaf in self.leaves)

    @property
    def finest(self) -> str:
        """'row' or 'tiles' where an instance has as few rows as it can: one, or those of one row of tiles; else ''."""
        if self.per > math.lcm(*(QUAD * leaf.tile.gm for leaf in self.leaves if leaf.tile)):
            return ""
        return "tiles" if self.tiled else "row"

    @property
    def first_descriptor(self) -> int:
        """Of the operands; those before are windows on L1."""
        return AD_QUAD + self.tiled

    @property
    def descriptors(self) -> int:
        return self.first_descriptor + len(self.leaves) + len(self.drained) + 1

    @property
    def drained(self) -> list[KeptRow]:
        """Those of the kept results that are written to memory."""
        return [kept for kept in self.kept if kept.drained]

    @property
    def target_columns(self) -> int:
        return self.stage.shapes[self.stage.written][-1]

    @property
    def target_row(self) -> int:
        """The target's row that row 0 is written to."""
        view = self.stage.written.view
        return view.first if view else 0

    @property
    def single_leaves(self) -> frozenset[int]:
        """Operands with a last axis of 1, where rows have more."""
        shapes, nodes = self.stage.shapes, self.stage.expression.nodes
        return frozenset(leaf.node for leaf in self.leaves if shapes[nodes[leaf.node]][-1] == 1 < self.stage.shape[-1])

    @property
    def single_nodes(self) -> frozenset[int]:
        """Nodes that L1 holds one word of for a row, where rows have more."""
        return self.single_leaves | {kept.node for kept in self.kept if kept.single}

    @property
    def repeated_leaves(self) -> frozenset[int]:
        return frozenset(leaf.node for leaf in self.leaves if leaf.repeated)

    @property
    def words(self) -> int:
        """Words written to memory."""
        words = self.result_words + sum(kept.words for kept in self.drained)
        return words * sum(span.rows for span in self.spans.values())


def plan(stage: RowStage, images: Mapping[str, BufferImage]) -> RowPlan:
    """Cut a statement into instances of whole rows. Images need no address yet."""
    source = stage.statement.source
    columns = stage.shape[-1]
    rows = math.prod(stage.shape[:-1])
    leaves = []
    for node, leaf in enumerate(stage.expression.nodes):
        if isinstance(leaf, BufferLeaf):
            layout = images[leaf.buffer].layout
            tile = layout if isinstance(layout, Tile) else None
            words = math.ceil(stage.shapes[leaf][-1] / HALVES)
            leaves.append(Leaf(node, leaf.buffer, words, rows, **_walk(leaf, stage, source), tile=tile))
    copies = images[stage.target].copies
    per = max(1, stage.part // columns)
    parts = math.ceil(rows / per)
    per = math.ceil(rows / parts)
    cycle = math.lcm(*(leaf.cycle for leaf in leaves if not leaf.repeated and not leaf.tile))
    if cycle > per:
        per = next(rows for rows in range(per, 0, -1) if cycle % rows == 0)
    grain = math.lcm(cycle if cycle <= per else 1, *(QUAD * leaf.tile.gm for leaf in leaves if leaf.tile))
    per = math.ceil(per / grain) * grain  # whole groups of rows, and whole rows of tiles
    parts = math.ceil(rows / per)
    if copies * parts > UNROLLED:
        raise CompileError(f"{copies * parts} instances of {per} rows, above {UNROLLED}; use a larger part", source)
    spans = {}
    for copy in range(copies):
        for part in range(parts):
            key = ((copy,) if copies > 1 else ()) + (part,)
            spans[key] = RowSpan(copy, part * per, min(per, rows - part * per))
    grid = ((copies,) if copies > 1 else ()) + (parts,)
    words = math.ceil(stage.shapes[stage.written][-1] / HALVES)
    kept = [_kept(result, stage) for result in stage.kept]
    return RowPlan(stage, leaves, words, spans, grid, per, kept)


def _kept(result: Result, stage: RowStage) -> KeptRow:
    own, view = stage.shapes[result.written], result.written.view
    single = own[-1] == 1 < stage.shape[-1]
    first = view.first if view else 0
    return KeptRow(result.node, result.written.buffer, math.ceil(own[-1] / HALVES), first, single, result.drained)


def _walk(leaf: BufferLeaf, stage: RowStage, source: Source) -> dict[str, int | None]:
    """How a leaf's rows go along with the statement's: fields of `Leaf`."""
    own, full = stage.shapes[leaf][:-1], stage.shape[:-1]
    own = (1,) * (len(full) - len(own)) + own
    more = [place for place, (a, b) in enumerate(zip(own, full, strict=True)) if a == b > 1]
    begin, end = (more[0], more[-1] + 1) if more else (len(full), len(full))
    if own[begin:end] != full[begin:end]:
        raise CompileError(
            f"{leaf.text()} {list(stage.shapes[leaf])} repeats along an axis between others of {list(stage.shape)}; the axes "
            "along which an operand repeats come first or last",
            source,
        )
    group = math.prod(full[end:])
    period = math.prod(own) if math.prod(full[:begin]) > 1 else None
    if not more:
        group, period = 1, 1 if math.prod(full) > 1 else None
    view = leaf.view
    if view is None:
        return {"group": group, "period": period}
    if view.repeats:
        return {"first": view.first, "period": view.count}
    if view.group > 1 and period is not None and period % view.group and period > 1:
        raise CompileError(
            f"{leaf.text()} repeats every {period} rows of {list(stage.shape)}, which are no whole groups of {view.group}", source
        )
    whole = math.ceil(period / view.group) if period else None
    return {"first": view.first, "step": view.group, "group": group * view.group, "period": whole}


def address_of(image: BufferImage, copy: int) -> int:
    """Where a batch element of a buffer begins."""
    return image.address + (copy * image.stride if image.copies > 1 else 0)


def begun(state: CoreState, words: Sequence[int], tiled: bool) -> CoreWriter:
    """What an instance begins with: the image, and the descriptors through which a row program reads L1, tiles too."""
    core = CoreWriter(state, reuse=True)
    core.image(words)
    core.base(AD_WINDOW, 0)
    core.line(AD_WINDOW, 1, CHUNK)
    core.base(AD_SAME, 0)
    core.line(AD_SAME, 0, 1)
    if tiled:
        core.base(AD_QUAD, 0)
        core.line(AD_QUAD, QUAD, CHUNK)
    return core
