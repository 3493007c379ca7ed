"""Inbound CU_DATA of a cluster: one burst at a time into L1 A, L1 B or the accumulator (spec: cluster, inbound CU_DATA)."""

from __future__ import annotations

from enum import IntEnum

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from kohakutpu.isa.flit import FlitType, node
from kohakutpu.isa.signals import CU_DATA, CU_SIGNAL, Buffer, SignalCode

from .link import FLIT, view

GRANULE = 256


class State(IntEnum):
    NONE = 0
    L1 = 1
    PEER_WAIT = 2
    PEER = 3
    REJECT = 4


class Receiver(wiring.Component):
    """Frames bursts for the unit at (`x`, `y`) with `limits` granules in buffers 0, 1 and 2.

    Members: `flit`, `descriptor` and `data` (pulses: the flit is taken as one), `open_peer`; `state`, `rejected` (this
    descriptor is refused), `to_b`, `offset` of the data flit; `pair`, `pair_tile` and `pair_words`: an ADD_PEER command, the cycle
    after its second granule; `ack`, `ack_valid`, `ack_sent`.
    """

    def __init__(self, *, x: int, y: int, limits: tuple[int, int, int], word: int, ack_to_source: bool = False):
        self.node = node(x, y)
        self.limits = limits
        self.word = word
        self.ack_to_source = ack_to_source
        super().__init__(
            {
                "flit": In(FLIT),
                "descriptor": In(1),
                "data": In(1),
                "open_peer": In(1),
                "state": Out(State),
                "rejected": Out(1),
                "to_b": Out(1),
                "offset": Out(16),
                "pair": Out(1),
                "pair_tile": Out(15),
                "pair_words": Out(word),
                "ack": Out(FLIT),
                "ack_valid": Out(1),
                "ack_sent": In(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        head = data.View(view(CU_DATA), self.flit.payload)
        left = Signal(9)
        answers = Signal()
        answer = Signal(data.StructLayout({"dst": 8, "txn": 8, "buf": 8}))
        low = Signal(GRANULE)
        end = Signal(18)
        limit = Signal(18)
        m.d.comb += end.eq(head.offset + head.len + 1)
        with m.Switch(head.buf):
            for buffer, size in zip((Buffer.FIRST, Buffer.SECOND, Buffer.ACCUMULATOR), self.limits):
                with m.Case(buffer):
                    m.d.comb += limit.eq(size)
        peer = head.buf == Buffer.ACCUMULATOR
        m.d.comb += self.rejected.eq(self.descriptor & ((end > limit) | (peer & head.offset[0])))
        with m.If(self.descriptor):
            ack = Cat(head.ack_x, head.ack_y)
            source = Cat(self.flit.src_x, self.flit.src_y)
            m.d.sync += [
                self.state.eq(Mux(self.rejected, State.REJECT, Mux(peer, State.PEER_WAIT, State.L1))),
                self.to_b.eq(head.buf == Buffer.SECOND),
                self.offset.eq(head.offset),
                left.eq(head.len),
                answers.eq(head.flags[0]),
                answer.dst.eq(source if self.ack_to_source else Mux(ack == 0, source, ack)),
                answer.txn.eq(self.flit.txn),
                answer.buf.eq(head.buf),
            ]
        with m.If(self.open_peer):
            m.d.sync += self.state.eq(State.PEER)
        with m.If(self.ack_sent):
            m.d.sync += self.ack_valid.eq(0)
        m.d.sync += self.pair.eq(0)
        with m.If(self.data):
            m.d.sync += [left.eq(left - 1), self.offset.eq(self.offset + 1)]
            with m.If(left == 0):
                m.d.sync += [self.state.eq(State.NONE), self.ack_valid.eq(answers)]
            with m.If(self.state == State.PEER):
                with m.If(self.offset[0]):
                    m.d.sync += [
                        self.pair.eq(1),
                        self.pair_tile.eq(self.offset[1:]),
                        self.pair_words.eq(Cat(low, self.flit.payload)),
                    ]
                with m.Else():
                    m.d.sync += low.eq(self.flit.payload)
        payload = data.View(view(CU_SIGNAL), self.ack.payload)
        m.d.comb += [
            Cat(self.ack.dst_x, self.ack.dst_y).eq(answer.dst),
            Cat(self.ack.src_x, self.ack.src_y).eq(self.node),
            self.ack.type.eq(FlitType.CU_SIGNAL),
            self.ack.txn.eq(answer.txn),
            self.ack.last.eq(1),
            payload.code.eq(SignalCode.DATA_RECEIVED),
            payload.arg.eq(answer.buf),
        ]
        return m
