"""K in parts inside a plan: an option of one call, and what it is compiled to is not taken for another's."""

import sys
from pathlib import Path

import numpy as np
import pytest

from kohakutpu.compiler import Options
from kohakutpu.kernels import linear_silu, matmul
from kohakutpu.lang import KernelError
from kohakutpu.session import call

sys.path.insert(0, str(Path(__file__).parent))
from models import numbers, on_model  # noqa: E402

LONG = {"gm": 4, "gn": 4, "nk": 1}


def test_calls_that_differ_in_parts_alone_have_their_own_bytes():
    session = on_model("quad")
    w = session.pin("w", numbers(16, 512, seed=1))

    def made(x):
        whole = call(matmul, a=x, b=w, **LONG).named("whole")
        cut = call(matmul, a=x, b=w, options=Options(ksplit=4), **LONG).named("cut")
        chosen = call(matmul, a=x, b=w, gm=4, gn=4, nk=1, ksplit="auto").named("chosen")
        return whole, cut, chosen, call(linear_silu, x=x, w=w, ksplit=2, **LONG).named("y")

    plan = session.plan(made, x=(16, 512))
    rows = plan.verify(x=numbers(16, 512, seed=2))
    assert len(rows) == 4 and all(row.equal for row in rows)
    found = plan.run(x=numbers(16, 512, seed=2)).outputs
    assert (found["whole"] != found["cut"]).any()
    assert np.abs(found["whole"] - found["cut"]).max() < 0.02
    parts = [step.compilation.trace.ksplit for step in plan.steps]
    assert parts[:2] == [1, 4] and parts[2] > 1 and parts[3] == 2


def test_a_number_of_parts_that_is_none_is_refused_at_the_call():
    session = on_model("quad")
    with pytest.raises(KernelError, match="knob ksplit: expected an integer of at least 1, got 0"):
        session.plan(lambda x: call(matmul, a=x, b=x, ksplit=0), x=(16, 64))
