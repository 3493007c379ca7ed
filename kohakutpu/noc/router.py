"""The five-port router: input FIFO, holding register, output register (spec: router).

Timing is `docs/microarchitecture.md`, section "Router". A flit accepted in cycle t is in the holding
register from t + 2 on, may be granted from t + 2 on, and is valid at the next link one cycle after its
grant. The holding register loads when it is empty or in the cycle it is granted, so the FIFO head and
the register behave as one queue whose entry k asks for its output from max(accepted(k) + 2,
granted(k - 1) + 1) on. That is how it is modelled: one event per flit and hop.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum

from kohakutpu.isa.flit import Flit, type_name, xy
from kohakutpu.noc.engine import NEVER, Component, Engine, Link
from kohakutpu.wording import counted


class Port(IntEnum):
    """Arbitration order and port numbers."""

    NORTH = 0
    EAST = 1
    SOUTH = 2
    WEST = 3
    LOCAL = 4


class NocError(RuntimeError):
    """The network was asked for something its construction rules out."""


class RouteTable:
    """Where a router at (x, y) sends each of the 256 destinations of a grid clamped to 1..x_hi by 1..y_hi.

    `port[dst]` is the `Port` of a packed destination byte. `masked` holds the (input, output) pairs that
    dimension order rules out, for which the router has no wires.
    """

    def __init__(self, x: int, y: int, x_hi: int, y_hi: int):
        self.port = tuple(self._route(x, y, x_hi, y_hi, *xy(dst)) for dst in range(256))
        north, south, west, east = y > 1, y < y_hi, x > 1, x < x_hi  # is that neighbour a router?
        rules = [
            (Port.NORTH, Port.NORTH, north), (Port.NORTH, Port.WEST, north and west),
            (Port.NORTH, Port.EAST, north and east),
            (Port.SOUTH, Port.SOUTH, south), (Port.SOUTH, Port.WEST, south and west),
            (Port.SOUTH, Port.EAST, south and east),
            (Port.WEST, Port.WEST, west), (Port.EAST, Port.EAST, east),
        ]  # fmt: skip
        self.masked = frozenset((source, target) for source, target, holds in rules if holds)

    @staticmethod
    def _route(x: int, y: int, x_hi: int, y_hi: int, dx: int, dy: int) -> Port:
        cx, cy = min(max(dx, 1), x_hi), min(max(dy, 1), y_hi)
        if cx != x:
            return Port.WEST if cx < x else Port.EAST
        if cy != y:
            return Port.NORTH if cy < y else Port.SOUTH
        if dx != x:  # at the clamped router: one hop outward, columns before rows
            return Port.WEST if dx < x else Port.EAST
        if dy != y:
            return Port.NORTH if dy < y else Port.SOUTH
        return Port.LOCAL


class Input:
    """One input of a router: the sink of `link`, a queue of (output link, first cycle in the register, flit)."""

    __slots__ = ("router", "port", "depth", "link", "routes", "queue", "ready", "types")

    def __init__(self, router: Router, port: Port, depth: int):
        self.router = router
        self.port = port
        self.depth = depth
        self.link: Link | None = None
        self.routes: tuple[Link | None, ...] = ()
        self.queue: deque[tuple[Link, int, Flit]] = deque()
        self.ready = 0  # from when on the head asks for its output
        self.types = [0] * 16  # flits accepted, by type; kept on inputs that face an endpoint

    def accept(self, flit: Flit, now: int) -> bool:
        """Phase A: refuse when the FIFO held `depth` flits at the start of the cycle."""
        queue = self.queue
        if len(queue) > self.depth:  # the FIFO and one more in the holding register
            return False
        out = self.routes[flit[0]]
        if out is None:
            self.refuse(flit)
        ready = now + 2
        if not queue:
            self.ready = ready
            router = self.router
            if router.due > ready:
                router.engine.schedule(router, ready)
        queue.append((out, ready, flit))
        self.types[flit[2]] += 1
        return True

    def refuse(self, flit: Flit) -> None:
        router = self.router
        raise NocError(
            f"{router.name}: cycle {router.engine.now}: a {type_name(flit.type)} flit from {xy(flit.src)} to "
            f"{xy(flit.dst)} asks for the masked turn {self.port.name.lower()} to "
            f"{router.table.port[flit.dst].name.lower()}"
        )


class Router(Component):
    """Router at (x, y) of a grid clamped to (x_hi, y_hi); `depth` is the FIFO depth of each input.

    `outputs[port]` are its five output registers, named `<name>.east` and so on; `inputs[port]` the sinks of
    the links that lead here.
    """

    def __init__(self, engine: Engine, name: str, *, x: int, y: int, x_hi: int, y_hi: int, depth: int):
        super().__init__(engine, name)
        if depth < 2:
            raise ValueError(f"{name}: one flit a cycle needs a FIFO depth of at least 2, not {depth}")
        self.x, self.y = x, y
        self.table = RouteTable(x, y, x_hi, y_hi)
        self.outputs = [Link(engine, f"{name}.{port.name.lower()}", self) for port in Port]
        self.inputs = [Input(self, port, depth) for port in Port]
        for port, source in zip(Port, self.inputs, strict=True):
            source.routes = tuple(
                None if (port, target) in self.table.masked else self.outputs[target] for target in self.table.port
            )

    def step(self, now: int) -> int:
        following = NEVER
        requests = []
        for source in self.inputs:
            queue = source.queue
            if queue:
                ready = source.ready
                if ready > now:
                    if ready < following:
                        following = ready
                else:
                    out = queue[0][0]
                    if out.flit is None:
                        requests.append(source)
                    else:
                        out.wanted = True
        if len(requests) > 1:
            requests = self.arbitrate(requests, now)
        offered = self.engine.offered
        for source in requests:
            queue = source.queue
            out, _, flit = queue.popleft()
            out.flit = flit
            offered.append(out)
            if queue:
                ready = queue[0][1]
                if ready <= now:
                    ready = now + 1
                source.ready = ready
                if ready < following:
                    following = ready
                link = source.link
                if link.blocked:
                    link.blocked = False
                    offered.append(link)
        return following

    def arbitrate(self, requests: list[Input], now: int) -> list[Input]:
        """One winner for each output: the first at or after the pointer, which counts cycles modulo 5."""
        pointer = (now - self.engine.origin) % 5
        winners = {}
        for source in sorted(requests, key=lambda source: (source.port - pointer) % 5):
            out = source.queue[0][0]
            if out not in winners:
                winners[out] = source
            else:
                out.wanted = True
        return list(winners.values())

    def describe(self) -> list[str]:
        return [
            f"{self.name}.{source.port.name.lower()} in: {counted(len(source.queue), 'flit')} held, the first for "
            f"{xy(source.queue[0][2].dst)} by {source.queue[0][0].name}"
            for source in self.inputs
            if source.queue
        ]
