"""The reduction tree: adders of six stages as 4 + 2 + 1, one more for the last combine, and 16 accumulators.

Timing: docs/microarchitecture/vector-core.md, reduction tree. Arithmetic: every node is the ALU's VADD, VMAX or VMIN.
"""

from __future__ import annotations

from enum import IntEnum

from amaranth import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from .emit import shared
from .parameters import OFF
from .vector_alu import MINUS_INF, NAN, PLUS_INF

WORD = 24
STAGES = 6
LEAVES = 8
LEVELS = 3
ACCUMULATORS = 16
GUARD = 17  # bits below the larger operand's significand


class Node(IntEnum):
    ADD = 0
    MAX = 1
    MIN = 2


class TreeAdder(wiring.Component):
    """`a` and `b` to `value`, `STAGES` cycles later, as `node` (`Node`) says; `a` is the left operand."""

    APART = True

    def __init__(self):
        super().__init__({"node": In(2), "a": In(WORD), "b": In(WORD), "value": Out(WORD)})

    def elaborate(self, platform):
        m = Module()

        def register(value, name: str) -> Signal:
            out = Signal(value.shape(), name=name, reset_less=True)
            m.d.sync += out.eq(value)
            return out

        # ---- stage 1: compare, special operands, the larger operand first -------------------------------
        a, b = self.a, self.b
        zero_a, zero_b = a[15:23] == 0, b[15:23] == 0
        inf_a, inf_b = (a[15:23] == 255) & (a[:15] == 0), (b[15:23] == 255) & (b[:15] == 0)
        nan_a, nan_b = (a[15:23] == 255) & (a[:15] != 0), (b[15:23] == 255) & (b[:15] != 0)
        subtract = a[23] ^ b[23]
        least, a_wins, less, greater = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            least.eq(a[:23] < b[:23]),
            a_wins.eq(~least),
            less.eq(Mux(subtract, a[23], Mux(a[23], a[:23] > b[:23], least))),
            greater.eq(Mux(subtract, b[23], Mux(a[23], least, a[:23] > b[:23]))),
        ]
        ordered = ~nan_a & ~nan_b & ~((a[:23] == 0) & (b[:23] == 0))
        picked, override, special = Signal(WORD), Signal(), Signal(WORD)
        m.d.comb += picked.eq(Mux(ordered & Mux(self.node == Node.MAX, less, greater), b, a))
        with m.If(self.node != Node.ADD):
            m.d.comb += [override.eq(1), special.eq(picked)]
            with m.If((picked[15:23] == 255) & (picked[:15] != 0)):
                m.d.comb += special.eq(NAN)
            with m.Elif(picked[15:23] == 0):
                m.d.comb += special.eq(0)
        with m.Elif(nan_a | nan_b | (inf_a & inf_b & subtract)):
            m.d.comb += [override.eq(1), special.eq(NAN)]
        with m.Elif(inf_a | (zero_b & ~zero_a)):
            m.d.comb += [override.eq(1), special.eq(a)]
        with m.Elif(inf_b | (zero_a & ~zero_b)):
            m.d.comb += [override.eq(1), special.eq(b)]
        with m.Elif(zero_a & zero_b):
            m.d.comb += [override.eq(1), special.eq(Cat(Const(0, 23), b[23]))]
        larger, smaller = Mux(a_wins, a[:23], b[:23]), Mux(a_wins, b[:23], a[:23])
        distance = Signal(8)
        m.d.comb += distance.eq(larger[15:23] - smaller[15:23])
        override1, special1 = register(override, "override1"), register(special, "special1")
        large1 = register(Cat(larger[:15], Const(1, 1)), "large1")
        small1 = register(Cat(smaller[:15], Const(1, 1)), "small1")
        exponent1 = register(larger[15:23], "exponent1")
        shift1 = register(Mux(distance > 31, 31, distance[:5]), "shift1")
        subtract1, a_wins1 = register(subtract, "subtract1"), register(a_wins, "a_wins1")
        sign1 = register(Mux(a_wins, a[23], b[23]), "sign1")

        # ---- stage 2: align. Behind `a` two bits fewer are kept than behind `b`; the rest is only sticky ----
        placed = Signal(16 + GUARD + 31)
        aligned, sticky = Signal(16 + GUARD), Signal()
        m.d.comb += placed.eq(Cat(Const(0, GUARD + 31), small1) >> shift1)
        with m.If(a_wins1):
            m.d.comb += [aligned.eq(Cat(Const(0, 2), placed[33:])), sticky.eq(placed[:33] != 0)]
        with m.Elif(shift1 <= GUARD):
            m.d.comb += aligned.eq(placed[31:])
        aligned2, sticky2 = register(aligned, "aligned2"), register(sticky, "sticky2")
        large2, subtract2 = register(large1, "large2"), register(subtract1, "subtract2")

        # ---- stage 3: sum ----------------------------------------------------------------------------------
        wide = Cat(Const(0, GUARD), large2)
        total3 = register(Mux(subtract2, wide - aligned2, wide + aligned2)[: 17 + GUARD], "total3")
        sticky3 = register(sticky2, "sticky3")

        # ---- stages 4 to 6: leading one, normalise, round ----------------------------------------------------
        leading = Signal(6)
        for bit in range(17 + GUARD):
            with m.If(total3[bit]):
                m.d.comb += leading.eq(bit)
        exponent3, sign3 = (
            register(register(exponent1, "exponent2"), "exponent3"),
            register(register(sign1, "sign2"), "sign3"),
        )
        exponent4 = register((exponent3 + leading - (15 + GUARD)).as_signed(), "exponent4")
        left4 = register((16 + GUARD - leading)[:6], "left4")
        total4, sticky4 = register(total3, "total4"), register(sticky3, "sticky4")
        zero4, sign4 = register(total3 == 0, "zero4"), register(sign3, "sign4")
        normal5 = register((total4 << left4)[: 17 + GUARD], "normal5")
        exponent5, sticky5, zero5 = (
            register(exponent4, "exponent5"),
            register(sticky4, "sticky5"),
            register(zero4, "zero5"),
        )
        sign5 = register(sign4, "sign5")
        override5 = override1
        special5 = special1
        for step in range(2, 6):
            override5, special5 = register(override5, f"override{step}"), register(special5, f"special{step}")
        guard = normal5[GUARD]
        rounded, exponent = Signal(17), Signal(range(-300, 300))
        final = Signal(WORD)
        m.d.comb += [
            rounded.eq(normal5[GUARD + 1 :] + (guard & ((normal5[:GUARD] != 0) | sticky5 | normal5[GUARD + 1]))),
            exponent.eq(exponent5 + rounded[16]),
        ]
        with m.If(override5):
            m.d.comb += final.eq(special5)
        with m.Elif(zero5):
            m.d.comb += final.eq(0)
        with m.Elif(exponent <= 0):
            m.d.comb += final.eq(Cat(Const(0, 23), sign5))
        with m.Elif(exponent >= 255):
            m.d.comb += final.eq(Cat(Const(PLUS_INF, 23), sign5))
        with m.Else():
            m.d.comb += final.eq(Cat(rounded[:15], exponent[:8], sign5))
        m.d.sync += self.value.eq(final)
        return m


