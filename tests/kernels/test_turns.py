"""Tilings in which clusters and vector cores take turns: the interpreter's bytes on the cycle models, or a refusal by name."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kohakutpu import lang as L
from kohakutpu.cli.main import main
from kohakutpu.compiler import CannotFuse, Options, compile_kernel
from kohakutpu.compiler.predict import predict
from kohakutpu.host.simulate import run_reference
from kohakutpu.kernels.linear import product
from kohakutpu.lang import KernelError, dims, kernel, loop, units
from kohakutpu.machine import load

sys.path.insert(0, str(Path(__file__).parent))
import turns  # noqa: E402
from running import equal_bytes, operands_of  # noqa: E402

M, K, N = dims("M, K, N")
C, V = "cluster", "vector"
GATED = {"x": (13, 40), "w": (21, 40), "r": (13, 21), "b": (21,)}
TWICE = {"x": (2, 13, 40), "w": (21, 40), "r": (2, 13, 21), "b": (21,)}
MLP = {"x": (13, 64), "up": (64, 64), "down": (64, 64)}
SOFTMAX = {"x": (2, 13, 40), "w": (32, 40), "b": (32,)}
PLAIN = {"x": (13, 70), "w": (21, 70)}
BATCHED = {"x": (3, 13, 70), "w": (21, 70)}
CASES = {  # kernel, shapes, knobs, units of the stages
    "cluster to vector": (turns.product_then_gate, GATED, {}, [C, V]),
    "batched": (turns.product_then_gate, TWICE, {}, [C, V]),
    "staged": (turns.product_then_gate, GATED, {"fuse": False}, [C, V]),
    "vector to cluster": (turns.scaled_operand, {"x": (13, 64), "w": (21, 64)}, {}, [V, C]),
    "vector to cluster, batched": (turns.scaled_operand, {"x": (2, 9, 64), "w": (21, 64)}, {"nk": 2}, [V, C]),
    "parts to cluster": (turns.parts_of_an_operand, {"x": (13, 64), "w": (21, 64)}, {}, [V, C]),
    "there and back": (turns.mlp_in_one, MLP, {"gn": 16}, [C, V, V, C]),
    "there and back, staged": (turns.mlp_in_one, MLP, {"fuse": False}, [C, V, V, C]),
    "there and back, batched": (turns.mlp_in_one, MLP | {"x": (2, 6, 64)}, {"gn": 16}, [C, V, V, C]),
    "row sums": (turns.softmax_in_one, SOFTMAX | {"x": (6, 40)}, {}, [C, V, V, C, V]),
    "row sums, staged": (turns.softmax_in_one, SOFTMAX, {"fuse": False}, [C, V, V, C, V]),
    "loop inside": (turns.running_mean, PLAIN, {"gn": 6, "turns": 2}, [V, C, V, V, C, V, V]),
    "loop inside, staged": (turns.running_mean, BATCHED, {"fuse": False, "turns": 2}, [V, C, V, V, C, V, V]),
    "loop outside": (turns.row_by_row, PLAIN, {}, [C, V, C, V]),
    "loop outside, batched": (turns.row_by_row, BATCHED, {"gm": 3}, [C, V, C, V]),
    "parts by turns": (turns.parts_by_turns, {"x": (2, 5, 32), "w": (9, 32)}, {}, [V, V, V, V, V, C]),
    "ragged": (turns.triangle, {"x": (11, 70), "w": (12, 70)}, {}, [V, C, V]),
    "no product": (turns.elementwise_tiles, {"x": (2, 13, 21), "r": (2, 13, 21)}, {}, [V]),
    "turns of elementwise work": (turns.elementwise_turns, {"r": (2, 13, 21)}, {}, [V, V]),
    "in place, outside": (turns.rows_in_place, PLAIN, {}, [V, C, V, V, C, V, V]),
    "some again": (turns.first_row_again, {"r": (2, 13, 21)}, {}, [V, V, V, V]),
}  # fmt: skip


@pytest.mark.parametrize("machine", ["mm_mesh", "quad", "ship_3x2"])
@pytest.mark.parametrize("name", CASES)
def test_models_have_the_interpreters_bytes(name, machine):
    made, shapes, knobs, stages = CASES[name]
    vectors = len(load(machine).vectors)
    if made in (turns.mlp_in_one, turns.running_mean) and knobs.get("fuse", True) and vectors < 4:
        with pytest.raises(CannotFuse, match="instances on 1 vector core"):
            compile_kernel(made, load(machine), shapes, knobs)
        return
    artifact, run = equal_bytes(made, shapes, machine, knobs, specials=0.02)
    assert [stage.unit for stage in artifact.stages] == stages
    assert predict(artifact, load(machine)).cycles == pytest.approx(run.cycles, rel=0.2)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("options", [Options(constants="arrays", bands=False), Options(relayout="host")], ids=["arrays", "host"])
def test_options_change_nothing_of_it(name, options):
    made, shapes, knobs, _ = CASES[name]
    knobs = knobs | {"fuse": False} if options.constants == "arrays" else knobs
    equal_bytes(made, shapes, "ship_3x2", knobs, options, specials=0.02)


def test_statements_that_do_not_depend_share_the_clusters():
    """Two products and elementwise work beside them that needs neither: one stage of each."""

    @kernel
    def made(x=L.In(M, K), w=L.In(N, K), r=L.In(M, N), y=L.Out(M, N), z=L.Out(M, N), o=L.Out(M, N), *, gm=2, gn=2, nk=1):
        with units(x.tiles(gm), w.tiles(gn)) as (i, j):
            y[i, j] <<= product(x, w, i, j, gm, gn, nk)
            o[i, j] <<= r[i, j] * r[i, j]
            z[i, j] <<= product(x, w, i, j, gm, gn, nk)

    artifact, _ = equal_bytes(made, PLAIN | {"r": (13, 21)}, "quad")
    assert [(stage.unit, stage.statements) for stage in artifact.stages] == [(C, (0, 1, 2, 4, 5, 6)), (V, (3,))]


@pytest.mark.parametrize("last", ["plain", "fused"])
def test_stores_to_one_tile_are_in_the_order_of_the_source_without_fusing(last):
    """What goes through a temp is stored later than what a cluster stores, unless that comes later in the source."""

    @kernel
    def made(x=L.In(..., M, K), w=L.In(N, K), y=L.Out(..., M, N), *, gm=2, gn=2, nk=1):
        with units(x.tiles(gm), w.tiles(gn)) as (i, j):
            if last == "plain":
                y[i, j] <<= product(x, w, i, j, gm, gn, nk) * 0.5
            y[i, j] <<= product(x, w, i, j, gm, gn, nk)
            if last == "fused":
                y[i, j] <<= product(x, w, i, j, gm, gn, nk) * 0.5

    artifact, _ = equal_bytes(made, PLAIN, "quad", {"fuse": False})
    assert [stage.unit for stage in artifact.stages] == {"plain": [C, V, C], "fused": [C, V]}[last]
    with pytest.raises(KernelError, match=r"the tile \(0, 0\) of y is written twice in one tiling"):
        compile_kernel(made, load("quad"), PLAIN)


@pytest.mark.parametrize("name", ["loop outside, batched", "in place, outside", "parts by turns", "ragged", "some again"])
def test_every_element_has_the_statement_that_wrote_it(name):
    made, shapes, knobs, _ = CASES[name]
    artifact = compile_kernel(made, load("quad"), shapes, knobs)
    wanted = run_reference(made, knobs, operands_of(shapes), load("quad")).writers
    for output, statements in wanted.items():
        found = [artifact.writer_of(output, index)[0].id for index in np.ndindex(statements.shape)]
        assert np.array_equal(np.reshape(found, statements.shape), statements)


# ---- any program ------------------------------------------------------------------------------------------

TARGETS = ("t0", "t1", "t2", "y", "z")
STORES = ("product", "fused", "again", "fused again", "vector", "vector", "vector")
temps = st.sampled_from(TARGETS[:3])
steps = st.tuples(st.sampled_from(STORES), st.sampled_from(TARGETS), temps, st.sampled_from(("r", *TARGETS)))


def program(first, looped, last, begun):
    """A kernel of these steps, each of which stores to its first buffer; `looped` twice over. `begun` have values before."""

    def made(x=L.In(..., M, K), w=L.In(N, K), v=L.In(N, N), r=L.In(..., M, N), y=L.Out(..., M, N), z=L.Out(..., M, N),
             o=L.Out(..., M, N), *, gm=2, gn=2, nk=1):  # fmt: skip
        held = {"r": r, "y": y, "z": z} | {name: L.temp(M, N) for name in ("t0", "t1", "t2")}
        for name in begun:
            held[name] <<= r * 0.5

        def product_of(a, b):
            acc = L.tile(gm, gn, nk)
            for k in loop(a.chunks32(nk)):
                acc += a[a.tiles(gm).at(i), k] @ b[b.tiles(gn).at(j), k]
            return acc

        def step(kind, target, source, other):
            part = held[target][i, j]
            if kind == "vector":
                part <<= L.maximum(held[source][i, j] * 0.5, held[other][i, j])
                return
            acc = product_of(held[source], v) if "again" in kind else product_of(x, w)
            part <<= L.minimum(acc, 2.0) * 0.5 if "fused" in kind else acc

        with units(r.tiles(gm), r.columns(gn)) as (i, j):
            for one in first:
                step(*one)
            if looped:
                for _ in loop(2):
                    for one in looped:
                        step(*one)
            for one in last:
                step(*one)
        with units(r.tiles(gm), r.columns(gn)) as (i, j):  # everything is used
            acc = product_of(x, w)
            for k in loop(held["t0"].chunks32(nk)):
                acc += held["t0"][i, k] @ v[v.tiles(gn).at(j), k]
            o[i, j] <<= acc

    return kernel(made)


@st.composite
def programs(draw):
    def few(most):
        return draw(st.lists(steps, min_size=most - 1, max_size=most))

    looped = few(2) if draw(st.booleans()) else []
    begun = TARGETS if draw(st.integers(0, 7)) else draw(st.sets(st.sampled_from(TARGETS)))
    made = program(few(2), looped, few(2), begun)
    rows, columns, depth = draw(st.integers(1, 14)), draw(st.sampled_from([32, 32, 64, 64, 24])), draw(st.integers(1, 40))
    lead = (2,) if draw(st.integers(0, 3)) == 0 else ()
    shapes = {"x": (*lead, rows, depth), "w": (columns, depth), "v": (columns, columns), "r": (*lead, rows, columns)}
    knobs = {"gm": draw(st.integers(2, 4)), "gn": draw(st.sampled_from([8, 8, 8, 4])), "fuse": draw(st.booleans())}
    return made, shapes, knobs, draw(st.sampled_from(["quad", "ship_3x2"])), draw(st.booleans())


def examine(examples):
    """That many random tilings; how many ran, with how many stages at most."""
    ran, refused = [], []

    @settings(max_examples=examples, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(programs())
    def each(drawn):
        made, shapes, knobs, machine, bands = drawn
        options = Options(bands=bands)
        try:
            compile_kernel(made, load(machine), shapes, knobs, options)
        except KernelError as error:
            refused.append(error.message)
            assert error.source is not None and not error.message.startswith(("KeyError", "IndexError", "ValueError"))
            return
        artifact, _ = equal_bytes(made, shapes, machine, knobs, options, specials=0.02)
        ran.append([stage.unit for stage in artifact.stages])

    each()
    return ran, refused


def test_any_program_of_few_steps_has_the_interpreters_bytes_or_is_refused():
    ran, refused = examine(100)
    assert len(ran) > 25 and len(refused) > 10
    assert sum(C in stages and V in stages[stages.index(C) :] for stages in ran) > 10
    assert max(stages.count(C) for stages in ran) > 1


@pytest.mark.slow
def test_many_programs():
    examine(1500)


@pytest.mark.parametrize("columns, message", [(32, "reaches index 1 of an axis of 32"), (96, "the result y is incomplete")])
def test_tiles_of_the_second_product_are_as_many_as_of_the_first(columns, message):
    with pytest.raises(ValueError, match=message):
        compile_kernel(turns.mlp_in_one, load("quad"), {"x": (8, 64), "up": (64, 64), "down": (columns, 64)})


def test_a_product_with_ones_has_the_row_sums():
    """Every row of the softmax adds up to 1 but for what MXFP7 and the FP16 of a result lose."""
    random = np.random.default_rng(3)
    operands = {name: random.normal(0, 0.3, shape).astype(np.float16) for name, shape in SOFTMAX.items()}
    y = run_reference(turns.softmax_in_one, {}, operands, load("quad")).outputs["y"].view(np.float16).astype(np.float64)
    assert y.min() > 0 and np.abs(y.sum(axis=-1) - 1).max() < 0.05
