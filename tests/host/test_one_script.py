"""examples/drive.py and `kohakutpu serve`: a script that does not know what answers it."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kohakutpu.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "drive.py"


def drive(*arguments):
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, cwd=ROOT)


def test_the_script_on_the_models_recorded_and_replayed(tmp_path):
    seen = [drive(spec) for spec in ("model", f"record:{tmp_path}/s.jsonl.gz:model", f"replay:{tmp_path}/s.jsonl.gz")]
    assert [run.returncode for run in seen] == [0, 0, 0] and not any(run.stderr for run in seen)
    assert "byte-equal" in seen[0].stdout and "as written" in seen[0].stdout and len({run.stdout for run in seen}) == 1


@pytest.mark.parametrize(
    "arguments, status, said",
    [
        (("model", "mm_mesh", "vector-alu-sign"), 1, "y differs at byte"),
        (("model", "mm_mesh", "noc-lost-tail"), 4, "nodes:"),
        (("socket:/nowhere/at-all",), 3, "nobody serves mm_mesh"),
    ],
)
def test_the_verdicts_of_the_script(arguments, status, said):
    run = drive(*arguments)
    assert run.returncode == status and said in run.stdout + run.stderr


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_scripts_share_a_served_machine_one_after_the_other(started, tmp_path, stop):
    """Until a signal, also one that the shell of a script has told its background jobs to ignore."""
    address = tmp_path / "served"
    command = [sys.executable, "-m", "kohakutpu.cli.main", "serve", "--machine", "mm_mesh", "--listen", str(address)]
    ignoring = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command]
    with started(ignoring, stdout=subprocess.PIPE, text=True, cwd=ROOT) as server:
        assert server.stdout.readline() == "opening model to mm_mesh\n"
        assert server.stdout.readline() == f"ready on {address}: mm_mesh (model); Ctrl-C or SIGTERM ends it\n"
        other = drive(f"socket:{address}", "quad")
        runs = [drive(f"socket:{address}") for _ in range(2)]
        server.send_signal(stop)
        rest = server.stdout.read()
    assert other.returncode == 2 and "mm_mesh is served here, and not quad" in other.stderr
    assert [run.returncode for run in runs] == [0, 0] and runs[0].stdout == runs[1].stdout == drive("model").stdout
    assert server.returncode == 0 and int(re.match(r"([\d,]+) requests done", rest)[1].replace(",", "")) > 200
    assert not address.exists()


def test_what_cannot_be_served(tmp_path, capsys):
    for arguments, status, said in (
        (["--listen", "0.0.0.0:7000"], 3, "0.0.0.0: a machine is served to this computer alone"),
        (["--listen", str(tmp_path)], 3, "it is there and is no socket"),
        (["--listen", str(tmp_path / "s"), "--transport", "card"], 2, "no transport 'card'"),
        (
            ["--listen", str(tmp_path), "--transport", "rtl"],
            3,
            "it is there and is no socket",
        ),  # before gates are compiled
    ):
        assert main(["serve", *arguments]) == status
        assert said in capsys.readouterr().err


def test_a_kernel_runs_over_any_transport(tmp_path, capsys):
    kernel = ["run", "kohakutpu.kernels.linear:linear_silu", "--machine", "mm_mesh", "--knob", "gm=8", "--knob", "gn=8"]
    kernel += ["--shape", "x=32x64", "--shape", "w=32x64", "--random", "1"]
    seen = []
    for transport in (f"record:{tmp_path}/s.jsonl.gz:model", f"replay:{tmp_path}/s.jsonl.gz"):
        assert main([*kernel, "--transport", transport, "--report", str(tmp_path / "r.json")]) == 0
        seen.append(capsys.readouterr().out.replace(transport, "T"))
        report = json.loads((tmp_path / "r.json").read_text())
        assert report["byte_equal"] and report["unit"] == "cycles" and report["engine"] == transport
    assert seen[0] == seen[1] and re.match(r"linear_silu on mm_mesh, T: \d+ cycles, 49 instruction flits\n", seen[0])
    assert main([*kernel, "--transport", "model", "--fault", "vector-alu-sign"]) == 1
    assert "y differs at byte" in capsys.readouterr().out
    for option in (["--no-skip"], ["--engine", "rtl"], ["--trace", str(tmp_path / "t")]):
        assert main([*kernel, "--transport", "model", *option]) == 2
        assert f"--transport model is what runs it: it does not go with {option[0]}" in capsys.readouterr().err
    assert main([*kernel, "--transport", "xdma:/dev/null/x"]) == 3
