"""What is recorded, and what is refused while it is."""

import math

import numpy as np
import pytest

from kohakutpu import lang as L
from kohakutpu.kernels.linear import linear_add_act, linear_bias, linear_silu, linear_silu_staged
from kohakutpu.lang import KernelError, dims, kernel, loop, units
from kohakutpu.lang.trace import (
    Assign, BufferLeaf, Constant, Contract, ElementOp, Loop, Op, Open, SliceLeaf, Store, TileLeaf, Units,
)  # fmt: skip

M, K, N = dims("M, K, N")


def traced(body, **knobs):
    """The trace of a body over x(..., M, K), w(N, K), r(..., M, N), b(N) and y, z(..., M, N)."""

    def made(
        x=L.In(..., M, K),
        w=L.In(N, K),
        r=L.In(..., M, N),
        b=L.In(N),
        y=L.Out(..., M, N),
        z=L.Out(..., M, N),
        *,
        gm=2,
        gn=2,
        nk=1,
    ):
        body(x, w, r, b, y, z, gm, gn, nk)

    return kernel(made).trace(**knobs)


def tile(x, w, i, j, gm, gn, nk):
    acc = L.tile(gm, gn, nk)
    for k in loop(x.chunks32(nk)):
        acc += x[i, k] @ w[j, k]
    return acc


def value_of(make):
    """The expression that `make(r)` records for a whole buffer."""

    def body(x, w, r, b, y, z, gm, gn, nk):
        y <<= make(r)
        z <<= r

    return traced(body).statements[0].expression


# ---- records ---------------------------------------------------------------------------------------------


def test_the_linear_kernel():
    trace = linear_silu.trace(gm=4, gn=8, nk=2)
    (tiling,) = trace.body
    assert isinstance(tiling, Units) and [str(i) for i in tiling.indices] == ["i", "j"]
    opened, sweep, store = tiling.body
    assert isinstance(opened, Open) and (opened.gm, opened.gn, opened.nk) == (4, 8, 2)
    assert isinstance(sweep, Loop) and isinstance(sweep.body[0], Contract)
    assert sweep.body[0].a.kinds == ("tiles", "chunks32") and sweep.body[0].b.buffer == "w"
    assert isinstance(store, Store) and store.target.kinds == ("tiles", "tiles")
    assert [s.id for s in trace.statements] == [0, 1, 2]
    assert store.expression.text() == "mul(acc1, recip(add(exp2(mul(acc1, -1.4427)), 1)))"
    assert "units i < ceildiv(ceildiv(M, 4), 4), j < ceildiv(ceildiv(N, 4), 8)" in trace.pretty()


def test_sources_name_the_line():
    store = linear_silu.trace().statements[-1]
    assert store.source.file.endswith("linear.py") and "<<= L.silu" in store.source.text
    assert store.source.short.startswith("kohakutpu/kernels/linear.py:")


def test_per_channel_and_whole_leaves():
    (leaf,) = [n for n in linear_bias.trace().statements[-1].expression.leaves if isinstance(n, SliceLeaf)]
    assert leaf.slice.buffer == "b" and leaf.slice.kinds == ("tiles",)
    assign = linear_silu_staged.trace().statements[-1]
    assert isinstance(assign, Assign) and assign.expression.leaves[0] == BufferLeaf("t1")


def test_fresh_names_share_one_count():
    assert linear_silu.trace().fresh == 2  # acc1, k2: a landed tile becomes land3


def ops(expression):
    return [node.op for node in expression.nodes if isinstance(node, Op)]


E = ElementOp


