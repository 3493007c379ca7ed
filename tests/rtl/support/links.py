"""Driving and watching the links of a `LinkTop` from cocotb, one wake-up a cycle for all of them.

    @cocotb.test()
    async def bench(dut):
        links = await Links.start(dut, sources=["in_link"], sinks=["out_link"])
        links.sinks["out_link"].busy = stutter(random.Random(1), 0.4)
        links.sources["in_link"].send(flit, other, at=10)
        await links.until(lambda: len(links.sinks["out_link"].received) == 2, budget=1000)
        await links.finish()

Every endpoint that the top wraps in `sim.port_checker.Checked` is checked: `finish` fails on a broken rule.

Cycle 0 is the first after reset. A flit sent with `at=t` is valid in cycle t + 1 at the earliest, as if its sender
loaded its output register in cycle t; `busy(t)` is what the sink's wire says in cycle t.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, Timer

from kohakutpu.isa.flit import Flit
from sim import port_rules

PERIOD = 4  # ns
RESET_CYCLES = 10
Busy = Callable[[int], bool]


def stutter(seed: int, share: float, length: int = 4099) -> Busy:
    """Busy in about `share` of all cycles, the same for equal seeds."""
    chance = random.Random(seed)
    table = [chance.random() < share for _ in range(length)]
    return lambda cycle: table[cycle % length]


def bursts(seed: int, share: float, longest: int = 40, length: int = 4099) -> Busy:
    """Busy in about `share` of all cycles, in runs of up to `longest` cycles."""
    chance = random.Random(seed)
    table: list[bool] = []
    while len(table) < length:
        table += [chance.random() < share] * chance.randint(1, longest)
    return lambda cycle: table[cycle % length]


class Source:
    """A sender: a queue of (earliest cycle, flit), loaded into the link's register in order.

    What is sent from an `on_flit` leaves in the next cycle at the earliest, as it would from clocked logic.
    """

    def __init__(self, links: Links, index: int, next_flit):
        self.links = links
        self.index = index
        self.next_flit = next_flit
        self.queue: deque[tuple[int, Flit]] = deque()
        self.sent: list[tuple[int, Flit]] = []
        self.current: Flit | None = None

    def send(self, *flits: Flit, at: int = 0) -> None:
        at = max(at, self.links.earliest)
        self.queue.extend((at, flit) for flit in flits)

    @property
    def done(self) -> bool:
        """Everything was transferred."""
        return not self.queue and self.current is None


class Sink:
    """A receiver: `received` lists (cycle, flit); `on_flit(cycle, flit)`, when set, is called for each."""

    def __init__(self, index: int, flit):
        self.index = index
        self.flit = flit
        self.busy: Busy | None = None
        self.received: list[tuple[int, Flit]] = []
        self.on_flit: Callable[[int, Flit], None] | None = None


class Links:
    """All links of a `LinkTop`; make one with `start`.

    `transfers` lists (cycle, link name, flit) of everything that moved; `each_cycle` holds functions of the cycle that
    are called at its falling edge, after transfers were noted and before the next flits are chosen. `checks` are the
    checked endpoints' prefixes on the top, without `check__`; in a share `probing` of all cycles each that can be
    probed is shown another flit for a moment, of one of `probe_types`, and its `busy` must not move.
    """

    def __init__(self, dut, sources: Iterable[str], sinks: Iterable[str], checks: Iterable[str], probing: float,
                 probe_types: Sequence[int] = range(16)):  # fmt: skip
        self.dut = dut
        self.sources = {name: Source(self, i, getattr(dut, f"{name}__next")) for i, name in enumerate(sorted(sources))}
        self.sinks = {name: Sink(i, getattr(dut, f"{name}__flit")) for i, name in enumerate(sorted(sinks))}
        self.transfers: list[tuple[int, str, Flit]] = []
        self.each_cycle: list[Callable[[int], None]] = []
        self.checks = list(checks)
        self.probed = [prefix for prefix in self.checks if hasattr(dut, f"{prefix}check__probe")]
        self.probing = probing if self.probed else 0.0
        self.probe_types = probe_types
        self.probes = 0
        self.chance = random.Random(0)
        self.cycle = 0
        self.earliest = 0  # the first cycle that a flit sent now may be loaded in
        self._next_valid = self._next_busy = -1

    @classmethod
    async def start(cls, dut, *, sources: Iterable[str] = ("in_link",), sinks: Iterable[str] = ("out_link",),
                    checks: Iterable[str] = ("",), probing: float = 0.05,
                    probe_types: Sequence[int] = range(16)) -> Links:  # fmt: skip
        """Start the clock and reset; returns before anything of cycle 0 was done."""
        links = cls(dut, sources, sinks, checks, probing, probe_types)
        for prefix in links.probed:
            links._check(prefix, "probe").value = 0
        for source in links.sources.values():
            source.next_flit.value = 0
        cocotb.start_soon(Clock(dut.clk, PERIOD, "ns").start())
        await links.reset()
        return links

    async def reset(self, cycles: int = RESET_CYCLES) -> None:
        """Hold reset for `cycles`; queues and records are emptied, time starts again at 0."""
        dut = self.dut
        dut.rst.value = 1
        dut.next_valid.value = self._next_valid = 0
        for source in self.sources.values():
            source.queue.clear()
            source.sent.clear()
            source.current = None
        for sink in self.sinks.values():
            sink.received.clear()
        self.transfers.clear()
        self._drive_busy(0)
        for _ in range(cycles):
            await FallingEdge(dut.clk)
        self._drive_busy(0)
        await FallingEdge(dut.clk)
        dut.rst.value = 0
        self.cycle = self.earliest = 0

    def _drive_busy(self, cycle: int) -> None:
        word = 0
        for sink in self.sinks.values():
            if sink.busy is not None and sink.busy(cycle):
                word |= 1 << sink.index
        if word != self._next_busy:
            self.dut.next_busy.value = self._next_busy = word

    def _look(self) -> None:
        """Note the transfers of the current cycle and choose what the registers hold in the next."""
        now, count = self.cycle, len(self.sources)
        status = int(self.dut.status.value)
        taken, arrived = status >> count, status >> 2 * count
        self.earliest = now + 1
        if arrived:
            for name, sink in self.sinks.items():
                if arrived >> sink.index & 1:
                    flit = Flit.from_int(int(sink.flit.value))
                    sink.received.append((now, flit))
                    self.transfers.append((now, name, flit))
                    if sink.on_flit is not None:
                        sink.on_flit(now, flit)
        for name, source in self.sources.items():
            if taken >> source.index & 1:
                source.sent.append((now, source.current))
                self.transfers.append((now, name, source.current))
                source.current = None
        self.earliest = now
        for function in self.each_cycle:
            function(now)
        word = 0
        for source in self.sources.values():
            if source.current is None and source.queue and source.queue[0][0] <= now:
                source.current = source.queue.popleft()[1]
                source.next_flit.value = source.current.to_int()
                word |= 1 << source.index
        if word != self._next_valid:
            self.dut.next_valid.value = self._next_valid = word
        self._drive_busy(now + 1)

    async def step(self, cycles: int = 1) -> None:
        """Let `cycles` cycles pass."""
        for _ in range(cycles):
            self._look()
            if self.probing and self.chance.random() < self.probing:
                await self._probe()
            await FallingEdge(self.dut.clk)
            self.cycle = self.earliest = self.cycle + 1

    def _check(self, prefix: str, name: str):
        return getattr(self.dut, f"{prefix}check__{name}")

    async def _probe(self) -> None:
        """Between two clock edges: `busy` stays what it is whatever is offered."""
        settle = Timer(PERIOD / 16, "ns")
        await settle
        # what is on offer by itself may be of a type that `busy` may tell apart
        every = len(self.probe_types) == 16
        before = [int(self._check(prefix, "busy").value) for prefix in self.probed] if every else None
        for valid in (1, 0, 1):
            kind = self.chance.choice(self.probe_types)
            for prefix in self.probed:
                self._check(prefix, "probe").value = 1
                self._check(prefix, "probe_valid").value = valid
                self._check(prefix, "probe_type").value = kind
            await settle
            seen = [int(self._check(prefix, "busy").value) for prefix in self.probed]
            before = before or seen
            for prefix, then, now in zip(self.probed, before, seen):
                assert now == then, (
                    f"{prefix or 'endpoint'}: cycle {self.cycle}: busy is a function of the offered flit: {then} "
                    f"became {now} for valid {valid}, type {kind:#x}"
                )
        for prefix in self.probed:
            self._check(prefix, "probe").value = 0
        await settle
        self.probes += 1

    def broken(self) -> str:
        """A line for each rule that a checked endpoint has broken since reset."""
        reports = [port_rules.report(p or "endpoint", int(self._check(p, "violations").value)) for p in self.checks]
        return "\n".join(text for text in reports if text)

    async def finish(self, *, owing: bool = False) -> None:
        """The verdict of the port checkers; `owing` allows for instructions and bursts that are still open."""
        await self.step(2)
        assert not self.broken(), self.broken()
        for prefix in self.checks:
            owed = port_rules.owed(int(self._check(prefix, "owed").value))
            assert owing or not owed, f"{prefix or 'endpoint'} still owes {owed}"

    async def until(self, condition: Callable[[], bool], budget: int, what: str = "the awaited state") -> int:
        """Step until `condition()`; returns the cycles it took. `budget` is the watchdog."""
        start = self.cycle
        while not condition():
            assert self.cycle - start < budget, f"{what} was not reached within {budget} cycles\n{self.broken()}"
            await self.step()
        return self.cycle - start
