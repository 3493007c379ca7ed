"""Machine arithmetic: kernels give the bytes that tile kernels of the same mathematics have on the machine."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohakutpu.formats import alu, e8m15, fp32
from kohakutpu.kernels import linear
from kohakutpu.lang.elementwise import LOG2E
from kohakutpu.reference import interpret
from kohakutpu.reference.xpu import MACHINE, Launch, machine, run
from kohakutpu.xpu import Refused, Undefined, f16, f32, i32, kernel

RNG = np.random.default_rng(11)


def halves(*shape, deviation=1.0):
    return RNG.normal(0, deviation, shape).astype(np.float16)


def image(declared, arguments, **launch):
    assert run(declared, arguments, Launch(**launch), MACHINE) == "walk"


LINEAR = """
LOG2E = {log2e!r}
@device
def silu(v: f32) -> f32:
    return v / (math.exp2(v * f32(-LOG2E)) + f32(1.0))
@device
def relu(v: f32) -> f32:
    return math.max(v, f32(0.0))
@kernel
@Wave(width=16)
def k(y: KernelBuffer[f16], x: KernelBuffer[f16], w: KernelBuffer[f16], depth: u32, cols: u32):
    acc: CooperativeMatrix[f16, {m}, {n}, Use.ACCUMULATOR]
    a: CooperativeMatrix[f16, {m}, {k}, Use.A]
    b: CooperativeMatrix[f16, {k}, {n}, Use.B]
    acc.splat(0)
    row = workgroup.y() * {m}
    col = workgroup.x() * {n}
    for i in range(depth // {k}):
        a.load(x, row * depth + i * {k}, 0, depth)
        b.load(w, col * depth + i * {k}, 1, depth)
        acc.mma(a, b)
    {epilogue}
    acc.store(y, row * cols + col, 0, cols)
"""


@pytest.mark.parametrize("name, function", [("matmul", None), ("linear_silu", "silu"), ("linear_relu", "relu")])
def test_a_tiled_product_with_an_epilogue_is_the_tile_kernels(kernel_of, name, function):
    rows, depth, cols = 24, 96, 16
    x, w, y = halves(rows, depth), halves(cols, depth), np.zeros(rows * cols, np.float16)
    x[3, 5], w[2, 7] = 60000, 60000  # the drain saturates
    loop = f"for e in range(acc.elements()):\n        acc.set(e, {function}(acc.get(e)))"
    declared = kernel_of(LINEAR.format(log2e=LOG2E, epilogue=loop if function else "pass", m=12, k=32, n=8))
    image(declared, [y, x.ravel(), w.ravel(), depth, cols], grid=(2, 2), block=16)
    tile_kernel = getattr(linear, name)
    operands = {port.name: value for port, value in zip(tile_kernel.trace().inputs, (x, w), strict=True)}
    expected = interpret(tile_kernel.trace(), tile_kernel.solve({n: v.shape for n, v in operands.items()}), operands)
    (found,) = expected.outputs.values()
    np.testing.assert_array_equal(y.view(np.uint16).reshape(rows, cols), found)


def test_a_product_that_does_not_divide_is_padded_with_zeros(kernel_of):
    text = LINEAR.format(log2e=LOG2E, epilogue="pass", m=6, k=40, n=5)
    x, w, y = halves(6, 40), halves(5, 40), np.zeros(30, np.float16)
    image(kernel_of(text), [y, x.ravel(), w.ravel(), 40, 5], block=16)
    expected = interpret(linear.matmul.trace(), linear.matmul.solve({"a": (6, 40), "b": (5, 40)}), {"a": x, "b": w})
    np.testing.assert_array_equal(y.view(np.uint16).reshape(6, 5), expected.outputs["c"])


WORDS = st.integers(0, 0xFFFFFFFF).map(lambda bits: int(e8m15.from_fp32(np.uint32([bits]))[0]))


@given(WORDS, WORDS, WORDS)
def test_every_operation_is_one_of_the_alus(a, b, c):
    x, y, z = (np.array([word], np.uint32) for word in (a, b, c))
    checks = [
        (machine.binary("add", f32, a, b), alu.add(x, y)),
        (machine.binary("sub", f32, a, b), alu.add(x, y ^ np.uint32(e8m15.SIGN))),
        (machine.binary("mul", f16, a, b), alu.multiply(x, y)),
        (machine.function("fma", f32, a, b, c), alu.fma(x, y, z)),
        (machine.function("max", f32, a, b), alu.maximum(x, y)),
        (machine.function("min", f32, a, b), alu.minimum(x, y)),
    ]
    for found, expected in checks:
        assert found == int(expected[0])
    assert machine.compare("lt", f32, a, b) == bool(alu.less(x, y)[0])
    assert machine.compare("ge", f32, a, b) == bool((alu.greater(x, y) | alu.equal(x, y))[0])
    assert machine.compare("ne", f32, a, b) != bool(alu.equal(x, y)[0])


def of(value) -> int:
    """The E8M15 word nearest to a number."""
    return int(e8m15.from_float(np.array([value]))[0])


@pytest.mark.parametrize(
    "expression, words",
    [
        ("x[t] * f32(3.0) + y[t]", lambda x, y: alu.add(alu.multiply(x, const(3.0)), y)),
        ("x[t] / y[t]", lambda x, y: alu.multiply(x, seed("inv", y))),
        ("math.sqrt(x[t])", lambda x, y: alu.multiply(x, seed("rsqrt", x))),
        ("math.exp(x[t])", lambda x, y: seed("exp2", alu.multiply(x, const(np.log2(np.e))))),
        ("math.log(x[t])", lambda x, y: alu.multiply(seed("log2", x), const(np.log(2.0)))),
        ("math.log10(x[t])", lambda x, y: alu.multiply(seed("log2", x), const(np.log10(2.0)))),
        ("math.pow(x[t], y[t])", lambda x, y: seed("exp2", alu.multiply(y, seed("log2", x)))),
        ("math.abs(x[t]) + f32(t)", lambda x, y: alu.add(x & e8m15.MAGNITUDE, e8m15.from_float(np.arange(16.0)))),
        ("x[t] if x[t] < y[t] else y[t]", lambda x, y: alu.minimum(y, x)),
        ("-x[t]", lambda x, y: alu.canonical(x ^ np.uint32(e8m15.SIGN))),
        ("x[t]", lambda x, y: x),
    ],
)
@pytest.mark.parametrize("kind", ["f16", "f32"])
def test_an_elementwise_kernel_computes_in_e8m15(body_of, expression, words, kind):
    declared = body_of(f"t = thread.x()\nout[t] = {expression}",
                       f"out: KernelBuffer[{kind}], x: KernelBuffer[{kind}], y: KernelBuffer[{kind}]")  # fmt: skip
    dtype = np.float16 if kind == "f16" else np.float32
    x, y = np.abs(RNG.standard_normal((2, 16))).astype(dtype)
    out = np.zeros(16, dtype)
    image(declared, [out, x, y], block=16)
    read = (
        (lambda v: e8m15.from_fp16(v.view(np.uint16)))
        if kind == "f16"
        else (lambda v: e8m15.from_fp32(v.view(np.uint32)))
    )
    result = words(read(x), read(y))
    expected = e8m15.to_fp16(result) if kind == "f16" else e8m15.to_fp32(result)
    np.testing.assert_array_equal(out.view(expected.dtype), expected)


def const(value):
    return np.full(16, e8m15.constant(float(value)), np.uint32)


def seed(name, words):
    from kohakutpu.formats import seeds

    return getattr(seeds, name)(words)


def test_a_sum_over_the_wave_is_the_butterfly_in_e8m15(body_of):
    declared = body_of("out[thread.x()] = wave.reduce_sum_f32(x[thread.x()])\nout[16] = workgroup.reduce(Op.ADD, x[0])",
                       "out: KernelBuffer[f32], x: KernelBuffer[f32]")  # fmt: skip
    x, out = RNG.standard_normal(16).astype(np.float32), np.zeros(17, np.float32)
    image(declared, [out, x], block=16, wave_width=16)
    held = e8m15.from_fp32(x.view(np.uint32))
    for distance in (1, 2, 4, 8):
        held = alu.add(held, held[np.arange(16) ^ distance])
    np.testing.assert_array_equal(out[:16].view(np.uint32), e8m15.to_fp32(held))


def test_scalars_truncate_and_float16_conversions_round(body_of):
    declared = body_of("out[0] = a\nout[1] = f32(f16(a * f32(1.0)))", "out: KernelBuffer[f32], a: f32")
    out = np.zeros(2, np.float32)
    image(declared, [out, 1.0 + 2**-15 + 2**-16])
    word = e8m15.constant(1.0 + 2**-15 + 2**-16)
    assert out[0] == fp32.to_float(e8m15.to_fp32(np.uint32([word])))[0] == 1.0 + 2**-15
    assert out[1] == 1.0


REFUSED = [
    (
        "out[0] = out[0] * 0.5",
        "f64 on the machine, which computes in E8M15 from float16 and float32 memory; f32(...) says",
    ),
    ("v: bf16\nout[0] = v", "bf16 on the machine"),
    ("n = i32(out[0])", "f32 to i32 on the machine, which has no integers in its vector core"),
    ("out[0] = rem(out[0], out[1])", "rem of floats on the machine"),
    ("out[0] = math.sin(out[0])", "math.sin on the machine"),
    ("n = f32_to_bits(out[0])", "f32_to_bits on the machine"),
    ("v = out.atomic_add(0, f32(1.0))", "memory.atomic_add on the machine"),
    ("t: CooperativeMatrix[i32, 4, 4, 2]", "products of integers are not exact there"),
    ("t: CooperativeMatrix[f32, 4, 4, 0]", "operands are float16"),
    ("t: CooperativeMatrix[f32, 4, 4, 2]\nt.splat(f32(1.0))", "tile.splat of an accumulator on the machine, where it"),
    (
        "t: CooperativeMatrix[f32, 4, 4, 2]\nt.load(out, 0, 0, 4)",
        "tile.load of an accumulator on the machine, where it",
    ),
    ("out[0] = out[0] / 2", ""),
]


@pytest.mark.parametrize("body, reason", REFUSED)
def test_what_the_machine_has_no_numbers_for_is_refused(body_of, body, reason):
    declared = body_of(body, "out: KernelBuffer[f32]")
    out = np.ones(16, np.float32)
    if not reason:
        image(declared, [out], wave_width=1)
        assert out[0] == 0.5
        return
    with pytest.raises(Refused) as caught:
        image(declared, [out], wave_width=1)
    assert reason in str(caught.value) and "(line " in str(caught.value)


def test_a_tile_that_left_the_cluster_takes_no_product(body_of):
    body = """
acc: CooperativeMatrix[f32, 4, 4, Use.ACCUMULATOR]
a: CooperativeMatrix[f16, 4, 32, Use.A]
b: CooperativeMatrix[f16, 32, 4, Use.B]
acc.set(0, f32(1.0))
acc.mma(a, b)
"""
    with pytest.raises(Undefined, match="mma of a tile whose elements were changed: it left the cluster"):
        image(body_of(body, "n: i32"), [1], wave_width=1)


def test_integers_are_the_hosts(launch, body_of):
    declared = body_of(
        "out[0] = div(a, 3) * 7 - (a << 2)\nout[1] = 1 if a > 5 else 0", "out: KernelBuffer[i32], a: i32"
    )
    host, here = np.zeros(2, np.int32), np.zeros(2, np.int32)
    launch(declared, host, 100)
    image(declared, [here, 100])
    assert host.tolist() == here.tolist() and i32.bits == 32 and callable(kernel)
