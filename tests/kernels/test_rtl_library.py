"""Vector kernels on the gates: the interpreter's bytes on mm_mesh and quad, and the model's events in its cycles."""

import sys
from pathlib import Path

import pytest

from kohakutpu import lang as L
from kohakutpu.kernels import elementwise, rows
from kohakutpu.kernels.attention import attention
from kohakutpu.lang import dims, kernel
from kohakutpu.machine import load

sys.path.insert(0, str(Path(__file__).parent))
from on_gates import equal_on_gates  # noqa: E402

M, N = dims("M, N")


@kernel
def views(x=L.In(M, N), w=L.In(3, N), y=L.Out(M, N)):
    """Every view, read and written, and a band."""
    t = L.temp(M, N)
    t <<= x * w.repeated()
    head, folded = y.rows_from(0, 6), y.as_rows(16).rows_from(12)
    head <<= t.rows_from(0, 6) + x.rows_from(6).per_group(3)
    folded <<= L.row_sum(t.as_rows(16).rows_from(12)) * x.as_rows(16).rows_from(0, 12)


CASES = [
    (views, {"x": (12, 32), "w": (3, 32)}), (rows.row_stats, {"x": (9, 70)}),
    (rows.group_norm_silu, {"x": (2, 3, 48), "w": (3, 48), "b": (3, 48)}),
    (rows.softmax, {"x": (6, 77)}), (rows.softmax, {"x": (2, 300)}), (rows.row_max, {"x": (3, 2, 20)}),
    (rows.softmax, {"x": (1, 5141)}), (rows.layernorm, {"x": (1, 2700), "w": (2700,), "b": (2700,)}),
    (rows.rmsnorm, {"x": (8, 64), "w": (64,)}), (rows.layernorm, {"x": (5, 40), "w": (40,), "b": (40,)}),
    (rows.group_norm, {"x": (2, 3, 48), "w": (3, 48), "b": (3, 48)}),
    (elementwise.gelu, {"x": (33, 50)}), (elementwise.where, {"c": (9, 70), "a": (9, 70), "b": (9, 70)}),
    (attention, {"q": (10, 32), "k": (32, 32), "v": (16, 32)}),
    (attention, {"q": (5, 32), "k": (160, 32), "v": (8, 160)}),
    (elementwise.fma, {"a": (700,), "b": (700,), "c": (700,)}), (elementwise.div, {"a": (20, 20), "b": (20, 20)}),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["mm_mesh", "quad"])
@pytest.mark.parametrize("made, shapes", CASES, ids=lambda v: getattr(v, "name", ""))
def test_gates_have_the_interpreters_bytes_and_the_models_cycles(made, shapes, machine):
    machine = load(machine)
    knobs = {"gm": 2} if made is attention else {}
    equal_on_gates(made, shapes, machine, knobs)
