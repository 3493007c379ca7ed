"""Commands that run gates and are stopped, by SIGTERM, by Ctrl-C or for good: no simulator goes on without them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sim.toolchain import BUILD

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 500  # the gates are compiled first, if they were not
COMMANDS = {
    "fuzz": ["--engine", "rtl", "--programs", "5000", "--out", "."],
    "sim": ["--engine", "rtl"],
    "lockstep": [],
}


def processes():
    """{process: (parent, program)} of all that have not ended."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (process / "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z":
                found[int(process.name)] = int(parent), Path(os.readlink(process / "exe"))
        except OSError:
            continue  # ended meanwhile
    return found


def simulators_of(command):
    """Simulators that a process has started, itself or through others."""
    there = processes()

    def started(process):
        while process in there and process != command:
            process = there[process][0]
        return process == command

    return [
        process
        for process, (_, program) in there.items()
        if program.is_relative_to(BUILD.resolve()) and started(process)
    ]


def until(what, seconds=SECONDS):
    deadline = time.monotonic() + seconds
    while not (found := what()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def heed_interrupts():
    """Tests may themselves be a background job, whose children are told to ignore SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize(
    "name, stop, status",
    [
        ("fuzz", signal.SIGTERM, 143), ("sim", signal.SIGTERM, 143), ("lockstep", signal.SIGTERM, 143),
        ("fuzz", signal.SIGINT, 130), ("lockstep", signal.SIGINT, 130),
        ("lockstep", signal.SIGKILL, -9),
    ],
)  # fmt: skip
def test_no_simulator_is_left(started, tmp_path, name, stop, status):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-m", "kohakutpu.cli.main", name, *COMMANDS[name]]
    options = {
        "stderr": subprocess.PIPE, "text": True, "cwd": tmp_path, "env": environment, "preexec_fn": heed_interrupts,
    }  # fmt: skip
    with started(command, stdout=subprocess.DEVNULL, **options) as run:
        simulators = until(lambda: run.poll() is not None or simulators_of(run.pid))
        assert run.poll() is None and simulators, "no simulator was started"
        run.send_signal(stop)
        _, said = run.communicate(timeout=SECONDS)
    assert run.returncode == status
    until(lambda: not any(process in processes() for process in simulators))
    assert not [process for process in simulators if process in processes()]
    if stop != signal.SIGKILL:
        assert said.splitlines()[-1] == f"kohakutpu {name}: stopped" and "Traceback" not in said
        assert not list(tmp_path.iterdir())


WAITING = """
import sys
from pathlib import Path
from kohakutpu.machine import load
from sim.machine import build, simulate
machine = load("mm_mesh")
built, address = build(machine, simulator="verilator"), Path(sys.argv[1])
simulate(built, "sim.server:answer", description=machine, address=address, engine="gates")
"""


def test_a_simulator_does_not_outlive_the_process_that_started_it(started, tmp_path):
    """One that would wait for ever for a client."""
    address = tmp_path / "socket"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with started([sys.executable, "-c", WAITING, str(address)], env=environment) as run:
        assert until(lambda: run.poll() is not None or address.exists()) and run.poll() is None
        (simulator,) = simulators_of(run.pid)
        run.kill()
    assert until(lambda: simulator not in processes(), 60)


COMPILING = """
from kohakutpu.cli.main import termination
from sim import runner
text = "module idle(input clk, output reg q); always @(posedge clk) q <= !q; endmodule"
with termination():
    runner.build(text, top="idle", simulator="verilator")
"""


def working_in(folder):
    """Programs that run below a folder, by name."""
    found = []
    for process, (_, program) in processes().items():
        try:
            if Path(os.readlink(f"/proc/{process}/cwd")).is_relative_to(folder):
                found.append(program.name)
        except OSError:
            continue  # ended meanwhile
    return found


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_compiler_is_left(started, tmp_path, stop):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "KOHAKUTPU_BUILD": str(tmp_path / "build")}
    options = {"stderr": subprocess.DEVNULL, "cwd": ROOT, "env": environment, "preexec_fn": heed_interrupts}
    with started([sys.executable, "-c", COMPILING], **options) as run:
        assert until(lambda: run.poll() is not None or "cc1plus" in working_in(tmp_path)) and run.poll() is None
        run.send_signal(stop)
        run.wait(timeout=SECONDS)
    assert until(lambda: not working_in(tmp_path), 1), f"left: {working_in(tmp_path)}"
    assert not list(tmp_path.glob("build/sim/*/complete"))
