"""Builds Verilog and runs cocotb benches, failing loudly where stock cocotb passes in silence.

A run fails when the simulator's exit status is not zero, when no result file appears, when it holds no
test, when a test failed, and when a bench named in `expected` did not run. Builds are cached under the
digest of everything that goes into them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from cocotb_tools import runner as cocotb_runner

from . import bench_log
from .orphan import group
from .toolchain import BUILD, ROOT, ToolchainError, environment, require_wave_headers

SIMULATORS = ("verilator", "icarus")
VERILATOR_ARGUMENTS = ["-Wno-fatal", "-O3", "--x-assign", "unique", "--x-initial", "unique"]
ICARUS_ARGUMENTS = ["-g2012"]
# Half the compile time of Verilator's own -Os, for models that run no slower.
MAKE_OPTIONS = " -- OPT_FAST=-O1"


class BenchError(RuntimeError):
    """A bench did not run to a verdict, or its verdict is a failure."""

    exit_status = 1


@dataclass
class Verdict:
    """What the result file of one run says."""

    passed: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


# Both simulators record waves from `+waves_from=T` to `+waves_to=T`, in ps; all of them by default.
DUMP = "tfp->dump(main_time);"
DUMP_WINDOW = """
            static const auto bound = [](const char *name, vluint64_t otherwise) {
                const std::string found = Verilated::commandArgsPlusMatch(name);
                return found.empty() ? otherwise : std::stoull(found.substr(found.find('=') + 1));
            };
            static const vluint64_t from = bound("waves_from=", 0), to = bound("waves_to=", ~0ULL);
            if (main_time >= from && main_time <= to) tfp->dump(main_time);
"""
WINDOW_TOP = "waves_window"
ICARUS_WINDOW = f"""`timescale 1ps/1ps
module {WINDOW_TOP}();
  time first, last;
  initial if ($value$plusargs("waves_from=%d", first)) begin
    #1 $dumpoff;
    #(first - 1) $dumpon;
    if ($value$plusargs("waves_to=%d", last)) #(last - first) $dumpoff;
  end
endmodule
"""


class Compiler:
    """A runner of cocotb's whose commands end when the build does, with everything that they have started."""

    def _execute_cmds(self, cmds, cwd, stdout=None) -> None:
        with group() as together:
            for command in cmds:
                done = subprocess.run(
                    command, cwd=cwd, env=self.env, check=False, stdout=stdout, stderr=subprocess.STDOUT,
                    process_group=together
                )  # fmt: skip
                if done.returncode:
                    raise RuntimeError(f"{command[0]} ended with status {done.returncode}")


class PortsOnlyVerilator(cocotb_runner.Verilator):
    """Verilator without `--public-flat-rw`: only what the control file names is reachable from Python. Waves are FST,
    and can be of a part of the run."""

    def _build_command(self):
        commands = super()._build_command()
        commands[0] = [item for item in commands[0] if item != "--public-flat-rw"]
        if self.waves:
            (main,) = [item for item in commands[0] if item.endswith("/verilator.cpp")]
            text = Path(main).read_text()
            if text.count(DUMP) != 1:
                raise ToolchainError(
                    f"cocotb's main program for Verilator has {text.count(DUMP)} lines {DUMP!r}, not one"
                )
            ours = Path(self.build_dir) / "main.cpp"
            ours.write_text(text.replace(DUMP, DUMP_WINDOW))
            commands[0] = [{"--trace": "--trace-fst", main: str(ours)}.get(item, item) for item in commands[0]]
        return commands


class VerilatorCompiler(Compiler, PortsOnlyVerilator):
    pass


class IcarusCompiler(Compiler, cocotb_runner.Icarus):
    pass


def control_file(top: str) -> str:
    """Verilator's control file: the top's ports are public, and Amaranth's width idioms are not warnings."""
    return "\n".join(
        [
            "`verilator_config",
            f'public_flat_rw -module "{top}" -var "*"',
            "lint_off -rule WIDTHTRUNC",
            "lint_off -rule WIDTHEXPAND",
            "lint_off -rule UNUSEDSIGNAL",
            "lint_off -rule DECLFILENAME",
            "lint_off -rule PROCASSINIT",
            "",
        ]
    )


