"""The shape that a whole-buffer statement is computed in."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from .extents import Extents, resolve
from .source import KernelError, Source
from .trace import Buffer, BufferLeaf, Constant, Expression, Op, Reduce, View


def settled(leaf: BufferLeaf, buffers: Mapping[str, Buffer], extents: Extents, known: Mapping[str, int],
            source: Source) -> BufferLeaf:  # fmt: skip
    """The leaf with numbers in its view; `known` has the indices of loops outside. Raises KernelError for a view that the
    buffer does not have."""
    view = leaf.view
    if view is None:
        return leaf
    shape = buffers[leaf.buffer].element_shape(extents)
    elements = math.prod(shape)
    width = shape[-1] if view.width is None else resolve(view.width, known)
    if width < 1 or elements % width:
        raise KernelError(f"{leaf.text()}: {list(shape)} are no whole rows of {width} elements", source)
    rows = elements // width
    first = resolve(view.first, known)
    count = rows - first if view.count is None else resolve(view.count, known)
    if first < 0 or count < 1 or first + count > rows:
        raise KernelError(
            f"{leaf.text()}: {count} rows from row {first} on, of a buffer of {rows} rows of {width} elements", source
        )
    group = resolve(view.group, known)
    if group < 1:
        raise KernelError(f"{leaf.text()}: groups of {group} rows", source)
    return BufferLeaf(leaf.buffer, View(width, first, count, group, view.repeats, leaf.text()))


def shape_of(leaf: BufferLeaf, buffers: Mapping[str, Buffer], extents: Extents) -> tuple[int, ...]:
    """The shape in which a settled leaf meets the others; rows that repeat are as one."""
    if leaf.view is None:
        return buffers[leaf.buffer].element_shape(extents)
    return (1 if leaf.view.repeats else leaf.view.count, leaf.view.width)


def alike(expression: Expression, shapes: Mapping[BufferLeaf, tuple[int, ...]]) -> bool:
    """The value is one number a row: everything it reads passes a reduction or has a last axis of 1."""
    same: list[bool] = []
    for node in expression.nodes:
        if isinstance(node, BufferLeaf):
            same.append(shapes[node][-1] == 1)
        elif isinstance(node, Op):
            same.append(all(same[i] for i in node.operands))
        else:
            same.append(isinstance(node, (Constant, Reduce)))
    return same[-1]


def statement_shape(
    target: BufferLeaf, expression: Expression, buffers: Mapping[str, Buffer], extents: Extents, source: Source
) -> tuple[int, ...]:
    """The shape of `target <<= expression`, all of them settled, before its last axis may become 1.

    Operands repeat as in numpy: along axes they lack, or have as 1. The target has this shape, or a last axis of 1
    where the value is one number a row. Raises KernelError otherwise.
    """
    wanted = shape_of(target, buffers, extents)
    shapes = {node: shape_of(node, buffers, extents) for node in expression.nodes if isinstance(node, BufferLeaf)}
    listed = ", ".join(f"{leaf.text()} {list(shape)}" for leaf, shape in {target: wanted, **shapes}.items())
    try:
        full = np.broadcast_shapes(wanted, *shapes.values())
    except ValueError:
        full = ()
    if full[:-1] != wanted[:-1] or not full:
        raise KernelError(
            f"these do not make one shape: {listed}; an operand has the target's shape, or repeats along axes it lacks "
            "or has as 1 (a per-channel vector of a tile is read as b[j] inside the tiling)",
            source,
        )
    if full != wanted and not alike(expression, shapes):
        raise KernelError(f"{target.text()} has one element a row and the value differs within a row: {listed}", source)
    for leaf in shapes:
        rows = math.prod(full[:-1])
        if leaf.view is not None and leaf.view.repeats and rows % leaf.view.count:
            raise KernelError(f"{leaf.text()}: {rows} rows are not {leaf.view.count} rows some times over", source)
    return full
