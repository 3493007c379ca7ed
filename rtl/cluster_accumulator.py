"""The accumulator: resident tile, scale conversion, the accumulator float's adder, FP16 and raw results.

Spec: cluster, accumulator. Timing: docs/microarchitecture/cluster.md, accumulator; cycle numbers count from the command.
Written from the specification alone, so that it checks `kohakutpu.formats.accumulator` and is checked by it.
"""

from __future__ import annotations

from enum import IntEnum

from amaranth import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from .cluster_array import LANES, SUM_BITS, SUMS
from .emit import shared

BIAS = 63
GRANULE = 256
FAULTS = {
    "accumulator-sticky": "bits shifted out of the smaller addend are forgotten",
    "accumulator-saturate": "FP16 results that overflow become infinities",
}


class Command(IntEnum):
    """Accumulator opcodes (spec: cluster, opcodes); LOAD_EMIT, which the published unit lacks, has the place of its unused FWD."""

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


class Lane(wiring.Component):
    """One of the 16 lanes.

    Members: in cycle 0 `sum`, `scale_a`, `scale_b`, `anchor`; in cycle 3 `tile` (the stored word), `peer`, and the selects
    `from_array`, `from_peer` and `keep` (use `tile`, else zero); out `result` in cycle 6 and its FP16 `half` in cycle 7.
    """

    def __init__(self, *, mantissa: int, fault: str | None = None):
        if not isinstance(mantissa, int) or not 10 <= mantissa <= 16:
            raise TypeError(f"Lane mantissa must be 10..16, not {mantissa!r}")
        self.mantissa = mantissa
        self.fault = fault
        width = mantissa + 8
        super().__init__(
            {
                "sum": In(signed(SUM_BITS)),
                "scale_a": In(8),
                "scale_b": In(8),
                "anchor": In(8),
                "tile": In(width),
                "peer": In(width),
                "from_array": In(1),
                "from_peer": In(1),
                "keep": In(1),
                "result": Out(width),
                "half": Out(16),
            }
        )

    def elaborate(self, platform):
        m = Module()
        mw = self.mantissa
        width = mw + 8

        def register(value, name):
            out = Signal(value.shape(), name=name)
            m.d.sync += out.eq(value)
            return out

        # ---- cycles 0..2: the block sum under its scales, as an accumulator word -------------------------
        magnitude0 = Signal(18)
        m.d.comb += magnitude0.eq(Mux(self.sum < 0, -self.sum, self.sum))
        sign1 = register(self.sum < 0, "sign1")
        magnitude1 = register(magnitude0, "magnitude1")
        significands1 = register(Cat(self.scale_a[:3], Const(1, 1)) * Cat(self.scale_b[:3], Const(1, 1)), "significands1")
        offset = Signal(signed(10))
        m.d.comb += offset.eq(self.scale_a[3:] + self.scale_b[3:] - self.anchor - 6)
        offset1 = register(offset, "offset1")

        magnitude2 = register((magnitude1 * significands1)[:26], "magnitude2")
        sign2, offset2 = register(sign1, "sign2"), register(offset1, "offset2")

        position2 = Signal(5)
        for bit in range(26):
            with m.If(magnitude2[bit]):
                m.d.comb += position2.eq(bit)
        aligned = Signal(26)
        significand = Signal(mw + 2)
        converted = Signal(width)
        m.d.comb += aligned.eq((magnitude2 << (25 - position2)[:5])[:26])
        guard, rest = aligned[24 - mw], aligned[: 24 - mw]
        m.d.comb += significand.eq(aligned[25 - mw :] + (guard & (rest.any() | aligned[25 - mw])))
        exponent = (position2 + offset2 + BIAS + significand[mw + 1])[:7]
        with m.If(magnitude2 != 0):
            m.d.comb += converted.eq(Cat(Mux(significand[mw + 1], 0, significand[:mw]), exponent, sign2))
        converted3 = register(converted, "converted3")

        # ---- cycle 3: operands, larger and smaller -----------------------------------------------------
        a, b = Signal(width), Signal(width)
        with m.If(self.keep):
            m.d.comb += a.eq(self.tile)
        with m.If(self.from_array):
            m.d.comb += b.eq(converted3)
        with m.Elif(self.from_peer):
            m.d.comb += b.eq(self.peer)
        zero_a, zero_b = a[mw : mw + 7] == 0, b[mw : mw + 7] == 0
        a_big = a[: mw + 7] >= b[: mw + 7]
        big, small = Mux(a_big, a, b), Mux(a_big, b, a)
        inner = mw + 9
        distance = Signal(7)
        clamped = Signal(range(inner + 1))
        wide_small = Signal(inner)
        m.d.comb += [
            distance.eq(big[mw : mw + 7] - small[mw : mw + 7]),
            clamped.eq(Mux(distance > inner, inner, distance)),
            wide_small.eq(Cat(Const(0, 8), small[:mw], Const(1, 1))),
        ]
        shifted = Signal(inner)
        lost = Signal()
        m.d.comb += [
            shifted.eq(wide_small >> clamped),
            lost.eq((wide_small & ((Const(1, inner + 1) << clamped) - 1)[:inner]) != 0),
        ]
        big4 = register(Cat(Const(0, 8), big[:mw], Const(1, 1)), "big4")
        small4 = register(shifted, "small4")
        lost4 = register(lost if self.fault != "accumulator-sticky" else Const(0, 1), "lost4")
        subtract4 = register(a[-1] ^ b[-1], "subtract4")
        exponent4, sign4 = register(big[mw : mw + 7], "exponent4"), register(big[-1], "sign4")
        # With a zero operand the other word passes as it is; two zeros give the canonical zero.
        pass4 = register(zero_a | zero_b, "pass4")
        passed4 = register(Mux(zero_a & zero_b, 0, Mux(zero_a, b, a)), "passed4")

        # ---- cycle 4: sum ------------------------------------------------------------------------------
        total = Signal(inner + 1)
        m.d.comb += total.eq(Mux(subtract4, big4 - small4, big4 + small4))
        total5 = register(total, "total5")
        lost5, sign5, exponent5 = register(lost4, "lost5"), register(sign4, "sign5"), register(exponent4, "exponent5")
        pass5, passed5 = register(pass4, "pass5"), register(passed4, "passed5")

        # ---- cycle 5: normalise and round ----------------------------------------------------------------
        leading = Signal(range(inner + 1))
        for bit in range(inner + 1):
            with m.If(total5[bit]):
                m.d.comb += leading.eq(bit)
        normal = Signal(inner + 1)
        rounded = Signal(mw + 2)
        final_exponent = Signal(signed(10))
        m.d.comb += [
            normal.eq((total5 << (inner - leading)[: len(leading)])[: inner + 1]),
            rounded.eq(normal[9:] + (normal[8] & (normal[:8].any() | lost5 | normal[9]))),
            final_exponent.eq(exponent5 + leading - (mw + 8) + rounded[mw + 1]),
        ]
        result = Signal(width)
        with m.If(pass5):
            m.d.comb += result.eq(passed5)
        with m.Elif((total5 == 0) | (final_exponent <= 0)):
            m.d.comb += result.eq(0)
        with m.Elif(final_exponent >= 127):
            m.d.comb += result.eq(Cat(Const(-1, mw + 7), sign5))
        with m.Else():
            m.d.comb += result.eq(Cat(Mux(rounded[mw + 1], 0, rounded[:mw]), final_exponent[:7], sign5))
        m.d.sync += self.result.eq(result)

        # ---- cycle 6: FP16 -----------------------------------------------------------------------------
        word = self.result
        half_significand = Signal(11)
        if mw == 10:
            m.d.comb += half_significand.eq(word[:10])
        else:
            up = word[mw - 11] & (word[: mw - 11].any() | word[mw - 10])
            m.d.comb += half_significand.eq(word[mw - 10 : mw] + up)
        half_exponent = Signal(signed(9))
        half = Signal(15)
        m.d.comb += half_exponent.eq(word[mw : mw + 7] - 48 + half_significand[10])
        with m.If((word[mw : mw + 7] == 0) | (half_exponent <= 0)):
            m.d.comb += half.eq(0)
        with m.Elif(half_exponent >= 31):
            m.d.comb += half.eq(0x7C00 if self.fault == "accumulator-saturate" else 0x7BFF)
        with m.Else():
            m.d.comb += half.eq(Cat(half_significand[:10], half_exponent[:5]))
        m.d.sync += self.half.eq(Cat(half, word[-1]))
        return m


