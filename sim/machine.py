"""A machine's gates in a simulator, from outside: build it once, run jobs on it."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from kohakutpu.machine import Machine
from rtl.mesh import endpoint_sites

from . import monitor, runner
from .inside import PERIOD, RESET_CYCLES
from .machine_top import TOP, Text, machine_verilog
from .toolchain import BUILD, ROOT
from .waves import wave_path, write_views


SOURCES = ("rtl", "sim", "kohakutpu/isa", "kohakutpu/machine", "kohakutpu/formats", "kohakutpu/noc")


class Built(NamedTuple):
    """A compiled machine; names of its links and of its endpoints by index, as the simulation counts them."""

    machine: Machine
    simulator: str
    folder: Path
    links: list[str]
    endpoints: list[str]


def emitted(machine: Machine, agent: str, faults: Mapping[str, str] | None) -> Text:
    """`machine_verilog`, kept under a digest of the machine and of every source that has a part in it."""
    planted = sorted((faults or {}).items())
    digest = hashlib.sha256(f"{machine!r} {agent} {planted} {sys.version} {version('amaranth')}".encode())
    for path in sorted(path for folder in SOURCES for path in (ROOT / folder).rglob("*")):
        if path.suffix in (".py", ".json"):
            digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    kept = BUILD / "emitted" / f"{machine.name}-{agent}-{digest.hexdigest()[:24]}.json"
    if not kept.exists():
        print(f"emitting the gates of {machine.name}", file=sys.stderr, flush=True)
        text = machine_verilog(machine, agent=agent, faults=faults)
        kept.parent.mkdir(parents=True, exist_ok=True)
        partial = kept.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(text._asdict()))
        partial.replace(kept)
    return Text(**json.loads(kept.read_text()))


def start_of(cycle: int) -> int:
    """When `cycle` begins, in ps of simulated time."""
    return (RESET_CYCLES - 1 + cycle) * PERIOD * 1000


def build(machine: Machine, *, simulator: str, agent: str = "orchestrator", waves: bool = False,
          faults: Mapping[str, str] | None = None) -> Built:  # fmt: skip
    """Emit and compile `machine`; taken from the cache when its Verilog is the same.

    `agent` is 'orchestrator', or 'bench' for a job that injects flits in its place; `waves` lets jobs record them,
    which makes it slower; `faults` as `rtl.top.MachineTop` has them.
    """
    text = emitted(machine, agent, faults)
    public = "\n".join([runner.control_file(TOP), *monitor.PUBLIC, ""])
    folder = runner.build(text.verilog, top=TOP, simulator=simulator, waves=waves, public=public,
                          note=f"compiling the gates of {machine.name} for {simulator}: this takes minutes, and is "
                               "kept")  # fmt: skip
    return Built(machine, simulator, folder, text.links, text.endpoints)


def simulate(built: Built, job: str, *, seed: int = 1, records: Path | None = None, waves: Path | None = None,
             window: tuple[int, int] | None = None, latency: int | None = None, latency_seed: int | None = None,
             search: list[Path] | None = None, **arguments):  # fmt: skip
    """Run `job` ("module:function") on a machine out of reset; returns what it returns, raises what it raises.

    Raises `BrokenRules` when a checker has seen a broken rule by the end of a job that raised nothing.
    `records` is a file or a named pipe, for what `sim.trace` reads. `waves` is a folder for an FST of everything and
    the views of `sim.waves`, of a machine that was built with waves; `window` is the first and the last cycle to
    record, all by default. `latency` lowers that of the memory, and with `latency_seed` every burst's is drawn from 1
    to it, as on the models.
    """
    options = {"records": records, "latency": latency, "latency_seed": latency_seed}
    if window is not None:
        options |= {"waves_from": start_of(window[0]), "waves_to": start_of(window[1] + 1) - 1}
    with tempfile.TemporaryDirectory(dir=built.folder, prefix="job-") as name:
        path = Path(name) / "job.task"
        machine = built.machine
        task = {
            "parent": os.getpid(), "job": job, "arguments": arguments, "links": built.links, "memory": machine.memory,
            "ports": len(machine.ports),
            "endpoints": {name: endpoint_sites(machine)[name] for name in built.endpoints},
        }  # fmt: skip
        path.write_bytes(pickle.dumps(task))
        if waves is not None:
            waves.mkdir(parents=True, exist_ok=True)
            write_views(machine, built.links, waves, options.get("waves_from", 0))
        runner.run(
            built.folder, top=TOP, simulator=built.simulator, module="sim.inside", expected=["job"], seed=seed,
            waves=waves is not None, wave_file=wave_path(machine, waves).resolve() if waves else None,
            extra_env={"KOHAKUTPU_JOB": str(path)}, results=Path(name), search=search or [],
            plusargs=[f"+{name}={value}" for name, value in options.items() if value is not None],
        )  # fmt: skip
        state, outcome = pickle.loads(path.with_suffix(".result").read_bytes())
    if state == "failed":
        raise outcome
    return outcome
