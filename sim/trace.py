"""What the monitors of a simulation wrote, as transfers and as a trace file of the model's format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from kohakutpu.isa.flit import Flit
from kohakutpu.machine import Machine
from kohakutpu.noc.trace import TraceWriter


class Wire(NamedTuple):
    """A link as a trace knows it."""

    index: int
    name: str


def transfers(prefix: Path, links: Sequence[str]) -> Iterator[tuple[int, Wire, Flit]]:
    """(cycle, link, flit) of every transfer of a `simulate(flits=prefix)`, in order of cycles and then of links.

    Raises `FileNotFoundError` when a link has no file, `ValueError` for a line that is no transfer.
    """
    found = []
    for index, name in enumerate(links):
        wire = Wire(index, name)
        for line in Path(f"{prefix}.{index}").read_text().splitlines():
            cycle, flit = line.split()
            found.append((int(cycle, 16), wire, int(flit, 16)))
    found.sort()
    for cycle, wire, flit in found:
        yield cycle, wire, Flit.from_int(flit)


def write_trace(path: Path, machine: Machine, links: Sequence[str], prefix: Path) -> int:
    """Write a trace file of `machine`; returns how many transfers it holds."""
    wires = [Wire(index, name) for index, name in enumerate(links)]
    with TraceWriter(path, machine, wires) as writer:
        for transfer in transfers(prefix, links):
            writer(*transfer)
    return writer.count
