"""Mode GATHER of the memory mover: the index vector, and where each element of its rows comes from.

Timing: docs/microarchitecture/memory-agent.md, memory mover.
"""

from __future__ import annotations

from amaranth import Module, Mux, Signal
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from kohakutpu.isa import registers as reg

from .link import view
from .memory_issue import ADDRESS_BITS, WORD_BITS, WORD_BYTES
from .parameters import known_fault

MAX_INDICES = 2048
INDEX_WIDTH = 32
LANES = WORD_BITS // INDEX_WIDTH
LANE_BITS = (LANES - 1).bit_length()
INDEX_WORDS = MAX_INDICES // LANES
ROW_BITS = MAX_INDICES.bit_length()
# An element on its way: where its row's word would be at index 0, and whether there is an index.
ELEMENT = data.StructLayout({"place": ADDRESS_BITS, "exhausted": 1})

FAULTS = {
    "gather-wide-offset": "index times pitch is not taken modulo 2^32",
    "gather-lane": "indices are read from the highest in a word down",
    "gather-endless": "the index vector begins again when it is used up",
    "gather-row-runs-on": "a row starts where the words of the one before ended",
}


class Gather(wiring.Component):
    """Rows of `settings.words` words (0 acts as 1), `settings.pitch` bytes apart, one for each index.

    Members: `put` stores `put_data`, the next word of the index vector since `start`; `ready` says in one cycle that
    all are there; `base` of the source and `count` of indices; `valid` says that the next element is known: `source`,
    its byte address, and `exhausted`, there is no index for it; `take` moves on.
    """

    def __init__(self, *, fault: str | None = None):
        self.fault = known_fault("Gather", fault, FAULTS)
        super().__init__(
            {
                "start": In(1),
                "put": In(1),
                "put_data": In(WORD_BITS),
                "ready": In(1),
                "base": In(ADDRESS_BITS),
                "count": In(ROW_BITS),
                "settings": In(view(reg.MV_GATHER)),
                "valid": Out(1),
                "source": Out(ADDRESS_BITS),
                "exhausted": Out(1),
                "take": In(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.indices = indices = memory.Memory(shape=WORD_BITS, depth=INDEX_WORDS, init=[])
        store, load = indices.write_port(), indices.read_port()
        stored = Signal(range(INDEX_WORDS))
        m.d.comb += [store.addr.eq(stored), store.data.eq(self.put_data), store.en.eq(self.put)]
        with m.If(self.put):
            m.d.sync += stored.eq(stored + 1)

        # Which row and which word of it: element after element.
        active, exhausted = Signal(), Signal()
        row = Signal(ROW_BITS)
        word = Signal(reg.MV_GATHER.fields["words"].width)
        place = Signal(ADDRESS_BITS)
        moves = Signal()  # everything below moves one stage on
        row_ends = (self.settings.words == 0) | (word == self.settings.words - 1)
        m.d.comb += [moves.eq(~self.valid | self.take), exhausted.eq(row == self.count)]
        if self.fault == "gather-endless":
            m.d.comb += exhausted.eq(0)
        with m.If(self.ready):
            m.d.sync += [active.eq(1), row.eq(0), word.eq(0), place.eq(self.base)]
        with m.Elif(moves):
            m.d.sync += [word.eq(word + 1), place.eq(place + WORD_BYTES)]
            with m.If(row_ends):
                m.d.sync += word.eq(0)
                if self.fault != "gather-row-runs-on":
                    m.d.sync += place.eq(self.base)
                with m.If(~exhausted):
                    m.d.sync += row.eq(row + 1)
                if self.fault == "gather-endless":
                    with m.If(row == self.count - 1):
                        m.d.sync += row.eq(0)

        # Read, select, multiply by halves, add them, add the place.
        lane = Signal(LANE_BITS)
        index = Signal(INDEX_WIDTH)
        low, crossed = Signal(INDEX_WIDTH), [Signal(INDEX_WIDTH, name=f"crossed_{i}") for i in range(2)]
        offset = Signal(ADDRESS_BITS if self.fault == "gather-wide-offset" else INDEX_WIDTH)
        pitch = self.settings.pitch
        sum_ = low + ((crossed[0] + crossed[1]) << 16)
        if self.fault == "gather-wide-offset":
            high = Signal(INDEX_WIDTH)
            sum_ = sum_ + (high << 32)
        stages = [Signal(ELEMENT, name=f"element_{i}") for i in range(5)]
        valid = [Signal(name=f"valid_{i}") for i in range(5)]
        m.d.comb += [
            load.addr.eq(row[LANE_BITS:]),
            load.en.eq(moves),
            self.valid.eq(valid[-1]),
            self.source.eq(stages[-1].place),
            self.exhausted.eq(stages[-1].exhausted),
        ]
        halves = [index[:16], index[16:]]
        with m.If(moves):
            m.d.sync += [
                lane.eq(~row if self.fault == "gather-lane" else row),
                index.eq(load.data.word_select(lane, INDEX_WIDTH)),
                low.eq(halves[0] * pitch[:16]),
                crossed[0].eq(halves[0] * pitch[16:]), crossed[1].eq(halves[1] * pitch[:16]),
                offset.eq(sum_),
                stages[0].place.eq(place), stages[0].exhausted.eq(exhausted), valid[0].eq(active),
                *(later.eq(before) for before, later in zip(stages[:3], stages[1:4])),
                *(later.eq(before) for before, later in zip(valid, valid[1:])),
                stages[4].place.eq(stages[3].place + offset), stages[4].exhausted.eq(stages[3].exhausted),
            ]  # fmt: skip
            if self.fault == "gather-wide-offset":
                m.d.sync += high.eq(halves[1] * pitch[16:])
        with m.If(self.start):
            m.d.sync += [active.eq(0), stored.eq(0), *(each.eq(0) for each in valid)]
        return m
