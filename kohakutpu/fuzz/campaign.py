"""Many programs: played in batches on one machine, judged, compared with the gates, the first failure made small."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from kohakutpu.fuzz.coverage import Coverage
from kohakutpu.fuzz.generate import Generator
from kohakutpu.fuzz.judge import Judge
from kohakutpu.fuzz.play import IMAGE, Endless, Player, image
from kohakutpu.fuzz.program import Case
from kohakutpu.fuzz.shrink import Finding, Shrinker, up_to
from kohakutpu.fuzz.watch import Watch
from kohakutpu.isa.flit import Flit
from kohakutpu.machine import Machine, MachineError
from kohakutpu.model.hang import Hang
from kohakutpu.model.system import System
from kohakutpu.noc.trace import Orderer, Trace
from kohakutpu.wording import counted

BATCH = 50  # programs that one machine plays
SILENCE = 5.0  # s between two words about a case that is being made small


@dataclass
class Played:
    """One batch on the model: `schedule` is what was sent when, `starts` the first cycle of each program."""

    schedule: list[tuple[int, Flit]]
    starts: list[int]
    cycles: int
    memory: bytes
    judged: int
    unjudged: Counter[str]
    finding: Finding | None


# Plays what the model has played, on something else, and compares: (case, what the model did, its trace) -> finding
Compare = Callable[[Case, Played, Path], Finding | None]


def check_machine(machine: Machine) -> None:
    """Refuse, by name, a machine that programs cannot be made for."""
    machine.require_mesh()
    if machine.memory.bytes < IMAGE:
        raise MachineError(f"{machine.name}: {machine.memory.bytes:#x} bytes of memory; programs use {IMAGE:#x}")
    if not machine.units:
        raise MachineError(f"{machine.name} has neither clusters nor vector cores")


def play_case(case: Case, machine: Machine, *, faults: Iterable[str] = (), coverage: Coverage | None = None,
              trace: Path | None = None, skip: bool = True) -> Played:  # fmt: skip
    """Play `case` on the model of `machine` and judge it. `trace` is a file to write, `coverage` is fed, `skip` as in
    `System`."""
    system = System(machine, agent="bench", skip=skip, faults=faults, latency_seed=case.latency)
    system.memory.write(0, image(case.memory))
    player, judge = Player(system), Judge(system)
    links = [link.name for link in system.engine.links]
    watch = None if coverage is None else Watch(coverage, links)
    finding = None
    with ExitStack() as stack:
        if trace is not None:
            stack.enter_context(system.record(trace))
        elif watch is not None:
            stack.enter_context(system.observed(Orderer(watch.records)))
        for program in case.programs:
            judge.before(program)
            try:
                player.play(program)
            except Hang as hang:
                finding = Finding(
                    "endless" if isinstance(hang, Endless) else "hang",
                    f"program {program.number}: {hang}",
                    program.number,
                )
                break
            judge.after(program)
            if judge.difference:
                finding = Finding("answer", judge.difference, program.number)
                break
    if watch is not None:
        coverage.programs += len(player.starts)
        watch.sent(flit for _, flit in player.schedule)
        if trace is not None:
            watch.records(Trace(trace))
    memory = system.memory.read(0, IMAGE)
    return Played(player.schedule, player.starts, system.engine.now, memory, judge.judged, judge.unjudged, finding)


@dataclass
class Campaign:
    """Programs of one machine and seed, up to the first finding.

    `compare` plays on the gates what the model has played; without it models answer to the oracle alone. `faults` are
    planted in the models. `say` is told of progress. A failing case is played `tries` times at most to make it small.
    """

    machine: Machine
    seed: int
    faults: Iterable[str] = ()
    compare: Compare | None = None
    say: Callable[[str], None] = lambda text: None
    tries: int = 1500
    coverage: Coverage | None = None
    programs: int = 0
    judged: int = 0
    cycles: int = 0
    flits: int = 0
    unjudged: Counter[str] = field(default_factory=Counter)
    finding: Finding | None = None
    smallest: Case | None = None

    def run(self, count: int, start: int = 0) -> None:
        """Play programs `start` to `start` + `count` - 1. With `start` a multiple of `BATCH` they find their machine as
        in a run from 0 on."""
        generator = Generator(self.machine, self.seed)
        for first in range(start, start + count, BATCH):
            numbers = range(first, min(first + BATCH, start + count))
            latency = self.seed + first if first // BATCH % 2 else None  # random in every other batch
            case = Case(
                self.machine.name, self.seed + first, tuple(generator.program(number) for number in numbers), latency
            )
            self.finding = self.play(case)
            self.say(f"{counted(self.programs, 'program')}, {counted(self.cycles, 'cycle', form=',')}")
            if self.finding is not None:
                self.smallest = up_to(case, self.finding.program)  # first: who stops it when this is said has that much
                self.say(
                    f"{self.finding.text}\nmaking it small, in at most {counted(self.tries, 'try', plural='tries')}"
                )
                self._shrink()
                return

    def _shrink(self) -> None:
        """Make `smallest` smaller; it is at any time the smallest case that is known to fail."""
        spoken = time.monotonic()

        def fails(case: Case) -> Finding | None:
            nonlocal spoken
            found = self._fails(case)
            if found is not None and found.kind == self.finding.kind:
                self.smallest = case
            if time.monotonic() - spoken >= SILENCE:
                spoken = time.monotonic()
                self.say(
                    f"{counted(self.tries - shrinker.tries, 'try', plural='tries')}, "
                    f"{counted(self.smallest.size, 'flit')} left"
                )
            return found

        shrinker = Shrinker(fails, self.finding.kind, self.tries)
        shrinker.shrink(self.smallest)
        self.finding = self._fails(self.smallest) or self.finding

    def play(self, case: Case) -> Finding | None:
        """Play one case, and count it."""
        played, finding = self._played(case, self.coverage)
        self.programs += len(played.starts)
        self.judged += played.judged
        self.unjudged += played.unjudged
        self.cycles += played.cycles
        self.flits += len(played.schedule)
        return finding

    def _fails(self, case: Case) -> Finding | None:
        return self._played(case, None)[1]

    def _played(self, case: Case, coverage: Coverage | None) -> tuple[Played, Finding | None]:
        if self.compare is None:
            played = play_case(case, self.machine, faults=self.faults, coverage=coverage)
            return played, played.finding
        with tempfile.TemporaryDirectory(prefix="kohakutpu-fuzz-") as folder:
            trace = Path(folder) / "model.trace"
            played = play_case(case, self.machine, faults=self.faults, coverage=coverage, trace=trace)
            return played, self.compare(case, played, trace) or played.finding
