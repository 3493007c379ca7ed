"""Files that cannot be written to the end: named, exit status 2, and nothing half-written is left."""

import errno
import os
import resource
import signal
from contextlib import contextmanager

import pytest

from kohakutpu.cli.main import main


@contextmanager
def room(size):
    """No file of this process can be longer than `size` bytes, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("name", ["s.jsonl", "s.jsonl.gz"])
def test_a_recording(tmp_path, capsys, name):
    with room(20_000):
        status = main(["bringup", "--until", "flit", "--transport", f"record:{tmp_path / name}:model"])
    assert status == 2 and f"cannot write {tmp_path / name}: {os.strerror(errno.EFBIG)}" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--report", "--page"])
def test_a_report(tmp_path, capsys, option):
    with room(100):
        status = main(["bringup", "--until", "link", option, str(tmp_path / "r")])
    assert status == 2 and f"cannot write {tmp_path / 'r'}: {os.strerror(errno.EFBIG)}" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_rows_of_a_sweep(one_point, tmp_path, capsys):
    """Nothing was measured: the next sweep begins anew, though a file is there."""
    folder = tmp_path / "out"
    for _ in range(2):
        with room(8):
            status = main(["sweep", str(one_point), "-o", str(folder), "--workers", "1"])
        said = capsys.readouterr().err
        assert status == 2 and f"{folder / 'rows.jsonl'}: cannot be written ({os.strerror(errno.EFBIG)})" in said
        (folder / "rows.jsonl").write_bytes(b"")
