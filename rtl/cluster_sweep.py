"""The counters of a GEMM: one (A entry, B entry, sub-tile) an issue, paced and held (spec: cluster, GEMM sweep)."""

from __future__ import annotations

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from kohakutpu.isa.cluster import WORD

from .cluster_accumulator import Command
from .cluster_l1 import ENTRY_BITS
from .link import view
from .parameters import known_fault

INSTRUCTION = view(WORD)
REUSE = 5  # cycles between two commands to one tile address

FAULTS = {
    "sweep-pause": "a K block follows a short one without a pause",
    "sweep-pause-lost": "a GEMM that starts ends the pause after the one before",
    "sweep-offset": "entry offsets carry into the bank bit",
    "sweep-tiles": "tile addresses run on from one K block to the next",
    "sweep-room": "issues that emit do not wait for room in the result queue",
}


class Sweep(wiring.Component):
    """Members: `start` with `inst`, the GEMM; `room` for an issue that emits; `issue` with `a_entry`, `b_entry` (bank
    in bit 8), `tile`, `command`, `anchor`, `emits`; `running`; `free`, a GEMM may start in this cycle; `pause`, the
    cycles by which whatever follows this issue on its tile must wait longer than the next issue would.

    From the counters through `issue` and `free` to the start of the next GEMM is the cluster's longest path; everything
    on it is an equality of 8 bits and then one gate after the other.
    """

    def __init__(self, *, tile_bits: int, fault: str | None = None):
        self.tile_bits = tile_bits
        self.fault = known_fault("Sweep", fault, FAULTS)
        super().__init__(
            {
                "start": In(1),
                "inst": In(INSTRUCTION),
                "room": In(1),
                "issue": Out(1),
                "emits": Out(1),
                "a_entry": Out(ENTRY_BITS),
                "b_entry": Out(ENTRY_BITS),
                "tile": Out(tile_bits),
                "command": Out(Command),
                "anchor": Out(8),
                "running": Out(1),
                "free": Out(1),
                "pause": Out(range(REUSE)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        inst = self.inst
        row, column, block = Signal(8), Signal(8), Signal(8)
        last_row, last_column, last_block = Signal(8), Signal(8), Signal(8)
        loads, emit = Signal(), Signal()
        pace = Signal(range(REUSE))
        final_row, final_column, final_block = row == last_row, column == last_column, block == last_block
        ending = Signal()
        m.d.comb += [
            self.emits.eq(emit & final_block),
            self.issue.eq(self.running & (pace == 0) & (~self.emits | self.room | (self.fault == "sweep-room"))),
            ending.eq(self.issue & final_column & final_row & final_block),
            self.free.eq(~self.running | ending),
            # Tile addresses count up from 0, in this block and the next: only the first ones recur too soon.
            self.pause.eq(Mux(self.tile < REUSE - 1, REUSE - 1 - self.tile[:2], 0)),
        ]
        with m.If(loads & (block == 0)):
            m.d.comb += self.command.eq(Mux(self.emits, Command.LOAD_EMIT, Command.LOAD))
        with m.Else():
            m.d.comb += self.command.eq(Mux(self.emits, Command.ADD_EMIT, Command.ADD))

        with m.If(pace != 0):
            m.d.sync += pace.eq(pace - 1)
        with m.If(self.issue):
            m.d.sync += [self.tile.eq(self.tile + 1), column.eq(column + 1)]
            with m.If(final_column):
                m.d.sync += [column.eq(0), row.eq(row + 1)]
                with m.If(final_row):
                    m.d.sync += [row.eq(0), block.eq(block + 1)]
                    if self.fault != "sweep-pause":
                        m.d.sync += pace.eq(self.pause)
                    if self.fault != "sweep-tiles":
                        m.d.sync += self.tile.eq(0)
        with m.If(ending):
            m.d.sync += self.running.eq(0)
        with m.If(self.start):
            m.d.sync += [
                self.running.eq(1), row.eq(0), column.eq(0), block.eq(0), self.tile.eq(0),
                loads.eq(~inst.acc), emit.eq(inst.emit), self.anchor.eq(inst.anchor),
            ]  # fmt: skip
            for last, count in ((last_row, inst.gm), (last_column, inst.gn), (last_block, inst.nk)):
                m.d.sync += last.eq(count - (count != 0))
            if self.fault == "sweep-pause-lost":
                m.d.sync += pace.eq(0)

        # An entry's number is offset + group * nk + block, modulo 256 inside its bank.
        counting = ENTRY_BITS if self.fault == "sweep-offset" else ENTRY_BITS - 1
        step = Signal(8)
        for side, entry, offset, bank, inner in (
            ("a", self.a_entry, inst.aoff, inst.abank, final_column & ~final_row),
            ("b", self.b_entry, inst.boff, inst.bbank, ~final_column),
        ):
            now, first = Signal(counting, name=f"{side}_now"), Signal(counting, name=f"{side}_first")
            in_bank = Signal(name=f"{side}_bank")
            carried = now[8] if self.fault == "sweep-offset" else 0
            m.d.comb += entry.eq(Cat(now[:8], in_bank ^ carried))
            block_ends = final_column & final_row
            with m.If(self.issue):
                with m.If(block_ends):
                    m.d.sync += [first.eq(first + 1), now.eq(first + 1)]
                with m.Elif(inner):
                    m.d.sync += now.eq(now + step)
                if side == "b":  # the columns begin again with each row
                    with m.Elif(final_column):
                        m.d.sync += now.eq(first)
            with m.If(self.start):
                m.d.sync += [first.eq(offset), now.eq(offset), in_bank.eq(bank), step.eq(inst.nk | (inst.nk == 0))]
        return m
