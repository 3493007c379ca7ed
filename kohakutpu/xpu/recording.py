"""Launches as files (spec/xpu.md 3.1): XPU_RECORD writes them, conformance reads them.

A recording is a directory `<kernel>.<n>`: `launch.json`, and for each allocation its bytes before (`a<i>.in`) and after
the launch (`a<i>.out`). It appears complete or not at all.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path

import numpy as np

from kohakutpu.wording import counted

from .errors import Source, XpuError
from .memory import Allocation, KernelBuffer
from .tree import Function, Loop, Program, Variable
from .types import BOOL, BufferType, FunctionType, Scalar, bf16, f16, f32, u32

VERSION = 1
MOST = 64  # arguments, and allocations
PER_KERNEL, MAX_BYTES = 2, 64 << 20
KEYS = ("version", "kernel", "source", "backend", "grid", "block", "sharedBytes", "waveWidth", "allocs", "args")
ARGUMENT_KEYS = {"buffer": {"kind", "alloc", "offset"}, "scalar": {"kind", "hex"}, "other": {"kind", "code"}}
NAME = re.compile(r".+\.[1-9]\d*")


class RecordingError(XpuError):
    """A recording that is damaged: which file, what it holds and what was expected."""


@dataclass(frozen=True)
class Recording:
    """A launch. `before` and `after` hold each allocation from the lowest byte that an argument points at to its end.

    `arguments` in parameter order, as in launch.json. `wave_width` is the width that the back end built, 0 if unknown.
    `source` is the digest of the kernel's tree.
    """

    kernel: str
    source: str
    backend: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    wave_width: int
    arguments: tuple[dict, ...]
    before: tuple[bytes, ...]
    after: tuple[bytes, ...]


def digest(program: Program) -> str:
    """The SHA-256 of what a kernel says, wherever it stands: 16 hex digits. Fields at their defaults say nothing."""
    numbers: dict[int, int] = {}

    def text(value) -> str:
        if isinstance(value, Source):
            return ""
        if isinstance(value, (Variable, Loop)):
            known = id(value) in numbers
            number = numbers.setdefault(id(value), len(numbers))
            return f"#{number}" if known else f"#{number}:{getattr(value, 'type', '')}"
        if isinstance(value, Function):
            return value.name if id(value) in numbers else body(value)
        if isinstance(value, tuple):
            return f"({','.join(map(text, value))})"
        if is_dataclass(value) and hasattr(value, "at"):
            told = [(f.name, getattr(value, f.name)) for f in fields(value) if getattr(value, f.name) != f.default]
            return f"{type(value).__name__}({','.join(f'{name}={text(part)}' for name, part in told)})"
        if isinstance(value, FunctionType):
            return str(value)
        return repr(value)

    def body(function: Function) -> str:
        numbers[id(function)] = len(numbers)
        return f"{function.name}{text(function.parameters)}{function.result}{text(function.body)}"

    whole = "".join(body(function) for function in program.functions) + str(program.width)
    return hashlib.sha256(whole.encode()).hexdigest()[:16]


class Skip(Exception):
    """Why a launch is not recorded."""


def _setting(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    if not re.fullmatch(r"[1-9]\d*", text):
        raise XpuError(f"{name}={text}: a positive integer is expected")
    return int(text)


def _note(directory: Path, kernel: str, reason: str) -> None:
    with open(directory / "skipped.tsv", "a") as file:
        file.write(f"{kernel}\t{reason}\n")


def _allocations(arguments: tuple) -> dict[Allocation, int]:
    """The lowest byte of each allocation that an argument points at, in the order of the arguments."""
    if len(arguments) > MOST:
        raise Skip(f"{counted(len(arguments), 'argument')}, {MOST} at most")
    lowest: dict[Allocation, int] = {}
    for value in arguments:
        if isinstance(value, np.ndarray):
            raise Skip("a buffer outside every known allocation")
        if isinstance(value, KernelBuffer) and value.allocation.bytes is not None:
            lowest[value.allocation] = min(value.offset, lowest.get(value.allocation, value.offset))
    limit = _setting("XPU_RECORD_MAX_BYTES", MAX_BYTES)
    total = sum(len(allocation.bytes) - start for allocation, start in lowest.items())
    if total > limit:
        raise Skip(f"{total} bytes of allocations, XPU_RECORD_MAX_BYTES allows {limit}")
    return lowest


def scalar_bytes(kind: Scalar, value) -> bytes:
    """A scalar argument in memory order. Floats of 16 bits are rounded through float32, as arguments are."""
    if kind.kind == "int":
        return int(value).to_bytes(kind.size, "little", signed=kind.signed)
    if kind is BOOL:
        return bytes([bool(value)])
    with np.errstate(all="ignore"):
        if kind is bf16:
            bits = int(np.float32(value).view(np.uint32))
            if np.isnan(np.float32(value)):
                return ((bits | 0x0040_0000) >> 16).to_bytes(2, "little")
            return (bits + 0x7FFF + (bits >> 16 & 1) >> 16).to_bytes(2, "little")
        return np.asarray(np.float32(value) if kind in (f16, f32) else value).astype(kind.dtype).tobytes()


def _argument(kind, value, lowest: dict[Allocation, int]) -> dict:
    if isinstance(kind, BufferType):
        place = list(lowest).index(value.allocation)
        return {"kind": "buffer", "alloc": place, "offset": value.offset - lowest[value.allocation]}
    if isinstance(kind, FunctionType):
        value = kind.members.index(value) if value in kind.members else value
        kind = u32
    if not isinstance(value, (bool, int, float, np.number, np.bool_)):
        return {"kind": "other", "code": 0}
    return {"kind": "scalar", "hex": scalar_bytes(kind, value).hex()}


@contextmanager
def recorded(request, backend: str, wave_width: int) -> Iterator[None]:
    """Around a launch: record it if XPU_RECORD names a directory. What raises is not recorded.

    At most XPU_RECORD_PER_KERNEL launches of a kernel (2), counting those that the directory holds already, and none
    with more than XPU_RECORD_MAX_BYTES bytes (64 MiB). A launch that is skipped is named in `skipped.tsv`.
    """
    where = os.environ.get("XPU_RECORD")
    if not where:
        yield
        return
    directory, program = Path(where), request.kernel.program
    directory.mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"[^A-Za-z0-9_.]", "_", program.name)
    places = [directory / f"{stem}.{n}" for n in range(1, _setting("XPU_RECORD_PER_KERNEL", PER_KERNEL) + 1)]
    if all(place.exists() for place in places):
        yield
        return
    try:
        lowest = _allocations(request.arguments)
    except Skip as skip:
        yield
        _note(directory, program.name, str(skip))
        return
    before = tuple(allocation.bytes[start:].tobytes() for allocation, start in lowest.items())
    yield
    parameters = program.kernel.parameters
    write(places, Recording(
        program.name, digest(program), backend, request.grid, request.block, request.shared_bytes, wave_width,
        tuple(_argument(p.type, value, lowest) for p, value in zip(parameters, request.arguments, strict=True)),
        before, tuple(allocation.bytes[start:].tobytes() for allocation, start in lowest.items()),
    ))  # fmt: skip


def write(places: list[Path], recording: Recording) -> Path | None:
    """Write a recording to the first place that is free; None if none is."""
    description = {
        "version": VERSION, "kernel": recording.kernel, "source": recording.source, "backend": recording.backend,
        "grid": recording.grid, "block": recording.block, "sharedBytes": recording.shared_bytes,
        "waveWidth": recording.wave_width,
        "allocs": [
            {"bytes": len(old), "in": _sha256(old), "out": _sha256(new)}
            for old, new in zip(recording.before, recording.after, strict=True)
        ],
        "args": recording.arguments,
    }  # fmt: skip
    made = Path(tempfile.mkdtemp(dir=places[0].parent, prefix=".recording-"))
    try:
        made.chmod(0o755)
        (made / "launch.json").write_text(json.dumps(description) + "\n")
        for index, (old, new) in enumerate(zip(recording.before, recording.after, strict=True)):
            (made / f"a{index}.in").write_bytes(old)
            (made / f"a{index}.out").write_bytes(new)
        for place in places:
            try:
                return made.rename(place)
            except OSError:
                if not place.exists():
                    raise
    finally:
        if made.exists():
            shutil.rmtree(made)
    return None


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _refuse(place: Path, text: str) -> RecordingError:
    return RecordingError(f"{place.parent.name}/{place.name}: {text}")


def _is_count(value) -> bool:
    return type(value) is int and value >= 0


def _check(place: Path, description) -> None:
    """Refuse a launch.json whose keys or values are not the format's."""
    if not isinstance(description, dict):
        raise _refuse(place, "one JSON object is expected")
    version = description.get("version")
    if version != VERSION:
        raise _refuse(place, f"version {version!r}; this reads version {VERSION}")
    for key in [*KEYS, *description]:
        if key not in description or key not in KEYS:
            raise _refuse(place, f"the key {key!r} is {'missing' if key in KEYS else 'unknown'}")
    for key in ("kernel", "source", "backend"):
        if not isinstance(description[key], str) or not description[key]:
            raise _refuse(place, f"{key} is {description[key]!r}, where text is expected")
    for key in ("grid", "block"):
        value = description[key]
        if not isinstance(value, list) or len(value) != 3 or not all(_is_count(n) and n for n in value):
            raise _refuse(place, f"{key} is {value!r}, where three positive integers are expected")
    for key in ("sharedBytes", "waveWidth"):
        if not _is_count(description[key]):
            raise _refuse(place, f"{key} is {description[key]!r}, where a count is expected")
    for key in ("allocs", "args"):
        value = description[key]
        if not isinstance(value, list) or len(value) > MOST or not all(isinstance(entry, dict) for entry in value):
            raise _refuse(place, f"{key} is no list of up to {MOST} objects")
    for index, entry in enumerate(description["allocs"]):
        if set(entry) != {"bytes", "in", "out"} or not _is_count(entry["bytes"]):
            raise _refuse(place, f"allocs[{index}] is {entry!r}, where bytes, in and out are expected")
    for index, entry in enumerate(description["args"]):
        _check_argument(place, f"args[{index}]", entry, description["allocs"])


