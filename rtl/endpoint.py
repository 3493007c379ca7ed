"""The endpoint base every unit shares: demultiplexing, one instruction in flight, completions, CU_CTRL.

Timing: docs/microarchitecture.md, endpoint base. A unit instantiates `EndpointBase` and talks to its unit side.
"""

from __future__ import annotations

from amaranth import Cat, Const, Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from kohakutpu.isa.flit import FlitType, node
from kohakutpu.isa.signals import (
    CU_CAPS,
    CU_COUNTERS,
    CU_CTRL_REPLY,
    CU_CTRL_REQUEST,
    CU_SIGNAL,
    CU_STATUS,
    ControlIndex,
    ControlOp,
    SignalCode,
)

from .emit import shared
from .fifo import Fifo
from .link import FLIT, LinkSignature, view
from .parameters import known_fault, positive

COMPLETION_DEPTH = 16
COMPLETION = data.StructLayout({"dst": 8, "txn": 8, "code": 8, "arg": 32})

FAULTS = {
    "lost-completion": "a completion that retires while another one leaves the queue is lost",
    "dropped-last": "`last` of an instruction is not kept: no program ever reports BATCH_COMPLETE",
    "reply-first": "a CU_CTRL answer goes before queued completions",
    "late-sample": "the busy counter that CU_CTRL reads does not count completions that wait for the link",
    "stale-status": "CU_STATUS counts the instruction in flight as a used FIFO entry",
}


