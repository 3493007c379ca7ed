"""`kohakutpu fuzz`: exit statuses, files, refusals."""

import json

import pytest

from kohakutpu.cli.main import main

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


@pytest.mark.parametrize(
    "words, why",
    [
        (["--programs", "-1"], "neither is negative"),
        (["--programs", "0"], "there is no --merge"),
        (["--machine", "nowhere"], "nowhere"),
        (["--fault", "gold"], "no fault is named 'gold'"),
        (["--gate-fault", "cluster=x"], "needs --engine rtl"),
        (["--out", "/nowhere"], "no such directory"),
        (["--replay", "{bad}"], "bad.fuzz:4:"),
        (["--replay", "{good}", "--programs", "3"], "does not go with --programs"),
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
