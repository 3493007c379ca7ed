"""V and P of the vector core: register file in two banks, predicates, and the writes of the lanes.

Timing: docs/microarchitecture/vector-core.md, issue and lanes.
"""

from __future__ import annotations

from amaranth import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from .parameters import OFF
from .vector_alu import ONE
from .vector_issue import CHUNK
from .vector_lanes import LANES, LEAVES, LEAVING, WORD

CHUNK_BITS = LANES * WORD
WRITE = data.StructLayout(
    {"valid": 1, "at": CHUNK, "halves": 2, "data": CHUNK_BITS}
)  # bit h of `halves`: elements 8h to 8h + 7


class Registers(wiring.Component):
    """Members: `at_a`, `at_b`, `at_c` in and `a`, `b`, `c` out in the same cycle; `done`, `result`, `values`,
    `predicates` in, a beat of the lanes; `short` and `load` in, writes (`WRITE`) of other pipelines; `vote_pr`,
    `vote_length` (VL - 1) and `vote_all` in, and in the next cycle `vote`, the word 1.0 or +0.

    Deliberate bugs, while high: `unless_ignored` takes pm 3 for 1, `tail_ignored` lets compares write elements past VL.
    """

    def __init__(self, *, unless_ignored: Value = OFF, tail_ignored: Value = OFF):
        self.unless_ignored = unless_ignored
        self.tail_ignored = tail_ignored
        super().__init__(
            {
                "at_a": In(CHUNK),
                "at_b": In(CHUNK),
                "at_c": In(CHUNK),
                "a": Out(CHUNK_BITS),
                "b": Out(CHUNK_BITS),
                "c": Out(CHUNK_BITS),
                "done": In(1),
                "result": In(LEAVING),
                "values": In(CHUNK_BITS),
                "predicates": In(LANES),
                "short": In(WRITE),
                "load": In(WRITE),
                "vote_pr": In(2),
                "vote_length": In(7),
                "vote_all": In(1),
                "vote": Out(WORD),
            }
        )

    def elaborate(self, platform):
        m = Module()
        result = self.result

        # ---- where the lanes' results go -----------------------------------------------------------------------
        value = [self.values[WORD * i : WORD * (i + 1)] for i in range(LANES)]
        lane_data, lane_bits = Signal(CHUNK_BITS), Signal(LANES)
        active, inside = Signal(LANES), Signal(LANES)
        for lane in range(LANES):
            low8, low4 = lane % 8, lane % 4
            half, quarter = result.phase[0] == lane // 8, result.phase == lane // 4
            m.d.comb += [
                lane_data[WORD * lane : WORD * (lane + 1)].eq(
                    Array([value[lane], value[2 * low8 + 1], value[4 * low4 + 3], value[2 * low8]])[result.spread]
                ),
                lane_bits[lane].eq(
                    Array([self.predicates[i] for i in (lane, 2 * low8 + 1, 4 * low4 + 3)])[result.spread]
                ),
                active[lane].eq(Array([1, half, quarter, half])[result.spread]),
                inside[lane].eq(result.tail >= lane),
            ]  # fmt: skip

        # ---- predicates ------------------------------------------------------------------------------------------
        predicates = [Signal(128, name=f"p{p}") for p in range(4)]
        chosen, mask, write_mask = Signal(128), Signal(LANES), Signal(LANES)
        m.d.comb += [
            chosen.eq(Array(predicates)[result.pr]),
            mask.eq(chosen.word_select(result.at.chunk, LANES)),
            write_mask.eq(active & Mux(result.spread == LEAVES, (1 << LANES) - 1, inside)),
        ]
        wide = Signal(128)
        compare_mask = Mux(self.tail_ignored, active, write_mask)
        m.d.comb += wide.eq(Mux(self.done & result.compare, compare_mask << Cat(Const(0, 4), result.at.chunk), 0))
        for p, bits in enumerate(predicates):
            with m.If(result.pr == p):
                m.d.sync += bits.eq((bits & ~wide) | (lane_bits.replicate(8) & wide))
        enable = Signal(LANES)
        where = Mux(self.unless_ignored, result.pm[0], result.pm == 1)
        m.d.comb += enable.eq(write_mask & Mux(result.pm == 0, (1 << LANES) - 1, Mux(where, mask, ~mask)))

        # ---- register file -----------------------------------------------------------------------------------------
        reads = {name: [] for name in "abc"}
        for bank in range(2):
            store = memory.Memory(shape=CHUNK_BITS, depth=64, init=[])
            m.submodules[f"bank{bank}"] = store
            write = store.write_port(granularity=WORD)
            for name in "abc":
                at = getattr(self, f"at_{name}")
                read = store.read_port(domain="comb")
                m.d.comb += read.addr.eq(Cat(at.chunk[1:], at.register))
                reads[name].append(read.data)

            def here(at, bank=bank):
                return at.chunk[0] == bank

            with m.If(self.short.valid & here(self.short.at)):
                self._write(m, write, self.short.at, self.short.data, (1 << LANES) - 1)
            with m.Elif(self.load.valid & here(self.load.at)):
                lanes = Cat(half.replicate(LANES // 2) for half in self.load.halves)
                self._write(m, write, self.load.at, self.load.data, lanes)
            with m.Elif(self.done & result.writes & here(result.at)):
                self._write(m, write, result.at, lane_data, enable)
        for name in "abc":
            odd = getattr(self, f"at_{name}").chunk[0]
            m.d.comb += getattr(self, name).eq(Mux(odd, reads[name][1], reads[name][0]))

        # ---- votes -------------------------------------------------------------------------------------------------
        asked, beyond = Signal(128), Signal(128)
        m.d.comb += [
            asked.eq(Array(predicates)[self.vote_pr]),
            beyond.eq(~((2 << self.vote_length) - 1)),  # elements past VL
        ]
        some, every, all_ = Signal(8), Signal(8), Signal()
        m.d.sync += [
            some.eq(Cat((asked & ~beyond)[LANES * c : LANES * (c + 1)].any() for c in range(8))),
            every.eq(Cat((asked | beyond)[LANES * c : LANES * (c + 1)].all() for c in range(8))),
            all_.eq(self.vote_all),
        ]
        m.d.comb += self.vote.eq(Mux(Mux(all_, every.all(), some.any()), ONE, 0))
        return m

    @staticmethod
    def _write(m: Module, port, at, value, lanes) -> None:
        m.d.comb += [port.addr.eq(Cat(at.chunk[1:], at.register)), port.data.eq(value), port.en.eq(lanes)]
