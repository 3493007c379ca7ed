"""The integer product array: 4x4 sums of 32 exact products, 17 cycles deep, one entry pair a cycle.

Spec: cluster, integer product. Four tensor units of K = 8 stand in a cascade, each two cycles behind the one
before it. Two rows share a multiplier: their significands are packed 19 bits apart, which no sum of 32 products overflows.
"""

from __future__ import annotations

from amaranth import Cat, Const, Module, Signal, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from .emit import shared

LANES = 4
SLICE = 8  # K of one tensor unit
BLOCK = 32
BITS = 7
SUM_BITS = 19
LATENCY = 17
UNIT_LATENCY = 11

SUMS = data.ArrayLayout(signed(SUM_BITS), LANES * LANES)
SLICE_BITS = LANES * SLICE * BITS


class TensorUnit(wiring.Component):
    """4 rows x 8 K times 8 K x 4 columns, plus `carry`, `UNIT_LATENCY` cycles after the operands.

    Members: `a`, `b` with significand (lane, k) at bit 7 * (8 * lane + k); `carry` sums that belong to the result of
    the operands 9 cycles earlier; `out` sums, lane 4 * row + column.
    """

    def __init__(self):
        super().__init__({"a": In(SLICE_BITS), "b": In(SLICE_BITS), "carry": In(SUMS), "out": Out(SUMS)})

    def elaborate(self, platform):
        m = Module()

        def register(value, name):
            out = Signal(value.shape(), name=name)
            m.d.sync += out.eq(value)
            return out

        def lane(word, index, k):
            start = BITS * (SLICE * index + k)
            return word[start : start + BITS].as_signed()

        a1, b1 = register(self.a, "a1"), register(self.b, "b1")
        b2 = register(b1, "b2")
        carry1 = Signal.like(self.carry)
        m.d.sync += carry1.eq(self.carry)
        for pair in range(LANES // 2):
            packed = []
            for k in range(SLICE):
                low, high = lane(a1, 2 * pair, k), lane(a1, 2 * pair + 1, k)
                packed.append(register((low + (high << SUM_BITS)).as_signed(), f"packed{pair}_{k}"))
            for column in range(LANES):
                name = f"p{pair}_{column}"
                terms = [register(packed[k] * lane(b2, column, k), f"{name}_m{k}") for k in range(SLICE)]
                level = 0
                while len(terms) > 1:  # three levels
                    terms = [register(x + y, f"{name}_t{level}_{i}") for i, (x, y) in enumerate(zip(terms[::2], terms[1::2]))]
                    level += 1
                low = terms[0][:SUM_BITS].as_signed()
                high = (terms[0][SUM_BITS:].as_signed() + terms[0][SUM_BITS - 1])[:SUM_BITS].as_signed()
                for offset, value in enumerate((low, high)):
                    for step in range(4):
                        value = register(value, f"{name}_{offset}_d{step}")
                    index = LANES * (2 * pair + offset) + column
                    m.d.sync += self.out[index].eq(value + carry1[index])
        return m


class Array(wiring.Component):
    """Members: `a`, `b` operands of one entry pair, significand (lane, k) at bit 7 * (32 * lane + k); `sums` `LATENCY`
    cycles later."""

    def __init__(self):
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
            m.submodules[f"unit{unit}"] = tensor = shared(TensorUnit)
            for name, word, port in (("a", self.a, tensor.a), ("b", self.b, tensor.b)):
                operand = part(word, unit)
                for step in range(2 * unit):
                    later = Signal(SLICE_BITS, name=f"{name}{unit}_d{step}")
                    m.d.sync += later.eq(operand)
                    operand = later
                m.d.comb += port.eq(operand)
            m.d.comb += tensor.carry.as_value().eq(carry)
            carry = tensor.out.as_value()
        m.d.comb += self.sums.as_value().eq(carry)
        return m
