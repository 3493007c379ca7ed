"""The mesh of a machine: routers, links, and what stands on their outer ports (spec: coordinates).

Link names are those of their senders' output registers: `r21.east` for a router's (hexadecimal digits, so
that two always suffice), `mag0.out`, `cluster0.out`, `vector3.out`, `agent.out` for an endpoint's.
"""

from __future__ import annotations

from dataclasses import dataclass

from kohakutpu.isa.flit import Flit, FlitType, xy
from kohakutpu.machine import Machine
from kohakutpu.noc.engine import Engine, Link
from kohakutpu.noc.router import NocError, Port, Router

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
            f"empty site ({self.x},{self.y}): {self.count} flits vanished, the last a {FlitType(flit.type).name} from "
            f"{xy(flit.src)} to {xy(flit.dst)}"
        ]


@dataclass(frozen=True)
class Traffic:
    """What moved on a mesh since reset.

    `sent[node][type]` counts the flits that an endpoint put on its link and the mesh accepted; `hops` counts
    accepted flits over all links, the last one into an endpoint included.
    """

    sent: dict[int, dict[FlitType, int]]
    hops: int
    vanished: int

    @property
    def by_type(self) -> dict[FlitType, int]:
        total: dict[FlitType, int] = {}
        for counts in self.sent.values():
            for kind, count in counts.items():
                total[kind] = total.get(kind, 0) + count
        return dict(sorted(total.items()))


class Mesh:
    """The routers of `machine` and the links between them.

    `attach` joins an endpoint: an object with `out` (its `Link`), `accept` and `in_link`, which is set to
    the link that leads to it. Sites that nothing is attached to are empty.
    """

    def __init__(self, engine: Engine, machine: Machine):
        self.engine = engine
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
        endpoint.out.sink, source.link = source, endpoint.out
        self.endpoints[at] = (router, port)

    def traffic(self) -> Traffic:
        """Counts since the mesh was made."""
        sent = {}
        for at, (router, port) in sorted(self.endpoints.items()):
            counts = router.inputs[port].types
            sent[at] = {kind: counts[kind] for kind in FlitType if counts[kind]}
        hops = sum(link.count for link in self.engine.links)
        return Traffic(sent, hops, sum(site.count for site in self.empty))

    def describe(self) -> list[str]:
        """Held flits and vanished ones, for a hang report."""
        lines = [line for router in self.routers.values() for line in router.describe()]
        return lines + [line for site in self.empty for line in site.describe()]


