"""What goes beside recorded waves of a machine: a GTKWave view by unit, and files with which viewers decode flits."""

from __future__ import annotations

import os
from pathlib import Path

from kohakutpu.isa.flit import HEADER
from kohakutpu.machine import Machine
from kohakutpu.view.topology import Topology
from kohakutpu.view.waves import wave_files

from .machine_top import TOP

# GTKWave's trace flags: hexadecimal 0x2, right-justified 0x20, a comment 0x200, a translate filter file 0x2000, and the
# beginning and end of a group.
HEXADECIMAL, FILTERED, GROUP, GROUP_END = 0x22, 0x2022, 0x800200, 0x1000200
UNITS = "units.gtkw"


def wave_path(machine: Machine, folder: Path) -> Path:
    """Where the waves of `machine` go in `folder`."""
    return folder / f"{machine.name}.fst"


def write_views(machine: Machine, links: list[str], folder: Path, start: int = 0) -> list[str]:
    """Write everything but the waves themselves, which begin at `start` ps, into `folder`; returns the names of the
    files.

    `units.gtkw` has a group for each endpoint and each router with the fields of the flits on its links; the others are
    those of `kohakutpu.view.waves`.
    """
    topology = Topology(machine, links)
    files = {**wave_files(topology, folder), UNITS: (units_view(topology, folder.resolve(), start), False)}
    for name, (text, executable) in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if executable:
            os.chmod(path, 0o755)
    return sorted(files)


def units_view(topology: Topology, folder: Path, start: int = 0) -> str:
    """A GTKWave save file: the links of each unit, in and out, then those between routers."""
    machine = topology.machine
    lines = [
        f"[*] links of {machine.name} by unit", f'[dumpfile] "{wave_path(machine, folder)}"', f"[timestart] {start}",
    ]  # fmt: skip
    wires = list(enumerate(topology.wires))
    endpoints = [place.name for place in topology.places]
    for name in endpoints:
        links = [(index, wire) for index, wire in wires if name in (wire.source, wire.sink)]
        lines += _group(name, links, folder)
    for router in dict.fromkeys(wire.source for _, wire in wires if wire.source not in endpoints):
        inner = [(index, wire) for index, wire in wires if wire.sink not in (None, *endpoints)]
        links = [(index, wire) for index, wire in inner if wire.source == router]
        lines += _group(router, links, folder) if links else []
    return "\n".join([*lines, ""])


def _group(title: str, links: list, folder: Path) -> list[str]:
    lines = [f"@{GROUP:x}", f"-{title}"]
    for index, wire in links:
        scope = f"{TOP}.monitor_{index}"
        lines += [f"@{GROUP:x}", f"-{wire.name}: {wire.source} to {wire.sink}"]
        lines += [f"@{HEXADECIMAL:x}", f"{scope}.valid", f"{scope}.busy"]
        for item in HEADER.fields.values():
            signal = f"{scope}.flit_{item.name}" + (f"[{item.width - 1}:0]" if item.width > 1 else "")
            if item.name == "type":
                lines += [f"@{FILTERED:x}", f"^1 {folder / 'flit-type.filter.txt'}", signal, f"@{HEXADECIMAL:x}"]
            else:
                lines.append(signal)
        lines += [f"@{GROUP_END:x}", f"-{wire.name}"]
    return [*lines, f"@{GROUP_END:x}", f"-{title}"]
