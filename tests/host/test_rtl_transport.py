"""Gates that another process drives: the conformance suite, and what is said when the simulator stops, hangs or is
left.
"""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from kohakutpu.compiler import compile_kernel
from kohakutpu.host.compare import compare
from kohakutpu.host.driver import Driver
from kohakutpu.host.loader import Loader
from kohakutpu.host.model_transport import ModelTransport
from kohakutpu.host.simulate import run_reference
from kohakutpu.host.transport import CONTROL_BASE, MEMORY_BASE, NoTransport, Unanswered
from kohakutpu.host.transports import open_transport
from kohakutpu.host.transports.opening import SpecError
from kohakutpu.host.transports.simulator import SimulationFailed
from kohakutpu.kernels.linear import matmul
from kohakutpu.machine import load
from kohakutpu.model.system import System

sys.path.insert(0, str(Path(__file__).parent))
from transport_conformance import SCRIPTS  # noqa: E402

MACHINE = load("mm_mesh")
ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60  # within which a process that should end has ended


def members(group):
    """Processes of a process group that have not ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, pgrp = stat.read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue  # ended meanwhile
        if int(pgrp) == group and state != "Z":
            found.append(int(stat.parent.name))
    return found


def gone(group, folder):
    """Whether a simulation's processes and its folder go; a killed process takes a moment."""
    deadline = time.monotonic() + SECONDS
    while (members(group) or Path(folder).exists()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not members(group) and not Path(folder).exists()


@pytest.fixture(scope="module")
def gates():
    with open_transport("rtl", MACHINE) as transport:
        yield transport


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_conformance(gates, script):
    """The same scripts as for every other transport, with the same results as on the models."""
    assert script(gates, MACHINE) == script(ModelTransport(System(MACHINE)), MACHINE)


def test_accesses_take_the_models_cycles(gates):
    """Also over a socket: the simulation stands still while nobody asks."""
    model = ModelTransport(System(MACHINE))

    def cycles(transport):
        start = transport.now
        for access in (
            lambda: transport.read64(CONTROL_BASE),
            lambda: transport.write_block(CONTROL_BASE + 0x2000, bytes(400)),
            transport.pause,
            lambda: transport.read64(CONTROL_BASE + 0x58),
        ):
            time.sleep(0.01)
            access()
        return transport.now - start

    assert cycles(gates) == cycles(model)


def test_a_simulator_that_dies_is_reported_by_name():
    with pytest.raises(NoTransport) as caught, open_transport("rtl", MACHINE) as transport:
        transport.write64(MEMORY_BASE + 64, 1)
        group, folder = transport.pid, transport.address.parent
        os.killpg(group, signal.SIGKILL)
        transport.read64(MEMORY_BASE + 64)
    text = str(caught.value)
    assert "lost during a read of 8 bytes at 0x10000000040" in text and "the simulator has ended (status -9)" in text
    assert caught.value.exit_status == 3 and gone(group, folder)


def test_a_simulator_that_hangs_is_ended_and_reported_by_name():
    with pytest.raises(Unanswered) as caught, open_transport("rtl,timeout=2", MACHINE) as transport:
        transport.write64(MEMORY_BASE + 64, 1)
        group, folder = transport.pid, transport.address.parent
        os.killpg(group, signal.SIGSTOP)
        transport.read64(MEMORY_BASE + 64)
    text = str(caught.value)
    assert "the read of 8 bytes at 0x10000000040 was not answered" in text and "within 2 s" in text and "cycles" in text
    assert f"the simulator (process group {group}) is still running, and is ended now" in text
    assert caught.value.exit_status == 4 and gone(group, folder)


CLIENT = """
import sys, time
from kohakutpu.host.transports import open_transport
from kohakutpu.machine import load
transport = open_transport("rtl", load("mm_mesh"))
transport.write64(1 << 40, 1)
print(transport.pid, transport.address.parent, flush=True)
while True:
    transport.pause()
"""


def test_a_client_that_is_killed_leaves_no_simulator(started):
    with started([sys.executable, "-c", CLIENT], stdout=subprocess.PIPE, text=True) as client:
        group, folder = client.stdout.readline().split()
        assert members(int(group)) and Path(folder).exists()
        client.kill()
    assert gone(int(group), folder)


@pytest.fixture
def serve(started, tmp_path):
    """`with serve() as server:`, of the gates on `served` in tmp_path, as a background job of a script: SIGINT is
    ignored."""
    command = [
        sys.executable, "-m", "kohakutpu.cli.main", "serve", "--transport", "rtl", "--listen", str(tmp_path / "served"),
    ]  # fmt: skip
    ignoring = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *command]
    return partial(started, ignoring, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


def simulation_of(server):
    """(process group, folder) of the simulation that a server has started, once it is there."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        for process in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
                words = (process / "cmdline").read_text().split("\0")
            except OSError:
                continue
            if parent == server.pid and "sim.server" in words:
                return int(process.name), Path(words[words.index("sim.server") + 1])
        time.sleep(0.02)
    raise AssertionError("no simulation was started")


def test_a_server_of_gates_ends_in_order(serve, tmp_path):
    address = tmp_path / "served"
    with serve() as server:
        assert server.stdout.readline() == "opening rtl to mm_mesh\n"
        assert server.stdout.readline() == f"ready on {address}: mm_mesh (rtl); Ctrl-C or SIGTERM ends it\n"
        group, folder = simulation_of(server)
        with open_transport(f"socket:{address}", MACHINE) as transport:
            transport.write64(MEMORY_BASE + 64, 7)
            assert transport.read64(MEMORY_BASE + 64) == 7
        server.send_signal(signal.SIGTERM)
        said, complaint = server.communicate(timeout=SECONDS)
    assert (server.returncode, said) == (0, "3 requests done\n") and "Traceback" not in complaint
    assert not address.exists() and not members(group) and not folder.exists()


def test_a_server_that_is_stopped_while_it_starts_leaves_no_simulator(serve, tmp_path):
    with serve() as server:
        assert server.stdout.readline() == "opening rtl to mm_mesh\n"
        group, folder = simulation_of(server)
        server.send_signal(signal.SIGTERM)
        said, complaint = server.communicate(timeout=SECONDS)
    assert server.returncode == 143 and not said and complaint.splitlines()[-1] == "kohakutpu serve: stopped"
    assert not list(tmp_path.iterdir()) and not members(group) and not folder.exists()


@pytest.mark.parametrize(
    "spec, faults, error, reason",
    [
        ("rtl:vcs", [], SpecError, "rtl:vcs: expected one of verilator, icarus"),
        ("rtl,speed=2", [], SpecError, "rtl has no option speed"),
        ("rtl,timeout=never", [], SpecError, "timeout=never: expected a number of seconds"),
        ("rtl", ["noc-lost-tail"], SpecError, "expected place=name, such as cluster0=lane-tie"),
        (
            "rtl:icarus",
            ["cluster0=no-such"],
            NoTransport,
            "did not start .*\n(emitting .*\n)?.*cluster0 of mm_mesh has no fault 'no-such'",
        ),
    ],
)
def test_what_cannot_be_started_is_refused(spec, faults, error, reason):
    with pytest.raises(error, match=reason):
        open_transport(spec, MACHINE, faults=faults)


def test_a_broken_rule_is_heard_at_the_end():
    """What the checkers in the gates have seen ends a session as an error, though the bytes were right."""
    knobs = {"gm": 8, "gn": 8, "nk": 1}
    artifact = compile_kernel(matmul, MACHINE, {"a": (32, 32), "b": (32, 32)}, knobs)
    operands = {name: np.ones((32, 32), np.float16) for name in ("a", "b")}
    transport = open_transport("rtl:icarus", MACHINE, faults=["cluster0=writer-last"])
    run = Loader(Driver(transport)).run(artifact, operands)
    want = run_reference(matmul, knobs, operands, MACHINE)
    assert all(row.equal for row in compare(artifact, want.outputs, run.outputs))
    with pytest.raises(SimulationFailed, match="(?s)ended badly .status 1..*cluster0: framing, ") as caught:
        transport.close()
    assert caught.value.exit_status == 1
    transport.close()


def test_a_script_written_against_the_models_runs_on_the_gates():
    """Unchanged, with the same bytes and the same verdict."""
    script = ROOT / "examples" / "drive.py"
    runs = [subprocess.run([sys.executable, script, spec], capture_output=True, text=True) for spec in ("model", "rtl")]
    assert [run.returncode for run in runs] == [0, 0]
    assert runs[0].stdout == runs[1].stdout and "byte-equal" in runs[0].stdout