def _check_argument(place: Path, what: str, entry: dict, allocations: list[dict]) -> None:
    kind = entry.get("kind")
    if str(kind) not in ARGUMENT_KEYS or set(entry) != ARGUMENT_KEYS[kind]:
        raise _refuse(place, f"{what} is {entry!r}, which is no argument")
    if kind == "scalar" and not re.fullmatch("([0-9a-f]{2}){1,8}", str(entry["hex"])):
        raise _refuse(place, f"{what}: hex is {entry['hex']!r}, where 1 to 8 bytes of two hex digits are expected")
    if kind == "buffer":
        number, offset = entry["alloc"], entry["offset"]
        if not _is_count(number) or number >= len(allocations):
            raise _refuse(place, f"{what}: allocation {number!r} of {len(allocations)}")
        if not _is_count(offset) or offset >= max(allocations[number]["bytes"], 1):
            raise _refuse(place, f"{what}: offset {offset!r} in an allocation of {allocations[number]['bytes']} bytes")


def _bytes(place: Path, size: int, expected: str) -> bytes:
    if not place.is_file():
        raise _refuse(place, "the file is missing")
    data = place.read_bytes()
    if len(data) != size:
        raise _refuse(place, f"{len(data)} bytes, where launch.json says {size}")
    if _sha256(data) != expected:
        raise _refuse(place, f"its SHA-256 is {_sha256(data)}, where launch.json says {expected}")
    return data


def read(directory: Path) -> Recording:
    """A recording. Raises RecordingError, which names the file and what is wrong with it."""
    place = directory / "launch.json"
    if not place.is_file():
        raise _refuse(place, "the file is missing")
    try:
        description = json.loads(place.read_text())
    except (ValueError, RecursionError) as error:
        raise _refuse(place, f"no JSON ({error})") from None
    _check(place, description)
    allocations = description["allocs"]
    return Recording(
        *(description[key] for key in ("kernel", "source", "backend")), tuple(description["grid"]),
        tuple(description["block"]), description["sharedBytes"], description["waveWidth"], tuple(description["args"]),
        *(
            tuple(_bytes(directory / f"a{i}.{suffix}", a["bytes"], a[suffix]) for i, a in enumerate(allocations))
            for suffix in ("in", "out")
        ),
    )  # fmt: skip
