"""Tops for the benches of a cluster's parts."""

from __future__ import annotations

from amaranth import Cat, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from rtl.arithmetic import register
from rtl.cluster_l1 import WORD_BITS, WORDS, Assembly, L1Side
from rtl.cluster_lane import Lane
from rtl.emit import shared

LANES = 16
SKEW = 5  # cycles from a lane's sum to its tile word
LANE_LATENCY = 10  # from a lane's inputs here to its outputs


class Lanes(wiring.Component):
    """Sixteen lanes that take everything in one cycle and show word and FP16 together, `LANE_LATENCY` cycles later.

    Lane l has bits l of `from_array`, `from_peer` and `keep`, and the l-th part of every other member.
    """

    def __init__(self, *, mantissa: int, fault: str | None = None):
        self.mantissa = mantissa
        self.fault = fault
        width = mantissa + 8
        super().__init__(
            {
                "sums": In(19 * LANES),
                "scales_a": In(8 * LANES),
                "scales_b": In(8 * LANES),
                "anchors": In(8 * LANES),
                "tiles": In(width * LANES),
                "peers": In(width * LANES),
                "from_array": In(LANES),
                "from_peer": In(LANES),
                "keep": In(LANES),
                "words": Out(width * LANES),
                "halves": Out(16 * LANES),
            }
        )

    def elaborate(self, platform):
        m = Module()
        width = self.mantissa + 8
        late = {
            name: register(m, getattr(self, name), name, SKEW)
            for name in ("tiles", "peers", "from_array", "from_peer", "keep")
        }
        words, halves = [], []
        for index in range(LANES):
            m.submodules[f"lane{index}"] = lane = shared(Lane, mantissa=self.mantissa, fault=self.fault)
            m.d.comb += [
                lane.sum.eq(self.sums.word_select(index, 19)),
                lane.scale_a.eq(self.scales_a.word_select(index, 8)),
                lane.scale_b.eq(self.scales_b.word_select(index, 8)),
                lane.anchor.eq(self.anchors.word_select(index, 8)),
                lane.tile.eq(late["tiles"].word_select(index, width)),
                lane.peer.eq(late["peers"].word_select(index, width)),
                lane.from_array.eq(late["from_array"][index]),
                lane.from_peer.eq(late["from_peer"][index]),
                lane.keep.eq(late["keep"][index]),
            ]
            words.append(lane.word)
            halves.append(lane.half)
        m.d.comb += [self.words.eq(register(m, Cat(words), "words_late")), self.halves.eq(Cat(halves))]
        return m


class Operands(wiring.Component):
    """The assembly register in front of both sides of L1, each with 16 entries."""

    def __init__(self, *, fault: str | None = None):
        self.fault = fault
        side = {"entry": In(9), "operand": Out(896), "scales": Out(32)}
        super().__init__(
            {
                "put": In(1),
                "word": In(WORD_BITS),
                "number": In(range(WORDS)),
                "to_b": In(1),
                "at": In(9),
                **{f"{name}_{layout}": member for layout in "ab" for name, member in side.items()},
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.assembly = assembly = shared(Assembly)
        m.d.comb += [
            assembly.put.eq(self.put), assembly.word.eq(self.word), assembly.number.eq(self.number),
            assembly.to_b.eq(self.to_b), assembly.entry.eq(self.at),
        ]  # fmt: skip
        for layout, write in (("a", assembly.write_a), ("b", assembly.write_b)):
            m.submodules[layout] = side = shared(L1Side, entries=16, layout=layout.upper(), fault=self.fault)
            m.d.comb += [
                side.write.eq(write), side.at.eq(assembly.at), side.words.eq(assembly.words),
                side.entry.eq(getattr(self, f"entry_{layout}")),
                getattr(self, f"operand_{layout}").eq(side.operand),
                getattr(self, f"scales_{layout}").eq(side.scales),
            ]  # fmt: skip
        return m
