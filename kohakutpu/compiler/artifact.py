"""What compiling a kernel yields: rounds of instructions with their steps, and every buffer's place and order.

An artifact is data and knows no machine beyond the coordinates in it. The loader runs the rounds in order: stage the
round's flits from slot 0 once the dispatcher has sent those of the round before, follow its steps, and after a round
that `ends_stage` make sure that everything written is in memory before the next begins (a completion only says that
it was handed over).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property

import numpy as np

from kohakutpu.isa import cluster, vector
from kohakutpu.isa.assembler import instruction_text
from kohakutpu.isa.flit import Flit, xy
from kohakutpu.isa.signals import UnitType
from kohakutpu.wording import counted

from . import layouts
from .layouts import Layout, LayoutError

FORMAT = "kohakutpu-artifact-1"
UNIT_NAMES = {"cluster": "MG", "vector": "VC", "host": "HOST"}
UNIT_TYPES = {"cluster": UnitType.CLUSTER, "vector": UnitType.VECTOR}


class ArtifactError(ValueError):
    """A record that is no artifact."""


# ---- steps --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seed:
    """Set the dispatch credit."""

    credits: int


@dataclass(frozen=True)
class Kick:
    """Dispatch `count` staged flits from slot `base` to a node."""

    node: int
    base: int
    count: int


@dataclass(frozen=True)
class Await:
    """Wait until a node has sent `count` signals since the chain of rounds began; `acks` of them are DATA_RECEIVED."""

    node: int
    count: int
    acks: int = 0


Step = Seed | Kick | Await


def _step_record(step: Step) -> list:
    """`["seed", n]`, `["kick", x, y, base, n]`, `["await", x, y, count, acks]`."""
    if isinstance(step, Seed):
        return ["seed", step.credits]
    if isinstance(step, Kick):
        return ["kick", *xy(step.node), step.base, step.count]
    return ["await", *xy(step.node), step.count, step.acks]


def _step(record: list) -> Step:
    kind, *values = record
    if kind == "seed":
        return Seed(*values)
    if kind in ("kick", "await"):
        x, y, *rest = values
        return (Kick if kind == "kick" else Await)(y << 4 | x, *rest)
    raise ArtifactError(f"step {record!r} is none of seed, kick, await")


# ---- rounds, stages, buffers --------------------------------------------------------------------------


@dataclass(frozen=True)
class Round:
    """At most one staging area of flits (CU_INST, dst and src zero, `last` on the final flit of a kick).

    `instances[slot]` is the key of the instance a flit belongs to. A round that seeds credit begins a chain, and the
    next one that awaits anything ends it; until then nothing is awaited.
    """

    stage: int
    flits: tuple[Flit, ...]
    instances: tuple[tuple[int, ...], ...]
    steps: tuple[Step, ...]
    ends_stage: bool

    @property
    def kicks(self) -> list[Kick]:
        return [step for step in self.steps if isinstance(step, Kick)]

    @property
    def awaits(self) -> list[Await]:
        return [step for step in self.steps if isinstance(step, Await)]


@dataclass(frozen=True)
class Stage:
    """Work of one kind of unit between two barriers. `nodes[key]` is the node that runs an instance.

    A stage that copies writes what buffer `move[0]` holds in the order of buffer `move[1]`. One of the host has no nodes and
    no rounds: it reads and writes through its memory window.

    `acks[key]` is (receiver, number of DATA_RECEIVED) of an instance that drains into a vector core; `words` counts the
    32-byte words that the stage writes to memory. `helpers[key]` are the further clusters that an instance's parts of K run
    on, in the order of the parts.

    `cut` says what sets the size of a vector stage's instances: 'part', the knob; 'slice', the tiles or parts of a tiling; either with
    ' row' or ' tiles' where each is already one row, or one row of tiles; '', nothing (fused epilogues, copies).
    """

    unit: str  # 'cluster', 'vector' or 'host'
    grid: tuple[int, ...]
    nodes: Mapping[tuple[int, ...], int]
    acks: Mapping[tuple[int, ...], tuple[int, int]]
    statements: tuple[int, ...]
    words: int
    move: tuple[str, str] | None = None
    helpers: Mapping[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)
    cut: str = ""

    @property
    def units(self) -> set[int]:
        """Every node that runs something of the stage."""
        return {*self.nodes.values(), *(node for nodes in self.helpers.values() for node in nodes)}


@dataclass(frozen=True)
class BufferImage:
    """A buffer in memory: `copies` batch elements of `layout`, `stride` bytes apart, from `address`.

    `role` is 'in', 'out', 'temp' or 'constant'; `shape` is what a caller sees; a constant's image is `fill` repeated, or
    `data` where it is a table of the kernel's.
    """

    name: str
    role: str
    shape: tuple[int, ...]
    layout: Layout
    copies: int
    stride: int
    address: int
    dtype: str = "fp16"
    fill: int | None = None
    data: bytes | None = None

    @property
    def bytes(self) -> int:
        """The span from the first byte to the last of the last batch element."""
        return (self.copies - 1) * self.stride + self.layout.bytes

    def pack(self, array: np.ndarray) -> bytes:
        """The image of an FP16 array of `shape` (float16, or uint16 bit patterns); bytes between elements are zero."""
        if array.shape != self.shape:
            raise LayoutError(f"{self.name}: expected shape {self.shape}, got {array.shape}")
        elements = np.ascontiguousarray(array).reshape(self.copies, *self.layout.shape)
        return b"".join(self.layout.pack(element).ljust(self.stride, b"\0") for element in elements)[: self.bytes]

    def uploads(self, array: np.ndarray) -> Iterator[tuple[int, bytes]]:
        """(address, FP16 entries) to send through the upload aperture; only for a `Quantised` layout."""
        if array.shape != self.shape:
            raise LayoutError(f"{self.name}: expected shape {self.shape}, got {array.shape}")
        elements = np.ascontiguousarray(array).reshape(self.copies, *self.layout.shape)
        for copy, element in enumerate(elements):
            yield self.address + copy * self.stride, self.layout.pack(element)

    def unpack(self, image: bytes) -> np.ndarray:
        """The uint16 array of `shape` in an image of `bytes` bytes."""
        if len(image) != self.bytes:
            raise LayoutError(f"{self.name}: expected {self.bytes} bytes, got {len(image)}")
        starts = range(0, self.copies * self.stride, self.stride)
        elements = [self.layout.unpack(image[start : start + self.layout.bytes]) for start in starts]
        return np.stack(elements).reshape(self.shape)

    def contents(self) -> bytes | None:
        """A constant's image; None for any other buffer."""
        if self.data is not None:
            return self.data
        return None if self.fill is None else self.fill.to_bytes(2, "little") * (self.bytes // 2)

    def element_at(self, offset: int) -> tuple[int, ...] | None:
        """The logical index of the element at a byte offset from `address`; None in padding."""
        copy, rest = divmod(offset, self.stride)
        if copy >= self.copies or rest >= self.layout.bytes or offset < 0:
            return None
        flat = int(self.layout.order[rest // 2])
        if flat < 0:
            return None
        flat += copy * int(np.prod(self.layout.shape))
        return tuple(int(axis) for axis in np.unravel_index(flat, self.shape))


@dataclass(frozen=True)
class StatementRecord:
    """A statement of the source, for reports."""

    id: int
    source: str  # file:line
    text: str


@dataclass(frozen=True)
class Writer:
    """Which statement, in which instance, wrote a box of a buffer: `low` <= index < `high`, both of `len(shape)`."""

    buffer: str
    statement: int
    instance: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]


@dataclass(frozen=True)
class Artifact:
    """A compiled kernel. `extents` holds the dims; `mantissa` is that of the accumulators it was compiled for. `reaches` has
    the buffers past whose end whole runs go: bytes from its address."""

    kernel: str
    reference: str  # file:line of the kernel
    knobs: Mapping[str, object]
    extents: Mapping[str, int]
    lead: tuple[int, ...]
    options: Mapping[str, object]
    machine: str
    machine_digest: str
    mantissa: int
    buffers: tuple[BufferImage, ...]
    stages: tuple[Stage, ...]
    rounds: tuple[Round, ...]
    statements: tuple[StatementRecord, ...]
    writers: tuple[Writer, ...]
    notes: tuple[str, ...] = field(default=())
    reaches: Mapping[str, int] = field(default_factory=dict)

    def buffer(self, name: str) -> BufferImage:
        """The buffer of that name."""
        for image in self.buffers:
            if image.name == name:
                return image
        raise KeyError(f"{self.kernel} has no buffer {name!r}; it has {', '.join(b.name for b in self.buffers)}")

    @property
    def inputs(self) -> list[BufferImage]:
        return [image for image in self.buffers if image.role == "in"]

    @property
    def outputs(self) -> list[BufferImage]:
        return [image for image in self.buffers if image.role == "out"]

    def chains(self, stage: int | None = None) -> Iterator[tuple[Round, ...]]:
        """The rounds, in runs that begin with a Seed and end with the Awaits; of one stage, or of all."""
        chain: list[Round] = []
        for round_ in self.rounds:
            if stage not in (None, round_.stage):
                continue
            chain.append(round_)
            if round_.awaits:
                yield tuple(chain)
                chain = []

    @property
    def peak_bytes(self) -> int:
        """The first byte of memory behind all that a run touches: buffers, and where whole runs go past their ends."""
        return max(image.address + max(image.bytes, self.reaches.get(image.name, 0)) for image in self.buffers)

    @property
    def flit_count(self) -> int:
        return sum(len(round_.flits) for round_ in self.rounds)

    def writer_of(self, name: str, index: tuple[int, ...]) -> tuple[StatementRecord, tuple[int, ...]]:
        """The statement and instance that wrote an element last, in program order.

        Raises TypeError for what is no name or no tuple with an integer for each axis, KeyError for what nothing writes.
        """
        if not isinstance(name, str):
            raise TypeError(f"writer_of: expected the name of a buffer, such as 'y', got {type(name).__name__}")
        written = [writer for writer in self.writers if writer.buffer == name]
        if not written:
            raise KeyError(f"no statement writes {self.buffer(name).name}, which is {self.buffer(name).role!r}")
        axes = len(written[0].low)
        if not isinstance(index, tuple) or len(index) != axes or not all(isinstance(i, (int, np.integer)) for i in index):
            wanted = counted(axes, "integer", f"for an element of {name}")
            raise TypeError(f"writer_of: expected a tuple of {wanted}, got {index!r}")
        for writer in reversed(written):
            if all(a <= i < b for a, i, b in zip(writer.low, index, writer.high, strict=True)):
                return self.statements[writer.statement], writer.instance
        raise KeyError(f"no statement writes {name}{list(index)}")

    def kinds(self) -> dict[str, int]:
        """Flits by instruction: FILL, GEMM, DRAIN, IMEM, DESC, RUN."""
        counts: Counter[str] = Counter()
        for round_ in self.rounds:
            on_cluster = self.stages[round_.stage].unit == "cluster"
            for flit in round_.flits:
                op = (cluster if on_cluster else vector).decode(flit.payload).op
                counts[(cluster.Op if on_cluster else vector.Envelope)(op).name] += 1
        order = [*cluster.Op.__members__, *vector.Envelope.__members__]
        return {name: counts[name] for name in order if counts[name]}

    def walked(self) -> dict[int, list[tuple[int, int]]]:
        """By vector core, the (descriptor, dimension above 0) that running the artifact leaves at several steps."""
        left: dict[tuple[int, int, int], bool] = {}
        for round_ in self.rounds:
            if self.stages[round_.stage].unit != "vector":
                continue
            for kick in round_.kicks:
                for flit in round_.flits[kick.base : kick.base + kick.count]:
                    if vector.DESC_DIM.get(flit.payload, "op") == vector.Envelope.DESC:
                        made = vector.decode(flit.payload)
                        number = made.field - vector.DescField.DIM0
                        if number > 0:
                            left[kick.node, made.ad, number] = made.bound > 1
        found: dict[int, list[tuple[int, int]]] = {}
        for (at, ad, number), several in left.items():
            if several:
                found.setdefault(at, []).append((ad, number))
        return found

    # ---- text ----

    def summary(self) -> str:
        """A page for people: what was compiled, how much of everything, and where the buffers are.

        `kohakutpu compile` prints `explain.summary(artifact, machine)`: this, and images, descriptors, places in L1, the most memory
        in use and the predicted cycles, which need the machine.
        """
        kinds = ", ".join(f"{count} {name}" for name, count in self.kinds().items())
        lines = [
            f"{self.kernel} for {self.machine}: {counted(self.flit_count, 'flit')} ({kinds}), {counted(len(self.rounds), 'round')}",
            "knobs   " + " ".join(f"{name}={value}" for name, value in self.knobs.items()),
            "extents " + " ".join(f"{name}={value}" for name, value in self.extents.items())
            + (f" batch={self.lead}" if self.lead else ""),
            "options " + " ".join(f"{name}={value}" for name, value in self.options.items()),
        ]  # fmt: skip
        for number, stage in enumerate(self.stages):
            if stage.unit == "host":
                size = sum(self.buffer(name).bytes for name in stage.move)
                lines.append(f"stage {number} HOST {self.copied(stage)}: {size} bytes moved")
                continue
            rounds = [round_ for round_ in self.rounds if round_.stage == number]
            what = self.copied(stage) if stage.move else f"grid {stage.grid}"
            lines.append(
                f"stage {number} {UNIT_NAMES[stage.unit]} {what}: {counted(len(stage.nodes), 'instance')} on "
                f"{counted(len(stage.units), 'unit')}, {counted(sum(len(r.flits) for r in rounds), 'flit')} in "
                f"{counted(len(rounds), 'round')}"
            )
        lines += [
            f"buffer  {image.name:12} {image.role:8} {image.shape!s:16} {image.layout.key:18} {image.address:#010x} "
            f"{image.bytes} B"
            for image in self.buffers
        ]
        return "\n".join([*lines, *self.notes, f"digest  {self.digest}"])

    def copied(self, stage: Stage) -> str:
        """What a stage copies, with the byte orders."""
        source, target = (self.buffer(name) for name in stage.move)
        return f"copies {source.name} ({source.layout.key}) to {target.name} ({target.layout.key})"

    def flit_listing(self) -> str:
        """Every flit as assembly text, under its stage, round, steps and instance."""
        lines = []
        for number, round_ in enumerate(self.rounds):
            stage = self.stages[round_.stage]
            lines.append(f"# stage {round_.stage} {UNIT_NAMES[stage.unit]} grid {stage.grid}, round {number}")
            lines.append(f"# steps {json.dumps([_step_record(step) for step in round_.steps])}")
            for kick in round_.kicks:
                owner, immediate = None, False
                for slot in range(kick.base, kick.base + kick.count):
                    flit = round_.flits[slot]
                    if round_.instances[slot] != owner:
                        owner = round_.instances[slot]
                        lines.append("# instance {} on ({},{})".format(owner, *xy(kick.node)))
                    text = instruction_text(flit.payload, UNIT_TYPES[stage.unit], immediate=immediate)
                    immediate = _takes_immediate(stage.unit, flit.payload) and not immediate
                    lines.append(
                        "CU_INST (0,0)->({},{}){}{} | {}".format(
                            *xy(kick.node), f" txn={flit.txn:#x}" * bool(flit.txn), " last" * flit.last, text
                        )
                    )
        return "\n".join(lines) + "\n"

    # ---- serialisation ----

    def to_dict(self) -> dict:
        """Plain data for JSON. Flits are 72 hexadecimal digits; `owners` are [key, number of flits] runs."""
        return {
            "format": FORMAT,
            "kernel": self.kernel, "reference": self.reference, "knobs": dict(self.knobs),
            "extents": dict(self.extents), "lead": list(self.lead), "options": dict(self.options),
            "machine": self.machine, "machine_digest": self.machine_digest, "mantissa": self.mantissa,
            "buffers": [
                {"name": b.name, "role": b.role, "shape": list(b.shape), "layout": b.layout.to_dict(),
                 "copies": b.copies, "stride": b.stride, "address": b.address, "dtype": b.dtype, "fill": b.fill,
                 **({} if b.data is None else {"data": b.data.hex()})}
                for b in self.buffers
            ],
            "stages": [
                {"unit": s.unit, "grid": list(s.grid),
                 "nodes": [[list(key), *xy(node)] for key, node in s.nodes.items()],
                 "acks": [[list(key), *xy(node), count] for key, (node, count) in s.acks.items()],
                 "statements": list(s.statements), "words": s.words, "move": list(s.move) if s.move else None,
                 **({"helpers": [[list(key), [list(xy(n)) for n in nodes]] for key, nodes in s.helpers.items()]} if s.helpers else {}),
                 **({"cut": s.cut} if s.cut else {})}
                for s in self.stages
            ],
            "rounds": [
                {"stage": r.stage, "flits": [f"{flit.to_int():072x}" for flit in r.flits], "owners": _runs(r.instances),
                 "steps": [_step_record(step) for step in r.steps], "ends_stage": r.ends_stage} for r in self.rounds
            ],
            "statements": [asdict(s) for s in self.statements],
            "writers": [[w.buffer, w.statement, list(w.instance), list(w.low), list(w.high)] for w in self.writers],
            "notes": list(self.notes), **({"reaches": dict(sorted(self.reaches.items()))} if self.reaches else {}),
        }  # fmt: skip

    @cached_property
    def digest(self) -> str:
        """sha256 of the canonical JSON: equal for equal compilations, wherever they were made."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def to_json(self) -> str:
        return json.dumps({**self.to_dict(), "digest": self.digest}, indent=1) + "\n"

    @classmethod
    def from_dict(cls, record: Mapping) -> Artifact:
        """The artifact that `to_dict` wrote.

        Raises ArtifactError naming what is wrong, a digest that differs included.
        """
        if not isinstance(record, Mapping) or record.get("format") != FORMAT:
            found = record.get("format") if isinstance(record, Mapping) else type(record).__name__
            raise ArtifactError(f"expected an artifact of format {FORMAT}, got {found!r}")
        try:
            made = cls._from_fields(record)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ArtifactError(f"malformed artifact: {type(error).__name__}: {error}") from error
        if "digest" in record and record["digest"] != made.digest:
            raise ArtifactError(f"the artifact's digest is {record['digest']} and its contents have {made.digest}")
        return made

    @classmethod
    def from_json(cls, text: str) -> Artifact:
        try:
            record = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ArtifactError(f"not JSON: {error}") from error
        return cls.from_dict(record)

    @classmethod
    def _from_fields(cls, r: Mapping) -> Artifact:
        buffers = tuple(
            BufferImage(b["name"], b["role"], tuple(b["shape"]), layouts.from_dict(b["layout"]), b["copies"],
                        b["stride"], b["address"], b["dtype"], b["fill"],
                        bytes.fromhex(b["data"]) if "data" in b else None) for b in r["buffers"]
        )  # fmt: skip
        stages = tuple(
            Stage(s["unit"], tuple(s["grid"]), {tuple(key): y << 4 | x for key, x, y in s["nodes"]},
                  {tuple(key): (y << 4 | x, count) for key, x, y, count in s["acks"]}, tuple(s["statements"]),
                  s["words"], tuple(s["move"]) if s["move"] else None,
                  {tuple(key): tuple(y << 4 | x for x, y in nodes) for key, nodes in s.get("helpers", ())},
                  s.get("cut", ""))
            for s in r["stages"]
        )  # fmt: skip
        rounds = tuple(
            Round(x["stage"], tuple(Flit.from_int(int(flit, 16)) for flit in x["flits"]),
                  tuple(tuple(key) for key, count in x["owners"] for _ in range(count)),
                  tuple(_step(step) for step in x["steps"]), x["ends_stage"]) for x in r["rounds"]
        )  # fmt: skip
        return cls(
            r["kernel"], r["reference"], r["knobs"], r["extents"], tuple(r["lead"]), r["options"], r["machine"],
            r["machine_digest"], r["mantissa"], buffers, stages, rounds,
            tuple(StatementRecord(**s) for s in r["statements"]),
            tuple(Writer(b, s, tuple(i), tuple(low), tuple(high)) for b, s, i, low, high in r["writers"]),
            tuple(r["notes"]), {name: int(size) for name, size in r.get("reaches", {}).items()},
        )  # fmt: skip


def _takes_immediate(unit: str, payload: int) -> bool:
    if unit != "vector":
        return False
    i = vector.decode(payload)
    return i.op == vector.Envelope.IMEM and vector.decode_word(i.word).op is vector.Opcode.VSETI


def _runs(keys: tuple[tuple[int, ...], ...]) -> list[list]:
    runs: list[list] = []
    for key in keys:
        if runs and runs[-1][0] == list(key):
            runs[-1][1] += 1
        else:
            runs.append([list(key), 1])
    return runs
