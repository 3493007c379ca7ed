"""The parts of K: which contractions are in which, and in what order their sums come together."""

import numpy as np
import pytest

from kohakutpu import lang as L
from kohakutpu.formats import mxfp7
from kohakutpu.formats.accumulator import AccumulatorFormat
from kohakutpu.host.compare import digest
from kohakutpu.kernels.linear import matmul, swiglu
from kohakutpu.lang import dims, kernel
from kohakutpu.reference import interpret
from kohakutpu.reference.exact import evaluate

FORMAT = AccumulatorFormat()
R, C = dims("R, C")


@kernel
def gate(p=L.In(R, C), y=L.Out(R, C)):
    """What swiglu makes of one product that is its gate and its factor."""
    y <<= p * L.silu(p)


ROWS = 32
GIVEN = {"gm": 8, "gn": 8, "nk": 1}
CHUNKS = 7
# Written out: 7 contractions in 1 to 8 parts, and who is added to whom.
ORDERS = {
    1: "0 1 2 3 4 5 6",
    2: ("0 1 2 3", "4 5 6"),
    3: (("0 1 2", "3 4"), "5 6"),
    4: (("0 1", "2 3"), ("4 5", "6")),
    5: ((("0 1", "2 3"), ("4", "5")), "6"),
    6: ((("0 1", "2"), ("3", "4")), ("5", "6")),
    7: ((("0", "1"), ("2", "3")), (("4", "5"), "6")),
    8: ((("0", "1"), ("2", "3")), (("4", "5"), "6")),
}


def operands(depth=32 * CHUNKS, seed=3):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(0, 1, (ROWS, depth)).astype(np.float16) for name in "ab"}


def result(given, **knobs):
    shapes = {name: array.shape for name, array in given.items()}
    return interpret(matmul.trace(**GIVEN | knobs), matmul.solve(shapes), given).outputs["c"]



def blocks(given):
    """Each 32 K's product alone, as an accumulator word: the format's own conversion, of a kernel with one chunk."""
    words = []
    for chunk in range(CHUNKS):
        sides = [given[name][:, 32 * chunk : 32 * chunk + 32].view(np.uint16).reshape(-1, 4, 32) for name in "ab"]
        (qa, sa), (qb, sb) = (mxfp7.quantise(np.ascontiguousarray(side)) for side in sides)
        sums = mxfp7.outer_products(qa, qb).transpose(0, 2, 1, 3).reshape(ROWS, ROWS)
        words.append(FORMAT.from_block(sums, sa.reshape(ROWS, 1), sb.reshape(1, ROWS), mxfp7.ANCHOR))
    return words


def total(order, words):
    """The sum that an order writes out."""
    if isinstance(order, tuple):
        first, second = (total(part, words) for part in order)
        return FORMAT.add(first, second)
    chain = np.zeros((ROWS, ROWS), np.uint32)
    for number in order.split():
        chain = FORMAT.add(chain, words[int(number)])
    return chain


@pytest.mark.parametrize("parts", ORDERS)
def test_the_order_is_the_one_that_is_written(parts):
    given = operands()
    found = result(given, ksplit=parts)
    assert np.array_equal(found, FORMAT.to_fp16(total(ORDERS[parts], blocks(given))))


def test_orders_differ():
    """The check above would see another order: where the brackets are others, so are the bytes."""
    given = operands()
    found = {parts: digest(FORMAT.to_fp16(total(order, blocks(given)))) for parts, order in ORDERS.items()}
    assert found[3] == found[6] and found[4] == found[7] == found[8]  # the same brackets
    assert len(set(found.values())) == 5


def test_chunks_of_several_blocks_stay_together():
    """nk=2 in two parts: blocks 0 to 3 and 4 to 6 and the padding, as nk=1 has them."""
    given = operands()
    assert np.array_equal(result(given, ksplit=2, nk=2), result(given, ksplit=2, nk=1))
    assert not np.array_equal(result(given, ksplit=3, nk=2), result(given, ksplit=3, nk=1))


def test_each_accumulator_has_its_own_parts():
    given = operands()
    shapes = {name: (ROWS, 224) for name in ("x", "wg", "wu")}
    three = {"x": given["a"], "wg": given["b"], "wu": given["b"]}
    trace, extents = swiglu.trace(**GIVEN, ksplit=4), swiglu.solve(shapes)
    found = interpret(trace, extents, three).outputs["y"]
    up = FORMAT.to_fp16(total(ORDERS[4], blocks(given)))
    one = interpret(gate.trace(), gate.solve({"p": up.shape}), {"p": up}).outputs["y"]
    assert np.array_equal(found, one)
    exact = evaluate(trace, extents, three)["y"]
    assert np.median(np.abs(found.view(np.float16) - exact) / np.abs(exact).clip(1e-3)) < 0.1


def test_a_trace_shows_the_parts_where_there_are_several():
    assert "ksplit" not in matmul.trace().knobs and "ksplit" not in matmul.trace(ksplit=1).knobs
    assert matmul.trace(ksplit=3).knobs["ksplit"] == 3 and "ksplit=3" in matmul.trace(ksplit=3).pretty()
