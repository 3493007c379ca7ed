"""The reference interpreter against element-by-element evaluation, on shapes that do not divide."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kohakutpu import lang as L
from kohakutpu.formats import alu, e8m15, fp16, mxfp7
from kohakutpu.formats.accumulator import AccumulatorFormat
from kohakutpu.formats.alu import AluOp
from kohakutpu.kernels import linear
from kohakutpu.lang import dims, kernel, units
from kohakutpu.reference import Constants, InterpreterError, interpret
from kohakutpu.reference import interpreter as module

M, K, N = dims("M, K, N")


def halves(random, shape, deviation=0.5):
    return random.normal(0, deviation, shape).astype(np.float16)


def run(kernel_, inputs, knobs=None, **options):
    trace = kernel_.trace(**(knobs or {}))
    return interpret(trace, kernel_.solve({n: a.shape for n, a in inputs.items()}), inputs, **options)


# ---- one element at a time ----------------------------------------------------------------------------


def block_of(row: np.ndarray, block: int) -> tuple[list[int], int]:
    """The significands and scale byte of 32 K of one row, zero past its end."""
    part = np.zeros((1, 4, 32), np.uint16)
    data = row[32 * block : 32 * block + 32].view(np.uint16)
    part[0, 0, : len(data)] = data
    q, scale = mxfp7.quantise(part)
    return q[0, 0].tolist(), int(scale[0, 0])


def dot(a: np.ndarray, b: np.ndarray, mantissa: int = 14) -> int:
    """The accumulator word of one element: blocks of 32 K in ascending order."""
    form = AccumulatorFormat(mantissa)
    word = np.zeros(1, np.uint32)
    for block in range(math.ceil(len(a) / 32)):
        qa, sa = block_of(a, block)
        qb, sb = block_of(b, block)
        total = sum(x * y for x, y in zip(qa, qb))
        word = form.add(word, form.from_block(np.array([total]), np.array([sa]), np.array([sb])))
    return int(word[0])


def element(word: int, mantissa: int = 14) -> int:
    return int(AccumulatorFormat(mantissa).to_fp16(np.array([word], np.uint32))[0])


def op(code: AluOp, a: int, b: int | None = None, c: int | None = None) -> int:
    operands = [None if x is None else np.array([x], np.uint32) for x in (a, b, c)]
    return int(alu.execute(code, *operands)[0][0])


def load(bits: int) -> int:
    return int(e8m15.from_fp16(np.array([bits], np.uint16))[0])


def store(word: int) -> int:
    return int(e8m15.to_fp16(np.array([word], np.uint32))[0])


def silu_bits(bits: int) -> int:
    v = load(bits)
    scaled = op(AluOp.VMUL, v, b=e8m15.constant(-math.log2(math.e)))
    denominator = op(AluOp.VADD, op(AluOp.VEXP2, scaled), c=e8m15.constant(1.0))
    return store(op(AluOp.VMUL, v, b=op(AluOp.VINV, denominator)))


SHAPES = [(4, 32, 4), (5, 33, 7), (17, 96, 13), (32, 64, 32), (3, 200, 9)]


@pytest.mark.parametrize("m, k, n", SHAPES)
@pytest.mark.parametrize("mantissa", [10, 14, 16])
def test_product(m, k, n, mantissa):
    random = np.random.default_rng(m * k * n)
    a, b = halves(random, (m, k)), halves(random, (n, k))
    found = run(linear.matmul, {"a": a, "b": b}, {"gm": 2, "gn": 3, "nk": 2}, mantissa=mantissa).outputs["c"]
    want = np.array([[element(dot(a[i], b[j], mantissa), mantissa) for j in range(n)] for i in range(m)], np.uint16)
    assert (found == want).all()


@pytest.mark.parametrize("knobs", [{"gm": 1, "gn": 1, "nk": 1}, {"gm": 8, "gn": 2, "nk": 3}, {"gm": 2, "gn": 2, "nk": 2, "fuse": False}])
def test_tiling_and_fusing_change_nothing(knobs):
    random = np.random.default_rng(3)
    inputs = {"x": halves(random, (2, 9, 70)), "w": halves(random, (11, 70))}
    assert (run(linear.linear_silu, inputs, knobs).outputs["y"] == run(linear.linear_silu, inputs).outputs["y"]).all()


def test_epilogue_is_computed_op_by_op_from_the_fp16_tile():
    random = np.random.default_rng(4)
    x, w = halves(random, (6, 40)), halves(random, (5, 40))
    found = run(linear.linear_silu, {"x": x, "w": w}).outputs["y"]
    want = [[silu_bits(element(dot(x[i], w[j]))) for j in range(5)] for i in range(6)]
    assert found.tolist() == want


def test_staged_form_means_the_same():
    random = np.random.default_rng(5)
    inputs = {"x": halves(random, (2, 7, 40)), "w": halves(random, (5, 40))}
    fused, staged = (run(k, inputs).outputs["y"] for k in (linear.linear_silu, linear.linear_silu_staged))
    assert (fused == staged).all()


def test_bias_belongs_to_the_column():
    random = np.random.default_rng(6)
    x, w, b = halves(random, (9, 33)), halves(random, (26, 33)), halves(random, (26,))
    found = run(linear.linear_bias, {"x": x, "w": w, "b": b}, {"gm": 2, "gn": 6}).outputs["y"]
    for i in range(9):
        for j in range(26):
            acc = load(element(dot(x[i], w[j])))
            assert found[i, j] == store(op(AluOp.VADD, acc, c=load(int(b[j : j + 1].view(np.uint16)[0]))))


def test_two_accumulators():
    random = np.random.default_rng(7)
    x, wg, wu = halves(random, (5, 64)), halves(random, (6, 64)), halves(random, (6, 64))
    found = run(linear.swiglu, {"x": x, "wg": wg, "wu": wu}).outputs["y"]
    for i in range(5):
        for j in range(6):
            up, gate = load(element(dot(x[i], wu[j]))), element(dot(x[i], wg[j]))
            v = load(gate)
            scaled = op(AluOp.VMUL, v, b=e8m15.constant(-math.log2(math.e)))
            inner = op(AluOp.VMUL, v, b=op(AluOp.VINV, op(AluOp.VADD, op(AluOp.VEXP2, scaled), c=e8m15.constant(1.0))))
            assert found[i, j] == store(op(AluOp.VMUL, up, b=inner))


@kernel
def halfway(x=L.In(...), y=L.Out(...)):
    y <<= x * 0.3 + 1.0


def test_constants_in_registers_are_truncated_and_in_arrays_rounded_to_fp16():
    x = np.array([1.0, -2.5, 60000.0, 6e-8], np.float16)
    for constants, held in ((Constants.REGISTERS, e8m15.constant(0.3)), (Constants.ARRAYS, load(int(fp16.from_float(np.array([0.3]))[0])))):
        found = run(halfway, {"x": x}, constants=constants).outputs["y"]
        want = [store(op(AluOp.VADD, op(AluOp.VMUL, load(int(v)), b=held), c=e8m15.constant(1.0))) for v in x.view(np.uint16)]
        assert found.tolist() == want


@kernel
def infinite(x=L.In(...), y=L.Out(...), *, c=1.0):
    y <<= x * c


@pytest.mark.parametrize(
    "value, constants, reason",
    [
        (math.inf, Constants.REGISTERS, "inf cannot be a constant"),
        (1e39, Constants.REGISTERS, "outside the range"),
        (1e-39, Constants.REGISTERS, "no normal E8M15"),
        (1e5, Constants.ARRAYS, "outside the range of FP16"),
        (1e-6, Constants.ARRAYS, "no normal FP16"),
    ],
)
def test_a_constant_without_a_form_is_refused(value, constants, reason):
    with pytest.raises(L.KernelError, match=reason):
        run(infinite, {"x": np.ones(4, np.float16)}, {"c": value}, constants=constants)


def test_exceptional_values():
    bits = np.array([0x7C00, 0xFC00, 0x7E00, 0x0000, 0x8000, 0x0001, 0x7BFF], np.uint16)
    found = run(halfway, {"x": bits}).outputs["y"]
    want = [store(op(AluOp.VADD, op(AluOp.VMUL, load(int(v)), b=e8m15.constant(0.3)), c=e8m15.constant(1.0))) for v in bits]
    assert found.tolist() == want


@kernel
def partly(x=L.In(K), w=L.In(M, K), y=L.Out(M, K)):
    with units(x.parts(4)) as e:
        y[1 * e] <<= w[1 * e] * 2.0


def test_an_output_that_is_not_wholly_written_is_refused():
    inputs = {"x": np.ones(8, np.float16), "w": np.ones((3, 8), np.float16)}
    with pytest.raises(InterpreterError, match="16 elements of y unwritten"):
        run(partly, inputs)


@kernel
def half_filled(x=L.In(K), w=L.In(M, K), y=L.Out(M, K)):
    t = L.temp(M, K)
    with units(x.parts(4)) as e:
        t[1 * e] <<= w[1 * e] * 2.0
    y <<= t + w


def test_reading_a_temporary_that_is_not_wholly_written_is_refused():
    with pytest.raises(InterpreterError, match="read where nothing has been written"):
        run(half_filled, {"x": np.ones(8, np.float16), "w": np.ones((3, 8), np.float16)})


@kernel
def reads_first(x=L.In(...), y=L.Out(...)):
    t = L.temp(...)
    y <<= t + x
    t <<= x


def test_reading_before_writing_is_refused():
    with pytest.raises(L.KernelError, match="written"):
        run(reads_first, {"x": np.ones(4, np.float16)})


@pytest.mark.parametrize(
    "inputs, reason",
    [
        ({"x": np.ones((4, 32), np.float16)}, "no shape for w|no value for w"),
        ({"x": np.ones((4, 32), np.float32), "w": np.ones((4, 32), np.float16)}, "float32"),
    ],
)
def test_bad_operands_are_refused(inputs, reason):
    with pytest.raises(L.KernelError, match=reason):
        run(linear.linear_silu, inputs)


def test_surplus_and_misshapen_operands_are_refused():
    good = {"x": np.ones((4, 32), np.float16), "w": np.ones((4, 32), np.float16)}
    trace, extents = linear.linear_silu.trace(), linear.linear_silu.solve({n: a.shape for n, a in good.items()})
    with pytest.raises(InterpreterError, match="no operand z"):
        interpret(trace, extents, good | {"z": good["x"]})
    with pytest.raises(InterpreterError, match=r"expected float16 or uint16\[4, 32\]"):
        interpret(trace, extents, good | {"w": np.ones((5, 32), np.float16)})


def test_writers_name_the_statement():
    inputs = {"x": np.ones((4, 32), np.float16), "w": np.ones((4, 32), np.float16)}
    trace = linear.linear_silu_staged.trace()
    image = run(linear.linear_silu_staged, inputs)
    (writer,) = set(image.writers["y"].reshape(-1).tolist())
    assert trace.statements[writer].source.text == "y <<= L.silu(t)"


# ---- faults: what the tests above would miss if the data could not show it ------------------------------


def first_difference(monkeypatch, patch, kernel_, inputs):
    right = run(kernel_, inputs)
    patch(monkeypatch)
    wrong = run(kernel_, inputs)
    return any((right.outputs[name] != wrong.outputs[name]).any() for name in right.outputs)


def _swapped_sum(monkeypatch):
    monkeypatch.setitem(module.OPERATIONS, module.ElementOp.ADD, (AluOp.VADD, "ca"))


def _descending(monkeypatch):
    """Add the blocks of a chunk in descending order."""
    contract = module._Run.contract

    def reversed_operand(self, part, rows, blocks, known, source):
        q, scale = operand(self, part, rows, blocks, known, source)
        return q[:, ::-1], scale[:, ::-1]

    operand = module._Run.operand
    monkeypatch.setattr(module._Run, "operand", reversed_operand)
    assert contract is module._Run.contract


def _no_fp16_between(monkeypatch):
    monkeypatch.setattr(AccumulatorFormat, "to_fp16", lambda self, a: (fp16.from_float(self.to_float(a) * (1 + 2**-11))))


@pytest.mark.parametrize("fault", [_descending, _no_fp16_between])
def test_the_data_show_a_wrong_order_or_rounding(monkeypatch, fault):
    random = np.random.default_rng(8)
    inputs = {"x": halves(random, (16, 256), 3.0), "w": halves(random, (16, 256), 3.0)}
    monkeypatch.setattr(linear.linear_silu, "knobs", linear.linear_silu.knobs | {"nk": 4})
    assert first_difference(monkeypatch, fault, linear.linear_silu, inputs)


@kernel
def sums(x=L.In(...), z=L.In(...), y=L.Out(...)):
    y <<= x + z


def test_the_order_of_a_sum_shows_in_signed_zeros(monkeypatch):
    x, z = np.array([0x0000, 0x8000], np.uint16), np.array([0x8000, 0x0000], np.uint16)
    assert run(sums, {"x": x, "z": z}).outputs["y"].tolist() == [0x8000, 0x0000]
    assert first_difference(monkeypatch, _swapped_sum, sums, {"x": x, "z": z})


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 20), st.integers(1, 100), st.integers(1, 20), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3), st.integers(0, 2**32))
def test_random_shapes_and_tilings(m, k, n, gm, gn, nk, seed):
    random = np.random.default_rng(seed)
    a, b = halves(random, (m, k), 20.0), halves(random, (n, k), 20.0)
    found = run(linear.matmul, {"a": a, "b": b}, {"gm": gm, "gn": gn, "nk": nk}).outputs["c"]
    i, j = int(random.integers(m)), int(random.integers(n))
    assert found[i, j] == element(dot(a[i], b[j]))


def test_image_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        run(sums, {"x": np.zeros(1, np.uint16), "z": np.zeros(1, np.uint16)}).outputs = {}
