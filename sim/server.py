"""Gates in a simulator, served over a socket (`kohakutpu.host.transports.serving`), so that any process can drive them.

`python -m sim.server FOLDER FD` is what a `SimulatorTransport` starts: FOLDER holds what to build, and the socket then;
the end of the pipe FD is the end of whoever wanted it.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import sys
import time
from pathlib import Path
from threading import Event, Thread

from kohakutpu.host.transports.serving import Server
from kohakutpu.host.transports.simulator import SOCKET, TASK
from kohakutpu.machine import Machine

from .machine import build, simulate

GRACE = 15.0  # s that a simulation has to end by itself when nobody wants it any more


def answer(machine, description: Machine, address: Path, engine: str) -> int:
    """The job: the simulation stands still while nobody asks for anything. Returns how many requests were done."""
    from .transport import RtlTransport

    server = Server(RtlTransport(machine), description, address, engine=engine, single=True)
    server.run()
    return server.executed


def _end_with(lifeline: int, folder: Path, alone: Event) -> None:
    """Wait for the pipe's end, and leave nothing running."""
    while os.read(lifeline, 1):
        pass
    alone.set()
    time.sleep(GRACE)
    shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def main(folder: Path, lifeline: int) -> int:
    alone = Event()
    Thread(target=_end_with, args=(lifeline, folder, alone), daemon=True).start()
    task = pickle.loads((folder / TASK).read_bytes())
    machine, simulator, waves = task["machine"], task["simulator"], task["waves"]
    try:
        built = build(machine, simulator=simulator, waves=waves is not None, faults=task["faults"])
        simulate(
            built,
            "sim.server:answer",
            waves=waves,
            description=machine,
            address=folder / SOCKET,
            engine=f"gates under {simulator}",
        )
    except Exception as error:
        print(error, file=sys.stderr)
        if alone.wait(1):
            shutil.rmtree(folder, ignore_errors=True)  # nobody else is left to do it
        return getattr(error, "exit_status", 2)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
