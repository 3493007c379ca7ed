# amaranth: UnusedElaboratable=no
"""ALU, tree adder and conversions of the vector core against recorded vectors and the formats."""

import sys
from pathlib import Path

import pytest
from amaranth import Cat, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from rtl.emit import shared
from rtl.vector_alu import VectorAlu
from rtl.vector_formats import FromFp16, FromFp32, ToFp16, to_fp32
from rtl.vector_tree import TreeAdder
from sim.runner import BenchError

sys.path.insert(0, str(Path(__file__).parent))
from support.harness import run_bench  # noqa: E402

SAMPLED = Path(__file__).parents[1] / "data" / "golden"


class Units(wiring.Component):
    """`units` of each: ALUs and adders on `source` (a, b, c of 24 bits a unit), conversions on `single` (32 bits a
    unit).
    """

    def __init__(self, *, units: int, exp2_wrap: bool):
        self.units = units
        self.exp2_wrap = exp2_wrap
        super().__init__(
            {
                "op": In(5), "node": In(2), "source": In(72 * units), "single": In(32 * units),
                "value": Out(24 * units), "predicate": Out(units), "sum": Out(24 * units),
                "from_fp16": Out(24 * units), "from_fp32": Out(24 * units), "to_fp16": Out(16 * units),
                "to_fp32": Out(32 * units),
            }
        )  # fmt: skip

    def elaborate(self, platform):
        m = Module()
        outputs = {name: [] for name in ("value", "predicate", "sum", "from_fp16", "from_fp32", "to_fp16", "to_fp32")}
        for unit in range(self.units):
            a, b, c = (self.source[72 * unit + 24 * place : 72 * unit + 24 * (place + 1)] for place in range(3))
            word = self.single[32 * unit : 32 * (unit + 1)]
            parts = [
                shared(VectorAlu, exp2_wrap=self.exp2_wrap),
                shared(TreeAdder),
                shared(FromFp16),
                shared(FromFp32),
                shared(ToFp16),
            ]
            m.submodules += parts
            alu, adder, from_fp16, from_fp32, to_fp16 = parts
            m.d.comb += [
                alu.op.eq(self.op), alu.a.eq(a), alu.b.eq(b), alu.c.eq(c), adder.node.eq(self.node), adder.a.eq(a),
                adder.b.eq(b), from_fp16.half.eq(word), from_fp32.single.eq(word), to_fp16.word.eq(word),
            ]  # fmt: skip
            for name, value in (
                ("value", alu.value), ("predicate", alu.predicate), ("sum", adder.value), ("from_fp16", from_fp16.word),
                ("from_fp32", from_fp32.word), ("to_fp16", to_fp16.half), ("to_fp32", to_fp32(word[:24])),
            ):  # fmt: skip
                outputs[name].append(value)
        m.d.comb += [getattr(self, name).eq(Cat(values)) for name, values in outputs.items()]
        return m


ALU = ("vec_alu.npz", "vec_alu_extra.npz")
WRAPPING = ("errata_exp2_wrap.npz",)


def run(golden, simulator="verilator", tests=None, units=16, exp2_wrap=False, files=ALU, **environment):
    """Benches on the recorded vectors of a folder; those of the ALU are in `files`."""
    environment |= {"golden": golden, "units": units, "exp2_wrap": exp2_wrap, "files": " ".join(files)}
    top = Units(units=units, exp2_wrap=exp2_wrap)
    return run_bench(top, "bench_vector_units", name="vector_units", simulator=simulator, tests=tests, **environment)


def test_recorded_and_random_vectors():
    """A sample of the recorded ones; `tests/sysnode/test_rtl_golden.py` has them all."""
    assert len(run(SAMPLED).passed) == 4


def test_published_exp2():
    """And only with the erratum."""
    run(SAMPLED, exp2_wrap=True, tests=["alu_gives_what_was_recorded"], files=WRAPPING)
    with pytest.raises(BenchError, match="errata_exp2_wrap.npz a: .* expected"):
        run(SAMPLED, tests=["alu_gives_what_was_recorded"], files=WRAPPING)


def test_random_vectors_on_icarus():
    run(SAMPLED, "icarus", tests=["alu_gives_what_the_formats_give"], units=2)


def test_a_wrong_parameter_is_refused():
    with pytest.raises(TypeError, match="exp2_wrap must be a bool, not 1"):
        VectorAlu(exp2_wrap=1)
