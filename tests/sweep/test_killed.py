"""Sweeps whose workers, scheduler and client are killed: every point has one row in the end, the row that it always
has."""

import csv
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet
import pytest

from kohakutpu.sweep.point import INCIDENTAL

BIN = Path(sys.executable).parent
LIMIT_S = 240

SMALL = """
name: small
kernel: kohakutpu.kernels:linear_silu
machines: [mm_mesh]
extents: {M: [16, 32], K: [32], N: [32]}
knobs: {gm: [4, 8], gn: [8], nk: [1]}
seeds: {first: 0, last: 5}
"""
LARGE = """
name: large
kernel: kohakutpu.kernels:linear_silu
machines: [mm_mesh, quad]
extents: {M: [16, 32], K: [32], N: [32]}
knobs: {gm: [4, 8], fuse: [true, false], nk: [1]}
seeds: {first: 0, last: 12}
"""
LARGE_POINTS, SMALL_POINTS = 208, 24


def wait_for(what, seconds=LIMIT_S, every=0.05):
    """The first true value of `what()`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(every)
    raise AssertionError(f"{what.__name__} not within {seconds} s")


def journal(folder: Path) -> list[dict]:
    """The complete rows in a journal that somebody may be writing."""
    path = folder / "rows.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()[1:]]


def workers_of(rows: list[dict]) -> list[int]:
    return sorted({int(row["worker"].rpartition(":")[2]) for row in rows})


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@contextmanager
def started(*command, **options):
    process = subprocess.Popen(
        [str(item) for item in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def sweep(spec: Path, folder: Path, *options):
    return [BIN / "kohakutpu", "sweep", spec, "-o", folder, *options]


def finish(*command) -> str:
    done = subprocess.run([str(item) for item in command], capture_output=True, text=True, timeout=LIMIT_S * 5)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check(folder: Path, points: int, first: list[dict]) -> list[dict]:
    """All rows, none twice, in every file; those of the first run kept as they were."""
    lines = journal(folder)
    assert len(lines) == points and len({row["key"] for row in lines}) == points
    assert lines[: len(first)] == first
    table = pyarrow.parquet.read_table(folder / "rows.parquet").to_pylist()
    with open(folder / "rows.csv", newline="") as file:
        text = list(csv.DictReader(file))
    assert [row["key"] for row in table] == [row["key"] for row in text]
    assert sorted(row["key"] for row in table) == sorted(row["key"] for row in lines)
    for name in ("cycles.png", "bytes.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
    return table


def lasting(rows: list[dict]) -> list[dict]:
    return [{name: value for name, value in row.items() if name not in INCIDENTAL} for row in rows]


def test_a_killed_worker_and_a_killed_client(tmp_path):
    """The client of `--scheduler local` is the scheduler too. Its workers end with it."""
    spec, folder = tmp_path / "spec.yaml", tmp_path / "out"
    spec.write_text(SMALL)
    with started(*sweep(spec, folder, "--workers", 2)) as client:
        def six_rows_of_two_workers():
            return len(journal(folder)) >= 6 and len(workers_of(journal(folder))) == 2

        wait_for(six_rows_of_two_workers)
        before = workers_of(journal(folder))
        os.kill(before[0], signal.SIGKILL)
        seen = len(journal(folder))

        def four_more():
            return len(journal(folder)) >= seen + 4

        wait_for(four_more)
        assert client.poll() is None
        client.send_signal(signal.SIGKILL)
        client.wait()
    kept = journal(folder)
    assert 10 <= len(kept) < SMALL_POINTS, "killed too late: nothing was left to resume"

    def all_workers_gone():
        return not any(map(alive, workers_of(kept)))

    wait_for(all_workers_gone, 60)
    said = finish(*sweep(spec, folder, "--workers", 2, "--resume"))
    assert f"{len(kept)} rows kept" in said and "18 byte-equal" in said and "6 refused: 6 CannotFuse" in said
    table = check(folder, SMALL_POINTS, kept)
    assert not set(workers_of(kept)) & set(workers_of(journal(folder)[len(kept) :]))
    assert {row["seed"] for row in table} == set(range(6))


def test_another_scheduler_on_this_computer_is_no_trouble(one_point, tmp_path):
    """dask would warn of the port that its dashboard has by default, though nobody asked for one."""
    with socket.socket() as other:
        try:
            other.bind(("0.0.0.0", 8787))
            other.listen()
        except OSError:
            pass  # there is one
        command = [str(item) for item in sweep(one_point, tmp_path / "out", "--workers", 1)]
        done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "" and "1 of 1 row in" in done.stdout


def test_a_terminated_client_ends_its_workers_and_goes_on_later(tmp_path):
    spec, folder = tmp_path / "spec.yaml", tmp_path / "out"
    spec.write_text(SMALL)
    with started(*sweep(spec, folder, "--workers", 1)) as client:
        rows = wait_for(lambda: journal(folder))
        client.send_signal(signal.SIGTERM)
        said, _ = client.communicate(timeout=LIMIT_S)
    assert client.returncode == 143 and "--resume goes on" in said and said.endswith("kohakutpu sweep: stopped\n")
    assert "Traceback" not in said and not any(map(alive, workers_of(rows)))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def cluster(workers: int):
    """(address, scheduler process, worker processes) of `dask scheduler` and `dask worker`, as on several machines."""
    address = f"tcp://127.0.0.1:{free_port()}"
    with started(
        BIN / "dask", "scheduler", "--host", "127.0.0.1", "--port", address.rpartition(":")[2], "--no-dashboard"
    ) as scheduler:
        joined = []
        try:
            for _ in range(workers):
                command = [
                    BIN / "dask", "worker", address, "--nthreads", "1", "--no-dashboard", "--no-nanny",
                    "--death-timeout", "60",
                ]  # fmt: skip
                joined.append(
                    subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                )
            yield address, scheduler, joined
        finally:
            for worker in joined:
                worker.kill()
                worker.wait()


@pytest.mark.slow
def test_200_points_with_a_killed_worker_and_a_killed_scheduler(tmp_path):
    """Nobody starts the worker again: the other one does the rest, until the scheduler is killed."""
    spec, folder = tmp_path / "spec.yaml", tmp_path / "out"
    spec.write_text(LARGE)
    points = LARGE_POINTS
    with cluster(2) as (address, scheduler, workers), started(*sweep(spec, folder, "--scheduler", address)) as client:
        def half():
            assert client.poll() is None, client.stdout.read()
            return len(journal(folder)) >= points // 2

        wait_for(half, LIMIT_S * 5)
        workers[0].kill()
        seen = len(journal(folder))

        def twenty_more():
            return len(journal(folder)) >= seen + 20

        wait_for(twenty_more)
        scheduler.kill()
        said, _ = client.communicate(timeout=LIMIT_S)
        assert client.returncode == 3 and "--resume goes on" in said, said
    kept = journal(folder)
    assert points // 2 + 20 <= len(kept) < points, "killed too late: nothing was left to resume"
    assert not (folder / "rows.parquet").exists()
    with cluster(2) as (address, *_):
        said = finish(*sweep(spec, folder, "--scheduler", address, "--resume"))
    assert f"{len(kept)} rows kept" in said
    resumed = check(folder, points, kept)
    plain = tmp_path / "plain"
    finish(*sweep(spec, plain, "--workers", 2))
    assert lasting(check(plain, points, [])) == lasting(resumed)
