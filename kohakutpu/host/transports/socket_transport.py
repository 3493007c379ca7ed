"""`Transport` to a machine that another process serves (`serving`): a simulation of the gates, or the models."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from kohakutpu.machine import Machine

from ..transport import WORD, NoTransport, TransportError, Unanswered, locate
from . import checked, wire
from .session import SessionTransport, reason
from .stream import Dropped, Late, Stream
from .wire import Kind, Reply, Request

TIMEOUT = 120.0  # s that an answer may take


def _hello_of(payload: bytes) -> dict:
    return checked.check_fields(checked.parse(payload), wire.HELLO, "the hello")


def _progress_of(payload: bytes) -> int | None:
    value = checked.parse(payload)
    check, expected = checked.PROGRESS
    checked.expect(check(value), "the progress", value, expected)
    return value


class SocketTransport(SessionTransport):
    """A session with a server at `address` for `machine`.

    Raises `TransportError` when another machine is served; `NoTransport` when nobody serves, when another client holds
    it, and when a connection is lost for good; `Unanswered` after `timeout` seconds without an answer.
    """

    def __init__(self, address: tuple[str, int] | Path, machine: Machine, *, timeout: float = TIMEOUT):
        super().__init__(address, timeout)
        self.machine = machine
        self._now = 0.0
        try:
            hello = self._hello()
        except (OSError, Dropped, Late) as error:
            self._hang_up()
            raise NoTransport(f"nobody serves {machine.name} on {self.where}: {reason(error)}{self._fate()}") from error
        except TransportError:
            self._hang_up()
            raise
        self.engine: str = hello["engine"]
        self.unit = hello["unit"]
        self.bulk = hello["bulk"]
        self.walked = checked.walked_of(hello["walked"])
        self._knows_progress = hello["progress"] is not None

    def _hello(self, resumes: bool = False) -> dict:
        self._stream = stream = Stream.connect(self.address, self.timeout)
        told = {
            "protocol": wire.PROTOCOL, "version": wire.VERSION, "session": self._session, "resumes": resumes,
            "machine": self.machine.name, "digest": wire.machine_digest(self.machine),
        }  # fmt: skip
        wire.send_request(stream, Request(0, Kind.HELLO, payload=json.dumps(told).encode()))
        reply = wire.receive_reply(stream)
        if reply.failed:
            self._read("hello", wire.raise_error, reply.payload)
        self._now = reply.now
        return self._read("hello", _hello_of, reply.payload)

    def _read(self, what: str, reader: Callable[[bytes], Any], payload: bytes) -> Any:
        """What `reader` makes of an answer. One that it cannot read ends the session: `NoTransport`."""
        try:
            return reader(payload)
        except (checked.Malformed, UnicodeDecodeError) as error:
            self._hang_up()
            self._given_up = what
            raise NoTransport(
                f"{self.where} does not speak the {wire.PROTOCOL} protocol: in its answer to a {what}, {error}"
            ) from None

    def _resume(self, what: str) -> int:
        try:
            return self._hello(resumes=True)["last"]
        except TransportError as error:
            raise NoTransport(f"{error}: whether the {what} was done is not known") from error

    def _send(self, stream: Stream, message: Request) -> None:
        wire.send_request(stream, message)

    def _answer(self, what: str) -> Reply:
        reply = wire.receive_reply(self._stream)
        while reply.sequence < self._sequence:
            self.stale += 1
            reply = wire.receive_reply(self._stream)
        if reply.sequence > self._sequence:
            raise Dropped(f"an answer to request {reply.sequence} came, and {self._sequence} was asked")
        return reply

    def _ask(self, kind: Kind, address: int = 0, length: int = 0, payload: bytes = b"") -> bytes:
        request = Request(self._number(), kind, address, length, payload)
        reply = self._converse(str(request), request)
        self._now = reply.now
        if reply.failed:
            self._read(str(request), wire.raise_error, reply.payload)
        return reply.payload

    def write64(self, address: int, value: int) -> None:
        self.write_block(address, value.to_bytes(WORD, "little"))

    def read64(self, address: int) -> int:
        return int.from_bytes(self.read_block(address, WORD), "little")

    def write_block(self, address: int, data: bytes) -> None:
        locate(address, len(data), "write")
        for at in range(0, len(data), wire.BLOCK_LIMIT):
            self._ask(Kind.WRITE, address + at, payload=bytes(data[at : at + wire.BLOCK_LIMIT]))

    def read_block(self, address: int, length: int) -> bytes:
        locate(address, length, "read")
        pieces = []
        for at in range(0, length, wire.BLOCK_LIMIT):
            size = min(wire.BLOCK_LIMIT, length - at)
            piece = self._ask(Kind.READ, address + at, size)
            if len(piece) != size:
                raise TransportError(f"a read of {size} bytes at {address + at:#x} was answered with {len(piece)}")
            pieces.append(piece)
        return b"".join(pieces)

    @property
    def now(self) -> float:
        return int(self._now) if self.unit == "cycles" else self._now

    def pause(self) -> None:
        self._ask(Kind.PAUSE)

    @property
    def progress(self) -> int | None:
        return self._read("progress", _progress_of, self._ask(Kind.PROGRESS)) if self._knows_progress else None

    def diagnose(self) -> str:
        return self._read("diagnose", bytes.decode, self._ask(Kind.DIAGNOSE))

    def close(self) -> None:
        """End the session; the machine is handed on in order."""
        if self._stream is None:
            return
        left = {str(at): pairs for at, pairs in self.walked.items()}
        # Every access was answered before: an end that nobody confirms has lost none.
        with suppress(NoTransport, Unanswered):
            self._ask(Kind.BYE, payload=json.dumps({"walked": left}).encode())
        self._hang_up()
