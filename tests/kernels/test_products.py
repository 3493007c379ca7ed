"""The families of products: published flit counts, and any shape and knob byte-equal or refused by name when compiled."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kohakutpu import kernels as K
from kohakutpu.compiler import Artifact, CompileError, Options, compile_kernel, settle
from kohakutpu.compiler.predict import predict
from kohakutpu.host.simulate import run_model, run_reference
from kohakutpu.lang import Extents, KernelError
from kohakutpu.lang.extents import Expr, names_in
from kohakutpu.machine import load

FAMILIES = {
    kernel.name: kernel for kernel in (
        K.matmul, K.bmm, K.linear_silu, K.linear_relu, K.linear_gelu, K.linear_scale, K.linear_bias, K.linear_bias_act,
        K.linear_add, K.linear_add_act, K.linear_gate_add, K.linear_silu_staged, K.geglu, K.swiglu, K.mlp, K.gated_mlp,
        K.conv2d, K.conv2d_bias, K.conv2d_bias_staged,
    )
}  # fmt: skip

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
    check(K.mlp, machine, shapes, knobs, artifact)
    stages = [stage.unit for stage in artifact.stages]
    assert stages.count("host") == 1 and predict(artifact, machine).stages[stages.index("host")].cycles > 0


# ---- anything -------------------------------------------------------------------------------------------

LENGTHS = st.one_of(st.integers(1, 9), st.integers(1, 72), st.sampled_from([32, 64]))


@st.composite
def calls(draw, kernel):
    """(machine, shapes, knobs, options) for a kernel."""
    names = {name for port in kernel.inputs for extent in port.shape for name in _names(extent)}
    dims = {name: draw(LENGTHS) for name in sorted(names)}
    width = None
    if "conv" in kernel.name:
        height, width = draw(st.integers(1, 6)), draw(st.integers(1, 6)) + 2
        dims |= {"P": (height + 2) * width, "C": draw(st.sampled_from([31, 32, 64])), "N": draw(st.integers(1, 24))}
    lead = tuple(draw(st.lists(st.integers(1, 3), max_size=1)))
    extents = Extents(dims, lead)
    shapes = {port.name: port.logical_shape(extents) for port in kernel.inputs}
    knobs = {}
    for name in ("gm", "gn", "nk"):
        if name in kernel.knobs:
            knobs[name] = draw(st.one_of(st.integers(1, 5), st.sampled_from([8, 16, "auto"])))
    if "act" in kernel.knobs:
        knobs["act"] = draw(st.sampled_from(["relu", "silu", "gelu"]))
    if width is not None:
        knobs["width"] = width
    if draw(st.booleans()):
        knobs["fuse"] = draw(st.booleans())
    if draw(st.booleans()):
        knobs["part"] = draw(st.sampled_from([16, 640, 8192]))
    options = Options(
        lowering=draw(st.sampled_from(["default", "default", "published"])),
        constants=draw(st.sampled_from(["registers", "arrays"])),
        relayout=draw(st.sampled_from(["machine", "host"])),
    )
    if options.lowering == "default" and draw(st.booleans()):
        operands = [port.name for port in kernel.inputs]
        options = Options(preq=(draw(st.sampled_from(operands)),), constants=options.constants, relayout=options.relayout)
    machine = draw(st.sampled_from(["mm_mesh", "quad", "ship_3x2", "2x1_6+0"]))
    return load(machine), shapes, knobs, options


def _names(extent):
    return names_in(extent) if isinstance(extent, Expr) else ()


def check(kernel, machine, shapes, knobs, artifact, constants="registers"):
    random = np.random.default_rng(3)
    operands = {name: random.normal(0, 1, shape).astype(np.float16) for name, shape in shapes.items()}
    got = run_model(artifact, machine, operands, timeout=200_000).run.outputs
    wanted = run_reference(kernel, knobs, operands, machine, constants=constants).outputs
    assert wanted and all((got[name] == wanted[name]).all() for name in wanted)


def examine(kernel, examples):
    """That many calls; how many of them ran."""
    ran = []

    @settings(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(calls(kernel))
    def each(call):
        machine, shapes, knobs, options = call
        try:
            knobs = settle(kernel, machine, shapes, knobs, options)
            artifact = compile_kernel(kernel, machine, shapes, knobs, options)
        except KernelError as error:
            assert str(error)
            return
        check(kernel, machine, shapes, knobs, artifact, options.constants)
        ran.append(knobs)

    each()
    return len(ran)


@pytest.mark.parametrize("name", FAMILIES)
def test_some_calls_of_every_family(name):
    examine(FAMILIES[name], 8)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", FAMILIES)
def test_calls_of_every_family(name):
    assert examine(FAMILIES[name], 300) > 30, "hardly anything ran"
