"""One JUnit report of a test run: pytest's cases and the cocotb benches that they started."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from junitparser import Error, Failure, JUnitXml, JUnitXmlError, Skipped, TestCase, TestSuite

from kohakutpu.wording import counted

from .bench_log import EVENTS

SUITE = "cocotb"
NO_RESULT = "the simulator left no result file"


class ReportError(RuntimeError):
    """A report that is missing, unreadable or empty: the run has no verdict that could be trusted."""

    exit_status = 1


@dataclass
class Summary:
    """Counts of a run. `wanted` are benches that failed in tests that passed: planted faults, found."""

    tests: Counter = field(default_factory=Counter)
    benches: Counter = field(default_factory=Counter)
    runs: int = 0
    builds: Counter = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        return not self.failures

    def lines(self) -> list[str]:
        """The summary, for people; also as Markdown."""
        tests, benches, builds = self.tests, self.benches, self.builds
        return [
            f"- {counted(tests['passed'], 'test', 'passed')}, {tests['failed']} failed, {tests['skipped']} skipped, in "
            f"{self.seconds:,.0f} s of tests",
            f"- {counted(self.runs, 'simulation')}: {counted(benches['passed'], 'bench', 'passed', plural='benches')}, "
            f"{benches['wanted']} failed as their test demands, {benches['failed']} failed, {benches['skipped']} "
            "skipped",
            f"- {counted(builds[False], 'design')} compiled, {builds[True]} taken from the build cache",
            *(f"- FAILED {failure}" for failure in self.failures),
        ]


def place(test: str) -> tuple[str, str]:
    """(class name, name) that JUnit has for a test that pytest calls `tests/a/test_b.py::Class::name[p::q]`."""
    path, *names = test.partition("[")[0].split("::")
    names[-1:] = [names[-1] + test[len(test.partition("[")[0]) :]] if names else []
    return ".".join([path.removesuffix(".py").replace("/", "."), *names[:-1]]), names[-1] if names else ""


def read(path: Path) -> JUnitXml:
    """A JUnit file. Raises `ReportError` when there is none or it is not complete."""
    if not path.exists():
        raise ReportError(f"there is no report {path}: the run ended before its verdict")
    try:
        found = JUnitXml.fromfile(str(path))
    except (JUnitXmlError, SyntaxError) as error:
        raise ReportError(f"the report {path} is no complete JUnit file: {error}") from error
    if isinstance(found, TestSuite):
        whole = JUnitXml()
        whole.add_testsuite(found)
        return whole
    return found


def outcome(case: TestCase) -> str:
    """passed, failed or skipped."""
    kinds = {type(result) for result in case.result}
    if kinds & {Failure, Error}:
        return "failed"
    return "skipped" if Skipped in kinds else "passed"


def merge(pytest_report: Path, log: Path) -> tuple[JUnitXml, Summary]:
    """(report, summary) of a run: pytest's report, and the folder that `sim.bench_log` filled.

    A bench that failed in a test that passed is what that test demands, and is reported as passed with a note. Raises
    `ReportError` for a report that is missing or unreadable, and for a run without a test.
    """
    whole, summary = read(pytest_report), Summary()
    outcomes: dict[tuple[str, str], str] = {}
    for suite in whole:
        for case in suite:
            found = outcome(case)
            summary.tests[found] += 1
            summary.seconds += case.time or 0.0
            # a test whose teardown failed has a second case
            if outcomes.get((case.classname, case.name)) != "failed":
                outcomes[case.classname, case.name] = found
            if found == "failed":
                summary.failures.append(f"{case.classname}::{case.name}")
    if not summary.tests["passed"] and not summary.tests["failed"]:
        raise ReportError(f"no test ran ({summary.tests['skipped']} skipped): an empty run is no verdict")
    benches = TestSuite(SUITE)
    for event in _events(log):
        if event["event"] == "build":
            summary.builds[event["cached"]] += 1
            continue
        summary.runs += 1
        demanded = outcomes.get(place(event["test"])) == "passed"
        for case in _cases(event, log / f"{event['run']}.xml"):
            found = outcome(case)
            if found == "failed" and demanded:
                found = "wanted"
                case.system_out = "failed, as its test demands: " + "; ".join(
                    result.message or "" for result in case.result
                )
                case.result = []
            elif found == "failed":
                summary.failures.append(
                    f"bench {case.classname}::{case.name}, seed {event['seed']}, in {event['test'] or 'no test'}"
                )
            summary.benches[found] += 1
            benches.add_testcase(case)
    whole.add_testsuite(benches)
    whole.update_statistics()
    return whole, summary


def _events(log: Path) -> list[dict]:
    path = log / EVENTS
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _cases(event: dict, results: Path) -> list[TestCase]:
    """The cases of one simulation, named by bench, simulator and the test that started it."""
    try:
        cases = [case for suite in read(results) for case in suite]
    except ReportError as error:
        cases = [TestCase("simulation")]
        cases[0].result = [Error(f"{NO_RESULT}: {error}" if not results.exists() else str(error))]
    for case in cases:
        case.classname = f"{event['module']}.{event['simulator']}"
        if event["test"]:
            case.name = f"{case.name} of {event['test']}"
    return cases
