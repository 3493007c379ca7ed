"""What ran, from a first pass over a trace: instructions from dispatch to retirement, rounds, stages."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from kohakutpu.isa import cluster, vector
from kohakutpu.isa.assembler import Disassembler
from kohakutpu.isa.flit import Flit, FlitType
from kohakutpu.isa.signals import UnitType
from kohakutpu.machine import Machine, from_yaml
from kohakutpu.noc.trace import Trace
from kohakutpu.noc.trace_tracks import BEGIN, RETIRE
from kohakutpu.wording import counted

from . import ViewError
from .topology import Topology

ROW_OPERATIONS = 2 * 4 * 4 * 32  # of one array issue: a 4x4 sub-tile, 32 products each, multiply and add


@dataclass(slots=True)
class Instruction:
    """One CU_INST: accepted on the agent's link in `sent`, taken by `unit` in `begin`, retired in `end` (or never)."""

    unit: str
    sent: int
    opcode: str
    text: str
    txn: int
    last: bool
    operations: int
    begin: int | None = None
    end: int | None = None
    fault: bool = False
    result: int = 0


@dataclass
class Program:
    """Instructions for one unit up to the one marked last. `end` is None when it did not retire."""

    unit: str
    start: int
    end: int | None = None
    opcodes: Counter = field(default_factory=Counter)


@dataclass
class Stage:
    """Consecutive rounds for the same kinds of unit; a round is a time in which programs are outstanding without a gap.

    `start` is the cycle of the first dispatched flit, `end` the cycle after the last retirement.
    """

    kinds: tuple[str, ...]
    start: int
    end: int
    rounds: int
    programs: int
    opcodes: Counter

    @property
    def title(self) -> str:
        opcodes = ", ".join(f"{count} {name}" for name, count in self.opcodes.items())
        return f"{' + '.join(self.kinds)}: {opcodes}"


class Survey:
    """`trace` with its machine, topology, instructions (in order of arrival at their units), rounds and stages.

    `start` and `end` bound the cycles in which flits moved, from the first accepted to after the last. Raises
    `ViewError` for a trace without a flit.
    """

    def __init__(self, trace: Trace):
        self.trace = trace
        self.machine: Machine = from_yaml(trace.machine_yaml, source=f"{trace.path}: machine")
        self.topology = Topology(self.machine, trace.links, source=str(trace.path))
        self.units = [place for place in self.topology.places if place.kind in ("cluster", "vector")]
        self.track = {track.name: index for index, track in enumerate(trace.tracks)}
        self.instructions: list[Instruction] = []
        self._scan()
        self.rounds = _rounds(self._programs(), self.end)
        self.stages = _stages(self.rounds, {unit.name: unit.kind for unit in self.units})

    def _scan(self) -> None:
        topology, trace = self.topology, self.trace
        units = {unit.name: unit for unit in self.units}
        kinds = {unit.node: UnitType.CLUSTER if unit.kind == "cluster" else UnitType.VECTOR for unit in self.units}
        into = {topology.into(unit.name): unit for unit in self.units}
        out = [topology.out_of(place.name) for place in topology.agent_places]
        text = Disassembler(units=kinds)
        dispatched: dict[int, deque[int]] = defaultdict(deque)  # cycles on the agent's links, by destination
        queue: dict[str, list[Instruction]] = {name: [] for name in units}
        done = {"begin": Counter(), "retire": Counter()}
        events = {
            self.track[f"{name}.{what}"]: (name, what)
            for name in units
            for what in done
            if f"{name}.{what}" in self.track
        }
        self.start, self.end = -1, 0
        for chunk in trace.chunks():
            flits = chunk.flits
            if len(flits):
                self.start = int(flits["cycle"][0]) if self.start < 0 else self.start
                self.end = int(flits["cycle"][-1]) + 1
            for cycle, link, flit in flits_of(
                flits[(flits["type"] == FlitType.CU_INST) & np.isin(flits["link"], [*out, *into])]
            ):
                if link in into:
                    unit, sent = into[link], dispatched[flit.dst]
                    instruction = Instruction(
                        unit.name,
                        sent.popleft() if sent and flit.src == self.machine.agent.node else cycle,
                        _opcode(unit.kind, flit.payload),
                        text.body(flit),
                        flit.txn,
                        bool(flit.last),
                        _operations(flit.payload) if unit.kind == "cluster" else 0,
                    )
                    queue[unit.name].append(instruction)
                    self.instructions.append(instruction)
                else:
                    dispatched[flit.dst].append(cycle)
            for cycle, track, value in chunk.events.tolist():
                if track not in events:
                    continue
                name, what = events[track]
                number = done[what][name]
                done[what][name] += 1
                if number >= len(queue[name]):
                    raise ViewError(
                        f"{trace.path}: cycle {cycle}: {what} number {number} of {name}, which got fewer instructions"
                    )
                instruction = queue[name][number]
                layout = BEGIN if what == "begin" else RETIRE
                if layout.get(value, "txn") != instruction.txn:
                    raise ViewError(
                        f"{trace.path}: cycle {cycle}: {what} of {name} names txn {layout.get(value, 'txn'):#04x}, and "
                        f"the instruction it should name, sent in cycle {instruction.sent}, has {instruction.txn:#04x}"
                    )
                if what == "begin":
                    instruction.begin = cycle
                else:
                    instruction.end = cycle
                    instruction.fault, instruction.result = (
                        bool(RETIRE.get(value, "fault")),
                        RETIRE.get(value, "result"),
                    )
        if self.start < 0:
            raise ViewError(
                f"{trace.path}: no flit moved in {counted(trace.cycles, 'cycle')}: there is nothing to look at"
            )

    def _programs(self) -> list[Program]:
        programs: list[Program] = []
        unfinished: dict[str, Program] = {}
        for instruction in self.instructions:
            program = unfinished.get(instruction.unit)
            if program is None:
                program = unfinished[instruction.unit] = Program(instruction.unit, instruction.sent)
                programs.append(program)
            program.opcodes[instruction.opcode] += 1
            if instruction.last:
                program.end = None if instruction.end is None else instruction.end + 1
                del unfinished[instruction.unit]
        return programs