@pytest.mark.parametrize(
    "make, text, expected",
    [
        (lambda v: v + 1, "add(r, 1)", [E.ADD]),
        (lambda v: 1 + v, "add(1, r)", [E.ADD]),
        (lambda v: v - 2.5, "sub(r, 2.5)", [E.SUB]),
        (lambda v: 1 - v, "sub(1, r)", [E.SUB]),
        (lambda v: np.float32(2) * v, "mul(2, r)", [E.MUL]),
        (lambda v: v / 3, "mul(r, recip(3))", [E.RECIP, E.MUL]),
        (lambda v: 3 / v, "mul(3, recip(r))", [E.RECIP, E.MUL]),
        (lambda v: -v, "neg(r)", [E.NEG]),
        (lambda v: abs(v), "abs(r)", [E.ABS]),
        (lambda v: v * M, "mul(r, M)", [E.MUL]),
        (lambda v: L.maximum(v, 0), "max(r, 0)", [E.MAX]),
        (lambda v: L.minimum(1, v), "min(1, r)", [E.MIN]),
        (lambda v: L.exp2(L.log2(v)), "exp2(log2(r))", [E.LOG2, E.EXP2]),
        (lambda v: L.rsqrt(v), "rsqrt(r)", [E.RSQRT]),
        (lambda v: L.relu(v), "max(r, 0)", [E.MAX]),
        (lambda v: L.sigmoid(v), "recip(add(exp2(mul(r, -1.4427)), 1))", [E.MUL, E.EXP2, E.ADD, E.RECIP]),
        (lambda v: v, "r", []),
        (lambda v: 0.5, "0.5", []),
    ],
)
def test_expressions(make, text, expected):
    expression = value_of(make)
    assert expression.text() == text and ops(expression) == expected


def test_gelu_and_silu_are_the_documented_operations():
    assert ops(value_of(L.gelu)) == [E.MUL, E.MUL, E.MUL, E.ADD, E.MUL, E.EXP2, E.ADD, E.RECIP, E.MUL]
    assert ops(value_of(L.silu)) == [E.MUL, E.EXP2, E.ADD, E.RECIP, E.MUL]
    constants = [n.value for n in value_of(L.gelu).leaves if isinstance(n, Constant)]
    assert constants == [0.044715, -2 * math.sqrt(2 / math.pi) * math.log2(math.e), 1.0]


def test_alike_nodes_are_computed_once_and_signed_zeros_are_not_alike():
    expression = value_of(lambda v: L.sigmoid(v) * L.sigmoid(v))
    assert ops(expression) == [E.MUL, E.EXP2, E.ADD, E.RECIP, E.MUL]
    assert expression.nodes[-1].operands == (len(expression.nodes) - 2,) * 2
    assert len([n for n in value_of(lambda v: (v + 0.0) * (v + -0.0)).leaves if isinstance(n, Constant)]) == 2


def test_a_deep_expression_with_sharing_is_linear_in_size():
    def make(v):
        for _ in range(2000):
            v = v * v
        return v

    assert len(value_of(make).nodes) == 2001


def test_two_accumulators_and_an_index_expression():
    def body(x, w, r, b, y, z, gm, gn, nk):
        with units(x.tiles(gm), w.tiles(gn)) as (i, j):
            first = tile(x, w, i, j, gm, gn, nk)
            second = tile(x, w, i, j, gm, gn, nk)
            y[i, j] <<= first * second
            z[i * 1, j] <<= second

    stores = [s for s in traced(body).statements if isinstance(s, Store)]
    assert [leaf.accumulator for leaf in stores[0].expression.leaves] == ["acc1", "acc3"]
    assert isinstance(stores[1].expression.nodes[0], TileLeaf) and stores[1].expression.is_copy


# ---- refusals --------------------------------------------------------------------------------------------


def in_units(statement):
    def body(x, w, r, b, y, z, gm, gn, nk):
        with units(x.tiles(gm), w.tiles(gn)) as (i, j):
            acc = tile(x, w, i, j, gm, gn, nk)
            statement(x, w, r, b, y, z, i, j, acc)

    return body


def at_top(statement):
    return lambda x, w, r, b, y, z, gm, gn, nk: statement(x, w, r, b, y, z)


def set_item(y, i, j, value):
    y[i, j] = value


def store(target, value):
    target <<= value


def accumulate(acc, value):
    acc += value


def leave_early(x, w, r, b, y, z):
    for _ in loop(3):
        break
    y <<= r


