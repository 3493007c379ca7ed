"""Results on their way out of a cluster: batch, result queue, burst writer (spec: cluster, DRAIN)."""

from __future__ import annotations

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from kohakutpu.isa.flit import FlitType, node
from kohakutpu.isa.memory import MEM_WR
from kohakutpu.isa.signals import CU_DATA

from .cluster_sweep import INSTRUCTION
from .fifo import Fifo
from .link import FLIT, view

WBURST = 8
RESULT_QUEUE = 128
WRITE_TXN = 0x02
GRANULE = 256


class Writer(wiring.Component):
    """The batch, the queue of 128 granules and the burst sender of the unit at (`x`, `y`) bound to the port at `port`.

    Members: `make` starts a batch of `total` granules for `inst` (`fused`: it is not bound); `bind` fixes the batch's destination, to
    `inst` with `rebind`; `push`, `granule` from the accumulator; `issue_one`, `issue_two` reserve room; `send`, `send_valid`, `send_ready`;
    `clear`: every granule is sent; `has_fused`: the last batch is an emitting GEMM's; `size`: its granules; `outstanding`.
    """

    def __init__(self, *, x: int, y: int, port: tuple[int, int], drop_last: bool = False):
        self.node = node(x, y)
        self.port = node(*port)
        self.drop_last = drop_last
        super().__init__(
            {
                "make": In(1),
                "total": In(17),
                "fused": In(1),
                "born_bound": In(1),
                "bind": In(1),
                "rebind": In(1),
                "inst": In(INSTRUCTION),
                "push": In(1),
                "granule": In(GRANULE),
                "issue_one": In(1),
                "issue_two": In(1),
                "send": Out(FLIT),
                "send_valid": Out(1),
                "send_ready": In(1),
                "clear": Out(1),
                "has_fused": Out(1),
                "size": Out(17),
                "outstanding": Out(range(RESULT_QUEUE + 1)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.queue = queue = Fifo(width=GRANULE, depth=RESULT_QUEUE)
        target = Signal(INSTRUCTION)  # only its destination fields are used
        bound = Signal()
        taken = Signal(17)
        left = Signal(range(WBURST + 1))
        m.d.comb += [
            queue.push.eq(self.push),
            queue.push_data.eq(self.granule),
            self.clear.eq(taken == self.size),
        ]
        with m.If(self.bind & ~bound):
            m.d.sync += bound.eq(1)
            with m.If(self.rebind):
                m.d.sync += target.eq(self.inst)
        with m.If(self.make):
            m.d.sync += [
                self.size.eq(self.total), taken.eq(0), target.eq(self.inst), self.has_fused.eq(self.fused),
                bound.eq(~self.fused | self.born_bound),
            ]  # fmt: skip

        burst = Signal(range(WBURST + 1))
        remaining = Signal(17)
        m.d.comb += [
            remaining.eq(self.size - taken),
            burst.eq(Mux(remaining > WBURST, WBURST, remaining)),
            self.send_valid.eq(queue.valid & bound),
        ]
        describing = left == 0
        going = self.send_valid & self.send_ready
        m.d.comb += queue.pop.eq(going & ~describing)
        with m.If(going):
            with m.If(describing):
                m.d.sync += left.eq(burst)
            with m.Else():
                m.d.sync += [left.eq(left - 1), taken.eq(taken + 1)]
        m.d.sync += self.outstanding.eq(self.outstanding + self.issue_one + Cat(0, self.issue_two) - queue.pop)

        # ---- the flit ------------------------------------------------------------------------------------
        flit = Signal(FLIT)
        address = Signal(40)
        m.d.comb += address.eq(Cat(target.addr_0, target.addr_1) + Cat(Const(0, 5), taken[:16]))
        write = Signal(view(MEM_WR))
        burst_head = Signal(view(CU_DATA))
        remote = Signal()
        m.d.comb += [
            remote.eq(target.dfin != 0),
            write.addr.eq(address),
            write.len.eq(burst - 1),
            burst_head.buf.eq(target.dbuf),
            burst_head.offset.eq((target.addr_0[5:21] + taken[:16])[:16]),
            burst_head.len.eq(burst - 1),
            burst_head.flags.eq(target.dflags),
            burst_head.ack_y.eq(target.dack_y),
            burst_head.ack_x.eq(target.dack_x),
            Cat(flit.src_x, flit.src_y).eq(self.node),
            Cat(flit.dst_x, flit.dst_y).eq(Mux(target.dnode, Cat(target.dst_x, target.dst_y), self.port)),
            flit.txn.eq(Mux(remote, target.dfin, WRITE_TXN)),
            flit.rsvd.eq(Mux(remote, Cat(target.dmesh, 1), 0)),
        ]
        with m.If(describing):
            m.d.comb += [
                flit.type.eq(Mux(target.dnode, FlitType.CU_DATA, FlitType.MEM_WR_REQ)),
                flit.payload.eq(Mux(target.dnode, burst_head.as_value(), write.as_value())),
            ]
        with m.Else():
            m.d.comb += [
                flit.type.eq(Mux(target.dnode, FlitType.CU_DATA, FlitType.MEM_WR_DATA)),
                flit.payload.eq(queue.head),
                flit.last.eq(0 if self.drop_last else left == 1),
            ]
        m.d.comb += self.send.eq(flit)
        return m


class Drain(wiring.Component):
    """The command counter of an explicit DRAIN: `start` with `inst`; then `command` (0 none), `tile`; `issuing`."""

    def __init__(self, *, tile_bits: int):
        self.tile_bits = tile_bits
        super().__init__(
            {
                "start": In(1),
                "inst": In(INSTRUCTION),
                "outstanding": In(range(RESULT_QUEUE + 1)),
                "go": Out(1),
                "floats": Out(1),
                "tile": Out(tile_bits),
                "issuing": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        left = Signal(16)
        rest = Signal()  # a SEND takes two cycles
        limit = Mux(self.floats, RESULT_QUEUE - 2, RESULT_QUEUE - 1)
        m.d.comb += [self.issuing.eq(left != 0), self.go.eq(self.issuing & ~rest & (self.outstanding <= limit))]
        m.d.sync += rest.eq(self.go & self.floats)
        with m.If(self.go):
            m.d.sync += [left.eq(left - 1), self.tile.eq(self.tile + 1)]
        with m.If(self.start):
            m.d.sync += [
                left.eq(Mux(self.inst.n == 0, 1, self.inst.n)), self.tile.eq(0), rest.eq(0), self.floats.eq(sends_floats(self.inst)),
            ]  # fmt: skip
        return m


def sends_floats(inst: data.View):
    """An explicit DRAIN that leaves as accumulator words, two granules a sub-tile."""
    return inst.dnode & (inst.dbuf == 2)
