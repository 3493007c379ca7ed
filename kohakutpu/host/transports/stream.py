"""Byte streams to another process: a UNIX socket or TCP, with exact reads and named ways to fail."""

from __future__ import annotations

import os
import socket
import stat
import threading
from pathlib import Path

from ..transport import NoTransport

LINE_LIMIT = 4096  # bytes of a line that is still looked at


class AddressError(ValueError):
    """A text that is no address: says what was given and what is expected."""


class Dropped(Exception):
    """The stream has ended; says how."""


class Late(Exception):
    """Nothing came in time."""


def parse_address(text: str) -> tuple[str, int] | Path:
    """`HOST:PORT`, or else the path of a UNIX socket. Raises `AddressError`."""
    host, colon, port = text.rpartition(":")
    if "/" in text or not colon:
        if not text:
            raise AddressError("no address: expected HOST:PORT, or the path of a UNIX socket")
        return Path(text)
    if not host or not (port.isascii() and port.isdecimal() and len(port) < 6) or not 0 < int(port) < 1 << 16:
        raise AddressError(
            f"{text!r} is no address: expected HOST:PORT with a port of 1 to 65535, or a path with a '/'"
        )
    return host, int(port)


class Stream:
    """One connection. `timeout` is in seconds, for every single wait."""

    def __init__(self, connection: socket.socket, timeout: float | None):
        connection.settimeout(timeout)
        self._socket = connection
        self._rest = b""

    @classmethod
    def connect(cls, address: tuple[str, int] | Path, timeout: float) -> Stream:
        """Raises `OSError` when nobody is there."""
        if not isinstance(address, Path):
            connection = socket.create_connection(address, timeout)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return cls(connection, timeout)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(timeout)
            connection.connect(str(address))
        except BaseException:
            connection.close()
            raise
        return cls(connection, timeout)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except TimeoutError as error:
            raise Late("nothing was taken in time") from error
        except OSError as error:
            raise Dropped(str(error)) from error

    def _more(self) -> None:
        try:
            data = self._socket.recv(1 << 16)
        except TimeoutError as error:
            raise Late("nothing came in time") from error
        except OSError as error:
            raise Dropped(str(error)) from error
        if not data:
            raise Dropped("the other side closed the connection")
        self._rest += data

    def receive(self, count: int) -> bytes:
        """Exactly `count` bytes."""
        while len(self._rest) < count:
            self._more()
        data, self._rest = self._rest[:count], self._rest[count:]
        return data

    def receive_line(self) -> str:
        """Text up to the next line feed, which is taken off."""
        while b"\n" not in self._rest:
            if len(self._rest) > LINE_LIMIT:
                raise Dropped(f"{len(self._rest)} bytes and no end of line: {self._rest[:40]!r}")
            self._more()
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode(errors="replace")


def listen(address: tuple[str, int] | Path) -> socket.socket:
    """A listening socket that only this machine reaches. Raises `NoTransport` when the address is taken or is no local
    one.

    A socket file that a dead server has left is replaced. A new one is there only once it can be connected to.
    """
    if not isinstance(address, Path):
        if address[0] not in ("127.0.0.1", "localhost"):
            raise NoTransport(
                f"{address[0]}: a machine is served to this computer alone: listen on 127.0.0.1, or on a UNIX socket"
            )
        server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    else:
        _clear(address)
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if isinstance(address, Path):
            _appear(server, address)
        else:
            server.bind(address)
            server.listen()
    except OSError as error:
        server.close()
        raise NoTransport(f"cannot listen on {address}: {error.strerror or error}") from error
    return server


def _appear(server: socket.socket, address: Path) -> None:
    """Listen under another name first: whoever waits for the file may connect as soon as it is there."""
    hidden = address.with_name(f".{os.getpid():x}-{threading.get_ident() & 0xFFFF:x}")
    server.bind(str(hidden))
    try:
        server.listen()
        os.link(hidden, address)
    finally:
        hidden.unlink()


def check_listen(address: tuple[str, int] | Path) -> None:
    """What `listen` would refuse now, before the work that a server needs to begin. Raises `NoTransport`."""
    listen(address).close()
    if isinstance(address, Path):
        address.unlink()


def _clear(path: Path) -> None:
    if not path.exists():
        return
    if not stat.S_ISSOCK(os.stat(path).st_mode):
        raise NoTransport(f"cannot listen on {path}: it is there and is no socket")
    try:
        Stream.connect(path, 1).close()
    except ConnectionRefusedError:
        path.unlink()
        return
    except OSError as error:
        raise NoTransport(f"cannot listen on {path}: {error.strerror or error}") from error
    raise NoTransport(f"cannot listen on {path}: another server answers there")
