"""A whole machine on the cycle models, built from its description and from nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kohakutpu import errata as errata_registry
from kohakutpu.isa.flit import Flit
from kohakutpu.machine import ClusterUnit, Machine
from kohakutpu.model import faults as fault_registry
from kohakutpu.model.bench import Bench
from kohakutpu.model.cluster import build_cluster
from kohakutpu.model.endpoint import Endpoint
from kohakutpu.model.hang import Hang, report
from kohakutpu.model.host_port import HostPort
from kohakutpu.model.mag import Agent, AgentPort, MagPort
from kohakutpu.model.memory_agent import build_memory_agent
from kohakutpu.model.orchestrator import Orchestrator
from kohakutpu.model.tracing import Recorder
from kohakutpu.model.vector import build_vector
from kohakutpu.noc.engine import Engine, Link
from kohakutpu.noc.mesh import Mesh, Traffic
from kohakutpu.noc.trace import Orderer, TraceWriter
from kohakutpu.noc.trace_tracks import Track, tracks

RESET_CYCLES = 10


class System:
    """`machine` built and out of reset, in cycle 0.

    Parameters: `agent` is 'orchestrator', or 'bench' for an injection endpoint in its place; `skip=False` visits
    every block in every cycle, with equal results; `faults` names entries of `model.faults`; `errata` replaces the
    machine's own set; `on_transfer(cycle, link, flit)` sees every accepted flit; with `latency_seed` the latency of
    every memory burst is drawn from 1 to the machine's (`model.memory.latencies`).

    Members: `engine`, `mesh`, `memory` (the byte store behind the ports, untimed), `ports` (`MagPort` by number),
    `units` (endpoints by packed node byte), `agent`, `host` (timed register and memory accesses), and `orchestrator`
    or `bench`.

    Raises `MachineError` for a compile-only machine, `UnknownFault` and `UnknownErratum` for names nobody knows.
    """

    def __init__(self, machine: Machine, *, agent: str = "orchestrator", skip: bool = True,
                 faults: Iterable[str] = (), errata: Iterable[str] | None = None,
                 on_transfer: Callable[[int, Link, Flit], None] | None = None,
                 latency_seed: int | None = None):  # fmt: skip
        machine.require_mesh()
        if agent not in ("orchestrator", "bench"):
            raise ValueError(f"agent {agent!r}: 'orchestrator' or 'bench' is expected")
        self.machine = machine
        self.faults = fault_registry.check(faults)
        self.errata = machine.errata if errata is None else errata_registry.parse(errata)
        self.engine = Engine(skip=skip)
        self.engine.on_transfer = on_transfer
        self._agent_kind = agent
        self._latency_seed = latency_seed
        self._build()
        self.host = HostPort(self)

    def _build(self, memory=None, kept: Orchestrator | None = None) -> None:
        """Make every block; `memory` and the memories inside `kept` are those of before a reset."""
        engine, machine = self.engine, self.machine
        common = {"errata": self.errata, "faults": self.faults}
        self.mesh = Mesh(engine, machine, self.faults)
        self.agent = self._build_agent(kept)
        shared = None if machine.agent.own_endpoint else self.agent
        self.ports = [
            MagPort(engine, f"mag{index}", node=port.node, index=index, agent=shared)
            for index, port in enumerate(machine.ports)
        ]
        self.memory_agent = build_memory_agent(
            engine, machine, self.ports, memory=memory, latency_seed=self._latency_seed, **common
        )
        self.memory = self.memory_agent.memory
        self.agent.ports = self.ports
        if shared is None:
            self.agent.ports = [AgentPort(engine, "agent", node=self.agent.node, agent=self.agent)]
        if self._agent_kind == "orchestrator":
            self.agent.memory_ports = self.ports
            self.agent.mover = self.memory_agent.mover
        self.units: dict[int, Endpoint] = {}
        for unit in machine.units:
            build = build_cluster if isinstance(unit, ClusterUnit) else build_vector
            self.units[unit.node] = build(engine, unit, machine=machine, **common)
        for place in dict.fromkeys((*self.ports, *self.agent.ports)):
            self.mesh.attach(place, place.node)
        for at, unit in self.units.items():
            self.mesh.attach(unit, at)

    def _build_agent(self, kept: Orchestrator | None) -> Agent:
        if self._agent_kind == "bench":
            return Bench(self.engine, self.machine)
        memories = {} if kept is None else {"mirror": kept.mirror, "staging": kept.staging}
        return Orchestrator(self.engine, self.machine, faults=self.faults, **memories)

    @property
    def orchestrator(self) -> Orchestrator:
        """The agent; refused by name where a bench stands in its place."""
        if not isinstance(self.agent, Orchestrator):
            raise TypeError("this system has a bench in the agent's place: it has no registers")
        return self.agent

    @property
    def bench(self) -> Bench:
        """The injection endpoint; refused by name where there is an orchestrator."""
        if not isinstance(self.agent, Bench):
            raise TypeError("this system has an orchestrator: build it with agent='bench' to inject flits")
        return self.agent

    def reset(self) -> None:
        """Reset everything but memories: the byte store, the status mirror and the staging keep their contents."""
        self.memory.forget(self.engine.now)
        self.engine.reset(RESET_CYCLES)
        self._build(self.memory, self.agent if isinstance(self.agent, Orchestrator) else None)
        if self.engine.observer is not None:
            self.engine.observer.attach()

    def run(self, until: Callable[[], bool], budget: int, what: str = "the awaited state") -> int:
        """Advance until `until()` holds; returns the cycles it took, raises `Hang` when `budget` cycles pass first."""
        start = self.engine.now
        if not self.engine.run(until, budget):
            raise Hang(f"{what} was not reached within {budget} cycles\n{report(self)}")
        return self.engine.now - start

    def traffic(self) -> Traffic:
        """Flits by sender and type, and flit-hops, since reset."""
        return self.mesh.traffic()

    @property
    def tracks(self) -> list[Track]:
        """The tracks of this system's traces, by index."""
        return tracks(self.machine, agent=self._agent_kind)

    @contextmanager
    def record(self, path: str | Path) -> Iterator[TraceWriter]:
        """Write a trace while the context is open: every accepted flit, and every track."""
        with TraceWriter(path, self.machine, self.engine.links, self.tracks) as writer, self.observed(writer):
            yield writer

    @contextmanager
    def observed(self, sink: Orderer) -> Iterator[None]:
        """Tell `sink` every record of a trace while the context is open."""
        recorder = Recorder(self, self.tracks, sink)
        try:
            yield
        finally:
            recorder.detach()
            sink.cycles = self.engine.now
