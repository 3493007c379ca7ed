"""Elementwise kernels: the interpreter's bytes on every machine, published flit counts, meaning, any statement."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kohakutpu import lang as L
from kohakutpu.compiler import CompileError, Options, compile_kernel
from kohakutpu.host.simulate import run_reference
from kohakutpu.kernels import elementwise
from kohakutpu.lang import Kernel, dims, kernel
from kohakutpu.machine import load

sys.path.insert(0, str(Path(__file__).parent))
from running import equal_bytes, flits, operands_of  # noqa: E402

KERNELS = [made for made in vars(elementwise).values() if isinstance(made, Kernel)]
MEANING = {
    "negative": np.negative, "absolute": np.abs, "exp2": np.exp2, "log2": np.log2, "recip": lambda x: 1 / x,
    "rsqrt": lambda x: 1 / np.sqrt(x), "sqrt": np.sqrt, "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)), "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2, "scale": lambda x: x,
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "maximum": np.maximum,
    "minimum": np.minimum, "fma": lambda a, b, c: a * b + c, "where": lambda c, a, b: np.where(c, a, b),
}  # fmt: skip


def test_every_kernel_has_a_meaning():
    assert {made.name for made in KERNELS} == set(MEANING)


@pytest.mark.parametrize("made", KERNELS, ids=lambda k: k.name)
def test_library(made):
    machine = ["mm_mesh", "quad", "ship_3x2"][KERNELS.index(made) % 3]
    for shape, part in (((9, 70), 256), ((2, 3, 50), 8192), ((1,), 8192)):
        equal_bytes(made, {port.name: shape for port in made.inputs}, machine, {"part": part}, specials=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["mm_mesh", "quad", "ship_3x2"])
@pytest.mark.parametrize("made", KERNELS, ids=lambda k: k.name)
def test_library_on_every_machine(made, machine):
    for shape, part in (((64, 64), 1024), ((3, 1000), 8192)):
        equal_bytes(made, {port.name: shape for port in made.inputs}, machine, {"part": part}, specials=0.1)


@pytest.mark.parametrize("made", KERNELS, ids=lambda k: k.name)
def test_meaning(made):
    operands = operands_of({port.name: (40, 50) for port in made.inputs}, seed=2)
    if made.name in ("log2", "rsqrt", "sqrt"):
        operands = {name: data & 0x7FFF for name, data in operands.items()}
    found = run_reference(made, {}, operands, load("quad")).outputs["y"].view(np.float16).astype(np.float64)
    wanted = MEANING[made.name](*(data.view(np.float16).astype(np.float64) for data in operands.values()))
    wanted = np.clip(wanted, -65504, 65504)
    assert np.allclose(found, wanted, rtol=2e-3, atol=2e-5)


@pytest.mark.parametrize("name, published", [("silu", 114), ("relu", 66), ("add", 66), ("mul", 66)])
def test_flits_at_most_the_published_ones(name, published):
    """At 64x64; a product has the words of a sum (spec: per-step word sequences)."""
    made = getattr(elementwise, name)
    artifact = compile_kernel(made, load("quad"), {port.name: (64, 64) for port in made.inputs})
    assert flits(artifact) <= published


M, N = dims("M, N")


@st.composite
def values(draw):
    steps = [(draw(st.integers(0, 12)), *(draw(st.integers(0, 30)) for _ in "abcd")) for _ in range(draw(st.integers(1, 14)))]

    def value(x, r):
        made = [x, r, L.maximum(x, -0.5), x * r]
        numbers = [0.37, -2.0, 0.0, 1.0, -1.0, 3, M]
        for step, *picks in steps:
            a, b, c, d = (made[p % len(made)] for p in picks)
            n = numbers[picks[0] % len(numbers)]
            made.append(
                [
                    lambda: a + b, lambda: n - a, lambda: a * n, lambda: L.exp2(a), lambda: L.fma(n, a, b),
                    lambda: L.fma(a, b, n), lambda: L.where(L.less(a, n), b, c), lambda: L.where(L.equal(a, b), n, d),
                    lambda: L.where(L.greater(n, b), a, n), lambda: L.recip(a), lambda: L.minimum(n, a),
                    lambda: abs(a) / b, lambda: L.log2(a) - n,
                ][step]()
            )  # fmt: skip
        return L.maximum(made[-1], x) - r

    return value


def examples(count):
    ran = []

    @settings(max_examples=count, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(values(), st.integers(1, 40), st.integers(1, 90), st.lists(st.integers(1, 3), max_size=2),
           st.sampled_from(["mm_mesh", "quad"]), st.sampled_from([16, 700, 8192]), st.sampled_from(["registers", "arrays"]),
           st.sampled_from(["default", "default", "published"]))  # fmt: skip
    def check(value, rows, columns, lead, machine, part, constants, lowering):
        def body(x=L.In(..., M, N), r=L.In(..., M, N), y=L.Out(..., M, N), *, part=8192):
            y <<= value(x, r)

        shape = (*lead, rows, columns)
        part = max(1024, part // 1024 * 1024) if lowering == "published" else part
        try:
            equal_bytes(kernel(body), {"x": shape, "r": shape}, machine, {"part": part}, Options(lowering, constants), specials=0.05)
        except CompileError as error:
            assert error.source is not None
            ran.append(lowering == "published")
        else:
            ran.append(True)

    check()
    assert sum(ran) > 0.8 * len(ran), f"{sum(ran)} of {len(ran)} compiled"


def test_any_statement():
    examples(15)


@pytest.mark.slow
def test_many_statements():
    examples(300)