class Pass(IntEnum):
    """What goes through the tree."""

    NOTHING = 0
    TOTAL = 1
    LOW_HALF = 2
    HIGH_HALF = 3


LEAF = data.StructLayout({"valid": 1, "node": 2, "beat": 4, "last": 1, "scalar": 4})
TRAVELLER = data.StructLayout({"what": 2, "node": 2, "beat": 4, "last": 1, "scalar": 4, "long": 1})


class ReductionTree(wiring.Component):
    """Members: `leaf`, `leaves` in, a beat at the tree's input; `done`, `scalar`, `value` out: S is written in this
    cycle.

    `keep_minus`, while high, is a deliberate bug: -0 is not made +0 where the identity would be added.
    """

    def __init__(self, *, keep_minus: Value = OFF):
        self.keep_minus = keep_minus
        super().__init__(
            {"leaf": In(LEAF), "leaves": In(LEAVES * WORD), "done": Out(1), "scalar": Out(4), "value": Out(WORD)}
        )

    def elaborate(self, platform):
        m = Module()

        def plus_zero(word):
            return Mux(~self.keep_minus & (word[:23] == 0), 0, word)

        accumulators = [Signal(WORD, name=f"accumulator{k}", reset_less=True) for k in range(ACCUMULATORS)]
        ending = Signal(TRAVELLER)  # the reduction whose accumulators enter the tree
        low, high = Signal(), Signal()
        enter = Signal(TRAVELLER)
        inputs = Signal(LEAVES * WORD)
        m.d.comb += [
            enter.eq(ending),
            enter.what.eq(Mux(low, Pass.LOW_HALF, Mux(high, Pass.HIGH_HALF, Pass.NOTHING))),
            enter.long.eq(ending.beat[3]),
            inputs.eq(self.leaves),
        ]
        identity = Array([Const(0, WORD), Const(MINUS_INF, WORD), Const(PLUS_INF, WORD)])[ending.node]
        with m.If(low | high):
            words = []
            for slot in range(LEAVES):
                held = Mux(high, accumulators[LEAVES + slot], accumulators[slot])
                unused = Mux(high, LEAVES + slot, slot) > ending.beat
                words.append(Mux(unused, identity, held))
            m.d.comb += inputs.eq(Cat(*words))
        with m.Elif(self.leaf.valid):
            m.d.comb += [
                enter.what.eq(Pass.TOTAL), enter.node.eq(self.leaf.node), enter.beat.eq(self.leaf.beat),
                enter.last.eq(self.leaf.last), enter.scalar.eq(self.leaf.scalar),
            ]  # fmt: skip

        travel = enter
        values = [inputs[WORD * slot : WORD * (slot + 1)] for slot in range(LEAVES)]
        for level in range(LEVELS):
            outputs = []
            for position, (a, b) in enumerate(zip(values[0::2], values[1::2])):
                m.submodules[f"adder{level}_{position}"] = adder = shared(TreeAdder)
                m.d.comb += [adder.node.eq(travel.node), adder.a.eq(a), adder.b.eq(b)]
                outputs.append(adder.value)
            values = outputs
            travel = self._delayed(m, travel, f"level{level}")
        (total,) = values

        with m.If(travel.what == Pass.TOTAL):
            for k, accumulator in enumerate(accumulators):
                with m.If(travel.beat == k):
                    m.d.sync += accumulator.eq(plus_zero(total))
        last = (travel.what == Pass.TOTAL) & travel.last
        m.d.sync += [low.eq(last), high.eq(low)]
        with m.If(last):
            m.d.sync += ending.eq(travel)

        first = Signal(WORD)
        with m.If(travel.what == Pass.LOW_HALF):
            m.d.sync += first.eq(total)
        m.submodules.combine = combine = shared(TreeAdder)
        m.d.comb += [combine.node.eq(travel.node), combine.a.eq(first), combine.b.eq(total)]
        combined = self._delayed(m, travel, "combined")
        with m.If((combined.what == Pass.HIGH_HALF) & combined.long):
            m.d.comb += [self.done.eq(1), self.scalar.eq(combined.scalar), self.value.eq(combine.value)]
        with m.Else():
            m.d.comb += [
                self.done.eq((travel.what == Pass.LOW_HALF) & ~travel.long),
                self.scalar.eq(travel.scalar),
                self.value.eq(plus_zero(total)),
            ]
        return m

    @staticmethod
    def _delayed(m: Module, value, name: str):
        """`value` as it was `STAGES` cycles ago."""
        line = Signal(STAGES * TRAVELLER.size, name=name)
        m.d.sync += line.eq(Cat(value, line)[: len(line)])
        return data.View(TRAVELLER, line[-TRAVELLER.size :])
