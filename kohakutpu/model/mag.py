"""One memory-agent port on the mesh: who receives a flit, and whose output register it is.

A `MagPort` owns the mesh side of port p: `in_link`'s sink and the output register `out` (`mag0.out`).
Behind it sit two parties that never talk to each other: the port's memory engine and, on machines whose
control agent has no endpoint of its own, the agent (`model/agent.py`).

What a memory engine provides (a plain object, not a `Component`: the port clocks it):

    accept(flit, now) -> bool   phase A, types MEM_RD_REQ, MEM_WR_REQ, MEM_WR_DATA only. From the state at the
                                start of the cycle. After a refusal it calls `port.in_link.retry()` in the phase B
                                in which it makes room.
    step(now) -> int            phase B, called once whenever the port is stepped; returns the next cycle it must be
                                stepped in (`NEVER` when it only waits).
    describe() -> list[str]     state for a hang report.
    reads, writes               requests served since reset (AUX_STAT shows them modulo 65536).

What it may use of the port:

    port.may_send               in `step`: the output register is the engine's to load this cycle (it is free and the
                                agent has no flit for this port).
    port.send(flit)             load it, once a cycle.
    port.wait_to_send()         the engine holds a flit and may not send: step again when the register frees.
    port.wake(cycle)            step at `cycle` at the latest; in phase B only later cycles, in phase A `now` or later.
    port.node, port.index       packed coordinate and number.

The builder of the engines is `memory_agent.build_memory_agent(engine, machine, ports, *, errata, faults)`. It sets
`port.memory` on each port and returns an object with `memory` (the byte store: read, write), `window` (host memory
window: `begin_write(addr, data)`, `begin_read(addr, length)`, `busy`, `take_data()`; a DRAM requester of its own) and
`mover` (None, or an object with `configure(offset, value, now)`, `busy`, `done`, `fault`).
"""

from __future__ import annotations

from kohakutpu.isa.flit import Flit, FlitType, xy
from kohakutpu.noc.engine import NEVER, Component, Engine, Fifo, Link

AGENT_INTAKE_DEPTH = 2
MEMORY_TYPES = frozenset({FlitType.MEM_RD_REQ, FlitType.MEM_WR_REQ, FlitType.MEM_WR_DATA})


class MagPort(Component):
    """Port `index` of the memory agent at `node`; `agent` is None when the agent sits elsewhere."""

    def __init__(self, engine: Engine, name: str, *, node: int, index: int, agent=None):
        super().__init__(engine, name)
        self.node = node
        self.index = index
        self.agent = agent
        self.memory = None
        self.out = Link(engine, f"{name}.out", self)
        self.in_link: Link | None = None
        self.intake = Fifo(AGENT_INTAKE_DEPTH)  # flits on their way to the agent
        self.dropped = 0  # flits for an agent that is not here
        self.may_send = False

    def accept(self, flit: Flit, now: int) -> bool:
        """Phase A: memory traffic to the engine, everything else towards the agent."""
        if flit.type in MEMORY_TYPES:
            return self.memory.accept(flit, now)
        if self.agent is None:
            self.dropped += 1
            return True
        if len(self.intake.items) >= self.intake.depth:
            return False
        self.intake.push(flit, now)
        self.agent.wake(now + 1)
        return True

    def send(self, flit: Flit) -> None:
        self.may_send = False
        self.out.send(flit)

    def wait_to_send(self) -> None:
        self.out.wanted = True

    def step(self, now: int) -> int:
        out = self.out
        agent = self.agent
        if out.flit is not None:
            self.may_send = False
            if agent is not None and agent.outbound(self.index, now):
                out.wanted = True
        elif agent is not None and agent.outbound(self.index, now):
            self.may_send = False
            out.send(agent.pop_outbound(now))
        else:
            self.may_send = True
        return self.memory.step(now)

    def describe(self) -> list[str]:
        x, y = xy(self.node)
        lines = [f"  {line}" for line in self.memory.describe()]
        if self.out.flit is not None:
            lines.append(f"  output register holds a {self.out.flit.type} for {xy(self.out.flit.dst)}")
        if self.intake:
            lines.append(f"  {len(self.intake)} flits wait for the agent")
        return [f"{self.name} ({x},{y}):", *lines] if lines else []


__all__ = ["AGENT_INTAKE_DEPTH", "MEMORY_TYPES", "NEVER", "MagPort"]
