"""A trace as a Chrome trace (JSON), for https://ui.perfetto.dev and chrome://tracing: one microsecond is one cycle.

Tracks: each unit's instructions, each span, each link (consecutive flits of one kind are one slice), each level as a
counter. Arrows lead from an instruction's flit on the agent's link to the instruction on its unit and to its completion
at the agent.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from typing import TextIO

from kohakutpu.isa.assembler import Disassembler
from kohakutpu.isa.flit import Flit, FlitType, type_name, xy
from kohakutpu.isa.signals import CU_SIGNAL, SignalCode, UnitType
from kohakutpu.noc.trace import Level, Transfer
from kohakutpu.noc.trace_tracks import value_text

from .survey import Instruction, Survey

MACHINE, UNITS, SPANS, LINKS, LEVELS = range(1, 6)
PROCESSES = {MACHINE: "stages", UNITS: "instructions", SPANS: "spans", LINKS: "links", LEVELS: "levels"}
COMPLETIONS = (SignalCode.INST_COMPLETE, SignalCode.BATCH_COMPLETE, SignalCode.FAULT)


class Timeline:
    """Writes the events of a surveyed trace to a text file, in the memory of what is open at one time."""

    def __init__(self, survey: Survey, file: TextIO):
        self.survey = survey
        self._file = file
        self._first = True
        topology, trace = survey.topology, survey.trace
        kinds = {unit.node: UnitType.CLUSTER if unit.kind == "cluster" else UnitType.VECTOR for unit in survey.units}
        self._decoders = [Disassembler(units=kinds) for _ in trace.links]
        self._unit = {unit.node: number for number, unit in enumerate(survey.units, 1)}
        self._out = {topology.out_of(place.name) for place in topology.agent_places}
        self._in = {topology.into(place.name) for place in topology.agent_places}
        self._runs: dict[int, tuple[int, int, tuple, int, str]] = {}  # link: (from, to, what, flits, first text)
        self._spans: dict[int, tuple[int, int]] = {}  # track: (since, value)
        self._flows: dict[int, deque[int]] = {node: deque() for node in self._unit}  # of instructions that are begun
        self._sent: Counter[int] = Counter()
        self._level = [track.kind == "level" for track in trace.tracks]

    def _event(self, phase: str, process: int, thread: int, at: int, name: str, **more) -> None:
        event = {"ph": phase, "pid": process, "tid": thread, "ts": at, "name": name, **more}
        self._file.write(("[\n" if self._first else ",\n") + json.dumps(event, separators=(",", ":")))
        self._first = False

    def write(self) -> None:
        """All events."""
        survey, trace = self.survey, self.survey.trace
        self._file.write('{"displayTimeUnit":"ns","otherData":')
        json.dump({"machine": survey.machine.name, "cycles": trace.cycles, "unit": "1 us is 1 cycle"}, self._file)
        self._file.write(',"traceEvents":')
        self._names()
        for stage in survey.stages:
            self._event(
                "X", MACHINE, 1, stage.start, stage.title, dur=stage.end - stage.start, args={"rounds": stage.rounds}
            )
        numbers: Counter[str] = Counter()
        for instruction in survey.instructions:
            numbers[instruction.unit] += 1
            self._instruction(instruction, numbers[instruction.unit])
        for record in trace:
            if type(record) is Transfer:
                self._flit(record.cycle, record.link, record.flit)
            elif type(record) is Level:
                self._change(record.cycle, record.track, record.value)
        for link in list(self._runs):
            self._close_run(link)
        for track in list(self._spans):
            self._change(trace.cycles, track, 0)
        self._file.write("\n]}\n")

    def _names(self) -> None:
        trace = self.survey.trace
        threads = {
            MACHINE: ["stages"],
            UNITS: [unit.name for unit in self.survey.units],
            LINKS: trace.links,
            SPANS: [track.name if track.kind == "span" else None for track in trace.tracks],
        }
        for process, name in PROCESSES.items():
            self._event("M", process, 0, 0, "process_name", args={"name": name})
            self._event("M", process, 0, 0, "process_sort_index", args={"sort_index": process})
            for thread, label in enumerate(threads.get(process, []), 1):
                if label is not None:
                    self._event("M", process, thread, 0, "thread_name", args={"name": label})

    def _flow(self, node: int, number: int) -> int:
        """An identifier for the k-th instruction of a unit, the same wherever it is met."""
        return number * (len(self._unit) + 1) + self._unit[node]

    def _instruction(self, one: Instruction, number: int) -> None:
        if one.begin is None:
            return
        end = self.survey.trace.cycles if one.end is None else one.end + 1
        unit = next(unit for unit in self.survey.units if unit.name == one.unit)
        thread = self._unit[unit.node]
        args = {
            "text": one.text,
            "sent": one.sent,
            "result": one.result,
            "fault": one.fault,
            "retired": one.end is not None,
        }
        self._event("X", UNITS, thread, one.begin, f"{one.opcode} txn {one.txn:#04x}", dur=end - one.begin, args=args)
        self._event("t", UNITS, thread, one.begin, "instruction", cat="flow", id=self._flow(unit.node, number), bp="e")

    def _flit(self, cycle: int, link: int, flit: Flit) -> None:
        text = self._decoders[link].body(flit)
        what = flit.type, flit.src, flit.dst, flit.txn
        run = self._runs.get(link)
        alone = flit.type in (FlitType.CU_INST, FlitType.CU_SIGNAL)
        if alone or run is None or run[1] != cycle or run[2] != what:
            self._close_run(link)
            run = cycle, cycle, what, 0, text
        self._runs[link] = run[0], cycle + 1, what, run[3] + 1, run[4]
        if alone:
            self._close_run(link)  # a reader attaches an arrow to the slice that is there already
            self._arrow(cycle, link, flit)

    def _arrow(self, cycle: int, link: int, flit: Flit) -> None:
        """Where an instruction leaves the agent its arrow starts, where its completion arrives there it ends."""
        if link in self._out and flit.type == FlitType.CU_INST and flit.dst in self._unit:
            self._sent[flit.dst] += 1
            number = self._sent[flit.dst]
            self._flows[flit.dst].append(number)
            self._event("s", LINKS, link + 1, cycle, "instruction", cat="flow", id=self._flow(flit.dst, number))
        elif link in self._in and flit.type == FlitType.CU_SIGNAL and self._flows.get(flit.src):
            if CU_SIGNAL.get(flit.payload, "code") in COMPLETIONS:
                flow = self._flow(flit.src, self._flows[flit.src].popleft())
                self._event("f", LINKS, link + 1, cycle, "instruction", cat="flow", id=flow, bp="e")

    def _close_run(self, link: int) -> None:
        run = self._runs.pop(link, None)
        if run is None:
            return
        start, end, (kind, src, dst, txn), flits, text = run
        args = {"flits": flits, "from": str(xy(src)), "to": str(xy(dst)), "txn": f"{txn:#04x}", "first": text}
        self._event("X", LINKS, link + 1, start, type_name(kind), dur=end - start, args=args)

    def _change(self, cycle: int, track: int, value: int) -> None:
        named = self.survey.trace.tracks[track]
        if self._level[track]:
            self._event("C", LEVELS, 0, cycle, named.name, args={"value": value})
            return
        since, before = self._spans.pop(track, (0, 0))
        if before:
            name = value_text(named, before).removeprefix("= ")
            self._event("X", SPANS, track + 1, since, name, dur=cycle - since)
        if value:
            self._spans[track] = cycle, value


def write_timeline(survey: Survey, file: TextIO) -> None:
    """Write the Chrome trace of a trace to an open text file."""
    Timeline(survey, file).write()
