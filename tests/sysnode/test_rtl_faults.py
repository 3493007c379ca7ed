# amaranth: UnusedElaboratable=no
"""Faults planted in whole machines are seen: by the port checker's name, as differing bytes, as a hang with every
node's state."""

import dataclasses

import numpy as np
import pytest

from kohakutpu.cli.kernel_options import read_array
from kohakutpu.cli.main import main
from kohakutpu.cli.sim import EXAMPLES, cases
from kohakutpu.compiler import compile_kernel
from kohakutpu.host.compare import compare
from kohakutpu.host.driver import NoAnswer
from kohakutpu.host.simulate import run_reference
from kohakutpu.kernels.linear import linear_silu
from kohakutpu.lang.kernel import load as load_kernel
from kohakutpu.machine import load
from rtl.top import CannotBuild, MachineTop
from sim.inside import BrokenRules
from sim.kernels import run_rtl
from sim.transport import SILENCE

MACHINE = load("mm_mesh")
SMALL = {"gm": 2, "gn": 2, "nk": 1}
CASES = {title: rest for title, *rest in cases(MACHINE)}


def run(title, faults, scale=1, **options):
    """Whether each result of an example kernel is byte-equal on gates with `faults`, operands times `scale`."""
    reference, knobs, files = CASES[title]
    kernel = load_kernel(reference)
    operands = {name: read_array(name, str(EXAMPLES / file)) * np.float16(scale) for name, file in files.items()}
    artifact = compile_kernel(kernel, MACHINE, {n: a.shape for n, a in operands.items()}, knobs)
    gates = run_rtl(artifact, MACHINE, operands, simulator="icarus", faults=faults, **options)
    image = run_reference(kernel, knobs, operands, MACHINE)
    return [row.equal for row in compare(artifact, image.outputs, gates.run.outputs)]


def test_the_port_checker_fails_a_job_by_endpoint_and_rule():
    """A cluster that sends the wrong `last` writes the right bytes all the same."""
    with pytest.raises(BrokenRules, match=r"cluster0: framing, 8 times: ") as error:
        run("staged", {"cluster0": "writer-last"})
    assert error.value.exit_status == 1


def test_a_hang_report_names_broken_rules():
    """Bursts of nine words, which the memory port refuses: the words of the stage never come."""
    with pytest.raises(
        NoAnswer, match=r"(?s)nodes:.*broken rules:\n  vector0: framing, 7 times: .*blocked links:"
    ) as error:
        run("fused", {"vector0": "vector-long-bursts"}, timeout=1000)
    assert error.value.exit_status == 4


@pytest.mark.parametrize("faults, scale", [({"cluster0": "lane-saturate"}, 2**9), ({"cluster0": "lane-tie"}, 1)])
def test_wrong_arithmetic_gives_differing_bytes(faults, scale):
    """Results past the largest FP16 become infinities instead of being clamped; ties are rounded up."""
    assert run("staged", faults, scale) == [False]


def test_a_clamp_that_is_right_gives_equal_bytes():
    assert run("staged", None, 2**9) == [True]


def test_a_lost_completion_ends_with_the_state_of_every_node():
    with pytest.raises(NoAnswer, match=r"waiting for signals of node \(2,1\)") as error:
        run("fused", {"cluster0": "sequencer-lost-completion"}, timeout=2000)
    assert error.value.exit_status == 4
    text = str(error.value)
    assert "cluster0 (2,1): 1 instruction not completed, the oldest of cycle " in text
    assert "last signal raised: INST_COMPLETE" in text and "PROG_CRED: credit=31" in text
    for name in ("vector0 (1,0): ", "mag0 (0,1): 256 words read; 0 words written", "agent (1,1): idle"):
        assert f"  {name}" in text


def test_a_lost_write_acknowledgement_ends_with_the_state_of_every_node():
    with pytest.raises(NoAnswer, match="waiting for the stage's words in memory: AUX_STAT") as error:
        run("fused", {"mag0": "write-ack-slot"}, timeout=1000)
    assert error.value.exit_status == 4
    text = str(error.value)
    nodes = text[text.index("nodes:") : text.index("broken rules:")]
    assert all(f"  {name} (" in nodes for name in ("cluster0", "vector0", "mag0", "agent"))


@pytest.mark.parametrize(
    "fault, status, shown",
    [
        ("cluster0=sequencer-lost-completion", 4, "nodes:\n  cluster0 (2,1): 1 instruction not completed"),
        ("cluster0=lane-saturate", 0, "fault cluster0=lane-saturate: injected, and this kernel does not show it"),
        ("cluster0=nope", 2, "cluster0 of mm_mesh has no fault 'nope'; there are: cluster-bank-stuck, "),
        ("cluster0=lane-tye", 2, "cluster0 of mm_mesh has no fault 'lane-tye'; did you mean 'lane-tie'?"),
        ("noc-lost-tail", 2, "--fault 'noc-lost-tail': expected place=name, such as cluster0=lane-tie"),
    ],
)
def test_the_command_plants_faults_in_gates(fault, status, shown, capsys):
    kernel = ["kohakutpu.kernels.linear:linear_silu", "--shape", "x=8x32", "--shape", "w=8x32", "--random", "1"]
    knobs = ["--knob", "gm=2", "--knob", "gn=2", "--knob", "nk=1", "--timeout", "2000"]
    assert main(["run", *kernel, *knobs, "--engine", "rtl", "--simulator", "icarus", "--fault", fault]) == status
    assert shown in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    "faults, reason",
    [
        ({"cluster1": "lane-tie"}, "faults at cluster1: mm_mesh has r11, r21, cluster0, vector0, mag0, agent, window, mover"),
        ({"mover": "no-such"}, "mover of mm_mesh has no fault 'no-such'; there are: walker-stride-unsigned"),
        ({"cluster0": "no-such"}, "cluster0 of mm_mesh has no fault 'no-such'; there are: cluster-bank-stuck"),
        ({"r31": "lost-hold"}, "faults at r31"),
    ],
)
def test_a_fault_that_is_not_there_is_refused(faults, reason):
    with pytest.raises(CannotBuild, match=reason):
        MachineTop(MACHINE, faults=faults)


@pytest.mark.slow
def test_a_memory_slower_than_any_budget_of_an_access_is_no_hang():
    """A thousand cycles a word: moving an operand takes longer than the silence that an access may have."""
    machine = dataclasses.replace(MACHINE, memory=dataclasses.replace(MACHINE.memory, cycles_per_word=1024))
    operands = {name: np.full((8, 32), 0.5, np.float16) for name in "xw"}
    artifact = compile_kernel(linear_silu, machine, {name: (8, 32) for name in "xw"}, SMALL)
    gates = run_rtl(artifact, machine, operands)
    assert gates.simulated > 4 * SILENCE
    image = run_reference(linear_silu, SMALL, operands, machine)
    assert all(row.equal for row in compare(artifact, image.outputs, gates.run.outputs))
