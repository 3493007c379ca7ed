"""Rows that statements over whole buffers read and write: what is written already, and what must not meet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kohakutpu.lang.source import Source
from kohakutpu.lang.trace import BufferLeaf

from .refusals import CompileError


def gap(spans: Sequence[tuple[int, int]], first: int, end: int) -> int | None:
    """The first element of [first, end) that is in none of `spans`."""
    at = first
    for begin, stop in sorted(spans):
        if begin > at:
            break
        at = max(at, stop)
    return at if at < end else None


def require_apart(
    target: BufferLeaf, leaves: Sequence[BufferLeaf], span: Callable[[BufferLeaf], tuple[int, int]], source: Source
) -> None:
    """Refuse a statement that reads rows which it writes elsewhere: its instances run in any order.

    All leaves are settled; `span` gives the elements of one.
    """
    first, end = span(target)
    for leaf in leaves:
        begin, stop = span(leaf)
        same = leaf == target or ((begin, stop) == (first, end) and _in_order(leaf, target))
        if leaf.buffer == target.buffer and not same and begin < end and first < stop:
            raise CompileError(
                f"{leaf.text()} is read and {target.text()} written, which have elements in common at other rows; instances "
                "do not wait for each other: write to another temp",
                source,
            )


def _in_order(leaf: BufferLeaf, target: BufferLeaf) -> bool:
    """Two names for the same elements, of operands that make one shape: a buffer and all of its rows, say."""
    views = [view for view in (leaf.view, target.view) if view is not None]
    return len({view.width for view in views}) < 2 and all(view.group == 1 and not view.repeats for view in views)


def boxes(shape: Sequence[int], first: int, end: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Elements [first, end) of a row-major array as boxes: (lowest index, highest index + 1) by axis."""
    if len(shape) == 1:
        yield (first,), (end,)
        return
    inner = 1
    for extent in shape[1:]:
        inner *= extent
    at = first
    while at < end:
        row, column = divmod(at, inner)
        whole = (end - at) // inner
        if column == 0 and whole:
            yield (row, *(0 for _ in shape[1:])), (row + whole, *shape[1:])
            at += whole * inner
            continue
        stop = min(end, (row + 1) * inner)
        for low, high in boxes(shape[1:], column, column + stop - at):
            yield (row, *low), (row + 1, *high)
        at = stop
