"""One artifact on a machine's gates, through the orchestrator's registers and the host's memory window."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from kohakutpu.compiler.artifact import Artifact
from kohakutpu.host.driver import Driver
from kohakutpu.host.loader import Loader, Run
from kohakutpu.host.simulate import MachineComplaint, node_names
from kohakutpu.isa.flit import type_name
from kohakutpu.machine import Machine
from kohakutpu.wording import counted

from .dram import WORD_BYTES
from .machine import build, simulate
from .trace import recorded


@dataclass
class RtlRun:
    """A `Run` on the gates with what the monitors counted: `flits` is {node name: {flit type: count}}, as `ModelRun`
    has it."""

    run: Run
    cycles: int
    flits: dict[str, dict[str, int]]
    hops: int
    dram_read: int
    dram_written: int
    host_accesses: int
    simulated: int  # cycles since reset, transfers of operands and results included
    seconds: float  # that these took

    def to_dict(self) -> dict:
        return {
            "cycles": self.cycles, "flits": self.flits, "flit_hops": self.hops, "dram_read_bytes": self.dram_read,
            "dram_written_bytes": self.dram_written, "host_register_accesses": self.host_accesses,
        }  # fmt: skip


def run_rtl(artifact: Artifact, machine: Machine, operands: Mapping[str, np.ndarray], *, simulator: str = "verilator",
            timeout: int | None = None, trace: Path | None = None, seed: int = 1, waves: Path | None = None,
            window: tuple[int, int] | None = None,
            faults: Mapping[str, str] | None = None, latency: int | None = None,
            latency_seed: int | None = None) -> RtlRun:  # fmt: skip
    """Build `machine`'s gates (or take them from the cache) and run an artifact on them.

    `timeout` is the cycle budget of each wait; `trace` writes a trace to a file, while the simulation runs; `seed`,
    `waves`, `window`, `latency` and `latency_seed` as `machine.simulate` has them; `faults` as `rtl.top.MachineTop` has
    them. Raises
    `NoAnswer` when a wait expires, `BrokenRules` when an endpoint broke a rule of its port, `ToolchainError` without
    the simulator, `BenchError` when it does not compile or crashes.
    """
    built = build(machine, simulator=simulator, waves=waves is not None, faults=faults)
    if latency is not None:
        machine = replace(machine, memory=replace(machine.memory, latency=latency))
    with recorded(trace, machine, built.links) if trace else nullcontext() as records:
        done = simulate(
            built, "sim.kernels:execute", seed=seed, records=records, waves=waves, window=window, latency=latency,
            latency_seed=latency_seed, artifact=artifact, operands=dict(operands), timeout=timeout,
        )  # fmt: skip
    if done["refused"]:
        raise MachineComplaint(f"the memory ports refused {counted(done['refused'], 'request')}")
    names = node_names(machine)
    kinds = {"mag": machine.ports, "cluster": machine.clusters, "vector": machine.vectors}
    senders = {
        f"{kind}{index}.out": names[site.node] for kind, sites in kinds.items() for index, site in enumerate(sites)
    }
    senders["agent.out"] = names[machine.agent.node]
    flits_sent = {
        senders[link]: {type_name(kind): count for kind, count in counts.items()}
        for link, counts in done["links"].items()
        if link in senders and counts
    }
    hops = sum(sum(counts.values()) for counts in done["links"].values())
    read, written = (WORD_BYTES * sum(words) for words in done["words"].values())
    return RtlRun(
        done["run"],
        int(done["run"].elapsed),
        flits_sent,
        hops,
        read,
        written,
        done["accesses"],
        done["cycles"],
        done["seconds"],
    )


def execute(machine, artifact: Artifact, operands: Mapping[str, np.ndarray], timeout: int | None) -> dict:
    """The job: load, run and read back, as on any other transport."""
    from .transport import RtlTransport

    transport = RtlTransport(machine)
    start = time.perf_counter()
    run = Loader(Driver(transport, timeout=timeout)).run(artifact, operands)
    seconds = time.perf_counter() - start
    states = machine.link_state()
    return {
        "run": run, "seconds": seconds, "cycles": machine.now, "accesses": transport.accesses,
        "refused": int(machine.dut.refused.value),
        "words": machine.moved_words(),
        "links": {name: counts for name, _, _, _, _, counts in states},
    }  # fmt: skip
