"""The ALU: published checksums and edges, an exact reference, and where it departs from correct rounding."""

import zlib
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kohakutpu.formats import alu
from kohakutpu.formats.alu import AluOp
from kohakutpu.isa.vector import COMPARES, Opcode


def u32(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.uint32)


def run(op: str, a: int, b: int = 0, c: int = 0) -> int:
    return int(alu.execute(AluOp[op], u32(a), u32(b), u32(c))[0][0])


# ---- published checksums ---------------------------------------------------------------------------------

CHECKSUMS = """
VMOV   A0E728CD 942605D4 366F83 C24293 3DF344
VNEG   4591875C CB321167 B688E9 4BBC7B 47CBB6
VABS   DE74BBCC 680DC1B6 36A24F 39B662 362427
VADD   6C250002 C78E201F 36BEC7 C3304A BFEF4B
VSUB   F1F0C1DF 98486FCA 478D8C CCAA67 49D50A
VMUL   8CB00B3F AADF65A2 C1A00F 2EF6C6 377053
VFMA   10AB9535 68D1B86D 419F28 C7B460 C742F2
VFNMA  C25DC306 5F07D220 B9860C 33BCB0 C429A9
VMAX   7D4CEE67 1BAF14BC 373AB4 B39916 474C52
VMIN   63E0885A 01590870 B90D40 C50BB7 3A8F41
VSEL   E7D22419 21383F6E 376D80 B3059F C467B2
VCMPLT EA0B10B6 6B6590EB 3F8000 3F8000 3F8000
VCMPGT 37FD731F EFEEA665 3F8000 000000 000000
VCMPEQ 16D13407 16D13407 000000 000000 000000
VEXP2  22C217F5 74593CF9 3F8001 7F8000 3F8000
VLOG2  BE77BBBE 889EF19A C171D4 C1A92E 7FC000
VINV   D4048B17 0365313C 46F4BD 40919B 4002E3
VRSQRT 8234E7AA 15E405B6 432245 3B43BC 7FC000
"""


def stimulus(op: AluOp, band: bool) -> np.ndarray:
    """16,384 operand triples uint32[3,n] of the published generator."""
    x, draws = 0x01234567 + op, []
    for _ in range(3 * 16384):
        x = (1664525 * x + 1013904223) % 2**32
        draws.append(x >> 8)
    words = np.array(draws, dtype=np.uint32).reshape(-1, 3).T
    if band:
        words = words & 0x807FFF | (100 + (words >> 15 & 255) % 55) << 15
    return np.ascontiguousarray(words.astype(np.uint32))


def checksum(words: np.ndarray) -> str:
    return f"{zlib.crc32(words.astype('>u4').view(np.uint8).reshape(-1, 4)[:, 1:].tobytes()):08X}"


def test_the_stimulus_is_the_published_one():
    band = stimulus(AluOp.VFMA, band=True)
    assert [f"{word:06X}" for word in band[:, :2].T.ravel()] == "3707E7 C5E42A 419FA1 C41E00 42DE05 C6AD64".split()


@pytest.mark.parametrize("row", CHECKSUMS.split("\n")[1:-1])
def test_published_checksums(row):
    name, raw, band, *first = row.split()
    op = AluOp[name]
    value, predicate = alu.execute(op, *stimulus(op, band=False), exp2_wrap=True)
    assert checksum(value) == raw
    assert (predicate == (value == alu.ONE)).all() if op in COMPARES else not predicate.any()
    value, _ = alu.execute(op, *stimulus(op, band=True), exp2_wrap=True)
    assert [f"{word:06X}" for word in value[:3]] == first
    assert checksum(value) == band


def test_the_exp2_checksum_needs_the_erratum():
    value, _ = alu.execute(AluOp.VEXP2, *stimulus(AluOp.VEXP2, band=False))
    assert checksum(value) != "22C217F5"


# ---- edges -----------------------------------------------------------------------------------------------

