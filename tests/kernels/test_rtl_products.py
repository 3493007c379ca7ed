"""Products of every family on the gates: the interpreter's bytes on mm_mesh and quad, and the model's flits and cycles."""

import sys
from pathlib import Path

import pytest

from kohakutpu import kernels as K
from kohakutpu.compiler import Options
from kohakutpu.machine import load

sys.path.insert(0, str(Path(__file__).parent))
from on_gates import equal_on_gates  # noqa: E402
from test_plane import channels_first, edges  # noqa: E402

X, GATED = {"x": (20, 70), "w": (24, 70)}, {"x": (12, 64), "wg": (20, 64), "wu": (20, 64)}
RESIDUAL = X | {"r": (20, 24)}
SMALL, HOST = {"gm": 3, "gn": 4, "nk": 1}, Options(relayout="host")
CASES = {
    "matmul": (K.matmul, {"a": (45, 100), "b": (37, 100)}, {"gm": 2, "gn": 3, "nk": 1}, Options()),
    "matmul preq": (K.matmul, {"a": (45, 100), "b": (37, 100)}, {"gm": 4, "gn": 4, "nk": 2}, Options(preq=("a", "b"))),
    "bmm": (K.bmm, {"a": (2, 9, 40), "b": (2, 13, 40)}, SMALL, Options()),
    "linear_silu": (K.linear_silu, {"x": (12, 70), "w": (16, 70)}, SMALL, Options()),
    "linear_bias_act": (K.linear_bias_act, {"x": (12, 70), "w": (16, 70), "b": (16,)}, SMALL | {"act": "gelu"}, Options()),
    "linear_add_act": (K.linear_add_act, RESIDUAL, SMALL, Options()),
    "linear_gate_add": (K.linear_gate_add, RESIDUAL | {"g": (20, 24)}, SMALL, Options()),
    "swiglu": (K.swiglu, GATED, {"gm": 3, "gn": 5, "nk": 1}, Options()),
    "mlp": (K.mlp, {"x": (20, 64), "up": (64, 64), "down": (16, 64)}, {"gm": 2, "gn": 8, "nk": 1}, Options()),
    "mlp host": (K.mlp, {"x": (20, 64), "up": (40, 64), "down": (16, 40)}, SMALL, HOST),
    "gated_mlp": (K.gated_mlp, {"x": (9, 32), "gate": (32, 32), "up": (32, 32), "down": (8, 32)}, {"gm": 2, "nk": 1},
                  Options()),
    "conv2d": (K.conv2d, {"x": (3, 4, 40), "w": (12, 576)}, {"gm": 4, "gn": 3}, Options()),
    "conv2d_bias": (K.conv2d_bias, {"x": (2, 3, 32), "w": (8, 288), "b": (8,)}, {"gm": 5, "gn": 2}, Options()),
    "plane, own kernel": (edges, {"x": (3, 3, 64), "w": (12, 576), "b": (12,)}, {"gm": 4, "gn": 3}, Options()),
    "plane, second operand": (channels_first, {"x": (3, 4, 40), "w": (8, 576)}, {"gm": 2, "gn": 3}, Options()),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["mm_mesh", "quad"])
@pytest.mark.parametrize("name", CASES)
def test_gates_have_the_interpreters_bytes_and_the_models_cycles(name, machine):
    kernel, shapes, knobs, options = CASES[name]
    equal_on_gates(kernel, shapes, load(machine), knobs, options)
