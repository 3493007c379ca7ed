"""Files with which GTKWave and Surfer show the enums and flits of recorded waves by name; all from `kohakutpu.isa`.

GTKWave: NAME.filter.txt is a translate filter file, flits.sh a translate filter process for 288-bit flits, MACHINE.gtkw
a view of every link that uses them. Surfer: surfer/NAME.mapping is a mapping translator (for `.surfer/mappings`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import IntEnum
from pathlib import Path

from kohakutpu.isa import cluster, signals, vector
from kohakutpu.isa.flit import FLIT_WIDTH, HEADER, FlitType

from .topology import Topology

# (file name, what the viewer calls it, bits, values)
TABLES: list[tuple[str, str, int, type[IntEnum]]] = [
    ("flit-type", "KohakuTPU flit type", HEADER.fields["type"].width, FlitType),
    ("signal-code", "KohakuTPU signal code", signals.CU_SIGNAL.fields["code"].width, signals.SignalCode),
    ("control-index", "KohakuTPU control index", signals.CU_CTRL_REQUEST.fields["index"].width, signals.ControlIndex),
    ("cluster-op", "KohakuTPU cluster instruction", cluster.WORD.fields["op"].width, cluster.Op),
    ("vector-op", "KohakuTPU vector instruction", vector.IMEM.fields["op"].width, vector.Envelope),
    ("vector-word", "KohakuTPU vector word", vector.LAYOUTS[vector.Opcode.VLD].fields["op"].width, vector.Opcode),
]
FILTER = f"""#!/bin/sh
# A translate filter process for GTKWave: a flit in hexadecimal a line, its text back.
exec {sys.executable} -m kohakutpu.view.flit_filter
"""
# GTKWave's trace flags: hexadecimal 0x2, right-justified 0x20, a comment 0x200, translated by a process 0x4000.
HEXADECIMAL, COMMENT, PROCESSED = 0x22, 0x200, 0x4022


def wave_files(topology: Topology, folder: Path) -> Mapping[str, tuple[str, bool]]:
    """{file name: (text, whether it is executable)} of what belongs into `folder`.

    The view is for waves of a whole simulated machine (`sim/machine.py`), which has a monitor at every link.
    """
    view = _view(topology, folder.resolve() / "flits.sh")
    files: dict[str, tuple[str, bool]] = {"flits.sh": (FILTER, True), f"{topology.machine.name}.gtkw": (view, False)}
    for stem, name, bits, values in TABLES:
        digits = -(-bits // 4)
        lines = [f"{value:0{digits}x} {value.name}" for value in values]
        files[f"{stem}.filter.txt"] = "\n".join([f"# {name}", *lines, ""]), False
        lines = [f"{value:#0{digits + 2}x} {value.name}" for value in values]
        files[f"surfer/{stem}.mapping"] = "\n".join([f"Name = {name}", f"Bits = {bits}", *lines, ""]), False
    return files


def _view(topology: Topology, process: Path) -> str:
    """A GTKWave save file: for each link its flit, decoded, and its two handshake wires."""
    lines = [f"[*] links of {topology.machine.name}", "[timestart] 0", "*-18.0 -1"]
    for index, wire in enumerate(topology.wires):
        if wire.sink is None:
            continue
        scope = f"machine.monitor_{index}"
        lines += [
            f"@{COMMENT:x}",
            f"-{wire.name}: {wire.source} to {wire.sink}",
            f"@{PROCESSED:x}",
            f"^>1 {process}",
            f"{scope}.flit[{FLIT_WIDTH - 1}:0]",
            f"@{HEXADECIMAL:x}",
            f"{scope}.valid",
            f"{scope}.busy",
        ]
    return "\n".join([*lines, ""])
