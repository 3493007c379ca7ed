"""Run the test suite as a regression: pytest, and the cocotb benches that it starts, merged into one JUnit report.

Exit status: 0 all passed; 1 a test or a bench failed, none ran, or a report is missing; 2 refused.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from .gates import ROOT, gates
from .output import OutputError, write_atomically

HELP = "the test suite with one JUnit report, for continuous integration"
REPORT, SUMMARY, PYTEST, BENCHES = "report.xml", "summary.md", "pytest.xml", "benches"
DEFAULT = ["-n", "2", "--dist", "worksteal", "-m", "not slow"]
MARK = "kohakutpu-ci"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("build/ci"), metavar="DIR", help="reports (default build/ci)"
    )
    parser.add_argument(
        "pytest", nargs="*", metavar="ARG",
        help=f"for pytest, after --, instead of {' '.join(DEFAULT[:4])} -m 'not slow'",
    )  # fmt: skip


def prepared(folder: Path) -> None:
    """Make `folder` anew: what an earlier run left must not look like this one's. Refuses a folder of other files."""
    if folder.exists():
        if not folder.is_dir():
            raise OutputError(f"cannot write into {folder}: it is no directory")
        if any(folder.iterdir()) and not (folder / MARK).exists():
            raise OutputError(f"{folder} holds something else than reports of an earlier run: give an empty folder")
        shutil.rmtree(folder)
    (folder / BENCHES).mkdir(parents=True)
    (folder / MARK).touch()


def main(args: argparse.Namespace) -> int:
    report = gates("sim.report")
    log = gates("sim.bench_log")
    folder = args.output.resolve()
    prepared(folder)
    command = [sys.executable, "-m", "pytest", *(args.pytest or DEFAULT), f"--junitxml={folder / PYTEST}"]
    environment = {**os.environ, log.VARIABLE: str(folder / BENCHES)}
    status = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    try:
        merged, summary = report.merge(folder / PYTEST, folder / BENCHES)
    except report.ReportError as error:
        write_atomically(folder / SUMMARY, f"- FAILED {error}\n".encode())
        raise
    write_atomically(folder / REPORT, merged.tostring())
    lines = summary.lines()
    if status and summary.good:
        lines.append(f"- FAILED pytest ended with status {status}, though no test failed")
    write_atomically(folder / SUMMARY, ("\n".join(lines) + "\n").encode())
    print("\n".join([f"\nreport: {args.output / REPORT}", *lines]))
    return 0 if summary.good and status == 0 else 1
