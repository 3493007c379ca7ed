"""Lockstep of model and gates: every kernel, several latencies, planted faults on either side, and a hang."""

import re

import pytest

from kohakutpu.cli.kernel_options import read_array
from kohakutpu.cli.main import main
from kohakutpu.cli.sim import EXAMPLES, cases
from kohakutpu.compiler import compile_kernel
from kohakutpu.host.simulate import run_model
from kohakutpu.lang.kernel import load as load_kernel
from kohakutpu.machine import load
from kohakutpu.noc.trace import Event, Trace, Transfer

SILU = "kohakutpu.kernels.linear:linear_silu"
MACHINE = load("mm_mesh")
FUSED = (SILU, "--in", f"x={EXAMPLES / 'x.npy'}", "--in", f"w={EXAMPLES / 'w.npy'}")
EQUAL = re.compile(r"(\w+) on (\S+): ([\d,]+) events, 0 differing, ([\d,]+) cycles both")


@pytest.fixture
def lockstep(capsys):
    """lockstep(*arguments): (exit status, what was printed, errors)."""

    def call(*arguments):
        status = main(["lockstep", *map(str, arguments)])
        return status, *capsys.readouterr()

    return call


def traced(path, **options):
    """The trace of the fused example kernel on the model."""
    reference, knobs, files = {title: rest for title, *rest in cases(MACHINE)}["fused"]
    operands = {name: read_array(name, str(EXAMPLES / file)) for name, file in files.items()}
    artifact = compile_kernel(load_kernel(reference), MACHINE, {n: a.shape for n, a in operands.items()}, knobs)
    run_model(artifact, MACHINE, operands, trace=path, **options)
    return Trace(path)


def test_every_kernel_is_equal_in_every_cycle(lockstep):
    status, out, _ = lockstep("--machine", "mm_mesh")
    found = EQUAL.findall(out)
    assert status == 0 and len(found) == len(out.splitlines()) == 10
    assert all(int(events.replace(",", "")) > 2000 for _, _, events, _ in found)


@pytest.mark.parametrize(
    "options", [("--latency", 1), ("--latency-seed", 5), ("--latency", 3, "--latency-seed", 6)], ids=str
)
def test_under_other_latencies(lockstep, options):
    status, out, _ = lockstep(*FUSED, *options)
    assert status == 0 and EQUAL.fullmatch(out.strip())


def test_a_model_that_is_late_is_found_where_it_is(lockstep, tmp_path):
    """The first difference of two models, one of them sound, is the one that lockstep names."""
    sound, late = (traced(tmp_path / name, faults=faults) for name, faults in (("a", []), ("b", ["memory-late"])))
    first = next(a for a, b in zip(sound, late) if a != b)
    name = sound.links[first.link] if isinstance(first, Transfer) else sound.tracks[first.track].name
    status, out, _ = lockstep(*FUSED, "--fault", "memory-late")
    assert status == 1 and ", 1 differing\n" in out
    assert f"cycle {first.cycle}: {name} (mag0 and r11) differs" in out
    assert "model  nothing in this cycle; the same 1 later: " in out
    assert "cluster0 is at instruction 1 of 4: FILL" in out and "kohakutpu/kernels/linear.py:" in out
    assert "events of mag0, equal on both sides" in out and "events of r11, equal on both sides" in out
    assert f"kohakutpu lockstep {SILU}" in out and "--waves" in out


def test_gates_that_are_late_are_found_where_they_are(lockstep, tmp_path):
    """A cluster's sequencer that takes each instruction but the first a cycle late: the second one's begin."""
    sound = traced(tmp_path / "a")
    track = [track.name for track in sound.tracks].index("cluster0.begin")
    begins = [record for record in sound if isinstance(record, Event) and record.track == track]
    status, out, _ = lockstep(*FUSED, "--fault", "cluster0=sequencer-late-take", "--simulator", "icarus")
    assert status == 1
    assert f"cycle {begins[1].cycle}: cluster0.begin (cluster0 and r21) differs" in out
    assert "gates  nothing in this cycle; the same 1 later: " in out and "cluster0 is at instruction 1 of 4: FILL" in out
    assert "--fault cluster0=sequencer-late-take --waves waves" in out


def test_a_machine_that_stops_on_both_sides_is_a_hang(lockstep):
    status, _, err = lockstep(*FUSED, "--timeout", 40)
    assert status == 4 and "after 40 cycles" in err


@pytest.mark.parametrize(
    "arguments, reason",
    [
        ((SILU, "--latency", 21), "--latency 21: mm_mesh has a latency of 20"),
        ((SILU, "--latency-seed", -1), "--latency-seed -1: 0 to 4294967295"),
        ((SILU, "--shape", "z=32x32"), "linear_silu has no operand z"),
        (("--waves", "waves"), "--waves records one run: name its KERNEL"),
        ((SILU, "--fault", "cluster0=nonsense"), "nonsense"),
        ((SILU, "--fault", "nonsense"), "no fault is named 'nonsense'"),
    ],
)
def test_bad_input_is_refused(lockstep, arguments, reason):
    status, _, err = lockstep(*arguments)
    assert status == 2 and reason in err


@pytest.mark.slow
def test_waves_of_the_run_that_a_difference_names(lockstep, tmp_path):
    status, out, _ = lockstep(*FUSED, "--latency-seed", 3, "--simulator", "icarus", "--waves", tmp_path / "waves")
    assert status == 0 and "waves of the gates are in" in out
    assert (tmp_path / "waves" / "mm_mesh.fst").stat().st_size > 100_000


@pytest.mark.slow
@pytest.mark.parametrize("name", ["quad", "2x2_7+2"])
def test_larger_machines(lockstep, name):
    """Two memory ports, the agent at one of them, uneven rows: minutes to compile."""
    status, out, _ = lockstep("--machine", name)
    assert status == 0 and len(EQUAL.findall(out)) == 10
