"""Replaying recorded launches through the reference interpreter, one outcome each (spec/xpu.md 3.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from kohakutpu.reference.xpu import HOST, MACHINE, Bits, Launch, run
from kohakutpu.wording import counted
from kohakutpu.xpu.errors import OverBudget, Refused, Undefined
from kohakutpu.xpu.kernel import Kernel
from kohakutpu.xpu.recording import NAME, Recording, RecordingError, digest, read
from kohakutpu.xpu.tree import Variable
from kohakutpu.xpu.types import BufferType, FunctionType, Scalar, u8

from .compare import APART, EXACT, Comparison, compare, values
from .held import HeldList

# Every outcome, and whether it fails the run.
OUTCOMES = {
    "pass": False, "fail": True, "held": False, "stale": True, "refused": False, "undefined": True, "missing": False,
    "slow": False,
}  # fmt: skip
COLUMNS = ("kernel", "backend", "launch", "outcome", "detail")


class ConformanceError(ValueError):
    """A corpus that cannot be judged at all: what was given and what was expected."""


@dataclass(frozen=True)
class Judgement:
    """The outcome of one recorded launch. `launch` is its directory's name."""

    kernel: str
    backend: str
    launch: str
    outcome: str
    detail: str

    @property
    def fails(self) -> bool:
        """True if the outcome fails the run."""
        return OUTCOMES[self.outcome]

    def row(self) -> str:
        """A line of conformance.tsv."""
        return "\t".join(getattr(self, name).replace("\t", " ").replace("\n", " ") for name in COLUMNS)


@dataclass(frozen=True)
class Part:
    """Bytes `start` to `stop` of an allocation, judged as elements of one type."""

    name: str
    kind: Scalar
    allocation: int
    start: int
    stop: int


def machine(backend: str) -> bool:
    """True for a back end whose numbers are the machine's, so that machine arithmetic judges it."""
    return backend.partition("-")[0] == "ktpu"


def by_name(kernels: Iterable[Kernel]) -> dict[str, list[Kernel]]:
    """Kernels by registered name."""
    found: dict[str, list[Kernel]] = {}
    for kernel in kernels:
        found.setdefault(kernel.name, []).append(kernel)
    return found


def recordings(folder: Path) -> tuple[list[Path], list[Path]]:
    """The recorded launches of a folder by name, and the directories in it that are none."""
    directories = sorted(path for path in folder.iterdir() if path.is_dir())
    launches = [path for path in directories if NAME.fullmatch(path.name) and not path.name.startswith(".")]
    return launches, [path for path in directories if path not in launches]


def parts(parameters: Sequence[Variable], recording: Recording) -> list[Part]:
    """What is compared: each byte of each allocation once.

    A buffer parameter is compared from its offset to the allocation's end. Of two that share an allocation the first
    is; where the second begins earlier, its bytes before the first. Bytes short of a whole element compare as bytes.
    """
    found: list[Part] = []
    begun: dict[int, int] = {}
    for parameter, argument in zip(parameters, recording.arguments, strict=True):
        if argument["kind"] != "buffer":
            continue
        index, start = argument["alloc"], argument["offset"]
        end = begun.get(index, len(recording.before[index]))
        if start >= end:
            continue
        element = parameter.type.element
        whole = start + (end - start) // element.size * element.size
        found.append(Part(parameter.name, element, index, start, whole))
        if whole < end:
            found.append(Part(f"{parameter.name}, bytes past its last element", u8, index, whole, end))
        begun[index] = start
    return [part for part in found if part.start < part.stop]


