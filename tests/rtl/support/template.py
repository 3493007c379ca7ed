"""A small unit that obeys every rule of a port, and interposers that each break one, to test the checker with."""

from __future__ import annotations

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from kohakutpu.isa.flit import FlitType, node
from kohakutpu.isa.memory import MEM_REQ
from kohakutpu.isa.signals import CU_CAPS, CU_CTRL_REPLY, CU_DATA, CU_SIGNAL, SIGNAL_ON_COMPLETE, SignalCode
from rtl.endpoint import EndpointBase
from rtl.link import FLIT, LinkSignature, view

# What a `Template` reads in an instruction's payload.
ORDER = data.StructLayout(
    {"cycles": 16, "fault": 1, "wait": 1, "unused": 14, "result": 32, "target": 8, "beats": 4, "to_node": 1}
)


class Template(wiring.Component):
    """Sends a burst of `beats` flits to `target` (a write, or CU_DATA when `to_node`), works `cycles`, waits for a
    MEM_RD_RESP when `wait`, and retires with `result`.

    A CU_DATA burst is counted out and acknowledged when it asks for that; one for a buffer that does not exist makes
    the next retirement a FAULT. All other flits are dropped.
    """

    def __init__(self, *, x: int, y: int, buffers: int, inst_depth: int, recv_depth: int):
        self.node = node(x, y)
        self.buffers = buffers
        self.base = EndpointBase(
            x=x, y=y, unit_type=0x4B48, version=4, buffers=buffers, inst_depth=inst_depth, recv_depth=recv_depth
        )
        super().__init__({"in_link": In(LinkSignature()), "out_link": Out(LinkSignature())})

    def header(self, m: Module, flit, dst, kind, txn, last) -> None:
        m.d.comb += [
            Cat(flit.dst_x, flit.dst_y).eq(dst),
            Cat(flit.src_x, flit.src_y).eq(Const(self.node, 8)),
            flit.type.eq(kind),
            flit.txn.eq(txn),
            flit.last.eq(last),
        ]

    def elaborate(self, platform):
        m = Module()
        m.submodules.base = base = self.base
        wiring.connect(m, wiring.flipped(self.in_link), base.in_link)
        wiring.connect(m, base.out_link, wiring.flipped(self.out_link))
        order, offered = Signal(ORDER), Signal(ORDER)
        m.d.comb += offered.eq(base.inst.payload)
        rejected = Signal()
        answered = Signal()
        left = Signal(4)
        burst = Signal(FLIT)
        ack = Signal(FLIT)
        ack_pending = Signal()
        request = data.View(view(MEM_REQ), burst.payload)
        descriptor = data.View(view(CU_DATA), burst.payload)
        bursting = Signal()
        opening = Signal()
        kind = Mux(order.to_node, FlitType.CU_DATA, Mux(opening, FlitType.MEM_WR_REQ, FlitType.MEM_WR_DATA))
        self.header(m, burst, order.target, kind, 2, ~opening & (left == 1))
        with m.If(opening & order.to_node):
            m.d.comb += descriptor.len.eq(order.beats - 1)
        with m.Elif(opening):
            m.d.comb += request.len.eq(order.beats - 1)
        # an acknowledgement goes between bursts
        m.d.comb += [
            base.send.eq(Mux(bursting, burst, ack)),
            base.send_valid.eq(bursting | ack_pending),
            base.result.eq(order.result),
            base.fault.eq(order.fault | rejected),
        ]
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += base.inst_take.eq(base.inst_valid)
                with m.If(base.inst_valid):
                    m.d.sync += [order.eq(offered), left.eq(offered.beats), answered.eq(0)]
                    m.next = "BURST"
            with m.State("BURST"):
                m.d.comb += [opening.eq(1), bursting.eq((order.beats != 0) & ~ack_pending)]
                with m.If(order.beats == 0):
                    m.next = "WORK"
                with m.Elif(bursting & base.send_ready):
                    m.next = "DATA"
            with m.State("DATA"):
                m.d.comb += bursting.eq(1)
                with m.If(base.send_ready):
                    m.d.sync += left.eq(left - 1)
                    with m.If(left == 1):
                        m.next = "WORK"
            with m.State("WORK"):
                with m.If(order.cycles > 1):
                    m.d.sync += order.cycles.eq(order.cycles - 1)
                with m.Elif(~order.wait | answered):
                    m.d.comb += base.done.eq(1)
                    m.d.sync += rejected.eq(0)
                    m.next = "IDLE"
        with m.If(ack_pending & ~bursting & base.send_ready):
            m.d.sync += ack_pending.eq(0)
        self._receive(m, rejected, answered, ack, ack_pending)
        return m

    def _receive(self, m: Module, rejected: Signal, answered: Signal, ack: Signal, ack_pending: Signal) -> None:
        base = self.base
        burst = Signal(data.StructLayout({"left": 9, "buf": 8, "signal": 1, "node": 8, "txn": 8}))
        arrived = data.View(view(CU_DATA), base.recv.payload)
        answer = Cat(arrived.ack_x, arrived.ack_y)
        payload = data.View(view(CU_SIGNAL), ack.payload)
        self.header(m, ack, burst.node, FlitType.CU_SIGNAL, burst.txn, 1)
        m.d.comb += [
            payload.code.eq(SignalCode.DATA_RECEIVED),
            payload.arg.eq(burst.buf),
            # one acknowledgement waits at most: what follows stays in the FIFO
            base.recv_pop.eq(base.recv_valid & ~ack_pending),
        ]
        with m.If(base.recv_pop & (base.recv.type == FlitType.MEM_RD_RESP)):
            m.d.sync += answered.eq(1)
        with m.If(base.recv_pop & (base.recv.type == FlitType.CU_DATA)):
            with m.If(burst.left == 0):
                m.d.sync += [
                    burst.left.eq(arrived.len + 1),
                    burst.buf.eq(arrived.buf),
                    burst.signal.eq((arrived.flags & SIGNAL_ON_COMPLETE) != 0),
                    burst.node.eq(Mux(answer == 0, Cat(base.recv.src_x, base.recv.src_y), answer)),
                    burst.txn.eq(base.recv.txn),
                ]
            with m.Else():
                m.d.sync += burst.left.eq(burst.left - 1)
                with m.If(burst.left == 1):
                    m.d.sync += ack_pending.eq(burst.signal)
                    with m.If(burst.buf >= self.buffers):
                        m.d.sync += rejected.eq(1)


