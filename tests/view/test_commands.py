"""`kohakutpu view` and `kohakutpu report` as a person meets them."""

import gzip
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kohakutpu.cli.main import main
from kohakutpu.kernels.linear import matmul
from kohakutpu.noc.trace import Trace

from .conftest import measured, traced

LIMIT = 2 << 30  # bytes of memory for whoever looks at a long trace


@pytest.fixture
def call(capsys):
    def run(*argv):
        try:
            status = main([str(item) for item in argv])
        except SystemExit as end:
            status = end.code
        out, err = capsys.readouterr()
        return status, out, err

    return run


def test_report_says_where_the_cycles_went(call, fused):
    status, out, _ = call("report", fused.path)
    whole = measured(fused.path).whole
    assert status == 0
    for text in (
        f"fused: mm_mesh, cycles {whole.start:,} to {whole.end:,}: {whole.cycles:,} cycles", "limiter: ",
        f"DRAM {fused.run.dram_read:,} bytes read, {fused.run.dram_written:,} bytes written",
        f"NoC {fused.run.hops:,} flits over links, {36 * fused.run.hops:,} bytes", "cluster: 2 FILL, 1 GEMM, 1 DRAIN",
        "cluster0   (2,1)", "r11.north      r11 to vector0", "131,072 operations, 16.00 operations a byte",
    ):  # fmt: skip
        assert text in out, text


def test_report_compares(call, fused, staged):
    status, out, _ = call("report", fused.path, staged.path)
    assert status == 0 and "staged takes" in out and "more cycles" in out


def test_report_as_json(call, tmp_path, any_run):
    assert call("report", any_run.path, "--json", tmp_path / "r.json")[0] == 0
    (record,) = json.loads((tmp_path / "r.json").read_text())
    assert record["flit_hops"] == any_run.run.hops == sum(record["links"].values())
    assert record["dram_read_bytes"] == any_run.run.dram_read and record["machine"] == any_run.machine.name
    for key in ("cycles", "flit_hops", "dram_read_bytes", "dram_written_bytes", "operations"):
        assert sum(part[key] for part in record["parts"]) == record[key]
    for spent in record["states"].values():
        assert sum(spent.values()) == record["cycles"]


def test_view_writes_everything(call, tmp_path, fused, staged):
    status, out, _ = call("view", f"one={fused.path}", f"two={staged.path}", "-o", tmp_path / "look")
    assert status == 0
    names = {"index.html", "one.perfetto.json.gz", "two.perfetto.json.gz", "waves/mm_mesh.gtkw", "waves/flits.sh"}
    written = {str(path.relative_to(tmp_path / "look")) for path in map(Path, out.split())}
    assert names <= written and all((tmp_path / "look" / name).stat().st_size for name in written)
    assert json.loads(gzip.decompress((tmp_path / "look" / "two.perfetto.json.gz").read_bytes()))["traceEvents"]
    assert os.access(tmp_path / "look" / "waves" / "flits.sh", os.X_OK)
    assert not list(tmp_path.rglob(".*"))


def test_view_one_file_each(call, tmp_path, fused):
    assert call("view", fused.path, "--perfetto", tmp_path / "t.json", "--html", tmp_path / "p.html")[0] == 0
    assert json.loads((tmp_path / "t.json").read_text())["otherData"]["machine"] == "mm_mesh"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.html", "t.json"]


@pytest.mark.parametrize(
    "more, reason",
    [
        ([], "nothing to write was asked for"),
        (["--html", "{tmp}/p.html", "--dark"], "--dark is about the picture"),
        (["{trace}", "--html", "{tmp}/p.html"], "two traces are called fused"),
        (["other={trace}", "--perfetto", "{tmp}/t.json"], "--perfetto holds one trace and 2 are named"),
        (["--html", "{tmp}/none/p.html"], "there is no directory"),
        (["--html", "{tmp}/p", "--perfetto", "{tmp}/p"], "is named for two outputs"),
        (["-o", "{trace}"], "is no folder"),
        (
            ["--html", "{tmp}/p.html", "--from", "900", "--to", "800"],
            "cycles 900 to 800 were asked for; the trace has 0 to",
        ),
        (["x=/nowhere/t.trace", "--html", "{tmp}/p.html"], "/nowhere/t.trace"),
        (["x={text}", "--html", "{tmp}/p.html"], "this is no trace"),
    ],
)
def test_view_refuses(call, tmp_path, fused, more, reason):
    (tmp_path / "notes.txt").write_text("not a trace at all, only words")
    words = [word.format(tmp=tmp_path, trace=fused.path, text=tmp_path / "notes.txt") for word in more]
    status, out, err = call("view", fused.path, *words)
    assert status == 2 and out == "" and reason in err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_report_refuses_a_damaged_trace(call, tmp_path, fused):
    data = bytearray(fused.path.read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "bad.trace").write_bytes(data)
    status, out, err = call("report", tmp_path / "bad.trace")
    assert status == 2 and out == "" and "corrupt" in err


@pytest.mark.slow
def test_a_million_cycles(tmp_path):
    """Written by the models and looked at in every way, each in a process of its own with a limit on its memory."""
    random = np.random.default_rng(1)
    operands = {"a": random.normal(0, 0.3, (512, 512)), "b": random.normal(0, 0.3, (640, 512))}
    operands = {name: array.astype(np.float16) for name, array in operands.items()}
    path = tmp_path / "long.trace"
    run = traced(path, "mm_mesh", matmul, operands, {"gm": 8, "gn": 8, "nk": 2})
    assert Trace(path).cycles > 1_000_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10 < LIMIT
    command = [Path(sys.executable).parent / "kohakutpu"]
    for words in (
        ["report", path, "--json", tmp_path / "r.json"],
        ["view", path, "--html", tmp_path / "p.html", "--perfetto", tmp_path / "t.json.gz"],
    ):  # fmt: skip
        subprocess.run([*command, *words], check=True, stdout=subprocess.DEVNULL)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
        assert peak < LIMIT, f"{words[0]}: {peak:,} bytes"
    (record,) = json.loads((tmp_path / "r.json").read_text())
    assert record["flit_hops"] == run.run.hops and record["dram_read_bytes"] == run.run.dram_read
    assert record["operations"] == 2 * 512 * 512 * 640
    assert (tmp_path / "p.html").stat().st_size < 8 << 20
