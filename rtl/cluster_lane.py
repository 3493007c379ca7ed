"""One of the accumulator's 16 lanes: scale conversion, the accumulator float's adder, FP16.

Spec: cluster, accumulator. Cycle numbers count from the accumulator command; the block sum comes two cycles before it.
Written from the specification alone, so that it checks `kohakutpu.formats.accumulator` and is checked by it. Each
stage is a shift, an addition or a priority tree, and never two of them.
"""

from __future__ import annotations

from amaranth import Cat, Const, Module, Mux, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .arithmetic import leading_one, register
from .cluster_array import SUM_BITS
from .parameters import known_fault, within

MANTISSA = 10, 16  # fraction bits, least and most
BIAS = 63
EXPONENT_BITS = 7
GUARD_BITS = 8
MAGNITUDE_BITS = 25  # of a block sum times two significands of 8..15
HALF_BIAS = 48  # exponent biases of the accumulator and of FP16, apart
HALF_FRACTION = 10

FAULTS = {
    "lane-sticky": "bits shifted out of the smaller addend are forgotten",
    "lane-tie": "a converted block sum rounds ties up instead of to even",
    "lane-saturate": "FP16 results that overflow become infinities",
}


class Lane(wiring.Component):
    """A lane for words of `mantissa` fraction bits.

    Members: in cycle -2 `sum`, `scale_a`, `scale_b`, `anchor`; in cycle 3 `tile` (the stored word), `peer`, and the
    selects `from_array`, `from_peer` (else zero is added) and `keep` (use `tile`, else zero); out `result` in cycle 6,
    straight from logic, `word` (the same, registered) in cycle 7 and its FP16 `half` in cycle 8.
    """

    def __init__(self, *, mantissa: int, fault: str | None = None):
        within("Lane", *MANTISSA, mantissa=mantissa)
        self.mantissa = mantissa
        self.fault = known_fault("Lane", fault, FAULTS)
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
                "word": Out(width),
                "half": Out(16),
            }
        )

    def elaborate(self, platform):
        m = Module()
        converted = self._convert(m)
        addend = Mux(self.from_array, converted, Mux(self.from_peer, self.peer, 0))
        self._add(m, Mux(self.keep, self.tile, 0), addend)
        self._halve(m)
        return m

    def _convert(self, m: Module):
        """The block sum under its scales as an accumulator word, in cycle 3."""
        mw = self.mantissa
        # -2: magnitude of the sum, product of the scales' significands, sum of their exponents
        negative = self.sum < 0
        magnitude = register(m, Mux(negative, -self.sum, self.sum)[: SUM_BITS - 1], "magnitude")
        significands = register(
            m, Cat(self.scale_a[:3], Const(1, 1)) * Cat(self.scale_b[:3], Const(1, 1)), "significands"
        )
        offset = (self.scale_a[3:] + self.scale_b[3:] - self.anchor - 6 + BIAS)[:EXPONENT_BITS]  # modulo 128
        offset = register(m, offset, "offset", 3)
        # -1: the product, in one multiplier with registers on both sides
        magnitude = register(m, (magnitude * significands)[:MAGNITUDE_BITS], "product")
        # 0: where it begins
        position = register(m, leading_one(magnitude), "position")
        magnitude = register(m, magnitude, "unaligned")
        # 1: leading one to the top
        aligned = Signal(MAGNITUDE_BITS)
        m.d.comb += aligned.eq(magnitude << (MAGNITUDE_BITS - 1 - position)[: len(position)])
        aligned = register(m, aligned, "aligned")
        exponent = register(m, (position + offset)[:EXPONENT_BITS], "exponent")
        # 2: to nearest, ties to even; a carry out of the fraction counts the exponent up
        lowest = MAGNITUDE_BITS - 1 - mw
        guard, rest, even = aligned[lowest - 1], aligned[: lowest - 1], aligned[lowest]
        up = guard if self.fault == "lane-tie" else guard & (rest.any() | even)
        word = (Cat(aligned[lowest:-1], exponent) + up)[: mw + EXPONENT_BITS]
        nonzero = aligned[-1]
        sign = register(m, negative, "sign", 4)
        return register(m, Mux(nonzero, Cat(word, sign), 0), "converted")

    def _add(self, m: Module, a, b) -> None:
        """`result` and `word` of a + b, `a` the tile's word; both come in cycle 3."""
        mw = self.mantissa
        fraction, exponent_field = slice(mw), slice(mw, mw + EXPONENT_BITS)
        inner = mw + 1 + GUARD_BITS
        # 3: larger and smaller. Zero is what has no exponent; beside a zero the other word passes as it is.
        zero_a, zero_b = a[exponent_field] == 0, b[exponent_field] == 0
        a_big = a[:-1] >= b[:-1]
        big, small = Mux(a_big, a, b), Mux(a_big, b, a)
        between, between_reverse = a[exponent_field] - b[exponent_field], b[exponent_field] - a[exponent_field]
        distance = Mux(a_big, between, between_reverse)[:EXPONENT_BITS]
        distance = register(m, Mux(distance > inner, inner, distance)[:5], "distance")
        big_significand = register(m, Cat(Const(0, GUARD_BITS), big[fraction], Const(1, 1)), "big")
        small_significand = register(m, Cat(Const(0, GUARD_BITS), small[fraction], Const(1, 1)), "small")
        exponent = register(m, big[exponent_field], "big_exponent", 2)
        sign = register(m, big[-1], "big_sign", 3)
        subtract = register(m, a[-1] ^ b[-1], "subtract")
        passes = register(m, zero_a | zero_b, "passes", 3)
        passed = register(m, Mux(zero_a, Mux(zero_b, 0, b), a), "passed", 3)
        # 4: align and add. What is shifted out only counts as "something", also where it would be a borrow.
        shifted, total = Signal(inner), Signal(inner + 1)
        kept = (Const(-1, inner) << distance)[:inner]
        lost = Const(0, 1) if self.fault == "lane-sticky" else (small_significand & ~kept).any()
        m.d.comb += [
            shifted.eq(small_significand >> distance),
            total.eq(Mux(subtract, big_significand - shifted, big_significand + shifted)),
        ]
        total = register(m, total, "total")
        lost = register(m, lost, "lost", 2)
        # 5: leading one to the top
        position = leading_one(total)
        normal = Signal(inner + 1)
        m.d.comb += normal.eq(total << (inner - position)[: len(position)])
        normal = register(m, normal, "normal")
        exponent = register(m, (exponent + position - (inner - 1)).as_signed(), "exponent_6")
        # 6: to nearest, ties to even; a carry out of the fraction counts the exponent up
        lowest = GUARD_BITS + 1
        up = normal[lowest - 1] & (normal[: lowest - 1].any() | lost | normal[lowest])
        rounded = (Cat(normal[lowest:-1], exponent) + up)[: mw + len(exponent)]
        exponent = rounded[mw:].as_signed()
        with m.If(passes):
            m.d.comb += self.result.eq(passed)
        with m.Elif(~normal[-1] | (exponent <= 0)):
            m.d.comb += self.result.eq(0)
        with m.Elif(exponent >= 127):
            m.d.comb += self.result.eq(Cat(Const(-1, mw + EXPONENT_BITS), sign))
        with m.Else():
            m.d.comb += self.result.eq(Cat(rounded[: mw + EXPONENT_BITS], sign))
        m.d.sync += self.word.eq(self.result)

    def _halve(self, m: Module) -> None:
        """`half` of `word`: to nearest, ties to even, saturated; what FP16 holds as subnormal is a signed zero."""
        mw, word = self.mantissa, self.word
        drop = mw - HALF_FRACTION
        up = word[drop - 1] & (word[: drop - 1].any() | word[drop]) if drop else 0
        rounded = word[drop:-1] + up
        exponent = Signal(signed(EXPONENT_BITS + 2))
        m.d.comb += exponent.eq(rounded[HALF_FRACTION:] - HALF_BIAS)
        half = Signal(15)
        with m.If(exponent >= 31):
            m.d.comb += half.eq(0x7C00 if self.fault == "lane-saturate" else 0x7BFF)
        with m.Elif(exponent > 0):
            m.d.comb += half.eq(Cat(rounded[:HALF_FRACTION], exponent[:5]))
        m.d.sync += self.half.eq(Cat(half, word[-1]))
