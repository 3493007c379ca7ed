"""Recordings on the gates: a sample of the whole-mesh runs, with `slow` every file, and what the command says."""

import re
from pathlib import Path

import numpy as np
import pytest

from kohakutpu.cli.main import main
from kohakutpu.conformance import mesh
from kohakutpu.conformance.registry import CHECKS
from sim import golden as gates
from sim.golden_mesh import check_mesh

SAMPLED = Path(__file__).parents[1] / "data" / "golden"


def test_runs_at_the_agents_port():
    memory, flits = check_mesh(SAMPLED / "mesh.npz", simulator="verilator")
    assert memory.mismatched == flits.mismatched == 0, (memory.first, flits.first)
    runs = mesh.port_runs(SAMPLED / "mesh.npz")
    assert memory.compared == len(runs) * mesh.MEMORY_WORDS
    assert flits.compared == sum(len(run.on(1)) for run in runs.values())
    assert flits.cycles and all(ours <= theirs for _, theirs, ours in flits.cycles)


@pytest.mark.slow
@pytest.mark.parametrize("file", gates.CHECKS)
def test_every_recording(golden, file):
    """Every bit, nothing left out, and no less compared than with the models."""
    found = gates.CHECKS[file](golden / file, "verilator")
    for tally in found:
        assert tally.ok and not tally.left_out, (tally.what, tally.first, tally.left_out)
    # of the cluster's operands the models check also how they were made, which is the converter's work
    models = [tally for tally in CHECKS[file](golden / file) if "operands from the quantiser" not in tally.what]
    assert sum(tally.compared for tally in found) >= sum(tally.compared for tally in models)


def test_a_wrong_recording_is_seen(monkeypatch):
    """One bit of one recorded flit, one word of recorded memory."""
    runs = mesh.port_runs(SAMPLED / "mesh.npz")
    name, run = next(iter(runs.items()))
    last = max(index for index, link in enumerate(run.link) if link == 1)
    run.every[last] = run.every[last]._replace(txn=run.every[last].txn ^ 1)
    run.after = run.after.copy()
    run.after[5, 0] ^= 1
    monkeypatch.setattr(mesh, "port_runs", lambda path: {name: run})
    memory, flits = check_mesh(SAMPLED / "mesh.npz", simulator="verilator")
    assert (memory.mismatched, flits.mismatched) == (1, 1)
    assert "memory word 5" in memory.first and name in flits.first


@pytest.mark.parametrize("file, array, message", [
    ("mx_quant.npz", "words_B", "failed: golden_entries"),
    ("vec_alu.npz", "VADD_out", "VADD: .* expected"),
    ("errata_exp2_wrap.npz", "range_out", "range: .* expected"),
    ("vec_cvt.npz", "e8_to_f16", "E8M15 to FP16: .* expected"),
    ("vector_core.npz", "p000_l1_after", "L1 word .*, recorded"),
])  # fmt: skip
def test_one_wrong_bit_in_a_file_is_seen(file, array, message, tmp_path, capsys):
    """Alone in its folder; the command says which vector, and ends with 1."""
    with np.load(SAMPLED / file) as data:
        arrays = dict(data)
    arrays[array].flat[0] ^= 1
    np.savez(tmp_path / file, **arrays)
    assert main(["golden", str(tmp_path), "--engine", "rtl"]) == 1
    assert re.search(message, capsys.readouterr().out)


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
