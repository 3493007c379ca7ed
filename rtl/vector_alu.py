"""One lane's ALU: every operation is one pass of a fused multiply-add, 15 cycles deep, one a cycle.

Arithmetic: spec, vector core, ALU and seeds; docs/formats.md. Written from the specification alone, so that it
checks `kohakutpu.formats.alu` and is checked by it. Stage numbers in comments count registers from the operands.
"""

from __future__ import annotations

from amaranth import Cat, Const, Module, Mux, Signal
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from kohakutpu.formats.seeds import seed_tables
from kohakutpu.isa.vector import Opcode

LATENCY = 15
WIDTH = 24
ONE, PLUS_INF, MINUS_INF, NAN = 0x3F8000, 0x7F8000, 0xFF8000, 0x7FC000
SEEDS = (Opcode.VEXP2, Opcode.VLOG2, Opcode.VINV, Opcode.VRSQRT)
COMPARES = (Opcode.VCMPLT, Opcode.VCMPGT, Opcode.VCMPEQ)
COEFFICIENT_BITS = 22


def seed_rom() -> list[int]:
    """256 rows of {c0, c1, c2}, 22 bits each, at fsel * 64 + segment (rsqrt: + 32 * parity)."""
    rows = [0] * 256
    mask = (1 << COEFFICIENT_BITS) - 1
    tables = seed_tables()
    for fsel, name in enumerate(("exp2", "log2", "inv", "rsqrt")):
        for index, row in enumerate(zip(*(column.tolist() for column in tables[name]))):
            c0, c1, c2 = (value & mask for value in row)
            rows[fsel * 64 + index] = c0 << (2 * COEFFICIENT_BITS) | c1 << COEFFICIENT_BITS | c2
    return rows


