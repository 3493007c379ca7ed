"""Bands: neighbouring statements over whole buffers as one program, so that what one stores the next reads from L1.

A value that is read again goes through L1 as FP16, as it would through memory: no bit changes. What nobody reads from
memory afterwards is not written there. A band grows while it fits the core and is estimated to be no slower.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from kohakutpu.lang.trace import BufferLeaf, Constant, Expression, Op, Reduce

from . import elementwise, rows
from .artifact import BufferImage
from .deal import deal
from .layouts import in_rows
from .refusals import CompileError
from .stages import ElementwiseStage, Kept, Program, Result, RowStage, Stage, accessed

STAGE_CYCLES = 250  # estimated, of beginning a stage of its own: the host's polls, staging, kicks

Single = ElementwiseStage | RowStage


class Joiner:
    """Joins a program's stages. `images` have layouts and copies, no addresses yet; `nodes` are the vector cores; `placed` are
    the names of buffers that the caller gave an address."""

    def __init__(self, program: Program, images: Mapping[str, BufferImage], nodes: Sequence[int], known: Mapping[str, int],
                 arrays: bool, room: int, placed: Collection[str] = ()):  # fmt: skip
        self.program = program
        self.images = images
        self.nodes = nodes
        self.known = known
        self.arrays = arrays
        self.room = room
        self.placed = placed

    def join(self) -> None:
        """Put bands in the place of the stages they are made of, and forget temps that lie in L1 only."""
        stages: list[Stage] = []
        band: list[Single] = []
        cycles: float | None = None  # of the band, once somebody asks
        for position, stage in enumerate(self.program.stages):
            if not isinstance(stage, (ElementwiseStage, RowStage)):
                stages.append(stage)
                band = []
                continue
            made = joined([*band, stage], self.images, self.program.stages[position + 1 :], self.placed) if band else None
            if made:
                cycles = self._cycles(stages[-1]) if cycles is None else cycles
                alone, both = self._cycles(stage), self._cycles(made)
                if None not in (cycles, alone, both) and both <= cycles + alone + STAGE_CYCLES:
                    band.append(stage)
                    stages[-1], cycles = made, both
                    continue
            stages.append(stage)
            band, cycles = [stage], None
        touched = {name for stage in stages for access in [accessed(stage)] for name in (*access.reads, *access.writes)}
        for name, buffer in list(self.program.buffers.items()):
            if buffer.role == "temp" and name not in touched:
                del self.program.buffers[name]
        self.program.stages[:] = stages

    def _cycles(self, stage: Single) -> float | None:
        """About how long a stage takes; None where it does not fit a core."""
        try:
            if isinstance(stage, RowStage):
                plan = rows.plan(stage, self.images)
                return rows.estimate(plan, deal(plan.spans, self.nodes), self.known, self.arrays, self.room)
            elements = math.prod(self.images[stage.target].layout.shape)
            plan = elementwise.plan(
                stage, self.images, self.known, published=False, arrays=self.arrays, elements=elements
            )
            return elementwise.estimate(plan, deal(plan.spans, self.nodes), self.known, self.room)
        except CompileError:
            return None


def joined(
    band: Sequence[Single], images: Mapping[str, BufferImage], later: Sequence[Stage], placed: Collection[str] = ()
) -> Single | None:
    """The band as one stage, or None where its statements cannot share a program. `later` are the stages behind it,
    `placed` buffers that are written in any case."""
    if any(isinstance(stage, ElementwiseStage) and stage.spans for stage in band):
        return None
    if any(stage.part != band[0].part for stage in band) or len({images[stage.target].copies for stage in band}) > 1:
        return None
    by_rows = any(isinstance(stage, RowStage) for stage in band)
    as_rows = [_as_rows(stage, images) for stage in band] if by_rows else []
    if by_rows and (None in as_rows or len({stage.shape[:-1] for stage in as_rows}) > 1):
        return None
    if not by_rows and len({images[stage.target].layout for stage in band}) > 1:
        return None
    if not _ordered(as_rows or band):
        return None
    merged = _merged(band)
    if merged is None:
        return None
    nodes, places = merged
    if not by_rows and any(isinstance(nodes[nodes[place].operands[0]], Constant) for place in places):
        return None
    kept = []
    for number, (stage, node) in enumerate(zip(band, places, strict=False)):
        again = any(other.written == stage.written for other in band[number + 1 :])
        kept.append(Result(stage.written, stage.statement, node, not again and (stage.target in placed or _live(stage, images, later))))
    last = band[-1]
    expression = Expression(tuple(nodes))
    if not by_rows:
        return ElementwiseStage(last.target, expression, last.part, last.statement, tuple(kept))
    shape = max((stage.shape for stage in as_rows), key=lambda shape: shape[-1])
    shapes = {leaf: own for stage in as_rows for leaf, own in stage.shapes.items()}
    return RowStage(last.written, expression, last.part, last.statement, shape, shapes, tuple(kept))


def _as_rows(stage: Single, images: Mapping[str, BufferImage]) -> RowStage | None:
    """A statement as one over rows, where its buffers lie so."""
    if isinstance(stage, RowStage):
        return stage
    shape = images[stage.target].layout.shape
    leaves = [BufferLeaf(stage.target), *(leaf for leaf in stage.expression.nodes if isinstance(leaf, BufferLeaf))]
    if any(images[leaf.buffer].layout != in_rows(shape) for leaf in leaves):
        return None
    return RowStage(stage.written, stage.expression, stage.part, stage.statement, shape, dict.fromkeys(leaves, shape))


def _ordered(band: Sequence[Single]) -> bool:
    """Whether every statement finds what it reads, and keeps what others read, when rows go through all of them in turn."""
    for number, stage in enumerate(band):
        for other in band[:number]:
            if stage.written.buffer == other.written.buffer and stage.written != other.written:
                return False
            for reader, writer in ((stage, other), (other, stage)):
                for leaf in reader.expression.nodes:
                    if isinstance(leaf, BufferLeaf) and leaf.buffer == writer.written.buffer:
                        if leaf != writer.written or not _row_by_row(reader, leaf):
                            return False
    return True


def _row_by_row(stage: Single, leaf: BufferLeaf) -> bool:
    """Whether row i reads the leaf's row i."""
    if isinstance(stage, ElementwiseStage):
        return True
    plain = leaf.view is None or (leaf.view.group == 1 and not leaf.view.repeats)
    return plain and stage.shapes[leaf][:-1] == stage.shape[:-1]


