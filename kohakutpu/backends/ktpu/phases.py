"""A workgroup's work in phases: what the clusters do between two of its barriers, and what the vector cores do.

A phase is a program of its own. A float that a later phase needs goes through memory as float32, which holds every word
that a core computes or loads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kohakutpu.isa.vector import Opcode

from .instructions import Code, Instruction
from .programs import DoesNotFit

SLOT = 64  # bytes: 16 floats as float32


@dataclass
class Phase:
    """One of the two: jobs of the clusters, or vector instructions from `first` on, and the memory that they touch."""

    tiles: bool
    first: int
    jobs: list = field(default_factory=list)
    stored: dict[tuple[int, int], list] = field(default_factory=dict)
    loaded: set[tuple[int, int]] = field(default_factory=set)
    stores: list[tuple[int, int, int]] = field(default_factory=list)


def programs(code: Code, phases: Sequence[Phase], slot) -> tuple[list[Code | None], list[tuple[int, ...]], int]:
    """(each phase's code, None of the clusters' phases; the slots that it fills; how many slots there are).

    `slot` gives the (memory, word) of a slot, where a float of all lanes waits for a later phase. Raises DoesNotFit.
    """
    vector = [n for n, phase in enumerate(phases) if not phase.tiles]
    # What stands between two vector phases belongs to the later one, where its values are stored or kept.
    ends = [next((phase.first for phase in phases[n:] if phase.tiles), len(code.instructions)) for n in vector]
    phase_of = {}
    for number, instruction in enumerate(code.instructions):
        phase_of[id(instruction)] = next((n for n, end in zip(vector, ends, strict=True) if number < end), None)
    kept: dict[int, list[Instruction]] = {n: [] for n in vector}
    for instruction in code.needed():
        kept[phase_of[id(instruction)]].append(instruction)
    raw: set[int] = set()  # registers with float16 patterns as they were loaded: float32 would make a NaN quiet
    made: dict[int, int] = {}
    slots: dict[int, int] = {}
    fetched: dict[int, list[int]] = {n: [] for n in vector}
    for n in vector:
        for instruction in kept[n]:
            for register in instruction.reads:
                if register in raw and made.get(register, n) != n:
                    raise DoesNotFit("a float16 is loaded in one phase of clusters and vector work and used in a later "
                                     "one, where a NaN would have other bits; load it there again")  # fmt: skip
                if made.get(register, n) != n and register not in fetched[n]:
                    slots.setdefault(register, len(slots))
                    fetched[n].append(register)
            if instruction.to is not None:
                made.setdefault(instruction.to, n)
                loads = instruction.op is Opcode.VLD and not instruction.wide
                if loads or (instruction.op is Opcode.VSHUF and raw & set(instruction.reads)):
                    raw.add(instruction.to)
    found: list[Code | None] = [None] * len(phases)
    filled: list[tuple[int, ...]] = [()] * len(phases)
    for n in vector:
        own = Code(made=list(code.made))
        own.instructions += [Instruction(Opcode.VLD, r, word=slot(slots[r]), wide=True) for r in fetched[n]]
        own.instructions += kept[n]
        here = [r for r in slots if made[r] == n]
        own.instructions += [Instruction(Opcode.VST, None, (("v", r),), word=slot(slots[r]), wide=True) for r in here]
        found[n], filled[n] = own, tuple(slots[r] for r in here)
    return found, filled, len(slots)
