"""An injection endpoint in the control agent's place: what a bench drives the mesh with."""

from __future__ import annotations

from kohakutpu.isa.flit import Flit, xy
from kohakutpu.machine import Machine
from kohakutpu.model.mag import Agent
from kohakutpu.noc.engine import Engine
from kohakutpu.wording import counted

UNBOUNDED = 1 << 40


class Bench(Agent):
    """Sends the flits it is given, one a cycle and as they are, and takes whatever arrives.

    `received` lists (cycle, flit) of everything that arrived, with the cycle in which the agent's place took it
    over from its port, one after the link transfer at the earliest.
    """

    def __init__(self, engine: Engine, machine: Machine):
        super().__init__(engine, "bench", node=machine.agent.node, holds=False, tx_depth=UNBOUNDED)
        self.received: list[tuple[int, Flit]] = []
        self._last: Flit | None = None

    def inject(self, flit: Flit) -> None:
        """Queue a flit between two cycles; the first in the queue may enter the output register in the next cycle."""
        self.push_outbound(flit, self.engine.now - 1)

    @property
    def sent(self) -> bool:
        """Every flit injected so far has been accepted by the mesh."""
        return not self.tx.items and not any(port.out.flit is self._last for port in self.ports if port.out.flit)

    def pop_outbound(self, now: int) -> Flit:
        self._last = super().pop_outbound(now)
        return self._last

    def take(self, flit: Flit, now: int) -> bool:
        self.received.append((now, flit))
        return True

    def step(self, now: int) -> int:
        return self.take_inbound(now)

    def describe(self) -> list[str]:
        if not self.tx.items:
            return []
        return [f"{self.name} {xy(self.node)}: {counted(len(self.tx), 'flit')} to send, {len(self.received)} received"]
