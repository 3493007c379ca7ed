"""The vector core's word stream: IMEM, a queue of four words, and a copy of the loop registers.

Timing: docs/microarchitecture/vector-core.md, fetch.
"""

from __future__ import annotations

from amaranth import Array, Module, Mux, Signal, Value
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from kohakutpu.isa.vector import IMEM_WORDS, WORD_WIDTH

from .parameters import OFF

PC = (IMEM_WORDS - 1).bit_length()
QUEUE = 4
LOOP = data.StructLayout({"active": 1, "count": 24, "top": PC, "end": PC})


class Fetch(wiring.Component):
    """Members: `write`, `write_at`, `write_word` in, an IMEM instruction; `redirect`, `target`, `loop` in, fetch from
    there with these loop registers; `valid`, `word`, `at`, the oldest word and its address; `take` in.

    `loop_once_more`, while high, is a deliberate bug: the copy counts a pass too many.
    """

    def __init__(self, *, loop_once_more: Value = OFF):
        self.loop_once_more = loop_once_more
        super().__init__(
            {
                "write": In(1),
                "write_at": In(PC),
                "write_word": In(WORD_WIDTH),
                "redirect": In(1),
                "target": In(PC),
                "loop": In(LOOP),
                "valid": Out(1),
                "word": Out(WORD_WIDTH),
                "at": Out(PC),
                "take": In(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.imem = imem = memory.Memory(shape=WORD_WIDTH, depth=IMEM_WORDS, init=[])
        write, read = imem.write_port(), imem.read_port()
        m.d.comb += [write.addr.eq(self.write_at), write.data.eq(self.write_word), write.en.eq(self.write)]

        # ---- read ahead --------------------------------------------------------------------------------------
        address = Signal(PC)
        going = Signal()
        reading = Signal()
        owed = Signal(range(QUEUE + 1))  # words read or being read and not taken
        loop = Signal(LOOP)
        after = Signal(PC)
        m.d.comb += [
            reading.eq(going & (owed < QUEUE) & ~self.redirect),
            read.addr.eq(address),
            read.en.eq(reading),
            after.eq(address + 1),
        ]
        arrives = Signal()
        arriving = Signal(PC)
        m.d.sync += [arrives.eq(reading), arriving.eq(address), owed.eq(owed + reading - self.take)]
        with m.If(reading):
            m.d.sync += address.eq(after)
            with m.If(loop.active & (after == loop.end)):
                with m.If(loop.count > Mux(self.loop_once_more, 0, 1)):
                    m.d.sync += [loop.count.eq(loop.count - 1), address.eq(loop.top)]
                with m.Else():
                    m.d.sync += loop.active.eq(0)

        # ---- queue; a word that arrives at an empty one is its head at once -----------------------------------------
        words = [Signal(WORD_WIDTH, name=f"word{slot}") for slot in range(QUEUE)]
        places = [Signal(PC, name=f"place{slot}") for slot in range(QUEUE)]
        put, get = Signal(range(QUEUE)), Signal(range(QUEUE))
        held = Signal(range(QUEUE + 1))
        empty = held == 0
        keep = Signal()
        m.d.comb += [
            self.valid.eq(~empty | arrives),
            self.word.eq(Mux(empty, read.data, Array(words)[get])),
            self.at.eq(Mux(empty, arriving, Array(places)[get])),
            keep.eq(arrives & ~(empty & self.take)),
        ]
        with m.If(keep):
            m.d.sync += [Array(words)[put].eq(read.data), Array(places)[put].eq(arriving), put.eq(put + 1)]
        with m.If(self.take & ~empty):
            m.d.sync += get.eq(get + 1)
        m.d.sync += held.eq(held + keep - (self.take & ~empty))
        with m.If(self.redirect):
            m.d.sync += [
                address.eq(self.target), loop.eq(self.loop), going.eq(1), arrives.eq(0), owed.eq(0), held.eq(0),
                put.eq(0), get.eq(0),
            ]  # fmt: skip
        return m
