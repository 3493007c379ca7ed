"""The rows of a sweep as they arrive: a file of JSON lines that loses nothing when its writer is killed."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from .point import AGAIN

FILE = "rows.jsonl"
HEADER = "kohakutpu-sweep"
FORMAT = 1


class JournalError(ValueError):
    """A folder of rows that cannot be used: names the file, the line, and why."""


class Journal:
    """Rows by key, each written and synced before `add` returns; a context manager that holds the file alone.

    `rows` holds what is there. A line that a killed writer did not finish is cut off; rows of a worker's own trouble do
    not count when the file is opened again, so that their points run again.
    """

    def __init__(self, folder: Path, *, name: str, code: str, keys: Collection[str], resume: bool):
        """Open or make the journal in `folder` for points `keys`. Raises `JournalError` for a folder with rows unless
        `resume`, for rows of other points or of another program, for a damaged line, and while another sweep writes
        there."""
        self.path = folder / FILE
        self.rows: dict[str, dict] = {}
        self.cut = 0  # bytes of an unfinished line
        self.again = 0  # rows that do not count
        self._keys = frozenset(keys)
        self._head = {HEADER: FORMAT, "name": name, "code": code}
        there = self.path.exists()
        if there and self.path.stat().st_size and not resume:
            raise JournalError(
                f"{self.path}: there are rows already; --resume goes on with them, or use another folder"
            )
        self._file = open(self.path, "r+b" if there else "x+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise JournalError(f"{self.path}: another sweep is writing here") from None
        try:
            self._read()
        except BaseException:
            self.__exit__()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with suppress(OSError):  # of a row that was refused already
            self._file.close()

    def _read(self) -> None:
        data = self._file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self.cut = len(data) - len(whole)
        lines = whole.splitlines()
        if lines:
            self._check_head(lines[0])
        for number, line in enumerate(lines[1:], 2):
            row = self._row(line, number)
            if row["verdict"] in AGAIN:
                self.again += 1
            else:
                self.rows[row["key"]] = row
        self._file.truncate(len(whole))
        self._file.seek(0, os.SEEK_END)
        if not lines:
            self._append(self._head)

    def _check_head(self, line: bytes) -> None:
        try:
            head = json.loads(line)
        except (ValueError, RecursionError):
            head = None
        if not isinstance(head, dict) or head.get(HEADER) != FORMAT:
            raise JournalError(f"{self.path}:1: no journal of a sweep of format {FORMAT}")
        if head.get("code") != self._head["code"]:
            raise JournalError(
                f"{self.path}: its rows come from program {head.get('code')}, and this is {self._head['code']}: rows "
                "of two "
                "versions do not go in one table; use another folder"
            )

    def _row(self, line: bytes, number: int) -> dict:
        try:
            row = json.loads(line)
            key, _ = row["key"], row["verdict"]
            if not (isinstance(key, str) and isinstance(row["verdict"], str)):
                raise TypeError
        except (ValueError, TypeError, KeyError, RecursionError):
            raise JournalError(f"{self.path}:{number}: no row of a sweep") from None
        if key not in self._keys:
            raise JournalError(
                f"{self.path}:{number}: point {key} is not in this sweep: the description has changed; use another "
                "folder"
            )
        if key in self.rows:
            raise JournalError(f"{self.path}:{number}: point {key} has a row already")
        return row

    def _append(self, record: dict) -> None:
        try:
            self._file.write(json.dumps(record).encode() + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise JournalError(
                f"{self.path}: cannot be written ({error.strerror}); --resume goes on with what it has"
            ) from error

    def add(self, row: dict) -> None:
        """Keep a row for good. Raises `JournalError` for a point that has one or that is not in the sweep."""
        key = row["key"]
        if key not in self._keys or key in self.rows:
            raise JournalError(
                f"{self.path}: a row for point {key}, which {'has one' if key in self.rows else 'is not in the sweep'}"
            )
        self._append(row)
        self.rows[key] = row
