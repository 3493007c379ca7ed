"""A session written to a file, and a file in a machine's place. docs/transports.md, record and replay.

Every line of the file is JSON: a header, one list for each thing that was asked, and an end with the count and the
sha256 of all lines before it.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import reprlib
import stat
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kohakutpu.machine import Machine
from kohakutpu.wording import counted

from ..transport import NoTransport, Transport, TransportError, Unanswered, check_access
from . import checked
from .wire import machine_digest
from .wrappers import Wrapper

FORMAT, VERSION = "kohakutpu-session", 1
HEADER: checked.Fields = {
    "machine": checked.TEXT, "digest": checked.TEXT, "spec": checked.TEXT, "unit": checked.UNIT, "bulk": checked.BOOL,
    "now": checked.CLOCK, "progress": checked.BOOL, "walked": checked.WALKED,
}  # fmt: skip
HEX = re.compile(r"(?:[0-9a-f]{2})*")


class RecordingError(ValueError):
    """A file that is no whole recording of a session with this machine: says what is wrong, and in which line."""


class Diverged(TransportError):
    """The script asks for something else than the one that was recorded: names both."""

    exit_status = 2


def _text(asked: list) -> str:
    """An entry's question, for people."""
    kind, *rest = asked
    if kind == "read":
        return f"read of {rest[1]} bytes at {rest[0]:#x}"
    if kind == "write":
        return f"write of {len(rest[1]) // 2} bytes at {rest[0]:#x}, {rest[1][:32]}{'...' if len(rest[1]) > 32 else ''}"
    return kind


def check_target(path: Path) -> None:
    """Refuse a place where no recording can be written."""
    if not path.parent.is_dir():
        raise RecordingError(f"cannot write {path}: there is no directory {path.parent}")
    if path.is_dir():
        raise RecordingError(f"cannot write {path}: it is a directory")


class Recorder(Wrapper):
    """What is asked of `inner` and what it says, for `path`; `NAME.gz` is compressed. The file appears when it is
    closed.

    `spec` says what was recorded, for people.
    """

    def __init__(self, inner: Transport, machine: Machine, path: Path, spec: str):
        check_target(path)
        super().__init__(inner)
        self.path = path
        self._digest = hashlib.sha256()
        self._count = 0
        self._over = False
        self._now = inner.now
        handle, self._partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        os.close(handle)
        self._file = (
            gzip.open(self._partial, "wt", compresslevel=3) if path.suffix == ".gz" else open(self._partial, "w")
        )
        knows = inner.progress is not None
        self._put(
            {
                "format": FORMAT, "version": VERSION, "machine": machine.name, "digest": machine_digest(machine),
                "spec": spec, "unit": inner.unit, "bulk": inner.bulk, "now": self._now, "progress": knows,
                "walked": {str(at): list(pairs) for at, pairs in inner.walked.items()},
            }
        )  # fmt: skip

    def _put(self, entry: Any) -> None:
        line = json.dumps(entry) + "\n"
        self._digest.update(line.encode())
        with self._writing():
            self._file.write(line)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """What goes wrong with the file, such as a full disk, ends the recording, and leaves nothing of it."""
        try:
            yield
        except OSError as error:
            self._over = True
            with suppress(OSError):
                self._file.close()
            Path(self._partial).unlink(missing_ok=True)
            raise RecordingError(f"cannot write {self.path}: {error.strerror or error}") from error

    def _record(self, asked: list, ask: Callable[[], Any]) -> Any:
        try:
            answer = ask()
        except Exception as error:
            self._now = self.inner.now
            self._put([asked, "failed", [getattr(error, "exit_status", 2), str(error)], self._now])
            self._count += 1
            raise
        self._now = self.inner.now
        self._put([asked, "done", answer.hex() if isinstance(answer, bytes) else answer, self._now])
        self._count += 1
        return answer

    def write64(self, address: int, value: int) -> None:
        self.write_block(address, value.to_bytes(8, "little"))

    def read64(self, address: int) -> int:
        return int.from_bytes(self.read_block(address, 8), "little")

    def write_block(self, address: int, data: bytes) -> None:
        check_access(address, len(data), "write")
        self._record(["write", address, data.hex()], lambda: self.inner.write_block(address, data))

    def read_block(self, address: int, length: int) -> bytes:
        check_access(address, length, "read")
        return self._record(["read", address, length], lambda: self.inner.read_block(address, length))

    @property
    def now(self) -> float:
        """The clock after the last access, as a replay will say it."""
        return self._now

    def pause(self) -> None:
        self._record(["pause"], self.inner.pause)

    @property
    def progress(self) -> int | None:
        return self._record(["progress"], lambda: self.inner.progress)

    def diagnose(self) -> str:
        return self._record(["diagnose"], self.inner.diagnose)

    def close(self) -> None:
        try:
            self.inner.close()
        finally:
            if not self._over:
                self._over = True
                with self._writing():
                    self._file.write(json.dumps({"end": self._count, "sha256": self._digest.hexdigest()}) + "\n")
                    self._file.close()
                    os.chmod(self._partial, 0o644)
                    os.replace(self._partial, self.path)


def _lines(path: Path) -> list[str]:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise RecordingError(f"{path} is no regular file: expected a recording of a session")
        with gzip.open(path, "rt") if path.suffix == ".gz" else open(path) as file:
            return file.readlines()
    except FileNotFoundError as error:
        raise NoTransport(f"{path}: there is no such recording") from error
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise RecordingError(f"{path} cannot be read: {error}") from error


def _is_hex(value: Any, length: int | None = None) -> bool:
    return (
        isinstance(value, str) and HEX.fullmatch(value) is not None and (length is None or len(value) == 2 * length)
    )


