"""Machines and runs for the compiler's tests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kohakutpu.compiler import Artifact
from kohakutpu.host.driver import Driver
from kohakutpu.host.loader import Loader
from kohakutpu.host.model_transport import ModelTransport
from kohakutpu.machine import Agent, ClusterUnit, Dram, Machine, MemoryPort, VectorUnit
from kohakutpu.model.system import System

SETTLE = 2000  # cycles after a stage in which its last words reach memory


def build_machine(clusters: int = 8, vectors: int = 8, **changes) -> Machine:
    """A compile-only machine with that many units; `changes`: `Machine` fields, or cluster_*/vector_* of all units."""
    unit = {"cluster": {"tiles": 4096, "a_entries": 512, "b_entries": 512, "inst_depth": 512},
            "vector": {"inst_depth": 512}}  # fmt: skip
    fields = {}
    for name, value in changes.items():
        kind, _, rest = name.partition("_")
        if kind in unit:
            unit[kind][rest] = value
        else:
            fields[name] = value
    defaults = {
        "name": "bench", "nx": 8, "ny": 2, "agent": Agent(0, 1), "ports": (MemoryPort(0, 1, write_slots=32),),
        "memory": Dram(bytes=1 << 28),
        "clusters": tuple(ClusterUnit(1 + n % 8, 1 + n // 8, **unit["cluster"]) for n in range(clusters)),
        "vectors": tuple(VectorUnit(1 + n % 8, 3 + n // 8, **unit["vector"]) for n in range(vectors)),
        "compile_only": True,
    }  # fmt: skip
    return Machine(**(defaults | fields))


@pytest.fixture(scope="session")
def bench() -> Machine:
    """Eight clusters and eight vector cores, roomy, for compiling only."""
    return build_machine()


@pytest.fixture(scope="session")
def run() -> Callable[..., dict[str, np.ndarray]]:
    """Runs an artifact on the cycle models, fresh or those of `system`, and gives the outputs (uint16)."""

    def run(artifact: Artifact, machine: Machine, operands: dict[str, np.ndarray], system: System | None = None):
        system = system or System(machine)
        loader = Loader(Driver(ModelTransport(system), timeout=100_000))
        loader.load(artifact, operands)
        for chain in artifact.chains():
            loader.run_chain(chain)
            if chain[-1].ends_stage:
                system.engine.advance(SETTLE)
        return {image.name: image.unpack(loader.read_buffer(image)) for image in artifact.outputs}

    return run
