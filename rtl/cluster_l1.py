"""A cluster's operands: the register that assembles entries, the two sides of L1, and a delay line beside the array."""

from __future__ import annotations

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from .cluster_array import BITS, BLOCK, LANES
from .parameters import known_fault, power_of_two, within

WORDS = 4
WORD_BITS = 256
SCALE_BITS = 32
PART_BITS = WORD_BITS - SCALE_BITS
SLICE = BLOCK // WORDS
OPERAND_BITS = LANES * BLOCK * BITS
ENTRY_BITS = 9  # a bank and an entry in it
ENTRIES = 4, 1 << ENTRY_BITS  # what a side may hold, least and most

FAULTS = {
    "l1-layout": "both sides read their slots as side A does",
    "l1-scales": "an entry's scales are those of its last word",
    "l1-transparent": "an entry that is written while it is read shows its new words",
}


class Assembly(wiring.Component):
    """Words of operand entries, placed by number; with word 3 the entry is complete, in any order before it.

    Members: `put`, `word`, `number`, `to_b` and `entry` in; a cycle after word 3 `words` and `at` with `write_a` or
    `write_b` for a cycle.
    """

    def __init__(self):
        super().__init__(
            {
                "put": In(1),
                "word": In(WORD_BITS),
                "number": In(range(WORDS)),
                "to_b": In(1),
                "entry": In(ENTRY_BITS),
                "words": Out(data.ArrayLayout(WORD_BITS, WORDS)),
                "at": Out(ENTRY_BITS),
                "write_a": Out(1),
                "write_b": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        complete = self.put & (self.number == WORDS - 1)
        with m.If(self.put):
            m.d.sync += self.words[self.number].eq(self.word)
        m.d.sync += [
            self.at.eq(self.entry), self.write_a.eq(complete & ~self.to_b), self.write_b.eq(complete & self.to_b),
        ]  # fmt: skip
        return m


class L1Side(wiring.Component):
    """`entries` operand entries in `layout` 'A' or 'B' (spec: operand word packing).

    Members: `write`, `at`, `words` (the four operand words); `entry`, and two cycles later `operand`, significand
    (lane, k) at bit 7 * (32 * lane + k), and `scales`, lane l at byte l. Reads see the entry as it was before a write
    in the same cycle. Entry numbers count modulo `entries`.
    """

    def __init__(self, *, entries: int, layout: str, fault: str | None = None):
        power_of_two("L1Side", *ENTRIES, entries=entries)
        if layout not in ("A", "B"):
            raise TypeError(f"L1Side layout must be 'A' or 'B', not {layout!r}")
        self.entries = entries
        self.layout = layout
        self.fault = known_fault("L1Side", fault, FAULTS)
        super().__init__(
            {
                "write": In(1),
                "at": In(ENTRY_BITS),
                "words": In(data.ArrayLayout(WORD_BITS, WORDS)),
                "entry": In(ENTRY_BITS),
                "operand": Out(OPERAND_BITS),
                "scales": Out(SCALE_BITS),
            }
        )

    def slot(self, lane: int, k: int) -> int:
        """Slot of significand k of a word's slice, counted from the word's top."""
        return SLICE * lane + k if self.layout == "A" or self.fault == "l1-layout" else LANES * k + lane

    def elaborate(self, platform):
        m = Module()
        width = WORDS * PART_BITS + SCALE_BITS
        m.submodules.store = store = memory.Memory(shape=width, depth=self.entries, init=[])
        write = store.write_port()
        read = store.read_port(transparent_for=[write] if self.fault == "l1-transparent" else [])
        scales = self.words[WORDS - 1 if self.fault == "l1-scales" else 0][:SCALE_BITS]
        m.d.comb += [
            write.addr.eq(self.at),
            write.data.eq(Cat(*(word[SCALE_BITS:] for word in self.words), scales)),
            write.en.eq(self.write),
            read.addr.eq(self.entry),
            read.en.eq(1),
        ]
        stored = Signal(width)
        m.d.sync += stored.eq(read.data)
        significands = []
        for lane in range(LANES):
            for k in range(BLOCK):
                top = PART_BITS * (k // SLICE + 1) - BITS * self.slot(lane, k % SLICE)
                significands.append(stored[top - BITS : top])
        kept = stored[WORDS * PART_BITS :]
        m.d.comb += [
            self.operand.eq(Cat(significands)),
            # The word has lane 0 in its top byte.
            self.scales.eq(Cat(kept.word_select(LANES - 1 - lane, 8) for lane in range(LANES))),
        ]
        return m


class Delay(wiring.Component):
    """`width` bits, `cycles` cycles later, in a memory and not in as many registers. Reset does not clear it."""

    def __init__(self, *, width: int, cycles: int):
        within("Delay", 3, 64, cycles=cycles)
        self.width = width
        self.cycles = cycles
        super().__init__({"enter": In(width), "leave": Out(width)})

    def elaborate(self, platform):
        m = Module()
        depth = self.cycles - 1
        m.submodules.store = store = memory.Memory(shape=self.width, depth=depth, init=[])
        write, read = store.write_port(), store.read_port()
        place = Signal(range(depth))
        # Read and overwrite one place: what leaves was written `depth` cycles ago, and takes one more to appear.
        m.d.sync += place.eq(Mux(place == depth - 1, 0, place + 1))
        m.d.comb += [
            write.addr.eq(place), write.data.eq(self.enter), write.en.eq(1),
            read.addr.eq(place), read.en.eq(1), self.leave.eq(read.data),
        ]  # fmt: skip
        return m
