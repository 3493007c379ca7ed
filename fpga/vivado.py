"""The vendor flow: a machine's Verilog with AXI interfaces that Vivado knows, constraints, and a Tcl script that builds
them.

`kohakutpu build --flow vivado` writes; Vivado, which is not part of this project, builds.
"""

from __future__ import annotations

import hashlib
import importlib
import re
from pathlib import Path
from string import Template

from amaranth.build.plat import Platform

from kohakutpu.machine import Machine
from rtl.top import TOP, machine_verilog

from .board_top import BAUD, board_verilog
from .open_flow import CannotBuild, NoTools, OnBoard

IP = "kohakutpu_ip"
BOARDS = {
    "arty_a7_100": ("arty_a7", "ArtyA7_100Platform"),
    "nexys4ddr": ("nexys4ddr", "Nexys4DDRPlatform"),
    "genesys2": ("genesys2", "Genesys2Platform"),
    "kc705": ("kc705", "KC705Platform"),
}
_PART = re.compile(r"x[ck][a-z0-9]+-[a-z0-9-]+")
MOST_MHZ = 1000

SCRIPT = Template("""\
# $title
# vivado -mode batch -source build.tcl
# Synthesis, place and route of the machine out of context, reports, and an IP with AXI interfaces for a block design.
set part $part
set here [file dirname [file normalize [info script]]]
set out [file join $$here out]
if {[llength [get_parts -quiet $$part]] == 0} {
    puts stderr "build.tcl: this Vivado has no part $$part"
    exit 2
}
file mkdir $$out
create_project -in_memory -part $$part
read_verilog [list [file join $$here $top.v] [file join $$here $ip.v]]
read_xdc -mode out_of_context [file join $$here $ip.xdc]
synth_design -top $ip -part $$part -mode out_of_context -flatten_hierarchy rebuilt
report_utilization -hierarchical -file [file join $$out utilization_synth.rpt]
opt_design
place_design
phys_opt_design
route_design
write_checkpoint -force [file join $$out $ip.dcp]
report_utilization -hierarchical -file [file join $$out utilization.rpt]
report_timing_summary -file [file join $$out timing.rpt]
report_drc -file [file join $$out drc.rpt]
set slack [get_property SLACK [lindex [get_timing_paths -max_paths 1 -setup] 0]]
puts "build.tcl: worst setup slack $$slack ns of a period of $period ns"
if {$$slack < 0} {
    puts stderr "build.tcl: timing is not met at $mhz MHz"
    exit 1
}
ipx::package_project -root_dir [file join $$out ip] -vendor kohakutpu -library machine -taxonomy /UserIP -import_files -force
ipx::save_core [ipx::current_core]
puts "build.tcl: done"
""")

CONSTRAINTS = Template("""\
# $title
# The clock of the out-of-context build; in a block design the clock that drives `clk` constrains it.
create_clock -name clk -period $period [get_ports clk]
set_property HD.CLK_SRC BUFGCTRL_X0Y0 [get_ports clk]

# A template for a board of your own, where `$ip` is the top: remove the line above, uncomment, and fill in pins.
# set_property PACKAGE_PIN <pin of the clock> [get_ports clk]
# set_property IOSTANDARD  <standard>         [get_ports clk]
# set_property PACKAGE_PIN <pin of the reset> [get_ports resetn]
# set_property IOSTANDARD  <standard>         [get_ports resetn]
# set_false_path -from [get_ports resetn]
""")


def check(machine: Machine, *, part: str, mhz: float) -> None:
    """Refuse a part that cannot be one, a clock out of range, and a machine that cannot be built."""
    machine.require_mesh()
    if not _PART.fullmatch(part):
        raise CannotBuild(f"part {part!r}: a full name such as xcku040-ffva1156-2-e or xc7a100tcsg324-1 is expected")
    if not 1 <= mhz <= MOST_MHZ:
        raise CannotBuild(f"clock {mhz:g} MHz: 1 to {MOST_MHZ} is expected")


def files(machine: Machine, *, part: str, mhz: float) -> dict[str, str]:
    """{name: text} of the vendor flow for a part: equal arguments give equal text. Refuses as `check` does."""
    check(machine, part=part, mhz=mhz)
    text = machine_verilog(machine)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    names = {
        "title": f"machine {machine.name} on {part} at {mhz:g} MHz; {TOP}.v has sha256 {digest}",
        "part": part, "top": TOP, "ip": IP, "mhz": f"{mhz:g}", "period": f"{1000 / mhz:.3f}",
    }  # fmt: skip
    return {
        f"{TOP}.v": text,
        f"{IP}.v": wrapper(machine, text, mhz=mhz),
        f"{IP}.xdc": CONSTRAINTS.substitute(names),
        "build.tcl": SCRIPT.substitute(names),
    }


