"""The mesh router: five ports, clamped XY, one holding register an input, free-running round robin.

Timing: docs/microarchitecture.md, router. Three cycles from acceptance to a valid output.
"""

from __future__ import annotations

from amaranth import Array, Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .fifo import Fifo
from .link import FLIT, LinkSignature

PORTS = ("north", "east", "south", "west", "local")
NORTH, EAST, SOUTH, WEST, LOCAL = range(5)


class Router(wiring.Component):
    """Router at (`x`, `y`) of a grid of routers (1..`grid_x`, 1..`grid_y`); `fifo_depth` flits an input.

    Members: for each of north, east, south, west, local an `in_NAME` (link in) and an `out_NAME` (link out).
    """

    def __init__(self, *, x: int, y: int, grid_x: int, grid_y: int, fifo_depth: int):
        for name, value in (("x", x), ("y", y), ("grid_x", grid_x), ("grid_y", grid_y), ("fifo_depth", fifo_depth)):
            if not isinstance(value, int) or value < 1:
                raise TypeError(f"Router {name} must be a positive integer, not {value!r}")
        if x > grid_x or y > grid_y or grid_x > 14 or grid_y > 14:
            raise TypeError(f"Router ({x},{y}) does not lie in a {grid_x}x{grid_y} grid of at most 14x14")
        self.x, self.y = x, y
        self.grid_x, self.grid_y = grid_x, grid_y
        self.fifo_depth = fifo_depth
        members = {}
        for port in PORTS:
            members[f"in_{port}"] = In(LinkSignature())
            members[f"out_{port}"] = Out(LinkSignature())
        super().__init__(members)

    def route(self, m: Module, dst_x, dst_y, name: str) -> Signal:
        """One-hot request of a destination: clamp into the grid, X first, then the outward hop."""
        clamped_x = Signal(4, name=f"{name}_clamped_x")
        clamped_y = Signal(4, name=f"{name}_clamped_y")
        request = Signal(5, name=f"{name}_route")

        def clamp(value, high):
            return Mux(value < 1, 1, Mux(value > high, high, value))

        m.d.comb += [clamped_x.eq(clamp(dst_x, self.grid_x)), clamped_y.eq(clamp(dst_y, self.grid_y))]
        with m.If(clamped_x < self.x):
            m.d.comb += request.eq(1 << WEST)
        with m.Elif(clamped_x > self.x):
            m.d.comb += request.eq(1 << EAST)
        with m.Elif(clamped_y < self.y):
            m.d.comb += request.eq(1 << NORTH)
        with m.Elif(clamped_y > self.y):
            m.d.comb += request.eq(1 << SOUTH)
        with m.Elif(dst_x < self.x):
            m.d.comb += request.eq(1 << WEST)
        with m.Elif(dst_x > self.x):
            m.d.comb += request.eq(1 << EAST)
        with m.Elif(dst_y < self.y):
            m.d.comb += request.eq(1 << NORTH)
        with m.Elif(dst_y > self.y):
            m.d.comb += request.eq(1 << SOUTH)
        with m.Else():
            m.d.comb += request.eq(1 << LOCAL)
        return request

    def elaborate(self, platform):
        m = Module()
        pointer = Signal(range(5))
        m.d.sync += pointer.eq(Mux(pointer == 4, 0, pointer + 1))
        # What each input asks for, as seen in its holding register, and whether it is granted this cycle.
        asks = [Signal(5, name=f"ask_{port}") for port in PORTS]
        granted = [Signal(name=f"granted_{port}") for port in PORTS]
        held = [Signal(FLIT, name=f"held_{port}") for port in PORTS]
        for index, port in enumerate(PORTS):
            link = getattr(self, f"in_{port}")
            fifo = Fifo(width=FLIT.size, depth=self.fifo_depth)
            m.submodules[f"fifo_{port}"] = fifo
            head = Signal(FLIT, name=f"head_{port}")
            load = Signal(name=f"load_{port}")
            m.d.comb += [
                fifo.push.eq(link.valid & ~fifo.full),
                fifo.push_data.eq(link.flit),
                link.busy.eq(fifo.full),
                head.eq(fifo.head),
                load.eq(fifo.valid & ((asks[index] == 0) | granted[index])),
                fifo.pop.eq(load),
            ]
            route = self.route(m, head.dst_x, head.dst_y, port)
            with m.If(load):
                m.d.sync += [held[index].eq(head), asks[index].eq(route)]
            with m.Elif(granted[index]):
                m.d.sync += asks[index].eq(0)
        grants = []
        for output, port in enumerate(PORTS):
            link = getattr(self, f"out_{port}")
            free = Signal(name=f"free_{port}")
            wants = Signal(5, name=f"wants_{port}")
            winner = Signal(range(5), name=f"winner_{port}")
            m.d.comb += [
                free.eq(~(link.valid & link.busy)),
                wants.eq(Cat(asks[i][output] for i in range(5))),
            ]
            # The first requester at or after the pointer wins; assigned last, it overrides those further on.
            for start in range(5):
                with m.If(pointer == start):
                    for step in reversed(range(5)):
                        candidate = (start + step) % 5
                        with m.If(wants[candidate]):
                            m.d.comb += winner.eq(candidate)
            grant = Signal(5, name=f"grant_{port}")
            with m.If(free & wants.any()):
                m.d.comb += grant.eq(1 << winner)
                m.d.sync += [link.flit.eq(Array(held)[winner]), link.valid.eq(1)]
            with m.Elif(free):
                m.d.sync += link.valid.eq(0)
            grants.append(grant)
        for index in range(5):
            m.d.comb += granted[index].eq(Cat(grant[index] for grant in grants).any())
        return m
