"""The integer product array: 4x4 sums of 32 exact products, 15 cycles deep, one entry pair a cycle.

Spec: cluster, integer product. Four tensor units of K = 8 stand in a cascade, each two cycles behind the one before it.
Two rows share a multiplier: their significands are packed so far apart that no sum of 8 products meets its neighbour.
"""

from __future__ import annotations

from amaranth import Cat, Const, Module, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from .arithmetic import register
from .emit import shared
from .parameters import known_fault

LANES = 4
SLICE = 8  # K of one tensor unit
BLOCK = 32
BITS = 7
SUM_BITS = 19  # 32 products of at most 2^12 in magnitude
PACK_BITS = 17  # 8 of them; a packed pair is then 25 bits wide, what one multiplier input takes
CHAIN = 4  # products that one chain of multiply-adders sums up
UNIT_LATENCY = 9
STEP = 2  # cycles between two units of the cascade
LATENCY = UNIT_LATENCY + STEP * (BLOCK // SLICE - 1)

SUMS = data.ArrayLayout(signed(SUM_BITS), LANES * LANES)
SLICE_BITS = LANES * SLICE * BITS

FAULTS = {"array-borrow": "the upper row of a packed pair does not get back what a negative lower row borrowed"}


class TensorUnit(wiring.Component):
    """4 rows x 8 K times 8 K x 4 columns, plus `carry`, `UNIT_LATENCY` cycles after the operands.

    Members: `a`, `b` with significand (lane, k) at bit 7 * (8 * lane + k); `carry`, sums that join the result of the
    operands 7 cycles earlier; `out`, sums, lane 4 * row + column.
    """

    def __init__(self, *, fault: str | None = None):
        self.fault = known_fault("TensorUnit", fault, FAULTS)
        super().__init__({"a": In(SLICE_BITS), "b": In(SLICE_BITS), "carry": In(SUMS), "out": Out(SUMS)})

    def elaborate(self, platform):
        m = Module()
        carry = register(m, self.carry.as_value(), "carry1")

        def lane(word, index, k):
            """A significand, later by its place in its chain."""
            start = BITS * (SLICE * index + k)
            return register(m, word[start : start + BITS].as_signed(), f"{word.name}{index}_{k}", 1 + k % CHAIN)

        a = [[lane(self.a, index, k) for k in range(SLICE)] for index in range(LANES)]
        b = [
            [register(m, lane(self.b, index, k), f"b{index}_{k}_late") for k in range(SLICE)] for index in range(LANES)
        ]
        for row in range(0, LANES, 2):
            pairs = [
                register(m, (low + (high << PACK_BITS)).as_signed(), f"pair{row}_{k}")
                for k, (low, high) in enumerate(zip(a[row], a[row + 1]))
            ]
            for column in range(LANES):
                sums = []
                for k in range(SLICE):
                    name = f"p{row}_{column}_{k}"
                    product = register(m, pairs[k] * b[column][k], f"{name}_product")
                    total = product if k % CHAIN == 0 else product + total
                    total = register(m, total[: 2 * PACK_BITS].as_signed(), name)
                    if k % CHAIN == CHAIN - 1:
                        sums.append(total)
                both = register(m, sum(sums)[: 2 * PACK_BITS], f"both{row}_{column}")
                lower, upper = both[:PACK_BITS].as_signed(), both[PACK_BITS:].as_signed()
                borrowed = 0 if self.fault == "array-borrow" else both[PACK_BITS - 1]
                for index, value in ((row, lower), (row + 1, upper + borrowed)):
                    out = LANES * index + column
                    m.d.sync += self.out[out].eq(value + carry[SUM_BITS * out : SUM_BITS * (out + 1)].as_signed())
        return m


class Array(wiring.Component):
    """Members: `a`, `b`, operands of one entry pair, significand (lane, k) at bit 7 * (32 * lane + k); `sums`,
    `LATENCY` cycles later."""

    def __init__(self, *, fault: str | None = None):
        self.fault = known_fault("Array", fault, FAULTS)
        width = LANES * BLOCK * BITS
        super().__init__({"a": In(width), "b": In(width), "sums": Out(SUMS)})

    def elaborate(self, platform):
        m = Module()

        def part(word, unit):
            lanes = []
            for index in range(LANES):
                start = BITS * (BLOCK * index + SLICE * unit)
                lanes.append(word[start : start + BITS * SLICE])
            return Cat(lanes)

        carry = Const(0, SUMS.size)
        for unit in range(BLOCK // SLICE):
            m.submodules[f"unit{unit}"] = tensor = shared(TensorUnit, fault=self.fault)
            m.d.comb += [
                tensor.a.eq(register(m, part(self.a, unit), f"a{unit}", STEP * unit)),
                tensor.b.eq(register(m, part(self.b, unit), f"b{unit}", STEP * unit)),
                tensor.carry.as_value().eq(carry),
            ]
            carry = tensor.out.as_value()
        m.d.comb += self.sums.as_value().eq(carry)
        return m
