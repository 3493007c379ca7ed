"""The regression command and its report: what must fail a run does, by name."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from junitparser import JUnitXml

from kohakutpu.cli.main import main
from sim import bench_log, report, runner

ROOT = Path(__file__).resolve().parents[2]
JUNIT = '<testsuites><testsuite name="pytest">{}</testsuite></testsuites>'
GOOD = '<testcase classname="tests.a.test_b" name="test_c[x]" time="1.5"/>'
BAD = '<testcase classname="tests.a.test_b" name="test_c[x]"><failure message="no"/></testcase>'
SKIPPED = '<testcase classname="tests.a.test_b" name="test_c[x]"><skipped message="no"/></testcase>'
TEST = "tests/a/test_b.py::test_c[x]"
BENCH = '<testsuites><testsuite name="bench"><testcase classname="bench_b" name="counts">{}</testcase></testsuite></testsuites>'
FAILURE = '<failure message="1 != 2"/>'


@pytest.fixture
def run(tmp_path, monkeypatch):
    """run(pytest's cases, the result file of one bench or None): what `merge` makes of them."""
    folder = tmp_path / "benches"
    folder.mkdir()
    monkeypatch.setenv(bench_log.VARIABLE, str(folder))

    def merge(cases, *benches, test=TEST):
        monkeypatch.setenv("PYTEST_CURRENT_TEST", f"{test} (call)" if test else "")
        for text in benches:
            name = bench_log.began("bench_b", "icarus", 7)
            result = tmp_path / "results.xml"
            result.unlink(missing_ok=True)
            if text is not None:
                result.write_text(text)
            bench_log.ended(name, result)
        (tmp_path / "pytest.xml").write_text(JUNIT.format(cases))
        return report.merge(tmp_path / "pytest.xml", folder)

    return merge


def test_benches_stand_beside_tests(run, tmp_path):
    bench_log.built("counter", "icarus", tmp_path, cached=True)
    merged, summary = run(GOOD, BENCH.format(""), BENCH.format(""))
    assert summary.good and summary.runs == 2 and summary.benches == {"passed": 2} and summary.builds == {True: 1}
    again = JUnitXml.fromstring(merged.tostring())
    names = [(case.classname, case.name) for suite in again for case in suite]
    assert names == [("tests.a.test_b", "test_c[x]"), *[("bench_b.icarus", f"counts of {TEST}")] * 2]
    assert (again.tests, again.failures, again.errors) == (3, 0, 0)


def test_a_failing_test_fails(run):
    merged, summary = run(BAD)
    assert not summary.good and summary.failures == ["tests.a.test_b::test_c[x]"] and merged.failures == 1


def test_a_bench_that_fails_in_a_failing_test_fails(run):
    merged, summary = run(BAD, BENCH.format(FAILURE))
    assert (
        summary.benches == {"failed": 1} and any("seed 7" in line for line in summary.failures) and merged.failures == 2
    )


def test_a_planted_fault_that_a_test_wants_is_no_failure(run):
    merged, summary = run(GOOD, BENCH.format(FAILURE))
    assert summary.good and summary.benches == {"wanted": 1} and merged.failures == 0
    assert b"failed, as its test demands: 1 != 2" in merged.tostring()


@pytest.mark.parametrize("test", ["", "tests/a/test_b.py::test_other"])
def test_a_failing_bench_that_no_passing_test_wants_fails(run, test):
    _, summary = run(GOOD, BENCH.format(FAILURE), test=test)
    assert not summary.good and summary.benches == {"failed": 1}


@pytest.mark.parametrize("text", [None, "<testsuites><testsuite", ""])
def test_a_bench_without_a_report_fails(run, text):
    merged, summary = run(BAD, text)
    assert summary.benches == {"failed": 1} and merged.errors == 1


def test_an_empty_run_fails(run):
    for cases in ("", SKIPPED):
        with pytest.raises(report.ReportError, match="no test ran"):
            run(cases)


@pytest.mark.parametrize("text", [None, "<testsuites><testsuite", "", "<html/>"])
def test_a_missing_report_fails(tmp_path, text):
    if text is not None:
        (tmp_path / "pytest.xml").write_text(text)
    with pytest.raises(report.ReportError, match="no report|no complete JUnit|no test ran"):
        report.merge(tmp_path / "pytest.xml", tmp_path)


@pytest.mark.parametrize(
    "test, classname, name",
    [
        ("tests/a/test_b.py::test_c", "tests.a.test_b", "test_c"),
        ("tests/a/test_b.py::Group::test_c[1-2]", "tests.a.test_b.Group", "test_c[1-2]"),
        ("test_b.py::test_c[a::b/c.py]", "test_b", "test_c[a::b/c.py]"),
    ],
)
def test_tests_are_found_by_junits_names(test, classname, name):
    assert report.place(test) == (classname, name)


# ---- the command -----------------------------------------------------------------------------------

TESTS = {
    "right": ("def test_it(): pass\n", 0, "1 test passed"),
    "wrong": ("def test_it(): assert False\n", 1, "FAILED"),
    "empty": ("", 1, "no test ran"),
    "skipped": ("import pytest\n@pytest.mark.skip\ndef test_it(): pass\n", 1, "no test ran"),
    "unimportable": ("import nothing_of_this_name\n", 1, "FAILED"),
    "killed": ("import os\ndef test_it(): os._exit(0)\n", 1, "there is no report"),
    "misused": ("def test_it(): pass\n", 1, "there is no report|no test ran"),
    "bench": (
        "def test_it():\n    from sim import bench_log\n    from pathlib import Path\n"
        "    bench_log.ended(bench_log.began('bench_b', 'icarus', 7), Path('nowhere'))\n    assert False\n",
        1, "no result file|FAILED bench bench_b",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TESTS)
def test_the_commands_verdict(tmp_path, capfd, case):
    text, status, said = TESTS[case]
    (tmp_path / f"test_{case}.py").write_text(text)
    options = ["--no-such-option"] if case == "misused" else []
    command = [
        "ci", "-o", str(tmp_path / "out"), "--", "-q", "-p", "no:cacheprovider", *options,
        str(tmp_path / f"test_{case}.py"),
    ]  # fmt: skip
    assert main(command) == status
    out, err = capfd.readouterr()
    assert re.search(said, out + err)
    assert (tmp_path / "out" / "summary.md").read_text().startswith("- ")
    assert (tmp_path / "out" / "report.xml").exists() == (
        said not in ("no test ran", "there is no report") and case != "misused"
    )


def test_reports_of_an_earlier_run_do_not_stay(tmp_path, capfd):
    out = tmp_path / "out"
    (tmp_path / "test_right.py").write_text(TESTS["right"][0])
    command = ["ci", "-o", str(out), "--", "-q", "-p", "no:cacheprovider"]
    assert main([*command, str(tmp_path / "test_right.py")]) == 0 and (out / "report.xml").exists()
    assert main([*command, str(tmp_path / "test_gone.py")]) == 1 and not (out / "report.xml").exists()
    capfd.readouterr()


def test_a_folder_of_other_files_is_left_alone(tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("")
    assert main(["ci", "-o", str(tmp_path)]) == 2
    assert "holds something else" in capsys.readouterr().err and (tmp_path / "thesis.tex").exists()


# ---- what the runner logs ----------------------------------------------------------------------------


@pytest.mark.gates
def test_a_simulation_is_in_the_log(tmp_path, monkeypatch):
    log = tmp_path / "log"
    log.mkdir()
    monkeypatch.setenv(bench_log.VARIABLE, str(log))
    monkeypatch.setattr(runner, "BUILD", tmp_path / "build")
    source = "module still(input clk); endmodule\n"
    bench = "import cocotb\nfrom cocotb.triggers import Timer\n@cocotb.test()\nasync def waits(dut):\n    await Timer(1, 'ns')\n"
    (tmp_path / "bench_still.py").write_text(bench)
    for _ in range(2):
        folder = runner.build(source, top="still", simulator="icarus")
        runner.run(folder, top="still", simulator="icarus", module="bench_still", search=[tmp_path], seed=3)
    events = [json.loads(line) for line in (log / bench_log.EVENTS).read_text().splitlines()]
    assert [event["event"] for event in events] == ["build", "run"] * 2
    assert [event["cached"] for event in events[::2]] == [False, True]
    assert events[1]["test"] == "tests/ci/test_report.py::test_a_simulation_is_in_the_log"
    (tmp_path / "pytest.xml").write_text(JUNIT.format(GOOD))
    _, summary = report.merge(tmp_path / "pytest.xml", log)
    assert summary.benches == {"passed": 2} and summary.builds == {False: 1, True: 1}


# ---- the workflow file -------------------------------------------------------------------------------

WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())
STEPS = [step for job in WORKFLOW["jobs"].values() for step in job["steps"]]


def test_the_workflow_hides_no_failure():
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert "continue-on-error" not in text and "|| true" not in text
    assert [step["run"] for step in STEPS if step.get("run", "").startswith("make ci")]
    for step in STEPS:
        # an action by version, a command, and nothing else
        assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step["uses"]) if "uses" in step else step["run"]


def test_the_workflow_uses_what_there_is():
    """Make knows its targets, its paths exist, and its cache is keyed by all that builds depend on."""
    commands = "\n".join(step.get("run", "") for step in STEPS)
    for target in re.findall(r"^make (\w+)", commands, re.M):
        done = subprocess.run(["make", "-n", target, "PYTHON=true"], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    (cache,) = [step["with"] for step in STEPS if "actions/cache@" in step.get("uses", "")]
    hashed = re.findall(r"'([\w./*-]+)'", cache["key"])
    assert hashed and all(next(ROOT.glob(pattern), None) for pattern in hashed)
    assert {"rtl/**", "sim/**", "machines/**", "kohakutpu/**", "constraints.txt"} <= set(hashed)
    uploads = [step for step in STEPS if "upload-artifact" in step.get("uses", "")]
    assert uploads and all(step["if"] == "always()" for step in uploads)


def test_make_ci_honours_the_status(tmp_path):
    """Make fails when the command does."""
    fake = tmp_path / "bin"
    fake.mkdir()
    (fake / "kohakutpu").write_text("#!/bin/sh\nexit 1\n")
    (fake / "kohakutpu").chmod(0o755)
    options = ["make", "-o", ".venv/.ready", "ci", f"BIN={fake}", f"PYTHON={sys.executable}"]
    assert subprocess.run(options, cwd=ROOT, capture_output=True, env=os.environ).returncode == 2
    (fake / "kohakutpu").write_text("#!/bin/sh\nexit 0\n")
    assert subprocess.run(options, cwd=ROOT, capture_output=True, env=os.environ).returncode == 0
