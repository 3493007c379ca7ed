"""Build a machine for an FPGA: with open tools down to a bitstream, or the files that Vivado builds.

Exit status: 0 built (or written), 1 the tools refuse it, it does not fit or misses its clock, 2 refused, 3 a tool is
missing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path

from kohakutpu.machine import load

from .gates import gates
from .kernel_options import ArgumentError
from .output import OutputError

HELP = "a machine for an FPGA: bitstream, or files for Vivado"
FLOWS = ("open", "vivado")
SMALLEST = "mm_min"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("machine", nargs="?", default=SMALLEST, metavar="M", help=f"default {SMALLEST}")
    parser.add_argument(
        "--flow", choices=FLOWS, default=FLOWS[0], help="Yosys and nextpnr, or files for Vivado (default open)"
    )
    parser.add_argument(
        "--board", metavar="B", help="a board by name, see docs/fpga.md (--flow open: default ulx3s_85f)"
    )
    parser.add_argument("--part", metavar="P", help="--flow vivado without a board: the full name of a part")
    parser.add_argument("--clock", type=float, metavar="MHZ", help="--flow vivado with --part: the clock")
    parser.add_argument("--write-only", action="store_true", help="--flow open: write the files and run no tool")
    parser.add_argument(
        "--without-units",
        action="store_true",
        help="--flow open: mesh, memory and orchestrator alone, to try a board's links with",
    )
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="a new folder for everything")


def check_new(folder: Path) -> None:
    """Refuse a folder that is there, or whose parent is not, before the work."""
    if folder.exists():
        raise OutputError(f"{folder} is there already: give a new folder")
    if not folder.resolve().parent.is_dir():
        raise OutputError(f"cannot write {folder}: there is no directory {folder.parent}")


def scratch_folder(folder: Path) -> Path:
    """A folder beside `folder`, to be renamed: a build appears whole or not at all."""
    return Path(tempfile.mkdtemp(dir=folder.resolve().parent, prefix=f".{folder.name}."))


def main(args: argparse.Namespace) -> int:
    machine = load(args.machine)
    if args.flow == "open":
        for name, given in (("--part", args.part), ("--clock", args.clock)):
            if given is not None:
                raise ArgumentError(f"{name} is for --flow vivado: an open board has its own part and clock")
    elif args.write_only:
        raise ArgumentError("--write-only is for --flow open: --flow vivado never runs a tool")
    elif args.without_units:
        raise ArgumentError("--without-units is for --flow open")
    elif (args.board is None) == (args.part is None):
        raise ArgumentError("--flow vivado needs either --board, or --part and --clock")
    elif (args.part is None) != (args.clock is None):
        raise ArgumentError("--part and --clock go together: a board has its own clock")
    check_new(args.output)
    return _open(args, machine) if args.flow == "open" else _vivado(args, machine)


def _vivado(args: argparse.Namespace, machine) -> int:
    vivado = gates("fpga.vivado")
    if args.board:
        files = vivado.board_files(machine, args.board)
        script = "sh build_top.sh"
    else:
        files = vivado.files(machine, part=args.part, mhz=args.clock)
        script = "vivado -mode batch -source build.tcl"
    scratch = scratch_folder(args.output)
    try:
        vivado.write(files, scratch)
        scratch.chmod(0o755)
        scratch.rename(args.output)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    print(f"{args.output}: {', '.join(sorted(files))}; `{script}` there builds {machine.name}")
    return 0


def _open(args: argparse.Namespace, machine) -> int:
    flow = gates("fpga.open_flow")
    name = args.board or next(iter(flow.BOARDS))
    flow.check(machine, name)
    if not args.write_only:
        flow.tools()
    scratch = scratch_folder(args.output)
    try:
        flow.prepare(machine, name, scratch, units=not args.without_units)
        if not args.write_only:
            print(f"{machine.name} on {flow.BOARDS[name].title}: this takes many minutes", flush=True)
            result = flow.build(scratch, dict(os.environ))
        scratch.chmod(0o755)
        scratch.rename(args.output)
    except flow.BuildError as error:
        # what the tools wrote says more than a message can
        scratch.rename(args.output)
        raise flow.BuildError(f"{error}\nwhat the tools wrote is in {args.output}") from error
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    if args.write_only:
        print(f"{args.output}: `sh build_top.sh` there builds {machine.name} on {flow.BOARDS[name].title}")
        return 0
    for kind, (used, there) in result.used.items():
        print(f"  {kind:20} {used:7,} of {there:7,}  {100 * used // there:3}%")
    for clock, (reached, wanted) in result.clocks.items():
        print(f"  {clock}: {reached:.1f} MHz, {wanted:.1f} MHz wanted")
    bitstream = args.output / result.bitstream.name
    print(f"{bitstream}: {bitstream.stat().st_size:,} bytes" + ("" if result.met else "; the clock is NOT met"))
    return 0 if result.met else 1
