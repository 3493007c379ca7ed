"""Checkers of endpoints, for simulation only: both links of one are watched, and broken rules counted
(`sim.port_rules`).

`PortChecker` stands beside an endpoint. `Checked(unit, node=...)` stands wherever `unit` would, and lets a bench show
the endpoint another flit than the one on offer for a moment, to see whether `busy` depends on it.
"""

from __future__ import annotations

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from kohakutpu.isa.flit import FlitType
from kohakutpu.isa.memory import MEM_REQ
from kohakutpu.isa.signals import CU_CTRL_REPLY, CU_DATA, CU_SIGNAL, ControlOp, SignalCode
from rtl.emit import shared
from rtl.fifo import Fifo
from rtl.link import FLIT, view

from .port_rules import (
    COUNTER_BITS, CYCLE_BITS, OWED, OWED_BITS, OWED_WIDTH, RULES, STATE, STATE_WIDTH, VIOLATIONS_WIDTH,
)  # fmt: skip

# From the accepting transfer to a valid completion: taken one later, retired one later, queue, register.
LEAST_LATENCY = 4
WRITE_BURST = 8
# a link as somebody sees it who drives none of it
WIRES = wiring.Signature({"flit": Out(FLIT), "valid": Out(1), "busy": Out(1)})


class VerdictSignature(wiring.Signature):
    """What a checker says: `violations`, a counter for each rule, and `owed`, what is outstanding
    (`sim.port_rules`)."""

    def __init__(self, **more: wiring.Member):
        super().__init__({"violations": Out(VIOLATIONS_WIDTH), "owed": Out(OWED_WIDTH), **more})

    def __eq__(self, other):
        return type(other) is type(self)


class CheckSignature(VerdictSignature):
    """A verdict of an endpoint that can be probed. `busy` is the endpoint's; while `probe` is high the endpoint sees
    `probe_valid` and a flit of `probe_type` instead of what the network offers, which must be over before the clock
    edge.
    """

    def __init__(self):
        super().__init__(busy=Out(1), probe=In(1), probe_valid=In(1), probe_type=In(4))