class Accumulator(wiring.Component):
    """16 lanes and the tile store of `tiles` words.

    Members: `command` (`Command`), `address`, `sums`, `scales_a`, `scales_b` (lane l at byte l), `anchor` and `peer` in the
    command's cycle; `push` and `granule` into the result queue (SEND in cycles 7 and 8, EMIT in 8).
    """

    def __init__(self, *, tiles: int, mantissa: int, fault: str | None = None):
        if not isinstance(tiles, int) or tiles < 8 or tiles & (tiles - 1):
            raise TypeError(f"Accumulator tiles must be a power of two of at least 8, not {tiles!r}")
        self.tiles = tiles
        self.mantissa = mantissa
        self.fault = fault
        self.word = 16 * (mantissa + 8)
        super().__init__(
            {
                "command": In(3),
                "address": In(range(tiles)),
                "sums": In(SUMS),
                "scales_a": In(32),
                "scales_b": In(32),
                "anchor": In(8),
                "peer": In(self.word),
                "push": Out(1),
                "granule": Out(GRANULE),
            }
        )

    def elaborate(self, platform):
        m = Module()
        width = self.mantissa + 8

        def pipe(value, cycles, name):
            for step in range(cycles):
                later = Signal.like(value, name=f"{name}_{step + 1}")
                m.d.sync += later.eq(value)
                value = later
            return value

        m.submodules.store = store = memory.Memory(shape=self.word, depth=self.tiles, init=[])
        read, write = store.read_port(), store.write_port()
        address2 = pipe(self.address, 2, "address")
        command3 = pipe(self.command, 3, "command")
        command6 = pipe(command3, 3, "command_later")
        peer3 = pipe(self.peer, 3, "peer")
        m.d.comb += [read.addr.eq(address2), read.en.eq(1), write.addr.eq(pipe(address2, 4, "write_address"))]

        def any_of(command, kinds):
            found = Const(0, 1)
            for kind in kinds:
                found = found | (command == kind)
            return found

        m.d.comb += write.en.eq(any_of(command6, WRITES))
        results, halves = [], []
        for row in range(LANES):
            for column in range(LANES):
                index = LANES * row + column
                m.submodules[f"lane{index}"] = lane = shared(Lane, mantissa=self.mantissa, fault=self.fault)
                low = width * index
                m.d.comb += [
                    lane.sum.eq(self.sums[index]),
                    lane.scale_a.eq(self.scales_a[8 * row : 8 * row + 8]),
                    lane.scale_b.eq(self.scales_b[8 * column : 8 * column + 8]),
                    lane.anchor.eq(self.anchor),
                    lane.tile.eq(read.data[low : low + width]),
                    lane.peer.eq(peer3[low : low + width]),
                    lane.from_array.eq(any_of(command3, FROM_ARRAY)),
                    lane.from_peer.eq(command3 == Command.ADD_PEER),
                    lane.keep.eq(~any_of(command3, OPENS)),
                ]
                results.append(lane.result)
                halves.append(lane.half)
        tile6 = Cat(results)
        m.d.comb += write.data.eq(tile6)
        command7 = pipe(command6, 1, "command_7")
        command8 = pipe(command7, 1, "command_8")
        tile7 = pipe(tile6, 1, "tile_7")
        upper8 = pipe(tile7[GRANULE:], 1, "upper_8")
        emitted8 = pipe(Cat(halves), 1, "emitted_8")
        emits8 = any_of(command8, EMITS)
        m.d.comb += [
            self.push.eq((command7 == Command.SEND) | (command8 == Command.SEND) | emits8),
            self.granule.eq(Mux(command7 == Command.SEND, tile7[:GRANULE], Mux(emits8, emitted8, upper8))),
        ]
        return m