REFUSED = [
    (in_units(lambda x, w, r, b, y, z, i, j, acc: store(y[i, j], r[r.tiles(1).at(i), j] * 2)), "does not meet the tile"),
    (in_units(lambda x, w, r, b, y, z, i, j, acc: store(y[i, j], acc + r)), "r stands for the whole buffer"),
    (in_units(lambda x, w, r, b, y, z, i, j, acc: store(y[i, j], acc + b[i])), "the index i divides an axis of M"),
    (in_units(lambda x, w, r, b, y, z, i, j, acc: store(y[i, j], acc + r[i, j + 1])), "does not meet the tile"),
    (in_units(lambda x, w, r, b, y, z, i, j, acc: store(y[i, j], acc + r[i, r.columns(2).at(0)])),
     r"r\[i, 0\] does not meet the tile that is written: it must be indexed like y"),
    (in_units(lambda x, w, r, b, y, z, i, j, acc: store(y[i, y.columns(2).at(0)], acc + r[i, j])), "does not meet the tile"),
    (in_units(lambda x, w, r, b, y, z, i, j, acc: store(y[i, j], L.tile(2, 2, 1))), "before anything was accumulated"),
    (in_units(lambda x, w, r, b, y, z, i, j, acc: store(y[i, j], L.tile(4, 2, 1))),
     "y is tiled 2x2 and the accumulator is 4x2"),
    (in_units(lambda x, w, r, b, y, z, i, j, acc: store(y[i, j], acc * L.tile(2, 4, 1))),
     "must have one shape: acc1 2x2, acc3 2x4"),
    (in_units(lambda x, w, r, b, y, z, i, j, acc: set_item(y, i, j, acc)), r"y\[\.\.\.\] = value stores nothing"),
    (in_units(lambda x, w, r, b, y, z, i, j, acc: store(y, acc)), "stands outside units"),
    (in_units(lambda x, w, r, b, y, z, i, j, acc: accumulate(acc, r[i, j])), "takes a product"),
    (in_units(lambda x, w, r, b, y, z, i, j, acc: acc @ acc), "@ contracts two operand slices"),
    (in_units(lambda x, w, r, b, y, z, i, j, acc: x[i, j]), "the index j divides an axis of N, and this one has K"),
    (in_units(lambda x, w, r, b, y, z, i, j, acc: x[i]), r"x has 2 axes and is indexed by \(tiles\)"),
    (in_units(lambda x, w, r, b, y, z, i, j, acc: x[0, 1]), "expected an index of an open tiling or loop"),
    (in_units(lambda x, w, r, b, y, z, i, j, acc: x[i + j, j]), "expected an index"),
    (in_units(lambda x, w, r, b, y, z, i, j, acc: store(x[i, i], acc)),
     "the index i divides an axis of M, and this one has K"),
    (in_units(lambda x, w, r, b, y, z, i, j, acc: bool(acc)), "cannot branch on it"),
    (in_units(lambda x, w, r, b, y, z, i, j, acc: acc + i), "an index cannot be a value"),
    (in_units(lambda x, w, r, b, y, z, i, j, acc: acc + "1"), "cannot stand in an elementwise expression"),
    (in_units(lambda x, w, r, b, y, z, i, j, acc: acc + True), "cannot stand in an elementwise expression"),
    (in_units(lambda x, w, r, b, y, z, i, j, acc: acc * math.inf), "inf cannot be a constant"),
    (at_top(lambda x, w, r, b, y, z: L.tile(2, 2)), "an accumulator belongs to one instance"),
    (at_top(lambda x, w, r, b, y, z: store(x, r)), "x is an input port"),
    (at_top(lambda x, w, r, b, y, z: store(y, z)), "z is read before anything was written"),
    (at_top(lambda x, w, r, b, y, z: store(y, r @ r)), "@ contracts two operand slices"),
    (at_top(lambda x, w, r, b, y, z: store(y, r)), "never writes z"),
    (at_top(lambda x, w, r, b, y, z: b.chunks32(1)), r"b\(N\): this needs 2 axes"),
    (at_top(lambda x, w, r, b, y, z: L.temp(...)), "a temp is `...` alone exactly when the ports are"),
    (at_top(lambda x, w, r, b, y, z: list(loop(0))), "a tiling or loop of 0 steps"),
    (at_top(lambda x, w, r, b, y, z: list(loop("3"))), "expected buffer.tiles"),
    (at_top(lambda x, w, r, b, y, z: units()), "units needs at least one axis"),
    (at_top(lambda x, w, r, b, y, z: units(3, 4, names=("a",)).__enter__()), "2 axes and 1 names"),
    (at_top(leave_early), "left early"),
    (at_top(lambda x, w, r, b, y, z: None), "does nothing: .* y <<= value writes a buffer, and y = value"),
]  # fmt: skip


