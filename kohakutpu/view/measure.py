"""What a trace shows in numbers: a second pass that counts flits, bytes and states, by stage and by time bin."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from kohakutpu.isa.flit import FLIT_WIDTH, FlitType
from kohakutpu.isa.memory import ENTRY_WORDS, WORD_BYTES, decode_request

from . import ViewError
from .lanes import STATES, Collector, Lane
from .survey import Stage, Survey, flits_of

FLIT_BYTES = FLIT_WIDTH // 8
CONVERTED_WORDS = 8  # FP16 words in memory that one converted entry is made of
ARRAY_OPERATIONS = 1024  # of one cluster in a cycle: 512 multiply-accumulate


@dataclass
class Part:
    """Counts of the cycles from `start` up to `end`. `links` and the memory words are by index, `states` by lane."""

    start: int
    end: int
    links: np.ndarray
    read_words: np.ndarray
    written_words: np.ndarray
    operations: int
    states: dict[str, dict[str, int]]

    @property
    def cycles(self) -> int:
        return self.end - self.start

    @property
    def dram_read(self) -> int:
        """Bytes of the read requests that the memory ports took."""
        return WORD_BYTES * int(self.read_words.sum())

    @property
    def dram_written(self) -> int:
        """Bytes of write data that the memory ports took."""
        return WORD_BYTES * int(self.written_words.sum())

    @property
    def hops(self) -> int:
        """Flits accepted, over all links."""
        return int(self.links.sum())


@dataclass
class Measures:
    """Everything that is shown of one trace.

    `whole` covers the window, `parts` the stages and what lies between them, in order: (stage or None, part).
    `bins` has the first cycle of each time bin and the end of the last; `heat` the flits of each link in each bin, of
    shape (links, bins); `peaks` the highest value of each level track.
    """

    survey: Survey
    title: str
    lanes: dict[str, Lane]
    whole: Part
    parts: list[tuple[Stage | None, Part]]
    bins: np.ndarray
    heat: np.ndarray
    peaks: dict[str, int] = field(default_factory=dict)


def measure(
    survey: Survey, *, title: str = "", window: tuple[int | None, int | None] = (None, None), most_bins: int = 1024
) -> Measures:
    """Count what happened in `window` (cycles, end excluded; by default those in which flits moved).

    `most_bins` bounds the time bins; all are of one width, 1 where that fits. Raises `ViewError` for an empty window.
    """
    start = survey.start if window[0] is None else window[0]
    end = survey.end if window[1] is None else window[1]
    if not 0 <= start < end <= survey.trace.cycles:
        raise ViewError(
            f"{survey.trace.path}: cycles {start} to {end} were asked for; the trace has 0 to {survey.trace.cycles}"
        )
    bounds, owners = _bounds(survey.stages, start, end)
    width = -(-(end - start) // most_bins)
    bins = np.minimum(np.arange(start, end + width, width), end)
    counts = _Counts(survey, bounds, bins)
    for chunk in survey.trace.chunks():
        counts.add(chunk)
    lanes = counts.lanes.finish()
    states = {name: lane.between(bounds) for name, lane in lanes.items()}
    operations = np.zeros(len(bounds) - 1, np.int64)
    for instruction in survey.instructions:
        if instruction.operations and instruction.end is not None and start <= instruction.end < end:
            operations[np.searchsorted(bounds, instruction.end, side="right") - 1] += instruction.operations

    def part(begin: int, stop: int, of: slice) -> Part:
        spent = {
            name: dict(
                zip((state.key for state in STATES[lanes[name].kind]), table[:, of].sum(axis=1).tolist(), strict=True)
            )
            for name, table in states.items()
        }
        return Part(
            begin,
            stop,
            counts.links[:, of].sum(axis=1),
            counts.read[:, of].sum(axis=1),
            counts.written[:, of].sum(axis=1),
            int(operations[of].sum()),
            spent,
        )

    parts = [
        (owner, part(int(bounds[index]), int(bounds[index + 1]), slice(index, index + 1)))
        for index, owner in enumerate(owners)
    ]
    whole = part(start, end, slice(None))
    return Measures(survey, title or survey.trace.path.stem, lanes, whole, parts, bins, counts.heat, counts.peaks())


def _bounds(stages: list[Stage], start: int, end: int) -> tuple[np.ndarray, list[Stage | None]]:
    """Where the parts of a window begin and end, and whose they are (None between stages)."""
    bounds: list[int] = [start]
    owners: list[Stage | None] = []
    for stage in stages:
        for stop, owner in ((stage.start, None), (stage.end, stage)):
            stop = min(max(stop, start), end)
            if stop > bounds[-1]:
                bounds.append(stop)
                owners.append(owner)
    if bounds[-1] < end:
        bounds.append(end)
        owners.append(None)
    return np.array(bounds), owners


class _Counts:
    """The counting pass: `links`, `read` and `written` are (links or ports, parts), `heat` (links, bins)."""

    def __init__(self, survey: Survey, bounds: np.ndarray, bins: np.ndarray):
        topology = survey.topology
        ports = [place.name for place in topology.places if place.kind == "memory"]
        self.bounds, self.bins = bounds, bins
        self.lanes = Collector(survey)
        self.links = np.zeros((len(topology.wires), len(bounds) - 1), np.int64)
        self.heat = np.zeros((len(topology.wires), len(bins) - 1), np.uint32)
        self.read = np.zeros((len(ports), len(bounds) - 1), np.int64)
        self.written = np.zeros_like(self.read)
        self._into = [topology.into(port) for port in ports]
        self._tracks = survey.trace.tracks
        self._peaks = np.zeros(len(self._tracks), np.uint64)

    def add(self, chunk) -> None:
        self.lanes.add(chunk)
        np.maximum.at(self._peaks, chunk.levels["track"], chunk.levels["value"])
        flits = chunk.flits
        cycles = flits["cycle"].astype(np.int64)
        inside = (cycles >= self.bounds[0]) & (cycles < self.bounds[-1])
        flits, cycles = flits[inside], cycles[inside]
        where = np.searchsorted(self.bounds, cycles, side="right") - 1
        links = flits["link"].astype(np.int64)
        _tally(self.links, links, where)
        _tally(self.heat, links, np.searchsorted(self.bins, cycles, side="right") - 1)
        for port, link in enumerate(self._into):
            mine = links == link
            data = mine & (flits["type"] == FlitType.MEM_WR_DATA)
            np.add.at(self.written[port], where[data], 1)
            asked = mine & (flits["type"] == FlitType.MEM_RD_REQ)
            for part, (_, _, flit) in zip(where[asked], flits_of(flits[asked]), strict=True):
                self.read[port, part] += read_words(flit.payload)

    def peaks(self) -> dict[str, int]:
        return {
            track.name: int(peak)
            for track, peak in zip(self._tracks, self._peaks, strict=True)
            if track.kind == "level"
        }


def _tally(table: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> None:
    """Count pairs: table[row, column] += 1 for each."""
    width = table.shape[1]
    counted = np.bincount(rows * width + columns, minlength=table.size)
    table += counted.reshape(table.shape).astype(table.dtype)


def read_words(payload: int) -> int:
    """Words of memory that a MEM_RD_REQ asks for (`docs/microarchitecture/memory-agent.md`, "Read path")."""
    request = decode_request(payload)
    if not request.stream and not request.quant:
        return request.len + 1
    entries = max(request.count, 1) if request.stream else 1
    words = request.entry_words if 1 <= request.entry_words <= ENTRY_WORDS else ENTRY_WORDS
    return entries * (CONVERTED_WORDS if request.quant else words)
