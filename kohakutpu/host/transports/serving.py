"""Serves any `Transport` over a socket, to one client at a time: the other side of `socket_transport`.

A request is done once: a client that lost its connection comes back with its session and asks again, and is told what
it was not told before. Nothing here knows whether models or gates answer.
"""

from __future__ import annotations

import json
import math
import selectors
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from kohakutpu.machine import Machine

from ..transport import NoTransport, Transport, TransportError
from . import checked, wire
from .stream import Dropped, Late, Stream, listen
from .wire import Kind, Reply, Request

HELLO_TIMEOUT = 5.0  # s in which a new connection has to say who it is
FRAME_TIMEOUT = 60.0  # s in which the rest of a frame has to come
GRACE = 5.0  # s in which a client that lost its connection may come back


class SessionLost(NoTransport):
    """A client went without a word: what it was doing is half done, so the machine is not handed on."""


class Server:
    """`transport` to `machine`, served on `address`; `engine` says what it is.

    `single` ends with the first session; `ready` is called once clients can come. Contents of the machine, and what
    programs left in it, pass on from one session to the next.
    """

    def __init__(self, transport: Transport, machine: Machine, address: tuple[str, int] | Path, *, engine: str,
                 single: bool = False, grace: float = GRACE, ready: Callable[[], None] = lambda: None):  # fmt: skip
        self.transport = transport
        self.machine = machine
        self.address = address
        self.engine = engine
        self.single = single
        self.grace = grace
        self.ready = ready
        self.executed = 0  # requests, those asked again counted once
        self._session: str | None = None
        self._last = Reply(0, False, 0.0)
        self._lost = math.inf  # when the session's connection was lost
        self._walked: dict[str, list] = {}
        self._stopper: socket.socket | None = None
        self._stopped = False

    def stop(self) -> None:
        """End `run` from another thread, or from a signal handler."""
        self._stopped = True
        if self._stopper:
            self._stopper.send(b"\0")  # `run` may be waiting

    def run(self) -> None:
        """Serve until `stop`, or until a `single` session has ended. Raises `SessionLost` when a client does not come
        back.
        """
        with ExitStack() as stack:
            listener = stack.enter_context(listen(self.address))
            listener.setblocking(False)
            if isinstance(self.address, Path):
                stack.callback(self.address.unlink, missing_ok=True)
            selector = stack.enter_context(selectors.DefaultSelector())
            selector.register(listener, selectors.EVENT_READ)
            over, self._stopper = (stack.enter_context(end) for end in socket.socketpair())
            stack.callback(setattr, self, "_stopper", None)
            selector.register(over, selectors.EVENT_READ)
            stream: Stream | None = None
            self.ready()
            while not self._stopped:
                wait = None if self._session is None or stream else max(0.0, self._lost + self.grace - time.monotonic())
                ready = [key.fileobj for key, _ in selector.select(wait)]
                if over in ready:
                    return
                if (
                    not ready
                    and stream is None
                    and self._session is not None
                    and time.monotonic() >= self._lost + self.grace
                ):
                    raise SessionLost(
                        f"the client has gone without an end and did not come back within {self.grace:g} s; its last "
                        f"request was number {self._last.sequence}"
                    )
                if listener in ready and (new := self._welcome(listener)):
                    if stream:
                        selector.unregister(stream)
                        stream.close()
                    stream = new
                    stack.callback(new.close)
                    selector.register(stream, selectors.EVENT_READ)
                elif stream in ready and not self._answer(stream):
                    selector.unregister(stream)
                    stream.close()
                    stream = None
                    if self._session is None and self.single:
                        return

    def _welcome(self, listener: socket.socket) -> Stream | None:
        """A new connection that has said a proper HELLO, or None."""
        try:
            connection, _ = listener.accept()
        except OSError:
            return None  # gone again
        stream = Stream(connection, HELLO_TIMEOUT)
        try:
            request = wire.receive_request(stream)
            if request.kind != Kind.HELLO:
                raise Dropped(f"a {request.kind.name} before the HELLO")
            hello = checked.check_fields(checked.parse(request.payload), {"session": checked.TEXT}, "the hello")
            refusal = self._refusal(hello)
            if refusal:
                wire.send_reply(stream, Reply(request.sequence, True, 0, wire.error_payload(refusal)))
                raise Dropped(str(refusal))
            if self._session != hello["session"]:
                self._session, self._last = hello["session"], Reply(0, False, 0.0)
            told = {
                "machine": self.machine.name, "engine": self.engine, "unit": self.transport.unit,
                "bulk": self.transport.bulk, "last": self._last.sequence, "walked": self._walked,
                "progress": self.transport.progress,
            }  # fmt: skip
            wire.send_reply(stream, Reply(request.sequence, False, self.transport.now, json.dumps(told).encode()))
        except (Dropped, Late, ValueError, KeyError, TypeError):
            stream.close()
            return None
        connection.settimeout(FRAME_TIMEOUT)
        self._lost = math.inf
        return stream

    def _refusal(self, hello: dict) -> TransportError | None:
        """Why a client is not let in; None when it is. Another machine than it expects is no way that is missing."""
        if (hello["protocol"], hello["version"]) != (wire.PROTOCOL, wire.VERSION):
            return NoTransport(
                f"the client speaks {hello['protocol']} {hello['version']}, this server {wire.PROTOCOL} {wire.VERSION}"
            )
        if hello["machine"] != self.machine.name:
            return TransportError(f"{self.machine.name} is served here, and not {hello['machine']}")
        if hello["digest"] != wire.machine_digest(self.machine):
            return TransportError(
                f"another machine of the name {self.machine.name} is served here: the descriptions differ"
            )
        if hello["resumes"] and self._session != hello["session"]:
            return NoTransport(f"the session is not known to this server of {self.machine.name}")
        if self._session not in (None, hello["session"]):
            return NoTransport(f"{self.machine.name} is in use by another client")
        return None

    def _answer(self, stream: Stream) -> bool:
        """Take one request and answer it; False when the connection, or with a BYE the session, is over."""
        try:
            request = wire.receive_request(stream)
            if request.sequence == self._last.sequence + 1:
                self._last = self._execute(request)
                self.executed += 1
            elif request.sequence != self._last.sequence or not request.sequence:
                raise Dropped(f"request {request.sequence} after {self._last.sequence}")
            wire.send_reply(stream, self._last)
        except (Dropped, Late):
            self._lost = time.monotonic()
            return False
        if request.kind == Kind.BYE:
            self._session = None
            return False
        return True

    def _execute(self, request: Request) -> Reply:
        transport, payload = self.transport, b""
        try:
            match request.kind:
                case Kind.READ:
                    payload = transport.read_block(request.address, request.length)
                case Kind.WRITE:
                    transport.write_block(request.address, request.payload)
                case Kind.PAUSE:
                    transport.pause()
                case Kind.PROGRESS:
                    payload = json.dumps(transport.progress).encode()
                case Kind.DIAGNOSE:
                    payload = transport.diagnose().encode()
                case Kind.BYE:
                    self._walked = checked.check_fields(
                        checked.parse(request.payload), {"walked": checked.WALKED}, "the bye"
                    )["walked"]
                case Kind.HELLO:
                    raise NoTransport("a HELLO in the middle of a session")
        except Exception as error:  # whatever the machine has to say is for the client to hear
            return Reply(request.sequence, True, transport.now, wire.error_payload(error))
        return Reply(request.sequence, False, transport.now, payload)
