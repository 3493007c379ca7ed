"""What a cluster's operand memories hold while its instructions are written: where an operand goes, what it replaces.

A FILL may run beside the sweep that was started last and nothing interlocks them; the sweep before that has read
everything. So an operand may replace any other but those of the last sweep, and replaces what is needed again last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kohakutpu.isa.cluster import FILL_LIMIT, Side
from kohakutpu.lang.source import Source
from kohakutpu.machine import ClusterUnit

from .refusals import CompileError
from .stages import Operand

BANK = 256  # entries that an instruction's 8-bit numbers reach
NEVER = 1 << 60


class OperandMemory:
    """One side of one cluster. `uses` are the operands of every sweep to come on this side, in order."""

    def __init__(self, unit: ClusterUnit, side: Side, uses: Sequence[Operand]):
        self.unit = unit
        self.side = side
        entries = unit.a_entries if side == Side.A else unit.b_entries
        self.bank_entries = min(entries, BANK)
        # Per bank, regions (first entry, entries, operand) in the order of their first entries.
        self._banks: list[list[tuple[int, int, Operand]]] = [[] for _ in range(entries // self.bank_entries)]
        self._places: dict[Operand, tuple[int, int]] = {}
        self._running: Operand | None = None  # what the last sweep may still read
        self._uses = uses
        self._next: list[int] = [NEVER] * len(uses)  # the use after use n of the same operand
        self._at = 0
        last: dict[Operand, int] = {}
        for n in range(len(uses) - 1, -1, -1):
            self._next[n] = last.get(uses[n], NEVER)
            last[uses[n]] = n
        self._due: dict[Operand, int] = {}  # held operands: the next use

    def find(self, operand: Operand) -> tuple[int, int] | None:
        """(bank, first entry) of an operand that is held."""
        return self._places.get(operand)

    def following(self, entries: int) -> list[Operand]:
        """The operand of the next sweep and those of the sweeps after it that lie behind it in memory, chunk by chunk, and
        are not held: what one FILL can fetch. Each takes `entries`."""
        first = self._uses[self._at]
        run = [first]
        most = min(FILL_LIMIT, self.bank_entries) // entries
        while len(run) < most and self._at + len(run) < len(self._uses):
            operand = self._uses[self._at + len(run)]
            if operand != replace(first, chunk=first.chunk + len(run)) or operand in self._places:
                break
            run.append(operand)
        return run

    def place(self, run: Sequence[Operand], entries: int) -> tuple[int, int] | None:
        """(bank, first entry) for operands that are to be filled, one behind the other, for the next sweep and those after
        it; None where the running sweep is in the way, or more than one would replace what is needed before they are."""
        end = self._at + len(run)
        best, choice = -1 if len(run) == 1 else end - 1, None
        each, entries = entries, entries * len(run)
        for bank, regions in enumerate(self._banks):
            for first in self._candidates(regions, entries):
                soonest = NEVER
                for begin, size, held in regions:
                    if begin < first + entries and first < begin + size:
                        if held == self._running:
                            soonest = -1
                            break
                        soonest = min(soonest, self._due[held])
                if soonest > best:
                    best, choice = soonest, (bank, first)
                    if best == NEVER:
                        break
            if best == NEVER:
                break
        if choice is None:
            return None
        bank, first = choice
        kept = []
        for region in self._banks[bank]:
            if region[0] < first + entries and first < region[0] + region[1]:
                del self._places[region[2]]
                del self._due[region[2]]
            else:
                kept.append(region)
        for number, operand in enumerate(run):
            kept.append((first + number * each, each, operand))
            self._places[operand] = (bank, first + number * each)
            self._due[operand] = self._at + number
        kept.sort(key=lambda region: region[0])
        self._banks[bank] = kept
        return choice

    def _candidates(self, regions, entries: int):
        yield 0
        for begin, size, _ in regions:
            if begin + size + entries <= self.bank_entries:
                yield begin + size
        for begin, _, _ in regions:
            if begin >= entries:
                yield begin - entries

    def swept(self, operand: Operand) -> None:
        """A sweep over this operand has been started; it is the next of `uses`."""
        self._running = operand
        self._due[operand] = self._next[self._at]
        self._at += 1

    def rest(self) -> None:
        """No sweep is running any more."""
        self._running = None

    def require(self, operand: Operand, entries: int, source: Source) -> None:
        """Refuse an operand that no bank could ever hold."""
        if entries > self.bank_entries:
            self.refuse(operand, entries, source)

    def refuse(self, operand: Operand, entries: int, source: Source) -> None:
        kept = ""
        if entries <= self.bank_entries:
            kept = f" and the sweep before, which still runs, needs {self._running.buffer}"
        raise CompileError(
            f"{operand.buffer} needs {entries} entries on side {self.side.name} of the cluster at {self.unit.xy}, "
            f"where a bank holds {self.bank_entries}{kept}; use a smaller {('gm', 'gn')[self.side]} or nk",
            source,
        )
