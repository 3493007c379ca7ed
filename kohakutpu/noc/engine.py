"""The clock of the cycle models: components, links, FIFOs, and the loop that skips idle time.

One cycle has two phases, so that the order in which blocks are visited can never show:

A. Every link with a valid flit offers it. The sink decides from its state at the start of the cycle
   (`accept`); what it takes becomes visible to it in the next cycle.
B. Every block with work steps once. It reads its own state, its FIFOs (entries of earlier cycles only)
   and its output registers, which are free if they were empty or were taken in phase A.

A register written in cycle t is therefore seen in cycle t + 1, as in clocked logic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush

from kohakutpu.isa.flit import Flit

NEVER = 1 << 62


class Component:
    """A clocked block.

    `step(now)` does the work of cycle `now` and returns the next cycle at which the block can change if
    nothing reaches it before (`NEVER` when it only waits). Stepping a block that has no work must change
    nothing: with skipping off every block is stepped in every cycle.
    """

    def __init__(self, engine: Engine, name: str):
        self.engine = engine
        self.name = name
        self.due = NEVER  # the next cycle it is scheduled for, this one apart
        self.stepped = -1  # the last cycle it was picked to be stepped in
        engine.components.append(self)

    def wake(self, cycle: int) -> None:
        """Step this block at `cycle` at the latest. Within a cycle only later cycles may be named."""
        self.engine.schedule(self, cycle)

    def step(self, now: int) -> int:
        raise NotImplementedError

    def describe(self) -> list[str]:
        """The block's state for a hang report, a line each; empty when it is idle."""
        return []


class Link:
    """A sender's output register and the wires to its sink: hold until taken, one flit a cycle.

    `flit` is the register (None when not valid). A sender that finds it occupied sets `wanted` and is
    stepped again in the cycle in which the flit leaves. A sink that refused calls `retry` in the cycle in
    which it makes room; the flit is offered again in the next.
    """

    __slots__ = (
        "engine", "index", "name", "source", "accept", "flit", "wanted", "blocked", "count", "last", "last_cycle",
        "_sink",
    )  # fmt: skip

    def __init__(self, engine: Engine, name: str, source: Component):
        self.engine = engine
        self.name = name
        self.source = source
        self._sink = None
        self.accept: Callable[[Flit, int], bool] | None = None
        self.flit: Flit | None = None
        self.wanted = False
        self.blocked = False
        self.count = 0
        self.last: Flit | None = None
        self.last_cycle = -1
        self.index = len(engine.links)
        engine.links.append(self)

    @property
    def sink(self):
        """Whoever takes the flits: an object with `accept(flit, now) -> bool`."""
        return self._sink

    @sink.setter
    def sink(self, sink) -> None:
        self._sink = sink
        self.accept = sink.accept

    def send(self, flit: Flit) -> None:
        """Load the register in phase B; the flit is valid from the next cycle."""
        assert self.flit is None, f"{self.name}: the output register was overwritten"
        self.flit = flit
        self.engine.offered.append(self)

    def retry(self) -> None:
        """The sink may accept from the next cycle on: offer a refused flit again."""
        if self.blocked:
            self.blocked = False
            self.engine.offered.append(self)


class Fifo:
    """A first-word-fall-through FIFO with one push and one pop a cycle; a push is visible in the next cycle."""

    __slots__ = ("depth", "items", "pushed", "popped")

    def __init__(self, depth: int):
        self.depth = depth
        self.items: deque = deque()
        self.pushed = -1
        self.popped = -1

    def push(self, item, now: int) -> None:
        assert len(self.items) < self.depth or self.popped == now, "FIFO overflow"
        self.items.append(item)
        self.pushed = now

    def head(self, now: int):
        """The oldest entry pushed before cycle `now`, or None."""
        items = self.items
        if not items or (len(items) == 1 and self.pushed == now):
            return None
        return items[0]

    def pop(self, now: int):
        self.popped = now
        return self.items.popleft()

    def level(self, now: int) -> int:
        """Entries held at the start of cycle `now`."""
        return len(self.items) - (self.pushed == now) + (self.popped == now)

    def full(self, now: int) -> bool:
        return self.level(now) >= self.depth

    def __len__(self) -> int:
        return len(self.items)


