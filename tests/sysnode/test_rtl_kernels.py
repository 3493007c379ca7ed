"""The example kernels on the gates of mm_mesh, through the orchestrator's AXI slave and the memory window.

Interpreter, model and gates give the same image; every node sends the same flits as its model; seeds and simulators
make no difference; a machine that does not answer is reported.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

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

HERE = Path(__file__).resolve().parent
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


def digests(machine, simulator, seed, *faults):
    """`rtl_digests` in a process of its own, whose hashes are of another seed too."""
    command = [sys.executable, str(HERE / "rtl_digests.py"), machine, simulator, str(seed), *faults]
    environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": str(HERE.parents[1])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("machine", ["mm_mesh", pytest.param("1x1_min", marks=pytest.mark.slow)])
def test_processes_seeds_and_simulators_make_no_difference(machine, capsys):
    """Every flit of every link in the same cycle, and the same image."""
    verilator, icarus = digests(machine, "verilator", 1), digests(machine, "icarus", 2)
    assert verilator == icarus
    assert (
        len({case["trace"] for case in icarus.values()})
        == len({case["cycles"] for case in icarus.values()})
        == len(CASES)
    )
    with capsys.disabled():
        for title, case in icarus.items():
            print(f"\n{title} on {machine}, two processes, seeds and simulators: image {case['image'][:16]}, "
                  f"trace {case['trace'][:16]}, {case['cycles']} cycles", end="")  # fmt: skip


@pytest.mark.slow
def test_digests_see_a_planted_fault():
    sound, planted = digests("mm_mesh", "icarus", 1), digests("mm_mesh", "icarus", 1, "cluster0=lane-tie")
    for title in CASES:
        assert sound[title]["image"] != planted[title]["image"] and sound[title]["trace"] != planted[title]["trace"]


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
        (
            ["run", "kohakutpu.kernels.linear:matmul", "--engine", "rtl", "--no-skip"],
            "--no-skip is about the cycle models",
        ),
        (["run", "kohakutpu.kernels.linear:matmul", "--simulator", "icarus"], "--simulator is about the gates"),
    ],
)
def test_options_of_one_engine_do_not_go_with_another(arguments, reason, capsys):
    assert main(arguments) == 2
    assert reason in capsys.readouterr().err
