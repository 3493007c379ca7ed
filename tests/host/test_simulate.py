"""`run_model` beside `run_reference`: what each takes from the machine, and what a run that went wrong on the way
says."""

import dataclasses

import numpy as np
import pytest

from kohakutpu import lang as L
from kohakutpu.compiler import Options, compile_kernel
from kohakutpu.host.compare import compare
from kohakutpu.host.simulate import MachineComplaint, run_model, run_reference
from kohakutpu.isa import cluster
from kohakutpu.kernels.linear import linear_silu
from kohakutpu.lang import kernel
from kohakutpu.machine import load


@kernel
def powers(x=L.In(...), y=L.Out(...)):
    y <<= L.exp2(x)


def equal(artifact, machine, kernel_, knobs, values, **options):
    want = run_reference(kernel_, knobs, values, machine, **options)
    return all(row.equal for row in compare(artifact, want.outputs, run_model(artifact, machine, values).run.outputs))


def matrices(seed=3):
    random = np.random.default_rng(seed)
    return {name: random.normal(0, 2.0, (32, 256)).astype(np.float16) for name in ("x", "w")}


@pytest.mark.parametrize("mantissa", [10, 16])
def test_the_reference_has_the_machines_accumulator(mantissa):
    machine = load("mm_mesh")
    machine = dataclasses.replace(
        machine, clusters=tuple(dataclasses.replace(c, mantissa=mantissa) for c in machine.clusters)
    )
    knobs, values = {"gm": 8, "gn": 8, "nk": 2}, matrices()
    artifact = compile_kernel(linear_silu, machine, {n: v.shape for n, v in values.items()}, knobs)
    assert equal(artifact, machine, linear_silu, knobs, values)
    other = run_reference(linear_silu, knobs, values, load("mm_mesh"))
    assert (other.outputs["y"] != run_reference(linear_silu, knobs, values, machine).outputs["y"]).any()


def test_the_reference_has_the_machines_errata():
    values = {"x": np.array([-200.0, -129.0, 130.0, 200.0, 255.0, 1.5, 300.0, -300.0] * 16, np.float16)}
    plain = load("mm_mesh")
    published = dataclasses.replace(plain, errata=frozenset({"exp2-wrap"}))
    results = []
    for machine in (plain, published):
        artifact = compile_kernel(powers, machine, {"x": values["x"].shape})
        assert equal(artifact, machine, powers, {}, values)
        results.append(run_reference(powers, {}, values, machine).outputs["y"])
    assert (results[0] != results[1]).any()


def test_the_reference_holds_constants_as_the_program_does():
    machine, knobs = load("mm_mesh"), {"gm": 8, "gn": 8, "fuse": False}
    values = matrices(4)
    artifact = compile_kernel(
        linear_silu, machine, {n: v.shape for n, v in values.items()}, knobs, Options(constants="arrays")
    )
    assert equal(artifact, machine, linear_silu, knobs, values, constants="arrays")
    assert not equal(artifact, machine, linear_silu, knobs, values, constants="registers")


def test_a_machine_that_refused_something_is_not_believed():
    """A FILL from beyond the memory reads zeros: the run ends, and its result is worth nothing."""
    machine, values = load("mm_mesh"), matrices()
    artifact = compile_kernel(linear_silu, machine, {n: v.shape for n, v in values.items()}, {"gm": 8, "gn": 8})
    first = artifact.rounds[0]
    fill = first.flits[0]
    assert cluster.decode(fill.payload).op == cluster.Op.FILL
    beyond = cluster.FILL.encode(n=16, addr=machine.memory.bytes)
    flits = (fill._replace(payload=beyond), *first.flits[1:])
    spoilt = dataclasses.replace(artifact, rounds=(dataclasses.replace(first, flits=flits), *artifact.rounds[1:]))
    with pytest.raises(MachineComplaint, match="memory has"):
        run_model(spoilt, machine, values)
