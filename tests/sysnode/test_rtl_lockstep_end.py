"""What a lockstep leaves behind when it is killed: nothing."""

import subprocess
import sys
import time
from pathlib import Path

LIMIT = 300  # s, compiling included


def below(pid: int) -> set[int]:
    """The processes that `pid` started, and those that they started."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # gone meanwhile
            continue
    found: set[int] = set()
    more = {pid}
    while more:
        more = {child for child, parent in parents.items() if parent in more} - found
        found |= more
    return found


def simulators(pids: set[int]) -> list[int]:
    found = []
    for pid in pids:
        try:
            found += [pid] if b"+records=" in Path(f"/proc/{pid}/cmdline").read_bytes() else []
        except OSError:
            continue
    return found


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def until(holds, what: str) -> None:
    end = time.monotonic() + LIMIT
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.1)


def test_nothing_outlives_a_lockstep_that_is_killed():
    command = [Path(sys.executable).parent / "kohakutpu", "lockstep", "--machine", "mm_mesh"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: simulators(below(process.pid)), "no simulator was started")
        started = below(process.pid)
    finally:
        process.kill()
        process.wait()
    until(lambda: not any(map(alive, started)), f"of {sorted(started)} some are left")
