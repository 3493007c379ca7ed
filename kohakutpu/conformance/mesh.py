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

from kohakutpu.formats import words
from kohakutpu.isa.flit import Flit, FlitType, node, xy
from kohakutpu.isa.signals import CU_CTRL_REPLY, CU_SIGNAL, ControlIndex, SignalCode
from kohakutpu.machine import load
from kohakutpu.model.system import System
from kohakutpu.wording import counted

from .arrays import Arrays, open_arrays, replaying
from .report import Tally

AGENT, VECTOR, CLUSTER, MEMORY = node(1, 1), node(1, 0), node(2, 1), node(0, 1)
GATE_BUDGET = 200_000
QUIET = 400
MEMORY_WORDS = 2048
# Arrays of a run that are not compared, and why; most runs have some of them.
SOURCES = "what the stimulus and the memory image were made from; those hold it, and they are replayed"
NOT_COMPARED = {
    **dict.fromkeys(("A_q", "B_q", "A_fp16", "Bt_fp16", "bias_fp16", "imem"), SOURCES),
    **dict.fromkeys(("shape", "params", "addr", "addr_A_B_C", "addr_A_B_C_OUT_BIAS", "aoff", "boff", "split"), SOURCES),
    "cycle0": "when the published design's clock was read; cycles do not bind",
}
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
            self.note(cycle, flit)

    def note(self, cycle: int, flit: Flit) -> None:
        """A flit has arrived at the bench."""
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