EDGES = [
    ("VMOV", 0x800000, 0, 0, 0x000000), ("VMOV", 0xFFFFFF, 0, 0, 0x7FC000), ("VNEG", 0x000000, 0, 0, 0x000000),
    ("VABS", 0x800000, 0, 0, 0x000000), ("VADD", 0x800000, 0, 0x800000, 0x800000),
    ("VADD", 0x800000, 0, 0x000000, 0x000000), ("VADD", 0x000000, 0, 0x800000, 0x800000),
    ("VSUB", 0x000000, 0, 0x000000, 0x800000), ("VSUB", 0x800000, 0, 0x000000, 0x800000),
    ("VSUB", 0x000000, 0, 0x800000, 0x000000), ("VSUB", 0x404000, 0, 0x404000, 0x000000),
    ("VMUL", 0xC00000, 0x000000, 0, 0x000000), ("VMUL", 0x3F8003, 0x3FC000, 0, 0x3FC005),
    ("VMUL", 0x3F8001, 0x3FC000, 0, 0x3FC002), ("VMUL", 0xBF8003, 0x3FC000, 0, 0xBFC005),
    ("VFMA", 0x3F8003, 0x3FC000, 0x008000, 0x3FC005), ("VFMA", 0x3F8003, 0x3FC000, 0x808000, 0x3FC005),
    ("VFMA", 0xC00000, 0x000000, 0x800000, 0x800000), ("VMUL", 0x008000, 0x3F0000, 0, 0x000000),
    ("VMUL", 0x808000, 0x3F0000, 0, 0x800000), ("VMUL", 0x7F7FFF, 0x400000, 0, 0x7F8000),
    ("VMUL", 0x7F8000, 0x000000, 0, 0x7FC000), ("VFMA", 0x7F8000, 0x3F8000, 0xFF8000, 0x7FC000),
    ("VFNMA", 0x3B7FFF, 0x3B7FFF, 0x3F8000, 0x3F8000), ("VFMA", 0x3B7FFF, 0x3B7FFF, 0x3F8000, 0x3F8000),
    ("VFNMA", 0x3B7FFF, 0x3BFFFF, 0x3F8000, 0x3F7FFE), ("VMAX", 0x7FC000, 0x3F8000, 0, 0x7FC000),
    ("VMAX", 0x3F8000, 0x7FC000, 0, 0x3F8000), ("VMIN", 0x000000, 0x800000, 0, 0x000000),
    ("VSEL", 0x3F8000, 0x400000, 0x800000, 0x400000), ("VSEL", 0x3F8000, 0x400000, 0x7FC000, 0x3F8000),
    ("VSEL", 0x3F8000, 0x400000, 0x000001, 0x3F8000), ("VCMPEQ", 0x000000, 0x800000, 0, 0x3F8000),
    ("VCMPEQ", 0x7FC000, 0x7FC000, 0, 0x000000),
    # zeros with a fraction: zero in arithmetic, a number to the comparators
    ("VMOV", 0x000001, 0, 0, 0x000000), ("VADD", 0x3F8000, 0, 0x807FFF, 0x3F8000),
    ("VCMPGT", 0x000001, 0x000000, 0, 0x3F8000), ("VCMPEQ", 0x000001, 0x000000, 0, 0x000000),
    ("VCMPLT", 0x800001, 0x000000, 0, 0x3F8000), ("VMAX", 0x000000, 0x000001, 0, 0x000000),
    # special operands, and one that is not routed
    ("VADD", 0x7F8000, 0, 0xFF8000, 0x7FC000), ("VADD", 0xFF8000, 0, 0xFF8000, 0xFF8000),
    ("VFMA", 0xFF8000, 0x3F8000, 0x7FC001, 0x7FC000), ("VFMA", 0x3F8000, 0x3F8000, 0xFF8000, 0xFF8000),
    ("VFMA", 0x000001, 0x7F8000, 0x3F8000, 0x7FC000), ("VMUL", 0x3F8000, 0x3F8000, 0x7FC000, 0x3F8000),
    ("VADD", 0x3F8000, 0x7FC000, 0x3F8000, 0x400000), ("VMUL", 0xFF8000, 0x40A000, 0, 0xFF8000),
    ("VCMPLT", 0xFF8000, 0x7F8000, 0, 0x3F8000), ("VCMPGT", 0x7FC000, 0x000000, 0, 0x000000),
    ("VMAX", 0xC00000, 0xC00000, 0, 0xC00000), ("VNEG", 0x7FFFFF, 0, 0, 0x7FC000),
    ("VABS", 0xFF8000, 0, 0, 0x7F8000),
]  # fmt: skip


