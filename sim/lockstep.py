"""Model and gates side by side: the same artifact runs on both, and their traces are compared while they grow.

The first record that one side has and the other has not ends both runs; what is known about it becomes a `Divergence`.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import tempfile
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Full, Queue
from threading import Event as Flag
from threading import Thread

import numpy as np

from kohakutpu.compiler.artifact import UNIT_TYPES, Artifact
from kohakutpu.host.driver import Driver
from kohakutpu.host.loader import Loader
from kohakutpu.host.model_transport import ModelTransport
from kohakutpu.isa.assembler import disassemble, instruction_text
from kohakutpu.isa.flit import Flit
from kohakutpu.machine import Machine
from kohakutpu.model import faults as fault_registry
from kohakutpu.model.system import System
from kohakutpu.noc.trace import Orderer, Record, Transfer, order
from kohakutpu.noc.trace_tracks import STEP, tracks, value_text
from kohakutpu.view.topology import Topology, router_name
from kohakutpu.wording import counted
from rtl.top import CannotBuild

from .machine import Built, build, simulate
from .orphan import end_with
from .runner import BenchError
from .trace import piped

HISTORY = 20  # events of each node that a divergence shows
AHEAD = 2000  # cycles that one side may be ahead of the other
PATIENCE = 200  # cycles with records after a divergence in which its counterpart is looked for
BEFORE, AFTER = 100, 50  # cycles around a divergence that waves are recorded of
TEXT_WIDTH = 160
WAIT = 0.2  # s between two looks at whether the other side has stopped


class Stopped(RuntimeError):
    """The other side diverged: this one need not go on."""


@dataclass(frozen=True)
class Setting:
    """What both sides run, apart from the artifact: see `lockstep`."""

    simulator: str = "verilator"
    latency: int | None = None
    latency_seed: int | None = None
    faults: tuple[str, ...] = ()
    gate_faults: tuple[tuple[str, str], ...] = ()
    timeout: int | None = None


@dataclass(frozen=True)
class Divergence:
    """The first difference: cycle, link or track, the record of each side (None: nothing there), and all as text."""

    cycle: int
    name: str
    model: Record | None
    gates: Record | None
    text: str


@dataclass(frozen=True)
class Outcome:
    """Records that were equal, and the cycles of both runs, or else where they part."""

    events: int
    cycles: int
    divergence: Divergence | None


class Side:
    """One run: a queue of (cycle, its records), then None. `error` is what ended it early."""

    def __init__(self, name: str, stop: Flag):
        self.name = name
        self.sink = Orderer(self._put)
        self.error: BaseException | None = None
        self.rest: list[Record] = []  # of the cycle in which the sides parted
        self.ended = False
        self._stop = stop
        self._queue: Queue[list[Record] | None] = Queue(AHEAD)

    def _put(self, records: list[Record] | None) -> None:
        while True:
            if self._stop.is_set():
                raise Stopped(self.name)
            try:
                return self._queue.put(records, timeout=WAIT)
            except Full:
                continue

    def run(self, work: Callable[[Orderer], None]) -> Thread:
        """Do `work`, which feeds the sink, in a thread of its own."""

        def body() -> None:
            try:
                try:
                    work(self.sink)
                except Stopped:
                    raise
                except BaseException as error:
                    self.error = error
                self.sink.finish()
                self._put(None)
            except Stopped:
                pass

        thread = Thread(target=body, name=self.name)
        thread.start()
        return thread

    def __iter__(self) -> Iterator[list[Record]]:
        while (records := self._queue.get()) is not None:
            yield records
        self.ended = True

    def soon(self, wanted: Callable[[Record], bool]) -> Record | None:
        """The next record that is `wanted`, if the run comes to it before long."""
        found = [record for record in self.rest if wanted(record)]
        looked = 0
        while not found and not self.ended and looked < PATIENCE:
            self.rest = next(iter(self), [])
            found = [record for record in self.rest if wanted(record)]
            looked += 1
        return found[0] if found else None


class Program:
    """Which instruction of an artifact a unit is at, from the `begin` events that were seen."""

    def __init__(self, artifact: Artifact, names: Mapping[int, str]):
        self.begun: Counter[str] = Counter()
        self._artifact = artifact
        self._given: dict[str, list[tuple[Flit, int, tuple[int, ...]]]] = defaultdict(list)  # flit, stage, instance
        for round_ in artifact.rounds:
            for kick in round_.kicks:
                for slot in range(kick.base, kick.base + kick.count):
                    self._given[names[kick.node]].append((round_.flits[slot], round_.stage, round_.instances[slot]))

    def at(self, unit: str) -> list[str]:
        """Lines about the instruction that `unit` took last."""
        number = self.begun[unit]
        given = self._given[unit]
        if not 1 <= number <= len(given):
            return [f"{unit} has begun no instruction of the program"]
        flit, stage, instance = given[number - 1]
        stage_ = self._artifact.stages[stage]
        text = instruction_text(flit.payload, UNIT_TYPES[stage_.unit])
        lines = [f"{unit} is at instruction {number} of {len(given)}: {text}"]
        for statement in stage_.statements:
            record = self._artifact.statements[statement]
            lines.append(f"  of {record.source}: {record.text} (instance {instance})")
        return lines


class Comparison:
    """Compares two sides; keeps the last events of every node."""

    def __init__(self, artifact: Artifact, machine: Machine, links: Sequence[str]):
        self.links = links
        self.tracks = tracks(machine)
        self.topology = Topology(machine, list(links))
        self.names = {place.node: place.name for place in self.topology.places}
        self.program = Program(artifact, self.names)
        self._history: dict[str, deque[Record]] = defaultdict(lambda: deque(maxlen=HISTORY))
        self._nodes: dict[tuple[bool, int], tuple[str, ...]] = {}

    def name_of(self, record: Record) -> str:
        return self.links[record.link] if isinstance(record, Transfer) else self.tracks[record.track].name

    def nodes_of(self, record: Record) -> tuple[str, ...]:
        """The two nodes that a record is about: the ends of a link, the owner of a track and what feeds it."""
        key = isinstance(record, Transfer), record[1]
        if key not in self._nodes:
            if key[0]:
                wire = self.topology.wires[record[1]]
                found = (wire.source, wire.sink)
            else:
                track = self.tracks[record[1]]
                feeding = [wire.source for wire in self.topology.wires if wire.sink == track.unit]
                step = STEP.get(track.name.removeprefix(f"{track.unit}."))
                if step is not None:  # an input of a router
                    at = int(track.unit[1], 16) + step[0], int(track.unit[2], 16) + step[1]
                    there = [place.name for place in self.topology.places if (place.x, place.y) == at]
                    feeding = there or [router_name(*at)]
                found = (track.unit, feeding[0] if feeding else None)
            self._nodes[key] = tuple(node for node in found if node)
        return self._nodes[key]

    def text_of(self, record: Record) -> str:
        if isinstance(record, Transfer):
            text = " ".join(disassemble([record.flit]).split())
        else:
            text = value_text(self.tracks[record.track], record.value)
        text = f"cycle {record.cycle:>7}  {self.name_of(record):20} {text}"
        return text if len(text) <= TEXT_WIDTH else f"{text[: TEXT_WIDTH - 3]}..."

    def note(self, records: list[Record]) -> None:
        """Records that both sides have."""
        for record in records:
            for node in self.nodes_of(record):
                self._history[node].append(record)
            if not isinstance(record, Transfer) and self.tracks[record.track].name.endswith(".begin"):
                self.program.begun[self.tracks[record.track].unit] += 1

    def difference(self, model: Side, gates: Side) -> tuple[int, bool]:
        """(records that are equal, whether others follow: `rest` of each side then begins with those)."""
        equal = 0
        both = iter(model), iter(gates)
        while True:
            ours, theirs = (next(side, None) for side in both)
            if ours == theirs:
                if ours is None:
                    return equal, False
                equal += len(ours)
                self.note(ours)
                continue
            ours, theirs = ours or [], theirs or []
            same = 0
            while same < min(len(ours), len(theirs)) and ours[same] == theirs[same]:
                same += 1
            self.note(ours[:same])
            model.rest, gates.rest = ours[same:], theirs[same:]
            return equal + same, True

    def explain(self, model: Side, gates: Side, command: str) -> Divergence:
        """What is known about the first records that differ."""
        record = min((side.rest[0] for side in (model, gates) if side.rest), key=order)
        where = type(record), record[1]
        nodes = self.nodes_of(record)
        lines = [f"cycle {record.cycle}: {self.name_of(record)} ({' and '.join(nodes)}) differs"]
        found = []
        for side in (model, gates):
            its = side.soon(lambda r: (type(r), r[1]) == where)
            now = its if its is not None and its.cycle == record.cycle else None
            found.append(now)
            if now is not None:
                text = self.text_of(now)
            elif its is not None:
                which = "the same" if its[2] == record[2] else "its next record there"
                text = f"nothing in this cycle; {which} {its.cycle - record.cycle} later: {self.text_of(its)}"
            else:
                text = "nothing in this cycle, nor soon" + (f"; its run ended: {side.error}" if side.error else "")
            lines.append(f"  {side.name:6} {text}")
        for unit in self._units(record, nodes):
            lines += self.program.at(unit)
        for node in nodes:
            events = self._history[node]
            lines.append(f"the last {counted(len(events), 'event')} of {node}, equal on both sides:")
            lines += [f"  {self.text_of(event)}" for event in events]
        window = f"{max(record.cycle - BEFORE, 0)}:{record.cycle + AFTER}"
        lines.append(f"to record waves of the gates around it: {command} --window {window}")
        return Divergence(record.cycle, self.name_of(record), *found, "\n".join(lines))

    def _units(self, record: Record, nodes: tuple[str, ...]) -> list[str]:
        """The units whose instruction a record has to do with: its own, or those of the last flit the nodes saw."""
        seen = [record, *(event for node in nodes for event in self._history[node])]
        flits = sorted((event for event in seen if isinstance(event, Transfer)), key=order, reverse=True)
        ends = ((self.names.get(end, "") for end in (item.flit.src, item.flit.dst)) for item in flits)
        for near in (nodes, *ends):
            if units := [name for name in dict.fromkeys(near) if name.startswith(("cluster", "vector"))]:
                return units
        return []


def _simulation(parent: int, built: Built, records: Path, answer: Path, setting: Setting, arguments: dict) -> None:
    """The gates in a process group of their own, so that they can be stopped; what came of it goes to `answer`."""
    os.setsid()
    end_with(parent, lambda: os.killpg(0, signal.SIGKILL))
    try:
        simulate(
            built, "sim.kernels:execute", records=records, latency=setting.latency, latency_seed=setting.latency_seed,
            timeout=setting.timeout, **arguments,
        )  # fmt: skip
        error = None
    except BaseException as problem:
        error = problem
    answer.write_bytes(pickle.dumps(error))


def _kill(process) -> None:
    """End the gates and what they have started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:  # not in its own group yet, or gone
        process.kill()


