"""A machine's gates in a simulator, from outside: build it once, run jobs on it."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from kohakutpu.machine import Machine

from . import monitor, runner
from .machine_top import TOP, machine_verilog
from .toolchain import BUILD, ROOT


SOURCES = ("rtl", "sim", "kohakutpu/isa", "kohakutpu/machine", "kohakutpu/formats")


class Built(NamedTuple):
    """A compiled machine; `links` are its links' names by index."""

    machine: Machine
    simulator: str
    folder: Path
    links: list[str]


def emitted(machine: Machine, agent: str) -> tuple[str, list[str]]:
    """`machine_verilog(machine)`, kept under a digest of the machine and of every source that has a part in it."""
    digest = hashlib.sha256(f"{machine!r} {agent} {sys.version} {version('amaranth')}".encode())
    for path in sorted(path for folder in SOURCES for path in (ROOT / folder).rglob("*")):
        if path.suffix in (".py", ".json"):
            digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    kept = BUILD / "emitted" / f"{machine.name}-{agent}-{digest.hexdigest()[:24]}.json"
    if not kept.exists():
        text, links = machine_verilog(machine, agent=agent)
        kept.parent.mkdir(parents=True, exist_ok=True)
        partial = kept.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps({"links": links, "verilog": text}))
        partial.replace(kept)
    record = json.loads(kept.read_text())
    return record["verilog"], record["links"]


def build(machine: Machine, *, simulator: str, agent: str = "orchestrator", waves: bool = False) -> Built:
    """Emit and compile `machine`; taken from the cache when its Verilog is the same.

    `agent` is 'orchestrator', or 'bench' for a job that injects flits in its place.
    """
    text, links = emitted(machine, agent)
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
