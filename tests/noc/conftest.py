"""A bench for the network: grids with a probe on every site."""

from __future__ import annotations

import random
from collections import deque

import pytest

from kohakutpu.isa.flit import Flit, FlitType, node, xy
from kohakutpu.machine import Agent, Machine, MemoryPort, VectorUnit
from kohakutpu.noc.engine import NEVER, Component, Engine, Link
from kohakutpu.noc.mesh import Mesh


class Probe(Component):
    """An endpoint that sends what it is given and is busy in the cycles that `busy(cycle)` names.

    `received` lists (cycle, flit); `broken` what an offered flit did that the hold rule forbids.
    """

    def __init__(self, engine, at, busy=None):
        super().__init__(engine, f"probe{xy(at)}")
        self.node = at
        self.busy = busy
        self.queue = deque()  # (earliest cycle to load the output register in, flit)
        self.received = []
        self.broken = []
        self.refused = None
        self.out = Link(engine, f"{self.name}.out", self)
        self.in_link = None

    def send(self, flit, at=0):
        self.queue.append((at, flit))
        self.wake(max(at, self.engine.now))

    def accept(self, flit, now):
        if self.refused is not None and self.refused is not flit:
            self.broken.append((now, self.refused, flit))
        if self.busy is not None and self.busy(now):
            self.refused = flit
            return False
        self.refused = None
        self.received.append((now, flit))
        return True

    def step(self, now):
        following = NEVER
        if self.queue:
            at, flit = self.queue[0]
            if at > now:
                following = at
            elif self.out.flit is None:
                self.queue.popleft()
                self.out.send(flit)
                following = now + 1 if self.queue else NEVER
            else:
                self.out.wanted = True
        if self.busy is not None and not self.busy(now + 1):
            self.in_link.retry()
        return following if self.busy is None else now + 1


def grid(nx, ny, depth=4):
    """A machine with a vector core on every site but the memory port's."""
    sites = [
        (x, y) for y in range(ny + 2) for x in range(nx + 2)
        if (1 <= x <= nx or 1 <= y <= ny) and (x, y) != (0, 1)
    ]  # fmt: skip
    return Machine(
        name=f"grid{nx}x{ny}", nx=nx, ny=ny, agent=Agent(0, 1), ports=(MemoryPort(0, 1, write_slots=256),),
        vectors=tuple(VectorUnit(*site) for site in sites), fifo_depth=depth,
    )  # fmt: skip


class Bench:
    """A grid with a probe on every site; `busy(node)` gives a probe's busy function, None for never."""

    def __init__(self, nx, ny, *, depth=4, skip=True, busy=lambda at: None, faults=frozenset()):
        self.machine = grid(nx, ny, depth)
        self.engine = Engine(skip=skip)
        self.mesh = Mesh(self.engine, self.machine, faults)
        self.transfers = []
        self.engine.on_transfer = lambda cycle, link, flit: self.transfers.append((cycle, link.name, flit))
        places = [(0, 1), *(unit.xy for unit in self.machine.vectors)]
        self.probes = {}
        for place in sorted(places):
            at = node(*place)
            self.probes[at] = Probe(self.engine, at, busy(at))
            self.mesh.attach(self.probes[at], at)
            if self.probes[at].busy is not None:
                self.probes[at].wake(0)
        self.serial = 0

    def flit(self, src, dst, kind=FlitType.CU_DATA, last=1):
        """A flit whose payload names it."""
        self.serial += 1
        return Flit(dst, src, kind, self.serial & 255, last, 0, self.serial)

    def send(self, src, dst, at=0, **fields):
        flit = self.flit(src, dst, **fields)
        self.probes[src].send(flit, at)
        return flit

    def run(self, expected, budget=20_000):
        """Run until `expected` flits have arrived; the budget is the watchdog."""
        return self.engine.run(lambda: sum(len(p.received) for p in self.probes.values()) >= expected, budget)

    def check_delivery(self, sent):
        """Nothing lost, nothing twice, each at its node, in order for each pair, every offer held until taken."""
        arrived = {at: [flit for _, flit in probe.received] for at, probe in self.probes.items()}
        assert sorted(flit for flits in arrived.values() for flit in flits) == sorted(sent)
        for at, flits in arrived.items():
            assert all(flit.dst == at for flit in flits), f"a flit for another node arrived at {xy(at)}"
            for src in self.probes:
                here = [flit.payload for flit in flits if flit.src == src]
                assert here == [flit.payload for flit in sent if (flit.src, flit.dst) == (src, at)]
        assert not any(probe.broken for probe in self.probes.values())
        assert self.mesh.traffic().vanished == 0


@pytest.fixture(scope="session")
def make_bench():
    return Bench


@pytest.fixture(scope="session")
def make_probe():
    return Probe


@pytest.fixture(scope="session")
def make_grid():
    return grid


@pytest.fixture(scope="session")
def random_busy():
    """busy(node) functions that refuse about `share` of all cycles, the same for equal seeds."""

    def factory(seed, share):
        def of(at):
            pattern = random.Random(seed * 256 + at)
            table = [pattern.random() < share for _ in range(4099)]
            return lambda cycle: table[cycle % 4099]

        return of

    return factory
