"""Any shape, any knob, any machine: a kernel compiles to something legal or is refused by name."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kohakutpu.compiler import CompileError, Options, compile_kernel
from kohakutpu.isa import cluster, vector
from kohakutpu.kernels import linear
from kohakutpu.lang import Extents, KernelError
from kohakutpu.machine import Dram, load
from kohakutpu.reference import Constants, interpret

from . import kernels
from .conftest import build_machine
from .test_elementwise import run_core
import itertools

LIBRARY = [linear.matmul, linear.linear_silu, linear.linear_gelu, linear.linear_bias, linear.linear_add, linear.geglu,
           linear.linear_silu_staged, kernels.two_results, kernels.row_of_tiles, kernels.computed_operand, kernels.flat,
           kernels.temps, kernels.parts, kernels.constants]  # fmt: skip

sizes = st.one_of(st.integers(1, 8), st.integers(1, 100), st.sampled_from([32, 64, 128]))
groups = st.one_of(st.integers(1, 4), st.integers(1, 20), st.integers(1, 300))


@st.composite
def calls(draw, small=False):
    """A kernel with shapes, knobs and options."""
    kernel = draw(st.sampled_from(LIBRARY))
    dims = {name: draw(st.integers(1, 40) if small else sizes) for name in ("M", "K", "N")}
    lead = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    if any(port.whole for port in kernel.inputs):
        shapes = {port.name: lead + (dims["M"],) for port in kernel.inputs}
    else:
        shapes = {port.name: port.logical_shape(Extents(dims, lead)) for port in kernel.inputs}
    knobs = {}
    for name in kernel.knobs:
        if name in ("gm", "gn", "nk"):
            knobs[name] = draw(st.integers(1, 4) if small else groups)
        elif name in ("part", "p"):
            knobs[name] = draw(st.sampled_from([16, 100, 640, 1024, 8192]))
    if draw(st.booleans()):
        knobs["fuse"] = draw(st.booleans())
    options = Options(draw(st.sampled_from(["default", "published"])), draw(st.sampled_from(["registers", "arrays"])))
    return kernel, shapes, knobs, options


machines = st.builds(
    build_machine,
    clusters=st.integers(1, 8), vectors=st.integers(1, 8), cluster_tiles=st.sampled_from([8, 64, 4096]),
    cluster_a_entries=st.sampled_from([4, 32, 256, 512]), cluster_b_entries=st.sampled_from([4, 32, 256, 512]),
    cluster_inst_depth=st.sampled_from([2, 3, 32, 512]), vector_inst_depth=st.sampled_from([2, 32, 512]),
    vector_l1_words=st.sampled_from([64, 256, 512]), staging_flits=st.sampled_from([1, 7, 128]),
    memory=st.sampled_from([Dram(bytes=64 << 10), Dram(bytes=1 << 28)]),
)  # fmt: skip


def check_legal(artifact, machine):
    """Every word is one the encoders make, every buffer is in memory, every round within the machine's limits."""
    spans = sorted((image.address, image.address + image.bytes) for image in artifact.buffers)
    assert all(end <= first for (_, end), (first, _) in itertools.pairwise(spans))
    assert spans[-1][1] <= machine.memory.bytes
    for round_ in artifact.rounds:
        assert len(round_.flits) <= machine.staging_flits
        unit = artifact.stages[round_.stage].unit
        for flit in round_.flits:
            (cluster if unit == "cluster" else vector).check(flit.payload)
        assert {kick.node for kick in round_.kicks} <= {unit.node for unit in machine.units}
    for chain in artifact.chains():
        assert sum(len(round_.kicks) for round_ in chain) < chain[0].steps[0].credits == machine.credit_limit
    assert sum(len(chain) for chain in artifact.chains()) == len(artifact.rounds)
    for unit in machine.vectors:
        stream = [
            vector.decode(flit.payload)
            for round_ in artifact.rounds for kick in round_.kicks if kick.node == unit.node
            for flit in round_.flits[kick.base : kick.base + kick.count]
        ]  # fmt: skip
        for _, l1, moved in run_core(stream):
            assert l1 + len(moved) <= min(320, unit.l1_words)
    for image in artifact.outputs:
        corners = {tuple(0 for _ in image.shape), tuple(extent - 1 for extent in image.shape)}
        assert all(artifact.writer_of(image.name, corner) for corner in corners)


def each(count, *strategies):
    """`count` examples, the same in every run."""
    quiet = settings(max_examples=count, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    return lambda check: quiet(given(*strategies)(check))


def test_compiles_or_is_refused_by_name():
    compiled = []

    @each(150, calls(), machines)
    def check(call, machine):
        kernel, shapes, knobs, options = call
        try:
            artifact = compile_kernel(kernel, machine, shapes, knobs, options)
        except KernelError as error:
            assert str(error)
            return
        check_legal(artifact, machine)
        assert artifact.digest == compile_kernel(kernel, machine, shapes, knobs, options).digest
        compiled.append(kernel.name)

    check()
    assert len(compiled) > 30 and len(set(compiled)) > 6, "hardly anything compiled"


def test_what_compiles_computes_what_the_kernel_means(run):
    ran = []

    @each(60, calls(small=True), st.sampled_from(["mm_mesh", "quad", "ship_3x2"]))
    def check(call, name):
        kernel, shapes, knobs, options = call
        machine = load(name)
        try:
            artifact = compile_kernel(kernel, machine, shapes, knobs, options)
        except CompileError:
            return
        rng = np.random.default_rng(1)
        operands = {port: rng.normal(0, 1, shape).astype(np.float16) for port, shape in shapes.items()}
        extents = kernel.solve(shapes)
        wanted = interpret(kernel.trace(**knobs), extents, operands, constants=Constants(options.constants)).outputs
        got = run(artifact, machine, operands)
        for output in wanted:
            assert (got[output] == wanted[output]).all()
        ran.append(kernel.name)

    check()
    assert len(ran) > 20 and len(set(ran)) > 6, "hardly anything ran"


def test_a_broken_artifact_is_not_legal(bench):
    """The check above notices."""
    import dataclasses

    artifact = compile_kernel(linear.matmul, bench, {"a": (8, 32), "b": (8, 32)}, {"gm": 2, "gn": 2, "nk": 1})
    check_legal(artifact, bench)
    moved = dataclasses.replace(artifact.buffers[1], address=artifact.buffers[0].address)
    with pytest.raises(AssertionError):
        check_legal(dataclasses.replace(artifact, buffers=(artifact.buffers[0], moved, *artifact.buffers[2:])), bench)
    flit = artifact.rounds[0].flits[0]
    bad = (flit._replace(payload=flit.payload | 1), *artifact.rounds[0].flits[1:])
    with pytest.raises(ValueError, match="reserved bits"):
        check_legal(dataclasses.replace(artifact, rounds=(dataclasses.replace(artifact.rounds[0], flits=bad),)), bench)
