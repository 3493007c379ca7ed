"""The accumulator: the tile store, 16 lanes around it, FP16 and raw results.

Spec: cluster, accumulator. Timing: docs/microarchitecture/cluster.md, accumulator; cycle numbers count from the
command.
"""

from __future__ import annotations

from enum import IntEnum

from amaranth import Cat, Module, Mux
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from .arithmetic import register
from .cluster_array import LANES, SUMS
from .cluster_l1 import Delay
from .cluster_lane import FAULTS as LANE_FAULTS
from .cluster_lane import Lane
from .emit import shared
from .parameters import known_fault, power_of_two

GRANULE = 256
TILES = 8, 32768  # least, so that addresses which wrap are 5 commands apart, and most
FAULTS = {**LANE_FAULTS, "accumulator-reuse": "a tile is written a cycle late"}


class Command(IntEnum):
    """Accumulator opcodes (spec: cluster, opcodes); LOAD_EMIT, which the published unit lacks, has the place of FWD."""

    NOP = 0
    LOAD = 1
    ADD = 2
    ADD_PEER = 3
    SEND = 4
    EMIT = 5
    LOAD_EMIT = 6
    ADD_EMIT = 7


OPENS = (Command.LOAD, Command.LOAD_EMIT)
WRITES = (*OPENS, Command.ADD, Command.ADD_PEER, Command.ADD_EMIT)
FROM_ARRAY = (*OPENS, Command.ADD, Command.ADD_EMIT)
EMITS = (Command.EMIT, Command.LOAD_EMIT, Command.ADD_EMIT)


class Accumulator(wiring.Component):
    """`tiles` words of 16 accumulator floats with `mantissa` fraction bits.

    Members: `sums`, `scales_a`, `scales_b` (lane l at byte l) and `anchor` two cycles before their command; `command`
    (`Command`), `address`, `peer` (the word of an ADD_PEER) in it; `push` and `granule` into the result queue, for SEND
    in cycles 7 and 8, for commands that emit in cycle 8. Commands to one address must be 5 cycles apart, and a SEND
    needs the next cycle too.
    """

    def __init__(self, *, tiles: int, mantissa: int, fault: str | None = None):
        power_of_two("Accumulator", *TILES, tiles=tiles)
        self.tiles = tiles
        self.mantissa = mantissa
        self.fault = known_fault("Accumulator", fault, FAULTS)
        self.width = mantissa + 8
        self.word = LANES * LANES * self.width
        super().__init__(
            {
                "sums": In(SUMS),
                "scales_a": In(8 * LANES),
                "scales_b": In(8 * LANES),
                "anchor": In(8),
                "command": In(Command),
                "address": In(range(tiles)),
                "peer": In(self.word),
                "push": Out(1),
                "granule": Out(GRANULE),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.store = store = memory.Memory(shape=self.word, depth=self.tiles, init=[])
        read, write = store.read_port(), store.write_port()
        m.submodules.peer = peer = shared(Delay, width=self.word, cycles=3)
        address2 = register(m, self.address, "address", 2)
        command3 = register(m, self.command, "command", 3)
        command6 = register(m, command3, "command_late", 3)
        late = self.fault == "accumulator-reuse"
        write_address = register(m, address2, "write_address", 4 + late)
        m.d.comb += [peer.enter.eq(self.peer), read.addr.eq(address2), read.en.eq(1), write.addr.eq(write_address)]

        def one_of(command, *kinds):
            return Cat(command == kind for kind in kinds).any()

        lanes = []
        for row in range(LANES):
            for column in range(LANES):
                index = LANES * row + column
                m.submodules[f"lane{index}"] = lane = shared(
                    Lane, mantissa=self.mantissa, fault=self.fault if self.fault in LANE_FAULTS else None
                )
                part = slice(self.width * index, self.width * (index + 1))
                m.d.comb += [
                    lane.sum.eq(self.sums[index]),
                    lane.scale_a.eq(self.scales_a.word_select(row, 8)),
                    lane.scale_b.eq(self.scales_b.word_select(column, 8)),
                    lane.anchor.eq(self.anchor),
                    lane.tile.eq(read.data[part]),
                    lane.peer.eq(peer.leave[part]),
                    lane.from_array.eq(one_of(command3, *FROM_ARRAY)),
                    lane.from_peer.eq(command3 == Command.ADD_PEER),
                    lane.keep.eq(~one_of(command3, *OPENS)),
                ]
                lanes.append(lane)
        results, writes = Cat(lane.result for lane in lanes), one_of(command6, *WRITES)
        m.d.comb += [
            write.data.eq(register(m, results, "results_late", late)),
            write.en.eq(register(m, writes, "writes_late", late)),
        ]
        raw7, halves8 = Cat(lane.word for lane in lanes), Cat(lane.half for lane in lanes)
        upper8 = register(m, raw7[GRANULE:], "upper8")
        sends7 = register(m, command6 == Command.SEND, "sends7")
        sends8 = register(m, sends7, "sends8")
        emits8 = register(m, one_of(command6, *EMITS), "emits8", 2)
        m.d.comb += [
            self.push.eq(sends7 | sends8 | emits8),
            self.granule.eq(Mux(sends7, raw7[:GRANULE], Mux(sends8, upper8, halves8))),
        ]
        return m