def _check_header(header: dict) -> None:
    """Raises `checked.Malformed`."""
    checked.check_fields(header, HEADER, "the header")


def _check_entry(entry: Any) -> None:
    """Raises `checked.Malformed` for what is no [asked, outcome, answer, clock]."""
    expect = checked.expect
    expect(isinstance(entry, list) and len(entry) == 4, "the entry", entry, "a list [asked, outcome, answer, clock]")
    asked, outcome, answer, now = entry
    match asked:
        case ["read", at, length]:
            good = checked.is_count(at) and checked.is_count(length)
        case ["write", at, data]:
            good = checked.is_count(at) and _is_hex(data)
        case _:
            good = asked in (["pause"], ["progress"], ["diagnose"])
    expect(good, "what was asked", asked, "a read with address and length, a write with address and hexadecimal data, "
           "pause, progress or diagnose")  # fmt: skip
    expect(outcome in ("done", "failed"), "the outcome", outcome, "done or failed")
    expect(checked.is_clock(now), "the clock", now, "a finite number")
    if outcome == "failed":
        good = isinstance(answer, list) and len(answer) == 2 and type(answer[0]) is int and isinstance(answer[1], str)
        expect(good and answer[0] in checked.STATUSES, "the failure", answer, "a status of 1 to 4 and a text")
    elif asked[0] == "read":
        expect(_is_hex(answer, asked[2]), "the answer", answer, f"{asked[2]} bytes in hexadecimal")
    elif asked[0] == "diagnose":
        expect(isinstance(answer, str), "the answer", answer, "a text")
    elif asked[0] == "progress":
        expect(checked.PROGRESS[0](answer), "the answer", answer, checked.PROGRESS[1])
    else:
        expect(answer is None, "the answer", answer, "null")


class Replay(Transport):
    """The recording at `path` in the place of `machine`: the script that was recorded gets the same answers at the same
    times.

    Raises `RecordingError` for a file that is damaged, cut off, of another version or of another machine, `Diverged`
    for an access that differs from the recorded one, and what was raised then.
    """

    def __init__(self, path: Path, machine: Machine):
        self.path = path
        lines = _lines(path)
        header, self._entries = self._parsed(lines)
        if (header["machine"], header["digest"]) != (machine.name, machine_digest(machine)):
            raise RecordingError(
                f"{path} was recorded on {header['machine']} ({header['digest']}), and not on this {machine.name}"
            )
        self.unit = header["unit"]
        self.bulk = header["bulk"]
        self.walked = checked.walked_of(header["walked"])
        self._now = header["now"]
        self._next = 0
        self._over = False

    def _parsed(self, lines: list[str]) -> tuple[dict, list]:
        path = self.path
        try:
            header = checked.parse(lines[0]) if lines else None
        except checked.Malformed:
            header = None
        if not isinstance(header, dict) or header.get("format") != FORMAT:
            raise RecordingError(f"{path} is no recording of a session: its first line does not say {FORMAT}")
        version = header.get("version")
        if type(version) is not int or version != VERSION:
            raise RecordingError(f"{path} is of version {reprlib.repr(version)}, and version {VERSION} is read here")
        digest = hashlib.sha256("".join(lines[:-1]).encode()).hexdigest()
        try:
            end = checked.check_fields(
                checked.parse(lines[-1]), {"end": checked.COUNT, "sha256": checked.TEXT}, "the end"
            )
            count, expected = end["end"], end["sha256"]
        except checked.Malformed:
            raise RecordingError(
                f"{path} is cut off after {counted(len(lines), 'line')}: its last one is no end"
            ) from None
        if (count, expected) != (len(lines) - 2, digest):
            raise RecordingError(
                f"{path} is damaged: {counted(len(lines) - 2, 'entry', plural='entries')} with sha256 {digest}, its "
                "end says "
                f"{count} and {expected[:64]}"
            )
        entries: list = []
        number = 1
        try:
            _check_header(header)
            for number, line in enumerate(lines[1:-1], 2):
                entries.append(checked.parse(line))
                _check_entry(entries[-1])
        except checked.Malformed as error:
            raise RecordingError(f"{path}:{number}: {error}") from None
        return header, entries

    def _replay(self, asked: list) -> Any:
        place = f"access {self._next + 1} of {len(self._entries)} in {self.path}"
        if self._next == len(self._entries):
            raise Diverged(
                f"the recording {self.path} ends after {counted(self._next, 'access', plural='accesses')}, and the "
                "script asks "
                f"for a {_text(asked)}"
            )
        recorded, state, answer, now = self._entries[self._next]
        if recorded != asked:
            raise Diverged(f"{place}: the script asks for a {_text(asked)}; recorded was a {_text(recorded)}")
        self._next += 1
        self._now = now
        if state == "failed":
            raise {3: NoTransport, 4: Unanswered}.get(answer[0], TransportError)(answer[1])
        return answer

    def write64(self, address: int, value: int) -> None:
        self.write_block(address, value.to_bytes(8, "little"))

    def read64(self, address: int) -> int:
        return int.from_bytes(self.read_block(address, 8), "little")

    def write_block(self, address: int, data: bytes) -> None:
        check_access(address, len(data), "write")
        self._replay(["write", address, data.hex()])

    def read_block(self, address: int, length: int) -> bytes:
        check_access(address, length, "read")
        return bytes.fromhex(self._replay(["read", address, length]))

    @property
    def now(self) -> float:
        return self._now

    def pause(self) -> None:
        self._replay(["pause"])

    @property
    def progress(self) -> int | None:
        return self._replay(["progress"])

    def diagnose(self) -> str:
        return self._replay(["diagnose"])

    def finished(self) -> bool:
        """Whether everything that was recorded has been asked."""
        return self._next == len(self._entries)
