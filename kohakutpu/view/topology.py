"""Where the links of a trace begin and end: its names against the machine's description."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kohakutpu.isa.flit import node
from kohakutpu.machine import Machine
from kohakutpu.noc.trace_tracks import STEP

from . import ViewError


@dataclass(frozen=True)
class Place:
    """An endpoint: `kind` is 'memory', 'agent', 'cluster' or 'vector'; `router` serves it, at its place if local."""

    name: str
    kind: str
    x: int
    y: int
    router: tuple[int, int]

    @property
    def node(self) -> int:
        """The packed node byte."""
        return node(self.x, self.y)


@dataclass(frozen=True)
class Wire:
    """A link: the names of where it begins and where it ends, routers as `r21`; `sink` is None where it is tied off."""

    name: str
    source: str
    sink: str | None


class Topology:
    """Places and wires of `machine`, for the link names of a trace. Raises `ViewError` for a name it cannot place.

    `source` is what its errors name.
    """

    def __init__(self, machine: Machine, links: list[str], *, source: str = "the trace"):
        self.machine = machine
        self.source = source
        groups = [
            ("mag", "memory", machine.ports),
            ("cluster", "cluster", machine.clusters),
            ("vector", "vector", machine.vectors),
        ]
        self.places = [
            Place(f"{name}{index}", kind, site.x, site.y, machine.clamp(site.x, site.y))
            for name, kind, sites in groups
            for index, site in enumerate(sites)
        ]
        if machine.agent.own_endpoint:
            self.places.append(Place("agent", "agent", *machine.agent.xy, machine.clamp(*machine.agent.xy)))
        self.routers = [(x, y) for y in range(1, machine.ny + 1) for x in range(1, machine.nx + 1)]
        self._routers = {router_name(*at): at for at in self.routers}
        self._at = {(place.x, place.y): place for place in self.places}
        self.wires = [self._wire(name) for name in links]

    def _wire(self, name: str) -> Wire:
        source, _, port = name.rpartition(".")
        place = next((place for place in self.places if place.name == source), None)
        if place is not None and port == "out":
            return Wire(name, source, router_name(*place.router))
        if source in self._routers and port in STEP:
            (x, y), (dx, dy) = self._routers[source], STEP[port]
            if port != "local" and (x + dx, y + dy) in self.routers:
                return Wire(name, source, router_name(x + dx, y + dy))
            sink = self._at.get((x + dx, y + dy))
            return Wire(name, source, sink.name if sink else None)
        raise ViewError(f"{self.source}: link {name!r} is on no router and no endpoint of {self.machine.name}")

    def into(self, name: str) -> int:
        """The index of the link that leads to an endpoint."""
        return self._find(lambda wire: wire.sink == name, f"into {name}")

    def out_of(self, name: str) -> int:
        """The index of an endpoint's own link."""
        return self._find(lambda wire: wire.source == name, f"out of {name}")

    def _find(self, wanted: Callable[[Wire], bool], what: str) -> int:
        for index, wire in enumerate(self.wires):
            if wanted(wire):
                return index
        raise ViewError(f"{self.source} has no link {what}, which {self.machine.name} has")

    @property
    def agent_places(self) -> list[Place]:
        """Where the agent meets the mesh: an endpoint of its own, or every memory port."""
        kind = "agent" if self.machine.agent.own_endpoint else "memory"
        return [place for place in self.places if place.kind == kind]


def router_name(x: int, y: int) -> str:
    """A router as links and tracks name it."""
    return f"r{x:x}{y:x}"