class VectorAlu(wiring.Component):
    """Members: `op` (ISA opcode), `a`, `b`, `c` in; `value` and `predicate` out, `LATENCY` cycles later.

    `exp2_wrap` reproduces the published exp2 for 128 <= abs(x) < 256 (errata: exp2-wrap).
    """

    APART = True

    def __init__(self, *, exp2_wrap: bool = False):
        if not isinstance(exp2_wrap, bool):
            raise TypeError(f"VectorAlu exp2_wrap must be a bool, not {exp2_wrap!r}")
        self.exp2_wrap = exp2_wrap
        super().__init__(
            {
                "op": In(5),
                "a": In(WIDTH),
                "b": In(WIDTH),
                "c": In(WIDTH),
                "value": Out(WIDTH),
                "predicate": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()

        def register(value, name: str) -> Signal:
            out = Signal(value.shape(), name=name, reset_less=True)
            m.d.sync += out.eq(value)
            return out

        def delay(value, cycles: int, name: str) -> Signal:
            for step in range(cycles):
                value = register(value, f"{name}_d{step + 1}")
            return value

        def flip(word, condition=1):
            return Cat(word[:23], word[23] ^ condition)

        # ---- stage 1: route the sources to A, B, C --------------------------------------------------
        a, b, c, op = self.a, self.b, self.c, self.op
        mag_a, mag_b = a[:23], b[:23]
        unordered, equal, less, greater = Signal(), Signal(), Signal(), Signal()

        def is_nan(word):
            return (word[15:23] == 255) & (word[:15] != 0)

        m.d.comb += [
            unordered.eq(is_nan(a) | is_nan(b)),
            equal.eq(~unordered & (((mag_a == 0) & (mag_b == 0)) | (a == b))),
            less.eq(~unordered & ~equal & Mux(a[23] != b[23], a[23], Mux(a[23], mag_a > mag_b, mag_a < mag_b))),
            greater.eq(~unordered & ~equal & ~less),
        ]
        route_a, route_b, route_c = (Signal(WIDTH, name=f"route_{x}") for x in "abc")
        predicate = Signal()
        m.d.comb += [route_a.eq(a), route_b.eq(ONE), route_c.eq(0)]
        with m.Switch(op):
            with m.Case(Opcode.VNEG):
                m.d.comb += route_a.eq(flip(a))
            with m.Case(Opcode.VABS):
                m.d.comb += route_a.eq(a[:23])
            with m.Case(Opcode.VADD):
                m.d.comb += route_c.eq(c)
            with m.Case(Opcode.VSUB):
                m.d.comb += route_c.eq(flip(c))
            with m.Case(Opcode.VMUL):
                m.d.comb += route_b.eq(b)
            with m.Case(Opcode.VFMA):
                m.d.comb += [route_b.eq(b), route_c.eq(c)]
            with m.Case(Opcode.VFNMA):
                m.d.comb += [route_a.eq(flip(a)), route_b.eq(b), route_c.eq(c)]
            with m.Case(Opcode.VMAX):
                m.d.comb += route_a.eq(Mux(less, b, a))
            with m.Case(Opcode.VMIN):
                m.d.comb += route_a.eq(Mux(greater, b, a))
            with m.Case(Opcode.VSEL):
                m.d.comb += route_a.eq(Mux(c[:23] != 0, a, b))
            for code, holds in zip(COMPARES, (less, greater, equal)):
                with m.Case(code):
                    m.d.comb += [predicate.eq(holds), route_a.eq(Mux(holds, ONE, 0))]
        a1, b1, c1 = register(route_a, "a1"), register(route_b, "b1"), register(route_c, "c1")
        op1 = register(op, "op1")
        m.d.comb += self.predicate.eq(delay(predicate, LATENCY, "predicate"))

        # ---- stage 2: exponents, alignment, special operands ----------------------------------------
        seed1 = Signal()
        m.d.comb += seed1.eq((op1 >= Opcode.VEXP2) & (op1 <= Opcode.VRSQRT))
        zero = {name: word[15:23] == 0 for name, word in (("a", a1), ("b", b1), ("c", c1))}
        inf = {name: (word[15:23] == 255) & (word[:15] == 0) for name, word in (("a", a1), ("b", b1), ("c", c1))}
        nan = {name: is_nan(word) for name, word in (("a", a1), ("b", b1), ("c", c1))}
        product_zero = Signal()
        exponents = Signal(9)
        distance = Signal(range(-400, 520))
        bypass = Signal()
        shift = Signal(6)
        m.d.comb += [
            product_zero.eq(zero["a"] | zero["b"]),
            exponents.eq(Mux(product_zero, 2, a1[15:23] + b1[15:23])),
            distance.eq(exponents - c1[15:23] - 110),
            bypass.eq(~zero["c"] & (distance < 0)),
            shift.eq(Mux(zero["c"], 48, Mux(distance < 0, 0, Mux(distance > 48, 48, distance[:6])))),
        ]
        sign_product = a1[23] ^ b1[23]
        base = Signal(range(-400, 400))
        m.d.comb += base.eq(Mux(bypass, c1[15:23] - 47, exponents - 157))
        override, override_value = Signal(), Signal(WIDTH)
        product_inf = inf["a"] | inf["b"]
        out_of_range = a1[15:23] > (134 if self.exp2_wrap else 133)
        with m.If(~seed1):
            with m.If(nan["a"] | nan["b"] | nan["c"] | (inf["a"] & zero["b"]) | (inf["b"] & zero["a"])
                      | (product_inf & inf["c"] & (sign_product ^ c1[23]))):  # fmt: skip
                m.d.comb += [override.eq(1), override_value.eq(NAN)]
            with m.Elif(product_inf | inf["c"]):
                sign = Mux(product_inf, sign_product, c1[23])
                m.d.comb += [override.eq(1), override_value.eq(Cat(Const(PLUS_INF, 23), sign))]
        with m.Elif(nan["a"]):
            m.d.comb += [override.eq(1), override_value.eq(NAN)]
        with m.Else():
            with m.Switch(op1):
                with m.Case(Opcode.VEXP2):
                    m.d.comb += override.eq(zero["a"] | out_of_range)
                    m.d.comb += override_value.eq(Mux(zero["a"], ONE, Mux(a1[23], 0, PLUS_INF)))
                with m.Case(Opcode.VLOG2):
                    m.d.comb += override.eq(zero["a"] | a1[23] | inf["a"])
                    m.d.comb += override_value.eq(Mux(zero["a"], MINUS_INF, Mux(a1[23], NAN, PLUS_INF)))
                with m.Case(Opcode.VINV):
                    m.d.comb += override.eq(zero["a"] | inf["a"])
                    m.d.comb += override_value.eq(Cat(Mux(zero["a"], Const(PLUS_INF, 23), 0), a1[23]))
                with m.Case(Opcode.VRSQRT):
                    m.d.comb += override.eq(zero["a"] | a1[23] | inf["a"])
                    m.d.comb += override_value.eq(Mux(zero["a"], PLUS_INF, Mux(a1[23], NAN, 0)))
        override14 = delay(register(override, "override2"), 12, "override")
        value14 = delay(register(override_value, "override_value2"), 12, "override_value")

        a2, op2 = register(a1, "a2"), register(op1, "op2")
        seed2 = register(seed1, "seed2")
        subtract2 = register(sign_product ^ c1[23], "subtract2")
        sign_product2, sign_c2 = register(sign_product, "sign_product2"), register(c1[23], "sign_c2")
        cancels2 = register(~(zero["a"] | zero["b"] | zero["c"]), "cancels2")
        shift2, base2 = register(shift, "shift2"), register(base, "base2")
        kill2 = register(product_zero | bypass, "kill2")
        sig_a2 = register(Cat(a1[:15], Const(1, 1)), "sig_a2")
        sig_b2 = register(Cat(b1[:15], Const(1, 1)), "sig_b2")
        sig_c2 = register(Cat(c1[:15], Const(1, 1)), "sig_c2")

        # ---- stages 3..5: product beside the aligned addend -----------------------------------------
        product5 = delay(register(Mux(kill2, 0, sig_a2 * sig_b2), "product3"), 2, "product")
        addend3 = register((Cat(Const(0, 32), sig_c2) >> Cat(Const(0, 4), shift2[4:6]))[:48], "addend3")
        fine3 = register(shift2[:4], "fine3")
        addend4 = register((addend3 >> Cat(Const(0, 2), fine3[2:4]))[:48], "addend4")
        fine4 = register(fine3[:2], "fine4")
        addend5 = register((addend4 >> fine4)[:48], "addend5")
        lost = Signal(5)
        m.d.comb += lost.eq(Mux(shift2 > 32, shift2 - 32, 0))
        sticky3 = register(((sig_c2 & ((Const(1, 17) << lost) - 1)[:16]) != 0), "sticky3")

        # ---- stages 6, 7: sum and magnitude ----------------------------------------------------------
        subtract5 = delay(subtract2, 3, "subtract")
        total6 = register(Mux(subtract5, addend5 - product5, addend5 + product5).as_signed(), "total6")
        negative6 = Signal()
        m.d.comb += negative6.eq(total6 < 0)
        magnitude7 = register(Mux(negative6, -total6, total6)[:48], "magnitude7")
        subtract6 = delay(subtract5, 1, "subtract_6")
        sign_product6, sign_c6 = delay(sign_product2, 4, "sign_product"), delay(sign_c2, 4, "sign_c")
        cancels6 = delay(cancels2, 4, "cancels")
        sign7 = register(Mux(subtract6 & ~negative6, sign_c6, sign_product6), "sign7")
        # True cancellation gives +0; every other zero keeps its computed sign.
        plus_zero7 = register(subtract6 & cancels6, "plus_zero7")
        sticky7 = delay(sticky3, 4, "sticky")
        base7 = delay(base2, 5, "base")

        # ---- seeds: reduce (3..5), coefficients (6), two Horner steps (7..10) -------------------------
        exponent2 = a2[15:23]
        drop = Signal(5)
        m.d.comb += drop.eq(Mux(exponent2 > 134, 0, Mux(exponent2 < 108, 26, (134 - exponent2)[:5])))
        scaled3 = register((Cat(Const(0, 10), sig_a2) >> drop)[:26], "scaled3")
        a3, op3 = register(a2, "a3"), register(op2, "op3")
        rounded = Signal(26)
        m.d.comb += rounded.eq(scaled3[1:] + scaled3[0])
        fixed4 = register(Mux(a3[23], -rounded, rounded)[:25], "fixed4")
        a4, op4 = register(a3, "a4"), register(op3, "op4")
        segment, offset, function, parity = Signal(5), Signal(12), Signal(2), Signal()
        is_exp2 = op4 == Opcode.VEXP2
        m.d.comb += [
            segment.eq(Mux(is_exp2, fixed4[12:17], a4[10:15])),
            offset.eq(Mux(is_exp2, fixed4[:12], Cat(Const(0, 2), a4[:10]))),
            function.eq((op4 - Opcode.VEXP2)[:2]),
            parity.eq((op4 == Opcode.VRSQRT) & ~a4[15]),
        ]
        m.submodules.rom = rom = memory.Memory(shape=3 * COEFFICIENT_BITS, depth=256, init=seed_rom())
        port = rom.read_port()
        row5 = register(Cat(segment, parity, function), "row5")
        m.d.comb += [port.addr.eq(row5), port.en.eq(1)]
        pinned5 = register((segment == 0) & (offset == 0) & ~parity, "pinned5")
        offset6 = delay(offset, 2, "offset")
        whole5 = register(fixed4[17:25].as_signed(), "whole5")
        a5, op5 = register(a4, "a5"), register(op4, "op5")
        a6, op6, pinned6 = register(a5, "a6"), register(op5, "op6"), register(pinned5, "pinned6")
        c2_6 = port.data[:22].as_signed()
        c1_6 = port.data[22:44].as_signed()
        c0_6 = port.data[44:66].as_signed()
        product_h7 = register(c2_6 * Cat(offset6, Const(0, 1)).as_signed(), "product_h7")
        c1_7, c0_7 = register(c1_6, "c1_7"), register(c0_6, "c0_7")
        slope8 = register(((product_h7 + (c1_7 << 16) + (1 << 15)) >> 16)[:22].as_signed(), "slope8")
        offset8 = delay(offset6, 2, "offset_8")
        product_f9 = register(slope8 * Cat(offset8, Const(0, 1)).as_signed(), "product_f9")
        op8, a8, pinned8 = delay(op6, 2, "op_8"), delay(a6, 2, "a_8"), delay(pinned6, 2, "pinned_8")
        c0_8 = register(c0_7, "c0_8")
        constant = Signal(range(-(1 << 28), 1 << 28))
        is_log2 = op8 == Opcode.VLOG2
        pin = Mux((op8 == Opcode.VINV) | (op8 == Opcode.VRSQRT), 1 << 20, 0)
        extra = Mux(op8 == Opcode.VEXP2, 1 << 20, Mux(is_log2, (a8[15:23] - 127) << 20, 0))
        m.d.comb += constant.eq(Mux(pinned8, pin, c0_8) + extra)
        constant9 = register(constant, "constant9")
        result10 = register(((product_f9 + (constant9 << 16) + (1 << 15)) >> 16)[:30].as_signed(), "result10")
        op10, exponent10 = delay(op8, 2, "op_10"), delay(a8, 2, "a_10")[15:23]
        sign_a10 = delay(a8, 2, "a_10s")[23]
        whole10 = delay(whole5, 5, "whole")
        seed_base = Signal(range(-400, 400))
        half = Signal(range(-80, 80))
        m.d.comb += half.eq((exponent10 - 127) >> 1)
        with m.Switch(op10):
            with m.Case(Opcode.VEXP2):
                m.d.comb += seed_base.eq(whole10 + 107)
            with m.Case(Opcode.VLOG2):
                m.d.comb += seed_base.eq(107)
            with m.Case(Opcode.VINV):
                m.d.comb += seed_base.eq(234 - exponent10)
            with m.Default():
                m.d.comb += seed_base.eq(107 - half)
        seed_sign = Mux(op10 == Opcode.VLOG2, result10 < 0, Mux(op10 == Opcode.VINV, sign_a10, 0))

        # ---- stages 11..15: one finaliser for both --------------------------------------------------
        seed10 = delay(seed2, 8, "seed")
        magnitude10, sticky10 = delay(magnitude7, 3, "magnitude"), delay(sticky7, 3, "sticky_10")
        sign10, base10 = delay(sign7, 3, "sign"), delay(base7, 3, "base_10")
        plus_zero10 = delay(plus_zero7, 3, "plus_zero")
        magnitude11 = register(Mux(seed10, Mux(result10 < 0, -result10, result10)[:30], magnitude10), "magnitude11")
        sticky11 = register(~seed10 & sticky10, "sticky11")
        sign11 = register(Mux(seed10, seed_sign, sign10), "sign11")
        base11 = register(Mux(seed10, seed_base, base10), "base11")
        plus_zero11 = register(~seed10 & plus_zero10, "plus_zero11")

        leading = Signal(6)
        for bit in range(48):  # the last assignment, the highest set bit, wins
            with m.If(magnitude11[bit]):
                m.d.comb += leading.eq(bit)
        exponent12 = register(base11 + leading, "exponent12")
        left12 = register((47 - leading)[:6], "left12")
        magnitude12, sticky12 = register(magnitude11, "magnitude12"), register(sticky11, "sticky12")
        zero12 = register(magnitude11 == 0, "zero12")
        sign12 = register(Mux((magnitude11 == 0) & plus_zero11, 0, sign11), "sign12")

        coarse13 = register((magnitude12 << Cat(Const(0, 2), left12[2:6]))[:48], "coarse13")
        left13, sticky13 = register(left12[:2], "left13"), register(sticky12, "sticky13")
        exponent13, zero13, sign13 = (
            register(exponent12, "exponent13"),
            register(zero12, "zero13"),
            register(sign12, "sign13"),
        )

        normal = Signal(48)
        rounded_up = Signal()
        m.d.comb += [
            normal.eq((coarse13 << left13)[:48]),
            rounded_up.eq(normal[31] & ((normal[:31] != 0) | sticky13 | normal[32])),
        ]
        significand14 = register((normal[32:48] + rounded_up)[:17], "significand14")
        exponent14, zero14, sign14 = (
            register(exponent13, "exponent14"),
            register(zero13, "zero14"),
            register(sign13, "sign14"),
        )

        exponent = Signal(range(-500, 500))
        final = Signal(WIDTH)
        m.d.comb += exponent.eq(exponent14 + significand14[16])
        with m.If(override14):
            m.d.comb += final.eq(value14)
        with m.Elif(zero14 | (exponent <= 0)):
            m.d.comb += final.eq(Cat(Const(0, 23), sign14))
        with m.Elif(exponent >= 255):
            m.d.comb += final.eq(Cat(Const(PLUS_INF, 23), sign14))
        with m.Else():
            m.d.comb += final.eq(Cat(significand14[:15], exponent[:8], sign14))
        m.d.comb += self.value.eq(register(final, "value15"))
        return m
