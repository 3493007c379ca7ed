"""The mesh router: five ports, clamped XY, one holding register an input, free-running round robin.

Timing: docs/microarchitecture.md, router. Three cycles from acceptance to a valid output.
"""

from __future__ import annotations

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .emit import shared
from .fifo import Fifo
from .link import FLIT, LinkSignature
from .parameters import known_fault, positive

PORTS = ("north", "east", "south", "west", "local")
NORTH, EAST, SOUTH, WEST, LOCAL = range(5)
GRID_MAX = 14  # the edge ring takes two of sixteen coordinates

FAULTS = {
    "wrong-clamp": "the column is clamped to one more than there are routers",
    "rows-first": "north and south are tried before west and east",
    "lost-hold": "an output register that is not taken is overwritten by the next grant",
    "stuck-pointer": "the round robin always starts at north",
    "dropped-last": "a flit that had to wait for its grant loses `last`",
}


def masked_turns(x: int, y: int, grid_x: int, grid_y: int) -> frozenset[tuple[int, int]]:
    """(input, output) pairs that dimension order rules out at (x, y): there are no wires for them."""
    north, south, west, east = y > 1, y < grid_y, x > 1, x < grid_x  # is that neighbour a router?
    masked = {(WEST, WEST)} if west else set()
    masked |= {(EAST, EAST)} if east else set()
    for inner, there in ((NORTH, north), (SOUTH, south)):
        if there:
            masked |= {(inner, inner)}
            masked |= {(inner, WEST)} if west else set()
            masked |= {(inner, EAST)} if east else set()
    return frozenset(masked)


class Router(wiring.Component):
    """Router at (`x`, `y`) of a grid of routers (1..`grid_x`, 1..`grid_y`); `fifo_depth` flits an input.

    Members: for each of north, east, south, west, local an `in_NAME` (link in) and an `out_NAME` (link out).
    """

    def __init__(self, *, x: int, y: int, grid_x: int, grid_y: int, fifo_depth: int, fault: str | None = None):
        positive("Router", x=x, y=y, grid_x=grid_x, grid_y=grid_y, fifo_depth=fifo_depth)
        if x > grid_x or y > grid_y or grid_x > GRID_MAX or grid_y > GRID_MAX:
            raise TypeError(f"Router ({x},{y}) does not lie in a {grid_x}x{grid_y} grid of at most {GRID_MAX}x{GRID_MAX}")
        if fifo_depth < 2:
            raise TypeError(f"Router fifo_depth must be at least 2 for one flit a cycle, not {fifo_depth}")
        self.x, self.y = x, y
        self.grid_x, self.grid_y = grid_x, grid_y
        self.fifo_depth = fifo_depth
        self.fault = known_fault("Router", fault, FAULTS)
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

        high_x = self.grid_x + (self.fault == "wrong-clamp")
        m.d.comb += [clamped_x.eq(clamp(dst_x, high_x)), clamped_y.eq(clamp(dst_y, self.grid_y))]
        columns = [(clamped_x < self.x, WEST), (clamped_x > self.x, EAST)]
        rows = [(clamped_y < self.y, NORTH), (clamped_y > self.y, SOUTH)]
        outward = [(dst_x < self.x, WEST), (dst_x > self.x, EAST), (dst_y < self.y, NORTH), (dst_y > self.y, SOUTH)]
        choices = [*rows, *columns, *outward] if self.fault == "rows-first" else [*columns, *rows, *outward]
        m.d.comb += request.eq(1 << LOCAL)
        # assigned last wins, so the first choice comes last
        for condition, port in reversed(choices):
            with m.If(condition):
                m.d.comb += request.eq(1 << port)
        return request

    def elaborate(self, platform):
        m = Module()
        masked = masked_turns(self.x, self.y, self.grid_x, self.grid_y)
        pointer = Signal(range(5))
        if self.fault != "stuck-pointer":
            m.d.sync += pointer.eq(Mux(pointer == 4, 0, pointer + 1))
        # What each input asks for, as seen in its holding register, and whether it is granted this cycle.
        asks = [Signal(5, name=f"ask_{port}") for port in PORTS]
        granted = [Signal(name=f"granted_{port}") for port in PORTS]
        held = [Signal(FLIT, name=f"held_{port}", reset_less=True) for port in PORTS]
        for index, port in enumerate(PORTS):
            link = getattr(self, f"in_{port}")
            fifo = shared(Fifo, width=FLIT.size, depth=self.fifo_depth)
            m.submodules[f"fifo_{port}"] = fifo
            head = Signal(FLIT, name=f"head_{port}")
            load = Signal(name=f"load_{port}")
            m.d.comb += [
                fifo.push.eq(link.valid),
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
            if self.fault == "dropped-last":
                with m.Elif(asks[index] != 0):
                    m.d.sync += held[index].last.eq(0)
        grants = []
        for output, port in enumerate(PORTS):
            link = getattr(self, f"out_{port}")
            inputs = [index for index in range(5) if (index, output) not in masked]
            free = Signal(name=f"free_{port}")
            wants = Signal(5, name=f"wants_{port}")
            winner = Signal(5, name=f"winner_{port}")
            grant = Signal(5, name=f"grant_{port}")
            m.d.comb += [
                free.eq(1 if self.fault == "lost-hold" else ~(link.valid & link.busy)),
                wants.eq(Cat(asks[i][output] if i in inputs else 0 for i in range(5))),
                grant.eq(winner & free.replicate(5)),
            ]
            # The first requester at or after the pointer wins; assigned last, it overrides those further on.
            for start in range(5):
                with m.If(pointer == start):
                    for step in reversed(range(5)):
                        candidate = (start + step) % 5
                        if candidate in inputs:
                            with m.If(wants[candidate]):
                                m.d.comb += winner.eq(1 << candidate)
            chosen = 0
            for i in inputs:
                chosen |= held[i].as_value() & winner[i].replicate(FLIT.size)
            with m.If(free):
                m.d.sync += [link.flit.eq(chosen), link.valid.eq(wants.any())]
            grants.append(grant)
        for index in range(5):
            m.d.comb += granted[index].eq(Cat(grant[index] for grant in grants).any())
        return m
