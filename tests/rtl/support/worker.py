"""A unit for endpoint benches: works as long as an instruction says. The RTL twin of the model tests' worker."""

from __future__ import annotations

from amaranth import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from rtl.emit import shared
from rtl.endpoint import EndpointBase
from rtl.fifo import Fifo
from rtl.link import FLIT, LinkSignature

WORK_BITS = 16


class Worker(wiring.Component):
    """Takes payload[15:0] cycles an instruction, with payload[63:32] as result and payload[16] as fault.

    What it receives it sends back to the flit's source with source and destination exchanged, when it `eats`; its debug
    word is the number of flits it has received. Parameters are those of `EndpointBase`.
    """

    def __init__(self, **parameters):
        self.base = EndpointBase(**parameters)
        super().__init__({"in_link": In(LinkSignature()), "out_link": Out(LinkSignature()), "eats": In(1)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.base = base = self.base
        wiring.connect(m, wiring.flipped(self.in_link), base.in_link)
        wiring.connect(m, base.out_link, wiring.flipped(self.out_link))
        left = Signal(WORK_BITS)
        working = Signal()
        result = Signal(32)
        fail = Signal()
        m.d.comb += [base.inst_take.eq(base.inst_valid & ~working), base.result.eq(result), base.fault.eq(fail)]
        with m.If(working):
            m.d.sync += left.eq(left - 1)
            with m.If(left == 1):
                m.d.comb += base.done.eq(1)
                m.d.sync += working.eq(0)
        with m.If(base.inst_take):
            payload = base.inst.payload
            m.d.sync += [working.eq(1), left.eq(payload[:WORK_BITS]), fail.eq(payload[16]), result.eq(payload[32:64])]
        # received flits go back through a queue of two
        m.submodules.echo = echo = shared(Fifo, width=FLIT.size, depth=2)
        back = Signal(FLIT)
        eaten = Signal(64)
        m.d.comb += [
            back.eq(base.recv),
            back.dst_x.eq(base.recv.src_x), back.dst_y.eq(base.recv.src_y),
            back.src_x.eq(base.recv.dst_x), back.src_y.eq(base.recv.dst_y),
            base.recv_pop.eq(base.recv_valid & self.eats & ~echo.full),
            echo.push.eq(base.recv_pop), echo.push_data.eq(back),
            base.send.eq(echo.head), base.send_valid.eq(echo.valid), echo.pop.eq(base.send_ready),
            base.debug.eq(eaten),
        ]  # fmt: skip
        m.d.sync += eaten.eq(eaten + base.recv_pop)
        return m
