"""`Transport` to gates in a simulator that is started for it and ends with it.

The simulator is another process (`sim.server`) and is reached over a private UNIX socket. It holds the reading end of a
pipe whose writing end is here, so that it ends when this process does, however that ends.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kohakutpu.machine import Machine

from ..transport import NoTransport, TransportError
from .socket_transport import TIMEOUT, SocketTransport

ROOT = Path(__file__).resolve().parents[3]
SIMULATORS = ("verilator", "icarus")
LOOK = 0.05  # s between two looks at a simulator that starts
END_TIMEOUT = 30.0  # s that a simulator may take to end after the session
SAID = ("emitting", "compiling")  # how lines of its log begin that are passed on, as what they tell of takes its time
TAIL = 4000  # characters of its log that an error shows
SOCKET, TASK, LOG = "socket", "task", "log"


class SimulationFailed(TransportError):
    """Every access was answered, and the simulation has a complaint all the same, such as a broken port rule."""

    exit_status = 1


class SimulatorTransport(SocketTransport):
    """The gates of `machine` under `simulator`, compiled if they were not; `faults` as `rtl.top.MachineTop` has them.

    `waves` is a folder for an FST of everything. Raises `NoTransport` without a checkout, a tool or a simulator that
    starts, and `SimulationFailed` from `close`.
    """

    def __init__(self, machine: Machine, *, simulator: str = "verilator", faults: Mapping[str, str] | None = None,
                 waves: Path | None = None, timeout: float = TIMEOUT):  # fmt: skip
        if not (ROOT / "sim" / "server.py").exists():
            raise NoTransport(
                f"the gates are part of a checkout, and {ROOT} is none: clone the project and run `make env`"
            )
        self._folder = Path(tempfile.mkdtemp(prefix="kohakutpu-"))
        self._process = None
        try:
            task = {
                "machine": machine,
                "simulator": simulator,
                "faults": dict(faults or {}),
                "waves": waves and waves.resolve(),
            }
            (self._folder / TASK).write_bytes(pickle.dumps(task))
            self._start()
            self._wait()
            super().__init__(self._folder / SOCKET, machine, timeout=timeout)
        except BaseException:
            self._kill()
            raise

    def _start(self) -> None:
        reading, lifeline = os.pipe()
        try:
            with open(self._folder / LOG, "wb") as log:
                # A group of its own, so that a compiler or a simulator that it has started can be ended with it.
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "sim.server", str(self._folder), str(reading)], cwd=ROOT, pass_fds=[reading],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
        except BaseException:
            os.close(lifeline)
            raise
        finally:
            os.close(reading)
        # Also for a transport that is dropped without an end.
        self._finish = weakref.finalize(self, _end, self._process, lifeline, self._folder)

    def _wait(self) -> None:
        """Until the simulation listens; what takes long on the way is said."""
        said = 0
        while not (self._folder / SOCKET).exists():
            log = self._log()
            for line in log[said:].splitlines(keepends=True):
                if line.startswith(SAID) and line.endswith("\n"):
                    print(line, end="", file=sys.stderr, flush=True)
                said += len(line) if line.endswith("\n") else 0
            if self._process.poll() is not None:
                raise NoTransport(
                    f"the simulation did not start (status {self._process.returncode})\n{self._log()[-TAIL:]}"
                )
            time.sleep(LOOK)

    @property
    def pid(self) -> int:
        """The process, and process group, of the simulation."""
        return self._process.pid

    def _log(self) -> str:
        path = self._folder / LOG
        return path.read_text(errors="replace") if path.exists() else ""

    def _fate(self) -> str:
        """What has become of the simulator, to be added to an error."""
        if self._process is None:
            return ""
        try:
            self._process.wait(2)  # its connection ends a little before it does
        except subprocess.TimeoutExpired:
            return f"\nthe simulator (process group {self.pid}) is still running, and is ended now"
        return f"\nthe simulator has ended (status {self._process.returncode})\n{self._log()[-TAIL:]}"

    def _converse(self, what: str, message: Any) -> Any:
        try:
            return super()._converse(what, message)
        except TransportError:
            if self._given_up:
                self._kill()
            raise

    def _kill(self) -> None:
        self._hang_up()
        if self._process is not None:
            self._finish()
        else:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._process = None

    def close(self) -> None:
        """End the simulation."""
        if self._process is None:
            return
        try:
            super().close()
            status = self._process.wait(END_TIMEOUT)
            complaint = f"the simulation ended badly (status {status})\n{self._log()[-TAIL:]}" if status else ""
        except subprocess.TimeoutExpired:
            complaint = f"the simulation did not end within {END_TIMEOUT:g} s of its session and was killed"
        finally:
            self._kill()
        if complaint:
            raise SimulationFailed(complaint)


def _end(process: subprocess.Popen, lifeline: int, folder: Path) -> None:
    """Leave nothing of a simulation behind."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    os.close(lifeline)
    shutil.rmtree(folder, ignore_errors=True)
