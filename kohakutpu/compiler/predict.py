"""How long an artifact takes, without running it: every instruction with its time, links and routers left out.

The host stages and kicks, the dispatcher sends a flit every 5 cycles, each unit does one instruction after another, and
units that share a memory port wait for each other there; it waits for credit. Figures are those of `docs/microarchitecture`. What
it leaves out: contention between flits, and the order of beats inside the lanes. `docs/planning.md` has predicted cycles
beside simulated ones.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from kohakutpu.isa import cluster, vector
from kohakutpu.isa.cluster import Op
from kohakutpu.isa.flit import node, xy
from kohakutpu.isa.signals import Buffer
from kohakutpu.isa.vector import DescField, Envelope, Opcode, Source
from kohakutpu.machine import Machine

from .artifact import Artifact, Kick, Round, Seed
from .rowpredict import Lanes

FLIT_WORDS = 5
ACCESS = 3  # cycles of a register access before its first beat
KICK_WRITES = 16  # cycles of the registers of a kick
POLL = 35  # cycles from one poll to the next
DISPATCH = 6  # from a kick to its first flit
HOP = 3
STORED, CONVERTED = (4, 3), (8, 19)  # cycles an entry takes at a port, and from its first word to its first flit
SWEEP_TAIL = 29  # from a sweep's last issue to its last word in the result queue
SHORTEST = 5
BURST = 9 / 8  # flits of a burst for each of its words
QUEUE = 128
GRANULES = 2  # of a sub-tile that leaves as accumulator floats
MOST_WORDS = 20_000  # of one run that are looked at; loops beyond are scaled


@dataclass
class StageTime:
    """One stage: cycles in all, and how long each of its resources was at work, the busiest of its kind."""

    unit: str
    cycles: float = 0.0
    handing: float = 0.0  # the host: staging, kicks, dispatch
    work: float = 0.0  # sweeps of a cluster, runs of a vector core
    reading: float = 0.0  # a memory port's responses
    writing: float = 0.0  # the words that a port takes
    nodes: int = 0

    @property
    def limiter(self) -> str:
        """'work', 'handing', 'reading', 'writing', or 'latency' where none of them takes half of the time."""
        shares = {name: getattr(self, name) for name in ("work", "handing", "reading", "writing")}
        name = max(shares, key=shares.get)
        return name if shares[name] * 2 >= self.cycles else "latency"


@dataclass(frozen=True)
class Prediction:
    """Cycles from the first staged flit to the last word in memory."""

    stages: tuple[StageTime, ...]

    @property
    def cycles(self) -> int:
        return round(sum(stage.cycles for stage in self.stages))


def predict(artifact: Artifact, machine: Machine) -> Prediction:
    """The time of every stage of an artifact on the machine that it was compiled for."""
    return _Clock(artifact, machine).run()


@dataclass
class _Unit:
    """When a unit is free, and what it holds that later instructions need."""

    node: int
    port: int
    hops: int  # to the port
    free: float = 0.0
    work: float = 0.0
    sweep_end: float = 0.0
    gone: float = 0.0  # the tile that leaves has left
    image: dict[int, int] = field(default_factory=dict)
    dims: dict[int, dict[int, int]] = field(default_factory=dict)  # descriptor -> dimension -> bound
    scalars: dict[int, int] = field(default_factory=dict)


@dataclass
class _Work:
    """Payloads on their way, and nodes at work on them: whoever begins an instruction first has the port first."""

    units: Mapping[int, _Unit]
    step: Callable[[_Unit, float, int, object], None]
    busy: object
    credit: float = math.inf
    queues: dict[int, list[tuple[float, int, float | None]]] = field(default_factory=dict)  # arrival, payload, way back of credit
    _heap: list[tuple[float, int, int]] = field(default_factory=list)  # next start, node, position in its queue
    _waiting: set[int] = field(default_factory=set)  # nodes in the heap
    _returned: list[float] = field(default_factory=list)  # when credit comes back, not taken yet

    def send(self, at: int, arrival: float, payload: int, back: float | None) -> None:
        queue = self.queues.setdefault(at, [])
        queue.append((arrival, payload, back))
        self.credit -= 1
        if at not in self._waiting:
            self._push(at, len(queue) - 1)

    def _push(self, at: int, position: int) -> None:
        heapq.heappush(self._heap, (max(self.queues[at][position][0], self.units[at].free), at, position))
        self._waiting.add(at)

    def credited(self, now: float) -> float:
        """From `now` on, when there is credit for a flit."""
        while self.credit < 1:
            while self._heap and not (self._returned and self._returned[0] <= self._heap[0][0]):
                self._do()
            if not self._returned:
                break
            now = max(now, heapq.heappop(self._returned))
            self.credit += 1
        return now

    def finish(self) -> None:
        while self._heap:
            self._do()

    def _do(self) -> None:
        start, at, position = heapq.heappop(self._heap)
        self._waiting.discard(at)
        _, payload, back = self.queues[at][position]
        self.step(self.units[at], start, payload, self.busy)
        if back is not None:
            heapq.heappush(self._returned, self.units[at].free + back)
        if position + 1 < len(self.queues[at]):
            self._push(at, position + 1)


def _hops(a: int, b: int) -> int:
    """Links between two nodes, those of their endpoints included."""
    (ax, ay), (bx, by) = xy(a), xy(b)
    return abs(ax - bx) + abs(ay - by) + 1


class _Clock:
    def __init__(self, artifact: Artifact, machine: Machine):
        self.artifact = artifact
        self.latency = machine.memory.latency
        self.pace = machine.memory.cycles_per_word
        self.agent = machine.agent
        self.units = {}
        for unit in machine.units:
            port = machine.port_of(unit)
            self.units[unit.node] = _Unit(unit.node, port.node, _hops(unit.node, port.node))
        self.reads: Counter[int] = Counter()  # when each port has answered everything so far
        self.writes: Counter[int] = Counter()
        self.now = 0.0
        self.heard: set[int] = set()  # clusters that other clusters' sums go to in this chain

    def run(self) -> Prediction:
        stages = [StageTime(stage.unit) for stage in self.artifact.stages]
        for number, stage in enumerate(self.artifact.stages):
            if stage.unit == "host":
                words = sum(self.artifact.buffer(name).bytes // 32 for name in stage.move)
                stages[number].cycles = stages[number].handing = words * self.pace + 2 * self.latency
        for chain in self.artifact.chains():
            begin, time = self.now, stages[chain[0].stage]
            busy = (Counter(), Counter())
            self.heard.clear()
            for unit in self.units.values():
                unit.work, unit.free = 0.0, max(unit.free, begin)
            reached, handing = self._hand_out(time.unit, chain, busy)
            nodes = [self.units[at] for at in set(reached) | self.heard]
            ready = max([unit.free + HOP * (unit.hops + 1) for unit in nodes], default=self.now)
            self.now = max(self.now, ready) + POLL / 2 + 4 * len(reached)
            if chain[-1].ends_stage and self.artifact.stages[chain[-1].stage].words:
                landed = max(self.writes.values(), default=0) + self.latency + 2 * HOP
                self.now = max(self.now, landed) + POLL / 2
            time.cycles += self.now - begin
            time.handing += handing
            time.work += max(unit.work for unit in nodes)
            time.reading += max(busy[0].values(), default=0)
            time.writing += max(busy[1].values(), default=0)
            time.nodes = max(time.nodes, len(reached))
        return Prediction(tuple(stages))

    def _hand_out(self, kind: str, chain: Sequence[Round], busy) -> tuple[Collection[int], float]:
        """Send every payload of a chain, and let the nodes do what they are sent; returns the nodes, and the cycles that the
        host and the dispatcher take for it, waits for credit left out."""
        work = _Work(self.units, self._cluster if kind == "cluster" else self._vector, busy)
        now = self.now + 4 * len(chain[-1].awaits)
        sent = now
        waited = 0.0
        for round_ in chain:
            if round_ is not chain[0]:
                now = max(now, sent) + POLL / 2
            words = FLIT_WORDS * len(round_.flits)
            now += words + ACCESS * math.ceil(words / 256)
            for step in round_.steps:
                if isinstance(step, Seed):
                    work.credit = step.credits
                if not isinstance(step, Kick):
                    continue
                now += 4
                while now < sent:
                    now += POLL
                now += KICK_WRITES
                sent = now
                hops = _hops(step.node, self.agent.node)
                for position, flit in enumerate(round_.flits[step.base : step.base + step.count], 1):
                    begin = work.credited(sent)
                    waited += begin - sent
                    # The last flit of a kick returns no credit.
                    work.send(step.node, begin + DISPATCH + HOP * hops, flit.payload, None if position == step.count else HOP * hops)
                    sent = begin + FLIT_WORDS
        work.finish()
        spent = max(now, sent) - self.now
        self.now = max(now, sent)
        return work.queues.keys(), spent - waited

    def _read(self, unit: _Unit, asked: float, cycles: float, busy) -> float:
        """When a port has sent what takes it `cycles`, asked for in cycle `asked`."""
        begin = max(asked + HOP * unit.hops, self.reads[unit.port])
        self.reads[unit.port] = begin + cycles
        busy[0][unit.port] += cycles
        return begin + cycles + self.latency + HOP * unit.hops

    def _write(self, unit: _Unit, first: float, words: int, busy) -> float:
        begin = max(first, self.writes[unit.port])
        self.writes[unit.port] = begin + words * BURST
        busy[1][unit.port] += words * BURST
        return begin + words * BURST

    # ---- clusters ----

    def _cluster(self, unit: _Unit, start: float, payload: int, busy) -> None:
        i = cluster.decode(payload)
        if i.op == Op.FILL:
            entry, extra = STORED if i.preq else CONVERTED
            entry = max(entry, (4 if i.preq else 8) * self.pace)
            unit.free = self._read(unit, start + 2, i.n * entry, busy) + extra
        elif i.op == Op.GEMM:
            subtiles = i.gm * i.gn
            begin = max(start + 1, unit.sweep_end, unit.gone if i.emit else 0)
            cycles = max(subtiles, SHORTEST) * i.nk
            unit.work += cycles
            unit.sweep_end, unit.free = begin + cycles, begin + 1
            if i.emit:
                first = unit.sweep_end - subtiles + SWEEP_TAIL
                sent = first + subtiles * BURST if i.dnode else self._write(unit, first, subtiles, busy)
                unit.gone = max(sent, unit.sweep_end + SWEEP_TAIL)
                unit.sweep_end = max(unit.sweep_end, unit.gone - QUEUE * BURST - SWEEP_TAIL)
        elif i.fuse:
            unit.free = max(start + 1, unit.gone)
        else:
            first = max(start + 1, unit.sweep_end + 20, unit.gone) + 9
            words = max(i.n, 1)
            if i.dnode and i.dbuf == Buffer.ACCUMULATOR:
                words *= GRANULES
                # The receiver's DATA_RECEIVED is awaited too, from as far away as the sums come.
                target = self.units[node(i.dst_x, i.dst_y)]
                first = max(first, target.sweep_end + 22)
                target.free = max(target.free, first + words * BURST + HOP * _hops(unit.node, target.node))
                self.heard.add(target.node)
            unit.gone = unit.free = first + words * BURST if i.dnode else self._write(unit, first, words, busy)

    # ---- vector cores ----

    def _vector(self, unit: _Unit, start: float, payload: int, busy) -> None:
        i = vector.decode(payload)
        unit.free = start + 2
        if i.op == Envelope.IMEM:
            unit.image[i.addr] = i.word
        elif i.op == Envelope.DESC and i.field >= DescField.DIM0:
            unit.dims.setdefault(i.ad, {})[i.field - DescField.DIM0] = max(i.bound, 1)
        elif i.op == Envelope.RUN:
            unit.free = self._program(unit, start + 2, i.pc, busy)
            unit.work += unit.free - start

    def _words(self, unit: _Unit, ad: int) -> int:
        return math.prod(unit.dims.get(ad, {}).values())

    def _program(self, unit: _Unit, start: float, pc: int, busy) -> float:
        """When a run ends: words in order, each behind the one before it and what it reads."""
        now, filled, drained = start, start, start
        lanes = Lanes(start)
        loop: list[int] | None = None  # [first, end, turns left]
        for _ in range(MOST_WORDS):
            word = unit.image.get(pc)
            if word is None:
                break
            i = vector.decode_word(word)
            chunks = math.ceil(unit.scalars.get(-1, vector.VL_MAX) / 16)
            pc += 1
            if i.op == Opcode.VHALT:
                return max(now, drained, lanes.written, lanes.issued) + 2
            if i.op == Opcode.VSETI:
                if i.sa != Source.K:
                    unit.scalars[i.vd] = vector.IMMEDIATE.get(unit.image[pc], "value")
                    now = max(now, lanes.scalar(i.vd))
                pc += 1
                now += 2
            elif i.op == Opcode.VSETVL:
                unit.scalars[-1] = unit.scalars.get(i.va, vector.VL_MAX) or vector.VL_MAX
                now = max(now, lanes.scalar(i.va)) + 1
            elif i.op == Opcode.VSETMODE:
                now += 1
            elif i.op == Opcode.VLOOP:
                loop = [pc, pc + i.vb, max(unit.scalars.get(i.va, 1), 1)]
                now += 2
            elif i.op == Opcode.VFILL:
                words = self._words(unit, i.ad)
                now = max(now, lanes.issued)
                filled = self._read(unit, max(now, filled - self.latency), words * self.pace, busy) + 4
                now += 1
            elif i.op == Opcode.VBAR:
                now = max(now + 1, filled)
            elif i.op == Opcode.VDRAIN:
                first = max(now, drained, lanes.issued, lanes.stored) + 4
                now = first + self._words(unit, i.ad)
                drained = self._write(unit, first, self._words(unit, i.ad), busy)
            else:
                now = lanes.put(i, now, chunks)
            if loop is not None and pc == loop[1]:
                loop[2] -= 1
                pc, loop = (loop[0], loop) if loop[2] > 0 else (pc, None)
        return now