@pytest.mark.parametrize("op, a, b, c, wanted", EDGES)
def test_edges(op, a, b, c, wanted):
    assert f"{run(op, a, b, c):06X}" == f"{wanted:06X}"


def test_the_operations_that_are_one_multiply_add():
    """The short paths give what the routed multiply-add gives, on every pair of a thorny set."""
    parts = [0x000000, 0x000001, 0x008000, 0x00FFFF, 0x330001, 0x3F7FFF, 0x3F8000, 0x3F8001, 0x3FC000, 0x47FFFF,
             0x7F0000, 0x7F7FFF, 0x7F8000, 0x7F8001, 0x7FC000]  # fmt: skip
    thorny = u32(*parts, *(part | 0x800000 for part in parts))
    a, b = (grid.ravel() for grid in np.meshgrid(thorny, thorny))
    one, zero = np.full_like(a, alu.ONE), np.zeros_like(a)
    for op, routed in (
        (AluOp.VMOV, (a, one, zero)),
        (AluOp.VNEG, (a ^ alu.SIGN, one, zero)),
        (AluOp.VABS, (a & alu.MAGNITUDE, one, zero)),
        (AluOp.VADD, (a, one, b)),
        (AluOp.VSUB, (a, one, b ^ alu.SIGN)),
        (AluOp.VMUL, (a, b, zero)),
        (AluOp.VFNMA, (a ^ alu.SIGN, b, b)),
        (AluOp.VMAX, (np.where(alu.less(a, b), b, a), one, zero)),
        (AluOp.VSEL, (np.where(b & alu.MAGNITUDE, a, b), one, zero)),
    ):
        assert (alu.execute(op, a, b, b)[0] == alu.fma(*routed)).all(), op.name


# ---- an exact reference ----------------------------------------------------------------------------------


def value_of(word: int) -> Fraction:
    exponent = word >> 15 & 255
    if exponent == 0:
        return Fraction(0)
    magnitude = Fraction((word & 0x7FFF) + 0x8000, 0x8000) * Fraction(2) ** (exponent - 127)
    return -magnitude if word >> 23 else magnitude


def nearest(value: Fraction, ties_up: bool = False) -> int:
    """Magnitude of the nearest word, the exponent limited only after rounding."""
    magnitude = abs(value)
    if not magnitude:
        return 0
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if Fraction(2) ** exponent > magnitude:
        exponent -= 1
    steps = magnitude / Fraction(2) ** (exponent - 15)
    rounded = int(steps + Fraction(1, 2)) if ties_up else round(steps)
    word = rounded + (exponent + 126 << 15)
    return 0 if word < 0x8000 else min(word, 0x7F8000)


def oracle_fma(a: int, b: int, c: int) -> int:
    """The hardware's steps on Python integers, one element, specials excluded."""
    (sa, ea, fa), (sb, eb, fb), (sc, ec, fc) = ((x >> 23, x >> 15 & 255, 0x8000 | x & 0x7FFF) for x in (a, b, c))
    product = fa * fb
    if ea == 0 or eb == 0:
        ea = eb = 1
        product = 0
    shift = ea + eb - ec - 110
    base = ea + eb - 157
    if ec == 0:
        shift = 48
    elif shift < 0:
        shift, product, base = 0, 0, ec - 47
    shift = min(shift, 48)
    addend = fc * 2**32 // 2**shift
    sticky = shift >= 33 and fc % 2 ** (shift - 32) != 0
    opposed = sa ^ sb ^ sc
    total = addend - product if opposed else addend + product
    sign = (sa ^ sb if total < 0 else sc) if opposed else sa ^ sb
    if total == 0:
        cancelled = opposed and all(x >> 15 & 255 for x in (a, b, c))
        return 0 if cancelled else sign << 23
    magnitude = abs(total)
    top = magnitude.bit_length() - 1
    kept, rest = divmod(magnitude << 47 - top, 2**32)
    up = rest > 2**31 or rest == 2**31 and (sticky or kept % 2)
    exponent = top + base
    kept += up
    if kept == 0x10000:
        kept, exponent = 0x8000, exponent + 1
    if exponent >= 255:
        return sign << 23 | 0x7F8000
    return sign << 23 | (exponent << 15 | kept & 0x7FFF if exponent > 0 else 0)


