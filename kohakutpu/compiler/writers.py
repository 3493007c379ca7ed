"""Who wrote what: the statement and the instance behind every element, for reports."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from kohakutpu.lang.trace import BufferLeaf

from .apart import boxes
from .artifact import BufferImage, Writer
from .layouts import HALVES, Layout, Tile
from .stages import Drain, ElementwiseStage, EpilogueStage, Key, RelayoutStage, RowStage, Stage

Images = Mapping[str, BufferImage]


def writers_of(stage: Stage, images: Images) -> Iterator[Writer]:
    """What a stage writes, but for copies of a buffer."""
    if isinstance(stage, RelayoutStage):
        return
    if isinstance(stage, ElementwiseStage) and stage.spans:
        yield from _some(stage, images[stage.target])
    elif isinstance(stage, (ElementwiseStage, RowStage)):
        for written, statement in [*((r.written, r.statement) for r in stage.kept if r.drained), (stage.written, stage.statement)]:
            yield from _whole(written, statement.id, images[written.buffer])
    elif isinstance(stage, EpilogueStage):
        image = images[stage.statement.target.buffer]
        for key, instance in stage.instances.items():
            yield _tile(image, stage.statement.id, key, instance.copy, instance.i, instance.j)
    else:
        for key, ops in stage.programs.items():
            for op in ops:
                if isinstance(op, Drain):
                    yield _tile(images[op.buffer], op.statement, key, op.copy, op.i, op.j)


def _whole(written: BufferLeaf, statement: int, image: BufferImage) -> Iterator[Writer]:
    """All of a buffer, or the rows of a view."""
    view = written.view
    if view is None:
        yield Writer(written.buffer, statement, (), (0,) * len(image.shape), image.shape)
        return
    yield from _elements(image, statement, view.first * view.width, (view.first + view.count) * view.width)


def _elements(image: BufferImage, statement: int, first: int, end: int) -> Iterator[Writer]:
    """Elements [first, end) of every batch element."""
    own = image.layout.shape
    lead = image.shape[: len(image.shape) - len(own)]
    for low, high in boxes(own, first, end):
        yield Writer(image.name, statement, (), (0,) * len(lead) + low, lead + high)


def _some(stage: ElementwiseStage, image: BufferImage) -> Iterator[Writer]:
    """The tiles or the elements of a stage's spans."""
    layout = stage.layout
    for number, (first, words) in enumerate(stage.spans):
        if isinstance(layout, Tile):
            place = divmod(first // layout.words, layout.grid[1])
            for copy in range(image.copies):
                yield _tile(image, stage.statement.id, ((copy,) if image.copies > 1 else ()) + (number,), copy, *place)
        else:
            end = min((first + words) * HALVES, math.prod(layout.shape))
            yield from _elements(image, stage.statement.id, first * HALVES, end)


def _tile(image: BufferImage, statement: int, key: Key, copy: int, i: int, j: int) -> Writer:
    layout: Layout = image.layout
    assert isinstance(layout, Tile)
    lead = image.shape[:-2]
    at = tuple(int(axis) for axis in np.unravel_index(copy, lead)) if lead else ()
    rows, columns = 4 * layout.gm, 4 * layout.gn
    low = (*at, i * rows, j * columns)
    high = (*(axis + 1 for axis in at), min((i + 1) * rows, layout.rows), min((j + 1) * columns, layout.columns))
    return Writer(image.name, statement, key, low, high)
