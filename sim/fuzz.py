"""Random programs on the gates, cycle by cycle beside what the model did with them."""

from __future__ import annotations

import tempfile
from bisect import bisect_right
from itertools import zip_longest
from pathlib import Path

import numpy as np

from kohakutpu.fuzz.campaign import Played
from kohakutpu.fuzz.play import IMAGE, image
from kohakutpu.fuzz.program import Case, unit_types
from kohakutpu.fuzz.shrink import Finding
from kohakutpu.isa.assembler import disassemble
from kohakutpu.isa.flit import Flit
from kohakutpu.machine import Machine
from kohakutpu.noc.trace import Chunk, Record, Trace, Transfer
from kohakutpu.noc.trace_tracks import value_text

from .inside import BrokenRules
from .machine import Built, build, simulate
from .trace import recorded

TAIL = 2  # cycles after the model's last: what the gates do on their own would show


def built(machine: Machine, simulator: str, fault: str | None = None) -> Built:
    """The gates of `machine` with a bench in the agent's place; `fault` is 'UNIT=NAME'."""
    unit, _, name = (fault or "").partition("=")
    return build(machine, simulator=simulator, agent="bench", faults={unit: name} if fault else None)


def play(machine, schedule: list[tuple[int, int]], cycles: int, contents: bytes) -> bytes:
    """The job: send each flit, as a number, in its cycle; memory after `cycles` cycles."""
    machine.write_memory(0, contents)
    at = 0
    while at < len(schedule):
        start = schedule[at][0]
        if start > machine.now:
            machine.advance(start - machine.now)
        end, start = at, machine.now
        while end < len(schedule) and schedule[end][0] <= start + end - at:  # one flit a cycle
            end += 1
        machine.inject([Flit.from_int(word) for _, word in schedule[at:end]])
        at = end
    if cycles > machine.now:
        machine.advance(cycles - machine.now)
    return machine.read_memory(0, IMAGE)


def same(ours: Chunk, theirs: Chunk) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


def first_difference(model: Trace, gates: Trace, end: int) -> tuple[Record | None, Record | None] | None:
    """The first records, (model, gates), that differ before cycle `end`."""
    start = 0
    for ours, theirs in zip_longest(model.chunks(), gates.chunks()):
        if ours is None or theirs is None or not same(ours, theirs):
            break
        start = next(reversed([*ours.records()]))[0]
    for pair in zip_longest(model.window(start, end), gates.window(start, end)):
        if pair[0] != pair[1]:
            return pair
    return None


def _text(record: Record | None, trace: Trace, units: dict[int, int]) -> str:
    if record is None:
        return "nothing more"
    if isinstance(record, Transfer):
        return f"cycle {record.cycle} {trace.links[record.link]} {disassemble([record.flit], units=units).rstrip()}"
    track = trace.tracks[record.track]
    return f"cycle {record.cycle} {track.name} {value_text(track, record.value)}"


def compare(on: Built, case: Case, played: Played, trace: Path, *, latency: int | None = None) -> Finding | None:
    """Play the model's schedule on the gates `on`: every record of the trace must be the model's, and memory after.

    `trace` is the model's; `latency`, of the memory, is what the model's machine had if that was not `on`'s. A broken
    port rule is a finding too, of kind 'rules'.
    """
    numbers = [program.number for program in case.programs]
    units = unit_types(on.machine)

    def program_at(cycle: int) -> int:
        return numbers[max(bisect_right(played.starts, cycle) - 1, 0)]

    rules, contents = None, b""
    with tempfile.TemporaryDirectory(prefix="kohakutpu-fuzz-") as folder:
        theirs = Path(folder) / "gates.trace"
        try:
            with recorded(theirs, on.machine, on.links, agent="bench") as records:
                contents = simulate(
                    on, "sim.fuzz:play", records=records,
                    schedule=[(cycle, flit.to_int()) for cycle, flit in played.schedule],
                    cycles=played.cycles + TAIL, contents=image(case.memory), latency=latency,
                    latency_seed=case.latency,
                )  # fmt: skip
        except BrokenRules as error:
            rules = error
        model, gates = Trace(trace), Trace(theirs)
        if (model.links, model.tracks) != (gates.links, gates.tracks):
            raise ValueError(f"links of the model {model.links}, of the gates {gates.links}")
        differs = first_difference(model, gates, played.cycles)
        if differs is not None:
            cycle = min(record.cycle for record in differs if record is not None)
            text = f"model {_text(differs[0], model, units)}; gates {_text(differs[1], gates, units)}"
            return Finding("trace", f"program {program_at(cycle)}: {text}", program_at(cycle))
    if rules is not None:
        return Finding("rules", str(rules), numbers[-1])
    if contents != played.memory:
        at = next(at for at, (ours, theirs) in enumerate(zip(played.memory, contents, strict=True)) if ours != theirs)
        text = f"memory at {at:#x}: model {played.memory[at]:#04x}, gates {contents[at]:#04x}, and no link differs"
        return Finding("memory", text, numbers[-1])
    return None
