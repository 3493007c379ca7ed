"""What simulators were built and run for, kept for a report: on when `KOHAKUTPU_BENCH_LOG` names a folder (`kohakutpu
ci`)."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from pathlib import Path

VARIABLE = "KOHAKUTPU_BENCH_LOG"
EVENTS = "events.jsonl"


def _note(log: str, **event) -> None:
    """Append one line; a single write, so that the processes of a test run do not mix theirs."""
    line = json.dumps(event) + "\n"
    handle = os.open(Path(log) / EVENTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(handle, line.encode())
    finally:
        os.close(handle)


def built(top: str, simulator: str, folder: Path, *, cached: bool) -> None:
    """A design was asked for, and was there or had to be compiled."""
    if log := os.environ.get(VARIABLE):
        _note(log, event="build", top=top, simulator=simulator, folder=folder.name, cached=cached)


def began(module: str, simulator: str, seed: int) -> str:
    """A simulator starts; returns what `ended` needs. The test that wants it is the one that pytest is at."""
    run = uuid.uuid4().hex
    if log := os.environ.get(VARIABLE):
        test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
        _note(log, event="run", run=run, module=module, simulator=simulator, seed=seed, test=test)
    return run


def ended(run: str, results: Path) -> None:
    """Keep the simulator's result file, where there is one: the next run of the same bench replaces it."""
    log = os.environ.get(VARIABLE)
    if log and results.exists():
        shutil.copyfile(results, Path(log) / f"{run}.xml")
