"""Inbound CU_DATA of a cluster: one burst at a time into L1 A, L1 B or the accumulator (spec: cluster, inbound
CU_DATA)."""

from __future__ import annotations

from enum import IntEnum

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from kohakutpu.isa.flit import FlitType, node
from kohakutpu.isa.signals import CU_DATA, CU_SIGNAL, Buffer, SignalCode

from .cluster_accumulator import GRANULE
from .link import FLIT, view
from .parameters import known_fault

FAULTS = {
    "receive-ack-source": "bursts are acknowledged to their source, whatever node the descriptor names",
    "receive-limit": "a burst that ends one granule past its buffer is taken",
    "receive-odd": "a burst into the accumulator may begin in the middle of a sub-tile",
    "receive-last": "a burst ends with the flit that says `last`, whatever its descriptor announced",
}


class State(IntEnum):
    NONE = 0
    L1 = 1
    PEER_WAIT = 2
    PEER = 3
    REJECT = 4


class Receiver(wiring.Component):
    """Frames bursts for the unit at (`x`, `y`) with `limits` granules in buffers 0, 1 and 2, sub-tiles of `word` bits.

    Members: `flit`, taken as a `descriptor` or as `data` (pulses); `open_peer`; `state`; `rejected`, this descriptor is
    refused; `to_b` and `offset` of the data flit; `pair` with `pair_tile` and `pair_words`, an ADD_PEER command in the
    cycle after its second granule was taken; `ack`, `ack_valid`, `ack_sent`.
    """

    def __init__(self, *, x: int, y: int, limits: tuple[int, int, int], word: int, fault: str | None = None):
        self.node = node(x, y)
        self.limits = limits
        self.word = word
        self.fault = known_fault("Receiver", fault, FAULTS)
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
        left = Signal(8)  # data flits after the next
        answers = Signal()
        answer = Signal(data.StructLayout({"dst": 8, "txn": 8, "buf": 8}))
        low = Signal(GRANULE)
        # Offset, length and limit meet in one addition and one comparison, straight from the receive FIFO's head.
        end, limit = Signal(17), Signal(17)
        m.d.comb += end.eq(head.offset + head.len)
        with m.Switch(head.buf):
            for buffer, size in zip((Buffer.FIRST, Buffer.SECOND, Buffer.ACCUMULATOR), self.limits):
                with m.Case(buffer):
                    m.d.comb += limit.eq(size + (self.fault == "receive-limit"))
        peer = head.buf == Buffer.ACCUMULATOR
        odd = peer & head.offset[0] & (self.fault != "receive-odd")
        m.d.comb += self.rejected.eq(self.descriptor & ((end >= limit) | odd))
        with m.If(self.descriptor):
            source, named = Cat(self.flit.src_x, self.flit.src_y), Cat(head.ack_x, head.ack_y)
            to_source = (named == 0) | (self.fault == "receive-ack-source")
            m.d.sync += [
                self.state.eq(Mux(self.rejected, State.REJECT, Mux(peer, State.PEER_WAIT, State.L1))),
                self.to_b.eq(head.buf == Buffer.SECOND),
                self.offset.eq(head.offset),
                left.eq(head.len),
                answers.eq(head.flags[0]),
                answer.dst.eq(Mux(to_source, source, named)),
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
            with m.If(self.flit.last if self.fault == "receive-last" else left == 0):
                m.d.sync += [self.state.eq(State.NONE), self.ack_valid.eq(answers)]
            with m.If(~self.offset[0]):
                m.d.sync += low.eq(self.flit.payload)
            with m.Elif(self.state == State.PEER):
                m.d.sync += [
                    self.pair.eq(1),
                    self.pair_tile.eq(self.offset[1:]),
                    self.pair_words.eq(Cat(low, self.flit.payload)),
                ]
        payload = data.View(view(CU_SIGNAL), self.ack.payload)
        m.d.comb += [
            Cat(self.ack.dst_x, self.ack.dst_y).eq(answer.dst),
            Cat(self.ack.src_x, self.ack.src_y).eq(Const(self.node, 8)),
            self.ack.type.eq(FlitType.CU_SIGNAL),
            self.ack.txn.eq(answer.txn),
            self.ack.last.eq(1),
            payload.code.eq(SignalCode.DATA_RECEIVED),
            payload.arg.eq(answer.buf),
        ]
        return m