sign = st.integers(0, 1)
fraction = st.one_of(st.integers(0, 0x7FFF), st.sampled_from([0, 1, 2, 0x4000, 0x7FFF, 0x7FFE]))
any_finite = st.builds(lambda s, e, m: s << 23 | e << 15 | m, sign, st.integers(0, 254), fraction)


@st.composite
def triples(draw):
    """a, b and an addend whose exponent lies near the product's more often than not."""
    a = draw(sign) << 23 | draw(st.integers(1, 254)) << 15 | draw(fraction)
    b = draw(sign) << 23 | draw(st.integers(1, 254)) << 15 | draw(fraction)
    exponent = (a >> 15 & 255) + (b >> 15 & 255) - 127 + draw(st.integers(-36, 22))
    c = draw(sign) << 23 | min(max(exponent, 0), 254) << 15 | draw(fraction)
    return draw(st.sampled_from([(a, b, c), (a, b, c), (a, b, c), (a, 0, c), (a & 0x800000, b, 0x800000), (a, b, 0)]))


@given(triples())
@settings(max_examples=800)
def test_multiply_add_against_the_reference(case):
    a, b, c = case
    assert f"{run('VFMA', a, b, c):06X}" == f"{oracle_fma(a, b, c):06X}"


@given(triples())
@settings(max_examples=800)
@example((0x3B7FFF, 0xBB7FFF, 0x3F8000))
@example((0x3F8003, 0x3FC000, 0x808000))
def test_how_far_from_correct_rounding(case):
    """Ties of bare products go up; a subtraction is at most one step too large; everything else is right."""
    a, b, c = case
    exact = value_of(a) * value_of(b) + value_of(c)
    got = run("VFMA", a, b, c)
    product, addend = value_of(a) * value_of(b), value_of(c)
    if not addend:
        assert got & 0x7FFFFF == nearest(exact, ties_up=True)
    elif product and (product < 0) != (addend < 0):
        assert got & 0x7FFFFF in (nearest(exact), nearest(exact) + 1)
    else:
        assert got & 0x7FFFFF == nearest(exact)
    if got & 0x7FFFFF and exact:
        assert got >> 23 == (exact < 0)


@given(triples())
@settings(max_examples=300)
def test_near_addends_are_rounded_exactly(case):
    """No bit of the addend is lost while its exponent is within 15 of the product's from below, 17 from above."""
    a, b, c = case
    distance = (a >> 15 & 255) + (b >> 15 & 255) - 127 - (c >> 15 & 255)
    if a >> 15 & 255 and b >> 15 & 255 and c >> 15 & 255 and -17 <= distance <= 15:
        assert run("VFMA", a, b, c) & 0x7FFFFF == nearest(value_of(a) * value_of(b) + value_of(c))


@pytest.mark.parametrize(
    "op, a, b, c, correct",
    [("VMUL", 0x3F8003, 0x3FC000, 0, 0x3FC004), ("VFMA", 0x3F8003, 0x3FC000, 0x808000, 0x3FC004),
     ("VFNMA", 0x3B7FFF, 0x3B7FFF, 0x3F8000, 0x3F7FFF), ("VADD", 0x3F8001, 0, 0xB78001, 0x3F8000)],
)  # fmt: skip
def test_each_corner_is_one_step_above_correct_rounding(op, a, b, c, correct):
    exact = value_of(a) * value_of(b if op != "VADD" else alu.ONE) * (-1 if op == "VFNMA" else 1) + value_of(c)
    assert nearest(exact) == correct
    assert run(op, a, b, c) == correct + 1


