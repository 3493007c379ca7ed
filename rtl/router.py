"""The mesh router: five ports, clamped XY, one holding register an input, free-running round robin.

Timing: docs/microarchitecture.md, router. Three cycles from acceptance to a valid output.
"""

from __future__ import annotations

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
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


class InputStage(wiring.Component):
    """An input's FIFO and its holding register.

    Members: `link`; `head_x` and `head_y`, the destination at the FIFO's head, and `route`, its one-hot output; `ask`
    and `held`, what the holding register asks for (0 when empty) and its flit; `granted` in.
    """

    APART = True

    def __init__(self, *, depth: int, fault: str | None = None):
        self.depth = depth
        self.fault = fault
        super().__init__(
            {
                "link": In(LinkSignature()),
                "head_x": Out(4),
                "head_y": Out(4),
                "route": In(5),
                "ask": Out(5),
                "held": Out(FLIT),
                "granted": In(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.fifo = fifo = Fifo(width=FLIT.size, depth=self.depth)
        head = data.View(FLIT, fifo.head)
        load = Signal()
        m.d.comb += [
            fifo.push.eq(self.link.valid),
            fifo.push_data.eq(self.link.flit),
            self.link.busy.eq(fifo.full),
            self.head_x.eq(head.dst_x),
            self.head_y.eq(head.dst_y),
            load.eq(fifo.valid & ((self.ask == 0) | self.granted)),
            fifo.pop.eq(load),
        ]
        with m.If(load):
            m.d.sync += [self.held.eq(head), self.ask.eq(self.route)]
        with m.Elif(self.granted):
            m.d.sync += self.ask.eq(0)
        if self.fault == "dropped-last":
            with m.Elif(self.ask != 0):
                m.d.sync += self.held.last.eq(0)
        return m


class OutputStage(wiring.Component):
    """An output's arbiter and register, for the inputs (by port number) that have wires to it.

    Members: `link`; `pointer`, the first port in turn; `ask` and `held` of each input; `grant`, one-hot.
    """

    APART = True

    def __init__(self, *, inputs: tuple[int, ...], fault: str | None = None):
        self.inputs = inputs
        self.fault = fault
        super().__init__(
            {
                "link": Out(LinkSignature()),
                "pointer": In(range(5)),
                "ask": In(len(inputs)),
                "held": In(FLIT).array(len(inputs)),
                "grant": Out(len(inputs)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        link = self.link
        free = Signal()
        winner = Signal(len(self.inputs))
        m.d.comb += [
            free.eq(1 if self.fault == "lost-hold" else ~(link.valid & link.busy)),
            self.grant.eq(winner & free.replicate(len(self.inputs))),
        ]
        # The first requester at or after the pointer wins; assigned last, it overrides those further on.
        for start in range(5):
            with m.If(self.pointer == start):
                for index, _ in sorted(enumerate(self.inputs), key=lambda item: (item[1] - start) % 5, reverse=True):
                    with m.If(self.ask[index]):
                        m.d.comb += winner.eq(1 << index)
        with m.If(free):
            m.d.sync += link.valid.eq(self.ask.any())
            with m.Switch(winner):
                for index, flit in enumerate(self.held):
                    with m.Case(1 << index):
                        m.d.sync += link.flit.eq(flit)
        return m


class Router(wiring.Component):
    """Router at (`x`, `y`) of a grid of routers (1..`grid_x`, 1..`grid_y`); `fifo_depth` flits an input.

    Members: for each of north, east, south, west, local an `in_NAME` (link in) and an `out_NAME` (link out).
    """

    def __init__(self, *, x: int, y: int, grid_x: int, grid_y: int, fifo_depth: int, fault: str | None = None):
        positive("Router", x=x, y=y, grid_x=grid_x, grid_y=grid_y, fifo_depth=fifo_depth)
        if x > grid_x or y > grid_y or grid_x > GRID_MAX or grid_y > GRID_MAX:
            raise TypeError(
                f"Router ({x},{y}) does not lie in a {grid_x}x{grid_y} grid of at most {GRID_MAX}x{GRID_MAX}"
            )
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
        # The stages know nothing of a router's place, so that one module of each kind serves all routers.
        sources = []
        for port in PORTS:
            fault = self.fault if self.fault == "dropped-last" else None
            m.submodules[f"input_{port}"] = stage = shared(InputStage, depth=self.fifo_depth, fault=fault)
            wiring.connect(m, wiring.flipped(getattr(self, f"in_{port}")), stage.link)
            m.d.comb += stage.route.eq(self.route(m, stage.head_x, stage.head_y, port))
            sources.append(stage)
        grants = [[] for _ in PORTS]
        for output, port in enumerate(PORTS):
            inputs = tuple(index for index in range(5) if (index, output) not in masked)
            fault = self.fault if self.fault == "lost-hold" else None
            m.submodules[f"output_{port}"] = stage = shared(OutputStage, inputs=inputs, fault=fault)
            wiring.connect(m, stage.link, wiring.flipped(getattr(self, f"out_{port}")))
            m.d.comb += stage.pointer.eq(pointer)
            for position, index in enumerate(inputs):
                m.d.comb += [
                    stage.ask[position].eq(sources[index].ask[output]),
                    stage.held[position].eq(sources[index].held),
                ]
                grants[index].append(stage.grant[position])
        for source, grant in zip(sources, grants, strict=True):
            m.d.comb += source.granted.eq(Cat(*grant).any())
        return m
