"""Traces of the gates are those of the models, byte for byte: every flit, level and event in the same cycle."""

from dataclasses import replace
from pathlib import Path

import pytest

from kohakutpu.cli.kernel_options import read_array
from kohakutpu.cli.sim import EXAMPLES, cases
from kohakutpu.compiler import compile_kernel
from kohakutpu.host.simulate import run_model
from kohakutpu.host.transport import CONTROL_BASE, MEMORY_BASE
from kohakutpu.host.model_transport import ModelTransport
from kohakutpu.isa import registers
from kohakutpu.lang.kernel import load as load_kernel
from kohakutpu.machine import load
from kohakutpu.model.system import System
from kohakutpu.noc.trace import Trace
from sim.host_bus import BusError
from sim.kernels import run_rtl
from sim.machine import build, simulate

HERE = Path(__file__).parent
MACHINE = load("mm_mesh")


def case(title, machine=MACHINE):
    """(artifact, operands) of an example kernel."""
    reference, knobs, files = {t: rest for t, *rest in cases(machine)}[title]
    operands = {name: read_array(name, str(EXAMPLES / file)) for name, file in files.items()}
    return compile_kernel(load_kernel(reference), machine, {n: a.shape for n, a in operands.items()}, knobs), operands


def both(title, folder, *, latency=None, latency_seed=None, **options):
    """The traces of an example kernel on the model and on the gates."""
    artifact, operands = case(title)
    machine = MACHINE if latency is None else replace(MACHINE, memory=replace(MACHINE.memory, latency=latency))
    model = run_model(artifact, machine, operands, trace=folder / "model", latency_seed=latency_seed)
    gates = run_rtl(
        artifact, MACHINE, operands, trace=folder / "gates", latency=latency, latency_seed=latency_seed, **options
    )
    assert gates.cycles == model.cycles and gates.run.images == model.run.images
    return folder / "model", folder / "gates"


@pytest.mark.parametrize(
    "title, options",
    [("fused", {}), ("staged", {}), ("fused", {"latency": 1}), ("staged", {"latency_seed": 11}),
     ("fused", {"latency": 7, "latency_seed": 2})],
    ids=str,
)  # fmt: skip
def test_model_and_gates_write_the_same_file(title, options, tmp_path):
    model, gates = both(title, tmp_path, **options)
    trace = Trace(gates)
    assert trace.flits > 900 and trace.levels > 900 and trace.events > 90
    assert model.read_bytes() == gates.read_bytes()


def test_icarus_writes_it_too(tmp_path):
    model, gates = both("fused", tmp_path, simulator="icarus")
    assert model.read_bytes() == gates.read_bytes()


def test_a_planted_fault_shows_in_the_trace(tmp_path):
    """The comparison can fail: a model that is late by a cycle writes another file."""
    artifact, operands = case("fused")
    run_model(artifact, MACHINE, operands, trace=tmp_path / "sound")
    run_model(artifact, MACHINE, operands, trace=tmp_path / "late", faults=["memory-late"])
    assert (tmp_path / "sound").read_bytes() != (tmp_path / "late").read_bytes()


@pytest.fixture(scope="module")
def built():
    return build(MACHINE, simulator="verilator")


def test_accesses_of_the_host_take_the_same_cycles(built):
    transport = ModelTransport(System(MACHINE))
    stage = CONTROL_BASE + registers.stage_offset(0)
    data = bytes(range(1, 249)) * 40
    steps = [
        lambda: transport.write64(CONTROL_BASE + registers.CTRL.at(), 1),
        lambda: transport.read64(CONTROL_BASE + registers.CTRL.at()),
        lambda: transport.write_block(stage, bytes(40)),
        lambda: transport.write_block(stage, bytes(8 * 300)),
        lambda: transport.write_block(MEMORY_BASE + 0xF08, data),
        lambda: transport.read_block(MEMORY_BASE + 0xF08, len(data)),
    ]
    expected = []
    for step in steps:
        start = transport.now
        step()
        expected.append(transport.now - start)
    assert [cycles for _, cycles in simulate(built, "trace_jobs:accesses", search=[HERE])] == expected


def test_an_access_that_is_refused_says_so(built):
    with pytest.raises(BusError, match="a read of 32 bytes at 0x1000000 was answered with DECERR"):
        simulate(built, "trace_jobs:outside", search=[HERE])


def test_the_records_of_a_failed_job_are_kept(built, tmp_path):
    with pytest.raises(BusError):
        simulate(built, "trace_jobs:outside", search=[HERE], records=tmp_path / "r")
    assert (tmp_path / "r").read_text().splitlines()[-1].startswith("end ")
