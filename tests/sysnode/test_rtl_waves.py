"""Waves of whole machines: an FST with every link's flits, and views that name nothing else than what is in it."""

import re

import pytest
from pywellen import Waveform

from kohakutpu.cli.main import main
from kohakutpu.isa.flit import HEADER, FlitType
from kohakutpu.machine import load
from sim.machine import emitted
from sim.toolchain import BUILD
from sim.waves import UNITS

KERNEL = ["kohakutpu.kernels.linear:linear_silu", "--shape", "x=8x32", "--shape", "w=8x32", "--random", "1"]
KERNEL += ["--knob", "gm=2", "--knob", "gn=2", "--knob", "nk=1"]


def run(simulator, *more):
    return main(["run", *KERNEL, "--engine", "rtl", "--simulator", simulator, *more])


def named(view):
    """The signals that a GTKWave save file names, without their ranges."""
    return [re.sub(r"\[[\d:]+\]$", "", line) for line in view.splitlines() if line and line[0] not in "[@*-^"]


def missing(views, waves):
    """Which signals of the views are not in the waves."""
    there = {var.full_name for var in waves.all_vars()}
    return [name for view in views for name in named(view) if name not in there]


@pytest.mark.parametrize("simulator", ["icarus", pytest.param("verilator", marks=pytest.mark.slow)])
def test_views_name_what_is_in_the_waves(simulator, tmp_path):
    machine = load("mm_mesh")
    assert run(simulator, "--waves", str(tmp_path / "waves")) == 0
    folder = tmp_path / "waves"
    assert (folder / "mm_mesh.fst").stat().st_size > 100_000
    waves = Waveform(str(folder / "mm_mesh.fst"))
    views = [(folder / name).read_text() for name in (UNITS, "mm_mesh.gtkw")]
    assert missing(views, waves) == []
    assert missing(["@22\nmachine.monitor_0.valid\nmachine.monitor_0.no_such[3:0]\n"], waves) == [
        "machine.monitor_0.no_such"
    ]
    # every endpoint is a group with a link in and one out, each with the fields of its flits
    links = emitted(machine, "orchestrator", None).links
    for name in ("cluster0", "vector0", "mag0", "agent"):
        group = views[0].split(f"\n-{name}\n")[1]
        scope = f"machine.monitor_{links.index(f'{name}.out')}."
        assert f"\n-{name}.out: {name} to r" in group and f" to {name}\n" in group
        assert [n.removeprefix(scope) for n in named(group) if n.startswith(scope)] == [
            "valid", "busy", *(f"flit_{field}" for field in HEADER.fields)
        ]  # fmt: skip
    assert f'[dumpfile] "{folder / "mm_mesh.fst"}"' in views[0]
    # and the waves are of this run: the agent sends instructions and nothing else
    agent = next(v for v in waves.all_vars() if v.full_name == f"machine.monitor_{links.index('agent.out')}.flit_type")
    assert set(values(agent)) == {0, FlitType.CU_INST}


def values(var):
    """What a signal was over time, without X."""
    return [value for _, value in var.signal if isinstance(value, int)]


def test_nothing_is_recorded_unasked(capsys, tmp_path):
    before = set(BUILD.rglob("*.fst"))
    assert run("icarus") == 0
    assert set(BUILD.rglob("*.fst")) == before


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (["run", *KERNEL, "--waves", "w"], "--waves is about the gates: it does not go with --engine model"),
        (["sim", "--engine", "model", "--waves", "w"], "--waves w is about the gates: it needs --engine rtl or both"),
        (["run", *KERNEL, "--engine", "rtl", "--waves", __file__], "expected a folder, and it is a file"),
    ],
)
def test_waves_are_of_gates_and_go_into_a_folder(arguments, reason, capsys):
    assert main(arguments) == 2
    assert reason in capsys.readouterr().err
