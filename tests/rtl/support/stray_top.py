"""A memory port without an agent, its engine's side as links."""

from __future__ import annotations

from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from rtl.agent import STRAY_BITS, AgentPort
from rtl.link import LinkSignature


class StrayTop(wiring.Component):
    """Members: `in_link`, `out_link`, `memory` and `response` (links to and from the engine), `strays`."""

    def __init__(self, *, fault: str | None = None):
        self.port = AgentPort(agent=False, memory=True, fault=fault)
        link = LinkSignature()
        super().__init__(
            {
                "in_link": In(link),
                "out_link": Out(link),
                "memory": Out(link),
                "response": In(link),
                "strays": Out(STRAY_BITS),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.port = port = self.port
        wiring.connect(m, wiring.flipped(self.in_link), port.in_link)
        wiring.connect(m, port.out_link, wiring.flipped(self.out_link))
        wiring.connect(m, port.memory, wiring.flipped(self.memory))
        m.d.comb += [
            port.response.eq(self.response.flit),
            port.response_valid.eq(self.response.valid),
            self.response.busy.eq(~port.response_ready),
            self.strays.eq(port.strays),
        ]
        return m
