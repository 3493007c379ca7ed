"""Whole-mesh recordings replayed on the cycle model: `mesh.npz` and `mesh_links.npz`.

What binds (golden README): the stimulus of link 0 goes in behind its gates; then memory is equal, and for
every (source, destination) pair the flits are equal in order, header and payload, except a RUN's cycle
count, CU_CTRL counters and the traffic between the vector core and the memory port. Recordings marked
`timing` bind in memory only.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np

from kohakutpu.formats.words import to_ints
from kohakutpu.isa.flit import Flit, FlitType, node, xy
from kohakutpu.isa.signals import CU_CTRL_REPLY, CU_SIGNAL, ControlIndex, SignalCode
from kohakutpu.machine import load
from kohakutpu.model.system import System

from .report import Tally

AGENT, VECTOR, CLUSTER, MEMORY = node(1, 1), node(1, 0), node(2, 1), node(0, 1)
GATE_BUDGET = 200_000
QUIET = 400
# This recording holds a CAPS reply of the published vector core, and its list of errata does not say so.
UNLISTED_ERRATA = {"unknown_flit_types": frozenset({"caps-buffers"})}
# Which of our links each recorded link is, as a function of the system.
RECORDED_LINKS = {
    1: lambda s: s.bench.ports[0].in_link,
    2: lambda s: s.units[CLUSTER].out,
    3: lambda s: s.units[CLUSTER].in_link,
    4: lambda s: s.units[VECTOR].out,
    5: lambda s: s.units[VECTOR].in_link,
    6: lambda s: s.ports[0].out,
    7: lambda s: s.ports[0].in_link,
}


class Replay:
    """A machine with the bench at its agent's place, and what has been seen on its links since reset."""

    def __init__(self, machine, memory: np.ndarray, errata: frozenset[str]):
        self.system = System(machine, agent="bench", errata=errata, on_transfer=self._saw)
        self.system.memory.write(0, memory.astype("<u4").tobytes())
        self.last_move = 0
        self.seen: dict[int, list[Flit]] = defaultdict(list)  # by link index
        self.arrived: list[tuple[int, Flit]] = []  # at the bench, with cycles
        self.signals = 0
        self.received = 0
        self.types: Counter[int] = Counter()
        self._home = self.system.bench.ports[0].in_link.index

    def _saw(self, cycle: int, link, flit: Flit) -> None:
        self.last_move = cycle
        self.seen[link.index].append(flit)
        if link.index == self._home:
            self.arrived.append((cycle, flit))
            self.types[flit.type] += 1
            if flit.type == FlitType.CU_SIGNAL:
                if CU_SIGNAL.get(flit.payload, "code") == SignalCode.DATA_RECEIVED:
                    self.received += 1
                else:
                    self.signals += 1

    def wait(self, condition: Callable[[], bool], budget: int = GATE_BUDGET) -> bool:
        return self.system.engine.run(condition, budget)

    def sent(self) -> bool:
        """Every flit injected so far has left the bench."""
        return self.system.bench.sent

    def quiet(self, cycles: int) -> None:
        """Advance until no link has moved for `cycles` cycles, or nothing can move any more."""
        engine = self.system.engine
        while not engine.idle and engine.now - self.last_move < cycles:
            engine.advance(min(16, cycles))
        engine.advance(cycles)

    def gate(self, kind: int, a: int, b: int, timed_out: bool) -> bool:
        """Pass one recorded gate; False when it does not open although it opened in the recording."""
        if kind == 1:
            self.wait(self.sent)
            self.system.engine.advance(a)
            return True
        if kind == 3 or timed_out:
            self.wait(self.sent)
            self.quiet(a if kind == 3 else 4 * QUIET)
            return True
        if kind == 0:
            return self.wait(lambda: self.signals >= a and self.received >= b)
        if kind == 2:
            return self.wait(lambda: self.types[a] >= b)
        raise ValueError(f"gate kind {kind} is not one of 0..3")


def flits_of(words: np.ndarray) -> list[Flit]:
    return [Flit.from_int(value) for value in to_ints(words)]


def binding(flit: Flit, recorded: Flit) -> Flit:
    """`flit` with the field that does not bind, where there is one, taken from `recorded`."""
    if flit.type != recorded.type:
        return flit
    if flit.type == FlitType.CU_SIGNAL:
        ours, theirs = CU_SIGNAL.decode(flit.payload), CU_SIGNAL.decode(recorded.payload)
        # A RUN completes with its cycle count; IMEM and DESC complete with 0.
        run = flit.src == VECTOR and ours["code"] == theirs["code"] == SignalCode.INST_COMPLETE and ours["arg"] and theirs["arg"]
        free = CU_SIGNAL.fields["arg"].mask if run else 0
    elif flit.type == FlitType.CU_CTRL:
        index = CU_CTRL_REPLY.get(flit.payload, "index")
        free = CU_CTRL_REPLY.fields["value"].mask if index in (ControlIndex.COUNTERS, ControlIndex.DEBUG) else 0
    else:
        return flit
    return flit._replace(payload=flit.payload & ~free | recorded.payload & free)


def by_pair(flits: list[Flit]) -> dict[tuple[int, int, bool], list[Flit]]:
    """Flits in order, by source, destination and whether they are write acknowledgements.

    The vector core's memory traffic is left out. A port's acknowledgements and its read data are two streams:
    which comes first is the latency of the memory behind it, and no order between them is promised (spec: ordering).
    """
    pairs = defaultdict(list)
    for flit in flits:
        if {flit.src, flit.dst} != {VECTOR, MEMORY}:
            pairs[flit.src, flit.dst, flit.type == FlitType.MEM_WR_ACK].append(flit)
    return pairs