class Run:
    """What both files record of one run: memory words uint32[2048,8] before and after, flits, and where they were.

    `where` is the array that says which link a flit was on, with values below `links` and 0 for the stimulus.
    Raises `GoldenError` for arrays that are not so.
    """

    def __init__(self, data: Arrays, where: str, links: int):
        data.leave(NOT_COMPARED, optional=True)
        self.before = data.array("mem_before", "uint32", MEMORY_WORDS, words.WORD_BYTES // 4)
        self.after = data.array("mem_after", "uint32", MEMORY_WORDS, words.WORD_BYTES // 4)
        rows = data.array("flits", "uint32", None, 9)
        self.link = data.array(where, "uint8", len(rows))
        self.cycle = data.array("cycle", "uint32", len(rows)).astype(np.int64)
        if (self.link >= links).any():
            raise data.error(where, f"holds {self.link.max()}, expected 0..{links - 1}")
        if (np.diff(self.cycle) < 0).any():
            raise data.error("cycle", "goes backwards")
        self.every = flits_of(rows)
        self.stimulus = self.on(0)
        if not self.stimulus:
            raise data.error(where, "says that nothing was injected")

    def on(self, link: int) -> list[Flit]:
        """The recorded flits of one link, in order."""
        return [self.every[i] for i in np.flatnonzero(self.link == link)]


class PortRun(Run):
    """A run of `mesh.npz`: the agent's port, and when each wait of the bench ended."""

    def __init__(self, data: Arrays):
        super().__init__(data, "dir", 2)
        self.waits = data.array("waits", "int64", None)
        if len(self.waits) == 0 or self.waits[0] < 1 or (np.diff(self.waits) < 1).any():
            raise data.error("waits", f"is {self.waits.tolist()}, expected cycles that grow")
        if self.waits[-1] <= self.cycle[-1]:
            raise data.error("waits", f"ends in cycle {self.waits[-1]}, but the last flit moved in {self.cycle[-1]}")
        if not self.on(1):
            raise data.error("dir", "says that nothing came back, so nothing would be compared")


class LinkRun(Run):
    """A run of `mesh_links.npz`: every link, and the gates of the stimulus."""

    def __init__(self, data: Arrays):
        super().__init__(data, "link", 1 + len(RECORDED_LINKS))
        self.name, self.errata = data.text("name"), data.errata()
        self.timing = bool(data.array("timing", "bool"))
        if not self.timing and not (self.link > 0).any():
            raise data.error("link", "says that no unit answered, so nothing would be compared")
        gates = data.array("gates", "int64", None, 6)
        self.gates = gates.tolist()
        injected = [0, *gates[:, 0], len(self.stimulus)]
        if (np.diff(injected) < 0).any() or injected[-2] != len(self.stimulus):
            raise data.error("gates", f"are after {injected[1:-1]} flits; expected to grow to {len(self.stimulus)}")
        kinds, counts, flags = gates[:, 1], gates[:, 2:4], gates[:, 5]
        if (gates < 0).any() or (kinds > 3).any() or (counts > GATE_BUDGET).any() or (flags > 1).any():
            raise data.error("gates", f"hold a kind, count or flag out of range: {self.gates}")


def flits_of(rows: np.ndarray) -> list[Flit]:
    return [Flit.from_int(value) for value in words.to_ints(rows)]


def binding(flit: Flit, recorded: Flit) -> Flit:
    """`flit` with the field that does not bind, where there is one, taken from `recorded`."""
    if flit.type != recorded.type:
        return flit
    if flit.type == FlitType.CU_SIGNAL:
        ours, theirs = CU_SIGNAL.decode(flit.payload), CU_SIGNAL.decode(recorded.payload)
        # A RUN completes with its cycle count; IMEM and DESC complete with 0.
        run = (
            flit.src == VECTOR
            and ours["code"] == theirs["code"] == SignalCode.INST_COMPLETE
            and ours["arg"]
            and theirs["arg"]
        )
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
    ours = np.frombuffer(bytes(replay.system.memory.read(0, after.size * 4)), "<u4").reshape(after.shape)
    wrong = np.flatnonzero((ours != after).any(axis=1))
    tally.compared += len(after)
    if len(wrong):
        first = wrong[0]
        have, want = ours[first].tobytes().hex(), after[first].astype("<u4").tobytes().hex()
        tally.differ(len(wrong), f"{where}, memory word {first}: {have}, recorded {want}")


def port_runs(path: Path) -> dict[str, PortRun]:
    """The runs of `mesh.npz` by name."""
    data = open_arrays(path)
    prefixes = dict.fromkeys(name.removesuffix("_mem_after") for name in data.names() if name.endswith("_mem_after"))
    runs = {prefix: PortRun(data.under(f"{prefix}_")) for prefix in prefixes}
    data.close()
    return runs


def link_runs(path: Path) -> tuple[list[str], list[LinkRun]]:
    """(names of the links, runs) of `mesh_links.npz`."""
    data = open_arrays(path)
    names = data.array("link_names", "<U11", 1 + len(RECORDED_LINKS)).tolist()
    runs = [LinkRun(data.under(f"r{i:02d}_")) for i in range(data.integer("n_runs", 1))]
    data.close()
    return names, runs


def check_mesh(path: Path) -> list[Tally]:
    """The whole-mesh runs of `mesh.npz`: memory words and every flit at the agent's port."""
    runs = port_runs(path)
    memory = Tally(path.name, f"{counted(len(runs), 'whole-mesh run')}, memory", "words")
    flits = Tally(path.name, f"{counted(len(runs), 'whole-mesh run')}, agent port", "flits")
    for prefix, run in runs.items():
        with replaying(path, prefix):
            replay_port(prefix, run, memory, flits)
    return [memory, flits]


def replay_port(prefix: str, run: PortRun, memory: Tally, flits: Tally) -> None:
    """Replay one run of `mesh.npz` wait by wait, and compare it."""
    replay = Replay(load("mm_mesh"), run.before, frozenset())
    replay_waits(prefix, run, replay, flits)
    compare_flits(flits, prefix, [flit for _, flit in replay.arrived], run.on(1))
    compare_memory(memory, prefix, replay, run.after)


def replay_waits(prefix: str, run: PortRun, replay: Replay, flits: Tally) -> None:
    """Inject a run's stimulus, each part behind its wait, until nothing moves any more."""
    start = 0
    for number, end in enumerate(run.waits):
        # A flit injected in the cycle in which a wait ended came after it.
        phase = (run.cycle >= start) & (run.cycle < end)
        stimulus = [run.every[i] for i in np.flatnonzero(phase & (run.link == 0))]
        expected = int(((run.link == 1) & (run.cycle <= end)).sum())
        begin = replay.system.engine.now
        for flit in stimulus:
            replay.system.bench.inject(flit)
        replay.wait(lambda: len(replay.arrived) >= expected)
        if stimulus and len(replay.arrived) >= expected > 0:
            published = int(run.cycle[phase].max() - run.cycle[phase & (run.link == 0)].min())
            flits.cycles.append((f"{prefix} wait {number}", published, replay.arrived[expected - 1][0] - begin))
        replay.quiet(QUIET)
        start = end
    replay.quiet(QUIET)


def check_mesh_links(path: Path) -> list[Tally]:
    """The runs of `mesh_links.npz`: memory words of all, and every flit on every link of those that bind there."""
    names, runs = link_runs(path)
    timing = sum(run.timing for run in runs)
    memory = Tally(path.name, f"{counted(len(runs), 'link-level run')}, memory", "words")
    bound = f"{counted(len(runs) - timing, 'link-level run')}, every link ({timing} more bind in memory only)"
    flits = Tally(path.name, bound, "flits")
    machine = load("mm_mesh_links")
    for run in runs:
        with replaying(path, run.name):
            replay = Replay(machine, run.before, run.errata | UNLISTED_ERRATA.get(run.name, frozenset()))
            replay_gates(run, replay, flits)
            compare_memory(memory, run.name, replay, run.after)
            if run.timing:
                continue
            for number, pick in RECORDED_LINKS.items():
                seen = replay.seen[pick(replay.system).index]
                compare_flits(flits, f"{run.name}, {names[number]}", seen, run.on(number))
    return [memory, flits]


def replay_gates(run: LinkRun, replay: Replay, flits: Tally) -> None:
    """Inject a run's stimulus, each part behind its gate, until nothing moves any more."""
    injected = 0
    for position, kind, a, b, _, timed_out in run.gates:
        for flit in run.stimulus[injected:position]:
            replay.system.bench.inject(flit)
        injected = position
        if not replay.gate(kind, a, b, bool(timed_out)):
            flits.differ(1, f"{run.name}: the gate after {position} flits (kind {kind}, {a}, {b}) never opened")
            break
    for flit in run.stimulus[injected:]:
        replay.system.bench.inject(flit)
    replay.wait(replay.sent)
    replay.quiet(QUIET)
