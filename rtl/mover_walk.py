"""One address walker of the memory mover: up to six dimensions, and the positions on two axes that bound it.

Timing: docs/microarchitecture/memory-agent.md, memory mover.
"""

from __future__ import annotations

from amaranth import Array, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from kohakutpu.isa import registers as reg

from .link import view
from .memory_issue import ADDRESS_BITS
from .parameters import known_fault

DIMS = 6
AXES = (1, 2)  # the tags of the two axes
POSITION_BITS = 36  # signed: a base of 16 bits and six products of 16 bits each

FAULTS = {
    "walker-stride-unsigned": "strides are taken as positive",
    "walker-wrong-stride": "the outermost dimension steps by the stride of the next one",
    "walker-runs-on": "after its last element a walker goes on instead of starting over",
    "walker-axis-unsigned": "a position before the start of an axis counts as inside",
    "walker-count-zero": "a count of 0 is 65536 steps, not one",
}


def _width(layout, name: str) -> int:
    return layout.fields[name].width


COUNT_BITS, STRIDE_BITS = _width(reg.MV_DIM, "count"), _width(reg.MV_DIM, "stride")
STEP_BITS, EXTENT_BITS = _width(reg.MV_AXIS, "step"), _width(reg.MV_BOUNDS, "extent")


class Walker(wiring.Component):
    """Registers of one walker, and the element that it stands at.

    Members: `header`, `dimension` and `bounds` load the registers from the data beside them. `start` puts the walker at
    its first element as the registers stand, `step` moves it on, from the last one to the first. `base` and `dims` are
    the header's; `address`, the element's byte address modulo 2^40; `inside`, both axes' bounds hold there; `final`, no
    other comes before the first again.
    """

    def __init__(self, *, fault: str | None = None):
        self.fault = known_fault("Walker", fault, FAULTS)
        super().__init__(
            {
                "header": In(1),
                "header_data": In(view(reg.MV_WALKER)),
                "dimension": In(1),
                "dim_data": In(view(reg.MV_DIM)),
                "axis_data": In(view(reg.MV_AXIS)),
                "bounds": In(1),
                "bounds_data": In(view(reg.MV_BOUNDS)),
                "start": In(1),
                "step": In(1),
                "base": Out(ADDRESS_BITS),
                "dims": Out(_width(reg.MV_WALKER, "dims")),
                "address": Out(ADDRESS_BITS),
                "inside": Out(1),
                "final": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        number = range(DIMS)
        stride_shape = STRIDE_BITS if self.fault == "walker-stride-unsigned" else signed(STRIDE_BITS)
        more = [Signal(COUNT_BITS, name=f"more_{d}") for d in number]  # steps of a dimension behind its first place
        stride = [Signal(stride_shape, name=f"stride_{d}") for d in number]
        axis = [Signal(_width(reg.MV_AXIS, "axis"), name=f"axis_{d}") for d in number]
        step = [Signal(signed(STEP_BITS), name=f"step_{d}") for d in number]
        axis_base = [Signal(signed(STEP_BITS), name=f"axis_base_{a}") for a in AXES]
        extent = [Signal(EXTENT_BITS, name=f"extent_{a}") for a in AXES]
        with m.If(self.header):
            m.d.sync += [self.base.eq(self.header_data.base), self.dims.eq(self.header_data.dims)]
        count = self.dim_data.count
        zero = (count == 0) & (self.fault != "walker-count-zero")
        for d in number:
            with m.If(self.dimension & (self.dim_data.dim == d)):
                m.d.sync += [
                    more[d].eq(Mux(zero, 0, count - 1)), stride[d].eq(self.dim_data.stride),
                    axis[d].eq(self.axis_data.axis), step[d].eq(self.axis_data.step),
                ]  # fmt: skip
        for which in range(len(AXES)):
            with m.If(self.bounds & (self.bounds_data.axis == which)):
                m.d.sync += [axis_base[which].eq(self.bounds_data.base), extent[which].eq(self.bounds_data.extent)]

        # Of each dimension, where its present step began: the innermost one is where the walker stands.
        begun = [Signal(ADDRESS_BITS, name=f"begun_{d}") for d in number]
        places = [[Signal(signed(POSITION_BITS), name=f"place_{a}_{d}") for d in number] for a in AXES]
        left = [Signal(COUNT_BITS, name=f"left_{d}") for d in number]
        ended = [Signal(name=f"ended_{d}") for d in number]  # `left` is 0
        over = [Signal(name=f"over_{d}") for d in number]  # nothing is left of this dimension and those inside it
        steps = [Signal(name=f"steps_{d}") for d in number]  # the one that moves on
        for d in reversed(number):
            inner = over[d + 1] if d + 1 < DIMS else 1
            done = ended[d] | (d >= self.dims)
            m.d.comb += [over[d].eq(done & inner), steps[d].eq(~done & inner)]
        restart = self.start | (self.step & over[0] & (self.fault != "walker-runs-on"))

        chosen = Signal(range(DIMS))
        for d in number:
            with m.If(steps[d]):
                m.d.comb += chosen.eq(d)
        moved = Signal(ADDRESS_BITS)
        if self.fault == "walker-wrong-stride":
            stride[0] = stride[1]
        m.d.comb += moved.eq(Mux(restart, self.base, Array(begun)[chosen] + Array(stride)[chosen]))
        moved_places = []
        for which, tag in enumerate(AXES):
            place = Signal(signed(POSITION_BITS), name=f"moved_{tag}")
            along = Array(Mux(axis[d] == tag, step[d], 0) for d in number)[chosen]
            m.d.comb += place.eq(Mux(restart, axis_base[which], Array(places[which])[chosen] + along))
            moved_places.append(place)
        with m.If(self.start | self.step):
            for d in number:
                with m.If(restart | (chosen <= d)):
                    m.d.sync += [begun[d].eq(moved), *(p[d].eq(to) for p, to in zip(places, moved_places))]
                with m.If(restart | (chosen < d)):
                    m.d.sync += [left[d].eq(more[d]), ended[d].eq(more[d] == 0)]
                with m.Elif(chosen == d):
                    m.d.sync += [left[d].eq(left[d] - 1), ended[d].eq(left[d] == 1)]

        inside = []
        for which in range(len(AXES)):
            at = places[which][-1]
            after_start = (at >= 0) | (self.fault == "walker-axis-unsigned")
            inside.append((extent[which] == 0) | (after_start & (at < extent[which])))
        m.d.comb += [self.address.eq(begun[-1]), self.final.eq(over[0]), self.inside.eq(inside[0] & inside[1])]
        return m