class Engine:
    """Advances every component; `skip=False` visits each one in each cycle, with equal results.

    `on_transfer(cycle, link, flit)`, when set, sees every accepted flit: the one source of traces. Within a
    cycle its calls come in no particular order. `observer`, when set, is told of every simulated cycle: `before(now)`,
    and
    `after(now, run)` with the blocks that were stepped. `origin` is the first cycle after the last reset.
    """

    def __init__(self, *, skip: bool = True):
        self.skip = skip
        self.now = 0
        self.steps = 0
        self.cycles = 0  # visited, as opposed to passed
        self.on_transfer: Callable[[int, Link, Flit], None] | None = None
        self.observer = None
        self.reset()

    def reset(self, cycles: int = 0) -> None:
        """Forget every component and link; `cycles` pass, and time goes on from there."""
        self.now += cycles
        self.origin = self.now
        self.components: list[Component] = []
        self.links: list[Link] = []
        self.offered: list[Link] = []
        self._upcoming = self.now  # the cycle that `_next` belongs to: the next one to be simulated
        self._next: list[Component] = []
        self._later: dict[int, list[Component]] = {}
        self._times: list[int] = []  # heap of the keys of `_later`

    def schedule(self, component: Component, cycle: int) -> None:
        """Step `component` at `cycle` at the latest."""
        if cycle >= component.due:
            return
        component.due = cycle
        if cycle <= self._upcoming:
            self._next.append(component)
        else:
            bucket = self._later.get(cycle)
            if bucket is None:
                self._later[cycle] = [component]
                heappush(self._times, cycle)
            else:
                bucket.append(component)

    def cycle(self) -> None:
        """Simulate cycle `now`."""
        now = self.now
        observer = self.observer
        if observer is not None:
            observer.before(now)
        self._upcoming = now + 1
        self.cycles += 1
        links, self.offered = self.offered, []
        candidates, self._next = self._next, []
        times = self._times
        while times and times[0] <= now:
            candidates += self._later.pop(heappop(times))
        if not self.skip:
            candidates = self.components
            for component in candidates:
                component.due = now
            links = [link for link in self.links if link.flit is not None]
            for link in links:
                link.blocked = False
        run = []
        for component in candidates:
            if component.due <= now:  # else picked already, or moved to a later cycle
                component.due = NEVER  # what phase A schedules is about later cycles
                component.stepped = now
                run.append(component)
        trace = self.on_transfer
        for link in links:
            flit = link.flit
            if link.accept(flit, now):
                link.flit = None
                link.count += 1
                link.last = flit
                link.last_cycle = now
                if trace is not None:
                    trace(now, link, flit)
                if link.wanted:
                    link.wanted = False
                    source = link.source
                    if source.stepped != now:
                        source.stepped = now
                        run.append(source)
            else:
                link.blocked = True
        self.steps += len(run)
        schedule = self.schedule
        for component in run:
            following = component.step(now)
            if following < component.due:
                schedule(component, following)
        if observer is not None:
            observer.after(now, run)
        self.now = now + 1

    @property
    def idle(self) -> bool:
        """Nothing is scheduled and no flit is on offer: no block can change again by itself."""
        if self._next or self.offered:
            return False
        return not any(c.due == cycle for cycle, bucket in self._later.items() for c in bucket)

    def _skip_to(self, end: int) -> None:
        """Pass over cycles in which nothing happens, up to `end`."""
        if not self.skip or self._next or self.offered:
            return
        self.now = self._upcoming = max(self.now, min(end, self._times[0] if self._times else end))

    def run(self, until: Callable[[], bool], budget: int) -> bool:
        """Advance until `until()` holds at the start of a cycle; False when `budget` cycles passed first."""
        end = self.now + budget
        while not until():
            self._skip_to(end)
            if self.now >= end:
                return False
            self.cycle()
        return True

    def advance(self, cycles: int) -> None:
        """Advance exactly `cycles` cycles."""
        end = self.now + cycles
        while True:
            self._skip_to(end)
            if self.now >= end:
                return
            self.cycle()