def test_a_weight_stored_the_other_way_round_is_refused_with_the_way_to_write_it():
    def body(x, w, y):
        with units(x.tiles(2), w.columns(2)) as (i, j):
            acc = L.tile(2, 2, 1)
            for k in loop(x.chunks32(1)):
                acc += x[i, k] @ w[k, j]
            y[i, j] <<= acc

    def tiled(x=L.In(M, K), w=L.In(K, N), y=L.Out(M, N)):
        body(x, w, y)

    with pytest.raises(KernelError, match=r"last axis of both operands; store it \[out\]\[in\] and write w\[j, k\]"):
        kernel(tiled).trace()


@pytest.mark.parametrize("body, reason", REFUSED, ids=[reason[:40] for _, reason in REFUSED])
def test_refused_with_the_line(body, reason):
    with pytest.raises(KernelError, match=reason) as caught:
        traced(body)
    assert caught.value.source.file.endswith(("test_trace.py", "linear.py")) and "^" in str(caught.value)


def test_a_name_that_became_an_expression_takes_no_product():
    def body(x, w, r, b, y, z, gm, gn, nk):
        with units(x.tiles(gm), w.tiles(gn)) as (i, j):
            acc = tile(x, w, i, j, gm, gn, nk)
            acc = acc * 2
            for k in loop(x.chunks32(nk)):
                acc += x[i, k] @ w[j, k]

    with pytest.raises(KernelError, match="holds an expression, not the accumulator"):
        traced(body)


@pytest.mark.parametrize(
    "gm, gn, nk, reason",
    [
        (4, 2, 1, "the accumulator has gm=4"),
        (2, 4, 1, "the accumulator has gn=4"),
        (2, 2, 2, "the accumulator has nk=2"),
    ],
)
def test_operands_must_be_cut_as_the_accumulator(gm, gn, nk, reason):
    def body(x, w, r, b, y, z, *_):
        with units(x.tiles(2), w.tiles(2)) as (i, j):
            acc = L.tile(gm, gn, nk)
            for k in loop(x.chunks32(1)):
                acc += x[i, k] @ w[j, k]

    with pytest.raises(KernelError, match=reason):
        traced(body)


def test_contracted_axes_must_be_the_same():
    def body(x, w, r, b, y, z, gm, gn, nk):
        with units(x.tiles(gm), w.tiles(gn)) as (i, _j):
            acc = L.tile(gm, gn, nk)
            for k in loop(x.chunks32(nk)):
                for m in loop(r.chunks32(nk)):
                    acc += x[i, k] @ r[i, m]

    with pytest.raises(KernelError, match="last axes, which differ: x K, r N"):
        traced(body)


def test_an_index_ends_with_its_loop():
    def body(x, w, r, b, y, z, gm, gn, nk):
        with units(x.tiles(gm), w.tiles(gn)) as (i, j):
            acc = tile(x, w, i, j, gm, gn, nk)
            (k,) = loop(x.chunks32(nk))
            acc += x[i, k] @ w[j, k]

    with pytest.raises(KernelError, match="used outside the tiling or loop"):
        traced(body)


def test_indices_and_dims_keep_apart():
    i, j, m2 = dims("i, j, m2")

    @kernel
    def made(x=L.In(i, m2), w=L.In(j, m2), y=L.Out(i, j)):
        with units(x.tiles(1), w.tiles(1)) as (a, b):
            acc = L.tile(1, 1, 1)
            for c in loop(x.chunks32(1)):
                acc += x[a, c] @ w[b, c]
            y[a, b] <<= acc

    (tiling,) = made.trace().body
    assert [index.name for index in tiling.indices] == ["k", "l"] and tiling.body[1].index.name == "m3"

    @kernel
    def named(x=L.In(i), y=L.Out(i)):
        with units(x.parts(16), names=("i",)) as e:
            y[e] <<= x[e]

    with pytest.raises(KernelError, match="the index i has the name of a dim"):
        named.trace()


