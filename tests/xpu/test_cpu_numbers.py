"""Floats on the cpu back end: what is exact, and the bounds of what is not, each with its reason."""

import numpy as np
import pytest

from kohakutpu.backends.cpu import CPU, execute
from kohakutpu.reference.xpu import Launch, run
from kohakutpu.xpu import FastMath, f16, f32, f64
from kohakutpu.xpu.launch import Request

COUNT = 1 << 12
# ulps of the interpreter, which computes in float64 and rounds once. The C library's function in float64 differs from
# numpy's by an ulp of float64 or two: float32 shows that where a result lies beside the middle of two numbers.
LIBRARY = 1
WIDE = 4
EXP = 1  # float32 arithmetic: a polynomial after the reduction


def ranks(values: np.ndarray) -> np.ndarray:
    """Floats as integers in their order, one apart for neighbours; both zeros are 0."""
    held = values.view(f"i{values.dtype.itemsize}").astype(object if values.dtype.itemsize == 8 else np.int64)
    low = -(1 << values.dtype.itemsize * 8 - 1)
    return np.where(held < 0, low - held, held)


def worst(found: np.ndarray, expected: np.ndarray) -> int:
    """The most ulps between them; NaN must meet NaN."""
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    apart = np.abs(ranks(found) - ranks(expected))
    return int(np.where(np.isnan(found), 0, apart).max())


def inputs(kind, seed: int) -> np.ndarray:
    """All magnitudes: random bits, small integers, corners."""
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 1 << kind.bits, COUNT, np.uint64).astype(f"u{kind.size}").view(kind.dtype)
    values[::3] = (rng.standard_normal(len(values[::3])) * 8).astype(kind.dtype)
    values[:8] = [0.0, -0.0, 1.0, np.inf, -np.inf, np.nan, 0.5, -1.5]
    return values


def both(declared, *arrays, **how):
    """The interpreter's and the cpu's values of out, the first array."""
    out = arrays[0]
    run(declared, arrays, Launch(COUNT // 64, 64, 16))
    expected = out.copy()
    out[...] = 0
    execute(CPU, Request(declared, (COUNT // 64, 1, 1), (64, 1, 1), 0, arrays), 16, True)
    return out, expected


EXACT = ["a + b", "a - b", "a * b", "a / b", "rem(a, b)", "math.floor(a)", "math.ceil(a)", "math.trunc(a)",
         "math.round(a)", "math.sqrt(a)", "math.abs(a)", "math.min(a, b)", "math.max(a, b)", "-a", "math.fma(a, b, a)",
         "a if a < b else b", "f32(a) * f32(b)", "f16(f64(a))", "a * b + a"]  # fmt: skip


@pytest.mark.parametrize("kind", [f16, f32, f64], ids=str)
def test_arithmetic_is_exact(body_of, kind):
    body = "i = thread.global_id_x()\na = x[i]\nb = y[i]\n"
    body += "\n".join(f"out[i * {len(EXACT)} + {n}] = {kind}({e})" for n, e in enumerate(EXACT))
    declared = body_of(body, f"out: KernelBuffer[{kind}], x: KernelBuffer[{kind}], y: KernelBuffer[{kind}]")
    out = np.zeros(COUNT * len(EXACT), kind.dtype)
    found, expected = both(declared, out, inputs(kind, 1), inputs(kind, 2))
    assert worst(found, expected) == 0
    same = ~np.isnan(found)
    assert found[same].tobytes() == expected[same].tobytes()  # the sign of zero, too


ONE = ["exp", "exp2", "log", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan", "rsqrt"]


@pytest.mark.parametrize("kind, bound", [(f32, LIBRARY), (f16, LIBRARY), (f64, WIDE)], ids=str)
def test_functions_are_within_their_bounds(body_of, kind, bound):
    calls = [f"math.{word}(a)" for word in ONE] + ["math.pow(a, b)", "math.atan2(a, b)"]
    body = "i = thread.global_id_x()\na = x[i]\nb = y[i]\n"
    body += "\n".join(f"out[i * {len(calls)} + {n}] = {e}" for n, e in enumerate(calls))
    declared = body_of(body, f"out: KernelBuffer[{kind}], x: KernelBuffer[{kind}], y: KernelBuffer[{kind}]")
    out = np.zeros(COUNT * len(calls), kind.dtype)
    found, expected = both(declared, out, inputs(kind, 3), inputs(kind, 4))
    found, expected = found.reshape(-1, len(calls)), expected.reshape(-1, len(calls))
    off = {call: worst(np.ascontiguousarray(found[:, n]), np.ascontiguousarray(expected[:, n]))
           for n, call in enumerate(calls)}  # fmt: skip
    assert max(off.values()) <= bound, off


def exp_everywhere(body_of, step: int) -> int:
    """The most ulps of exp over every step-th float32."""
    declared = body_of(
        "i = thread.global_id_x()\nout[i] = math.exp(x[i])", "out: KernelBuffer[f32], x: KernelBuffer[f32]"
    )
    most, chunk = 0, 1 << 22
    bits = np.arange(0, 1 << 32, step, dtype=np.uint64).astype(np.uint32)
    for start in range(0, len(bits), chunk):
        x = np.resize(bits[start : start + chunk], -(-len(bits[start : start + chunk]) // 64) * 64).view(np.float32)
        out = np.zeros_like(x)
        execute(CPU, Request(declared, (len(x) // 64, 1, 1), (64, 1, 1), 0, (out, x)), 16, True)
        with np.errstate(all="ignore"):
            expected = np.exp(x.astype(np.float64)).astype(np.float32)
        most = max(most, worst(out, expected))
    return most


def test_exp_of_a_wave_is_within_an_ulp(body_of):
    assert exp_everywhere(body_of, 4001) <= EXP


@pytest.mark.slow
def test_exp_of_a_wave_is_within_an_ulp_everywhere(body_of):
    assert exp_everywhere(body_of, 61) <= EXP


def test_fast_math_may_contract_within_a_fraction_of_the_scale(kernel_of):
    text = """
@kernel
def k(out: KernelBuffer[f32], x: KernelBuffer[f32], y: KernelBuffer[f32]):
    i = thread.global_id_x()
    total = f32(0.0)
    for j in range(64):
        total += x[(i + u32(j)) % 4096] * y[j]
    out[i] = total
"""
    plain, fast = kernel_of(text), kernel_of("@FastMath()" + text)
    x, y = np.random.default_rng(6).standard_normal((2, COUNT)).astype(np.float32)
    found, expected = both(plain, np.zeros(COUNT, np.float32), x, y)
    assert found.tobytes() == expected.tobytes()
    assert fast.find(FastMath)
    found, expected = both(fast, np.zeros(COUNT, np.float32), x, y)
    assert found.tobytes() != expected.tobytes()  # it does contract, on a host with fma
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * np.abs(expected).max())
