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
from collections.abc import Mapping
from pathlib import Path
from threading import Event, Thread

from kohakutpu.host.transports.serving import Server
from kohakutpu.host.transports.simulator import SOCKET, TASK
from kohakutpu.machine import Machine

from .machine import build, simulate

GRACE = 15.0  # s that a simulation has to end by itself when nobody wants it any more


def serve(machine: Machine, address: tuple[str, int] | Path, *, simulator: str, faults: Mapping[str, str] | None = None,
          waves: Path | None = None, single: bool = False) -> int:  # fmt: skip
    """Build `machine` and serve its gates on `address`, for one session if `single`; returns how many requests were done.

    Raises what `sim.machine.simulate` raises, and `SessionLost` when a client goes without an end.
    """
    built = build(machine, simulator=simulator, waves=waves is not None, faults=faults)
    return simulate(built, "sim.server:answer", waves=waves, description=machine, address=address,
                    engine=f"gates under {simulator}", single=single)  # fmt: skip


def answer(machine, description: Machine, address: tuple[str, int] | Path, engine: str, single: bool) -> int:
    """The job: the simulation stands still while nobody asks for anything."""
    from .transport import RtlTransport

    server = Server(RtlTransport(machine), description, address, engine=engine, single=single)
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
    try:
        serve(**task, address=folder / SOCKET, single=True)
    except Exception as error:
        print(error, file=sys.stderr)
        if alone.wait(1):
            shutil.rmtree(folder, ignore_errors=True)  # nobody else is left to do it
        return getattr(error, "exit_status", 2)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