def compare_flits(tally: Tally, where: str, ours: list[Flit], recorded: list[Flit]) -> None:
    """Count every recorded flit as compared, and each missing, surplus or different one as a mismatch."""
    mine, theirs = by_pair(ours), by_pair(recorded)
    for pair in sorted(mine.keys() | theirs.keys()):
        have, want = mine.get(pair, []), theirs.get(pair, [])
        tally.compared += len(want)
        label = f"{where}, {xy(pair[0])} to {xy(pair[1])}"
        for position, (flit, expected) in enumerate(zip(have, want)):
            if binding(flit, expected) != expected:
                tally.differ(1, f"{label}, flit {position}: {flit.to_int():072x}, recorded {expected.to_int():072x}")
        tally.differ(abs(len(have) - len(want)), f"{label}: {len(have)} flits, recorded {len(want)}")


def compare_memory(tally: Tally, where: str, replay: Replay, after: np.ndarray) -> None:
    ours = np.frombuffer(replay.system.memory.read(0, after.size * 4), "<u4").reshape(after.shape)
    wrong = np.flatnonzero((ours != after).any(axis=1))
    tally.compared += len(after)
    if len(wrong):
        first = wrong[0]
        have, want = ours[first].tobytes().hex(), after[first].astype("<u4").tobytes().hex()
        tally.differ(len(wrong), f"{where}, memory word {first}: {have}, recorded {want}")


def check_mesh(path: Path) -> list[Tally]:
    """The five whole-mesh runs of `mesh.npz`: memory words and every flit at the agent's port."""
    data = np.load(path)
    prefixes = [name.removesuffix("_flits") for name in data.files if name.endswith("_flits")]
    memory = Tally(path.name, f"{len(prefixes)} whole-mesh runs, memory", "words")
    flits = Tally(path.name, f"{len(prefixes)} whole-mesh runs, agent port", "flits")
    for prefix in prefixes:
        run = {key: data[f"{prefix}_{key}"] for key in ("flits", "dir", "cycle", "mem_before", "mem_after", "waits")}
        replay = Replay(load("mm_mesh"), run["mem_before"], frozenset())
        every = flits_of(run["flits"])
        start = 0
        for number, end in enumerate(run["waits"]):
            # A flit injected in the cycle in which a wait ended came after it.
            phase = (run["cycle"] >= start) & (run["cycle"] < end)
            stimulus = [every[i] for i in np.flatnonzero(phase & (run["dir"] == 0))]
            expected = int(((run["dir"] == 1) & (run["cycle"] <= end)).sum())
            begin = replay.system.engine.now
            for flit in stimulus:
                replay.system.bench.inject(flit)
            replay.wait(lambda: len(replay.arrived) >= expected)
            if stimulus and len(replay.arrived) >= expected > 0:
                published = int(run["cycle"][phase].max() - run["cycle"][phase & (run["dir"] == 0)].min())
                flits.cycles.append((f"{prefix} wait {number}", published, replay.arrived[expected - 1][0] - begin))
            replay.quiet(QUIET)
            start = end
        replay.quiet(QUIET)
        recorded = [every[i] for i in np.flatnonzero(run["dir"] == 1)]
        compare_flits(flits, prefix, [flit for _, flit in replay.arrived], recorded)
        compare_memory(memory, prefix, replay, run["mem_after"])
    return [memory, flits]


def check_mesh_links(path: Path) -> list[Tally]:
    """The runs of `mesh_links.npz`: memory words of all, and every flit on every link of those that bind there."""
    data = np.load(path)
    count = int(data["n_runs"])
    timing = sum(bool(data[f"r{i:02d}_timing"]) for i in range(count))
    memory = Tally(path.name, f"{count} link-level runs, memory", "words")
    flits = Tally(path.name, f"{count - timing} link-level runs, every link ({timing} more bind in memory only)", "flits")
    machine = load("mm_mesh_links")
    for index in range(count):
        run = {key: data[f"r{index:02d}_{key}"] for key in
               ("name", "flits", "link", "mem_before", "mem_after", "gates", "errata", "timing")}  # fmt: skip
        name = str(run["name"])
        errata = frozenset(str(run["errata"]).split()) if run["errata"].ndim == 0 else frozenset(map(str, run["errata"]))
        replay = Replay(machine, run["mem_before"], errata | UNLISTED_ERRATA.get(name, frozenset()))
        every = flits_of(run["flits"])
        stimulus = [every[i] for i in np.flatnonzero(run["link"] == 0)]
        injected = 0
        for position, kind, a, b, _, timed_out in run["gates"].tolist():
            for flit in stimulus[injected:position]:
                replay.system.bench.inject(flit)
            injected = position
            if not replay.gate(kind, a, b, bool(timed_out)):
                flits.differ(1, f"{name}: the gate after {position} flits (kind {kind}, {a}, {b}) never opened")
                break
        for flit in stimulus[injected:]:
            replay.system.bench.inject(flit)
        replay.wait(replay.sent)
        replay.quiet(QUIET)
        compare_memory(memory, name, replay, run["mem_after"])
        if not bool(run["timing"]):
            for number, pick in RECORDED_LINKS.items():
                recorded = [every[i] for i in np.flatnonzero(run["link"] == number)]
                label = f"{name}, {data['link_names'][number]}"
                compare_flits(flits, label, replay.seen[pick(replay.system).index], recorded)
    return [memory, flits]