def test_addition_does_not_commute():
    assert run("VADD", 0x3F8001, 0, 0xB78001) == 0x3F8001
    assert run("VADD", 0xB78001, 0, 0x3F8001) == 0x3F8000


@given(any_finite, any_finite, any_finite)
def test_multiplication_is_monotone_and_commutes(a, b, factor):
    low, high = sorted((a & 0x7FFFFF, b & 0x7FFFFF))
    factor &= 0x7FFFFF
    assert run("VMUL", low, factor) <= run("VMUL", high, factor)
    assert run("VMUL", a, b) == run("VMUL", b, a)


@given(any_finite)
def test_identities(a):
    canonical = a if a >> 15 & 255 else 0
    assert run("VMOV", a) == canonical == run("VMUL", a, alu.ONE) == run("VNEG", run("VNEG", a))
    assert run("VSUB", a, 0, a) == (0 if canonical else run("VADD", a, 0, a ^ 0x800000))
    assert run("VMAX", a, a) == run("VMIN", a, a) == canonical
    if canonical:
        doubled = run("VADD", a, 0, a)
        assert doubled == run("VMUL", a, 0x400000)


words = st.one_of(st.integers(0, 0xFFFFFF), any_finite, st.sampled_from([0, 0x800000, 1, 0x7F8000, 0xFF8000, 0x7FC000]))


@given(words, words)
@settings(max_examples=400)
def test_comparisons_against_the_reference(a, b):
    def rank(word):  # order of the words themselves: a zero with a fraction is not zero here
        return -(word & 0x7FFFFF) if word >> 23 else word & 0x7FFFFF

    nan = any(word & 0x7FFFFF > 0x7F8000 for word in (a, b))
    holds = {"VCMPLT": rank(a) < rank(b), "VCMPGT": rank(a) > rank(b), "VCMPEQ": rank(a) == rank(b)}
    for name, wanted in holds.items():
        value, predicate = alu.execute(AluOp[name], u32(a), u32(b), None)
        assert predicate.dtype == np.bool_ and bool(predicate[0]) == (wanted and not nan)
        assert int(value[0]) == (alu.ONE if predicate[0] else 0)
    assert run("VMAX", a, b) == run("VMOV", b if holds["VCMPLT"] and not nan else a)
    assert run("VMIN", a, b) == run("VMOV", b if holds["VCMPGT"] and not nan else a)
    assert run("VSEL", a, b, b) == run("VMOV", a if b & 0x7FFFFF else b)


# ---- the interface ---------------------------------------------------------------------------------------


def test_operations_are_numbered_as_the_instruction_set_numbers_them():
    assert {op.name: int(op) for op in AluOp} == {op.name: int(op) for op in Opcode if op <= Opcode.VRSQRT}


@pytest.mark.parametrize("op", AluOp)
def test_operands_are_not_written_and_lengths_are_kept(op):
    for count in (0, 1, 128):
        operands = [np.full(count, 0x3F8123, dtype=np.uint32) for _ in range(3)]
        for operand in operands:
            operand.flags.writeable = False
        value, predicate = alu.execute(op, *operands)
        assert value.dtype == np.uint32 and value.shape == (count,)
        assert predicate.dtype == np.bool_ and predicate.shape == (count,)
        assert not np.shares_memory(value, operands[0])


@pytest.mark.parametrize("op", [0x12, -1, 31])
def test_other_operations_are_refused(op):
    with pytest.raises(ValueError, match="is not an ALU operation"):
        alu.execute(op, u32(0), u32(0), u32(0))


def test_other_operand_types_are_refused():
    with pytest.raises(ValueError, match="ALU operand b: expected uint32 words, got int64"):
        alu.execute(AluOp.VMUL, u32(0), np.zeros(1, np.int64), None)