class PortChecker(wiring.Component):
    """Watches an endpoint's port: `into` are the wires of the link to it, `out` of the link from it.

    `unit` says that it takes instructions and obeys the rules of the endpoint base; an agent's or a memory port only
    has link rules. `named` says that whatever it sends must name `node`, its packed coordinate, as the source. `bound`
    is for how many cycles it may be busy, None for as long as it likes; `outstanding` how many instructions it can hold
    at most. Members besides: `violations` and `owed` as `VerdictSignature` has them; `state`, `sim.port_rules.STATE`
    packed.
    """

    APART = True

    def __init__(self, *, unit: bool, named: bool, bound: int | None, outstanding: int):
        self.unit = unit
        self.named = named
        self.bound = bound
        self.outstanding = outstanding
        super().__init__(
            {
                "into": In(WIRES), "out": In(WIRES), "node": In(8), "state": Out(STATE_WIDTH),
                **VerdictSignature().members,
            }  # fmt: skip
        )

    def elaborate(self, platform):
        m = Module()
        broken = {name: Signal(name=name) for name in RULES}
        for index, name in enumerate(RULES):
            count = self.violations[COUNTER_BITS * index : COUNTER_BITS * (index + 1)]
            with m.If(broken[name] & ~count.all()):
                m.d.sync += count.eq(count + 1)
        now = Signal(CYCLE_BITS)
        m.d.sync += now.eq(now + 1)
        owing = {name: Signal(OWED_BITS, name=f"owed_{name}") for name in OWED}
        state = {name: Signal(bits, name=f"state_{name}") for name, bits in STATE.items()}
        m.d.comb += [self.owed.eq(Cat(*owing.values())), self.state.eq(Cat(*state.values()))]
        self._hold_rule(m, self.into, broken["in_withdrawn"], broken["in_changed"])
        stalled = self._hold_rule(m, self.out, broken["out_withdrawn"], broken["out_changed"])
        held = self.out.valid & self.out.busy
        m.d.comb += [state["busy"].eq(self.into.busy), state["blocked"].eq(held)]
        if self.bound is not None:
            self._bounded(m, held, broken["wedged"])
        fresh = Signal()  # the first cycle of a flit on the way out
        m.d.comb += fresh.eq(self.out.valid & ~stalled)
        if self.named:
            source = Cat(self.out.flit.src_x, self.out.flit.src_y)
            m.d.comb += broken["wrong_source"].eq(fresh & (source != self.node))
        self._signals(m, fresh, now, state)
        if self.unit:
            self._completions(m, fresh, now, broken, owing["instructions"], state)
            self._replies(m, fresh, broken["reply_unasked"])
            self._writes(m, fresh, broken, owing["write_data"])
            self._bursts(m, fresh, broken["framing"], owing["burst_data"])
        return m

    def _hold_rule(self, m: Module, link, withdrawn: Signal, changed: Signal) -> Signal:
        """A flit that is not taken is offered again unchanged; returns "was not taken in the cycle before"."""
        stalled = Signal()
        before = Signal(FLIT)
        m.d.sync += stalled.eq(link.valid & link.busy)
        with m.If(link.valid & link.busy):  # the simulator has less to copy
            m.d.sync += before.eq(link.flit)
        m.d.comb += [
            withdrawn.eq(stalled & ~link.valid),
            changed.eq(stalled & link.valid & (link.flit.as_value() != before.as_value())),
        ]
        return stalled

    def _bounded(self, m: Module, held, wedged: Signal) -> None:
        run = Signal(range(self.bound + 2))
        with m.If(~self.into.busy):
            m.d.sync += run.eq(0)
        with m.Elif(~held & (run <= self.bound)):
            m.d.sync += run.eq(run + 1)
        m.d.comb += wedged.eq(self.into.busy & ~held & (run == self.bound))

    def _signals(self, m: Module, fresh: Signal, now: Signal, state: dict[str, Signal]) -> None:
        """The last signal raised."""
        flit = self.out.flit
        signal = data.View(view(CU_SIGNAL), flit.payload)
        with m.If(fresh & (flit.type == FlitType.CU_SIGNAL)):
            m.d.sync += [
                state["signals"].eq(state["signals"] + 1),
                state["code"].eq(signal.code),
                state["arg"].eq(signal.arg),
                state["cycle"].eq(now),
            ]

    def _completions(self, m: Module, fresh: Signal, now: Signal, broken: dict[str, Signal], owing: Signal,
                     state: dict[str, Signal]) -> None:  # fmt: skip
        """Completions answer instructions one to one and in order."""
        record = data.StructLayout({"node": 8, "txn": 8, "last": 1, "cycle": CYCLE_BITS})
        m.submodules.order = order = shared(Fifo, width=record.size, depth=self.outstanding)
        arriving, leaving = self.into.flit, self.out.flit
        entry, oldest = Signal(record), Signal(record)
        signal = data.View(view(CU_SIGNAL), leaving.payload)
        completion = Signal()
        wanted = Signal(8)
        m.d.comb += [
            entry.node.eq(Cat(arriving.src_x, arriving.src_y)),
            entry.txn.eq(arriving.txn),
            entry.last.eq(arriving.last),
            entry.cycle.eq(now),
            order.push.eq(self.into.valid & ~self.into.busy & (arriving.type == FlitType.CU_INST)),
            order.push_data.eq(entry),
            broken["overrun"].eq(order.push & order.full),
            oldest.eq(order.head),
            completion.eq(
                fresh & (leaving.type == FlitType.CU_SIGNAL)
                & signal.code.matches(SignalCode.INST_COMPLETE, SignalCode.BATCH_COMPLETE, SignalCode.FAULT)
            ),
            order.pop.eq(completion),
            owing.eq(order.level),
            state["txn"].eq(oldest.txn),
            state["since"].eq(oldest.cycle),
            wanted.eq(Mux(oldest.last, SignalCode.BATCH_COMPLETE, SignalCode.INST_COMPLETE)),
            broken["completion_unasked"].eq(completion & ~order.valid),
        ]  # fmt: skip
        with m.If(completion & order.valid):
            m.d.comb += [
                broken["completion_wrong"].eq(
                    (Cat(leaving.dst_x, leaving.dst_y) != oldest.node)
                    | (leaving.txn != oldest.txn)
                    | ((signal.code != wanted) & (signal.code != SignalCode.FAULT))
                    | ((signal.code == SignalCode.BATCH_COMPLETE) & (signal.arg != oldest.txn))
                ),
                broken["completion_early"].eq((now - oldest.cycle)[:CYCLE_BITS] < LEAST_LATENCY),
            ]

    def _replies(self, m: Module, fresh: Signal, unasked: Signal) -> None:
        arriving, leaving = self.into.flit, self.out.flit
        asked = Signal(8)
        request = Signal()
        reply = Signal()
        payload = data.View(view(CU_CTRL_REPLY), leaving.payload)
        m.d.comb += [
            request.eq(self.into.valid & ~self.into.busy & (arriving.type == FlitType.CU_CTRL)),
            reply.eq(fresh & (leaving.type == FlitType.CU_CTRL) & (payload.op == ControlOp.REPLY)),
            unasked.eq(reply & (asked == 0)),
        ]
        with m.If(request & ~reply & ~asked.all()):
            m.d.sync += asked.eq(asked + 1)
        with m.Elif(reply & ~request & (asked != 0)):
            m.d.sync += asked.eq(asked - 1)

    def _writes(self, m: Module, fresh: Signal, broken: dict[str, Signal], owing) -> None:
        """A write request, then its data flits to the same port, then the next."""
        flit = self.out.flit
        destination = Cat(flit.dst_x, flit.dst_y)
        request = data.View(view(MEM_REQ), flit.payload)
        left = Signal(OWED_BITS)
        target = Signal(8)
        m.d.comb += owing.eq(left)
        with m.If(fresh & (flit.type == FlitType.MEM_WR_REQ)):
            m.d.sync += [left.eq(request.len + 1), target.eq(destination)]
            m.d.comb += [
                broken["write_overlap"].eq(left != 0),
                broken["framing"].eq(flit.last | (request.len >= WRITE_BURST)),
            ]
        with m.If(fresh & (flit.type == FlitType.MEM_WR_DATA)):
            m.d.comb += broken["framing"].eq((left == 0) | (flit.last != (left == 1)) | (destination != target))
            with m.If(left != 0):
                m.d.sync += left.eq(left - 1)

    def _bursts(self, m: Module, fresh: Signal, framing: Signal, owing) -> None:
        """CU_DATA: a descriptor, then as many data flits as it says, for each destination."""
        flit = self.out.flit
        descriptor = data.View(view(CU_DATA), flit.payload)
        m.submodules.left = store = memory.Memory(shape=9, depth=256, init=[])
        write, read = store.write_port(), store.read_port(domain="comb")
        # entries of before a reset do not count
        known = Signal(256)
        left = Signal(9)
        destination = Cat(flit.dst_x, flit.dst_y)
        m.d.comb += [
            read.addr.eq(destination),
            write.addr.eq(destination),
            left.eq(Mux(known.bit_select(destination, 1), read.data, 0)),
        ]
        with m.If(fresh & (flit.type == FlitType.CU_DATA)):
            m.d.comb += write.en.eq(1)
            m.d.sync += known.bit_select(destination, 1).eq(1)
            with m.If(left == 0):
                m.d.comb += [write.data.eq(descriptor.len + 1)]
                m.d.sync += owing.eq(owing + descriptor.len + 1)
                with m.If(flit.last):
                    m.d.comb += framing.eq(1)
            with m.Else():
                m.d.comb += write.data.eq(left - 1)
                m.d.sync += owing.eq(owing - 1)
                with m.If(flit.last != (left == 1)):
                    m.d.comb += framing.eq(1)


