"""One side of a cluster's L1, and the delay line that carries commands beside the array."""

from __future__ import annotations

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from .cluster_array import BITS, BLOCK, LANES

WORDS = 4
WORD_BITS = 256
SCALE_BITS = 32
PART_BITS = WORD_BITS - SCALE_BITS
SLICE = BLOCK // WORDS
OPERAND_BITS = LANES * BLOCK * BITS


class L1Side(wiring.Component):
    """`entries` operand entries in `layout` 'A' or 'B' (spec: operand word packing).

    Members: `write`, `write_entry`, `words` (the four operand words) in; `entry` in, and two cycles later `operand`,
    significand (lane, k) at bit 7 * (32 * lane + k), and `scales`, lane l at byte l. Reads see the entry as it was before
    a write in the same cycle.
    """

    def __init__(self, *, entries: int, layout: str):
        if not isinstance(entries, int) or not 4 <= entries <= 512 or entries & (entries - 1):
            raise TypeError(f"L1Side entries must be a power of two from 4 to 512, not {entries!r}")
        if layout not in ("A", "B"):
            raise TypeError(f"L1Side layout must be 'A' or 'B', not {layout!r}")
        self.entries = entries
        self.layout = layout
        super().__init__(
            {
                "write": In(1),
                "write_entry": In(range(entries)),
                "words": In(WORDS * WORD_BITS),
                "entry": In(range(entries)),
                "operand": Out(OPERAND_BITS),
                "scales": Out(SCALE_BITS),
            }
        )

    def slot(self, lane: int, k: int) -> int:
        """Slot of a significand inside its word, counted from the top."""
        return SLICE * lane + k if self.layout == "A" else LANES * k + lane

    def elaborate(self, platform):
        m = Module()
        width = WORDS * PART_BITS + SCALE_BITS
        m.submodules.store = store = memory.Memory(shape=width, depth=self.entries, init=[])
        write, read = store.write_port(), store.read_port()
        parts = [self.words[WORD_BITS * w + SCALE_BITS : WORD_BITS * (w + 1)] for w in range(WORDS)]
        m.d.comb += [
            write.addr.eq(self.write_entry),
            write.data.eq(Cat(*parts, self.words[:SCALE_BITS])),
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
        scales = stored[WORDS * PART_BITS :]
        m.d.comb += [
            self.operand.eq(Cat(significands)),
            # The word has lane 0 in its top byte.
            self.scales.eq(Cat(*(scales[8 * (LANES - 1 - lane) : 8 * (LANES - lane)] for lane in range(LANES)))),
        ]
        return m


class Delay(wiring.Component):
    """`width` bits, `cycles` cycles later, in a memory and not in as many registers."""

    def __init__(self, *, width: int, cycles: int):
        if not isinstance(cycles, int) or cycles < 3:
            raise TypeError(f"Delay cycles must be an integer of at least 3, not {cycles!r}")
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