def _merged(band: Sequence[Single]) -> tuple[list, list[int]] | None:
    """All nodes, and the place of the `Kept` one of each statement but the last; None where the last value is one of an
    earlier statement's."""
    nodes: list = []
    known: dict[tuple, int] = {}
    held: dict[BufferLeaf, int] = {}
    places: list[int] = []
    for stage in band:
        where: list[int] = []
        for node in stage.expression.nodes:
            if isinstance(node, BufferLeaf) and node in held:
                where.append(held[node])
                continue
            if isinstance(node, (Op, Reduce)):
                node = type(node)(node.op, tuple(where[i] for i in node.operands))
            # -0.0 equals 0.0, and is another number.
            key = (type(node), repr(node) if isinstance(node, Constant) else node)
            if key not in known:
                known[key] = len(nodes)
                nodes.append(node)
            where.append(known[key])
        if stage is band[-1]:
            own = where[-1] == len(nodes) - 1 and not isinstance(nodes[-1], Kept)
            return (nodes, places) if own else None
        held[stage.written] = len(nodes)
        places.append(len(nodes))
        nodes.append(Kept((where[-1],)))
    return None


def _live(stage: Single, images: Mapping[str, BufferImage], later: Sequence[Stage]) -> bool:
    """Whether somebody reads from memory what a statement stores."""
    name = stage.target
    if images[name].role != "temp" or stage.written.view is not None:
        return True
    for other in later:
        if name in accessed(other).reads:
            return True
        some = isinstance(other, ElementwiseStage) and other.spans
        if isinstance(other, (ElementwiseStage, RowStage)) and other.written == BufferLeaf(name) and not some:
            return False
    return False
