"""Every transport in front of a model, with harm on the way: what the tests of transports open."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from chaos import Harm, Proxy
from fake_xdma import FakeFiles
from transport_traffic import Ledger

from kohakutpu.host.model_transport import ModelTransport
from kohakutpu.host.transport import CONTROL_BASE, MEMORY_BASE, Transport
from kohakutpu.host.transports.jtag import JtagTransport
from kohakutpu.host.transports.serving import Server
from kohakutpu.host.transports.socket_transport import SocketTransport
from kohakutpu.host.transports.wrappers import Mapped, Rebased
from kohakutpu.host.transports.xdma import XdmaTransport
from kohakutpu.machine import Machine
from kohakutpu.model.system import System

CONTROL, MEMORY = 0x80_0000, 1 << 41  # where the boards of these tests have their windows


class Board(Mapped):
    """A board's addresses, in front of a transport that knows ours: `Rebased` the other way round."""

    def place(self, address: int, length: int, what: str) -> int:
        return address - MEMORY + MEMORY_BASE if address >= MEMORY else address - CONTROL + CONTROL_BASE


@contextmanager
def served(inner: Transport, machine: Machine, address: Path | tuple[str, int], *, single: bool = True, **options):
    """A `Server` in a thread of its own; whatever ends it is raised when the context is left."""
    server = Server(inner, machine, address, engine="models", single=single, **options)
    failed: list[BaseException] = []

    def work() -> None:
        try:
            server.run()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while thread.is_alive() and isinstance(address, Path) and not address.exists():
            thread.join(0.01)
        yield server
    finally:
        thread.join(30)
        assert not thread.is_alive()
    if failed:
        raise failed[0]


@contextmanager
def jtag_to(inner: Transport, **link):
    """A function that connects to a `FakeJtag` before `inner` whose `Link` is like that; `.fake` is the server."""
    pytest.importorskip("tkinter", reason="the fake Tcl server needs Python's tkinter (apt-get install python3-tk)")
    from fake_jtag import FakeJtag, Link

    with FakeJtag(Board(inner), Link(**link)) as fake:

        def connect(address: tuple[str, int] | None = None, **options) -> Transport:
            there = JtagTransport(address or fake.address, control=CONTROL, scratch=MEMORY + 0x100, **options)
            return Rebased(there, control=CONTROL, memory=MEMORY)

        connect.fake = fake
        yield connect


@dataclass
class World:
    """An open transport, what arrives at the machine behind it, and how much harm was done."""

    transport: Transport
    ledger: Ledger
    harm: Callable[[], dict[str, int]]


@contextmanager
def harmed(kind: str, machine: Machine, folder: Path, harm: Harm, seed: int = 1, idle: int = 0):
    """A `World` of a transport of that kind; harm begins, and its ledger counts, when the transport is open.

    `idle` is for how many pauses a machine behind a card's link runs on between two requests.
    """
    inner = Ledger(ModelTransport(System(machine)))
    with ExitStack() as stack:
        if kind == "socket":
            stack.enter_context(served(inner, machine, folder / "socket"))
            proxy = stack.enter_context(Proxy(folder / "socket", Harm(), seed))
            transport, done = SocketTransport(proxy.address, machine), proxy.done
            proxy.harm = harm
        elif kind == "jtag":
            connect = stack.enter_context(jtag_to(inner, stale=harm.short, idle=idle))
            proxy = stack.enter_context(Proxy(connect.fake.address, Harm(), seed))
            transport, done = connect(proxy.address), proxy.done
            proxy.harm = harm
        else:
            files = FakeFiles(inner, "/dev/x", harm=harm, seed=seed, idle=idle)
            transport, done = XdmaTransport("/dev/x", files=files), files.done
        stack.enter_context(transport)
        assert not inner.words
        yield World(transport, inner, lambda: done)