@contextmanager
def patched_environment(values: dict[str, str]):
    """Set `values` in the environment for the duration: the cocotb runner reads os.environ."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def build(verilog: str, *, top: str, simulator: str, waves: bool = False, public: str | None = None,
          note: str = "") -> Path:  # fmt: skip
    """Compile one Verilog text; returns the build folder, taken from the cache when nothing changed.

    `public` is a Verilator control file to use in place of `control_file(top)`; `note` is said before a compile. Raises
    `ToolchainError` for an unknown or missing simulator, `BenchError` when the compile fails.
    """
    if simulator not in SIMULATORS:
        raise ToolchainError(f"unknown simulator {simulator!r}: expected one of {', '.join(SIMULATORS)}")
    control = public or control_file(top)
    recipe = [*VERILATOR_ARGUMENTS, *ICARUS_ARGUMENTS, MAKE_OPTIONS, version("cocotb"), sys.version]
    recorded = DUMP_WINDOW + ICARUS_WINDOW if waves else "False"
    key = hashlib.sha256("\0".join([verilog, top, simulator, recorded, control, *recipe]).encode()).hexdigest()[:24]
    folder = BUILD / "sim" / f"{top}-{simulator}-{key}"
    folder.mkdir(parents=True, exist_ok=True)
    with alone_in(folder):
        cached = (folder / "complete").exists()
        if not cached:
            if note:
                print(note, file=sys.stderr, flush=True)
            _compile(folder, verilog, control, top=top, simulator=simulator, waves=waves)
    bench_log.built(top, simulator, folder, cached=cached)
    return folder


@contextmanager
def alone_in(folder: Path):
    """Wait until no other process holds `folder`, and hold it: two may want to build the same design."""
    with open(folder / "lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _recording(waves: bool) -> dict[str, str]:
    """The environment for `waves`: cocotb's runner believes a variable more than its arguments."""
    return {"WAVES": str(int(waves))}


def _compile(folder: Path, verilog: str, control: str, *, top: str, simulator: str, waves: bool) -> None:
    for item in folder.iterdir():  # what a build that was cut short has left
        if item.name != "lock":
            shutil.rmtree(item) if item.is_dir() else item.unlink()
    source = folder / f"{top}.v"
    source.write_text(verilog)
    with patched_environment({**environment(simulator), "MAKEFLAGS": MAKE_OPTIONS, **_recording(waves)}):
        if simulator == "verilator":
            if waves:
                require_wave_headers()
            runner, arguments = VerilatorCompiler(), VERILATOR_ARGUMENTS
            settings = folder / f"{top}.vlt"
            settings.write_text(control)
            sources = [settings, source]
        else:
            runner, arguments, sources = IcarusCompiler(), ICARUS_ARGUMENTS, [source]
            if waves:
                window = folder / f"{WINDOW_TOP}.v"
                window.write_text(ICARUS_WINDOW)
                arguments, sources = [*arguments, "-s", WINDOW_TOP], [*sources, window]
        try:
            runner.build(
                sources=sources, hdl_toplevel=top, build_dir=folder, waves=waves, always=True,
                defines={"WAVES": 1} if waves else {},
                timescale=("1ns", "1ps"), build_args=arguments, log_file=folder / "build.log",
            )  # fmt: skip
        except Exception as error:
            tail = (folder / "build.log").read_text(errors="replace")[-4000:] if (folder / "build.log").exists() else ""
            raise BenchError(f"{simulator} could not compile {top}: {error}\n{tail}") from error
    (folder / "complete").touch()


