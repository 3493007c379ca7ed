"""Row kernels: the interpreter's bytes on every machine, at most the published number of flits, and what they mean."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kohakutpu import lang as L
from kohakutpu.compiler import CompileError, Options, compile_kernel
from kohakutpu.host.simulate import run_reference
from kohakutpu.isa import vector
from kohakutpu.kernels import rows
from kohakutpu.lang import KernelError, dims, kernel
from kohakutpu.machine import load

sys.path.insert(0, str(Path(__file__).parent))
from running import equal_bytes, flits, operands_of  # noqa: E402

M, N = dims("M, N")
KERNELS = [rows.row_sum, rows.row_max, rows.row_min, rows.softmax, rows.rmsnorm, rows.layernorm, rows.group_norm,
           rows.row_stats, rows.group_norm_silu]  # fmt: skip
SHAPES = [(64, 64), (5, 77), (2, 9, 50), (3, 300)]


def shapes_of(made, x):
    own = {"w": x[-2:] if made in (rows.group_norm, rows.group_norm_silu) else x[-1:]}
    own["b"] = own["w"]
    return {port.name: own.get(port.name, x) for port in made.inputs}


@pytest.mark.parametrize("machine", ["mm_mesh", "quad", "ship_3x2"])
@pytest.mark.parametrize("made", KERNELS, ids=lambda k: k.name)
def test_library(made, machine):
    for shape in SHAPES[:1] if machine == "ship_3x2" else SHAPES:
        equal_bytes(made, shapes_of(made, shape), machine, {"part": 1024})


@pytest.mark.parametrize("machine", ["mm_mesh", "quad", "ship_3x2"])
@pytest.mark.parametrize("made", KERNELS, ids=lambda k: k.name)
def test_rows_that_do_not_fit_l1(made, machine):
    """More than 320 words of a row: in segments, a pass for each reduction that waits for another."""
    artifact, _ = equal_bytes(made, shapes_of(made, (1, 5200) if machine == "ship_3x2" else (2, 5141)), machine, specials=2e-4)
    runs = [f for r in artifact.rounds for f in r.flits if vector.decode(f.payload).op == vector.Envelope.RUN]
    assert len(runs) > len(artifact.stages[0].nodes)


@pytest.mark.parametrize("made", KERNELS, ids=lambda k: k.name)
def test_special_values(made):
    for shape in ((12, 40), (3, 200)):
        equal_bytes(made, shapes_of(made, shape), "mm_mesh", specials=0.05, seed=3)


@pytest.mark.parametrize(
    "made, published",
    [(rows.softmax, 290), (rows.rmsnorm, 264), (rows.layernorm, 416), (rows.group_norm, 416), (rows.row_sum, 401),
     (rows.group_norm_silu, 964)],
    ids=lambda v: getattr(v, "name", v),
)
def test_flits_at_most_the_published_ones(made, published):
    artifact = compile_kernel(made, load("quad"), shapes_of(made, (64, 64)))
    assert flits(artifact) <= published


@pytest.mark.parametrize("made", KERNELS, ids=lambda k: k.name)
@pytest.mark.parametrize("shape", [(6, 48), (2, 333)])
def test_meaning(made, shape):
    shapes = shapes_of(made, shape)
    operands = operands_of(shapes, seed=5)
    outputs = run_reference(made, {}, operands, load("quad")).outputs
    found = outputs["variance" if made is rows.row_stats else "y"].view(np.float16).astype(np.float64)
    x, w, b = (operands.get(name, np.zeros(1, np.uint16)).view(np.float16).astype(np.float64) for name in "xwb")
    centred = x - x.mean(-1, keepdims=True)
    e = np.exp(x - x.max(-1, keepdims=True))
    normal = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    wanted = {
        "row_sum": x.sum(-1, keepdims=True), "row_max": x.max(-1, keepdims=True), "row_min": x.min(-1, keepdims=True),
        "row_stats": (centred**2).mean(-1, keepdims=True),
        "group_norm_silu": (normal * w + b) / (1 + np.exp(-(normal * w + b))),
        "softmax": e / e.sum(-1, keepdims=True), "rmsnorm": x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w,
        "layernorm": normal * w + b, "group_norm": normal * w + b,
    }[made.name]  # fmt: skip
    assert np.abs(found - wanted).max() <= 3e-3 * np.abs(wanted).max()
    if made is rows.row_stats:
        assert np.abs(outputs["mean"].view(np.float16) - x.mean(-1, keepdims=True)).max() < 2e-3


# ---- any statement over rows --------------------------------------------------------------------------


def leaf(draw, names):
    return draw(st.sampled_from([*names, 0.37, -2.0, 0.0, 1.0, N]))


@st.composite
def values(draw):
    """A function of (x, v, w, s): full, per row, per column, one number."""
    plan = [draw(st.integers(0, 10)) for _ in range(draw(st.integers(1, 9)))]
    picks = [(draw(st.integers(0, 20)), draw(st.integers(0, 20)), draw(st.integers(0, 20))) for _ in plan]

    def value(x, v, w, s):
        made = [x, v, w, s, L.maximum(x, 0.25), 0.37, -2.0, N]
        for step, (i, j, k) in zip(plan, picks, strict=True):
            a, b, c = (made[p % len(made)] for p in (i, j, k))
            a = L.maximum(a, -60000.0) if isinstance(a, (int, float)) or a is N else a
            along = x * 0.5 + a
            made.append(
                [
                    lambda: a + b, lambda: a - b, lambda: a * b, lambda: L.exp2(a), lambda: L.fma(a, b, c),
                    lambda: L.where(L.less(a, b), b, c), lambda: L.row_sum(along), lambda: L.row_max(along * b),
                    lambda: L.row_sum(L.exp2(along)), lambda: L.row_sum(along * (x - b)), lambda: L.recip(a),
                ][step]()
            )  # fmt: skip
        return made[-1] + x * 0.0

    return value


def check_any(value, rows_, columns, lead, machine, part, constants):
    def body(x=L.In(..., M, N), v=L.In(..., M, 1), w=L.In(N), s=L.In(1), y=L.Out(..., M, N), *, part=8192):
        y <<= value(x, v, w, s) + (v + w) * s

    made = kernel(body)
    shapes = {"x": (*lead, rows_, columns), "v": (*lead, rows_, 1), "w": (columns,), "s": (1,)}
    try:
        equal_bytes(made, shapes, machine, {"part": part}, Options(constants=constants), specials=0.02)
    except CompileError as error:
        assert error.source is not None
        return False
    return True


def examples(count, wide=1):
    """`wide`: every so many-th example has a row that does not fit L1."""
    ran = []

    @settings(max_examples=count, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(values(), st.integers(1, 40), st.one_of(st.integers(1, 130), st.integers(1, 700)),
           st.lists(st.integers(1, 3), max_size=2), st.sampled_from(["mm_mesh", "quad"]), st.sampled_from([16, 700, 8192]),
           st.sampled_from(["registers", "arrays"]))  # fmt: skip
    def check(value, rows_, columns, lead, machine, part, constants):
        if len(ran) % wide == 0:
            rows_, columns, lead = 1 + rows_ % 2, 2048 + 8 * columns + rows_, ()
        if rows_ * columns * int(np.prod(lead)) > 20_000:
            rows_, lead = 1 + rows_ % 3, lead[:1]
        ran.append(check_any(value, rows_, columns, tuple(lead), machine, part, constants))

    check()
    assert sum(ran) > 0.8 * len(ran) > 0, f"{sum(ran)} of {len(ran)} compiled"


def test_any_statement_over_rows():
    examples(15, 5)


@pytest.mark.slow
def test_many_statements_over_rows():
    examples(300, 4)


# ---- refusals -----------------------------------------------------------------------------------------


def refused(value, shapes, message, options=Options(), **knobs):  # noqa: B008
    def body(x=L.In(..., M, N), w=L.In(N), y=L.Out(..., M, N), *, part=8192):
        y <<= value(x, w)

    with pytest.raises(KernelError, match=message) as caught:
        compile_kernel(kernel(body), load("quad"), shapes, knobs, options)
    assert caught.value.source.text == "y <<= value(x, w)"
    assert "^^^" in str(caught.value)


def _power(v, times):
    for _ in range(times):
        v = L.exp2(v)
    return v


def test_refusals(monkeypatch):
    small = {"x": (4, 32), "w": (32,)}
    refused(lambda x, w: x - L.row_max(L.row_sum(x)) + w, small, "row_max of a value that is one number a row; use the value itself")
    refused(lambda x, w: x + w, small, "lowering='published' has no row reductions", Options("published"))
    monkeypatch.setattr("kohakutpu.compiler.rowplan.UNROLLED", 40)
    refused(lambda x, w: x + w, {"x": (41, 2), "w": (2,)}, "41 instances of 1 rows, above 40", part=1)

    def many(x, w):
        kept = [x * (n + 0.5) + w for n in range(20)]
        total = L.row_max(x)
        for value in kept:
            total = L.row_sum(value + total)
        for value in kept:
            total = total + value
        return total

    refused(many, small, "keeps more values than 16 vector and|constants other than 0, 1 and -1 in one statement|words of image")

    def deep(x, w):
        kept = [x]
        for _ in range(20):
            kept.append(L.exp2(kept[-1]))
        for value in reversed(kept):
            w = w * value
        return w + L.row_sum(w)

    refused(deep, {"x": (1, 9000), "w": (9000,)}, r"one row of \[1, 9000\] keeps more values than 16 vector and")
    refused(lambda x, w: x + L.row_sum(_power(x, 600)) * w, {"x": (1, 9000), "w": (9000,)}, r"one row of \[1, 9000\] takes \d+ words of image of 512")


def test_numbers_of_a_row_alone():
    """A copy of one number a row, an expression of nothing else, and a result that every element of a wide row shares."""
    def body(x=L.In(M, N), v=L.In(M, 1), s=L.In(1), a=L.Out(M, N), b=L.Out(M, N), c=L.Out(M, N), d=L.Out(M, 1), e=L.Out(M, N)):
        a <<= v
        b <<= L.exp2(v * s) - 0.5
        c <<= L.row_max(x) * s
        d <<= L.row_sum(x * v) + L.row_max(x + s)
        e <<= x * v + s

    for columns in (40, 300, 5200):
        equal_bytes(kernel(body), {"x": (3, columns), "v": (3, 1), "s": (1,)}, "quad", specials=0.01)
