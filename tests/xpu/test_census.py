"""The census (spec/xpu.md 5.8), and the names of the planted defects."""

import pytest

from kohakutpu.cli.main import main
from kohakutpu.conformance.xpu.census import CensusError, census, excuses, table
from kohakutpu.conformance.xpu.replay import Judgement
from kohakutpu.xpu import Backend, Instantiate, KernelBuffer, Unlowered, XpuError, i32, kernel
from kohakutpu.xpu.faults import FAULTS, active_fault, fault


@kernel
def plain(out: KernelBuffer[i32]):
    out[0] = 1


@Backend("cpu")
@kernel
def native(out: KernelBuffer[i32]):
    out[0] = 1


@Unlowered(backend="ktpu", tracked="item 7")
@kernel
def tracked(out: KernelBuffer[i32]):
    out[0] = 1


@Instantiate(dict(N=2))
@kernel
def family(out: KernelBuffer[i32], *, N):
    out[0] = N


def judged(kernel, outcome, backend="cpu"):
    return Judgement(kernel, backend, f"{kernel}.1", outcome, "")


def classes(kernels, judgements, backends=("cpu", "ktpu"), excused=None):
    lines = census(kernels, backends, judgements, excused or {})
    return {(line.kernel, line.backend): line.word for line in lines}, [line.kernel for line in lines if line.fails]


def test_a_kernel_that_was_compared_and_agreed_is_checked():
    found, failing = classes([plain], [judged("plain", "pass"), judged("plain", "pass", "ktpu")])
    assert found == {("plain", "cpu"): "CHECKED", ("plain", "ktpu"): "CHECKED"} and not failing


@pytest.mark.parametrize("outcome", ["fail", "held", "refused", "undefined", "slow", "missing"])
def test_a_kernel_that_ran_is_not_thereby_checked(outcome):
    found, failing = classes([plain], [judged("plain", outcome)], ["cpu"])
    assert found == {("plain", "cpu"): "RAN-UNCHECKED"} and failing == ["plain"]
    found, failing = classes([plain], [judged("plain", outcome)], ["cpu"], {("plain", "cpu"): "item 3"})
    assert found == {("plain", "cpu"): "TRACKED-UNCHECKED"} and not failing


def test_a_kernel_that_nobody_launched_fails_unless_it_is_excused():
    found, failing = classes([plain], [], ["cpu"])
    assert found == {("plain", "cpu"): "UNCOVERED"} and failing == ["plain"]
    found, failing = classes([plain], [], ["cpu"], {("plain", "cpu"): "item 3"})
    assert found == {("plain", "cpu"): "SKIP"} and not failing


def test_an_excuse_cannot_outlive_its_reason():
    found, failing = classes([plain], [judged("plain", "pass")], ["cpu"], {("plain", "cpu"): "item 3"})
    assert found == {("plain", "cpu"): "STALE-SKIP"} and failing == ["plain"]
    found, failing = classes([tracked], [judged("tracked", "pass", "ktpu")], ["ktpu"])
    assert found == {("tracked", "ktpu"): "STALE-SKIP"} and failing == ["tracked"]


def test_annotations_decline_and_track():
    found, failing = classes([native, tracked], [judged("native", "pass"), judged("tracked", "pass")])
    assert found == {
        ("native", "cpu"): "CHECKED", ("native", "ktpu"): "DECLINED",
        ("tracked", "cpu"): "CHECKED", ("tracked", "ktpu"): "SKIP",
    }  # fmt: skip
    assert not failing


def test_a_template_counts_by_its_members():
    found, failing = classes([family, *family.instances.values()], [], ["cpu"])
    assert found == {("family_2", "cpu"): "UNCOVERED"} and failing == ["family_2"]


def test_the_table():
    lines = census([plain], ["cpu"], [judged("plain", "pass")])
    assert table(lines) == "backend\tkernel\tclass\tlaunches\tchecks\tnote\ncpu\tplain\tCHECKED\t1\t1\t\n"


@pytest.mark.parametrize(
    "text, reason",
    [("plain\tcpu", "kernel, back end and plan item are expected"), ("a\tb\t", "plan item are expected, not"),
     ("plain\tcpu\tx\nplain\tcpu\ty", "e.tsv:2: plain on cpu again")],
)  # fmt: skip
def test_excuses_that_are_refused(text, reason):
    with pytest.raises(CensusError, match=reason):
        excuses(text, "e.tsv")


def test_an_excuse_for_what_is_not_there_is_refused():
    for excused in ({("gone", "cpu"): "item 3"}, {("plain", "gpu"): "item 3"}):
        with pytest.raises(CensusError, match="the census holds no such kernel or back end"):
            census([plain], ["cpu"], [], excused)
    assert excuses("# none\n\nplain\tcpu\titem 3\n", "e") == {("plain", "cpu"): "item 3"}


PROGRAM = """
import kohakutpu.reference.xpu
from kohakutpu.xpu import KernelBuffer, i32, kernel

@kernel
def one(out: KernelBuffer[i32]):
    out[0] = 1

@kernel
def two(out: KernelBuffer[i32]):
    out[0] = 2
"""


def test_the_command(tmp_path, monkeypatch, capsys):
    from kohakutpu.conformance.xpu.load import load

    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    monkeypatch.setenv("XPU_RECORD", str(tmp_path / "corpus"))
    monkeypatch.setenv("XPU_BACKEND", "reference")
    load([str(program)])[0].launch(stream(), grid=1)(KernelBuffer(i32, 1))
    command = ["xpu", "census", str(tmp_path / "corpus"), "--kernels", str(program), "--backend", "reference"]
    assert main(command) == 1
    out, err = capsys.readouterr()
    assert out.splitlines()[1:] == ["reference\tone\tCHECKED\t1\t1\t", "reference\ttwo\tUNCOVERED\t0\t0\t"]
    assert err.splitlines()[-1] == "2 lines, 1 neither checked nor excused"
    (tmp_path / "excuses.tsv").write_text("two\treference\titem 9\n")
    assert main([*command, "--excuses", str(tmp_path / "excuses.tsv")]) == 0
    assert "reference\ttwo\tSKIP\t0\t0\titem 9" in capsys.readouterr().out


def stream():
    from kohakutpu.reference.xpu import ReferenceBackEnd
    from kohakutpu.xpu import KernelStream
    from kohakutpu.xpu.launch import Runtime

    runtime = Runtime()
    runtime.register(ReferenceBackEnd())
    return KernelStream(runtime)


def test_a_planted_defect_goes_by_its_name(monkeypatch):
    monkeypatch.delenv("XPU_FAULT", raising=False)
    assert active_fault() is None and not any(map(fault, FAULTS))
    monkeypatch.setenv("XPU_FAULT", "call-result-sign")
    assert [name for name in FAULTS if fault(name)] == ["call-result-sign"]
    monkeypatch.setenv("XPU_FAULT", "typo")
    with pytest.raises(XpuError, match="XPU_FAULT=typo: the faults are dot-activation-sign, vector-lane-sign"):
        active_fault()
    with pytest.raises(ValueError, match="no fault is called 'typo'"):
        fault("typo")
