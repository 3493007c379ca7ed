"""`kohakutpu fuzz`: exit statuses, files, refusals."""

import json
import re
import signal
import subprocess
import sys

import pytest

from kohakutpu.cli.main import main
from kohakutpu.fuzz import campaign
from kohakutpu.fuzz.program import from_text

HEAD = "machine mm_mesh\nmemory 1\nprogram 0\n"


def fuzz(capsys, *words):
    status = main(["fuzz", *map(str, words)])
    out, err = capsys.readouterr()
    return status, out, err


def test_nothing_differs_and_coverage_adds_up(capsys, tmp_path):
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for seed, path in enumerate(files):
        status, out, _ = fuzz(capsys, "--programs", 6, "--seed", seed, "--coverage", path, "--out", tmp_path)
        assert status == 0 and "0 differing" in out and "6 programs on mm_mesh" in out
    rest = tmp_path / "rest.json"
    status, out, _ = fuzz(
        capsys, "--programs", 3, "--start", 50, "--seed", 1, "--coverage", rest, "--bins", "--out", tmp_path
    )
    assert status == 0 and "not hit: vector words: VFILL 4 dimensions" in out and "--bins names" not in out
    data = json.loads(rest.read_text())["bins"]
    assert sorted(re.findall("^not hit: (.*)$", out, re.M)) == sorted(
        f"{group}: {name}" for group, bins in data.items() for name, count in bins.items() if count == 0
    )
    total = tmp_path / "all.json"
    status, out, _ = fuzz(capsys, "--programs", 0, "--merge", *files, "--coverage", total)
    assert status == 0 and "12 programs on mm_mesh" in out
    added = json.loads(total.read_text())["bins"]["signals"]["cluster INST_COMPLETE"]
    assert added == sum(json.loads(path.read_text())["bins"]["signals"]["cluster INST_COMPLETE"] for path in files) > 0
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".fuzz"] == []


def test_a_fault_ends_with_one_and_a_file_that_shows_it_again(capsys, tmp_path):
    words = ("--fault", "cluster-tile-bit")
    status, out, _ = fuzz(capsys, "--programs", 10, *words, "--out", tmp_path)
    saved = tmp_path / "mm_mesh-0.fuzz"
    assert status == 1 and "answer differs in program" in out and str(saved) in out.replace("\n", "")
    assert fuzz(capsys, "--replay", saved, *words)[0] == 1
    assert fuzz(capsys, "--replay", saved)[0] == 0


def test_what_was_not_hit_is_counted_and_its_names_are_an_option(capsys, tmp_path):
    _, out, _ = fuzz(capsys, "--programs", 2, "--out", tmp_path)
    assert "not hit:" not in out and re.search(
        r"of \d+ reachable bins, [\d.]+ %; --bins names the other \d+$", out, re.M
    )
    assert "left out: signals: 2: no unit sends it: barriers are the controller's\n" in out


class Interrupting:
    """Stands for `time.monotonic`: minutes pass between two calls, and the person presses Ctrl-C after `calls`."""

    def __init__(self, calls):
        self.calls, self.now = calls, 0

    def __call__(self):
        self.now += 100
        self.calls -= 1
        if self.calls < 0:
            raise KeyboardInterrupt
        return self.now


@pytest.mark.parametrize("calls", [1, 12])
def test_stopped_while_it_is_made_small_the_best_so_far_is_saved(capsys, tmp_path, monkeypatch, calls):
    monkeypatch.setattr(campaign.time, "monotonic", Interrupting(calls))
    words = ("--fault", "cluster-tile-bit")
    status, out, _ = fuzz(capsys, "--programs", 10, *words, "--out", tmp_path)
    tried = re.findall(r"^(\d+) tr(?:y|ies), (\d+) flits? left$", out, re.M)
    assert status == 1 and "stopped; it may not be as small as it could be" in out
    saved = from_text((tmp_path / "mm_mesh-0.fuzz").read_text(), "saved")
    assert len(tried) == (calls - 1) // 2 and (not tried or saved.size <= int(tried[-1][1]))
    monkeypatch.undo()
    assert fuzz(capsys, "--replay", tmp_path / "mm_mesh-0.fuzz", *words)[0] == 1


def test_terminated_while_it_is_made_small_the_best_so_far_is_saved(started, tmp_path):
    words = ["fuzz", "--programs", "10", "--fault", "cluster-tile-bit", "--out", str(tmp_path)]
    command = [sys.executable, "-m", "kohakutpu.cli.main", *words]
    with started(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        while not (line := run.stdout.readline()).startswith("making it small"):
            assert line, "it ended too early"
        run.send_signal(signal.SIGTERM)
        rest = run.stdout.read()
    assert run.returncode == 1 and "stopped; it may not be as small as it could be" in rest and "Traceback" not in rest
    assert from_text((tmp_path / "mm_mesh-0.fuzz").read_text(), "saved").programs


def test_stopped_before_anything_was_found(capsys, tmp_path, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(campaign, "play_case", stop)
    status, _, err = fuzz(capsys, "--programs", 10, "--out", tmp_path, "--coverage", tmp_path / "c.json")
    assert status == 130 and err == "kohakutpu fuzz: stopped\n" and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words, why",
    [
        (["--programs", "-1"], "--programs -1: a number from 0 on is expected"),
        (["--seed", "-2"], "--seed -2: a number from 0 on is expected"),
        (
            ["--start", "70"],
            "--start 70: 50 programs share a machine, and the first of them is a multiple of 50, such as 50",
        ),
        (["--replay", "{good}", "--start", "50"], "does not go with --programs and --start"),
        (["--programs", "0"], "there is no --merge"),
        (["--machine", "nowhere"], "nowhere"),
        (["--fault", "gold"], "no fault is named 'gold'"),
        (["--gate-fault", "cluster=x"], "needs --engine rtl"),
        (["--out", "/nowhere"], "no such directory"),
        (["--replay", "{bad}"], "bad.fuzz:4:"),
        (["--replay", "{good}", "--programs", "3"], "does not go with --programs and --start"),
        (["--replay", "{good}", "--machine", "quad"], "is of mm_mesh"),
        (["--merge", "{good}"], "no coverage file"),
        (["--coverage", "/nowhere/c.json"], "no directory"),
    ],
)
def test_refusals(capsys, tmp_path, words, why):
    files = {"good": tmp_path / "good.fuzz", "bad": tmp_path / "bad.fuzz"}
    files["good"].write_text(HEAD + "on a\n  CU_INST (1,1)->(2,1) | DRAIN\n")
    files["bad"].write_text(HEAD + "in a\n")
    status, _, err = fuzz(capsys, *[word.format(**files) for word in words])
    assert status == 2 and why in err
