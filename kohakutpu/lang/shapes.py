"""The shape that a whole-buffer statement is computed in."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .extents import Extents
from .source import KernelError, Source
from .trace import Buffer, BufferLeaf, Constant, Expression, Op, Reduce


def alike(expression: Expression, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    """The value is one number a row: everything it reads passes a reduction or has a last axis of 1."""
    same: list[bool] = []
    for node in expression.nodes:
        if isinstance(node, BufferLeaf):
            same.append(shapes[node.buffer][-1] == 1)
        elif isinstance(node, Op):
            same.append(all(same[i] for i in node.operands))
        else:
            same.append(isinstance(node, (Constant, Reduce)))
    return same[-1]


def statement_shape(
    target: str, expression: Expression, buffers: Mapping[str, Buffer], extents: Extents, source: Source
) -> tuple[int, ...]:
    """The shape of `target <<= expression` before its last axis may become 1.

    Operands repeat along axes they lack in front and along a last axis of 1. The target has this shape, or a last axis
    of 1 where the value is one number a row. Raises KernelError otherwise.
    """
    wanted = buffers[target].element_shape(extents)
    shapes = {n.buffer: buffers[n.buffer].element_shape(extents) for n in expression.nodes if isinstance(n, BufferLeaf)}
    listed = ", ".join(f"{name} {list(shape)}" for name, shape in {target: wanted, **shapes}.items())
    try:
        full = np.broadcast_shapes(wanted, *shapes.values())
    except ValueError:
        full = ()
    if full[:-1] != wanted[:-1] or not full:
        raise KernelError(
            f"these do not make one shape: {listed}; an operand has the target's shape, or repeats along axes it lacks "
            "in front or along a last axis of 1 (a per-channel vector of a tile is read as b[j] inside the tiling)",
            source,
        )
    if full != wanted and not alike(expression, shapes):
        raise KernelError(f"{target} has one element a row and the value differs within a row: {listed}", source)
    return full