def watch(checker: PortChecker, in_link, out_link) -> list:
    """The assignments that connect a checker's wires to both links of an endpoint, whoever drives them."""
    return [
        getattr(wires, name).eq(getattr(link, name))
        for wires, link in ((checker.into, in_link), (checker.out, out_link))
        for name in ("flit", "valid", "busy")
    ]


class Checked(wiring.Component):
    """`endpoint` with its port watched: the same members, and `check` (`CheckSignature`).

    `endpoint` is any component with the members `in_link` and `out_link`. `node` is its packed coordinate, or None
    where it sends for others. `unit`, `bound` and `outstanding` as `PortChecker` has them.
    """

    def __init__(self, endpoint: wiring.Component, *, node: int | None, unit: bool = True, bound: int = 5000,
                 outstanding: int = 1024):  # fmt: skip
        self.endpoint = endpoint
        self.node = node
        self.checker = shared(PortChecker, unit=unit, named=node is not None, bound=bound, outstanding=outstanding)
        super().__init__({**endpoint.signature.members, "check": Out(CheckSignature())})

    def elaborate(self, platform):
        m = Module()
        m.submodules.endpoint = endpoint = self.endpoint
        for name, member in endpoint.signature.members.items():
            mine, theirs = getattr(self, name), getattr(endpoint, name)
            if name == "in_link":
                continue
            if member.is_signature:
                wiring.connect(m, wiring.flipped(mine), theirs)
            elif member.flow is In:
                m.d.comb += theirs.eq(mine)
            else:
                m.d.comb += mine.eq(theirs)
        check, inner = self.check, endpoint.in_link
        m.d.comb += [
            inner.flit.eq(self.in_link.flit),
            inner.valid.eq(Mux(check.probe, check.probe_valid, self.in_link.valid)),
            self.in_link.busy.eq(inner.busy),
            check.busy.eq(inner.busy),
        ]
        with m.If(check.probe):
            m.d.comb += inner.flit.type.eq(check.probe_type)
        m.submodules.checker = checker = self.checker
        m.d.comb += [
            *watch(checker, self.in_link, self.out_link),
            checker.node.eq(self.node or 0),
            check.violations.eq(checker.violations),
            check.owed.eq(checker.owed),
        ]
        return m
