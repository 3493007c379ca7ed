"""Rows, choices and repetition in the interpreter, against one element or one tree at a time."""

import math

import numpy as np
import pytest

from kohakutpu import lang as L
from kohakutpu.formats import alu, e8m15
from kohakutpu.formats.alu import AluOp
from kohakutpu.formats.reduction import Reduction, reduce, reduce_rows
from kohakutpu.lang import KernelError, dims, kernel
from kohakutpu.reference import interpret

M, N = dims("M, N")
SPECIALS = np.array([0x0000, 0x8000, 0x3C00, 0xBC00, 0x7C00, 0xFC00, 0x7E00, 0x0001, 0x8001, 0x7BFF], np.uint16)


def run(value, shapes, seed=0, specials=False, out=(M, N)):
    def made(x=L.In(..., M, N), w=L.In(*shapes.get("axes", (N,))), y=L.Out(..., *out)):
        y <<= value(x, w)

    made = kernel(made)
    rng = np.random.default_rng(seed)
    operands = {n: rng.normal(0, 2, shapes[n]).astype(np.float16).view(np.uint16) for n in "xw"}
    if specials:
        operands = {n: np.where(rng.random(a.shape) < 0.3, rng.choice(SPECIALS, a.shape), a) for n, a in operands.items()}
    extents = made.solve({n: a.shape for n, a in operands.items()})
    return operands, interpret(made.trace(), extents, operands).outputs["y"]


def word(bits) -> np.ndarray:
    return e8m15.from_fp16(np.array([bits], np.uint16))


def one_by_one(kind: Reduction, row: np.ndarray) -> int:
    """The tree of `formats.reduction.reduce`, piece by piece, with the identity past the end."""
    identity = {Reduction.SUM: 0, Reduction.MAX: 0xFF8000, Reduction.MIN: 0x7F8000}[kind]
    code, second = {Reduction.SUM: (AluOp.VADD, "c"), Reduction.MAX: (AluOp.VMAX, "b"), Reduction.MIN: (AluOp.VMIN, "b")}[kind]
    total = None
    for first in range(0, len(row), 128):
        piece = row[first : first + 128]
        padded = np.full(math.ceil(len(piece) / 16) * 16, identity, np.uint32)
        padded[: len(piece)] = piece
        value = np.array([reduce(kind, padded)[0]], np.uint32)
        if total is not None:
            operands = {"b": None, "c": None} | {second: value}
            value = alu.execute(code, total, **operands)[0]
        total = value
    return int(total[0])


@pytest.mark.parametrize("shape", [(3, 16), (2, 3, 77), (1, 1), (2, 128), (2, 129), (3, 300)])
@pytest.mark.parametrize("specials", [False, True])
def test_reductions(shape, specials):
    for kind, function in ((Reduction.SUM, L.row_sum), (Reduction.MAX, L.row_max), (Reduction.MIN, L.row_min)):
        operands, y = run(lambda x, w: function(x), {"x": shape, "w": shape[-1:]}, specials=specials)  # noqa: B023
        rows = operands["x"].reshape(-1, shape[-1])
        want = [int(e8m15.to_fp16(np.array([one_by_one(kind, e8m15.from_fp16(row))], np.uint32))[0]) for row in rows]
        assert (y.reshape(-1, shape[-1]) == np.array(want, np.uint16)[:, None]).all()


def test_sums_of_exp2_and_of_products_may_be_taken_into_the_tree():
    """What lets the compiler use EXPSUM and DOT: with zeros, infinities, NaN and vanishing products too."""
    rng = np.random.default_rng(7)
    for trial in range(200):
        n = 16 * rng.integers(1, 9)
        a, b = (rng.integers(0, 2, n) << 23 | rng.integers(1, 255 if trial % 3 else 90, n) << 15 | rng.integers(0, 1 << 15, n)
                for _ in range(2))  # fmt: skip
        a, b = a.astype(np.uint32), b.astype(np.uint32)
        if trial % 4 == 0:
            a[rng.integers(0, n, n // 2)] = 0x800000
            b[rng.integers(0, n, n // 2)] = 0
        total, leaves = reduce(Reduction.EXPSUM, a)
        assert (leaves == alu.exp2(a)).all() and total == reduce_rows(Reduction.SUM, alu.exp2(a)[None])[0]
        assert reduce(Reduction.DOT, a, b)[0] == reduce_rows(Reduction.SUM, alu.multiply(a, b)[None])[0]


@pytest.mark.parametrize(
    "function, code", [(L.less, AluOp.VCMPLT), (L.greater, AluOp.VCMPGT), (L.equal, AluOp.VCMPEQ)]
)
def test_where_element_by_element(function, code):
    operands, y = run(lambda x, w: L.where(function(x, w), -x, w), {"x": (9, 33), "w": (33,)}, specials=True)
    for i, j in np.ndindex(9, 33):
        x, w = word(operands["x"][i, j]), word(operands["w"][j])
        chosen = alu.execute(AluOp.VNEG, x, None, None)[0] if alu.execute(code, x, w, None)[1][0] else w
        assert y[i, j] == e8m15.to_fp16(alu.execute(AluOp.VMOV, chosen, None, None)[0])[0]


def test_fma_rounds_once():
    operands, y = run(lambda x, w: L.fma(x, w, 1.0), {"x": (4, 40), "w": (40,)})
    x = e8m15.from_fp16(operands["x"].reshape(-1))
    w = e8m15.from_fp16(np.broadcast_to(operands["w"], (4, 40)).reshape(-1))
    want = e8m15.to_fp16(alu.fma(x, w, np.full(160, 0x3F8000, np.uint32)))
    assert (y.reshape(-1) == want).all()


@pytest.mark.parametrize("axes, w", [((N,), (6,)), ((M, 1), (4, 1)), ((1,), (1,)), ((1, N), (1, 6))])
def test_operands_repeat_as_in_numpy(axes, w):
    operands, y = run(lambda x, w: x - w, {"x": (2, 4, 6), "w": w, "axes": axes})
    full = np.ascontiguousarray(np.broadcast_to(operands["w"], (2, 4, 6))).reshape(-1)
    x = e8m15.from_fp16(operands["x"].reshape(-1))
    want = alu.execute(AluOp.VSUB, x, None, e8m15.from_fp16(full))[0]
    assert (y.reshape(-1) == e8m15.to_fp16(want)).all()


def test_one_number_a_row():
    _, rows = run(lambda x, w: L.row_max(x) * 0.5, {"x": (2, 5, 20), "w": (20,)}, out=(M, 1))
    _, full = run(lambda x, w: L.row_max(x) * 0.5, {"x": (2, 5, 20), "w": (20,)})
    assert rows.shape == (2, 5, 1) and (rows == full[..., :1]).all() and (full == full[..., :1]).all()


@pytest.mark.parametrize(
    "value, shapes, out, message",
    [
        (lambda x, w: x + w, {"x": (4, 6), "w": (4,), "axes": (M,)}, (M, N), r"do not make one shape: y \[4, 6\], x \[4, 6\], w \[4\]"),
        (lambda x, w: x + 1, {"x": (4, 6), "w": (6,)}, (M, 1), "one element a row and the value differs within a row"),
        (lambda x, w: L.row_sum(x) + w, {"x": (4, 6), "w": (6,)}, (M, 1), "the value differs within a row"),
        (lambda x, w: x, {"x": (4, 6), "w": (6,)}, (N,), "do not make one shape"),
    ],
)
def test_shapes_that_do_not_go_together(value, shapes, out, message):
    with pytest.raises(KernelError, match=message):
        run(value, shapes, out=out)
