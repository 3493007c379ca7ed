"""Where the control agent and the memory engines meet the mesh.

An `AgentPort` is a place at which the agent's flits enter and leave; a `MagPort` is one that it shares with
the memory engine of a memory-agent port. The two parties behind a `MagPort` never talk to each other: the
port splits what comes in by type and decides, cycle by cycle, whose its output register is.

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
    port.wake(cycle)            step at `cycle` at the latest; within a cycle only later cycles.
    port.node, port.index       packed coordinate and number.

The builder of the engines is `memory_agent.build_memory_agent(engine, machine, ports, *, errata, faults, memory)`;
`memory` is None or the byte store to keep over a reset. It sets `port.memory` on each port and returns an object with
`memory` (the byte store: read, write), `window` (the host memory window, a DRAM requester of its own:
`begin_write(addr, data)`, `begin_read(addr, length)`, `busy`, `take_data()`) and `mover` (None, or an object with
`configure(offset, value, now)`, `busy`, `done`, `fault`).
"""

from __future__ import annotations

from kohakutpu.isa.flit import Flit, FlitType, type_name, xy
from kohakutpu.noc.engine import NEVER, Component, Engine, Fifo, Link
from kohakutpu.wording import counted

INTAKE_DEPTH = 2  # one flit a cycle with a registered full flag
MEMORY_TYPES = frozenset({FlitType.MEM_RD_REQ, FlitType.MEM_WR_REQ, FlitType.MEM_WR_DATA})


class AgentPort(Component):
    """Where the agent meets the mesh: `in_link`'s sink, and the output register `out` (`<name>.out`)."""

    def __init__(self, engine: Engine, name: str, *, node: int, index: int = 0, agent: Agent | None = None):
        super().__init__(engine, name)
        self.node = node
        self.index = index
        self.agent = agent
        self.out = Link(engine, f"{name}.out", self)
        self.in_link: Link | None = None
        self.intake = Fifo(INTAKE_DEPTH)  # flits on their way to the agent
        self.may_send = False

    def accept(self, flit: Flit, now: int) -> bool:
        """Phase A: take a flit for the agent while the intake has room."""
        if len(self.intake.items) >= INTAKE_DEPTH:
            return False
        self.intake.push(flit, now)
        self.agent.wake(now + 1)
        return True

    def step(self, now: int) -> int:
        out = self.out
        agent = self.agent
        outbound = agent is not None and agent.tx.items and agent.has_outbound(self.index, now)
        self.may_send = out.flit is None and not outbound
        if outbound:
            if out.flit is None:
                out.send(agent.pop_outbound(now))
            else:
                out.wanted = True
        return NEVER

    def describe(self) -> list[str]:
        lines = []
        if self.intake:
            lines.append(f"{counted(len(self.intake), 'flit')} waiting for the agent")
        if self.out.flit is not None:
            lines.append(f"output register holds a {type_name(self.out.flit.type)} for {xy(self.out.flit.dst)}")
        return self._titled(lines)

    def _titled(self, lines: list[str]) -> list[str]:
        return [f"{self.name} {xy(self.node)}:", *(f"  {line}" for line in lines)] if lines else []


class MagPort(AgentPort):
    """Port `index` of the memory agent; `agent` is None when the agent has an endpoint of its own."""

    def __init__(self, engine: Engine, name: str, *, node: int, index: int, agent: Agent | None = None):
        super().__init__(engine, name, node=node, index=index, agent=agent)
        self.memory = None
        self.strays = 0  # flits for an agent that is not here

    def accept(self, flit: Flit, now: int) -> bool:
        """Phase A: memory traffic to the engine, everything else to the agent."""
        if flit[2] in MEMORY_TYPES:
            return self.memory.accept(flit, now)
        if self.agent is None:
            self.strays += 1
            return True
        return super().accept(flit, now)

    def send(self, flit: Flit) -> None:
        """The memory engine loads the output register."""
        assert self.may_send, f"{self.name}: the output register is not the memory engine's in this cycle"
        self.may_send = False
        self.out.send(flit)

    def wait_to_send(self) -> None:
        self.out.wanted = True

    def step(self, now: int) -> int:
        super().step(now)
        return self.memory.step(now)

    def describe(self) -> list[str]:
        lines = self.memory.describe()
        if self.strays:
            lines = [*lines, f"dropped {counted(self.strays, 'flit')} for an agent that is not here"]
        return [*super().describe(), *self._titled(lines)]


class Agent(Component):
    """The control agent's mesh side: a transmit FIFO spread over ports, and one flit a cycle in from any of them.

    `node` is its coordinate. `holds` says what happens to a flit that it cannot take: on an endpoint of its
    own it waits at the head of the intake, on shared ports it is dropped so that memory behind it keeps flowing.
    """

    def __init__(self, engine: Engine, name: str, *, node: int, holds: bool, tx_depth: int):
        super().__init__(engine, name)
        self.node = node
        self.holds = holds
        self.tx = Fifo(tx_depth)
        self.ports: list[AgentPort] = []
        self.turn = 0  # the port that is asked first
        self.dropped = 0

    @property
    def in_link(self) -> Link:
        """The link into port 0, where the agent's own coordinate is."""
        return self.ports[0].in_link

    # ---- outbound: the ports ask, in phase B -------------------------------------------------------

    def _port_of(self, flit: Flit) -> AgentPort:
        """The port on the destination's row (the last that matches), else port 0."""
        row = xy(flit.dst)[1]
        return next((port for port in reversed(self.ports) if xy(port.node)[1] == row), self.ports[0])

    def has_outbound(self, index: int, now: int) -> bool:
        """The transmit FIFO's head leaves by port `index` in this cycle; one flit leaves a cycle."""
        if self.tx.popped == now:
            return False
        head = self.tx.head(now)
        return head is not None and self._port_of(head).index == index

    def pop_outbound(self, now: int) -> Flit:
        flit = self.tx.pop(now)
        if self.tx.items:
            self._port_of(self.tx.items[0]).wake(now + 1)
        self.transmitted(now)
        return flit

    def push_outbound(self, flit: Flit, now: int) -> None:
        self.tx.push(flit, now)
        if len(self.tx.items) == 1:
            self._port_of(flit).wake(now + 1)

    def transmitted(self, now: int) -> None:
        """A flit has left the transmit FIFO."""

    # ---- inbound: round robin over the ports, one flit a cycle ---------------------------------------

    def take(self, flit: Flit, now: int) -> bool:
        """Phase B: absorb one flit; False when there is no room for it."""
        raise NotImplementedError

    def take_inbound(self, now: int) -> int:
        """Absorb the next flit; returns the next cycle in which another may be ready."""
        count = len(self.ports)
        for offset in range(count):
            port = self.ports[(self.turn + offset) % count]
            flit = port.intake.head(now)
            if flit is not None:
                if self.take(flit, now):
                    pass
                elif self.holds:
                    return NEVER
                else:
                    self.dropped += 1
                port.intake.pop(now)
                port.in_link.retry()
                self.turn = (port.index + 1) % count
                break
        return now + 1 if any(port.intake.items for port in self.ports) else NEVER
