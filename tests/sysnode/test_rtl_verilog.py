"""The Verilog of a machine: the same bytes in every process, a header that says what it is, refusals by name."""

import dataclasses
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kohakutpu.cli.main import main
from kohakutpu.machine import MachineError, load
from rtl.top import DIGEST_LABEL, TOP, CannotBuild, MachineTop

ROOT = Path(__file__).resolve().parents[2]
ONE = "1x1_min"


def test_two_processes_write_the_same_bytes(tmp_path):
    written = []
    for seed in ("1", "2"):
        path = tmp_path / f"{seed}.v"
        command = [sys.executable, "-m", "kohakutpu.cli.main", "rtl", ONE, "-o", str(path)]
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        )
        assert str(path) in done.stdout
        written.append(path.read_text())
    assert written[0] == written[1]
    lines = written[0].splitlines()
    header = [line for line in lines if line.startswith("//")]
    machine = load(ONE)
    assert f"machine {ONE}: 1 x 1 routers, 1 memory ports, 1 clusters, 1 vector cores" in header[0]
    assert any(f"tiles {machine.clusters[0].tiles}" in line for line in header)
    assert any("Amaranth" in line for line in header)
    body = written[0].split(header[-1] + "\n", 1)[1]
    assert f"// {DIGEST_LABEL}{hashlib.sha256(body.encode()).hexdigest()}" in header
    assert sum(line.startswith(f"module {TOP}(") for line in lines) == 1


def test_a_machine_for_compiling_only_is_refused(tmp_path, capsys):
    assert main(["rtl", "seed_case", "-o", str(tmp_path / "x.v")]) == 2
    assert "compile-only" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_errata_that_gates_do_not_reproduce_are_refused():
    machine = dataclasses.replace(load("mm_mesh"), errata=frozenset({"exp2-wrap", "fp32-store"}))
    with pytest.raises(CannotBuild, match="errata fp32-store"):
        MachineTop(machine)
    with pytest.raises(MachineError, match="compile-only"):
        MachineTop(load("seed_case"))
    with pytest.raises(ValueError, match="'orchestrator' or 'bench'"):
        MachineTop(load("mm_mesh"), agent="host")