def _arguments(parameters: Sequence[Variable], recording: Recording, memory: list[np.ndarray]) -> list:
    """The arguments over the allocations in `memory`. Raises RecordingError where they do not fit the kernel."""
    if len(recording.arguments) != len(parameters):
        raise RecordingError(
            f"{counted(len(recording.arguments), 'argument')}, where the kernel takes {len(parameters)}"
        )
    given = []
    for parameter, argument in zip(parameters, recording.arguments, strict=True):
        kind, what = parameter.type, f"argument {parameter.name}"
        wanted = "buffer" if isinstance(kind, BufferType) else "scalar"
        if argument["kind"] != wanted:
            raise RecordingError(f"{what} is a {argument['kind']}, where the kernel takes a {wanted}")
        if wanted == "scalar":
            size = 4 if isinstance(kind, FunctionType) else kind.size
            data = bytes.fromhex(argument["hex"])
            if len(data) != size:
                raise RecordingError(f"{what} has {len(data)} bytes, where the kernel takes {size}")
            given.append(Bits(data))
            continue
        size, offset = kind.element.size, argument["offset"]
        if offset % size:
            raise RecordingError(f"{what} begins at byte {offset}, no multiple of its element's {size}")
        data = memory[argument["alloc"]][offset:]
        given.append(data[: len(data) // size * size].view(kind.element.dtype))
    return given


def _number(kind: Scalar, memory: np.ndarray, index: int) -> str:
    value = memory[index : index + 1]
    if kind.kind != "float":
        return str(value[0])
    bits = int(value.view(f"uint{kind.bits}")[0])
    return f"{values(kind, value)[0]:.9g} (0x{bits:0{kind.bits // 4}x})"


def _difference(part: Part, reference, found, result: Comparison, recording: Recording, bound) -> str:
    at = result.first
    unit = "ulps" if part.kind.kind == "float" else "steps"
    apart = "a NaN beside a number" if result.ulps == int(APART) and unit == "ulps" else f"{result.ulps} {unit}"
    worst = f"{apart}, {result.rel:.3g} of the scale" if unit == "ulps" else apart
    return (
        f"{part.name}[{at}] is {_number(part.kind, found, at)} on {recording.backend} and "
        f"{_number(part.kind, reference, at)} by the reference; worst {worst}; "
        f"{result.outside} of {result.count} outside {bound}"
    )


def _judge(kernel: Kernel, recording: Recording, held: HeldList, budget: float) -> tuple[str, str, list[np.ndarray]]:
    parameters = kernel.program.kernel.parameters
    for parameter, argument in zip(parameters, recording.arguments, strict=False):
        if argument["kind"] == "other":
            return "refused", f"argument {parameter.name} is of kind other, code {argument['code']}", []
    memory = [np.frombuffer(data, np.uint8).copy() for data in recording.before]
    arguments = _arguments(parameters, recording, memory)
    launch = Launch(recording.grid, recording.block, recording.wave_width or None, budget, recording.shared_bytes)
    run(kernel, arguments, launch, MACHINE if machine(recording.backend) else HOST)
    entry = held.find(kernel.name, recording.backend)
    bound = EXACT if entry is None or entry.bound is None else entry.bound
    worst, notes, floats = (0, 0.0), [], True
    judged = parts(parameters, recording)
    if not judged:
        raise RecordingError("no buffer that could be compared")
    for part in judged:
        before, after, reference = (
            np.frombuffer(data, np.uint8)[part.start : part.stop].copy().view(part.kind.dtype)
            for data in (recording.before[part.allocation], recording.after[part.allocation], memory[part.allocation])
        )
        result = compare(part.kind, before, reference, after, bound)
        if result.outside:
            notes.append(_difference(part, reference, after, result, recording, bound))
            floats = floats and part.kind.kind == "float"
        worst = max(worst[0], result.ulps), max(worst[1], result.rel)
    if entry is not None and entry.bound is None:
        return ("held", f"{entry.why}: {notes[0]}", memory) if notes else ("stale", entry.why, memory)
    if notes:
        more = f"; and {len(notes) - 1} more of its buffers" if len(notes) > 1 else ""
        meant = "; a bound that is meant goes on the held list (--held)" if entry is None and floats else ""
        return "fail", notes[0] + more + meant, memory
    return (
        "pass",
        "" if bound == EXACT else f"worst {worst[0]} ulps, {worst[1]:.3g} of the scale, within {bound}",
        memory,
    )


def judge(
    directory: Path,
    kernels: dict[str, list[Kernel]],
    held: HeldList = HeldList(),
    budget: float = 0,
    dump: bool = False,
) -> Judgement:
    """The outcome of one recording. `budget` in seconds, 0 for none. Raises ConformanceError for an ambiguous name.

    With `dump`, a failed launch leaves the reference's bytes of allocation i in `a<i>.ref`. A launch that agrees
    though its kernel is held is "stale" here; `conform` knows the kernel's other launches.
    """
    for old in directory.glob("a*.ref") if dump else ():
        old.unlink()
    try:
        recording = read(directory)
    except RecordingError as error:
        return Judgement(directory.name.rpartition(".")[0], "-", directory.name, "undefined", str(error))

    def outcome(word: str, detail: str) -> Judgement:
        return Judgement(recording.kernel, recording.backend, directory.name, word, detail)

    candidates = kernels.get(recording.kernel, [])
    if len(candidates) > 1:
        files = ", ".join(kernel.function.__code__.co_filename for kernel in candidates)
        raise ConformanceError(f"{directory.name}: {len(candidates)} kernels are called {recording.kernel}: {files}")
    if not candidates:
        return outcome("missing", "no kernel of that name")
    (kernel,) = candidates
    note = "" if digest(kernel.program) == recording.source else "; the kernel's source has changed since the recording"
    try:
        word, detail, memory = _judge(kernel, recording, held, budget)
    except RecordingError as error:
        return outcome("undefined", f"{error}{note}")
    except Refused as error:
        return outcome("refused", f"{error}{note}")
    except Undefined as error:
        return outcome("undefined", f"{error}{note}")
    except OverBudget as error:
        return outcome("slow", f"{error}{note}")
    if word == "fail" and dump:
        for index, data in enumerate(memory):
            (directory / f"a{index}.ref").write_bytes(data.tobytes())
    return outcome(word, f"{detail}{note}".removeprefix("; "))


def conform(
    folder: Path,
    kernels: Iterable[Kernel],
    held: HeldList = HeldList(),
    budget: float = 0,
    dump: bool = False,
    progress: Callable[[Judgement], None] = lambda judgement: None,
) -> list[Judgement]:
    """Judge every recording of a folder, by name. Raises ConformanceError if there is none.

    A held kernel is stale once every launch of it that could be compared agrees; while one disagrees, the others pass.
    """
    if not folder.is_dir():
        raise ConformanceError(f"{folder}: a directory of recorded launches is expected")
    launches, _ = recordings(folder)
    if not launches:
        raise ConformanceError(f"{folder}: no recorded launch (a directory <kernel>.<n>) lies there")
    known, judged = by_name(kernels), []
    for launch in launches:
        judged.append(judge(launch, known, held, budget, dump))
        progress(judged[-1])
    wrong = {(one.kernel, one.backend) for one in judged if one.outcome == "held"}
    return [
        replace(one, outcome="pass", detail="agrees, where another launch of this held kernel does not")
        if one.outcome == "stale" and (one.kernel, one.backend) in wrong else one
        for one in judged
    ]  # fmt: skip


def table(judged: Sequence[Judgement]) -> str:
    """conformance.tsv."""
    return "".join(f"{line}\n" for line in ("\t".join(COLUMNS), *(one.row() for one in judged)))
