"""Programs on a model with a bench in the agent's place: when each flit is sent, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from kohakutpu.fuzz.program import Program, Statement
from kohakutpu.isa.flit import Flit, FlitType
from kohakutpu.isa.signals import CU_SIGNAL, SignalCode
from kohakutpu.model.cluster import Cluster
from kohakutpu.model.hang import Hang, report
from kohakutpu.model.system import System
from kohakutpu.noc.engine import NEVER
from kohakutpu.wording import counted

START = 64  # the cycle of the first flit
QUIET = 64  # cycles after the last event of a program in which pipelines run empty
BUDGET = 50_000  # cycles of one phase of a program
COMPLETIONS = (SignalCode.INST_COMPLETE, SignalCode.BATCH_COMPLETE, SignalCode.FAULT)

REGION = 0x20000  # bytes of memory that programs read, and nobody writes in a program that is checked
OWN = 0x4000  # bytes of memory for each stream's results
IMAGE = REGION + 12 * OWN  # bytes of memory that a run uses


def image(seed: int) -> bytes:
    """What memory holds before a run, `IMAGE` bytes: operands of every kind, tame ones first.

    FP16 near 1; operand words with scales near 1; any FP16; anything. Results begin at `REGION`.
    """
    random = np.random.default_rng(seed)
    quarter = REGION // 4
    tame = random.normal(0, 1, quarter // 2).astype("<f2").tobytes()
    packed = random.integers(0, 256, (quarter // 32, 32), dtype=np.uint8)
    packed[:, :4] = random.integers(0x90, 0xB0, (quarter // 32, 4), dtype=np.uint8)
    wide = (random.normal(0, 1, quarter // 2) * 2.0 ** random.integers(-20, 14, quarter // 2)).astype("<f2").tobytes()
    return tame + packed.tobytes() + wide + random.bytes(quarter + IMAGE - REGION)


class Endless(Hang):
    """A budget passed, and things still move: a kernel without an end, say."""


class Player:
    """Plays programs on `system`, a machine with a bench in the agent's place.

    `schedule` lists (cycle, flit) of everything sent: played open-loop it gives the same run. `starts` and `ends` are
    the first cycle of each program and the one after its last.
    """

    def __init__(self, system: System):
        self.system = system
        self.credit = {node: unit.inst.depth for node, unit in system.units.items()}
        self.schedule: list[tuple[int, Flit]] = []
        self.starts: list[int] = []
        self.ends: list[int] = []
        self._seen = 0

    def play(self, program: Program) -> None:
        """Run `program` until all is quiet. Raises `Hang` when everything stops before, `Endless` when nothing does."""
        engine = self.system.engine
        if engine.now < START:
            engine.advance(START - engine.now)
        self.starts.append(engine.now)
        try:
            for streams in program.phases():
                self._phase(list(streams.values()))
        finally:
            self.ends.append(engine.now)

    def _phase(self, streams: Sequence[list[Statement]]) -> None:
        engine, bench = self.system.engine, self.system.bench
        end = engine.now + BUDGET
        # of each stream: statements, the next one, the next flit of it, from when on it may go
        state = [[stream, 0, 0, engine.now + stream[0].after] for stream in streams]
        while state:
            self._absorb()
            sent = False
            for place in state:
                sent |= self._send(place)
            state = [place for place in state if place[1] < len(place[0])]
            if not state:
                break
            if sent:
                continue
            later = min((place[3] for place in state if place[3] > engine.now), default=None)
            budget = (end if later is None else min(end, later)) - engine.now
            seen = len(bench.received)
            engine.run(lambda: len(bench.received) != seen or (later is None and engine.idle), budget)
            if engine.now >= end:
                raise Endless(f"instructions still wait for room after {BUDGET} cycles\n{report(self.system)}")
            if later is None and len(bench.received) == seen:
                raise Hang(f"instructions wait for room that does not come\n{report(self.system)}")
        self._settle(end)

    def _send(self, place: list) -> bool:
        """Send what can be sent now of one statement; True when anything was."""
        stream, index, position, ready = place
        now = self.system.engine.now
        if index == len(stream) or ready > now:
            return False
        statement, first = stream[index], position
        while position < len(statement.flits):
            flit = statement.flits[position]
            if flit.type == FlitType.CU_INST and flit.dst in self.credit:
                depth = self.system.units[flit.dst].inst.depth
                if self.credit[flit.dst] < (1 if not statement.press else depth if not position else -depth):
                    break
                self.credit[flit.dst] -= 1
            self.schedule.append((now, flit))
            self.system.bench.inject(flit)
            position += 1
        place[2] = position
        if position == len(statement.flits):
            place[1:] = [index + 1, 0, now + (stream[index + 1].after if index + 1 < len(stream) else 0)]
            return True
        return position > first

    def _absorb(self) -> None:
        """Give back the credit of completions that have arrived."""
        received = self.system.bench.received
        for _, flit in received[self._seen :]:
            if flit.type == FlitType.CU_SIGNAL and flit.src in self.credit:
                if CU_SIGNAL.get(flit.payload, "code") in COMPLETIONS:
                    self.credit[flit.src] += 1
        self._seen = len(received)

    def _settle(self, end: int) -> None:
        """Until nothing can change any more, sweeps that only the clock moves included."""
        system, engine = self.system, self.system.engine
        if not engine.run(lambda: engine.idle, end - engine.now):
            raise Endless(f"the machine is not quiet after {BUDGET} cycles\n{report(system)}")
        self._absorb()
        for node, unit in system.units.items():
            if missing := unit.inst.depth - self.credit[node]:
                raise Hang(f"{unit.name}: {counted(missing, 'instruction')} not completed\n{report(system)}")
        until = engine.now
        for unit in system.units.values():
            # one whose results nobody has asked for waits for good
            if isinstance(unit, Cluster) and unit.sweep is not None and unit.sweep.settled < NEVER:
                until = max(until, unit.sweep.settled)
        engine.advance(until + QUIET - engine.now)


Hook = Callable[[Program], None]


def play(
    system: System, programs: Sequence[Program], *, before: Hook | None = None, after: Hook | None = None
) -> Player:
    """Play `programs` one after the other; `before` and `after` are called around each, while all is quiet."""
    player = Player(system)
    for program in programs:
        if before is not None:
            before(program)
        player.play(program)
        if after is not None:
            after(program)
    return player
