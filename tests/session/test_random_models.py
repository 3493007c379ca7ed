"""Random model functions: every kernel's bytes are the interpreter's, or the plan is refused with the line of a call."""

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kohakutpu.compiler import Options
from kohakutpu.kernels import bmm, flash_attention, gated_mlp, linear_add, linear_silu, linear_transposed, matmul, mlp, rmsnorm, row_sum, softmax, swiglu
from kohakutpu.kernels.elementwise import add, fma, gelu, mul
from kohakutpu.session import SessionError, call, planning

sys.path.insert(0, str(Path(__file__).parent))
from models import numbers, on_model, touched  # noqa: E402

WIDTHS = st.sampled_from([8, 13, 32, 32, 40, 64, 64, 64])
PRODUCTS = {matmul: ("a", "b"), linear_silu: ("x", "w"), linear_transposed: ("x", "w")}
STEPS = [*PRODUCTS, bmm, linear_add, swiglu, mlp, gated_mlp, rmsnorm, softmax, row_sum, add, mul, fma, gelu, flash_attention]


def tiles(draw):
    gm, gn = draw(st.integers(1, 9)), draw(st.sampled_from([8, 8, 8, 16, 3]))
    return {"gm": gm, "gn": gn, "nk": draw(st.integers(1, 2))}


def one(draw, session, values, kernel):
    """A call of `kernel` on a value drawn from `values` and whatever fits it."""
    x = draw(st.sampled_from(values))
    *lead, rows, width = x.shape

    def pinned(*shape):
        return session.pin(f"w{len(session.names)}", numbers(*shape, seed=len(session.names), scale=0.3))

    def like(shape):
        """A value of this shape, or a pinned one."""
        held = [value for value in values if value.shape == tuple(shape)]
        return draw(st.sampled_from(held)) if held and draw(st.integers(0, 3)) else pinned(*shape)

    options = Options(relayout=draw(st.sampled_from(["machine", "machine", "host"])))
    if kernel in PRODUCTS:
        operand, weight = PRODUCTS[kernel]
        if draw(st.booleans()):
            options = Options(preq=(weight,))
        fused = {} if kernel is not linear_silu else {"fuse": draw(st.booleans())}
        return call(kernel, options=options, **{operand: x, weight: pinned(draw(WIDTHS), width)}, **tiles(draw), **fused)
    if kernel is bmm:
        return call(bmm, a=x, b=like((*lead, draw(st.sampled_from([rows, 13, 32])), width)), options=options, **tiles(draw))
    if kernel is linear_add:
        out = draw(WIDTHS)
        return call(linear_add, x=x, w=pinned(out, width), r=like((*lead, rows, out)), options=options, **tiles(draw))
    if kernel is swiglu:
        out = draw(WIDTHS)
        return call(swiglu, x=x, wg=pinned(out, width), wu=pinned(out, width), fuse=draw(st.booleans()), **tiles(draw))
    if kernel in (mlp, gated_mlp):
        hidden, act = draw(WIDTHS), draw(st.sampled_from(["relu", "silu", None]))
        weights = {"up": pinned(hidden, width), "down": pinned(draw(WIDTHS), hidden)}
        weights |= {"gate": pinned(hidden, width)} if kernel is gated_mlp else {}
        return call(kernel, x=x, **weights, act=act, options=options, **tiles(draw))
    if kernel is rmsnorm:
        return call(rmsnorm, x=x, w=like((width,)))
    if kernel is flash_attention:
        keys, out = draw(st.sampled_from([rows, 16, 40])), draw(WIDTHS)
        k, v = like((*lead, keys, width)), like((*lead, out, keys))
        return call(flash_attention, q=x, k=k, v=v, block=32, causal=draw(st.booleans()), gm=draw(st.integers(1, 5)), gn=8, options=options)
    if kernel in (add, mul):
        return call(kernel, a=x, b=like(x.shape), options=options)
    if kernel is fma:
        return call(fma, a=x, b=like(x.shape), c=like(x.shape), options=options)
    return call(kernel, x=x)


def examine(examples, monkeypatch) -> Counter:
    ran = Counter()

    @settings(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.data(), st.sampled_from(["mm_mesh", "quad", "1x1_2+2"]), st.lists(st.integers(1, 2), max_size=1), st.integers(1, 40), WIDTHS)
    def each(data, machine, lead, rows, width):
        session = on_model(machine)
        shape = (*lead, rows, width)

        def model(x):
            values = [x]
            for kernel in data.draw(st.lists(st.sampled_from(STEPS), min_size=1, max_size=5)):
                values.append(one(data.draw, session, values, kernel))
            return values[-1], *(value for value in values[1:-1] if data.draw(st.integers(0, 3)) == 3)

        try:
            plan = session.plan(model, x=shape)
        except SessionError as error:
            assert error.source is not None and error.message
            ran["refused"] += 1
            return
        with touched(monkeypatch) as ends:
            rows = plan.verify(x=numbers(*shape, seed=77))
        wrong = [str(row) for row in rows if not row.equal]
        assert rows and not wrong, wrong[0]
        assert max(ends) <= plan.peak_bytes
        again = plan.run(x=numbers(*shape, seed=78)).outputs
        want = plan.meant(x=numbers(*shape, seed=78))
        assert all((found.view(np.uint16) == want[plan.outputs[name]]).all() for name, found in again.items())
        ran["ran"] += 1
        ran["kernels"] += len(rows)
        for step in plan.steps:
            if isinstance(step, planning.CopyStep):
                ran["copies" if step.cut else "copies into rows" if step.compilation else "copies by the host"] += 1

    each()
    return ran


def test_random_models(monkeypatch):
    ran = examine(12, monkeypatch)
    assert ran["ran"] > 3 and ran["copies"], ran


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_many_random_models(monkeypatch):
    ran = examine(400, monkeypatch)
    print(f"\n{', '.join(f'{count} {what}' for what, count in ran.items())}")
    assert ran["ran"] > 150 and min(ran["copies"], ran["copies by the host"]) > 10, ran
