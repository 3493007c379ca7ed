"""The cluster's sequencer: the instruction register, what starts when, and retirement (spec: cluster, instructions)."""

from __future__ import annotations

from amaranth import Cat, Const, Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from kohakutpu.isa.cluster import FILL_LIMIT, Op
from kohakutpu.isa.flit import FlitType, node
from kohakutpu.isa.memory import MEM_REQ

from .cluster_sweep import INSTRUCTION
from .link import FLIT, view
from .parameters import known_fault

READ_LEN = 3
PEERS = 3

FAULTS = {
    "sequencer-lost-completion": "the first DRAIN retires without a completion",
    "sequencer-early-retire": "a DRAIN retires when its last flit is in the output register",
    "sequencer-early-emit": "an emitting GEMM starts while granules of the last batch are still to be sent",
    "sequencer-late-take": "an instruction is taken a cycle later than the one before allows",
    "sequencer-fault-kept": "a retirement that reports a FAULT does not clear it",
    "sequencer-follower": "a FILL with peers is requested by every unit that takes part",
}


class Sequencer(wiring.Component):
    """One instruction at a time for the unit at (`x`, `y`), whose FILLs address the memory port at `port`.

    Members, to the endpoint base: `head`, `head_valid`, `take`; `done`, `result`, `wrong`. `inst` is the instruction
    register and `wanted` its n, at least 1. FILL: `request`, `request_valid`, `request_sent`; `receives`, responses may
    be taken;
    `landed`, an entry is complete in this cycle. GEMM: `start_gemm`, when `sweep_free` and no `peer_open`. DRAIN:
    `start_drain`, when the accumulator has `settled` too. Results: `clear`, `gone`, `is_fused` and `size` of the
    writer; `binds` and `rebinds` its batch. `malformed`: a burst was rejected in this cycle.
    """

    def __init__(self, *, x: int, y: int, port: tuple[int, int], fault: str | None = None):
        self.node = node(x, y)
        self.port = node(*port)
        self.fault = known_fault("Sequencer", fault, FAULTS)
        super().__init__(
            {
                "head": In(FLIT),
                "head_valid": In(1),
                "take": Out(1),
                "done": Out(1),
                "result": Out(16),
                "wrong": Out(1),
                "inst": Out(INSTRUCTION),
                "wanted": Out(16),
                "filling": Out(1),
                "receives": Out(1),
                "landed": In(1),
                "request": Out(FLIT),
                "request_valid": Out(1),
                "request_sent": In(1),
                "sweep_free": In(1),
                "settled": In(1),
                "peer_open": In(1),
                "start_gemm": Out(1),
                "start_drain": Out(1),
                "clear": In(1),
                "gone": In(1),
                "is_fused": In(1),
                "size": In(17),
                "binds": Out(1),
                "rebinds": Out(1),
                "malformed": In(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        inst = self.inst
        valid, draining, faulty = Signal(), Signal(), Signal()
        missing = Signal(8)  # entries of a FILL that have not landed
        operations = Signal(16)
        fill, gemm, drain = (valid & (inst.op == op) for op in (Op.FILL, Op.GEMM, Op.DRAIN))
        explicit, fused = drain & ~inst.fuse, drain & inst.fuse
        too_long = inst.n > FILL_LIMIT
        mismatch = ~self.is_fused | (self.size != self.wanted)
        clear = self.clear | (self.fault == "sequencer-early-emit")
        gone = self.clear if self.fault == "sequencer-early-retire" else self.gone
        m.d.comb += [
            self.wanted.eq(inst.n | (inst.n == 0)),
            self.filling.eq(fill),
            self.start_gemm.eq(gemm & self.sweep_free & ~self.peer_open & (~inst.emit | clear)),
            self.start_drain.eq(explicit & ~draining & self.settled & ~self.peer_open & self.clear),
            self.binds.eq(gemm | (explicit & ~draining) | fused),
            self.rebinds.eq(fused & ~mismatch),
        ]

        # ---- retirement: what the registers say, or the FILL's last entry in the cycle in which it lands -------
        settled, raised, counted = Signal(), Signal(), Signal()
        with m.If(fill):
            m.d.comb += [
                settled.eq(too_long | ((missing == 0) & ~self.request_valid)), raised.eq(too_long),
                counted.eq(~too_long),
            ]  # fmt: skip
        with m.Elif(gemm):
            m.d.comb += [settled.eq(self.start_gemm), counted.eq(1)]
        with m.Elif(drain):
            m.d.comb += [settled.eq(gone & (draining | inst.fuse)), counted.eq(1), raised.eq(inst.fuse & mismatch)]
        with m.Else():
            m.d.comb += settled.eq(valid)
        retire = settled | (self.landed & (missing == 1) & ~self.request_valid)
        m.d.comb += [
            self.receives.eq(fill & ~settled),
            self.done.eq(retire),
            self.result.eq(operations + counted),
            self.wrong.eq(raised | faulty),
        ]
        with m.If(self.landed & (missing != 0)):
            m.d.sync += missing.eq(missing - 1)
        with m.If(self.request_sent):
            m.d.sync += self.request_valid.eq(0)
        with m.If(self.start_drain):
            m.d.sync += draining.eq(1)
        with m.If(retire):
            m.d.sync += [valid.eq(0), operations.eq(self.result)]
            if self.fault != "sequencer-fault-kept":
                m.d.sync += faulty.eq(0)
        with m.If(self.malformed):
            m.d.sync += faulty.eq(1)
        if self.fault == "sequencer-lost-completion":
            first = Signal(init=1)
            with m.If(drain & retire):
                m.d.sync += first.eq(0)
            m.d.comb += self.done.eq(retire & ~(drain & first))

        # ---- take -------------------------------------------------------------------------------------------
        loading = data.View(INSTRUCTION, self.head.payload)
        leads = Const(1, 1)  # of several clusters that share a FILL the lowest node asks
        if self.fault != "sequencer-follower":
            for index in range(PEERS):
                leads &= (loading.npeer <= index) | (self.node < loading.peers.word_select(index, 8))
        idle = Const(1, 1)
        if self.fault == "sequencer-late-take":
            idle = Signal(init=1)
            m.d.sync += idle.eq(~valid)
        m.d.comb += self.take.eq(~valid & self.head_valid & idle)
        with m.If(self.take):
            m.d.sync += [
                inst.eq(self.head.payload), valid.eq(1), draining.eq(0), missing.eq(loading.n | (loading.n == 0)),
                self.request_valid.eq((loading.op == Op.FILL) & (loading.n <= FILL_LIMIT) & leads),
            ]  # fmt: skip

        request, read = self.request, data.View(view(MEM_REQ), self.request.payload)
        m.d.comb += [
            Cat(request.dst_x, request.dst_y).eq(Const(self.port, 8)),
            Cat(request.src_x, request.src_y).eq(Const(self.node, 8)),
            request.type.eq(FlitType.MEM_RD_REQ),
            request.txn.eq(inst.eoff),
            request.last.eq(1),
            read.addr.eq(Cat(inst.addr_0, inst.addr_1)),
            read.len.eq(READ_LEN),
            read.stream.eq(1),
            read.blayout.eq(inst.sel),
            read.quant.eq(~inst.preq),
            read.count.eq(self.wanted),
            read.peers.eq(inst.peers),
            read.npeer.eq(inst.npeer),
        ]
        return m
