"""The example kernels on the gates of mm_mesh, through the orchestrator's AXI slave and the memory window.

Interpreter, model and gates give the same image; every node sends the same flits as its model; seeds and simulators make
no difference; a machine that does not answer is reported.
"""

import pytest

from kohakutpu.cli.kernel_options import read_array
from kohakutpu.cli.main import main
from kohakutpu.cli.sim import EXAMPLES, cases
from kohakutpu.compiler import compile_kernel
from kohakutpu.host.compare import compare
from kohakutpu.host.driver import NoAnswer
from kohakutpu.host.simulate import run_model, run_reference
from kohakutpu.lang.kernel import load as load_kernel
from kohakutpu.machine import load
from kohakutpu.noc.trace import Trace
from sim.kernels import run_rtl

MACHINE = load("mm_mesh")
CASES = {title: rest for title, *rest in cases(MACHINE)}


def case(title, machine=MACHINE):
    """(artifact, operands, image) of an example kernel."""
    reference, knobs, files = CASES[title]
    kernel = load_kernel(reference)
    operands = {name: read_array(name, str(EXAMPLES / file)) for name, file in files.items()}
    artifact = compile_kernel(kernel, machine, {n: a.shape for n, a in operands.items()}, knobs)
    return artifact, operands, run_reference(kernel, knobs, operands, machine)


@pytest.mark.parametrize("title", CASES)
def test_interpreter_model_and_gates_agree(title, tmp_path, capsys):
    artifact, operands, image = case(title)
    model = run_model(artifact, MACHINE, operands)
    gates = run_rtl(artifact, MACHINE, operands, trace=tmp_path / "gates.trace")
    rows = compare(artifact, image.outputs, gates.run.outputs)
    assert rows and all(row.equal for row in rows), rows[0].first
    assert gates.run.images == model.run.images
    assert gates.flits == model.flits and gates.hops == model.hops
    assert (gates.dram_read, gates.dram_written) == (model.dram_read, model.dram_written)
    trace = Trace(tmp_path / "gates.trace")
    trace.require(MACHINE)
    assert trace.count >= gates.hops
    with capsys.disabled():
        print(f"\n{title}: {rows[0].buffer} {rows[0].bytes} bytes, sha256 {rows[0].found}, {gates.cycles} cycles on the gates, "
              f"{model.cycles} on the model")  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("title", CASES)
def test_quad(title):
    """Four clusters and four vector cores, the agent at a memory port: minutes to compile."""
    machine = load("quad")
    artifact, operands, image = case(title, machine)
    gates = run_rtl(artifact, machine, operands)
    assert all(row.equal for row in compare(artifact, image.outputs, gates.run.outputs))
    assert gates.flits == run_model(artifact, machine, operands).flits


def test_seeds_and_simulators_make_no_difference():
    artifact, operands, image = case("fused")
    runs = [run_rtl(artifact, MACHINE, operands, seed=seed) for seed in (1, 2)]
    runs.append(run_rtl(artifact, MACHINE, operands, simulator="icarus", seed=3))
    assert all(compare(artifact, image.outputs, run.run.outputs)[0].equal for run in runs)
    assert len({str((run.to_dict(), run.run.images)) for run in runs}) == 1


def test_a_machine_that_does_not_answer_is_reported():
    artifact, operands, _ = case("fused")
    with pytest.raises(NoAnswer, match="round 0 of") as error:
        run_rtl(artifact, MACHINE, operands, timeout=40)
    text = str(error.value)
    assert "PROG_CRED" in text and "blocked links:" in text and "last flit on each link:" in text


def test_the_command_says_which_engine_it_ran(capsys):
    assert main(["sim", "--engine", "rtl"]) == 0
    out = capsys.readouterr().out
    assert out.count("rtl (verilator)") == 2 and out.count("byte-equal\n") == 4 and "NOT" not in out


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (["sim", "--engine", "both", "--fault", "noc-lost-tail"], "--fault noc-lost-tail is a fault of the models"),
        (["run", "kohakutpu.kernels.linear:matmul", "--engine", "rtl", "--no-skip"], "--no-skip is about the cycle models"),
        (["run", "kohakutpu.kernels.linear:matmul", "--simulator", "icarus"], "--simulator is about the gates"),
    ],
)
def test_options_of_one_engine_do_not_go_with_another(arguments, reason, capsys):
    assert main(arguments) == 2
    assert reason in capsys.readouterr().err
