"""Where the control agent and the memory engines meet the mesh (docs/microarchitecture.md, agent ports).

`AgentPort` is one such place. The agent behind it joins its ports with `AgentSide`: one flit a cycle in, round robin,
and one flit a cycle out, by the port on the destination's row.
"""

from __future__ import annotations

from amaranth import Array, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from kohakutpu.isa.flit import FlitType

from .emit import shared
from .fifo import Fifo
from .link import FLIT, LinkSignature
from .parameters import known_fault

INTAKE_DEPTH = 2  # one flit a cycle with a registered full flag
STRAY_BITS = 32
MEMORY_TYPES = (FlitType.MEM_RD_REQ, FlitType.MEM_WR_REQ, FlitType.MEM_WR_DATA)

FAULTS = {
    "memory-first": "the memory engine goes before the agent at the output register",
    "write-data-to-agent": "MEM_WR_DATA goes to the agent's intake",
    "stuck-turn": "the round robin over ports always asks port 0 first",
    "first-row": "of several ports on the destination's row the first is taken, not the last",
}


class AgentSignature(wiring.Signature):
    """A port's view of the agent: `head` is what came in, `send` what is to leave by this port."""

    def __init__(self):
        super().__init__(
            {
                "head": Out(FLIT),
                "head_valid": Out(1),
                "head_pop": In(1),
                "send": In(FLIT),
                "send_valid": In(1),
                "send_ready": Out(1),
            }
        )

    def __eq__(self, other):
        return isinstance(other, AgentSignature)


class AgentPort(wiring.Component):
    """A place on the mesh of the agent (`agent`), of a memory engine (`memory`), or of both.

    Members: `in_link`, `out_link`. With `agent`: `agent` (`AgentSignature`). With `memory`: `memory`, a link to the
    memory engine that carries MEM_RD_REQ, MEM_WR_REQ and MEM_WR_DATA only (its `busy` may depend on the type: two
    queues lie behind it); `response`, `response_valid` and `response_ready`, which load the output register when both
    are high; without `agent` also `strays`, flits dropped because they were for an agent that is not here.
    """

    def __init__(self, *, agent: bool, memory: bool, fault: str | None = None):
        if not (agent or memory):
            raise TypeError("AgentPort serves an agent, a memory engine or both")
        self.has_agent, self.has_memory = agent, memory
        self.fault = known_fault("AgentPort", fault, FAULTS)
        members = {"in_link": In(LinkSignature()), "out_link": Out(LinkSignature())}
        if agent:
            members["agent"] = Out(AgentSignature())
        else:
            members["strays"] = Out(STRAY_BITS)
        if memory:
            members |= {
                "memory": Out(LinkSignature()),
                "response": In(FLIT),
                "response_valid": In(1),
                "response_ready": Out(1),
            }
        super().__init__(members)

    def elaborate(self, platform):
        m = Module()
        arriving = self.in_link.flit
        for_memory = Signal()
        busy_agent = Signal()
        if self.has_memory:
            types = MEMORY_TYPES[:2] if self.fault == "write-data-to-agent" else MEMORY_TYPES
            m.d.comb += [
                for_memory.eq(arriving.type.matches(*types)),
                self.memory.flit.eq(arriving),
                self.memory.valid.eq(self.in_link.valid & for_memory),
            ]
        m.d.comb += self.in_link.busy.eq(Mux(for_memory, self.memory.busy if self.has_memory else 0, busy_agent))
        if self.has_agent:
            m.submodules.intake = intake = shared(Fifo, width=FLIT.size, depth=INTAKE_DEPTH)
            m.d.comb += [
                intake.push.eq(self.in_link.valid & ~for_memory),
                intake.push_data.eq(arriving),
                busy_agent.eq(intake.full),
                self.agent.head.eq(intake.head),
                self.agent.head_valid.eq(intake.valid),
                intake.pop.eq(self.agent.head_pop),
            ]
        else:
            m.d.sync += self.strays.eq(self.strays + (self.in_link.valid & ~for_memory))
        # The output register: the agent, then the memory engine.
        out = self.out_link
        free = Signal()
        m.d.comb += free.eq(~(out.valid & out.busy))
        offers = []
        if self.has_agent:
            offers.append((self.agent.send, self.agent.send_valid, self.agent.send_ready))
        if self.has_memory:
            offers.append((self.response, self.response_valid, self.response_ready))
        if self.fault == "memory-first":
            offers.reverse()
        earlier = Const(0)
        with m.If(free):
            m.d.sync += out.valid.eq(0)
        for flit, valid, ready in offers:
            m.d.comb += ready.eq(free & ~earlier)
            with m.If(ready & valid):
                m.d.sync += [out.flit.eq(flit), out.valid.eq(1)]
            earlier = earlier | valid
        return m


class AgentSide(wiring.Component):
    """The agent's side of its ports; `rows` holds each port's y.

    Members: `ports` (an array of `AgentSignature`, as the ports see it); `flit`, `valid` and `take`: what arrived,
    popped by `take`; `send`, `send_valid` and `send_ready`: the head of the agent's transmit FIFO, popped when both
    are high.
    """

    def __init__(self, *, rows: tuple[int, ...], fault: str | None = None):
        if not rows or any(not 0 <= row < 16 for row in rows):
            raise TypeError(f"AgentSide rows must be the rows (0 to 15) of its ports, not {rows!r}")
        self.rows = tuple(rows)
        self.fault = known_fault("AgentSide", fault, FAULTS)
        super().__init__(
            {
                "ports": In(AgentSignature()).array(len(self.rows)),
                "flit": Out(FLIT),
                "valid": Out(1),
                "take": In(1),
                "send": In(FLIT),
                "send_valid": In(1),
                "send_ready": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        count = len(self.rows)
        turn = Signal(range(count))  # the port that is asked first
        served = Signal(range(count))
        waiting = Signal(count)
        m.d.comb += [waiting[i].eq(port.head_valid) for i, port in enumerate(self.ports)]
        for start in range(count):
            with m.If(turn == start):
                # assigned last, the first port in turn overrides those after it
                for step in reversed(range(count)):
                    candidate = (start + step) % count
                    with m.If(waiting[candidate]):
                        m.d.comb += served.eq(candidate)
        m.d.comb += [self.valid.eq(waiting.any()), self.flit.eq(Array([port.head for port in self.ports])[served])]
        for i, port in enumerate(self.ports):
            m.d.comb += port.head_pop.eq(self.take & self.valid & (served == i))
        if self.fault != "stuck-turn":
            with m.If(self.take & self.valid):
                m.d.sync += turn.eq(Mux(served == count - 1, 0, served + 1))

        target = Signal(range(count))
        order = list(enumerate(self.rows))
        for i, row in reversed(order) if self.fault == "first-row" else order:
            with m.If(self.send.dst_y == row):
                m.d.comb += target.eq(i)
        for i, port in enumerate(self.ports):
            m.d.comb += [port.send.eq(self.send), port.send_valid.eq(self.send_valid & (target == i))]
        m.d.comb += self.send_ready.eq(Array([port.send_ready for port in self.ports])[target])
        return m
