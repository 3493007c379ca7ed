"""The seeds: tables from the interpolation rule, an exact reference, range ends and accuracy."""

from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kohakutpu.formats import alu, e8m15, seeds

FUNCTIONS = {"exp2": alu.exp2, "log2": alu.log2, "inv": alu.inv, "rsqrt": alu.rsqrt}


def u32(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.uint32)


# ---- tables ----------------------------------------------------------------------------------------------

LN2 = Decimal(2).ln()
GENERATORS = {
    "exp2": lambda row, x: ((row % 32 + x) / 32 * Decimal(2).ln()).exp() - 1,
    "log2": lambda row, x: (1 + (row % 32 + x) / 32).ln() / Decimal(2).ln(),
    "inv": lambda row, x: 1 / (1 + (row % 32 + x) / 32),
    "rsqrt": lambda row, x: 1 / ((1 + row // 32) * (1 + (row % 32 + x) / 32)).sqrt(),
}
# cos of the three Chebyshev angles pi/6, pi/2, 5pi/6
COSINES = (Decimal(3).sqrt() / 2, Decimal(0), -Decimal(3).sqrt() / 2)


def quadratic(function, row: int) -> list[int]:
    """c0, c1, c2 of the quadratic through three Chebyshev nodes of a segment, rounded to their weights."""
    nodes = [(1 + cosine) / 2 for cosine in COSINES]
    y = [function(row, node) for node in nodes]
    slope = (y[1] - y[0]) / (nodes[1] - nodes[0])
    second = ((y[2] - y[1]) / (nodes[2] - nodes[1]) - slope) / (nodes[2] - nodes[0])
    c1 = slope - second * (nodes[0] + nodes[1])
    c0 = y[0] - c1 * nodes[0] - second * nodes[0] ** 2
    return [int((value * 2**weight).to_integral_value()) for value, weight in ((c0, 20), (c1, 24), (second, 28))]


@pytest.mark.parametrize("name", seeds.SEED_ROWS)
def test_tables_follow_the_interpolation_rule(name):
    columns = seeds.seed_tables()[name]
    assert all(len(column) == seeds.SEED_ROWS[name] for column in columns)
    with localcontext(prec=40):
        for row in range(seeds.SEED_ROWS[name]):
            assert quadratic(GENERATORS[name], row) == [int(column[row]) for column in columns], (name, row)


@pytest.mark.parametrize("name, wanted", [("exp2", 0), ("log2", 0), ("inv", 1 << 20), ("rsqrt", 1 << 20)])
def test_the_start_of_the_first_segment_is_pinned(name, wanted):
    assert int(seeds.horner(name, np.array([0]), np.array([0]))[0]) == wanted
    c0, c1, _ = seeds.seed_tables()[name]
    unpinned = int(seeds.horner(name, np.array([0]), np.array([1]))[0])
    assert abs(unpinned - int(c0[0]) - int(c1[0]) / 2**16) <= 1


@pytest.mark.parametrize("name", seeds.SEED_ROWS)
def test_the_fixed_point_registers_hold_every_value(name):
    """Coefficients and the inner Horner result fit 22 signed bits, the outer one 30, so nothing wraps."""
    assert all(np.abs(column).max() < 1 << 21 for column in seeds.seed_tables()[name])
    c0, c1, c2 = seeds.seed_tables()[name]
    rows, u = np.meshgrid(np.arange(len(c0)), np.arange(4096))
    inner = (c2[rows] * u + (c1[rows] << 16) + 0x8000) >> 16
    assert inner.min() >= -(1 << 21) and inner.max() < 1 << 21
    for extra in (-127 << 20, 128 << 20) if name == "log2" else (1 << 20 if name == "exp2" else 0,):
        outer = seeds.horner(name, rows, u, extra)
        assert outer.min() >= -(1 << 29) and outer.max() < 1 << 29


# ---- an independent reference ----------------------------------------------------------------------------


def finalise(magnitude: int, base: int, sign: int) -> int:
    if magnitude == 0:
        return sign << 23
    top = magnitude.bit_length() - 1
    scaled = magnitude << 47 - top
    kept, rest = scaled >> 32, scaled % 2**32
    kept += rest > 2**31 or rest == 2**31 and kept % 2
    exponent = top + base
    if kept == 0x10000:
        kept, exponent = 0x8000, exponent + 1
    if exponent >= 255:
        return sign << 23 | 0x7F8000
    return sign << 23 | (exponent << 15 | kept % 0x8000 if exponent > 0 else 0)


def oracle(name: str, a: int, wrap: bool = False) -> int:
    """One seed on Python integers, following the hardware's steps."""
    sign, exponent, fraction = a >> 23, a >> 15 & 255, a & 0x7FFF
    if exponent == 255 and fraction:
        return 0x7FC000
    if exponent == 0:
        return {"exp2": 0x3F8000, "log2": 0xFF8000, "inv": sign << 23 | 0x7F8000, "rsqrt": 0x7F8000}[name]
    if name in ("log2", "rsqrt") and sign:
        return 0x7FC000
    if exponent == 255:
        return {"exp2": 0 if sign else 0x7F8000, "log2": 0x7F8000, "inv": sign << 23, "rsqrt": 0}[name]
    segment, u = fraction >> 10, fraction % 1024 * 4
    if name == "exp2":
        if exponent > (134 if wrap else 133):
            return 0 if sign else 0x7F8000
        w = (0x8000 | fraction) * 2**10 >> min(134 - exponent, 26)
        v = (w >> 1) + w % 2
        v = -v if sign else v
        v = (v + 2**24) % 2**25 - 2**24
        segment, u = v >> 12 & 31, v & 0xFFF
    odd = name == "rsqrt" and exponent % 2 == 0
    row = segment + 32 * odd
    c0, c1, c2 = (int(column[row]) for column in seeds.seed_tables()[name])
    if row == 0 and u == 0:
        c0 = 2**20 if name in ("inv", "rsqrt") else 0
    c0 += {"exp2": 2**20, "log2": (exponent - 127) * 2**20}.get(name, 0)
    h = (c2 * u + c1 * 2**16 + 2**15) // 2**16
    f = (h * u + c0 * 2**16 + 2**15) // 2**16
    base = {"exp2": lambda: (v >> 17) + 107, "log2": lambda: 107, "inv": lambda: 234 - exponent,
            "rsqrt": lambda: 107 - (exponent - 127) // 2}[name]()  # fmt: skip
    return finalise(abs(f), base, {"log2": int(f < 0), "inv": sign}.get(name, 0))


words = st.one_of(
    st.integers(0, 0xFFFFFF),
    st.builds(lambda s, e, m: s << 23 | e << 15 | m, st.integers(0, 1), st.integers(118, 136), st.integers(0, 0x7FFF)),
)


@pytest.mark.parametrize("name", FUNCTIONS)
@given(words)
@settings(max_examples=400)
def test_seeds_against_the_reference(name, a):
    assert f"{int(FUNCTIONS[name](u32(a))[0]):06X}" == f"{oracle(name, a):06X}"


@given(words)
@settings(max_examples=300)
def test_wrapping_exp2_against_the_reference(a):
    assert int(alu.exp2(u32(a), wrap=True)[0]) == oracle("exp2", a, wrap=True)


# ---- values ----------------------------------------------------------------------------------------------

SPECIAL = {  # operand: exp2, log2, inv, rsqrt
    0x7FC000: (0x7FC000, 0x7FC000, 0x7FC000, 0x7FC000), 0xFF8001: (0x7FC000, 0x7FC000, 0x7FC000, 0x7FC000),
    0x000000: (0x3F8000, 0xFF8000, 0x7F8000, 0x7F8000), 0x800000: (0x3F8000, 0xFF8000, 0xFF8000, 0x7F8000),
    0x007FFF: (0x3F8000, 0xFF8000, 0x7F8000, 0x7F8000), 0x800001: (0x3F8000, 0xFF8000, 0xFF8000, 0x7F8000),
    0x7F8000: (0x7F8000, 0x7F8000, 0x000000, 0x000000), 0xFF8000: (0x000000, 0x7FC000, 0x800000, 0x7FC000),
    0xBF8000: (0x3F0000, 0x7FC000, 0xBF8000, 0x7FC000), 0x438000: (0x7F8000, 0x410000, 0x3B8000, 0x3D8000),
    0xC38000: (0x000000, 0x7FC000, 0xBB8000, 0x7FC000),
}  # fmt: skip


@pytest.mark.parametrize("a", SPECIAL, ids=lambda a: f"{a:06X}")
def test_special_operands(a):
    assert [int(function(u32(a))[0]) for function in FUNCTIONS.values()] == list(SPECIAL[a])


@pytest.mark.parametrize(
    "name, a, wanted",
    [
        ("exp2", 0x3F0000, 0x3FB505), ("exp2", 0x42FFFE, 0x7F7F4F), ("exp2", 0xC2FC00, 0x008000),
        ("exp2", 0xC2FD00, 0x000000), ("exp2", 0x368000, 0x3F8000), ("exp2", 0xB68000, 0x3F8000),
        ("log2", 0x404000, 0x3FCAE0), ("log2", 0x3F7FFF, 0xB7C000), ("log2", 0x3F8001, 0x383800),
        ("log2", 0x3F8000, 0x000000), ("inv", 0x404000, 0x3EAAAB), ("rsqrt", 0x400000, 0x3F3505),
        ("rsqrt", 0x404000, 0x3F13CD), ("rsqrt", 0x008000, 0x5F0000), ("inv", 0x7F0000, 0x000000),
        ("inv", 0x7E8000, 0x008000), ("inv", 0x7E8001, 0x000000), ("inv", 0xFF0000, 0x800000),
    ],
)  # fmt: skip
def test_spot_values(name, a, wanted):
    assert f"{int(FUNCTIONS[name](u32(a))[0]):06X}" == f"{wanted:06X}"


@pytest.mark.parametrize(
    "value, published, ours",
    [(128, 0x000000, 0x7F8000), (130, 0x008000, 0x7F8000), (200, 0x238000, 0x7F8000), (255, 0x3F0000, 0x7F8000),
     (256, 0x7F8000, 0x7F8000), (-128, 0x000000, 0x000000), (-129, 0x7F0000, 0x000000), (-130, 0x7E8000, 0x000000),
     (-200, 0x5B8000, 0x000000), (-256, 0x000000, 0x000000), (127, 0x7F0000, 0x7F0000), (-127, 0x000000, 0x000000)],
)  # fmt: skip
def test_the_exp2_erratum(value, published, ours):
    a = e8m15.from_float([value])
    assert int(alu.exp2(a, wrap=True)[0]) == published
    assert int(alu.exp2(a)[0]) == ours
    assert int(alu.execute(alu.AluOp.VEXP2, a, a, a, exp2_wrap=True)[0][0]) == published


def test_exact_by_construction():
    powers = np.arange(-126, 128)
    words = e8m15.from_float(2.0**powers)
    assert (alu.exp2(e8m15.from_float(powers)) == words).all()
    assert (alu.log2(words) == e8m15.from_float(powers)).all()
    reciprocal = powers[powers <= 126]
    assert (alu.inv(e8m15.from_float(2.0**reciprocal)) == e8m15.from_float(2.0**-reciprocal)).all()
    even = powers[powers % 2 == 0]
    assert (alu.rsqrt(e8m15.from_float(2.0**even)) == e8m15.from_float(2.0 ** -(even // 2))).all()


def binades(low: int, high: int) -> np.ndarray:
    return np.arange(low << 15, (high + 1) << 15).astype(np.uint32)


@pytest.mark.parametrize(
    "name, words, true, bound",
    [
        ("exp2", binades(100, 133), np.exp2, 0.619),
        ("exp2", binades(100, 133) | np.uint32(0x800000), np.exp2, 0.703),
        ("inv", binades(127, 127), np.reciprocal, 0.592),
        ("rsqrt", binades(127, 128), lambda x: 1 / np.sqrt(x), 0.568),
    ],
)
def test_accuracy(name, words, true, bound):
    """Every argument of the binades that a seed distinguishes, in units of the last place of the true value."""
    wanted = true(e8m15.to_float(words))
    got = e8m15.to_float(FUNCTIONS[name](words))
    inside = (wanted > 2.0**-125) & np.isfinite(got)
    ulp = 2.0 ** (np.floor(np.log2(wanted)) - 15)
    worst = (np.abs(got - wanted) / ulp)[inside].max()
    assert bound - 0.001 < worst < bound


def test_accuracy_of_log2():
    words = binades(120, 134)
    wanted = np.log2(e8m15.to_float(words))
    got = e8m15.to_float(alu.log2(words))
    nonzero = wanted != 0
    ulp = 2.0 ** (np.floor(np.log2(np.abs(wanted[nonzero]))) - 15)
    worst = (np.abs(got - wanted)[nonzero] / np.maximum(0.99 * ulp, 2.0**-18)).max()
    assert 0.811 < worst < 0.812
