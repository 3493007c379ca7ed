"""One suite for every transport (transport_conformance.py), each in front of the cycle models."""

import sys
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from kohakutpu.host.model_transport import ModelTransport
from kohakutpu.host.transport import CONTROL_BASE, CONTROL_SIZE, MEMORY_BASE, MEMORY_SIZE
from kohakutpu.host.transports.jtag import JtagTransport
from kohakutpu.host.transports.recording import Recorder, Replay
from kohakutpu.host.transports.serving import Server
from kohakutpu.host.transports.socket_transport import SocketTransport
from kohakutpu.host.transports.wrappers import Rebased, Window
from kohakutpu.host.transports.xdma import XdmaTransport
from kohakutpu.machine import load
from kohakutpu.model.system import System

sys.path.insert(0, str(Path(__file__).parent))
from fake_xdma import FakeFiles  # noqa: E402
from transport_conformance import SCRIPTS  # noqa: E402

MACHINE = load("mm_mesh")
KINDS = ("model", "socket", "jtag", "xdma", "rebased", "window", "record", "replay")


@contextmanager
def served(inner, address, **options):
    """A `Server` in a thread of its own; whatever ends it is raised when the context is left."""
    server = Server(inner, MACHINE, address, engine="models", single=True, **options)
    failed = []

    def work():
        try:
            server.run()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work)
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


def opened(kind, folder, stack, inner):
    """A transport of that kind to `inner`; `stack` closes it."""
    if kind == "model":
        return stack.enter_context(inner)
    if kind == "socket":
        stack.enter_context(served(inner, folder / "socket"))
        return stack.enter_context(SocketTransport(folder / "socket", MACHINE))
    if kind == "jtag":
        pytest.importorskip("tkinter", reason="the fake Tcl server needs Python's tkinter (apt-get install python3-tk)")
        from fake_jtag import FakeJtag, Link

        fake = stack.enter_context(FakeJtag(Raw(inner), Link(idle=5)))
        link = JtagTransport(fake.address, control=0x80_0000, scratch=(1 << 41) + 0x100)
        return stack.enter_context(Rebased(link, control=0x80_0000, memory=1 << 41))
    if kind == "xdma":
        return stack.enter_context(XdmaTransport("/dev/xdma9", control=0x1000, files=FakeFiles(inner, "/dev/xdma9", control=0x1000, idle=5)))
    if kind == "rebased":
        return stack.enter_context(Rebased(Raw(inner), control=0x80_0000, memory=1 << 41))
    if kind == "window":
        return stack.enter_context(Window(inner, {"control": (CONTROL_BASE, CONTROL_SIZE), "memory": (MEMORY_BASE, MEMORY_SIZE)}))
    return stack.enter_context(Recorder(inner, MACHINE, folder / "session.jsonl", "model"))


class Raw(Rebased):
    """A board's addresses, in front of a transport that knows ours: the other way round."""

    def __init__(self, inner):
        super().__init__(inner, control=CONTROL_BASE, memory=MEMORY_BASE)

    def place(self, address, length, what):
        if address >= 1 << 41:
            return address - (1 << 41) + MEMORY_BASE
        return address - 0x80_0000 + CONTROL_BASE


@pytest.fixture(scope="module")
def expected():
    """What each script returns on the models themselves."""
    return {script: script(ModelTransport(System(MACHINE)), MACHINE) for script in SCRIPTS}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_conformance(kind, script, tmp_path, expected):
    with ExitStack() as stack:
        found = script(opened(kind, tmp_path, stack, ModelTransport(System(MACHINE))), MACHINE)
    assert found == expected[script]
    if kind == "replay":
        with Replay(tmp_path / "session.jsonl", MACHINE) as again:
            assert script(again, MACHINE) == found
            assert again.finished()
