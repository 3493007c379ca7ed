"""Lockstep of model and gates: every kernel, several latencies, planted faults on either side, and a hang."""

import re

import pytest
from pywellen import Waveform

from kohakutpu.cli import lockstep as command
from kohakutpu.cli.kernel_options import read_array
from kohakutpu.cli.lockstep import every_kernel
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
KINDS = ("where", "swiglu", "linear_silu_staged", "mlp", "softmax")
SMALL = (SILU, "--shape", "x=8x32", "--shape", "w=8x32", "--knob", "gm=2", "--knob", "gn=2", "--knob", "nk=1")
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


def test_kernels_are_equal_in_every_cycle(lockstep, monkeypatch):
    """One of each kind; the nightly has all of them."""
    some = [kernel for kernel in every_kernel() if kernel.name in KINDS]
    monkeypatch.setattr(command, "every_kernel", lambda: some)
    status, out, _ = lockstep("--machine", "mm_mesh")
    check_every_kernel(status, out, len(KINDS))


def check_every_kernel(status, out, count):
    """A line for each of `count` kernels, and one that adds them up."""
    *kernels, total = out.splitlines()
    found = [EQUAL.fullmatch(line) for line in kernels]
    assert status == 0 and len(found) == count and all(found), out
    events, cycles = ([int(match[group].replace(",", "")) for match in found] for group in (3, 4))
    assert min(events) > 1000
    machine = found[0][2]
    assert (
        total == f"{len(found)} kernels on {machine}: {sum(events):,} events, 0 differing, {sum(cycles):,} cycles both"
    )


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
    window = f"--window {first.cycle - 100}:{first.cycle + 50}"
    assert f"kohakutpu lockstep {SILU}" in out and out.rstrip().endswith(f"--waves waves {window}")


def test_gates_that_are_late_are_found_where_they_are(lockstep, tmp_path):
    """A cluster's sequencer that takes each instruction but the first a cycle late: the second one's begin."""
    sound = traced(tmp_path / "a")
    track = [track.name for track in sound.tracks].index("cluster0.begin")
    begins = [record for record in sound if isinstance(record, Event) and record.track == track]
    status, out, _ = lockstep(*FUSED, "--fault", "cluster0=sequencer-late-take", "--simulator", "icarus")
    assert status == 1
    assert f"cycle {begins[1].cycle}: cluster0.begin (cluster0 and r21) differs" in out
    assert (
        "gates  nothing in this cycle; the same 1 later: " in out and "cluster0 is at instruction 1 of 4: FILL" in out
    )
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
        ((SILU, "--window", "1:2"), "--window is about waves: it goes with --waves DIR"),
        ((SILU, "--fault", "cluster0=nonsense"), "nonsense"),
        ((SILU, "--fault", "nonsense"), "no fault is named 'nonsense'"),
    ],
)
def test_bad_input_is_refused(lockstep, arguments, reason):
    status, _, err = lockstep(*arguments)
    assert status == 2 and reason in err


@pytest.mark.parametrize("simulator", ["icarus", pytest.param("verilator", marks=pytest.mark.slow)])
def test_waves_are_of_the_window_that_was_asked_for(lockstep, tmp_path, simulator):
    folder = tmp_path / "waves"
    status, out, _ = lockstep(*FUSED, "--simulator", simulator, "--waves", folder, "--window", "500:600")
    assert status == 0 and f"waves of the gates, cycles 500 to 600, are in {folder}" in out
    variables = {var.full_name: var for var in Waveform(str(folder / "mm_mesh.fst")).all_vars()}
    # a recorder says what holds when it begins: what cycle 499 has left, say
    recorded = {value: time for time, value in variables["machine.cycle"].signal if isinstance(value, int) and time > 1}
    assert set(recorded) - {499} == set(range(500, 601))
    assert f"[timestart] {recorded[500]}\n" in (folder / "units.gtkw").read_text()


def test_a_window_behind_the_end_is_refused(lockstep, tmp_path):
    words = ("--simulator", "icarus", "--waves", tmp_path / "waves", "--window", "90000:90001")
    status, _, err = lockstep(*SMALL, *words)
    assert status == 2 and re.search("--window 90000:90001: the run ended with cycle [1-9][0-9]{2,3}$", err.strip())


@pytest.mark.parametrize("window", ["5", "5:", "7:3", "-1:4", "a:b"])
def test_a_window_is_two_cycles(lockstep, capsys, window):
    with pytest.raises(SystemExit) as end:
        lockstep(SILU, "--waves", "waves", f"--window={window}")
    assert end.value.code == 2 and f"{window!r}: expected two cycles A:B" in capsys.readouterr().err


LATENCIES = {"1": ("--latency", 1), "20": (), "random": ("--latency-seed", 7)}


@pytest.mark.slow
@pytest.mark.parametrize("latency", LATENCIES)
@pytest.mark.parametrize("name", ["mm_mesh", "quad", "uneven"])
def test_every_kernel_under_every_latency(lockstep, capsys, name, latency):
    """Two memory ports, the agent at one of them, rows of three units and of one: minutes to compile."""
    assert load(name).memory.latency == 20
    status, out, _ = lockstep("--machine", name, *LATENCIES[latency])
    check_every_kernel(status, out, len(list(every_kernel())))
    with capsys.disabled():
        print(f"\nlatency {latency}: {out.splitlines()[-1]}")


@pytest.mark.slow
@pytest.mark.parametrize("options", LATENCIES.values(), ids=LATENCIES)
def test_both_rows_of_an_uneven_machine_at_once(lockstep, options):
    """Two tiles: a cluster of each row drains to a vector core of the first, and both ports are busy."""
    words = ("--machine", "uneven", "--shape", "x=64x32", "--shape", "w=32x32", *options)
    status, out, _ = lockstep(SILU, *words)
    assert status == 0 and EQUAL.fullmatch(out.strip())
