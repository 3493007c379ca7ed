"""Every command of the guide in docs/kernels.md runs, and every kernel of it is byte-equal."""

import re
import shlex
from pathlib import Path

from kohakutpu.cli.main import main

ROOT = Path(__file__).parents[2]


def commands() -> list[str]:
    page = (ROOT / "docs" / "kernels.md").read_text()
    guide = page.split("## From a product to a gated layer")[1].split("\n## ")[0]
    return [line for block in re.findall(r"```\n(.*?)```", guide, re.S) for line in block.splitlines()]


def test_every_command_runs(tmp_path, monkeypatch, capsys):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    found = commands()
    assert {"matmul", "activated", "gated", "layer"} <= set(re.findall(r"kernels.py:(\w+)", " ".join(found)))
    for line in found:
        name, *arguments = shlex.split(line)
        assert name == "kohakutpu" and main(arguments) == 0, line
        out = capsys.readouterr().out
        assert out and ("run" not in arguments[:1] or "byte-equal" in out.splitlines()[-1] or "saturated" in out), line
    assert {"layer.trace", "layer.html", "layer.json.gz"} <= {path.name for path in tmp_path.iterdir()}
