"""The counters of a GEMM: one (A entry, B entry, sub-tile) an issue, paced and held (spec: cluster, GEMM sweep)."""

from __future__ import annotations

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from kohakutpu.isa.cluster import WORD

from .cluster_accumulator import Command
from .link import view

INSTRUCTION = view(WORD)
# Issue period by gm * gn below 5, where nk > 1: an address recurs no earlier than 5 cycles later.
PERIOD = {1: 5, 2: 3, 3: 2, 4: 2}
NARROW_GAP = 3  # a narrow sweep's last issue in e: the next GEMM starts in e + 4 at the earliest


class Sweep(wiring.Component):
    """Members: `start` with `inst`, the GEMM; `room` for an emitting issue; `issue` with `a_entry`, `b_entry` (bank in bit 8),
    `tile`, `command`, `anchor`, `emits`; `running`, and `free`: a GEMM may start in this cycle; `narrow`: the last sweep is."""

    def __init__(self, *, tile_bits: int, paced: bool = True):
        self.tile_bits = tile_bits
        self.paced = paced
        super().__init__(
            {
                "start": In(1),
                "inst": In(INSTRUCTION),
                "room": In(1),
                "issue": Out(1),
                "emits": Out(1),
                "a_entry": Out(9),
                "b_entry": Out(9),
                "tile": Out(tile_bits),
                "command": Out(3),
                "anchor": Out(8),
                "running": Out(1),
                "narrow": Out(1),
                "free": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        inst = self.inst

        def counted(value):
            return Mux(value == 0, 0, value - 1)[:8]

        last_g, last_h, last_k = Signal(8), Signal(8), Signal(8)
        g, h, k = Signal(8), Signal(8), Signal(8)
        step = Signal(8)
        a_now, a_block, b_now, b_block = (Signal(8, name=name) for name in ("a_now", "a_block", "b_now", "b_block"))
        a_bank, b_bank = Signal(), Signal()
        load, emit = Signal(), Signal()
        anchor, tile = Signal(8), Signal(self.tile_bits)
        pace, period = Signal(3), Signal(3)
        gap = Signal(range(NARROW_GAP + 1))

        final_k = k == last_k
        end_h, end_g = h == last_h, g == last_g
        ending = Signal()
        m.d.comb += [
            self.emits.eq(emit & final_k),
            self.issue.eq(self.running & (pace == 0) & (~self.emits | self.room)),
            ending.eq(self.issue & end_h & end_g & final_k),
            self.a_entry.eq(Cat(a_now, a_bank)),
            self.b_entry.eq(Cat(b_now, b_bank)),
            self.tile.eq(tile),
            self.anchor.eq(anchor),
            self.free.eq(Mux(self.running, ending & ~self.narrow, gap == 0)),
        ]
        opens = load & (k == 0)
        m.d.comb += self.command.eq(
            Mux(opens, Mux(self.emits, Command.LOAD_EMIT, Command.LOAD), Mux(self.emits, Command.ADD_EMIT, Command.ADD))
        )
        with m.If(pace != 0):
            m.d.sync += pace.eq(pace - 1)
        with m.If(gap != 0):
            m.d.sync += gap.eq(gap - 1)
        with m.If(self.issue):
            m.d.sync += [pace.eq(period), tile.eq(tile + 1), h.eq(h + 1), b_now.eq(b_now + step)]
            with m.If(end_h):
                m.d.sync += [h.eq(0), b_now.eq(b_block), g.eq(g + 1), a_now.eq(a_now + step)]
                with m.If(end_g):
                    m.d.sync += [
                        g.eq(0), k.eq(k + 1), tile.eq(0),
                        a_block.eq(a_block + 1), a_now.eq(a_block + 1), b_block.eq(b_block + 1), b_now.eq(b_block + 1),
                    ]  # fmt: skip
        with m.If(ending):
            m.d.sync += [self.running.eq(0), gap.eq(Mux(self.narrow, NARROW_GAP, 0))]
        with m.If(self.start):
            rows, columns = counted(inst.gm), counted(inst.gn)
            m.d.sync += [
                self.running.eq(1), pace.eq(0), gap.eq(0),
                last_g.eq(rows), last_h.eq(columns), last_k.eq(counted(inst.nk)),
                g.eq(0), h.eq(0), k.eq(0), tile.eq(0), step.eq(Mux(inst.nk == 0, 1, inst.nk)),
                a_now.eq(inst.aoff), a_block.eq(inst.aoff), b_now.eq(inst.boff), b_block.eq(inst.boff),
                a_bank.eq(inst.abank), b_bank.eq(inst.bbank), load.eq(~inst.acc), emit.eq(inst.emit), anchor.eq(inst.anchor),
                self.narrow.eq(0), period.eq(0),
            ]  # fmt: skip
            for gm in range(1, 5):
                for gn in range(1, 5):
                    if gm * gn in PERIOD:
                        with m.If((rows == gm - 1) & (columns == gn - 1)):
                            m.d.sync += self.narrow.eq(1)
                            if self.paced:
                                m.d.sync += period.eq(Mux(inst.nk > 1, PERIOD[gm * gn] - 1, Const(0, 3)))
        return m
