"""Every machine in machines/ runs the example kernels byte-equal, or says by name why it cannot."""

import re
from pathlib import Path

import pytest

from kohakutpu.cli.main import main
from kohakutpu.machine import list_machines, load
from kohakutpu.model import faults

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", list_machines())
def test_sim(name, capsys):
    status = main(["sim", "--machine", name])
    out, err = capsys.readouterr()
    machine = load(name)
    if machine.compile_only:
        assert status == 2 and "compile-only" in err
    else:
        assert status == 0 and "NOT" not in out
        runs = 2 if machine.vectors and machine.clusters else 1
        assert len(re.findall(r"^  byte-equal$", out, re.M)) == runs


def test_the_page_of_faults_is_the_registry():
    page = (ROOT / "docs" / "faults.md").read_text()
    rows = dict(re.findall(r"^\| `(\S+)` \| (.*) \|$", page, re.M))
    assert rows == faults.table()
