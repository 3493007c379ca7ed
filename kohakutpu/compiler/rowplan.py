"""Statements over rows before anything has an address: which operands, and which core computes which rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from kohakutpu.lang.trace import BufferLeaf

from .artifact import BufferImage
from .layouts import HALVES, Tile
from .refusals import UNROLLED, CompileError
from .rowwords import AD_QUAD, QUAD
from .stages import Key, RowStage


@dataclass(frozen=True)
class RowSpan:
    """One instance: a batch element's rows from `first` on."""

    copy: int
    first: int
    rows: int


@dataclass(frozen=True)
class Leaf:
    """A filled operand: its node and buffer, words of a row, whether one row serves all, and its layout if it is
    tiles."""

    node: int
    name: str
    words: int
    repeated: bool
    tile: Tile | None = None

    @property
    def quad(self) -> int:
        """Words of four rows of a leaf that is tiles."""
        return self.tile.grid[1] * self.tile.gn


@dataclass
class RowPlan:
    """A statement over rows before anything has an address."""

    stage: RowStage
    leaves: list[Leaf]
    result_words: int  # of a row
    spans: dict[Key, RowSpan]
    grid: Key

    @property
    def tiled(self) -> bool:
        return any(leaf.tile for leaf in self.leaves)

    @property
    def first_descriptor(self) -> int:
        """Of the operands; those before are windows on L1."""
        return AD_QUAD + self.tiled

    @property
    def descriptors(self) -> int:
        return self.first_descriptor + len(self.leaves) + 1

    @property
    def target_columns(self) -> int:
        return self.stage.shapes[self.stage.target][-1]

    @property
    def single_leaves(self) -> frozenset[int]:
        """Operands with a last axis of 1, where rows have more."""
        return frozenset(
            leaf.node for leaf in self.leaves if self.stage.shapes[leaf.name][-1] == 1 < self.stage.shape[-1]
        )

    @property
    def repeated_leaves(self) -> frozenset[int]:
        return frozenset(leaf.node for leaf in self.leaves if leaf.repeated)

    @property
    def words(self) -> int:
        """Words written to memory."""
        return self.result_words * sum(span.rows for span in self.spans.values())


def plan(stage: RowStage, images: Mapping[str, BufferImage]) -> RowPlan:
    """Cut a statement into instances of whole rows. Images need no address yet."""
    source = stage.statement.source
    columns = stage.shape[-1]
    rows = math.prod(stage.shape[:-1])
    leaves = []
    for node, leaf in enumerate(stage.expression.nodes):
        if not isinstance(leaf, BufferLeaf):
            continue
        own = stage.shapes[leaf.buffer]
        repeated = math.prod(own[:-1]) == 1
        if not repeated and own[:-1] != stage.shape[:-1]:
            raise CompileError(
                f"{leaf.buffer} {list(own)} repeats every {math.prod(own[:-1])} rows of {list(stage.shape)}; an "
                "operand of a row statement has all of the rows, or one that serves them all",
                source,
            )
        layout = images[leaf.buffer].layout
        tile = layout if isinstance(layout, Tile) else None
        leaves.append(Leaf(node, leaf.buffer, math.ceil(own[-1] / HALVES), repeated and rows > 1 and not tile, tile))
    copies = images[stage.target].copies
    per = max(1, stage.part // columns)
    parts = math.ceil(rows / per)
    per = math.ceil(rows / parts)
    tiles = [QUAD * leaf.tile.gm for leaf in leaves if leaf.tile]
    per = math.ceil(per / math.lcm(*tiles)) * math.lcm(*tiles)  # whole rows of tiles
    parts = math.ceil(rows / per)
    if copies * parts > UNROLLED:
        raise CompileError(f"{copies * parts} instances of {per} rows, above {UNROLLED}; use a larger part", source)
    spans = {}
    for copy in range(copies):
        for part in range(parts):
            key = ((copy,) if copies > 1 else ()) + (part,)
            spans[key] = RowSpan(copy, part * per, min(per, rows - part * per))
    grid = ((copies,) if copies > 1 else ()) + (parts,)
    words = math.ceil(stage.shapes[stage.target][-1] / HALVES)
    return RowPlan(stage, leaves, words, spans, grid)


def address_of(image: BufferImage, copy: int) -> int:
    """Where a batch element of a buffer begins."""
    return image.address + (copy * image.stride if image.copies > 1 else 0)
