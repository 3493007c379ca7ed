"""Inbound CU_DATA of the vector core: one open burst, a table of refused ones by source, eight acknowledgements.

Timing and rules: docs/microarchitecture/vector-core.md, receive.
"""

from __future__ import annotations

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from kohakutpu.isa.flit import FlitType, node
from kohakutpu.isa.signals import CU_DATA, CU_SIGNAL, SIGNAL_ON_COMPLETE, SignalCode

from .emit import shared
from .fifo import Fifo
from .link import FLIT, view
from .parameters import OFF

ACKS = 8
BUFFER = 0
ANSWER = data.StructLayout({"node": 8, "buf": 8})
ENDING = data.StructLayout({"signal": 1, "answer": ANSWER})


class Receiver(wiring.Component):
    """Frames bursts for the unit at (`x`, `y`).

    Members: `take` and `flit` in, a CU_DATA flit; `write` and `at` out, its payload goes to L1; `raised`, F_CUDATA is
    raised; `full`, no flit may be taken; `ack`, `ack_valid` out and `ack_sent` in. `reject_silent` frames as published
    (errata: reject-silent): by count alone, and nothing refused is acknowledged. Deliberate bugs of ours, while high:
    `refused_silent` does not acknowledge what was refused, `last_ignored` does not end a burst that is short.
    """

    def __init__(self, *, x: int, y: int, l1_words: int, reject_silent: bool = False, refused_silent: Value = OFF,
                 last_ignored: Value = OFF):  # fmt: skip
        self.node = node(x, y)
        self.l1_words = l1_words
        self.reject_silent = reject_silent
        self.refused_silent = refused_silent
        self.last_ignored = last_ignored
        super().__init__(
            {
                "take": In(1),
                "flit": In(FLIT),
                "write": Out(1),
                "at": Out((l1_words - 1).bit_length()),
                "raised": Out(1),
                "full": Out(1),
                "ack": Out(FLIT),
                "ack_valid": Out(1),
                "ack_sent": In(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        flit = self.flit
        head = data.View(view(CU_DATA), flit.payload)
        source = Signal(8)
        m.d.comb += source.eq(Cat(flit.src_x, flit.src_y))
        opened = Signal(ENDING)
        asked = Cat(head.ack_x, head.ack_y)
        m.d.comb += [
            opened.signal.eq((head.flags & SIGNAL_ON_COMPLETE) != 0),
            opened.answer.node.eq(Mux(asked == 0, source, asked)),
            opened.answer.buf.eq(head.buf),
        ]

        # ---- refused bursts: a bit for each source, and how they end -----------------------------------------------
        refused = Signal(256)
        m.submodules.endings = endings = memory.Memory(shape=ENDING, depth=256, init=[])
        write, read = endings.write_port(), endings.read_port(domain="comb")
        known = Signal(ENDING)
        m.d.comb += [read.addr.eq(source), known.eq(read.data), write.addr.eq(source)]
        is_refused = refused.bit_select(source, 1)
        place = Signal(256)
        m.d.comb += place.eq(Const(1, 1) << source)

        # ---- the open burst ----------------------------------------------------------------------------------------
        active = Signal()
        sender = Signal(8)
        ending = Signal(ENDING)
        at = Signal(len(self.at))
        left = Signal(8)  # data flits owed after the next
        fits = Signal()
        m.d.comb += [
            fits.eq((head.buf == BUFFER) & (head.offset + head.len < self.l1_words)),
            self.at.eq(at),
        ]
        m.submodules.acks = acks = shared(Fifo, width=ANSWER.size, depth=ACKS)
        answering = Signal(ENDING)
        if self.reject_silent:
            writing = Signal()
            m.d.comb += answering.eq(ending)
            with m.If(self.take & active):
                m.d.comb += [
                    self.write.eq(writing & (source == sender)),
                    self.raised.eq(writing & (source != sender)),
                    acks.push.eq(self.write & (left == 0) & ending.signal),
                ]
                m.d.sync += [writing.eq(self.write), at.eq(at + 1), left.eq(left - 1), active.eq(left != 0)]
            with m.Elif(self.take):
                m.d.comb += self.raised.eq(~fits)
                m.d.sync += [active.eq(1), writing.eq(fits), sender.eq(source), ending.eq(opened)]
                m.d.sync += [at.eq(head.offset), left.eq(head.len)]
        else:
            with m.If(self.take & active & (source == sender)):
                m.d.comb += [self.write.eq(1), write.data.eq(ending), answering.eq(ending)]
                m.d.sync += [at.eq(at + 1), left.eq(left - 1)]
                final = left == 0
                m.d.comb += self.raised.eq(final ^ flit.last)
                with m.If(final | (flit.last & ~self.last_ignored)):
                    m.d.sync += active.eq(0)
                    with m.If(flit.last):
                        m.d.comb += acks.push.eq(ending.signal)
                    with m.Else():
                        m.d.sync += refused.eq(refused | place)
                        m.d.comb += write.en.eq(1)
            with m.Elif(self.take & is_refused):
                m.d.comb += answering.eq(known)
                with m.If(flit.last):
                    m.d.sync += refused.eq(refused & ~place)
                    m.d.comb += acks.push.eq(known.signal & ~self.refused_silent)
            with m.Elif(self.take & ~active & fits):
                m.d.sync += [active.eq(1), sender.eq(source), ending.eq(opened), at.eq(head.offset), left.eq(head.len)]
            with m.Elif(self.take):
                m.d.sync += refused.eq(refused | place)
                m.d.comb += [self.raised.eq(1), write.data.eq(opened), write.en.eq(1)]

        # ---- acknowledgements ----------------------------------------------------------------------------------------
        answer = Signal(ANSWER)
        payload = data.View(view(CU_SIGNAL), self.ack.payload)
        m.d.comb += [
            acks.push_data.eq(answering.answer),
            acks.pop.eq(self.ack_sent),
            answer.eq(acks.head),
            self.full.eq(acks.full),
            self.ack_valid.eq(acks.valid),
            Cat(self.ack.dst_x, self.ack.dst_y).eq(answer.node),
            Cat(self.ack.src_x, self.ack.src_y).eq(Const(self.node, 8)),
            self.ack.type.eq(FlitType.CU_SIGNAL),
            self.ack.last.eq(1),
            payload.code.eq(SignalCode.DATA_RECEIVED),
            payload.arg.eq(answer.buf),
        ]
        return m
