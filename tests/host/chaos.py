"""Harm between a client and a server: bytes in small pieces, late, or not at all."""

from __future__ import annotations

import random
import selectors
import socket
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Harm:
    """How often, of everything that passes: a piece is cut short, waits, or is the last one of its connection."""

    short: float = 0.0
    delay: float = 0.0
    drop: float = 0.0
    seconds: float = 0.002  # of a delay, at most


class Listener:
    """A server on a free port of this computer, whose thread hands one connection after the other to `serve`, until the
    context is left.
    """

    def __init__(self):
        """Begins at once: call it when everything that `serve` needs is there."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._listener.getsockname()[:2]
        self._over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        self._over = True
        socket.create_connection(self.address).close()
        self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection:
                if self._over:
                    return
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with suppress(OSError, EOFError):  # one of them has gone: so has the connection
                    self.serve(connection)

    def serve(self, connection: socket.socket) -> None:
        raise NotImplementedError


class Proxy(Listener):
    """Stands before `target`, a UNIX socket or (host, port), and does `harm` that `seed` fixes; `done` counts it."""

    def __init__(self, target: Path | tuple[str, int], harm: Harm, seed: int = 1):
        self.target = target
        self.harm = harm
        self.done = {"short": 0, "delay": 0, "drop": 0}
        self._random = random.Random(seed)
        super().__init__()

    def serve(self, client: socket.socket) -> None:
        with socket.socket(socket.AF_UNIX if isinstance(self.target, Path) else socket.AF_INET) as server:
            server.connect(str(self.target) if isinstance(self.target, Path) else self.target)
            self._pass_on(client, server)

    def _happens(self, what: str) -> bool:
        if self._random.random() >= getattr(self.harm, what):
            return False
        self.done[what] += 1
        return True

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(client, selectors.EVENT_READ, server)
            selector.register(server, selectors.EVENT_READ, client)
            while not self._over:
                for key, _ in selector.select(0.5):
                    data = key.fileobj.recv(1 << 16)
                    if not data:
                        return
                    if self._happens("delay"):
                        time.sleep(self._random.uniform(0, self.harm.seconds))
                    if self._happens("drop"):
                        # Some of it arrives, or all of it and the answer does not.
                        key.data.sendall(data[: self._random.randint(0, len(data))])
                        return
                    while len(data) > 1 and self._happens("short"):
                        size = self._random.randint(1, len(data) - 1)
                        key.data.sendall(data[:size])
                        data = data[size:]
                    key.data.sendall(data)
