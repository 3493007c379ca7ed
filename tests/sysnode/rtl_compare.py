"""A run of a machine's gates repeated on its model, and compared on every link in every cycle."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from kohakutpu.isa.flit import Flit
from kohakutpu.machine import Machine
from kohakutpu.model.system import System
from sim.machine import Built, simulate
from sim.trace import transfers

HERE = Path(__file__).resolve().parent
Transfer = tuple[int, str, Flit]


def run_job(built: Built, job: str, flits: Path, **arguments) -> tuple[dict, list[Transfer]]:
    """(what a job of `rtl_jobs` returned, every transfer of the gates as (cycle, link, flit))."""
    result = simulate(built, f"rtl_jobs:{job}", records=flits, search=[HERE], **arguments)
    return result, [(cycle, link.name, flit) for cycle, link, flit in transfers(flits, built.links)]


def model_transfers(machine: Machine, injected: Iterable[tuple[int, list[Flit]]], cycles: int,
                    memory: Iterable[tuple[int, bytes]] = ()) -> tuple[list[Transfer], System]:  # fmt: skip
    """Every transfer of the model when the bench injects each group of flits in its cycle; runs to cycle `cycles`."""
    moved: list[Transfer] = []
    system = System(
        machine, agent="bench", on_transfer=lambda cycle, link, flit: moved.append((cycle, link.name, flit))
    )
    for address, data in memory:
        system.memory.write(address, data)
    for cycle, flits in injected:
        system.engine.advance(cycle - system.engine.now)
        for flit in flits:
            system.bench.inject(flit)
    system.engine.advance(cycles - system.engine.now)
    return moved, system