def read_results(path: Path) -> Verdict:
    """The verdict of a cocotb result file; refused when it is missing, unreadable or holds no test."""
    if not path.exists():
        raise BenchError(f"the simulation left no result file at {path.name}: it crashed or never reached cocotb")
    try:
        cases = list(ElementTree.parse(path).getroot().iter("testcase"))
    except ElementTree.ParseError as error:
        raise BenchError(f"the result file {path.name} is not complete XML: {error}") from error
    verdict = Verdict()
    for case in cases:
        name = case.get("name", "?")
        if case.find("failure") is not None or case.find("error") is not None:
            verdict.failed.append(name)
        elif case.find("skipped") is not None:
            verdict.skipped.append(name)
        else:
            verdict.passed.append(name)
    if not verdict.passed and not verdict.failed:
        raise BenchError(f"the run executed no test ({len(verdict.skipped)} skipped)")
    return verdict


def run(folder: Path, *, top: str, simulator: str, module: str, expected: Sequence[str] | None = None,
        seed: int | None = None, extra_env: dict[str, str] | None = None, waves: bool = False,
        wave_file: Path | None = None,
        name: str = "run", search: Sequence[Path] = (), results: Path | None = None,
        plusargs: Sequence[str] = ()) -> Verdict:  # fmt: skip
    """Run the benches of Python module `module` on a built design.

    `expected` names the benches that must run (and no others do); `seed` fixes cocotb's random seed, which
    is printed either way; `search` holds folders to import from besides the repository root; `results` is the folder of
    the result file and the log, the build's by default; `wave_file` is where waves go, an FST in the build's folder by
    default. Raises `BenchError` unless every bench that ran passed and every
    expected one ran.
    """
    log = (results or folder) / f"{name}.log"
    results = log.with_suffix(".xml")
    results.unlink(missing_ok=True)
    seed = seed if seed is not None else int.from_bytes(os.urandom(4), "little")
    env = {"COCOTB_ANSI_OUTPUT": "0", **(extra_env or {})}
    arguments, plusargs = [], list(plusargs)
    if wave_file is not None and simulator == "verilator":
        arguments = ["--trace-file", str(wave_file)]
    elif wave_file is not None:
        plusargs.append(f"+dumpfile_path={wave_file}")
    path = list(sys.path)
    # The cocotb runner hands this process's import path on to the simulator.
    sys.path[:0] = [str(ROOT), *map(str, search)]
    with patched_environment({**environment(simulator), **env, **_recording(waves)}):
        runner = PortsOnlyVerilator() if simulator == "verilator" else cocotb_runner.Icarus()
        status = ""
        run_name = bench_log.began(module, simulator, seed)
        try:
            runner.test(
                test_module=module, hdl_toplevel=top, hdl_toplevel_lang="verilog", build_dir=folder, test_dir=folder,
                results_xml=str(results), seed=seed, waves=waves, testcase=list(expected) if expected else None,
                log_file=log, extra_env=env, timescale=("1ns", "1ps"), plusargs=plusargs, test_args=arguments,
            )  # fmt: skip
        except (Exception, SystemExit) as error:
            status = str(error) or type(error).__name__
        finally:
            sys.path[:] = path
            bench_log.ended(run_name, results)
    tail = log.read_text(errors="replace")[-6000:] if log.exists() else ""
    try:
        verdict = read_results(results)
    except BenchError as error:
        raise BenchError(f"{module} on {simulator}, seed {seed}: {error} {status}\n{tail}") from None
    if verdict.failed:
        raise BenchError(f"{module} on {simulator}, seed {seed}: failed: {', '.join(verdict.failed)}\n{tail}")
    if status:
        raise BenchError(f"{module} on {simulator}, seed {seed}: the simulator ended badly: {status}\n{tail}")
    missing = [item for item in expected or () if item not in verdict.passed]
    if missing:
        raise BenchError(f"{module} on {simulator}, seed {seed}: did not run: {', '.join(missing)}\n{tail}")
    return verdict
