"""Functions that LLVM has no instruction for: the C library's, lane by lane, and a float32 exp of a wave."""

from __future__ import annotations

import struct

import numpy as np
from llvmlite import ir

from .emit import DOUBLE, I1, I32, Emitter

NAMES = {
    "exp": "exp", "exp2": "exp2", "log": "log", "log2": "log2", "log10": "log10", "sin": "sin", "cos": "cos",
    "tan": "tan", "asin": "asin", "acos": "acos", "atan": "atan", "atan2": "atan2", "pow": "pow",
}  # fmt: skip


def single(value: float) -> float:
    """A number rounded to float32."""
    with np.errstate(all="ignore"):
        return float(np.float32(value))


def _function(emitter: Emitter, name: str, result, arguments) -> ir.Function:
    found = emitter.module.globals.get(name)
    return found or ir.Function(emitter.module, ir.FunctionType(result, arguments), name)


def call(emitter: Emitter, word: str, values: list):
    """The C library's float64 function; for lanes, in a loop over those that run."""
    function = _function(emitter, NAMES[word], DOUBLE, [DOUBLE] * len(values))
    function.attributes.add("nounwind")
    if not isinstance(values[0].type, ir.VectorType):
        return emitter.builder.call(function, values)
    name = f"xpu.{word}"
    lanes = values[0].type
    loop = emitter.module.globals.get(name) or _each(emitter, name, function, lanes, len(values))
    return emitter.builder.call(loop, [*values, emitter.full()])


def _each(emitter: Emitter, name: str, function: ir.Function, lanes, count: int) -> ir.Function:
    """A function of vectors that calls one of scalars for each lane of a mask; the others give 0."""
    kind = ir.FunctionType(lanes, [lanes] * count + [ir.VectorType(I1, lanes.count)])
    made = ir.Function(emitter.module, kind, name)
    made.linkage = "internal"
    made.attributes.add("noinline")
    builder = ir.IRBuilder(made.append_basic_block("entry"))
    head, turn, work, end, done = (made.append_basic_block(n) for n in ("head", "turn", "work", "end", "done"))
    builder.branch(head)
    builder.position_at_end(head)
    index, total = builder.phi(I32), builder.phi(lanes)
    builder.cbranch(builder.icmp_unsigned("<", index, I32(lanes.count)), turn, done)
    builder.position_at_end(turn)
    builder.cbranch(builder.extract_element(made.args[-1], index), work, end)
    builder.position_at_end(work)
    found = builder.call(function, [builder.extract_element(argument, index) for argument in made.args[:-1]])
    more = builder.insert_element(total, found, index)
    builder.branch(end)
    builder.position_at_end(end)
    kept = builder.phi(lanes)
    kept.add_incoming(total, turn)
    kept.add_incoming(more, work)
    after = builder.add(index, I32(1))
    builder.branch(head)
    index.add_incoming(I32(0), made.entry_basic_block)
    index.add_incoming(after, end)
    total.add_incoming(ir.Constant(lanes, None), made.entry_basic_block)
    total.add_incoming(kept, end)
    builder.position_at_end(done)
    builder.ret(total)
    return made


# exp(r) - 1 - r - r*r/2 on [-ln2/2, ln2/2] as r**3 times a polynomial; Taylor's series to r**7 leaves 6e-9 of exp.
_SERIES = [1 / 5040, 1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2]
_LOG2E = 1.4426950408889634
_LN2_HIGH = struct.unpack("<f", struct.pack("<I", 0x3F317200))[0]  # 15 bits, so that its product with n is exact
_LN2_LOW = 0.6931471805599453 - _LN2_HIGH


def exp(emitter: Emitter, x):
    """float32 exp: exp(x) = 2**n * exp(x - n ln 2), |r| <= ln2/2. Within 1 ulp (tests/xpu/test_cpu_numbers.py)."""
    b = emitter.builder

    def number(value):
        return emitter.like(x, single(value))

    fma = lambda *parts: emitter.pure("fma", *parts)  # noqa: E731 - a short name for the lines below
    high, low = number(88.7228394), number(-103.9720840)
    over, under = b.fcmp_ordered(">", x, high), b.fcmp_ordered("<", x, low)
    held = b.select(b.fcmp_unordered("uno", x, x), number(0.0), x)
    held = b.select(over, high, b.select(under, low, held))
    n = emitter.pure("roundeven", b.fmul(held, number(_LOG2E)))
    r = fma(n, number(-_LN2_HIGH), held)
    tail = b.fmul(n, number(-_LN2_LOW))
    r = b.fadd(r, tail)
    series = number(_SERIES[0])
    for term in _SERIES[1:]:
        series = fma(series, r, number(term))
    found = b.fadd(fma(b.fmul(r, r), series, r), number(1.0))
    # 2**n in two factors, so that neither leaves the exponents of float32 and a subnormal is rounded once.
    whole = b.fptosi(n, emitter.shaped(I32, x))
    half = b.ashr(whole, emitter.like(whole, 1))
    for part in (half, b.sub(whole, half)):
        bits = b.shl(b.add(part, emitter.like(part, 127)), emitter.like(part, 23))
        found = b.fmul(found, b.bitcast(bits, x.type))
    found = b.select(over, number(float("inf")), b.select(under, number(0.0), found))
    return b.select(b.fcmp_unordered("uno", x, x), x, found)
