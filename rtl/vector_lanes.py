"""The sixteen lanes: operands, chains through the ALUs, and what travels beside them.

Timing: docs/microarchitecture/vector-core.md, lanes.
"""

from __future__ import annotations

from amaranth import Array, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from kohakutpu.isa.vector import Source

from .cluster_l1 import Delay
from .emit import shared
from .parameters import OFF
from .vector_alu import VectorAlu
from .vector_issue import ALU_STAGES, BEAT, CHUNK, ENTRY, SETTLED, STAGE, TAG, Kind, Route

LANES = 16
WORD = 24
# A beat of the lanes at its end. `spread`: which ALU computed which element.
LEAVING = data.StructLayout(
    {
        "writes": 1, "compare": 1, "mark": 1, "reduces": 1, "at": CHUNK, "phase": 2, "spread": 2, "pm": 2, "pr": 2,
        "tail": 4, "tag": TAG, "node": 2, "beat": 4, "last": 1, "scalar": 4,
    }
)  # fmt: skip
LEAVES = 3  # `spread` of EXPSUM; 0 to 2 are depths


class Lanes(wiring.Component):
    """Members: `beat`, `head` in, in the cycle of the issue; `a`, `b`, `c` in, the chunk read in the next; `settled`
    out, a register write of the next cycle; `done`, `result`, `values`, `predicates` out, in the write cycle.

    Deliberate bugs, while high: `early_stage` makes the words of a chain's second stage arrive with the first's,
    `tail_off` writes one element too many.
    """

    def __init__(self, *, exp2_wrap: bool = False, early_stage: Value = OFF, tail_off: Value = OFF):
        self.exp2_wrap = exp2_wrap
        self.early_stage = early_stage
        self.tail_off = tail_off
        super().__init__(
            {
                "beat": In(BEAT),
                "head": In(ENTRY),
                "a": In(LANES * WORD),
                "b": In(LANES * WORD),
                "c": In(LANES * WORD),
                "settled": Out(SETTLED),
                "done": Out(1),
                "result": Out(LEAVING),
                "values": Out(LANES * WORD),
                "predicates": Out(LANES),
            }
        )

    def elaborate(self, platform):
        m = Module()
        beat, head = self.beat, self.head
        enters = Signal()
        m.d.comb += enters.eq(beat.valid & ((head.kind == Kind.LANES) | (head.kind == Kind.REDUCE)))

        # ---- the words of stages 1 to 3 follow their beat 15 cycles a stage later --------------------------------
        late = [head.stages[0]]
        for stage in range(1, 4):
            m.submodules[f"words{stage}"] = line = Delay(width=STAGE.size, cycles=ALU_STAGES * stage)
            m.d.comb += line.enter.eq(head.stages[stage])
            late.append(data.View(STAGE, line.leave))
        second_words = Mux(self.early_stage, head.stages[1], late[1])
        deep = [Signal(3 * ALU_STAGES, name=f"deep{depth}") for depth in (2, 4)]  # bit k: such a beat k + 1 cycles ago
        for code, bits in enumerate(deep, start=1):
            m.d.sync += bits.eq(Cat(enters & (head.depth == code), bits)[: len(bits)])
        second = deep[0][ALU_STAGES - 1] | deep[1][ALU_STAGES - 1]
        # What an ALU does depends on its number modulo 4 alone; registered for the cycle in which it samples operands.
        words = [Signal(STAGE, name=f"word{place}", reset_less=True) for place in range(4)]
        m.d.sync += [
            words[0].eq(late[0]),
            words[1].eq(Mux(second, second_words, late[0])),
            words[2].eq(Mux(deep[1][2 * ALU_STAGES - 1], late[2], late[0])),
            words[3].eq(Mux(deep[1][3 * ALU_STAGES - 1], late[3], Mux(deep[0][ALU_STAGES - 1], late[1], late[0]))),
        ]
        route, phase = Signal(2), Signal(2)
        m.d.sync += [route.eq(head.route), phase.eq(beat.phase)]

        # ---- operands and ALUs -----------------------------------------------------------------------------------
        halves, quarters = {}, {}
        for name in "abc":
            chunk = getattr(self, name)
            halves[name] = half = Signal(8 * WORD, name=f"half_{name}")
            quarters[name] = quarter = Signal(4 * WORD, name=f"quarter_{name}")
            m.d.comb += [
                half.eq(Mux(phase[0], chunk[8 * WORD :], chunk[: 8 * WORD])),
                quarter.eq(Array([chunk[4 * WORD * p : 4 * WORD * (p + 1)] for p in range(4)])[phase]),
            ]

        def element(word, index: int):
            return word[WORD * index : WORD * (index + 1)]

        alus = []
        for number in range(LANES):
            m.submodules[f"alu{number}"] = alu = shared(VectorAlu, exp2_wrap=self.exp2_wrap)
            word = words[number % 4]
            m.d.comb += alu.op.eq(word.op)
            for name in "abc":
                operand, chunk = getattr(word, name), getattr(self, name)
                routed = element(chunk, number)
                if number % 2 == 0:
                    if name != "a":
                        routed = Mux(route == Route.PAIRS, element(chunk, number + 1), routed)
                    routed = Mux(route == Route.HALVES, element(halves[name], number // 2), routed)
                if number % 4 == 0:
                    routed = Mux(route == Route.QUARTERS, element(quarters[name], number // 4), routed)
                value = Mux(operand.source == Source.V, routed, operand.value)
                if number % 4:
                    value = Mux(operand.source == Source.C, alus[-1].value, value)
                m.d.comb += getattr(alu, name).eq(value)
            alus.append(alu)

        # ---- beside them: beats leave in the order in which they entered -----------------------------------------
        m.submodules.travellers = travellers = memory.Memory(shape=LEAVING, depth=64, init=[])
        write, read = travellers.write_port(), travellers.read_port(domain="comb")
        put, get = Signal(6), Signal(6)
        leaves = Signal(4 * ALU_STAGES + 1)  # bit k: k cycles from now
        entering = Signal(LEAVING)
        tail = Mux(self.tail_off & ~beat.tail.all(), beat.tail + 1, beat.tail)
        m.d.comb += [entering[name].eq(head[name]) for name in ("writes", "compare", "pm", "pr", "node", "scalar")]
        m.d.comb += [entering[name].eq(beat[name]) for name in ("mark", "phase", "tag", "beat", "last")]
        m.d.comb += [
            entering.reduces.eq(head.kind == Kind.REDUCE), entering.at.register.eq(head.vd),
            entering.at.chunk.eq(beat.chunk), entering.spread.eq(Mux(head.leaves, LEAVES, head.depth)),
            entering.tail.eq(tail),
            write.addr.eq(put), write.data.eq(entering), write.en.eq(enters), read.addr.eq(get),
        ]  # fmt: skip
        coming = Signal(4 * ALU_STAGES + 1)
        with m.If(enters):
            m.d.sync += put.eq(put + 1)
            for code, depth in enumerate((1, 2, 4)):
                with m.If(head.depth == code):
                    m.d.comb += coming[ALU_STAGES * depth].eq(1)
        m.d.sync += leaves.eq((leaves >> 1) | coming)
        leaver = Signal(LEAVING)
        m.d.comb += [
            leaver.eq(read.data),
            self.settled.valid.eq(leaves[0] & leaver.mark),
            self.settled.at.eq(leaver.at),
            self.settled.tag.eq(leaver.tag),
        ]
        with m.If(leaves[0]):
            m.d.sync += get.eq(get + 1)
        m.d.sync += [
            self.done.eq(leaves[0]),
            self.result.eq(leaver),
            self.values.eq(Cat(alu.value for alu in alus)),
            self.predicates.eq(Cat(alu.predicate for alu in alus)),
        ]
        return m
