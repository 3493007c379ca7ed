"""The statements of one instance of a tiling, in order, with every loop unrolled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kohakutpu.lang.extents import resolve
from kohakutpu.lang.trace import Assign, Contract, Loop, Open, SliceLeaf, Statement, Store, TileLeaf

Place = tuple[int, ...]


@dataclass(frozen=True)
class Event:
    """A statement of one instance with every index bound; accumulators by the number of their opening.

    `path` has, for every body around the statement, its position there, and between two of them the turn of the loop: the
    events of an instance are in the order of their paths, and statements of equal paths stand in the same turns of all
    loops.
    """

    statement: Statement
    known: dict[str, int]
    opened: dict[str, int]
    path: Place

    def accumulator(self, name: str) -> tuple[str, int]:
        return name, self.opened[name]


def events(body, known: dict[str, int], opened: dict[str, int] | None = None, path: Place = ()) -> Iterator[Event]:
    """The events of a body. `opened` counts the openings of each accumulator."""
    opened = {} if opened is None else opened
    for position, node in enumerate(body):
        if isinstance(node, Loop):
            for value in range(resolve(node.count, known)):
                yield from events(node.body, known | {node.index.name: value}, opened, (*path, position, value))
        else:
            if isinstance(node, Open):
                opened[node.accumulator] = opened.get(node.accumulator, 0) + 1
            yield Event(node, known, dict(opened), (*path, position))


def flatten(body) -> Iterator[Statement]:
    """The statements of a body, each once."""
    for node in body:
        if isinstance(node, Loop):
            yield from flatten(node.body)
        else:
            yield node


def reads(statement: Statement) -> list[str]:
    """The buffers that a statement of a tiling reads."""
    if isinstance(statement, Contract):
        return [statement.a.buffer, statement.b.buffer]
    if isinstance(statement, Store):
        return [leaf.slice.buffer for leaf in statement.expression.leaves if isinstance(leaf, SliceLeaf)]
    return []


def writes(statement: Statement) -> str | None:
    """The buffer that a statement writes."""
    if isinstance(statement, Store):
        return statement.target.buffer
    return statement.target if isinstance(statement, Assign) else None


def accumulators(statement: Statement) -> list[str]:
    """The accumulators that a store takes its value from."""
    if not isinstance(statement, Store):
        return []
    return [leaf.accumulator for leaf in statement.expression.leaves if isinstance(leaf, TileLeaf)]
