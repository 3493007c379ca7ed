"""The recorded instruction streams of linear_silu (`flits/*.txt`) against what the compiler makes of it.

The file's header names the shape, the knobs, the coordinates and the addresses; the kernel is compiled for those.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path

from kohakutpu.compiler import Artifact, Await, CompileError, Kick, Options, Seed, compile_kernel
from kohakutpu.formats import fp16
from kohakutpu.isa.flit import xy
from kohakutpu.kernels.linear import linear_silu
from kohakutpu.machine import Agent, ClusterUnit, Machine, MemoryPort, VectorUnit

from .arrays import GoldenError, replaying
from .report import Tally

PAIR = r"\((\d+),\s*(\d+)\)"
FLIT = r"^(\d+) (\d+),(\d+)\s+(\d+) ([0-9a-f]{64}) ([0-9a-f]{72}) ;"


@dataclass(frozen=True)
class Recording:
    """A file of recorded flits, as its header and its lines say."""

    fused: bool
    shape: dict[str, int]
    shapes: dict[str, tuple[int, int]]
    knobs: dict[str, int]
    machine: Machine
    addresses: dict[str, int]
    layouts: dict[str, str]
    constants: dict[str, tuple[int, float]]  # name -> (elements, value)
    steps: list[list[list]]
    flits: list[tuple[int, tuple[int, int], int, int, int]]  # stage, node, place in the kick, payload, flit
    total: int


def _found(pattern: str, text: str, what: str, path: Path) -> re.Match:
    match = re.search(pattern, text, re.MULTILINE)
    if match is None:
        raise GoldenError(f"{path}: no {what}")
    return match


def _pairs(text: str) -> list[tuple[int, int]]:
    return [(int(x), int(y)) for x, y in re.findall(PAIR, text)]


def read(path: Path) -> Recording:
    """Parse a recording. Raises GoldenError naming what is missing, or the line that cannot be read."""
    with replaying(path, "its text"):
        text = path.read_text()
        return _parse(text, path)


def _parse(text: str, path: Path) -> Recording:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.startswith("#") and not re.match(FLIT, line):
            raise GoldenError(f"{path}: line {number} is neither a comment nor a flit: {line[:60]!r}")
    head = {name: _found(rf"^# {name}\b(.*)$", text, f"'{name}' in the header", path).group(1)
            for name in ("machine", "addresses", "layouts")}  # fmt: skip
    fused = _found(r"^# (FUSED|UNFUSED)", text, "title", path).group(1) == "FUSED"
    size = _found(r"^# M=.*$", text, "shape", path).group(0)
    numbers = {name: int(value) for name, value in re.findall(r"\b(M|K|N|gm|gn|nk)=(\d+)", size)}
    shapes = {name: (int(r), int(c)) for name, r, c in re.findall(rf"\b(x|w){PAIR}", size)}
    pattern = r"MG coords (.*); VC coords (.*); agent (.*); stage_flits (\d+); inst_depth (\d+)"
    clusters, vectors, agent, staging, depth = _found(pattern, head["machine"], "coordinates", path).groups()
    machine = Machine(
        name=path.stem, nx=2, ny=2, agent=Agent(*_pairs(agent)[0], own_endpoint=True), ports=(MemoryPort(0, 1),),
        clusters=tuple(
            ClusterUnit(*at, a_entries=512, b_entries=512, inst_depth=int(depth)) for at in _pairs(clusters)
        ),
        vectors=tuple(VectorUnit(*at, inst_depth=int(depth)) for at in _pairs(vectors)),
        staging_flits=int(staging), compile_only=True,
    )  # fmt: skip
    folded = re.search(r"^# folded constant arrays(.*)$", text, re.MULTILINE)
    constants = re.findall(r"(const[^:\s]+): (\d+) x (\S+?)(?:,|$)", folded.group(1)) if folded else []
    lines = re.findall(FLIT, text, re.MULTILINE)
    return Recording(
        fused,
        {name: numbers[name] for name in "MKN"},
        shapes,
        {name: numbers[name] for name in ("gm", "gn", "nk")},
        machine,
        {name: int(value, 16) for name, value in re.findall(r"([\w.-]+)=(0x[0-9a-f]+)", head["addresses"])},
        dict(re.findall(r"(\w+)=([\w:]+)", head["layouts"])),
        {name: (int(count), float(value)) for name, count, value in constants},
        [_steps(steps, path) for steps in re.findall(r"steps: (.*)$", text, re.MULTILINE)],
        [(int(stage), (int(x), int(y)), int(place), int(payload, 16), int(flit, 16))
         for stage, x, y, place, payload, flit in lines],
        int(_found(r"^# total flits (\d+)", text, "total", path).group(1)),
    )  # fmt: skip


def _steps(text: str, path: Path) -> list[list]:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError) as error:
        raise GoldenError(f"{path}: steps {text[:60]!r} cannot be read: {error}") from error


def compile_recording(recording: Recording) -> Artifact:
    """The kernel compiled as the recording says it was."""
    options = Options(
        "published", "registers" if recording.fused else "arrays", recording.addresses, allow_overlap=True
    )
    knobs = {**recording.knobs, "fuse": recording.fused}
    return compile_kernel(linear_silu, recording.machine, recording.shapes, knobs, options)


def _plain(step: Seed | Kick | Await) -> list:
    if isinstance(step, Seed):
        return ["seed", step.credits]
    if isinstance(step, Kick):
        return ["kick", *xy(step.node), step.base, step.count]
    return ["await", *xy(step.node), step.count]


def check_flits(path: Path) -> list[Tally]:
    """Flits, steps and buffers of one recording, each compared with the compiler's own."""
    recording = read(path)
    name = f"flits/{path.name}"
    what = "fused" if recording.fused else "staged"
    tallies = [Tally(name, f"{what} {thing}", thing) for thing in ("flits", "steps", "buffers")]
    for thing in ("flits", "steps", "addresses"):
        if not getattr(recording, thing):
            raise GoldenError(f"{path}: it holds no {thing}, so nothing would be compared")
    try:
        with replaying(path, "the kernel it describes"):
            artifact = compile_recording(recording)
    except CompileError as error:
        tallies[0].differ(len(recording.flits), f"not compiled: {error}")
        return tallies
    ours = [
        (round_.stage, xy(kick.node), place, flit.payload, flit.to_int())
        for round_ in artifact.rounds for kick in round_.kicks
        for place, flit in enumerate(round_.flits[kick.base : kick.base + kick.count])
    ]  # fmt: skip
    _compare(tallies[0], ours, recording.flits)
    if recording.total != len(recording.flits):
        tallies[0].differ(1, f"the file says {recording.total} flits and lists {len(recording.flits)}")
    steps = [_plain(step) for round_ in artifact.rounds for step in round_.steps]
    _compare(tallies[1], steps, [step for steps in recording.steps for step in steps])
    buffers = {image.name: (image.layout.key, image.address) for image in artifact.buffers if image.fill is None}
    recorded = {name: (recording.layouts.get(name, ""), at) for name, at in recording.addresses.items()
                if name not in recording.constants}  # fmt: skip
    _compare(tallies[2], sorted(buffers.items()), sorted(recorded.items()))
    held = {image.name: (image.layout.halves, image.fill) for image in artifact.buffers if image.fill is not None}
    wanted = {name: (count, int(fp16.from_float(value))) for name, (count, value) in recording.constants.items()}
    _compare(tallies[2], sorted(held.items()), sorted(wanted.items()))
    return tallies


def _compare(tally: Tally, ours: list, recorded: list) -> None:
    tally.compared += len(recorded)
    if len(ours) != len(recorded):
        tally.differ(abs(len(ours) - len(recorded)), f"{len(ours)} {tally.unit}, {len(recorded)} are recorded")
    for number, (mine, theirs) in enumerate(zip(ours, recorded, strict=False)):
        if mine != theirs:
            tally.differ(1, f"{tally.unit} {number}: {_text(mine)}, recorded {_text(theirs)}")


def _text(value) -> str:
    return "(" + ", ".join(f"{v:#x}" if isinstance(v, int) else str(v) for v in value) + ")"
