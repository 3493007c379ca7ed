"""The endpoint base every unit shares: demultiplexing, one instruction in flight, completions, CU_CTRL.

Timing is `docs/microarchitecture.md`, section "Endpoint base". A unit subclasses `Endpoint` and
implements `unit_step`; the base decides who owns the output register in a cycle, in the order
completion signal, CU_CTRL reply, unit.
"""

from __future__ import annotations

from kohakutpu.isa.flit import Flit, FlitType, type_name, xy
from kohakutpu.isa.signals import (
    CU_CAPS,
    CU_CTRL_REPLY,
    CU_CTRL_REQUEST,
    CU_SIGNAL,
    CU_STATUS,
    ControlIndex,
    SignalCode,
)
from kohakutpu.noc.engine import NEVER, Component, Engine, Fifo, Link
from kohakutpu.wording import counted

COMPLETION_DEPTH = 16
CU_INST, CU_CTRL = int(FlitType.CU_INST), int(FlitType.CU_CTRL)  # plain integers: compared for every flit
WORD32 = (1 << 32) - 1


class Endpoint(Component):
    """A compute unit's port: `in_link`'s sink, `out` its output register.

    `node` is the packed {y,x} coordinate; `unit_type` and `version` identify the unit in CU_CAPS;
    `buffers`, `inst_depth` and `recv_depth` are what the unit really has.
    """

    def __init__(self, engine: Engine, name: str, *, node: int, unit_type: int, version: int,
                 buffers: int, inst_depth: int, recv_depth: int):  # fmt: skip
        super().__init__(engine, name)
        self.node = node
        self.unit_type = unit_type
        self.version = version
        self.buffers = buffers
        self.inst = Fifo(inst_depth)
        self.recv = Fifo(recv_depth)
        self.completions = Fifo(COMPLETION_DEPTH)
        self.out = Link(engine, f"{name}.out", self)
        self.in_link: Link | None = None  # set by whoever connects the endpoint
        self.reply: Flit | None = None
        self.reply_since = NEVER
        self.in_flight: Flit | None = None
        self.retired = 0
        self._busy_since: int | None = None
        self._busy_cycles = 0
        self._may_send = False
        self._taken = self._retired_at = -1  # cycles of the last instruction taken and retired
        self.last_signal: tuple[int, int, int] | None = None  # (cycle, code, arg)

    # ---- inbound -----------------------------------------------------------------------------------

    def accept(self, flit: Flit, now: int) -> bool:
        """Phase A: take the offered flit unless either FIFO is full."""
        inst, recv = self.inst, self.recv
        if len(inst.items) >= inst.depth or len(recv.items) >= recv.depth:
            return False
        kind = flit[2]
        if kind == CU_INST:
            if self._busy_since is None:
                self._busy_since = now + 1
            inst.push(flit, now)
        elif kind == CU_CTRL:
            if self.reply is None:
                self.reply = self._control_reply(flit, now)
                self.reply_since = now
        else:
            recv.items.append(flit)
            recv.pushed = now
        if self.due > now + 1:
            self.engine.schedule(self, now + 1)
        return True

    def _control_reply(self, flit: Flit, now: int) -> Flit:
        index = CU_CTRL_REQUEST.get(flit.payload, "index")
        payload = CU_CTRL_REPLY.encode(index=index, value=self.control_value(index, now))
        return Flit(flit.src, self.node, FlitType.CU_CTRL, flit.txn, 1, 0, payload)

    def control_value(self, index: int, now: int) -> int:
        """The 64-bit value behind a CU_CTRL index at the start of cycle `now`."""
        if index == ControlIndex.CAPS:
            return CU_CAPS.encode(
                type=self.unit_type, version=self.version, buffers=self.buffers, inst_depth=self.inst.depth
            )
        if index == ControlIndex.STATUS:
            return CU_STATUS.encode(busy=int(self.busy), inst_space=self.inst.depth - len(self.inst.items))
        if index == ControlIndex.COUNTERS:
            return (self.retired & WORD32) << 32 | (self.busy_cycles(now) & WORD32)
        if index == ControlIndex.DEBUG:
            return self.debug_counter(now)
        return 0

    def debug_counter(self, now: int) -> int:
        """The unit's own 64-bit counter word (CU_CTRL index 3)."""
        return 0

    @property
    def busy(self) -> bool:
        """An instruction is queued or in flight, or a completion has not left."""
        return self.in_flight is not None or bool(self.inst.items) or bool(self.completions.items)

    def busy_cycles(self, now: int) -> int:
        """Cycles before `now` in which the endpoint was busy."""
        open_span = 0 if self._busy_since is None else max(0, now - self._busy_since)
        return self._busy_cycles + open_span

    # ---- what a unit uses inside unit_step -----------------------------------------------------------

    def instruction(self, now: int) -> Flit | None:
        """The next instruction, when the unit may take it this cycle."""
        if self.in_flight is not None or self._retired_at == now or self.completions.full(now):
            return None
        return self.inst.head(now)

    def take_instruction(self, now: int) -> Flit:
        """Accept the instruction; it is in flight from the next cycle."""
        assert self.in_flight is None and self._retired_at != now, f"{self.name}: two instructions in flight"
        self.in_flight = flit = self.inst.pop(now)
        self._taken = now
        self.in_link.retry()
        if self.engine.observer is not None:
            self.engine.observer.begin(self, flit, now)
        return flit

    def receive(self, now: int) -> Flit | None:
        """The head of the receive FIFO."""
        return self.recv.head(now)

    def pop_receive(self, now: int) -> Flit:
        flit = self.recv.pop(now)
        self.in_link.retry()
        return flit

    def complete(self, now: int, result: int, *, fault: bool = False) -> None:
        """Retire the instruction in flight; never in the cycle that accepted it."""
        flit = self.in_flight
        assert flit is not None, f"{self.name}: completion with no instruction in flight"
        assert self._taken < now, f"{self.name}: completion in the cycle that accepted the instruction"
        self.in_flight = None
        if self.engine.observer is not None:
            self.engine.observer.retire(self, flit, now, result, fault)
        self._retired_at = now
        self.retired += 1
        if fault:
            code, arg = SignalCode.FAULT, result
        elif flit.last:
            code, arg = SignalCode.BATCH_COMPLETE, flit.txn
        else:
            code, arg = SignalCode.INST_COMPLETE, result
        payload = CU_SIGNAL.encode(code=code, arg=arg & WORD32)
        self.completions.push(Flit(flit.src, self.node, FlitType.CU_SIGNAL, flit.txn, 1, 0, payload), now)
        self.last_signal = (now, int(code), arg)

    @property
    def may_send(self) -> bool:
        """The output register is the unit's to load this cycle."""
        return self._may_send

    def send(self, flit: Flit) -> None:
        assert self._may_send, f"{self.name}: the output register is not the unit's in this cycle"
        self._may_send = False
        self.out.send(flit)
        if flit.type == FlitType.CU_SIGNAL:
            code, arg = CU_SIGNAL.get(flit.payload, "code"), CU_SIGNAL.get(flit.payload, "arg")
            self.last_signal = (self.engine.now, code, arg)

    def wait_to_send(self) -> None:
        """The unit holds a flit and may not send: step again in the cycle in which the register frees."""
        self.out.wanted = True

    # ---- the clock ---------------------------------------------------------------------------------

    def step(self, now: int) -> int:
        out = self.out
        completions = self.completions
        self._may_send = False
        if out.flit is None:
            if completions.items and completions.head(now) is not None:
                out.send(completions.pop(now))
            elif self.reply is not None and self.reply_since < now:
                out.send(self.reply)
                self.reply = None
            else:
                self._may_send = True
        following = self.unit_step(now)
        if completions.items or self.reply is not None:
            if out.flit is None:
                following = now + 1
            else:
                out.wanted = True
        if self.in_flight is None:
            if self.inst.items:
                if len(completions.items) < COMPLETION_DEPTH:
                    following = now + 1
            elif self._busy_since is not None and not completions.items:
                self._busy_cycles += now + 1 - self._busy_since
                self._busy_since = None
        return following

    def unit_step(self, now: int) -> int:
        """The unit's work in cycle `now`; returns the next cycle it must run in unless woken."""
        raise NotImplementedError

    def describe(self) -> list[str]:
        lines = []
        if self.busy or self.recv.items or self.out.flit is not None or self.reply is not None:
            flight = "none"
            if self.in_flight is not None:
                txn, payload = self.in_flight.txn, self.in_flight.payload
                flight = f"txn {txn:#04x} since cycle {self._taken}, payload {payload:064x}"
            lines.append(
                f"{self.name} {xy(self.node)}: instruction in flight {flight}; {len(self.inst)} queued, "
                f"{counted(len(self.recv), 'received flit')} waiting, {counted(len(self.completions), 'completion')} "
                "unsent"
            )
            if self.recv.items:
                head = self.recv.items[0]
                lines.append(f"  the first received flit is a {type_name(head.type)} from {xy(head.src)}")
            if self.out.flit is not None:
                lines.append(f"  output register holds a {type_name(self.out.flit.type)} for {xy(self.out.flit.dst)}")
        return lines
