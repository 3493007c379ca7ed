"""Whole-mesh recordings on the gates: every run of `mesh.npz`, and with `slow` every link of `mesh_links.npz`."""

import pytest

from kohakutpu.cli.main import main
from kohakutpu.conformance import mesh
from kohakutpu.conformance.registry import CHECKS
from sim import golden as gates
from sim.golden_mesh import check_mesh, check_mesh_links


def test_runs_at_the_agents_port(golden):
    memory, flits = check_mesh(golden / "mesh.npz", simulator="verilator")
    assert memory.mismatched == flits.mismatched == 0, (memory.first, flits.first)
    runs = mesh.port_runs(golden / "mesh.npz")
    assert memory.compared == len(runs) * mesh.MEMORY_WORDS
    assert flits.compared == sum(len(run.on(1)) for run in runs.values())
    assert flits.cycles and all(ours <= theirs for _, theirs, ours in flits.cycles)


@pytest.mark.slow
def test_runs_on_every_link(golden):
    """As much as the models are held to, with nothing left out."""
    memory, flits = check_mesh_links(golden / "mesh_links.npz", simulator="verilator")
    assert memory.mismatched == flits.mismatched == 0, (memory.first, flits.first)
    models = mesh.check_mesh_links(golden / "mesh_links.npz")
    assert [memory.compared, flits.compared] == [tally.compared for tally in models] and flits.compared > 0
    assert not flits.left_out and not memory.left_out


def test_a_wrong_recording_is_seen(golden, monkeypatch):
    """One bit of one recorded flit, one word of recorded memory."""
    runs = mesh.port_runs(golden / "mesh.npz")
    name, run = next(iter(runs.items()))
    last = max(index for index, link in enumerate(run.link) if link == 1)
    run.every[last] = run.every[last]._replace(txn=run.every[last].txn ^ 1)
    run.after = run.after.copy()
    run.after[5, 0] ^= 1
    monkeypatch.setattr(mesh, "port_runs", lambda path: {name: run})
    memory, flits = check_mesh(golden / "mesh.npz", simulator="verilator")
    assert (memory.mismatched, flits.mismatched) == (1, 1)
    assert "memory word 5" in memory.first and name in flits.first


def test_every_golden_file_is_served_or_named():
    assert gates.CHECKS.keys().isdisjoint(gates.NOT_FOR_GATES)
    assert gates.CHECKS.keys() | gates.NOT_FOR_GATES.keys() <= CHECKS.keys()


@pytest.mark.parametrize("file", gates.NOT_FOR_GATES)
def test_a_file_that_is_not_for_gates_is_refused_by_name(golden, capsys, file):
    if not (golden / file).exists():
        file = "vector_core_published.npz"
    assert main(["golden", str(golden), "--engine", "rtl", "--only", file]) == 2
    assert f"{file}: {gates.NOT_FOR_GATES[file]}" in capsys.readouterr().err


def test_the_command_drives_a_file_through_the_gates(golden, capsys, monkeypatch):
    """From a folder given relative to where the command is called."""
    monkeypatch.chdir(golden.parent)
    assert main(["golden", golden.name, "--engine", "rtl", "--only", "mx_quant.npz"]) == 0
    out = capsys.readouterr().out
    assert "converter, both layouts" in out and ", 0 different" in out
