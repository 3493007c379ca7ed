"""A machine's gates in a simulator, from outside: build it once, run jobs on it."""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path
from typing import NamedTuple

from kohakutpu.machine import Machine

from . import monitor, runner
from .machine_top import TOP, machine_verilog


class Built(NamedTuple):
    """A compiled machine; `links` are its links' names by index."""

    machine: Machine
    simulator: str
    folder: Path
    links: list[str]


def build(machine: Machine, *, simulator: str, agent: str = "orchestrator", waves: bool = False) -> Built:
    """Emit and compile `machine`; taken from the cache when its Verilog is the same."""
    text, links = machine_verilog(machine, agent=agent)
    public = "\n".join([runner.control_file(TOP), *monitor.PUBLIC, ""])
    return Built(machine, simulator, runner.build(text, top=TOP, simulator=simulator, waves=waves, public=public), links)


def simulate(built: Built, job: str, *, seed: int = 1, flits: Path | None = None, waves: bool = False,
             search: list[Path] | None = None, **arguments):  # fmt: skip
    """Run `job` ("module:function") on a machine out of reset; returns what it returns, raises what it raises.

    `flits` is a path prefix: every transfer is written to `FLITS.INDEX`, a file for each link.
    """
    with tempfile.TemporaryDirectory(dir=built.folder, prefix="job-") as name:
        path = Path(name) / "job.task"
        machine = built.machine
        task = {
            "job": job, "arguments": arguments, "links": built.links, "memory_bytes": machine.memory.bytes,
            "ports": len(machine.ports),
        }  # fmt: skip
        path.write_bytes(pickle.dumps(task))
        runner.run(
            built.folder, top=TOP, simulator=built.simulator, module="sim.inside", expected=["job"], seed=seed, waves=waves,
            extra_env={"KOHAKUTPU_JOB": str(path)}, results=Path(name), search=search or [],
            plusargs=[] if flits is None else [f"+flits={flits}"],
        )  # fmt: skip
        state, outcome = pickle.loads(path.with_suffix(".result").read_bytes())
    if state == "failed":
        raise outcome
    return outcome
