"""Where a flit ends, by its destination byte: coordinates outside the grid are clamped (spec: router)."""

from __future__ import annotations

from kohakutpu.isa.flit import node, xy
from kohakutpu.machine import Machine


def reached(machine: Machine) -> list[int | None]:
    """For each destination byte the node of the endpoint that gets the flit; None where it vanishes.

    Where the agent has no endpoint of its own, each memory port stands for itself: the agent is behind all of them.
    """
    sites = {site.node for site in (*machine.ports, *machine.units)} | (
        {machine.agent.node} if machine.agent.own_endpoint else set()
    )
    found = []
    for dst in range(256):
        dx, dy = xy(dst)
        x, y = min(max(dx, 1), machine.nx), min(max(dy, 1), machine.ny)
        if dx != x:  # one hop outward, columns before rows
            x += 1 if dx > x else -1
        elif dy != y:
            y += 1 if dy > y else -1
        at = node(x, y)
        found.append(at if at in sites else None)
    return found
