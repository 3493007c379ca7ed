"""The mesh of a machine: routers, links, and what stands on their outer ports (spec: coordinates).

Link names are those of their senders' output registers: `r21.east` for a router's (hexadecimal digits, so
that two always suffice), `mag0.out`, `cluster0.out`, `vector3.out`, `agent.out` for an endpoint's.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from kohakutpu.isa.flit import Flit, type_name, xy
from kohakutpu.machine import Machine
from kohakutpu.noc.engine import Engine
from kohakutpu.noc.router import NocError, Port, Router
from kohakutpu.noc.tamper import FAULTS, Tamper
from kohakutpu.wording import counted

STEP = {Port.NORTH: (0, -1), Port.EAST: (1, 0), Port.SOUTH: (0, 1), Port.WEST: (-1, 0), Port.LOCAL: (0, 0)}
OPPOSITE = {Port.NORTH: Port.SOUTH, Port.SOUTH: Port.NORTH, Port.EAST: Port.WEST, Port.WEST: Port.EAST,
            Port.LOCAL: Port.LOCAL}  # fmt: skip


class EmptySite:
    """A port that is tied off: it is never busy, and what is sent to it is gone. `count` says how much that was."""

    def __init__(self, x: int, y: int):
        self.x, self.y = x, y
        self.count = 0
        self.last: Flit | None = None

    def accept(self, flit: Flit, now: int) -> bool:
        self.count += 1
        self.last = flit
        return True

    def describe(self) -> list[str]:
        if not self.count:
            return []
        flit = self.last
        return [
            f"empty site ({self.x},{self.y}): {counted(self.count, 'flit')} vanished, the last a "
            f"{type_name(flit.type)} from "
            f"{xy(flit.src)} to {xy(flit.dst)}"
        ]


@dataclass(frozen=True)
class Traffic:
    """What moved on a mesh since reset.

    `sent[node][type]` counts the flits that an endpoint put on its link and the mesh accepted; `hops` counts
    accepted flits over all links, the last one into an endpoint included; `vanished` those sent to empty sites.
    """

    sent: dict[int, dict[int, int]]
    hops: int
    vanished: int

    @property
    def by_type(self) -> dict[int, int]:
        total: Counter[int] = Counter()
        for counts in self.sent.values():
            total.update(counts)
        return dict(sorted(total.items()))


class Mesh:
    """The routers of `machine` and the links between them.

    `attach` joins an endpoint: an object with `out` (its `Link`), `accept` and `in_link`, which is set to
    the link that leads to it. Sites that nothing is attached to are empty. `faults` names entries of
    `noc.tamper.FAULTS`.
    """

    def __init__(self, engine: Engine, machine: Machine, faults: frozenset[str] = frozenset()):
        self.engine = engine
        self.faults = faults & FAULTS.keys()
        self.routers: dict[tuple[int, int], Router] = {}
        self.endpoints: dict[int, tuple[Router, Port]] = {}
        self.empty: list[EmptySite] = []
        for y in range(1, machine.ny + 1):
            for x in range(1, machine.nx + 1):
                self.routers[x, y] = Router(
                    engine, f"r{x:x}{y:x}", x=x, y=y, x_hi=machine.nx, y_hi=machine.ny, depth=machine.fifo_depth
                )
        for (x, y), router in self.routers.items():
            for port, (dx, dy) in STEP.items():
                link = router.outputs[port]
                neighbour = self.routers.get((x + dx, y + dy)) if port != Port.LOCAL else None
                if neighbour is None:
                    link.sink = site = EmptySite(x + dx, y + dy)
                    self.empty.append(site)
                else:
                    source = neighbour.inputs[OPPOSITE[port]]
                    link.sink, source.link = source, link

    def attach(self, endpoint, at: int) -> None:
        """Join `endpoint` to the site of the packed coordinate `at`; refuses corners, the outside and taken sites."""
        x, y = xy(at)
        for port, (dx, dy) in STEP.items():
            router = self.routers.get((x - dx, y - dy))
            if router is not None and (port == Port.LOCAL or (x, y) not in self.routers):
                break
        else:
            raise NocError(f"{endpoint.out.name} at ({x},{y}): no router has a port there")
        link, source = router.outputs[port], router.inputs[port]
        if not isinstance(link.sink, EmptySite):
            raise NocError(f"{endpoint.out.name} at ({x},{y}): the site already holds {link.sink}")
        self.empty.remove(link.sink)
        link.sink, endpoint.in_link = endpoint, link
        endpoint.out.sink = Tamper(source, self.faults) if self.faults else source
        source.link = endpoint.out
        self.endpoints[at] = (router, port)

    def traffic(self) -> Traffic:
        """Counts since the mesh was made."""
        sent = {}
        for at, (router, port) in sorted(self.endpoints.items()):
            counts = router.inputs[port].types
            sent[at] = {kind: count for kind, count in enumerate(counts) if count}
        hops = sum(link.count for link in self.engine.links)
        return Traffic(sent, hops, sum(site.count for site in self.empty))

    def describe(self) -> list[str]:
        """Held flits and vanished ones, for a hang report."""
        lines = [line for router in self.routers.values() for line in router.describe()]
        return lines + [line for site in self.empty for line in site.describe()]


