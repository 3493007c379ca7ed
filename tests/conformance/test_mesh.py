"""Whole-mesh recordings on the model, and the table of cycles; a replay that is wrong must be seen to be wrong."""

import re
from pathlib import Path

import numpy as np
import pytest

from kohakutpu.conformance import mesh
from kohakutpu.conformance.cycles import measure, table
from kohakutpu.conformance.mesh import check_mesh, check_mesh_links
from kohakutpu.model.system import System

ROOT = Path(__file__).resolve().parents[2]


def test_five_runs_at_the_agents_port(golden, capsys):
    memory, flits = check_mesh(golden / "mesh.npz")
    assert memory.mismatched == flits.mismatched == 0, (memory.first, flits.first)
    assert memory.compared == 5 * 2048 and flits.compared == 313
    assert len(flits.cycles) == 12 and all(ours <= theirs for _, theirs, ours in flits.cycles)


def test_thirty_nine_runs_on_every_link(golden):
    memory, flits = check_mesh_links(golden / "mesh_links.npz")
    assert memory.mismatched == flits.mismatched == 0, (memory.first, flits.first)
    assert memory.compared == 39 * 2048 and flits.compared == 8119


def faulty(monkeypatch, *names):
    monkeypatch.setattr(mesh, "System", lambda machine, **options: System(machine, faults=names, **options))


@pytest.mark.parametrize(
    "fault", ["cluster-l1-bit", "cluster-tile-bit", "cluster-last-dropped", "cluster-drain-ack", "cluster-lost-completion", "vector-alu-sign",
              "vector-lost-ack", "memory-read-bit", "memory-ack-lost", "memory-last", "memory-word-index",
              "noc-lost-tail"],
)  # fmt: skip
def test_a_fault_shows_in_the_replays(golden, monkeypatch, fault):
    monkeypatch.setattr(mesh, "GATE_BUDGET", 5000)
    faulty(monkeypatch, fault)
    assert any(tally.mismatched for tally in check_mesh_links(golden / "mesh_links.npz"))


@pytest.mark.parametrize("what", ["mem_after", "flits"])
def test_a_changed_recording_shows(golden, tmp_path, what):
    data = dict(np.load(golden / "mesh.npz"))
    name = f"f1_cudata_fused_{what}"
    data[name] = data[name].copy()
    data[name][-1, 0] ^= 1
    np.savez(tmp_path / "mesh.npz", **data)
    assert sum(tally.mismatched for tally in check_mesh(tmp_path / "mesh.npz")) == 1


def test_the_page_of_cycles_is_what_the_models_take(golden):
    """With the full set docs/cycles.md is exactly what is measured; every row of a sample stands in it by its numbers.

    Nothing is slower than published, and a vector core's programs take at most half.
    """
    page = (ROOT / "docs" / "cycles.md").read_text()
    rows = measure(golden)
    assert all(ours <= theirs for _, _, theirs, ours in rows)
    programs = [(theirs, ours) for file, _, theirs, ours in rows if file.startswith("vector_core")]
    assert programs and all(2 * ours <= theirs for theirs, ours in programs)
    listed = re.findall(r"^\| (\S+) \| (.*) \| (\d+) \| (\d+) \| [\d.]+ \|$", page, re.M)
    if len(rows) == len(listed):
        assert page == table(rows), "stale: run `kohakutpu golden DIR --cycles docs/cycles.md` on the full set"
        return
    # A sample numbers its cases anew, so a row is known by its file, what it measures and its two counts.
    assert 0 < len(rows) < len(listed)
    kind = lambda case: re.sub(r"^(case |p)\d+ ", "", case)  # noqa: E731
    known = {(file, kind(case), int(theirs), int(ours)) for file, case, theirs, ours in listed}
    missing = [row for row in rows if (row[0], kind(row[1]), *row[2:]) not in known]
    assert not missing, f"{missing[0]} is not in docs/cycles.md: the models' timing has changed"