def _gates(built: Built, setting: Setting, arguments: dict, stop: Flag) -> Callable[[Orderer], None]:
    def work(sink: Orderer) -> None:
        with tempfile.TemporaryDirectory() as folder:
            answer = Path(folder) / "answer"
            error: BaseException | None = BenchError("the process of the gates ended without an answer")
            try:
                with piped(sink) as records:
                    context = multiprocessing.get_context("spawn")
                    process = context.Process(
                        target=_simulation, args=(os.getpid(), built, records, answer, setting, arguments)
                    )
                    process.start()
                    while process.is_alive():
                        process.join(WAIT)
                        if stop.is_set():
                            _kill(process)
                    if answer.exists():
                        error = pickle.loads(answer.read_bytes())
            finally:
                if stop.is_set():
                    raise Stopped("gates") from None
                if error is not None:
                    raise error

    return work


def lockstep(artifact: Artifact, machine: Machine, operands: Mapping[str, np.ndarray], setting: Setting = Setting(), *,
             command: str = "") -> Outcome:  # fmt: skip
    """Run `artifact` on the models and the gates of `machine` and compare every record of their traces.

    Of `setting`: `simulator` of the gates; `latency` of the memory, at most the machine's; with `latency_seed` that of
    each burst is drawn, equally on both sides; `faults` of the models and `gate_faults`, (place, fault) pairs as
    `rtl.top.MachineTop` has them; `timeout`, the cycle budget of each wait. `command` is what a divergence names for
    looking again. Raises what ended a run when the other one ended in the same way.
    """
    fault_registry.check(setting.faults)
    try:
        built = build(machine, simulator=setting.simulator, faults=dict(setting.gate_faults) or None)
    except TypeError as error:  # how components refuse their parameters
        raise CannotBuild(str(error)) from error
    if setting.latency is not None:
        machine = replace(machine, memory=replace(machine.memory, latency=setting.latency))
    stop = Flag()
    model, gates = Side("model", stop), Side("gates", stop)

    def run_model(sink: Orderer) -> None:
        system = System(machine, faults=setting.faults, latency_seed=setting.latency_seed)
        with system.observed(sink):
            Loader(Driver(ModelTransport(system), timeout=setting.timeout)).run(artifact, operands)

    arguments = {"artifact": artifact, "operands": dict(operands)}
    threads = [model.run(run_model), gates.run(_gates(built, setting, arguments, stop))]
    try:
        comparison = Comparison(artifact, machine, built.links)
        equal, parted = comparison.difference(model, gates)
        divergence = comparison.explain(model, gates, command) if parted else None
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    if divergence is None:
        for side in (model, gates):
            if side.error is not None:
                raise side.error
        if model.sink.cycles != gates.sink.cycles:
            took = f"the model took {counted(model.sink.cycles, 'cycle')}, the gates {gates.sink.cycles}"
            raise BenchError(f"{counted(equal, 'event', form=',')} equal, but {took}")
    return Outcome(equal, model.sink.cycles or 0, divergence)
