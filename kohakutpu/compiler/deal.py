"""Which unit runs which instance: the one rule that the compiler and the dispatcher share.

A fused drain names its receiver inside an instruction, so whoever dispatches must place the instances exactly as
the compiler assumed (spec: which vector core receives).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kohakutpu.wording import counted


class DealError(ValueError):
    """There is no unit to deal to."""


def deal(keys: Iterable[tuple[int, ...]], nodes: Sequence[int]) -> dict[tuple[int, ...], int]:
    """Each instance's node, round robin over `nodes` in the order of the sorted instance keys."""
    ordered = sorted(keys)
    if not nodes:
        raise DealError(f"{counted(len(ordered), 'instance')} and no unit to run them")
    return {key: nodes[position % len(nodes)] for position, key in enumerate(ordered)}


def deal_runs(ordered: Sequence[tuple[int, ...]], nodes: Sequence[int]) -> dict[int, list[tuple[int, ...]]]:
    """Each node's instances, in the order given: runs of neighbours whose lengths differ by at most one."""
    if not nodes:
        raise DealError(f"{counted(len(ordered), 'instance')} and no unit to run them")
    cuts = [-(-len(ordered) * n // len(nodes)) for n in range(len(nodes) + 1)]
    return {node: list(ordered[a:b]) for node, a, b in zip(nodes, cuts, cuts[1:], strict=False) if a < b}
