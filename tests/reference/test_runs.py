"""Tilings whose statements depend on each other, in the interpreter: the same as a tiling for each run."""

import numpy as np
import pytest

from kohakutpu import lang as L
from kohakutpu.kernels.linear import product
from kohakutpu.lang import dims, kernel, loop, units
from kohakutpu.reference import InterpreterError, evaluate, interpret

M, K, N, F = dims("M, K, N, F")


def outcome(made, operands, **knobs):
    trace = made.trace(**knobs)
    extents = made.solve({name: data.shape for name, data in operands.items()})
    exact = evaluate(trace, extents, operands)
    return {name: data for name, data in interpret(trace, extents, operands).outputs.items()}, exact


def same(one, other, operands):
    bits, exact = outcome(one, operands)
    wanted, float64 = outcome(other, operands)
    for name in wanted:
        assert np.array_equal(bits[name], wanted[name]), f"{name} differs in {np.count_nonzero(bits[name] != wanted[name])} places"
        assert np.array_equal(exact[name], float64[name], equal_nan=True), f"{name} differs in float64"
    return bits


def operands(seed=0, **shapes):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(0, 1, shape).astype(np.float16) for name, shape in shapes.items()}


@kernel
def in_one(x=L.In(..., M, K), w=L.In(F, K), v=L.In(N, F), y=L.Out(..., M, N)):
    """Every instance's second product reads what all instances of its row computed."""
    h = L.temp(M, F)
    with units(x.tiles(2), w.tiles(3)) as (i, f):
        h[i, f] <<= L.silu(product(x, w, i, f, 2, 3, 1))
        acc = L.tile(2, 3, 1)
        for k in loop(h.chunks32(1)):
            acc += h[i, k] @ v[v.tiles(3).at(f), k]
        y[i, y.columns(3).at(f)] <<= acc


@kernel
def in_two(x=L.In(..., M, K), w=L.In(F, K), v=L.In(N, F), y=L.Out(..., M, N)):
    h = L.temp(M, F)
    with units(x.tiles(2), w.tiles(3)) as (i, f):
        h[i, f] <<= L.silu(product(x, w, i, f, 2, 3, 1))
    with units(x.tiles(2), v.tiles(3)) as (i, j):
        y[i, j] <<= product(h, v, i, j, 2, 3, 1)


@pytest.mark.parametrize("lead", [(), (3,)])
def test_a_run_begins_when_all_instances_have_done_the_one_before(lead):
    same(in_one, in_two, operands(x=(*lead, 13, 40), w=(24, 40), v=(24, 24)))


def test_accumulators_of_an_instance_outlive_its_turn():
    """Between a product and its fused store all other instances have their turn."""

    @kernel
    def one(x=L.In(M, K), w=L.In(N, K), y=L.Out(M, N), z=L.Out(M, N)):
        with units(x.tiles(1), w.tiles(1)) as (i, j):
            acc = product(x, w, i, j, 1, 1, 1)
            y[i, j] <<= acc * 2
            for k in loop(x.chunks32(1)):
                acc += x[i, k] @ w[j, k]
            z[i, j] <<= L.absolute(acc)

    @kernel
    def two(x=L.In(M, K), w=L.In(N, K), y=L.Out(M, N), z=L.Out(M, N)):
        with units(x.tiles(1), w.tiles(1)) as (i, j):
            y[i, j] <<= product(x, w, i, j, 1, 1, 1) * 2
        with units(x.tiles(1), w.tiles(1)) as (i, j):
            acc = product(x, w, i, j, 1, 1, 1)
            for k in loop(x.chunks32(1)):
                acc += x[i, k] @ w[j, k]
            z[i, j] <<= L.absolute(acc)

    found = same(one, two, operands(x=(9, 70), w=(10, 70)))
    assert len({row.tobytes() for row in found["y"]}) == 9


def test_inside_a_run_an_instance_goes_first_that_stands_first():
    """What a product reads of the same run is what the instances before have written, and nothing of those after."""

    @kernel
    def made(x=L.In(M, K), w=L.In(N, K), y=L.Out(M, N), *, gn=1):
        h = L.temp(M, N)
        with units(x.tiles(1), w.tiles(gn)) as (i, j):
            h[i, j] <<= product(x, w, i, j, 1, gn, 1)
            acc = L.tile(1, gn, 1)
            for k in loop(h.chunks32(1)):
                acc += h[i, k] @ w[j, w.chunks32(1).at(k)]
            y[i, j] <<= acc

    few = operands(x=(4, 32), w=(32, 32))
    with pytest.raises(InterpreterError, match="t1 is read where nothing has been written"):
        outcome(made, few)
    outcome(made, few, gn=8)


def test_a_shorter_instance_waits_for_nobody():
    """Instance i takes i turns: clusters and vector cores in turn, each as long as it has work."""

    @kernel
    def made(x=L.In(M, K), w=L.In(N, K), y=L.Out(M, N)):
        t = L.temp(M, N)
        with units(x.tiles(1)) as i:
            for j in loop(i + 1):
                t[i, t.columns(1).at(j)] <<= product(x, w, i, w.tiles(1).at(j), 1, 1, 1)
                y[i, y.columns(1).at(j)] <<= t[i, t.columns(1).at(j)] * 2
            for j in loop(w.tiles(1)):
                y[i, j] <<= product(x, w, i, j, 1, 1, 1)

    plain = operands(x=(9, 32), w=(12, 32))
    (bits,) = outcome(made, plain)[0].values()

    @kernel
    def whole(x=L.In(M, K), w=L.In(N, K), y=L.Out(M, N)):
        with units(x.tiles(1), w.tiles(1)) as (i, j):
            y[i, j] <<= product(x, w, i, j, 1, 1, 1)

    assert np.array_equal(bits, outcome(whole, plain)[0]["y"])


def test_tiles_of_buffers_of_two_shapes_do_not_meet():
    @kernel
    def made(x=L.In(M, N), r=L.In(K, N), y=L.Out(M, N)):
        with units(x.tiles(2), x.columns(2)) as (i, j):
            y[i, j] <<= x[i, j] * r[r.tiles(2).at(i), j]

    outcome(made, operands(x=(16, 9), r=(16, 9)))
    with pytest.raises(InterpreterError, match=r"r has \[5, 8\] elements where \[8, 8\] are written"):
        outcome(made, operands(x=(16, 9), r=(13, 9)))