class EndpointBase(wiring.Component):
    """A unit's port at (`x`, `y`).

    `unit_type`, `version` and `buffers` are what CU_CAPS reports, as is `inst_depth`; that and `recv_depth` are the
    depths of the FIFOs.

    Members, unit side: `inst`, `inst_valid` and `inst_take` (a pulse accepts the instruction); `done`, `result`,
    `fault` (a pulse retires it, never in the accepting cycle); `recv`, `recv_valid`, `recv_pop`; `send`, `send_valid`,
    `send_ready` (transfer when both are high); `out_free`, the output register is empty or being taken; `debug`, the
    unit's counter word.
    """

    def __init__(self, *, x: int, y: int, unit_type: int, version: int, buffers: int, inst_depth: int, recv_depth: int,
                 fault: str | None = None):  # fmt: skip
        positive("EndpointBase", inst_depth=inst_depth, recv_depth=recv_depth)
        self.planted = known_fault("EndpointBase", fault, FAULTS)
        self.node = node(x, y)
        self.inst_depth = inst_depth
        self.recv_depth = recv_depth
        self.caps = CU_CAPS.encode(type=unit_type, version=version, buffers=buffers, inst_depth=inst_depth)
        super().__init__(
            {
                "in_link": In(LinkSignature()),
                "out_link": Out(LinkSignature()),
                "inst": Out(FLIT),
                "inst_valid": Out(1),
                "inst_take": In(1),
                "done": In(1),
                "result": In(32),
                "fault": In(1),
                "recv": Out(FLIT),
                "recv_valid": Out(1),
                "recv_pop": In(1),
                "send": In(FLIT),
                "send_valid": In(1),
                "send_ready": Out(1),
                "out_free": Out(1),
                "debug": In(64),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.inst_fifo = inst_fifo = shared(Fifo, width=FLIT.size, depth=self.inst_depth)
        m.submodules.recv_fifo = recv_fifo = shared(Fifo, width=FLIT.size, depth=self.recv_depth)
        m.submodules.completions = completions = shared(Fifo, width=COMPLETION.size, depth=COMPLETION_DEPTH)
        arriving = self.in_link.flit
        accept = Signal()
        is_inst = Signal()
        is_ctrl = Signal()
        m.d.comb += [
            self.in_link.busy.eq(inst_fifo.full | recv_fifo.full),
            accept.eq(self.in_link.valid & ~self.in_link.busy),
            is_inst.eq(arriving.type == FlitType.CU_INST),
            is_ctrl.eq(arriving.type == FlitType.CU_CTRL),
            inst_fifo.push.eq(accept & is_inst),
            inst_fifo.push_data.eq(arriving),
            recv_fifo.push.eq(accept & ~is_inst & ~is_ctrl),
            recv_fifo.push_data.eq(arriving),
            self.recv.eq(recv_fifo.head),
            self.recv_valid.eq(recv_fifo.valid),
            recv_fifo.pop.eq(self.recv_pop),
        ]

        # One instruction in flight; its origin and tag wait for the completion.
        in_flight = Signal()
        take = Signal()
        retire = Signal()
        origin = Signal(data.StructLayout({"dst": 8, "txn": 8, "last": 1}))
        m.d.comb += [
            self.inst.eq(inst_fifo.head),
            self.inst_valid.eq(inst_fifo.valid & ~in_flight & ~completions.full),
            take.eq(self.inst_take & self.inst_valid),
            retire.eq(self.done & in_flight),
            inst_fifo.pop.eq(take),
        ]
        with m.If(take):
            m.d.sync += [
                in_flight.eq(1),
                origin.dst.eq(Cat(self.inst.src_x, self.inst.src_y)),
                origin.txn.eq(self.inst.txn),
                origin.last.eq(0 if self.planted == "dropped-last" else self.inst.last),
            ]
        with m.If(retire):
            m.d.sync += in_flight.eq(0)
        completion = Signal(COMPLETION)
        m.d.comb += [
            completion.dst.eq(origin.dst),
            completion.txn.eq(origin.txn),
            completion.code.eq(SignalCode.INST_COMPLETE),
            completion.arg.eq(self.result),
            completions.push_data.eq(completion),
            completions.push.eq(retire & ~completions.pop if self.planted == "lost-completion" else retire),
        ]
        with m.If(self.fault):
            m.d.comb += completion.code.eq(SignalCode.FAULT)
        with m.Elif(origin.last):
            m.d.comb += [completion.code.eq(SignalCode.BATCH_COMPLETE), completion.arg.eq(origin.txn)]

        # Counters: what CU_CTRL reads is their value at the start of the arrival cycle.
        busy = Signal()
        counters = Signal(view(CU_COUNTERS))
        status = Signal(view(CU_STATUS))
        m.d.comb += [
            busy.eq(in_flight | inst_fifo.valid | (completions.valid if self.planted != "late-sample" else 0)),
            status.busy.eq(busy),
            status.inst_space.eq(
                self.inst_depth - inst_fifo.level - (in_flight if self.planted == "stale-status" else 0)
            ),
        ]
        m.d.sync += counters.busy_cycles.eq(counters.busy_cycles + busy)
        with m.If(retire):
            m.d.sync += counters.retired.eq(counters.retired + 1)

        # One reply pending; a request that arrives meanwhile is taken and lost.
        reply_pending = Signal()
        reply = Signal(data.StructLayout({"dst": 8, "txn": 8, "index": 8, "value": 64}))
        request = data.View(view(CU_CTRL_REQUEST), arriving.payload)
        with m.If(accept & is_ctrl & ~reply_pending):
            m.d.sync += [
                reply_pending.eq(1),
                reply.dst.eq(Cat(arriving.src_x, arriving.src_y)),
                reply.txn.eq(arriving.txn),
                reply.index.eq(request.index),
            ]
            with m.Switch(request.index):
                with m.Case(ControlIndex.CAPS):
                    m.d.sync += reply.value.eq(self.caps)
                with m.Case(ControlIndex.STATUS):
                    m.d.sync += reply.value.eq(status)
                with m.Case(ControlIndex.COUNTERS):
                    m.d.sync += reply.value.eq(counters)
                with m.Case(ControlIndex.DEBUG):
                    m.d.sync += reply.value.eq(self.debug)
                with m.Default():
                    m.d.sync += reply.value.eq(0)

        # The output register: completion, then reply, then unit.
        out = self.out_link
        free = Signal()
        signal_next = Signal()
        signal_flit = Signal(FLIT)
        reply_flit = Signal(FLIT)
        head = Signal(COMPLETION)
        signal_payload = data.View(view(CU_SIGNAL), signal_flit.payload)
        reply_payload = data.View(view(CU_CTRL_REPLY), reply_flit.payload)
        for flit, dst, txn, kind in (
            (signal_flit, head.dst, head.txn, FlitType.CU_SIGNAL),
            (reply_flit, reply.dst, reply.txn, FlitType.CU_CTRL),
        ):
            m.d.comb += [
                Cat(flit.dst_x, flit.dst_y).eq(dst),
                Cat(flit.src_x, flit.src_y).eq(Const(self.node, 8)),
                flit.type.eq(kind),
                flit.txn.eq(txn),
                flit.last.eq(1),
            ]
        m.d.comb += [
            free.eq(~(out.valid & out.busy)),
            self.out_free.eq(free),
            head.eq(completions.head),
            signal_payload.code.eq(head.code),
            signal_payload.arg.eq(head.arg),
            reply_payload.op.eq(ControlOp.REPLY),
            reply_payload.index.eq(reply.index),
            reply_payload.value.eq(reply.value),
            signal_next.eq(completions.valid & ~(reply_pending if self.planted == "reply-first" else 0)),
            self.send_ready.eq(free & ~completions.valid & ~reply_pending),
            completions.pop.eq(free & signal_next),
        ]
        with m.If(free):
            m.d.sync += out.valid.eq(completions.valid | reply_pending | self.send_valid)
            with m.If(signal_next):
                m.d.sync += out.flit.eq(signal_flit)
            with m.Elif(reply_pending):
                m.d.sync += [out.flit.eq(reply_flit), reply_pending.eq(0)]
            with m.Else():
                m.d.sync += out.flit.eq(self.send)
        return m
