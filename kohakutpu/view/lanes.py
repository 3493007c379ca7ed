"""What each unit, port and the agent did in every cycle: one state a cycle, the first whose condition holds.

The conditions are those of `docs/viewing.md`, on the tracks of `docs/trace.md`. The lane `run` is the whole machine's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kohakutpu.noc.trace import Chunk
from kohakutpu.noc.trace_tracks import Decode

from .survey import Survey


@dataclass(frozen=True)
class State:
    """A state of a lane: its key (a colour on the page) and what it is called. Every lane ends with idle."""

    key: str
    label: str


IDLE = State("idle", "idle")
STATES = {
    "cluster": (
        State("computing", "computing"),
        State("operands", "waiting for operands"),
        State("link", "waiting for link"),
        IDLE,
    ),
    "vector": (
        State("computing", "computing"),
        State("operands", "waiting for operands"),
        State("link", "waiting for link"),
        IDLE,
    ),
    "memory": (State("both", "reading and writing"), State("reading", "reading"), State("writing", "writing"), IDLE),
    "agent": (
        State("dispatching", "dispatching"),
        State("credit", "waiting for credit"),
        State("units", "units at work"),
        IDLE,
    ),
    "run": (
        State("array", "arrays compute"),
        State("vector", "vector cores compute"),
        State("operands", "operands on their way"),
        State("link", "results on their way"),
        State("dispatching", "dispatch"),
        State("transit", "instructions in transit"),
        State("idle", "host"),
    ),
}
COMPUTING_VECTOR = [Decode.WORD, Decode.FETCH, Decode.PIPELINE]
# The tracks that decide, for each kind; the order is that of the arguments of the rules below.
TRACKS = {
    "cluster": ("array", "fill", "receive", "drain", "results"),
    "vector": ("decode", "receive", "drain"),
    "memory": ("dram.read", "dram.write"),
    "agent": ("run", "credit"),
}


def _cluster(array, fill, receive, drain, results):
    return [array != 0, (fill != 0) | (receive != 0), (drain != 0) | (results != 0)]


def _vector(decode, receive, drain):
    computing = np.isin(decode, COMPUTING_VECTOR)
    return [computing, (decode == Decode.FILL) | (receive != 0), (decode == Decode.DRAIN) | (drain != 0)]


def _memory(read, write):
    return [(read != 0) & (write != 0), read != 0, write != 0]


def _agent(run, credit, outstanding):
    return [(run != 0) & (credit != 0), run != 0, outstanding != 0]


def _run(arrays, vectors, agent):
    """From lists of state numbers, of the clusters, of the vector cores, and of the agent: what most busy units do.

    Of equal numbers the first of computing (arrays, vector cores), waiting for operands, waiting for link counts.
    """
    units = [*arrays, *vectors]

    def number(lanes, state):
        return sum((lane == state for lane in lanes), np.zeros(len(agent), np.int64))

    counts = np.stack([number(arrays, 0), number(vectors, 0), number(units, 1), number(units, 2)])
    most = np.where(counts.any(axis=0), counts.argmax(axis=0), -1)
    return [*(most == kind for kind in range(len(counts))), agent <= 1, agent == 2]


RULES = {"cluster": _cluster, "vector": _vector, "memory": _memory, "agent": _agent}


class Lane:
    """The states of `name` over a whole trace: `starts[i]` is the cycle from which it is in `states[i]` (an index)."""

    def __init__(self, name: str, kind: str, starts: np.ndarray, states: np.ndarray, end: int):
        self.name = name
        self.kind = kind
        self.starts = starts
        self.states = states
        durations = np.diff(np.append(starts, end))
        self._before = np.stack(
            [
                np.concatenate([[0], np.cumsum(np.where(states == state, durations, 0))[:-1]])
                for state in range(len(STATES[kind]))
            ]
        )

    def until(self, cycles: np.ndarray) -> np.ndarray:
        """Cycles spent in each state before each of `cycles`: int64 of shape (states, len(cycles))."""
        at = np.searchsorted(self.starts, cycles, side="right") - 1
        inside = self.states[at] == np.arange(len(self._before))[:, None]
        return self._before[:, at] + (cycles - self.starts[at]) * inside

    def between(self, bounds: np.ndarray) -> np.ndarray:
        """Cycles in each state between each two neighbours of `bounds`: int64 of shape (states, len(bounds) - 1)."""
        return np.diff(self.until(bounds), axis=1)


class Collector:
    """Gathers the changes of the tracks that lanes are made of, chunk by chunk."""

    def __init__(self, survey: Survey):
        self.survey = survey
        self.lanes = [(place.name, place.kind) for place in survey.topology.places if place.kind != "agent"]
        self.lanes.append(("agent", "agent"))
        self._wanted = {
            survey.track[f"{name}.{track}"]: [(np.zeros(1, np.int64), np.zeros(1, np.uint64))]
            for name, kind in self.lanes
            for track in TRACKS[kind]
            if f"{name}.{track}" in survey.track
        }

    def add(self, chunk: Chunk) -> None:
        levels = chunk.levels
        order = np.argsort(levels["track"], kind="stable")
        levels = levels[order]
        tracks = levels["track"]
        for track, parts in self._wanted.items():
            low, high = np.searchsorted(tracks, [track, track + 1])
            if high > low:
                parts.append((levels["cycle"][low:high].astype(np.int64), levels["value"][low:high].copy()))

    def finish(self) -> dict[str, Lane]:
        """The lanes by name."""
        end = self.survey.trace.cycles
        busy = [(cycle, value) for start, stop, _ in self.survey.rounds for cycle, value in ((start, 1), (stop, 0))]
        outstanding = (
            np.array([cycle for cycle, _ in busy], np.int64),
            np.array([value for _, value in busy], np.uint64),
        )
        lanes = {}
        for name, kind in self.lanes:
            tracks = [self._changes(f"{name}.{track}") for track in TRACKS[kind]]
            if kind == "agent":
                tracks.append(tuple(np.concatenate([[0], part]) for part in outstanding))
            lanes[name] = _lane(name, kind, tracks, end)
        lanes["run"] = _whole(lanes, end)
        return lanes

    def _changes(self, track: str) -> tuple[np.ndarray, np.ndarray]:
        parts = self._wanted.get(self.survey.track.get(track, -1), [(np.zeros(1, np.int64), np.zeros(1, np.uint64))])
        return np.concatenate([cycles for cycles, _ in parts]), np.concatenate([values for _, values in parts])


def _lane(name: str, kind: str, tracks: list[tuple[np.ndarray, np.ndarray]], end: int) -> Lane:
    cycles = np.unique(np.concatenate([changes for changes, _ in tracks]))
    cycles = cycles[cycles < max(end, 1)]
    return _decide(name, kind, cycles, RULES[kind](*(_at(cycles, *track) for track in tracks)), end)


def _whole(lanes: dict[str, Lane], end: int) -> Lane:
    cycles = np.unique(np.concatenate([lane.starts for lane in lanes.values()]))
    states = {name: _at(cycles, lane.starts, lane.states) for name, lane in lanes.items()}
    of = {kind: [states[name] for name, lane in lanes.items() if lane.kind == kind] for kind in STATES}
    return _decide("run", "run", cycles, _run(of["cluster"], of["vector"], of["agent"][0]), end)


def _at(cycles: np.ndarray, changes: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The values that hold in `cycles`, none of which is before the first change."""
    return values[np.searchsorted(changes, cycles, side="right") - 1]


def _decide(name: str, kind: str, cycles: np.ndarray, conditions: list[np.ndarray], end: int) -> Lane:
    """The first condition that holds names the state; the last state is that of none."""
    states = np.select(conditions, range(len(conditions)), default=len(conditions)).astype(np.uint8)
    changed = np.concatenate([[True], states[1:] != states[:-1]])
    return Lane(name, kind, cycles[changed], states[changed], end)
