"""Reports on a compiled kernel: what it consists of, and what limits each stage and which knob moves that."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from kohakutpu.isa import cluster, vector
from kohakutpu.isa.cluster import Op, Side
from kohakutpu.isa.signals import Buffer
from kohakutpu.isa.vector import DescField, Envelope, Opcode
from kohakutpu.machine import Machine
from kohakutpu.wording import counted

from .artifact import UNIT_NAMES, Artifact
from .predict import Prediction, StageTime, predict
from .tiles import KNOBS, KSPLIT, Choice

# What limits a stage, in words, and what moves it.
LIMITS = {
    ("cluster", "work"): ("the multipliers", "nothing but fewer padded rows and columns, or more clusters"),
    ("cluster", "reading"): (
        "the memory ports' answers", "larger gm and gn (more work for an operand), or preq for its operands"
    ),
    ("cluster", "writing"): ("the memory ports' writes", "more of K in one product: fewer results for as much work"),
    ("cluster", "handing"): ("staging and dispatch by the host", "larger gm, gn or nk: fewer instructions"),
    ("cluster", "latency"): (
        "beginning and ending: first fetches, last drains", "smaller gm, gn and nk, or more tiles a cluster"
    ),
    ("vector", "work"): ("the vector programs", None),
    ("vector", "reading"): ("the memory ports' answers", "fewer operands a statement: fuse statements"),
    ("vector", "writing"): ("the memory ports' writes", "fewer results: fuse statements"),
    ("vector", "handing"): ("staging and dispatch by the host", None),
    ("vector", "latency"): ("waiting: the host's polls and the memory's latency", None),
}  # fmt: skip


def payloads(artifact: Artifact, stage: int | None = None) -> Iterator[tuple[int, int, int]]:
    """(stage, node, payload) of every flit, in the order of the rounds; of one stage only if it is given."""
    for round_ in artifact.rounds:
        if stage in (None, round_.stage):
            for kick in round_.kicks:
                for flit in round_.flits[kick.base : kick.base + kick.count]:
                    yield round_.stage, kick.node, flit.payload


def summary(artifact: Artifact, machine: Machine) -> str:
    """`Artifact.summary`, and images, descriptors, maps of L1, memory and predicted cycles."""
    lines = [artifact.summary()]
    for number, stage in enumerate(artifact.stages):
        if stage.unit == "host":
            continue
        use = _cluster_use(artifact, number) if stage.unit == "cluster" else _vector_use(artifact, number)
        lines += [f"stage {number} {line}" for line in use]
    prediction = predict(artifact, machine)
    temps = sum(image.bytes for image in artifact.buffers if image.role == "temp")
    lines.append(f"memory  {artifact.peak_bytes} bytes at most, temporaries {temps} before they share")
    each = ", ".join(f"{time.cycles:,.0f}" for time in prediction.stages)
    lines.append(f"cycles  {prediction.cycles:,} predicted ({each} by stage)")
    return "\n".join(lines)


def _cluster_use(artifact: Artifact, number: int) -> list[str]:
    """Where operands are in L1, by side: bank and entries."""
    places: dict[Side, dict[tuple[int, int, int], int]] = {side: {} for side in Side}
    fills = Counter()
    for _, _, payload in payloads(artifact, number):
        i = cluster.decode(payload)
        if i.op == Op.FILL:
            place = (i.fbank, i.eoff, i.n)
            places[Side(i.sel)][place] = places[Side(i.sel)].get(place, 0) + 1
            fills[Side(i.sel)] += i.n
    lines = []
    for side, held in places.items():
        spans = sorted(held)
        shown = ", ".join(f"{bank}:{first}..{first + n - 1}" for bank, first, n in spans[:6])
        more = f" and {len(spans) - 6} more" if len(spans) > 6 else ""
        fetched = counted(fills[side], "entry", "fetched", plural="entries")
        lines.append(f"L1 {side.name}: {counted(len(spans), 'place')} ({shown}{more}), {fetched}")
    return lines


def _vector_use(artifact: Artifact, number: int) -> list[str]:
    """Words of the image, descriptors, and the L1 words that fills, loads, stores and drains name."""
    images: dict[int, dict[int, int]] = {}
    descriptors: set[int] = set()
    bounds: dict[int, int] = {}
    for _, node, payload in payloads(artifact, number):
        i = vector.decode(payload)
        if i.op == Envelope.IMEM:
            images.setdefault(node, {})[i.addr] = i.word
        elif i.op == Envelope.DESC:
            descriptors.add(i.ad)
            if i.field == DescField.DIM0:
                bounds[i.ad] = i.bound
    lines = []
    sizes = {len(image) for image in images.values()}
    size = f"{min(sizes)} to {max(sizes)}" if len(sizes) > 1 else f"{max(sizes, default=0)}"
    lines.append(
        f"image {size} of {vector.IMEM_WORDS} words sent to {counted(len(images), 'core')}, descriptors {len(descriptors)} of "
        f"{vector.DESCRIPTORS}"
    )
    transfers = set()
    for image in images.values():
        for word in image.values():
            i = vector.decode_word(word)
            if i.op in (Opcode.VFILL, Opcode.VDRAIN):
                transfers.add((i.l1, Opcode(i.op).name, bounds.get(i.ad, 1)))
    if transfers:
        shown = ", ".join(f"{name} at {first}, {words} a row" for first, name, words in sorted(transfers)[:6])
        lines.append(f"L1 words: {shown}")
    return lines


def explain(artifact: Artifact, machine: Machine, simulated: Sequence[float] | None = None,
            better: Sequence[tuple[Choice, int | None]] = ()) -> str:  # fmt: skip
    """What limits each stage and what moves it; beside the prediction the cycles of a run, if there was one. `better` are
    tiles with the predicted cycles of the whole kernel, or None for the estimate of the products that the choice has."""
    prediction = predict(artifact, machine)
    lines = [f"{artifact.kernel} on {machine.name}: {prediction.cycles:,} cycles predicted{_beside(prediction, simulated)}"]
    for number, (stage, time) in enumerate(zip(artifact.stages, prediction.stages, strict=True)):
        measured = f", {simulated[number]:,.0f} simulated" if simulated else ""
        title = _title(artifact, number)
        lines.append(f"stage {number} {UNIT_NAMES[stage.unit]} {title}: {time.cycles:,.0f} predicted{measured}")
        if stage.unit == "host":
            lines.append("  the host reads and writes it through its memory window; relayout='machine' leaves it to the cores")
            continue
        shares = ", ".join(
            f"{name} {100 * value / max(time.cycles, 1):.0f} %"
            for name, value in (("work", time.work), ("host", time.handing), ("reads", time.reading), ("writes", time.writing))
        )
        what, knob = LIMITS[stage.unit, time.limiter]
        knob = _vector_knob(artifact, number, time, machine) or knob
        lines.append(f"  busy: {shares}, on {time.nodes} of {counted(_units(machine, stage.unit), 'unit')}")
        lines.append(f"  limited by {what}; {knob if knob.startswith('no knob') else f'moved by {knob}'}")
        idle = _units(machine, stage.unit) - time.nodes
        if stage.unit == "cluster" and idle:
            lines.append(
                f"  {counted(idle, 'cluster')} without work: {counted(len(stage.nodes), 'tile')}; smaller gm or gn makes more, and "
                "ksplit gives a tile several clusters"
            )
        if stage.helpers:
            lines.append(f"  {_parts(artifact, number)}")
    lines += _padding(artifact)
    for choice, cycles in better:
        knobs = " ".join(f"{name}={value}" for name, value in shown(artifact, choice).items())
        mark = " (now)" if taken(artifact, choice) else ""
        rough = f"about {choice.cycles:,.0f} cycles for the products, a rough estimate to choose by, not to be held against the stages"
        lines.append(f"tile {knobs}: {rough if cycles is None else f'{cycles:,} cycles predicted'}{mark}")
    return "\n".join(lines)


def _vector_knob(artifact: Artifact, number: int, time: StageTime, machine: Machine) -> str | None:
    """What moves a vector stage's limit, where that depends on how its instances are cut; None where it does not."""
    stage = artifact.stages[number]
    if stage.unit != "vector":
        return None
    if stage.move:
        return "no knob: the compiler chooses the cores and runs of a copy; storing in the order that is read saves it"
    if time.limiter in ("reading", "writing"):
        return None
    base, _, row = stage.cut.partition(" ")
    if time.limiter == "work":
        if time.nodes == len(machine.vectors):
            return "no knob: every core works; fewer operations an element would"
        if not base:
            return "more cores: smaller gm or gn"
        if row == "row":
            return "no knob: an instance is one row already"
        if row:
            return "more cores: a smaller gm, as an instance is one row of tiles already"
        return "more cores: a smaller part" if base == "part" else "more cores: smaller gm, gn or parts in the tiling"
    if not base:
        return "larger gm or gn: fewer instances" if len(stage.nodes) > 1 else "no knob: there is one instance"
    if len(stage.nodes) == 1:
        return "no knob: there is one instance" + "; fusing the stage away saves it" * (time.limiter == "latency")
    if base == "slice":
        if row == "tiles":
            return "larger gm: fewer instances, on fewer cores; its per-channel vector makes each a whole row of tiles"
        return "larger gm, gn or parts of the tiling: fewer instances, on fewer cores (the knob part does not act here)"
    return "fewer cores or runs: a larger part"