def flits_of(records: np.ndarray) -> Iterator[tuple[int, int, Flit]]:
    """(cycle, link, flit) of an array of dtype `noc.trace.FLITS`."""
    for cycle, link, *header, payload in records.tolist():
        yield cycle, link, Flit(*header, int.from_bytes(payload, "little"))


def _opcode(kind: str, payload: int) -> str:
    table, op = (
        (cluster.Op, cluster.decode(payload).op) if kind == "cluster" else (vector.Envelope, vector.decode(payload).op)
    )
    return table(op).name if op in table.__members__.values() else f"opcode {int(op)}"


def _operations(payload: int) -> int:
    """Multiplications and additions of a GEMM; zeros count as 1 (spec: CU_INST payload)."""
    word = cluster.decode(payload)
    if word.op != cluster.Op.GEMM:
        return 0
    return ROW_OPERATIONS * max(word.gm, 1) * max(word.gn, 1) * max(word.nk, 1)


def _rounds(programs: list[Program], end: int) -> list[tuple[int, int, list[Program]]]:
    """(start, end, programs) of every time in which programs are outstanding without a gap; a hang ends with `end`."""
    rounds: list[tuple[int, int, list[Program]]] = []
    for program in sorted(programs, key=lambda program: program.start):
        until = end if program.end is None else program.end
        if rounds and program.start < rounds[-1][1]:
            start, other, members = rounds[-1]
            rounds[-1] = start, max(other, until), [*members, program]
        else:
            rounds.append((program.start, until, [program]))
    return rounds


def _stages(rounds: list[tuple[int, int, list[Program]]], kinds: dict[str, str]) -> list[Stage]:
    stages: list[Stage] = []
    for start, end, programs in rounds:
        used = tuple(sorted({kinds[program.unit] for program in programs}))
        opcodes = sum((program.opcodes for program in programs), Counter())
        if stages and stages[-1].kinds == used:
            stage = stages[-1]
            stage.end, stage.rounds = end, stage.rounds + 1
            stage.programs += len(programs)
            stage.opcodes += opcodes
        else:
            stages.append(Stage(used, start, end, 1, len(programs), opcodes))
    return stages
