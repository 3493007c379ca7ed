"""Stages: work for one kind of unit between two barriers, still free of addresses and instructions."""

from __future__ import annotations

from dataclasses import dataclass

from kohakutpu.lang.source import Source
from kohakutpu.lang.trace import Buffer, BufferLeaf, Expression, SliceLeaf, Statement, Store

from .layouts import Layout
from .placement import Access

Key = tuple[int, ...]
Spans = tuple[tuple[int, int], ...]  # (first word, words) in each batch element of a buffer


# ---- what a cluster does ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operand:
    """One tile and chunk of a buffer, as a FILL fetches it, `shift` rows (of a plane: lanes) further down."""

    buffer: str
    copy: int
    tile: int
    chunk: int
    shift: int = 0


@dataclass(frozen=True)
class Sweep:
    """Multiply two operands into the accumulator; `step` counts the sweeps since it was opened."""

    a: Operand
    b: Operand
    step: int
    gm: int
    gn: int
    nk: int
    statement: int


@dataclass(frozen=True)
class Drain:
    """Write the accumulator as tile (i, j) of a buffer."""

    buffer: str
    copy: int
    i: int
    j: int
    statement: int


@dataclass(frozen=True)
class Send:
    """Send the accumulator into slot `slot` of the paired vector core's L1."""

    slot: int
    gm: int
    gn: int
    statement: int


@dataclass(frozen=True)
class Peer:
    """Send the accumulator to another cluster, which adds it to its own; only where K is cut into parts (`ksplit`)."""

    node: int
    gm: int
    gn: int
    statement: int


@dataclass
class ClusterStage:
    """One tiling's sweeps and drains."""

    grid: Key
    programs: dict[Key, list[Sweep | Drain | Send]]
    statements: list[int]
    sends: bool = False


@dataclass(frozen=True)
class Epilogue:
    """One instance of a fused store: where its tile and its per-channel operand are."""

    copy: int
    i: int
    j: int
    slots: tuple[int, ...]  # the L1 slot of each accumulator leaf, in the order of `EpilogueStage.tiles`


@dataclass
class EpilogueStage:
    """A fused store over the tiling's grid. `slots` is how many tiles the tiling sends to a core in all."""

    grid: Key
    statement: Store
    gm: int
    gn: int
    tiles: list[str]
    instances: dict[Key, Epilogue]
    slots: int


@dataclass(frozen=True)
class Kept:
    """A node of a band's expression: what a statement stored, as a later one reads it. `operands` holds its value's place."""

    operands: tuple[int]


@dataclass(frozen=True)
class Result:
    """What a statement of a band before the last one stores: its target, and the `Kept` node.

    It is not drained where nobody reads it from memory.
    """

    written: BufferLeaf
    statement: Statement
    node: int
    drained: bool


@dataclass
class ElementwiseStage:
    """A statement over whole buffers, `part` elements an instance; or a band, of which `kept` has the results before the
    last one; or a store that writes only the words `spans` of buffers that lie in the order `layout`, one an instance."""

    target: str
    expression: Expression  # leaves are BufferLeaf and Constant
    part: int
    statement: Statement
    kept: tuple[Result, ...] = ()
    layout: Layout | None = None
    spans: Spans = ()

    @property
    def written(self) -> BufferLeaf:
        return BufferLeaf(self.target)


@dataclass
class RowStage:
    """A statement over whole buffers that reduces rows, or whose operands repeat or are views; or a band of some.

    It is computed in `shape`, `part` elements an instance; `shapes` are those of the target and the operands, whose views
    have numbers.
    """

    written: BufferLeaf
    expression: Expression  # leaves are BufferLeaf and Constant
    part: int
    statement: Statement
    shape: tuple[int, ...]
    shapes: dict[BufferLeaf, tuple[int, ...]]
    kept: tuple[Result, ...] = ()

    @property
    def target(self) -> str:
        return self.written.buffer


@dataclass
class RelayoutStage:
    """A copy of a buffer in the byte order in which the product at `line` reads it."""

    source: str
    target: str
    line: Source


Stage = ClusterStage | EpilogueStage | ElementwiseStage | RowStage | RelayoutStage


@dataclass
class Program:
    """The stages in order, and every buffer: those of the trace, then the temps that staging a fused store made."""

    stages: list[Stage]
    buffers: dict[str, Buffer]


def accessed(stage: Stage) -> Access:
    """The buffers that a stage reads and writes."""
    if isinstance(stage, RelayoutStage):
        return Access((stage.source,), (stage.target,))
    if isinstance(stage, (ElementwiseStage, RowStage)):
        reads = dict.fromkeys(leaf.buffer for leaf in stage.expression.leaves if isinstance(leaf, BufferLeaf))
        drained = (result.written.buffer for result in stage.kept if result.drained)
        return Access(tuple(reads), tuple(dict.fromkeys((*drained, stage.target))))
    if isinstance(stage, EpilogueStage):
        leaves = stage.statement.expression.leaves
        reads = dict.fromkeys(leaf.slice.buffer for leaf in leaves if isinstance(leaf, SliceLeaf))
        return Access(tuple(reads), (stage.statement.target.buffer,))
    ops = [op for program in stage.programs.values() for op in program]
    reads = dict.fromkeys(operand.buffer for op in ops if isinstance(op, Sweep) for operand in (op.a, op.b))
    return Access(tuple(reads), tuple(dict.fromkeys(op.buffer for op in ops if isinstance(op, Drain))))
