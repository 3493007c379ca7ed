"""Reductions over a vector register in the order the hardware's tree takes.

Source: spec, vector core: reductions; and `docs/formats.md`. Every node is a full rounded ALU operation whose
left, lower-indexed operand is `a`; sums are not associative, so the order is part of the result.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from kohakutpu.formats import alu

CHUNK = 16
PARTIALS = 16
PIECE = 128  # elements of one register, and so of one reduction


class Reduction(IntEnum):
    """Reduction kinds by their instruction code."""

    SUM = 0
    MAX = 1
    MIN = 2
    SUMSQ = 3
    DOT = 4
    EXPSUM = 5
    ANY = 6
    ALL = 7


def reduce(
    kind: Reduction | int, a: np.ndarray, b: np.ndarray | None = None, *, exp2_wrap: bool = False
) -> tuple[int, np.ndarray | None]:
    """Reduce the active elements `a` (and `b` for SUMSQ and DOT, which are both the sum of a*b).

    `a`, `b` are uint32[n] E8M15 words, n = VL, a multiple of 16 up to 128. Returns (value, leaves): the word
    as an int, and for EXPSUM the exp2 of every element as uint32[n], else None. Raises `ValueError` for a
    length that is not whole chunks, or a kind that is not one of SUM..EXPSUM (see `vote` for the others).
    """
    count = len(a)
    if count % CHUNK or not 0 < count <= CHUNK * 8:
        raise ValueError(f"a reduction takes 16, 32, .. 128 elements, got {count}")
    leaves = None
    if kind in (Reduction.SUM, Reduction.MAX, Reduction.MIN):
        node, identity = _NODES[kind]
        values = node(a[0::2], a[1::2])
    elif kind in (Reduction.SUMSQ, Reduction.DOT):
        node, identity = alu.add, 0
        values = alu.multiply(a, b)
    elif kind == Reduction.EXPSUM:
        node, identity = alu.add, 0
        values = leaves = alu.exp2(a, wrap=exp2_wrap)
    else:
        raise ValueError(f"{kind!r} is not a reduction of values (expected 0..5)")
    # a beat has 8 leaves whatever the kind, so three levels give one total per beat
    for _ in range(3):
        values = node(values[0::2], values[1::2])
    partials = np.full(PARTIALS, identity, dtype=np.uint32)
    partials[: len(values)] = node(values, partials[: len(values)])
    while len(partials) > 1:
        partials = node(partials[0::2], partials[1::2])
    return int(partials[0]), leaves


def reduce_rows(kind: Reduction | int, a: np.ndarray) -> np.ndarray:
    """Reduce every row of `a`, uint32[rows, n] E8M15 words of any n >= 1, to uint32[rows]: SUM, MAX or MIN.

    A row is cut into pieces of 128; the last is extended to whole chunks with the identity. Each piece is reduced as
    `reduce` does, and the pieces' results are combined in order, the earlier one as `a`.
    """
    node, identity = _NODES[Reduction(kind)]

    def across(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        shape = left.shape
        return node(np.ascontiguousarray(left).reshape(-1), np.ascontiguousarray(right).reshape(-1)).reshape(shape)

    rows, count = a.shape
    found = None
    for first in range(0, count, PIECE):
        piece = a[:, first : first + PIECE]
        values = np.full((rows, -(-piece.shape[1] // CHUNK) * CHUNK), identity, np.uint32)
        values[:, : piece.shape[1]] = piece
        for _ in range(4):
            values = across(values[:, 0::2], values[:, 1::2])
        partials = np.full((rows, PARTIALS), identity, np.uint32)
        partials[:, : values.shape[1]] = across(values, partials[:, : values.shape[1]])
        while partials.shape[1] > 1:
            partials = across(partials[:, 0::2], partials[:, 1::2])
        found = partials[:, 0] if found is None else node(found, np.ascontiguousarray(partials[:, 0]))
    return found


def vote(kind: Reduction | int, predicate: np.ndarray) -> int:
    """ANY or ALL over the active predicate bits bool[n]: the word 1.0 or +0."""
    if kind == Reduction.ANY:
        return alu.ONE if predicate.any() else 0
    if kind == Reduction.ALL:
        return alu.ONE if predicate.all() else 0
    raise ValueError(f"{kind!r} is not a vote (expected ANY {Reduction.ANY:d} or ALL {Reduction.ALL:d})")


_NODES = {
    Reduction.SUM: (alu.add, 0),
    Reduction.MAX: (alu.maximum, alu.INFINITY | alu.SIGN),
    Reduction.MIN: (alu.minimum, alu.INFINITY),
}
