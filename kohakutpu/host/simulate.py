"""One kernel on one machine: compile, run on the cycle models, and interpret, for the command line and tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kohakutpu.compiler.artifact import Artifact
from kohakutpu.formats.accumulator import AccumulatorFormat
from kohakutpu.isa.flit import type_name, xy
from kohakutpu.lang.kernel import Kernel
from kohakutpu.machine import Machine
from kohakutpu.model.system import System
from kohakutpu.reference import Constants, Image, interpret
from kohakutpu.wording import counted

from .driver import Driver
from .loader import Loader, Run
from .model_transport import ModelTransport

WORD_BYTES = 32


class MachineComplaint(RuntimeError):
    """The machine finished, but dropped or refused something on the way: its results are not to be trusted."""

    exit_status = 1


@dataclass
class ModelRun:
    """A `Run` on the cycle models with what the machine counted meanwhile.

    `flits` is {node name: {flit type: count}} of what each endpoint sent; `dram_read` and `dram_written` are bytes
    moved by the memory ports, host transfers not included; `steps` counts the visits of blocks that it took.
    """

    run: Run
    cycles: int
    flits: dict[str, dict[str, int]]
    hops: int
    dram_read: int
    dram_written: int
    host_accesses: int
    steps: int

    def to_dict(self) -> dict:
        return {
            "cycles": self.cycles, "flits": self.flits, "flit_hops": self.hops, "dram_read_bytes": self.dram_read,
            "dram_written_bytes": self.dram_written, "host_register_accesses": self.host_accesses,
            "block_steps": self.steps,
        }  # fmt: skip


def node_names(machine: Machine) -> dict[int, str]:
    """A name with its coordinate for every endpoint of a machine, by packed node."""
    names = {}
    for kind, sites in (("mag", machine.ports), ("cluster", machine.clusters), ("vector", machine.vectors)):
        names |= {site.node: f"{kind}{index}" for index, site in enumerate(sites)}
    if machine.agent.own_endpoint:
        names[machine.agent.node] = "agent"
    return {node: f"{name} ({xy(node)[0]},{xy(node)[1]})" for node, name in names.items()}


def run_model(artifact: Artifact, machine: Machine, operands: Mapping[str, np.ndarray], *, faults: Iterable[str] = (),
              skip: bool = True, trace: Path | None = None, progress: Callable[[int, int], None] | None = None,
              timeout: int | None = None, latency_seed: int | None = None) -> ModelRun:  # fmt: skip
    """Run an artifact on the cycle models of `machine`, through the orchestrator's registers.

    `faults` and `skip` as `System` has them; `trace` writes a trace to a file; `timeout` is the cycle
    budget of each wait; `latency_seed` as `System` has it. Raises `NoAnswer` with the state of every node when a wait
    expires.
    """
    system = System(machine, faults=faults, skip=skip, latency_seed=latency_seed)
    loader = Loader(Driver(ModelTransport(system), timeout=timeout), progress=progress)
    if trace is None:
        run = loader.run(artifact, operands)
    else:
        with system.record(trace):
            run = loader.run(artifact, operands)
    traffic = system.traffic()
    if system.memory_agent.refused or traffic.vanished:
        lost = [f"{counted(traffic.vanished, 'flit')} sent to empty sites"] if traffic.vanished else []
        raise MachineComplaint("; ".join([*lost, *system.memory_agent.notes]))
    ports = system.memory_agent.channels[: len(system.ports)]
    names = node_names(machine)
    return ModelRun(
        run=run,
        cycles=int(run.elapsed),
        flits={
            names[at]: {type_name(kind): n for kind, n in kinds.items()} for at, kinds in traffic.sent.items() if kinds
        },
        hops=traffic.hops,
        dram_read=WORD_BYTES * sum(channel.words_read for channel in ports),
        dram_written=WORD_BYTES * sum(channel.words_written for channel in ports),
        host_accesses=system.host.accesses,
        steps=system.engine.steps,
    )


def random_operands(shapes: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, np.ndarray]:
    """FP16 operands of the given shapes, in that order: normal, deviation 0.3; equal seeds give equal bytes."""
    random = np.random.default_rng(seed)
    return {name: random.normal(0, 0.3, shape).astype(np.float16) for name, shape in shapes.items()}


def run_reference(kernel: Kernel, knobs: Mapping[str, object], operands: Mapping[str, np.ndarray], machine: Machine, *,
                  constants: str = "registers") -> Image:  # fmt: skip
    """What the kernel means for `operands` on `machine`'s number formats."""
    trace = kernel.trace(**knobs)
    extents = kernel.solve({name: array.shape for name, array in operands.items()})
    mantissas = {unit.mantissa for unit in machine.clusters} or {AccumulatorFormat().mantissa}
    if len(mantissas) > 1:
        raise ValueError(
            f"{machine.name} mixes accumulators of {sorted(mantissas)} mantissa bits: no one image is right"
        )
    return interpret(
        trace, extents, operands, mantissa=mantissas.pop(), constants=Constants(constants),
        exp2_wrap="exp2-wrap" in machine.errata,
    )  # fmt: skip