def shown(artifact: Artifact, choice: Choice) -> dict[str, int]:
    """The knobs of a tile that the artifact's kernel has."""
    return {name: value for name, value in choice.knobs.items() if name in artifact.knobs or name == KSPLIT}


def taken(artifact: Artifact, choice: Choice) -> bool:
    """Whether the artifact was compiled for this tile and these parts of K."""
    held = {name: artifact.knobs[name] for name in (*KNOBS, KSPLIT) if name in artifact.knobs}
    return {KSPLIT: 1, **held} == {**shown(artifact, choice), KSPLIT: choice.ksplit}


def _parts(artifact: Artifact, number: int) -> str:
    """How many clusters a tile has, and in how many awaited phases its parts are added up and leave."""
    stage = artifact.stages[number]
    sizes = {1 + len(nodes) for nodes in stage.helpers.values()}
    sums = sum(
        i.op == Op.DRAIN and i.dnode and i.dbuf == Buffer.ACCUMULATOR
        for i in (cluster.decode(payload) for _, _, payload in payloads(artifact, number))
    )
    return (
        f"K is in {counted(max(sizes), 'part')}, each on a cluster of its own: {counted(sums, 'sum')} sent to another cluster, in "
        f"{counted(len(list(artifact.chains(number))), 'phase')} that the host awaits"
    )


def _beside(prediction: Prediction, simulated: Sequence[float] | None) -> str:
    if not simulated:
        return ""
    total = sum(simulated)
    return f", {total:,.0f} simulated ({100 * (prediction.cycles / total - 1):+.1f} %)"


def _units(machine: Machine, unit: str) -> int:
    return len(machine.clusters if unit == "cluster" else machine.vectors)


def _title(artifact: Artifact, number: int) -> str:
    """The last statement of a stage, or what it copies."""
    stage = artifact.stages[number]
    if stage.move:
        return artifact.copied(stage)
    statement = artifact.statements[stage.statements[-1]]
    return f"{statement.source} {statement.text}"


def _padding(artifact: Artifact) -> list[str]:
    """Operands and results of which a tenth or more is padding."""
    lines = []
    for image in artifact.buffers:
        real = 2 * math.prod(image.layout.shape) * image.copies
        held = getattr(image.layout, "halves", 0) * 2 * image.copies
        if held and real / held < 0.9 and image.role != "constant":
            lines.append(f"{image.name}: {100 * (1 - real / held):.0f} % of {image.layout.key} is padding")
    return lines

