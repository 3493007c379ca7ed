"""One suite for every transport (transport_conformance.py), each in front of the cycle models."""

import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from kohakutpu.host.model_transport import ModelTransport
from kohakutpu.host.transport import CONTROL_BASE, CONTROL_SIZE, MEMORY_BASE, MEMORY_SIZE
from kohakutpu.host.transports.recording import Recorder, Replay
from kohakutpu.host.transports.socket_transport import SocketTransport
from kohakutpu.host.transports.wrappers import Rebased, Window
from kohakutpu.host.transports.xdma import XdmaTransport
from kohakutpu.machine import load
from kohakutpu.model.system import System

sys.path.insert(0, str(Path(__file__).parent))
from fake_xdma import FakeFiles  # noqa: E402
from transport_conformance import SCRIPTS  # noqa: E402
from transport_world import CONTROL, MEMORY, Board, jtag_to, served  # noqa: E402

MACHINE = load("mm_mesh")
KINDS = ("model", "socket", "jtag", "xdma", "xdma-dma", "rebased", "window", "record", "replay")


def opened(kind, folder, stack, inner):
    """A transport of that kind to `inner`; `stack` closes it."""
    if kind == "model":
        return stack.enter_context(inner)
    if kind == "socket":
        stack.enter_context(served(inner, MACHINE, folder / "socket"))
        return stack.enter_context(SocketTransport(folder / "socket", MACHINE))
    if kind == "jtag":
        connect = stack.enter_context(jtag_to(inner, idle=5))
        return stack.enter_context(connect())
    if kind.startswith("xdma"):
        registers = "dma" if kind == "xdma-dma" else "user"
        files = FakeFiles(inner, "/dev/xdma9", control=0x1000, idle=5)
        return stack.enter_context(XdmaTransport("/dev/xdma9", control=0x1000, registers=registers, files=files))
    if kind == "rebased":
        return stack.enter_context(Rebased(Board(inner), control=CONTROL, memory=MEMORY))
    if kind == "window":
        return stack.enter_context(
            Window(inner, {"control": (CONTROL_BASE, CONTROL_SIZE), "memory": (MEMORY_BASE, MEMORY_SIZE)})
        )
    return stack.enter_context(Recorder(inner, MACHINE, folder / "session.jsonl", "model"))


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