def wrapper(machine: Machine, text: str, *, mhz: float) -> str:
    """The module `IP` around `TOP`: AXI interfaces by the vendor's names, a reset that is active low.

    Raises `CannotBuild` when `text`, the machine's Verilog, has other ports than AXI interfaces.
    """
    module = text[text.index(f"module {TOP}(") :].split("endmodule", 1)[0]
    declared = re.findall(r"^  (input|output) (?:wire |reg )?(?:\[(\d+):0\] )?(\w+) ?;$", module, re.M)
    ports: list[tuple[str, str, str, str, int]] = []  # name inside, direction, interface, signal, width
    for direction, high, name in declared:
        interface, _, signal = name.rpartition("__")
        if interface:
            ports.append((name, direction, interface.replace("__", "_").upper(), signal, int(high or 0) + 1))
        elif name not in ("clk", "rst"):
            raise CannotBuild(
                f"port {name} of {machine.name} is part of no AXI interface: the vendor flow has no place for it"
            )
    kinds = list(dict.fromkeys(interface for _, _, interface, _, _ in ports))
    if len(kinds) != len(machine.ports) + 4:
        raise CannotBuild(
            f"the Verilog of {machine.name} has interfaces {', '.join(kinds)}; a DRAM for each memory port, the window "
            "and the mover, WINDOW and HOST are expected"
        )
    hertz = round(mhz * 1e6)
    lines = [
        f"// {IP}: {TOP} of machine {machine.name} with AXI4 interfaces for a block design",
        f"module {IP}(",
        '  (* X_INTERFACE_INFO = "xilinx.com:signal:clock:1.0 clk CLK" *)',
        f'  (* X_INTERFACE_PARAMETER = "ASSOCIATED_BUSIF {":".join(kinds)}, ASSOCIATED_RESET resetn, FREQ_HZ {hertz}" '
        '*)',
        "  input clk,",
        '  (* X_INTERFACE_INFO = "xilinx.com:signal:reset:1.0 resetn RST" *)',
        '  (* X_INTERFACE_PARAMETER = "POLARITY ACTIVE_LOW" *)',
        "  input resetn,",
    ]
    for index, (_, direction, interface, signal, width) in enumerate(ports):
        lines.append(f'  (* X_INTERFACE_INFO = "xilinx.com:interface:aximm:1.0 {interface} {signal.upper()}" *)')
        size = "" if width == 1 else f"[{width - 1}:0] "
        lines.append(f"  {direction} {size}{interface}_{signal}{',' if index < len(ports) - 1 else ''}")
    lines += [
        ");", "  reg [1:0] held = 2'b11;", "  always @(posedge clk) held <= {held[0], ~resetn};", f"  {TOP} machine(",
    ]  # fmt: skip
    lines += [
        "    .clk(clk),", "    .rst(held[1]),",
        ",\n".join(f"    .{inner}({interface}_{signal})" for inner, _, interface, signal, _ in ports),
    ]  # fmt: skip
    return "\n".join([*lines, "  );", "endmodule", ""])


def board(name: str) -> Platform:
    """The platform of an AMD board that amaranth-boards knows, for Vivado. Refuses an unknown one."""
    if name not in BOARDS:
        raise CannotBuild(
            f"no board {name!r} for the vendor flow; there are {', '.join(BOARDS)}. For others give --part and --clock"
        )
    module, platform = BOARDS[name]
    try:
        found = importlib.import_module(f"amaranth_boards.{module}")
    except ModuleNotFoundError as error:
        raise NoTools(f"{error.name} is not installed: run `make env`, or `pip install -e '.[fpga]'`") from error
    return getattr(found, platform)(toolchain="Vivado")


def board_files(machine: Machine, name: str) -> dict[str, str]:
    """{name: text} for a board: the machine with block RAM and a serial host, pins, and a script down to the
    bitstream."""
    machine.require_mesh()
    platform = board(name)
    hertz = platform.default_clk_frequency
    text = board_verilog(machine, divisor=round(hertz / BAUD))
    plan = platform.prepare(OnBoard(text), "top", debug_verilog=False)
    return {name: each if isinstance(each, str) else each.decode() for name, each in plan.files.items()}


def write(files: dict[str, str], folder: Path) -> None:
    for name, text in files.items():
        (folder / name).write_text(text)
