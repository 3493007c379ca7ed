"""The model's side of the orchestrator bench: the same flits, the same host accesses in the same cycles."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

from kohakutpu.isa.flit import Flit
from kohakutpu.machine import Machine
from kohakutpu.model.mag import AgentPort, MagPort
from kohakutpu.model.orchestrator import Orchestrator
from kohakutpu.noc.engine import Engine

from .links import Links
from .models import Peer, Transfer


class EngineTwin:
    """A memory engine as the bench plays it: takes unless `busy(cycle)`, sends from a register as `responseN` does."""

    def __init__(self, port: MagPort, busy, sends: list[tuple[int, Flit]], moved: list[Transfer]):
        self.port = port
        self.busy = busy
        self.queue = deque(sends)
        self.held: Flit | None = None
        self.moved = moved

    def accept(self, flit: Flit, now: int) -> bool:
        if self.busy is not None and self.busy(now):
            return False
        self.moved.append((now, f"memory{self.port.index}", flit))
        return True

    def step(self, now: int) -> int:
        if self.held is not None and self.port.may_send:
            self.moved.append((now, f"response{self.port.index}", self.held))
            self.port.send(self.held)
            self.held = None
        if self.held is None and self.queue and self.queue[0][0] <= now:
            self.held = self.queue.popleft()[1]
        # a sink that is busy for a while would have to call `retry`: it is asked in every cycle instead
        self.port.in_link.retry()
        return now + 1

    def describe(self) -> list[str]:
        return []


class AgentModel:
    """The orchestrator of `machine` and its ports, joined with peers; runs a recorded host access list.

    `links` are the RTL bench's: its sinks' `busy` functions are used here too. `kept` holds `mirror` and `staging` as
    they were before reset, `counts` is what each memory engine says it has read and written.
    """

    def __init__(self, machine: Machine, links: Links, sends: dict[str, list[tuple[int, Flit]]],
                 kept, counts: tuple[int, int] = (0, 0)):  # fmt: skip
        self.engine = engine = Engine()
        self.agent = agent = Orchestrator(engine, machine, mirror=list(kept.mirror), staging=list(kept.staging))
        self.moved: list[Transfer] = []
        names = {}
        own = machine.agent.own_endpoint
        places = [machine.agent] if own else machine.ports
        agent.ports = []
        for index, place in enumerate(places):
            if own:
                port = AgentPort(engine, "agent", node=place.node, agent=agent)
            else:
                port = MagPort(engine, f"mag{index}", node=place.node, index=index, agent=agent)
                port.memory = EngineTwin(
                    port, links.sinks[f"memory{index}"].busy, sends.get(f"response{index}", []), self.moved
                )
            agent.ports.append(port)
            peer = Peer(engine, f"peer{index}")
            peer.busy = links.sinks[f"out_link{index}"].busy
            peer.join(port)
            for at, flit in sends.get(f"in_link{index}", []):
                peer.send(flit, at=at)
            names |= {id(peer.out): f"in_link{index}", id(port.out): f"out_link{index}"}
            port.wake(0)
        # what AUX_STAT sums up; on an endpoint of its own the agent meets no engine, and the counts come from elsewhere
        engine_counts = SimpleNamespace(memory=SimpleNamespace(reads=counts[0], writes=counts[1]))
        agent.memory_ports = [engine_counts] * len(machine.ports)
        engine.on_transfer = lambda cycle, link, flit: self.moved.append((cycle, names[id(link)], flit))

    def run(self, accesses: list[tuple], cycles: int) -> list[int]:
        """Make the accesses (cycle, kind, offset, value, strobe) and return what the reads gave, in order.

        A write ('w') is in force from its cycle on, a read ('r') sees the start of its cycle.
        """
        values = []
        for cycle, kind, offset, value, strobe in sorted(accesses, key=lambda item: (item[0], item[1] == "r")):
            self.engine.advance(cycle - self.engine.now)
            if kind == "w":
                self.agent.write(offset, value, cycle, strobe)
            else:
                values.append(self.agent.read(offset, cycle))
        self.engine.advance(cycles - self.engine.now)
        return values
