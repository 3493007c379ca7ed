"""Every command of the guide in docs/kernels.md runs, and every kernel of it is byte-equal."""

import re
import shlex
import subprocess
from functools import partial
from pathlib import Path

import pytest

from kohakutpu.cli.main import main

ROOT = Path(__file__).parents[2]


GUIDE = (ROOT / "docs" / "kernels.md").read_text().split("## From a product to a gated layer")[1].split("\n## ")[0]


def commands() -> list[str]:
    return [line for block in re.findall(r"```\n(.*?)```", GUIDE, re.S) for line in block.splitlines()]


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
    written = {path.name for path in tmp_path.iterdir()} - {"examples"}
    assert {"layer.trace", "layer.html", "layer.json.gz"} <= written
    (tmp_path / ".gitignore").write_bytes((ROOT / ".gitignore").read_bytes())
    run = partial(subprocess.run, check=True, capture_output=True, text=True)
    run(["git", "init", "-q", "."])
    assert run(["git", "status", "--porcelain"]).stdout.split() == ["??", ".gitignore", "??", "examples"]


def test_no_file_of_the_project_is_ignored():
    if not (ROOT / ".git").exists():
        pytest.skip("not a checkout")
    listing = ["git", "ls-files", "--cached", "--ignored", "--exclude-standard"]
    assert subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True).stdout == ""


@pytest.mark.parametrize("rows, knobs", [(32, []), (32, ["gm=8", "gn=8"]), (256, ["fuse=False"])])
def test_the_figures_of_the_layer_are_measured(rows, knobs, tmp_path, capsys):
    """Cycles of `run` and of `report`, and the share in which everything waits for the host."""
    command = next(line for line in commands() if "--trace layer.trace" in line).replace("x=32x64", f"x={rows}x64")
    command = command.replace("examples/", f"{ROOT}/examples/").replace("layer.trace", str(tmp_path / "layer.trace"))
    assert main([*shlex.split(command)[1:], *(word for knob in knobs for word in ("--knob", knob))]) == 0
    ran = int(re.search(r"model: (\d+) cycles", capsys.readouterr().out)[1])
    assert main(["report", str(tmp_path / "layer.trace")]) == 0
    report = capsys.readouterr().out
    cycles, host = (int(re.search(what, report)[1].replace(",", "")) for what in (r": ([\d,]+) cycles\n", r"host ([\d,]+)\n"))
    share = f"{100 * host / cycles:.0f} %"
    if knobs == ["fuse=False"]:
        said = f"`--shape x={rows}x64 --knob fuse=False` in place of `--shape x=32x64` {share}"
    elif knobs:
        said = f"{share} with `{' '.join(f'--knob {knob}' for knob in knobs)}`"
    else:
        said = f"{share} of the cycles here"
        assert f"`run` says {ran:,} cycles and the report {cycles:,} " in GUIDE
    assert said in " ".join(GUIDE.split())
