"""Conversions between E8M15 and memory formats, combinational (spec: vector core, conversions)."""

from __future__ import annotations

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

WORD = 24
HALF_LARGEST = 0x7BFF
REBIAS = 112  # E8M15's bias minus FP16's
TO_SUBNORMAL = 118  # an FP16 subnormal is the significand shifted right by this minus the exponent


class FromFp16(wiring.Component):
    """`half` to `word`; exact, subnormals included, NaN payloads kept."""

    def __init__(self):
        super().__init__({"half": In(16), "word": Out(WORD)})

    def elaborate(self, platform):
        m = Module()
        fraction, exponent, sign = self.half[:10], self.half[10:15], self.half[15]
        top = Signal(4)  # index of the highest bit of a subnormal's fraction
        for bit in range(10):
            with m.If(fraction[bit]):
                m.d.comb += top.eq(bit)
        normalised = (Cat(Const(0, 5), fraction) << (9 - top)[:4])[:16]  # the leading one at bit 14, to be shifted out
        with m.If(exponent == 31):
            m.d.comb += self.word.eq(Cat(Const(0, 5), fraction, Const(255, 8), sign))
        with m.Elif(exponent != 0):
            m.d.comb += self.word.eq(Cat(Const(0, 5), fraction, (exponent + REBIAS)[:8], sign))
        with m.Elif(fraction == 0):
            m.d.comb += self.word.eq(Cat(Const(0, 23), sign))
        with m.Else():
            m.d.comb += self.word.eq(Cat(Const(0, 1), normalised[:14], (top + 103)[:8], sign))
        return m


class ToFp16(wiring.Component):
    """`word` to `half`: nearest even, subnormals produced, finite overflow to the largest finite value."""

    def __init__(self):
        super().__init__({"word": In(WORD), "half": Out(16)})

    def elaborate(self, platform):
        m = Module()
        fraction, exponent, sign = self.word[:15], self.word[15:23], self.word[23]
        rounded = Signal(19)
        m.d.comb += rounded.eq((self.word[:23] + 0xF + self.word[5]) >> 5)
        # A subnormal: the significand with 17 bits below it for guard and sticky.
        shift = Signal(5)
        shifted = Signal(33)
        tiny = Signal(16)
        m.d.comb += [
            shift.eq(Mux(exponent < TO_SUBNORMAL - 18, 18, (TO_SUBNORMAL - exponent)[:5])),
            shifted.eq(Cat(Const(0, 17), fraction, exponent != 0) >> shift),
            tiny.eq(shifted[17:] + (shifted[16] & ((shifted[:16] != 0) | shifted[17]))),
        ]
        magnitude = Signal(15)
        with m.If(exponent == 255):
            m.d.comb += magnitude.eq(Cat(Mux(fraction == 0, 0, Cat(fraction[5:14], Const(1, 1))), Const(31, 5)))
        with m.Elif(rounded[10:] > REBIAS + 30):
            m.d.comb += magnitude.eq(HALF_LARGEST)
        with m.Elif(rounded[10:] > REBIAS):
            m.d.comb += magnitude.eq(rounded - (REBIAS << 10))
        with m.Else():
            m.d.comb += magnitude.eq(tiny)
        m.d.comb += self.half.eq(Cat(magnitude, sign))
        return m


class FromFp32(wiring.Component):
    """`single` to `word`: nearest even, subnormals to a signed zero, NaN made quiet."""

    def __init__(self):
        super().__init__({"single": In(32), "word": Out(WORD)})

    def elaborate(self, platform):
        m = Module()
        fraction, exponent, sign = self.single[:23], self.single[23:31], self.single[31]
        rounded = (self.single[:31] + 0x7F + self.single[8])[8:31]
        with m.If(exponent == 0):
            m.d.comb += self.word.eq(Cat(Const(0, 23), sign))
        with m.Elif((exponent == 255) & (fraction != 0)):
            m.d.comb += self.word.eq(Cat(fraction[8:22], Const(1, 1), exponent, sign))
        with m.Else():
            m.d.comb += self.word.eq(Cat(rounded, sign))
        return m


def to_fp32(word):
    """The FP32 pattern of an E8M15 word; exact, any word with exponent 0 a signed zero."""
    return Cat(Const(0, 8), Mux(word[15:23] == 0, 0, word[:23]), word[23])
