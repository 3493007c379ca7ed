"""What limits a run: where its cycles went, how busy each resource was, and the roofline of the machine."""

from __future__ import annotations

from dataclasses import dataclass

from .lanes import STATES
from .measure import ARRAY_OPERATIONS, WORD_BYTES, Measures, Part

SATURATED = 0.8  # a resource that is busy for this share of the cycles is the limiter, whatever else went on
LABELS = {state.key: state.label for state in STATES["run"]}


@dataclass(frozen=True)
class Use:
    """`busy` of `cycles` cycles of a resource; `of` says more where its name does not."""

    resource: str
    kind: str
    busy: int
    cycles: int
    of: str = ""

    @property
    def share(self) -> float:
        return self.busy / self.cycles if self.cycles else 0.0

    def __str__(self) -> str:
        counted = f"{self.busy:,} of {self.cycles:,} cycles {self.of}".rstrip()
        return f"{self.resource}, {100 * self.share:.1f}% ({counted})"


def uses(measures: Measures, part: Part) -> list[Use]:
    """Every resource used in `part`, the busiest first: arrays, vector cores, ports, links, dispatch, the host."""
    machine, topology = measures.survey.machine, measures.survey.topology
    found = [
        Use(f"{unit.name} computing", unit.kind, part.states[unit.name]["computing"], part.cycles)
        for unit in measures.survey.units
    ]
    pace = machine.memory.cycles_per_word
    for index in range(len(machine.ports)):
        for what, words in (("reading", part.read_words[index]), ("writing", part.written_words[index])):
            found.append(Use(f"DRAM {what} through mag{index}", "dram", int(words) * pace, part.cycles))
    for wire, count in zip(topology.wires, part.links.tolist(), strict=True):
        found.append(Use(f"link {wire.name}", "link", count, part.cycles))
    agent = part.states["agent"]
    found.append(
        Use("dispatch", "agent", agent["dispatching"] + agent["credit"], part.cycles, "with a program being sent")
    )
    found.append(Use("host", "agent", agent["idle"], part.cycles, "with no program outstanding"))
    return sorted((use for use in found if use.busy), key=lambda use: -use.busy)


def limiter(measures: Measures, part: Part) -> str:
    """What limits, with the numbers that say so: a saturated resource, else what the most cycles were spent on."""
    busiest = next((use for use in uses(measures, part) if use.kind != "agent"), None)
    if busiest and busiest.share >= SATURATED:
        return f"{busiest}"
    spent = part.states["run"]
    key = max(spent, key=spent.__getitem__)
    text = f"{LABELS[key]} {100 * spent[key] / part.cycles:.1f}% ({spent[key]:,} of {part.cycles:,} cycles)"
    return f"{text}; the busiest resource is {busiest}" if busiest else text


def difference(first: Measures, other: Measures) -> str:
    """Why `first` takes fewer or more cycles than `other`; what the cycles went to adds up to the difference."""
    mine, theirs = first.whole, other.whole
    parts = {label: theirs.states["run"][key] - mine.states["run"][key] for key, label in LABELS.items()}
    ranked = sorted(parts.items(), key=lambda item: -abs(item[1]))
    shown = ", ".join(f"{count:+,} {label}" for label, count in ranked if count)
    return (
        f"{other.title} takes {_more(theirs.cycles - mine.cycles, 'cycles')}{f' ({shown})' if shown else ''}. "
        f"It reads {_more(theirs.dram_read - mine.dram_read, 'bytes')} and writes "
        f"{_more(theirs.dram_written - mine.dram_written, 'bytes')} of DRAM, and makes "
        f"{_more(theirs.hops - mine.hops, 'flit-hops')}."
    )


def _more(count: int, what: str) -> str:
    return f"{abs(count):,} {'more' if count > 0 else 'fewer'} {what}" if count else f"as many {what}"


@dataclass(frozen=True)
class Roofline:
    """Matrix products against the machine's peaks.

    `intensity` is in operations a byte, `reached` in operations a cycle; `compute` is the arrays' peak in operations a
    cycle and `bandwidth` the memory ports' in bytes a cycle and direction. Bytes are those of the busier direction,
    since reads and writes never wait for each other. `intensity` is None where no byte moved.
    """

    operations: int
    bytes: int
    reached: float
    compute: int
    bandwidth: float

    @property
    def intensity(self) -> float | None:
        return self.operations / self.bytes if self.bytes else None

    @property
    def bound(self) -> float:
        """The most operations a cycle that the roof allows at this intensity."""
        return self.compute if self.intensity is None else min(self.compute, self.intensity * self.bandwidth)


def roofline(measures: Measures, part: Part) -> Roofline:
    machine = measures.survey.machine
    return Roofline(
        operations=part.operations,
        bytes=max(part.dram_read, part.dram_written),
        reached=part.operations / part.cycles,
        compute=ARRAY_OPERATIONS * len(machine.clusters),
        bandwidth=WORD_BYTES * len(machine.ports) / machine.memory.cycles_per_word,
    )