def test_an_index_name_is_open_once():
    def body(x, w, r, b, y, z, gm, gn, nk):
        with units(x.tiles(gm), names=("a",)):
            list(loop(3, name="a"))

    with pytest.raises(KernelError, match="the index a is open already"):
        traced(body)


def test_kernel_syntax_outside_a_kernel():
    with pytest.raises(KernelError, match="outside a kernel"):
        L.temp(M)


# ---- names of indices, and traces that are kept -------------------------------------------------------------


def test_many_loops_inside_each_other():
    """More than there are letters; and a name that is taken is not chosen again."""

    def nested(depth, r, y):
        if not depth:
            y <<= r
        for _ in loop(1) if depth else ():
            nested(depth - 1, r, y)

    def body(x, w, r, b, y, z, gm, gn, nk):
        nested(40, r, y)
        for _ in loop(2, name="j"):
            with units(x.tiles(gm), w.tiles(gn)) as (i, j):
                z[i, j] <<= tile(x, w, i, j, gm, gn, nk)

    deep, named = traced(body).body
    names = []
    while isinstance(deep, Loop):
        names.append(deep.index.name)
        (deep,) = deep.body
    assert len(names) == len(set(names)) == 40 and not {"M", "K", "N"} & set(names)
    assert [index.name for index in named.body[0].indices] == ["k", "l"]


@pytest.mark.parametrize("name", ["", "a b", "1", 5])
def test_an_index_is_named_by_an_identifier(name):
    def body(x, w, r, b, y, z, gm, gn, nk):
        for _ in loop(2, name=name):
            y <<= r

    with pytest.raises(KernelError, match="an index is named by an identifier, not ") as caught:
        traced(body)
    assert "loop(2, name=name)" in str(caught.value)


def test_a_knob_that_prints_alike_is_not_another_knobs_trace():
    """`repr` of a long array leaves its middle out, and what a list holds may change."""

    def made(x=L.In(M, N), y=L.Out(M, N), *, numbers=None):
        y <<= x + L.table(numbers)

    made = kernel(made)
    zeros, marked = np.zeros(2000), np.zeros(2000)
    marked[1000] = 1
    assert repr(zeros) == repr(marked)
    found = [made.trace(numbers=array).buffers["table1"].contents((2000,)) for array in (zeros, marked, (zeros,), (marked,))]
    assert [int(np.count_nonzero(contents)) for contents in found] == [0, 1, 0, 1]
    assert made.trace(numbers=(1, 2.0)) is made.trace(numbers=(1, 2.0)) is not made.trace(numbers=(1, 2))


def test_a_refusal_without_a_line_gets_the_kernels_own():
    """A helper that refuses a knob knows no line; the one that called it is underlined, not its `raise`."""
    with pytest.raises(KernelError, match=r"act='tanh' is none of 'relu', 'silu', 'gelu'") as caught:
        linear_add_act.trace(act="tanh")
    assert caught.value.source.text == "y <<= activation(act)(t + r)"


@pytest.mark.parametrize("compare", [
    lambda r: r > 0, lambda r: r >= 0, lambda r: 0 < r, lambda r: r <= 0, lambda r: r == 0, lambda r: r != 0, lambda r: r * 2 == r,
    lambda r: max(r, 0), lambda r: 0 in [r],
])  # fmt: skip
def test_values_are_not_compared_in_python(compare):
    """`==` above all: it would be False, and choose a branch in silence."""

    def body(x, w, r, b, y, z, gm, gn, nk):
        y <<= L.where(compare(r), r, 0.0)
        z <<= r

    with pytest.raises(KernelError, match="to choose element by element write where.less.a, b., t, f."):
        traced(body)