# Interposers: what a port does wrong with them in front. The first group breaks a rule that the passive checker counts.
COUNTED = {
    "out_withdrawn": "takes a refused flit back for a cycle",
    "out_changed": "changes the payload of a refused flit",
    "wedged": "is busy for good after 20 flits",
    "wrong_source": "names another sender",
    "completion_unasked": "takes a flit in a cycle in which it says busy, and again later",
    "completion_wrong": "answers with another txn",
    "completion_early": "completes in the cycle that accepts",
    "reply_unasked": "answers a request twice",
    "framing": "drops `last` of a data flit",
    "write_overlap": "drops the last data flit of a write",
}
# The second group is found by `conformance`.
FOUND = {
    "busy_by_type": "is busy for CU_DATA only",
    "holds_unknown": "never takes a type that it does not know",
    "keeps_unknown": "takes unknown types and is full after six of them",
    "silent_when_wedged": "does not answer CU_CTRL while an instruction is in flight",
    "wrong_depth": "reports an instruction FIFO of 14",
    "wrong_buffers": "reports four buffers",
    "lost_completion": "loses every seventh completion",
    "withheld_phase": "loses the completion that has waited for 100 cycles",
}
BREAKS = COUNTED | FOUND


class Interposer(wiring.Component):
    """`endpoint` with one rule broken: `breaks` is a key of `BREAKS`."""

    def __init__(self, endpoint: wiring.Component, *, breaks: str):
        if breaks not in BREAKS:
            raise TypeError(f"Interposer breaks {breaks!r}; one of {', '.join(BREAKS)} is expected")
        self.endpoint = endpoint
        self.breaks = breaks
        super().__init__({"in_link": In(LinkSignature()), "out_link": Out(LinkSignature())})

    def elaborate(self, platform):
        m = Module()
        m.submodules.endpoint = endpoint = self.endpoint
        into, inner_in = self.in_link, endpoint.in_link
        out, inner_out = self.out_link, endpoint.out_link
        m.d.comb += [
            inner_in.flit.eq(into.flit), inner_in.valid.eq(into.valid), into.busy.eq(inner_in.busy),
            out.flit.eq(inner_out.flit), out.valid.eq(inner_out.valid), inner_out.busy.eq(out.busy),
        ]  # fmt: skip
        getattr(self, f"_{self.breaks}")(m, into, inner_in, out, inner_out)
        return m

    def _is(self, flit, *kinds):
        return flit.type.matches(*kinds)

    def _completes(self, flit):
        return self._is(flit, FlitType.CU_SIGNAL) & (
            data.View(view(CU_SIGNAL), flit.payload).code != SignalCode.DATA_RECEIVED
        )

    def _out_withdrawn(self, m, into, inner_in, out, inner_out):
        pause = Signal()
        m.d.sync += pause.eq(out.valid & out.busy)
        with m.If(pause):
            m.d.comb += [out.valid.eq(0), inner_out.busy.eq(1)]

    def _out_changed(self, m, into, inner_in, out, inner_out):
        refused = Signal()
        m.d.sync += refused.eq(out.valid & out.busy)
        m.d.comb += out.flit.payload[7].eq(inner_out.flit.payload[7] ^ refused)

    def _wedged(self, m, into, inner_in, out, inner_out):
        seen = Signal(8)
        stuck = seen >= 20
        with m.If(stuck):
            m.d.comb += [into.busy.eq(1), inner_in.valid.eq(0)]
        with m.Elif(into.valid & ~inner_in.busy):
            m.d.sync += seen.eq(seen + 1)

    def _wrong_source(self, m, into, inner_in, out, inner_out):
        m.d.comb += out.flit.src_x.eq(0)

    def _completion_unasked(self, m, into, inner_in, out, inner_out):
        beat = Signal(3)
        m.d.sync += beat.eq(beat + 1)
        with m.If(beat == 0):
            m.d.comb += into.busy.eq(1)

    def _completion_wrong(self, m, into, inner_in, out, inner_out):
        with m.If(self._completes(inner_out.flit)):
            m.d.comb += out.flit.txn.eq(inner_out.flit.txn + 1)

    def _completion_early(self, m, into, inner_in, out, inner_out):
        """Instructions never reach the unit; each is answered three cycles after its transfer."""
        accepted = into.valid & ~into.busy & self._is(into.flit, FlitType.CU_INST)
        wait = Signal(2)
        answer = Signal(FLIT)
        pending = Signal()
        m.d.comb += [
            into.busy.eq(inner_in.busy | pending),
            inner_in.valid.eq(into.valid & ~pending & ~self._is(into.flit, FlitType.CU_INST)),
        ]
        with m.If(accepted):
            payload = data.View(view(CU_SIGNAL), answer.payload)
            m.d.sync += [
                wait.eq(2), pending.eq(1), answer.eq(into.flit),
                answer.dst_x.eq(into.flit.src_x), answer.dst_y.eq(into.flit.src_y),
                answer.src_x.eq(into.flit.dst_x), answer.src_y.eq(into.flit.dst_y),
                answer.type.eq(FlitType.CU_SIGNAL), answer.last.eq(1),
                payload.code.eq(Mux(into.flit.last, SignalCode.BATCH_COMPLETE, SignalCode.INST_COMPLETE)),
                payload.arg.eq(into.flit.txn),
            ]  # fmt: skip
        with m.If(pending & (wait != 0)):
            m.d.sync += wait.eq(wait - 1)
        with m.If(pending & (wait == 0)):
            m.d.comb += [out.flit.eq(answer), out.valid.eq(1), inner_out.busy.eq(1)]
            with m.If(~out.busy):
                m.d.sync += pending.eq(0)

    def _reply_unasked(self, m, into, inner_in, out, inner_out):
        again = Signal()
        with m.If(inner_out.valid & self._is(inner_out.flit, FlitType.CU_CTRL) & ~again):
            m.d.comb += inner_out.busy.eq(1)
            with m.If(~out.busy):
                m.d.sync += again.eq(1)
        with m.Elif(~out.busy):
            m.d.sync += again.eq(0)

    def _framing(self, m, into, inner_in, out, inner_out):
        with m.If(self._is(inner_out.flit, FlitType.MEM_WR_DATA, FlitType.CU_DATA)):
            m.d.comb += out.flit.last.eq(0)

    def _write_overlap(self, m, into, inner_in, out, inner_out):
        with m.If(inner_out.valid & self._is(inner_out.flit, FlitType.MEM_WR_DATA) & inner_out.flit.last):
            m.d.comb += [out.valid.eq(0), inner_out.busy.eq(0)]

    def _busy_by_type(self, m, into, inner_in, out, inner_out):
        beat = Signal(3)
        m.d.sync += beat.eq(beat + 1)
        with m.If(self._is(into.flit, FlitType.CU_DATA) & (beat != 0)):
            m.d.comb += [into.busy.eq(1), inner_in.valid.eq(0)]

    def _holds_unknown(self, m, into, inner_in, out, inner_out):
        with m.If(into.flit.type >= 9):
            m.d.comb += [into.busy.eq(1), inner_in.valid.eq(0)]

    def _keeps_unknown(self, m, into, inner_in, out, inner_out):
        kept = Signal(3)
        with m.If(into.valid & ~into.busy & (into.flit.type >= 9)):
            m.d.sync += kept.eq(kept + 1)
        with m.If(kept == 6):
            m.d.comb += [into.busy.eq(1), inner_in.valid.eq(0)]

    def _silent_when_wedged(self, m, into, inner_in, out, inner_out):
        held = Signal(8)
        with m.If(into.valid & ~into.busy & self._is(into.flit, FlitType.CU_INST)):
            m.d.sync += held.eq(held + 1)
        with m.Elif(out.valid & ~out.busy & self._completes(out.flit)):
            m.d.sync += held.eq(held - 1)
        with m.If((held != 0) & inner_out.valid & self._is(inner_out.flit, FlitType.CU_CTRL)):
            m.d.comb += [out.valid.eq(0), inner_out.busy.eq(0)]

    def _reply_value(self, m, out, inner_out, **fields):
        reply = data.View(view(CU_CTRL_REPLY), out.flit.payload)
        caps = data.View(view(CU_CAPS), reply.value)
        with m.If(self._is(inner_out.flit, FlitType.CU_CTRL) & (reply.index == 0)):
            m.d.comb += [getattr(caps, name).eq(value) for name, value in fields.items()]

    def _wrong_depth(self, m, into, inner_in, out, inner_out):
        self._reply_value(m, out, inner_out, inst_depth=14)

    def _wrong_buffers(self, m, into, inner_in, out, inner_out):
        self._reply_value(m, out, inner_out, buffers=4)

    def _lost_completion(self, m, into, inner_in, out, inner_out):
        count = Signal(range(7))
        gone = inner_out.valid & self._completes(inner_out.flit) & (count == 6)
        with m.If(gone):
            m.d.comb += [out.valid.eq(0), inner_out.busy.eq(0)]
        with m.If(inner_out.valid & ~inner_out.busy & self._completes(inner_out.flit)):
            m.d.sync += count.eq(Mux(count == 6, 0, count + 1))

    def _withheld_phase(self, m, into, inner_in, out, inner_out):
        """What leaves after a long wait is lost on the way: the flit is still offered, as something else."""
        waited = Signal(range(101))
        with m.If(~(out.valid & out.busy)):
            m.d.sync += waited.eq(0)
        with m.Elif(waited != 100):
            m.d.sync += waited.eq(waited + 1)
        swallow = Signal()
        with m.If(waited == 99):
            m.d.sync += swallow.eq(1)
        with m.If(swallow & ~out.valid):
            m.d.sync += swallow.eq(0)
        with m.If(swallow & inner_out.valid & self._completes(inner_out.flit) & (waited == 0)):
            # the one behind the flit that was held
            m.d.comb += [out.valid.eq(0), inner_out.busy.eq(0)]
            m.d.sync += swallow.eq(0)


class RudeSender(wiring.Component):
    """`checked` behind a sender that breaks the hold rule: `withdraws` a refused flit, or changes it."""

    def __init__(self, checked: wiring.Component, *, withdraws: bool):
        self.checked = checked
        self.withdraws = withdraws
        super().__init__(dict(checked.signature.members))

    def elaborate(self, platform):
        m = Module()
        m.submodules.checked = checked = self.checked
        for name in checked.signature.members:
            if name != "in_link":
                wiring.connect(m, wiring.flipped(getattr(self, name)), getattr(checked, name))
        refused = Signal()
        mine, theirs = self.in_link, checked.in_link
        m.d.sync += refused.eq(theirs.valid & theirs.busy)
        m.d.comb += [
            theirs.flit.eq(mine.flit),
            theirs.valid.eq(mine.valid & ~(refused if self.withdraws else 0)),
            mine.busy.eq(theirs.busy | (refused if self.withdraws else 0)),
        ]
        if not self.withdraws:
            m.d.comb += theirs.flit.payload[3].eq(mine.flit.payload[3] ^ refused)
        return m
