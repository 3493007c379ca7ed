"""Files for wave viewers: every value of every enum, every link, and flits decoded one by one."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kohakutpu.isa.flit import FlitType
from kohakutpu.isa.signals import SignalCode
from kohakutpu.machine import load
from kohakutpu.model.system import System
from kohakutpu.noc.trace import Trace, Transfer
from kohakutpu.view.flit_filter import answer
from kohakutpu.view.topology import Topology
from kohakutpu.view.waves import TABLES, wave_files


def files_of(machine_name, folder=Path("/tmp")):
    machine = load(machine_name)
    return wave_files(Topology(machine, [link.name for link in System(machine).engine.links]), folder)


@pytest.mark.parametrize("stem, name, bits, values", TABLES, ids=[table[0] for table in TABLES])
def test_tables_hold_every_value(stem, name, bits, values):
    """GTKWave replaces what it would print, so keys have all digits of the field; Surfer wants name, bits, values."""
    files = files_of("mm_mesh")
    lines = files[f"{stem}.filter.txt"][0].splitlines()
    assert lines[0] == f"# {name}"
    shown = dict(line.split() for line in lines[1:])
    assert {int(key, 16): text for key, text in shown.items()} == {int(value): value.name for value in values}
    assert all(len(key) == (bits + 3) // 4 for key in shown)
    lines = files[f"surfer/{stem}.mapping"][0].splitlines()
    assert lines[:2] == [f"Name = {name}", f"Bits = {bits}"]
    mapped = dict(line.split() for line in lines[2:])
    assert {int(key, 0): text for key, text in mapped.items()} == {int(value): value.name for value in values}
    assert all(value < 1 << bits for value in values)


def test_tables_say_what_the_spec_says():
    files = files_of("mm_mesh")
    assert "5 CU_INST" in files["flit-type.filter.txt"][0] and "04 FAULT" in files["signal-code.filter.txt"][0]
    assert "0x3 DRAIN" in files["surfer/cluster-op.mapping"][0] and "1f VHALT" in files["vector-word.filter.txt"][0]
    assert len(FlitType) == 10 and len(SignalCode) == 5


@pytest.mark.parametrize("name", ["mm_mesh", "quad", "2x2_6+0"])
def test_the_view_has_every_link(name, tmp_path):
    machine = load(name)
    links = [link.name for link in System(machine).engine.links]
    text, _ = files_of(name, tmp_path)[f"{name}.gtkw"]
    wires = Topology(machine, links).wires
    used = [index for index, wire in enumerate(wires) if wire.sink]
    assert re.findall(r"^machine\.monitor_(\d+)\.flit\[287:0\]$", text, re.M) == [str(index) for index in used]
    assert [line.split(":")[0][1:] for line in text.splitlines() if line.startswith("-")] == [links[at] for at in used]
    assert text.count(f"^>1 {tmp_path}/flits.sh") == len(used)


def test_the_filter_answers_line_by_line(started, fused, tmp_path):
    """As a viewer uses it: a question, its answer, the next question."""
    text, executable = wave_files(Topology(load("mm_mesh"), Trace(fused.path).links), tmp_path)["flits.sh"]
    (tmp_path / "flits.sh").write_text(text)
    assert executable and sys.executable in text
    flits = [record.flit for record in Trace(fused.path) if type(record) is Transfer][:40]
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = ["sh", tmp_path / "flits.sh"]
    with started(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=plain) as process:
        for flit in flits:
            process.stdin.write(f"{flit.to_int():072X}\n")
            process.stdin.flush()
            assert process.stdout.readline().startswith(FlitType(flit.type).name + " (")
        process.stdin.close()
    assert process.returncode == 0


@pytest.mark.parametrize("line", ["x" * 72, "", "zz", "1" * 73])
def test_what_is_no_flit_comes_back(line):
    assert answer(line + "\n") == line


def test_a_flit_is_decoded():
    word = FlitType.CU_SIGNAL << 268 | 1 << 259 | SignalCode.FAULT << 248 | 0x1221 << 272
    assert answer(f"{word:x}") == "CU_SIGNAL (2,1)->(1,2) last | FAULT"
