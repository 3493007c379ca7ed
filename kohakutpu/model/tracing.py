"""What a `System` does, as the records of a trace (`docs/trace.md`): an observer of the engine.

Registers are looked at after each cycle that was simulated, and only those of blocks that were stepped or got a flit;
what a model knows beforehand, such as the end of a sweep, is looked at again when its time has come.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush

from kohakutpu.isa.cluster import Op
from kohakutpu.isa.cluster import WORD as INSTRUCTION
from kohakutpu.isa.flit import Flit
from kohakutpu.model.cluster import Cluster
from kohakutpu.model.cluster_receive import Burst
from kohakutpu.model.cluster_sweep import CHAIN
from kohakutpu.model.endpoint import WORD32, Endpoint
from kohakutpu.model.orchestrator import Orchestrator
from kohakutpu.model.vector import VectorCore
from kohakutpu.noc.engine import NEVER, Component, Link
from kohakutpu.noc.mesh import EmptySite
from kohakutpu.noc.router import Input, Port
from kohakutpu.noc.tamper import Tamper
from kohakutpu.noc.trace import Event, Level, Orderer
from kohakutpu.noc.trace_tracks import BEGIN, RETIRE, Decode, Inbound

REGISTER, DECISION = 1, 0  # looked at as they are in the cycle after, or in the cycle itself
INBOUND = {state: Inbound[state.name] for state in Burst}
Read = Callable[[], int]
Timed = Callable[[int], tuple[int, int]]  # (value in a cycle, the next cycle in which it can change by itself)


class Group:
    """The tracks that are looked at together: (track, read), and (track, REGISTER or DECISION) of timed ones."""

    def __init__(self):
        self.plain: list[tuple[int, Read]] = []
        self.timed: list[tuple[int, int]] = []


def sweep_running(cluster: Cluster) -> Timed:
    def read(cycle: int) -> tuple[int, int]:
        sweep = cluster.sweep
        if sweep is None or cycle > sweep.last_issue:
            return 0, NEVER
        return 1, min(sweep.last_issue + 1, NEVER)

    return read


def array_busy(cluster: Cluster) -> Timed:
    def read(cycle: int) -> tuple[int, int]:
        sweep = cluster.sweep
        if sweep is None or cycle >= sweep.last_issue + CHAIN:
            return 0, NEVER
        return 1, min(sweep.last_issue + CHAIN, NEVER)

    return read


def decoding(core: VectorCore) -> Timed:
    sequencer = core.sequencer

    def read(cycle: int) -> tuple[int, int]:
        if sequencer.started >= cycle and sequencer.running:
            return Decode.OFF, cycle + 1
        if not sequencer.running and cycle > sequencer.ended:
            return Decode.OFF, NEVER
        return sequencer.state, NEVER if sequencer.running else cycle + 1

    return read


class Recorder:
    """Tells `sink` what the links and tracks of `system` do, from now until `detach`.

    `tracks` are `trace_tracks.tracks` of the machine. A reset of the system ends every span and goes on.
    """

    def __init__(self, system, tracks, sink: Orderer):
        self.system = system
        self.sink = sink
        self.index = {track.name: index for index, track in enumerate(tracks)}
        self._last = [0] * len(tracks)
        self._before = system.engine.on_transfer
        self.attach()

    # ---- what is looked at -----------------------------------------------------------------------------

    def attach(self) -> None:
        """Look at the blocks that the system has now, and note all their registers."""
        engine, system = self.system.engine, self.system
        self._groups: dict[Component, list[Group]] = {}
        self._due: list[tuple[int, int]] = []  # heap: (cycle before which to look, track)
        self._timed_reads: dict[int, tuple[Timed, int]] = {}
        self._next: dict[int, int] = {}  # track -> its entry of `_due` that counts
        self._moves: list[tuple[int, int, int]] = []  # heap: (cycle, track, change) of memory bursts in flight
        self._bursts: Counter[int] = Counter()
        self._touched: set[Component] = set()
        for router in system.mesh.routers.values():
            for source in router.inputs:
                name = f"{router.name}.{Port(source.port).name.lower()}"
                if name in self.index:
                    self._plain(router, name, source.queue.__len__)
        for at, unit in system.units.items():
            self._endpoint(unit)
            (self._cluster if isinstance(unit, Cluster) else self._vector)(unit)
        for port in system.ports:
            paths = port.memory.read_path, port.memory.write_path
            self._plain(port, f"{port.name}.reads", paths[0].queue.items.__len__)
            self._plain(port, f"{port.name}.writes", paths[1].queue.items.__len__)
            self._plain(port, f"{port.name}.flight", paths[0].flight.items.__len__)
            self._memory(port.name, port.memory.channel)
        self._memory("window", system.memory_agent.window.channel)
        if "mover.dram.read" in self.index:
            self._memory("mover", system.memory_agent.mover.channel)
        self._agent(system.agent)
        self._sinks = [self._sink(link) for link in engine.links]
        engine.on_transfer, engine.observer = self.transfer, self
        for group in {id(g): g for groups in self._groups.values() for g in groups}.values():
            self._look(group, engine.now - 1)

    def detach(self) -> None:
        """Note what is known of the cycles so far, and look no more."""
        engine = self.system.engine
        self.before(engine.now)
        engine.on_transfer, engine.observer = self._before, None
        for channel in self.system.memory_agent.channels:
            channel.observer = None

    def _group(self, component: Component) -> Group:
        return self._groups.setdefault(component, [Group()])[0]

    def _plain(self, component: Component, name: str, read: Read) -> None:
        self._group(component).plain.append((self.index[name], read))

    def _timed(self, component: Component, name: str, read: Timed, kind: int) -> None:
        track = self.index[name]
        self._timed_reads[track] = read, kind
        self._group(component).timed.append((track, kind))

    def _endpoint(self, unit: Endpoint) -> None:
        for name, fifo in (("inst", unit.inst), ("recv", unit.recv), ("completions", unit.completions)):
            self._plain(unit, f"{unit.name}.{name}", fifo.items.__len__)

    def _cluster(self, unit: Cluster) -> None:
        writer, receiver, name = unit.writer, unit.receiver, unit.name
        self._plain(unit, f"{name}.fill", lambda: int(unit.inst_word is not None and unit.inst_word.op == Op.FILL))
        self._plain(unit, f"{name}.drain", lambda: int(not writer.idle))
        self._plain(unit, f"{name}.results", lambda: writer.outstanding)
        self._plain(unit, f"{name}.receive", lambda: int(INBOUND[receiver.state]))
        self._timed(unit, f"{name}.sweep", sweep_running(unit), REGISTER)
        self._timed(unit, f"{name}.array", array_busy(unit), REGISTER)

    def _vector(self, unit: VectorCore) -> None:
        sequencer, fill, drain, receiver, name = unit.sequencer, unit.fill, unit.drain, unit.receiver, unit.name
        self._plain(unit, f"{name}.run", lambda: int(sequencer.running))
        self._plain(unit, f"{name}.fill", lambda: fill.open)
        self._plain(unit, f"{name}.requests", fill.outstanding.__len__)
        self._plain(unit, f"{name}.drain", lambda: int(not drain.idle))
        self._plain(unit, f"{name}.receive", lambda: int(receiver.burst is not None))
        self._timed(unit, f"{name}.decode", decoding(unit), DECISION)

    def _agent(self, agent) -> None:
        """The agent and its intakes are one group: a flit that is absorbed changes several of them."""
        self._control = group = self._group(agent)
        for port in agent.ports:
            self._groups.setdefault(port, [Group()]).append(group)
            self._plain(agent, f"{port.name}.intake", port.intake.items.__len__)
        if isinstance(agent, Orchestrator):
            self._plain(agent, "agent.tx", agent.tx.items.__len__)
            self._plain(agent, "agent.rx", agent.rx.items.__len__)
            self._plain(agent, "agent.credit", lambda: agent.credit & 0xFFFF)
            self._plain(agent, "agent.run", lambda: int(agent.run))

    def _memory(self, name: str, channel) -> None:
        tracks = {kind: self.index[f"{name}.dram.{kind}"] for kind in ("read", "write")}

        def burst(kind: str, first: int, last: int) -> None:
            """A burst issued in cycle `first`, whose last word or response comes in cycle `last`."""
            heappush(self._moves, (first + 1, tracks[kind], 1))
            heappush(self._moves, (last + 1, tracks[kind], -1))

        channel.observer = burst

    def _sink(self, link: Link) -> Component | None:
        sink = link.sink
        if isinstance(sink, Tamper):
            sink = sink.sink
        if isinstance(sink, EmptySite):
            return None
        return sink.router if isinstance(sink, Input) else sink

    # ---- what the engine and the blocks tell -------------------------------------------------------------

    def transfer(self, cycle: int, link: Link, flit: Flit) -> None:
        self.sink(cycle, link, flit)
        sink = self._sinks[link.index]
        if sink is not None:
            self._touched.add(sink)
        if self._before is not None:
            self._before(cycle, link, flit)

    def begin(self, unit: Endpoint, flit: Flit, now: int) -> None:
        """`unit` takes an instruction in cycle `now`."""
        value = BEGIN.pack(op=INSTRUCTION.get(flit.payload, "op"), last=flit.last, txn=flit.txn)
        self.sink.add(Event(now, self.index[f"{unit.name}.begin"], value))

    def retire(self, unit: Endpoint, flit: Flit, now: int, result: int, fault: bool) -> None:
        """`unit` retires the instruction `flit` in cycle `now`."""
        value = RETIRE.pack(result=result & WORD32, fault=int(fault), last=flit.last, txn=flit.txn)
        self.sink.add(Event(now, self.index[f"{unit.name}.retire"], value))

    def before(self, now: int) -> None:
        """Cycle `now` is about to be simulated: what the host has changed, and what came about by itself."""
        due = self._due
        while due and due[0][0] <= now:
            when, track = heappop(due)
            if self._next[track] == when:
                self._look_timed(track, when - 1 + self._timed_reads[track][1])
        moves = self._moves
        while moves and moves[0][0] <= now:
            cycle = moves[0][0]
            changes: Counter[int] = Counter()
            while moves and moves[0][0] == cycle:
                _, track, change = heappop(moves)
                changes[track] += change
            for track, change in changes.items():
                if change:
                    self._bursts[track] += change
                    self.sink.add(Level(cycle, track, self._bursts[track]))
        last, add = self._last, self.sink.add
        for track, read in self._control.plain:
            if (value := read()) != last[track]:
                last[track] = value
                add(Level(now, track, value))

    def after(self, now: int, run: list[Component]) -> None:
        """Cycle `now` was simulated, and the blocks of `run` were stepped."""
        touched, groups = self._touched, self._groups
        touched.update(run)
        for component in touched:
            for group in groups.get(component, ()):
                self._look(group, now)
        touched.clear()
        self.sink.advance(now)

    def _look(self, group: Group, now: int) -> None:
        last, add = self._last, self.sink.add
        for track, read in group.plain:
            if (value := read()) != last[track]:
                last[track] = value
                add(Level(now + 1, track, value))
        for track, kind in group.timed:
            self._look_timed(track, now + kind)

    def _look_timed(self, track: int, cycle: int) -> None:
        read, kind = self._timed_reads[track]
        value, following = read(cycle)
        when = following + 1 - kind
        if following < NEVER and self._next.get(track) != when:
            self._next[track] = when
            heappush(self._due, (when, track))
        if value != self._last[track]:
            self._last[track] = value
            self.sink.add(Level(cycle, track, int(value)))
