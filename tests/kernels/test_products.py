"""Products: published flit counts, and copies by the host."""

import numpy as np
import pytest

from kohakutpu import kernels as K
from kohakutpu.compiler import Artifact, CompileError, Options, compile_kernel
from kohakutpu.compiler.predict import predict
from kohakutpu.host.simulate import run_model, run_reference
from kohakutpu.machine import load

# ---- flits, at the published shape and the default knobs ------------------------------------------------

X, GATED = {"x": (64, 128), "w": (64, 128)}, {"x": (64, 128), "wg": (64, 128), "wu": (64, 128)}
RESIDUAL = X | {"r": (64, 64)}
PUBLISHED = {  # spec: kernel and op library, measured word counts; its relayouts go through the host
    "matmul": (K.matmul, {"a": (64, 128), "b": (64, 128)}, {}, 28),
    "linear_silu": (K.linear_silu, X, {}, 312),
    "linear_relu": (K.linear_relu, X, {}, 248),
    "linear_gelu": (K.linear_gelu, X, {}, 448),
    "linear_scale": (K.linear_scale, X, {"s": 2.0}, 176),
    "linear_bias": (K.linear_bias, X | {"b": (64,)}, {}, 236),
    "linear_silu staged": (K.linear_silu_staged, X, {}, 142),
    "linear_add": (K.linear_add, RESIDUAL, {}, 94),
    "linear_add_relu": (K.linear_add_act, RESIDUAL, {"act": "relu"}, 134),
    "linear_add_silu": (K.linear_add_act, RESIDUAL, {"act": "silu"}, 140),
    "linear_add_gelu": (K.linear_add_act, RESIDUAL, {"act": "gelu"}, 175),
    "linear_gate_add": (K.linear_gate_add, RESIDUAL | {"g": (64, 64)}, {}, 118),
    "geglu": (K.geglu, GATED, {}, 398),
    "swiglu": (K.swiglu, GATED, {}, 398),
    "mlp": (K.mlp, {"x": (64, 128), "up": (64, 128), "down": (64, 64)}, {}, 154),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_flits_are_at_most_the_published_ones(name):
    kernel, shapes, knobs, most = PUBLISHED[name]
    artifact = compile_kernel(kernel, load("ship_3x2"), shapes, knobs, Options(relayout="host"))
    assert 0 < artifact.flit_count <= most


# ---- copies by the host --------------------------------------------------------------------------------


@pytest.mark.parametrize("machine, shapes, knobs", [
    ("quad", {"x": (2, 21, 40), "up": (50, 40), "down": (30, 50)}, {"gm": 3, "gn": 5, "nk": 1}),
    ("2x1_6+0", {"x": (21, 40), "up": (50, 40), "down": (30, 50)}, {"gm": 3, "gn": 5, "nk": 1, "act": None}),
])  # fmt: skip
def test_the_host_copies_when_it_is_told_to(machine, shapes, knobs):
    """Shapes that vector cores cannot copy, and a machine without any: refused by default, listed as the host's stage."""
    machine = load(machine)
    with pytest.raises(CompileError, match="relayout='host'"):
        compile_kernel(K.mlp, machine, shapes, knobs)
    made = compile_kernel(K.mlp, machine, shapes, knobs, Options(relayout="host"))
    artifact = Artifact.from_json(made.to_json())
    assert artifact.digest == made.digest and "HOST copies" in artifact.summary()
    random = np.random.default_rng(3)
    operands = {name: random.normal(0, 1, shape).astype(np.float16) for name, shape in shapes.items()}
    got = run_model(artifact, machine, operands).run.outputs
    wanted = run_reference(K.mlp, knobs, operands, machine).outputs
    assert wanted and all((got[name] == wanted[name]).all() for name in wanted)
    stages = [stage.unit for stage in artifact.stages]
    assert stages.count("host") == 1 and predict(artifact, machine).stages[stages.index("host")].cycles > 0
