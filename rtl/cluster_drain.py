"""Results on their way out of a cluster: the drain's commands, batch, result queue, burst writer (spec: cluster,
DRAIN)."""

from __future__ import annotations

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from kohakutpu.isa.flit import FlitType, node
from kohakutpu.isa.memory import MEM_WR, WORD_BYTES
from kohakutpu.isa.signals import CU_DATA, Buffer

from .cluster_accumulator import GRANULE
from .cluster_sweep import INSTRUCTION
from .emit import shared
from .fifo import Fifo
from .link import FLIT, view
from .parameters import known_fault

WBURST = 8
RESULT_QUEUE = 128
WRITE_TXN = 0x02

FAULTS = {
    "writer-last": "the final data flit of a burst leaves with last = 0",
    "writer-burst": "bursts of up to 9 granules",
    "writer-address": "every burst of a batch names the batch's first address",
    "writer-rebind": "a fused DRAIN does not change the destination of the batch it waits for",
    "drain-room": "an explicit drain does not wait for room in the result queue",
    "drain-pace": "a SEND follows a SEND in the next cycle",
}


class Writer(wiring.Component):
    """The batch, the queue of 128 granules and the burst sender of the unit at (`x`, `y`) bound to the port at `port`.

    Members: `make` starts a batch of `rows` * `columns` granules for `inst`, `fused` if an emitting GEMM's; `bind`
    fixes a fused batch's destination, to that of `inst` with `rebind`; `push`, `granule` from the accumulator;
    `issue_one`,
    `issue_two` reserve room; `send`, `send_valid`, `send_ready` to the output register and `out_free`, it is empty or
    being taken; `clear`, every granule is sent; `gone`, and the last of their flits has left or leaves now; `is_fused`
    and `size` of the last batch, the latter from two cycles after `make`; `outstanding`.
    """

    def __init__(self, *, x: int, y: int, port: tuple[int, int], fault: str | None = None):
        self.node = node(x, y)
        self.port = node(*port)
        self.fault = known_fault("Writer", fault, FAULTS)
        super().__init__(
            {
                "make": In(1),
                "rows": In(16),
                "columns": In(8),
                "fused": In(1),
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
                "out_free": In(1),
                "clear": Out(1, init=1),
                "gone": Out(1),
                "is_fused": Out(1),
                "size": Out(17),
                "outstanding": Out(range(RESULT_QUEUE + 1)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.queue = queue = shared(Fifo, width=GRANULE, depth=RESULT_QUEUE)
        target = Signal(INSTRUCTION)  # only its destination fields are used
        address = Signal(40)  # of the next granule; bits 20:5 are its offset in a node's buffer
        bound, making, held = Signal(), Signal(), Signal()
        remaining = Signal(17)
        rows, columns = Signal(16), Signal(8)
        left = Signal(range(WBURST + 2))  # data flits that the open burst still needs
        describing = left == 0
        sending = self.send_valid & self.send_ready
        m.d.comb += [
            queue.push.eq(self.push),
            queue.push_data.eq(self.granule),
            queue.pop.eq(sending & ~describing),
            self.send_valid.eq(queue.valid & bound),
            self.gone.eq(self.clear & (~held | self.out_free)),
        ]
        burst = Signal(range(WBURST + 2))
        most = WBURST + (self.fault == "writer-burst")
        m.d.comb += burst.eq(Mux(remaining > most, most, remaining))
        with m.If(sending):
            m.d.sync += left.eq(Mux(describing, burst, left - 1))
        with m.If(queue.pop):
            m.d.sync += [remaining.eq(remaining - 1), self.clear.eq(remaining == 1)]
            if self.fault != "writer-address":
                m.d.sync += address.eq(address + WORD_BYTES)
        with m.If(sending):
            m.d.sync += held.eq(1)
        with m.Elif(self.out_free):
            m.d.sync += held.eq(0)
        m.d.sync += self.outstanding.eq(self.outstanding + self.issue_one + Cat(0, self.issue_two) - queue.pop)

        given = Cat(self.inst.addr_0, self.inst.addr_1)
        with m.If(self.bind & ~bound):
            m.d.sync += bound.eq(1)
            if self.fault != "writer-rebind":
                with m.If(self.rebind):
                    m.d.sync += [target.eq(self.inst), address.eq(given)]
        m.d.sync += making.eq(self.make)
        with m.If(self.make):
            m.d.sync += [
                rows.eq(self.rows), columns.eq(self.columns), target.eq(self.inst), address.eq(given),
                self.is_fused.eq(self.fused), bound.eq(~self.fused), self.clear.eq(0),
            ]  # fmt: skip
        with m.If(making):
            product = (rows * columns)[: len(self.size)]
            m.d.sync += [self.size.eq(product), remaining.eq(product)]

        # ---- the flit ------------------------------------------------------------------------------------
        flit = self.send
        write, descriptor = Signal(view(MEM_WR)), Signal(view(CU_DATA))
        remote = target.dfin != 0
        m.d.comb += [
            write.addr.eq(address),
            write.len.eq(burst - 1),
            descriptor.buf.eq(target.dbuf),
            descriptor.offset.eq(address[5:21]),
            descriptor.len.eq(burst - 1),
            descriptor.flags.eq(target.dflags),
            descriptor.ack_y.eq(target.dack_y),
            descriptor.ack_x.eq(target.dack_x),
            Cat(flit.src_x, flit.src_y).eq(Const(self.node, 8)),
            Cat(flit.dst_x, flit.dst_y).eq(Mux(target.dnode, Cat(target.dst_x, target.dst_y), Const(self.port, 8))),
            flit.txn.eq(Mux(remote, target.dfin, WRITE_TXN)),
            flit.rsvd.eq(Mux(remote, Cat(target.dmesh, Const(1, 1)), 0)),
            flit.last.eq((left == 1) & (self.fault != "writer-last")),
        ]
        with m.If(target.dnode):
            m.d.comb += flit.type.eq(FlitType.CU_DATA)
        with m.Else():
            m.d.comb += flit.type.eq(Mux(describing, FlitType.MEM_WR_REQ, FlitType.MEM_WR_DATA))
        with m.If(~describing):
            m.d.comb += flit.payload.eq(queue.head)
        with m.Elif(target.dnode):
            m.d.comb += flit.payload.eq(descriptor)
        with m.Else():
            m.d.comb += flit.payload.eq(write)
        return m


class Drain(wiring.Component):
    """The commands of an explicit DRAIN: `start` with `inst`; then pulses of `emit` or `send` for `tile`, while
    `outstanding` leaves room; `issuing` until the last."""

    def __init__(self, *, tile_bits: int, fault: str | None = None):
        self.tile_bits = tile_bits
        self.fault = known_fault("Drain", fault, FAULTS)
        super().__init__(
            {
                "start": In(1),
                "inst": In(INSTRUCTION),
                "outstanding": In(range(RESULT_QUEUE + 1)),
                "emit": Out(1),
                "send": Out(1),
                "tile": Out(tile_bits),
                "issuing": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        left = Signal(16)  # commands after the next
        floats, rest = Signal(), Signal()  # a SEND takes two cycles
        room = self.outstanding <= Mux(floats, RESULT_QUEUE - 2, RESULT_QUEUE - 1)
        issue = self.issuing & ~rest & (room | (self.fault == "drain-room"))
        m.d.comb += [self.emit.eq(issue & ~floats), self.send.eq(issue & floats)]
        if self.fault != "drain-pace":
            m.d.sync += rest.eq(self.send)
        with m.If(issue):
            m.d.sync += [left.eq(left - 1), self.tile.eq(self.tile + 1), self.issuing.eq(left != 0)]
        with m.If(self.start):
            count = self.inst.n
            m.d.sync += [
                left.eq(count - (count != 0)), self.tile.eq(0), self.issuing.eq(1), floats.eq(sends_floats(self.inst)),
            ]  # fmt: skip
        return m


def sends_floats(inst: data.View):
    """An explicit DRAIN that leaves as accumulator words, two granules a sub-tile."""
    return inst.dnode & (inst.dbuf == Buffer.ACCUMULATOR)
