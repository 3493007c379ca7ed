"""The top of a block bench: a device under test with a register between Python and each of its links."""

from __future__ import annotations

from amaranth import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from rtl.link import FLIT, LinkSignature


def links_of(component: wiring.Component) -> tuple[list[tuple[str, object]], list[tuple[str, object]]]:
    """(name, interface) of the links into `component` and of those out of it, by name; arrays as `NAME_0`, ..."""
    found = {In: [], Out: []}
    for name, member in component.signature.members.items():
        if not (member.is_signature and isinstance(member.signature, LinkSignature)):
            continue
        value = getattr(component, name)
        if not member.dimensions:
            found[member.flow].append((name, value))
        elif len(member.dimensions) == 1:
            found[member.flow] += [(f"{name}_{index}", item) for index, item in enumerate(value)]
        else:
            raise TypeError(f"{name}: an array of links has one dimension, not {len(member.dimensions)}")
    return sorted(found[In], key=lambda item: item[0]), sorted(found[Out], key=lambda item: item[0])


class LinkTop(wiring.Component):
    """`dut` as a bench drives it: Python decides at the falling edge of a cycle what is true in the next.

    Source registers load their `NAME__next` when `next_valid` says so and they are free; sinks are busy in the cycle
    after `next_busy` said so. `status` is {arrived of each sink, taken of each source, valid of each source}, low bits
    last in that list, links by name, the first one lowest; `cycle` counts from 0 in the first cycle after reset. All
    other members of the DUT keep their names. Members named in `tie` (name -> value) are inputs held at that value.
    """

    def __init__(self, dut: wiring.Component, *, tie: dict[str, int] | None = None):
        self.dut = dut
        self.tie = tie or {}
        self.sources, self.sinks = links_of(dut)
        members = {
            "cycle": Out(32),
            "status": Out(max(1, 2 * len(self.sources) + len(self.sinks))),
            "next_valid": In(max(1, len(self.sources))),
            "next_busy": In(max(1, len(self.sinks))),
        }
        members |= {f"{name}__next": In(FLIT.size) for name, _ in self.sources}
        members |= {f"{name}__flit": Out(FLIT.size) for name, _ in self.sinks}
        self.passed = {}
        for name, member in dut.signature.members.items():
            if member.is_signature and isinstance(member.signature, LinkSignature) or name in self.tie:
                continue
            if name in members:
                raise TypeError(f"the device under test has a member {name!r}, which the bench's top needs for itself")
            self.passed[name] = member
        super().__init__(members | self.passed)

    def elaborate(self, platform):
        m = Module()
        m.submodules.dut = dut = self.dut
        m.d.sync += self.cycle.eq(self.cycle + 1)
        valid, taken, arrived = [], [], []
        for index, (name, link) in enumerate(self.sources):
            held = Signal(name=f"{name}__valid")
            flit = Signal(FLIT, name=f"{name}__held")
            valid.append(held)
            taken.append(held & ~link.busy)
            m.d.comb += [link.valid.eq(held), link.flit.eq(flit)]
            with m.If(~held | ~link.busy):
                m.d.sync += [held.eq(self.next_valid[index]), flit.eq(getattr(self, f"{name}__next"))]
        for index, (name, link) in enumerate(self.sinks):
            # not cleared by reset: what Python says during reset holds in cycle 0
            busy = Signal(name=f"{name}__busy", reset_less=True)
            m.d.sync += busy.eq(self.next_busy[index])
            m.d.comb += [link.busy.eq(busy), getattr(self, f"{name}__flit").eq(link.flit)]
            arrived.append(link.valid & ~busy)
        m.d.comb += self.status.eq(Cat(*valid, *taken, *arrived))
        for name, value in self.tie.items():
            m.d.comb += getattr(dut, name).eq(value)
        for name, member in self.passed.items():
            mine, theirs = getattr(self, name), getattr(dut, name)
            if member.is_signature:
                wiring.connect(m, wiring.flipped(mine), theirs)
            elif member.flow is In:
                m.d.comb += theirs.eq(mine)
            else:
                m.d.comb += mine.eq(theirs)
        return m
