"""The socket protocol, version 1: frames of one request and one reply. docs/transports.md, socket."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from enum import IntEnum
from typing import NamedTuple

from kohakutpu.machine import Machine

from ..transport import NoTransport, TransportError, Unanswered
from . import checked
from .stream import Dropped, Stream

PROTOCOL = "kohakutpu-socket"
VERSION = 1
BLOCK_LIMIT = 1 << 18  # bytes of one request's block: what the slowest gates move well within a time-out
FRAME_LIMIT = BLOCK_LIMIT + (1 << 20)
_LENGTH = struct.Struct("<I")
_REQUEST = struct.Struct("<QBQI")
_REPLY = struct.Struct("<QBd")
HELLO: checked.Fields = {
    "engine": checked.TEXT, "unit": checked.UNIT, "bulk": checked.BOOL, "last": checked.COUNT,
    "walked": checked.WALKED, "progress": checked.PROGRESS,
}  # fmt: skip


class Kind(IntEnum):
    """What a request asks for."""

    HELLO = 0
    READ = 1
    WRITE = 2
    PAUSE = 3
    PROGRESS = 4
    DIAGNOSE = 5
    BYE = 6


class Request(NamedTuple):
    """`length` is of the block that is read; a written one is the payload."""

    sequence: int
    kind: Kind
    address: int = 0
    length: int = 0
    payload: bytes = b""

    def __str__(self) -> str:
        if self.kind == Kind.READ:
            return f"read of {self.length} bytes at {self.address:#x}"
        if self.kind == Kind.WRITE:
            return f"write of {len(self.payload)} bytes at {self.address:#x}"
        return self.kind.name.lower()


class Reply(NamedTuple):
    """`failed` replies carry an error as JSON; `now` is the machine's clock after the access."""

    sequence: int
    failed: bool
    now: float
    payload: bytes = b""


def send_request(stream: Stream, request: Request) -> None:
    head = _REQUEST.pack(request.sequence, request.kind, request.address, request.length)
    stream.send(_LENGTH.pack(len(head) + len(request.payload)) + head + request.payload)


def send_reply(stream: Stream, reply: Reply) -> None:
    head = _REPLY.pack(reply.sequence, reply.failed, reply.now)
    stream.send(_LENGTH.pack(len(head) + len(reply.payload)) + head + reply.payload)


def _frame(stream: Stream, least: int) -> bytes:
    (length,) = _LENGTH.unpack(stream.receive(_LENGTH.size))
    if not least <= length <= FRAME_LIMIT:
        raise Dropped(
            f"a frame of {length} bytes, expected {least} to {FRAME_LIMIT}: this is not the {PROTOCOL} protocol"
        )
    return stream.receive(length)


def receive_request(stream: Stream) -> Request:
    """Raises `Dropped` for what is no request, too."""
    frame = _frame(stream, _REQUEST.size)
    sequence, kind, address, length = _REQUEST.unpack_from(frame)
    if kind not in Kind.__members__.values():
        raise Dropped(f"a request of unknown kind {kind}")
    return Request(sequence, Kind(kind), address, length, frame[_REQUEST.size :])


def receive_reply(stream: Stream) -> Reply:
    """Raises `Dropped` for what is no reply, too."""
    frame = _frame(stream, _REPLY.size)
    sequence, failed, now = _REPLY.unpack_from(frame)
    if failed not in (0, 1) or not math.isfinite(now):
        raise Dropped(f"a reply with failed {failed} at time {now}: this is not the {PROTOCOL} protocol")
    return Reply(sequence, bool(failed), now, frame[_REPLY.size :])


def error_payload(error: Exception) -> bytes:
    return json.dumps(
        {"text": str(error) or type(error).__name__, "exit_status": getattr(error, "exit_status", 2)}
    ).encode()


def raise_error(payload: bytes) -> None:
    """Raise the error that a failed reply carries, or `checked.Malformed`."""
    found = checked.check_fields(checked.parse(payload), checked.FAILURE, "the error")
    raise {3: NoTransport, 4: Unanswered}.get(found["exit_status"], TransportError)(found["text"])


def machine_digest(machine: Machine) -> str:
    """Tells two machines of one name apart."""
    return hashlib.sha256(repr(machine).encode()).hexdigest()[:16]
