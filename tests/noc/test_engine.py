"""The two-phase clock: FIFOs, links, scheduling, and skipping."""

from __future__ import annotations

import pytest

from kohakutpu.isa.flit import Flit
from kohakutpu.noc.engine import NEVER, Component, Engine, Fifo, Link


def flit(n=0):
    return Flit(0, 0, 8, n, 1, 0, n)


class Ticker(Component):
    """Steps at the cycles it was asked to and every `period` after."""

    def __init__(self, engine, period):
        super().__init__(engine, "ticker")
        self.period = period
        self.next = 0
        self.seen = []

    def step(self, now):
        if now >= self.next:
            self.seen.append(now)
            self.next = now + self.period
        return self.next


def test_a_fifo_push_is_visible_in_the_next_cycle():
    fifo = Fifo(2)
    fifo.push("a", 5)
    assert fifo.head(5) is None and fifo.head(6) == "a"
    assert fifo.level(5) == 0 and fifo.level(6) == 1


def test_a_fifo_level_is_that_of_the_start_of_the_cycle():
    fifo = Fifo(2)
    fifo.push("a", 0)
    fifo.push("b", 1)
    assert fifo.full(2)
    assert fifo.pop(2) == "a"
    assert fifo.full(2) and not fifo.full(3)
    fifo.push("c", 2)  # push and pop in one cycle is what a full FIFO allows
    assert fifo.head(2) == "b" and fifo.full(3)


def test_a_fifo_overflow_is_caught():
    fifo = Fifo(1)
    fifo.push("a", 0)
    with pytest.raises(AssertionError, match="overflow"):
        fifo.push("b", 1)


def test_an_overwritten_output_register_is_caught():
    engine = Engine()
    link = Link(engine, "x.out", Ticker(engine, 1))
    link.send(flit())
    with pytest.raises(AssertionError, match="x.out: the output register was overwritten"):
        link.send(flit())


class Sender(Component):
    """Loads a flit whenever its register is free."""

    def __init__(self, engine, count):
        super().__init__(engine, "sender")
        self.out = Link(engine, "sender.out", self)
        self.left = count

    def step(self, now):
        if not self.left:
            return NEVER
        if self.out.flit is None:
            self.out.send(flit(self.left))
            self.left -= 1
        if self.left:
            self.out.wanted = True
        return NEVER


class Receiver(Component):
    """Takes one flit, then needs `rest` cycles before the next."""

    def __init__(self, engine, rest):
        super().__init__(engine, "receiver")
        self.rest = rest
        self.free = 0
        self.in_link = None
        self.seen = []

    def accept(self, flit, now):
        if now < self.free:
            return False
        self.seen.append((now, flit.txn))
        self.free = now + self.rest
        if self.rest > 1:
            self.wake(self.free - 1)
        return True

    def step(self, now):
        if now == self.free - 1:
            self.in_link.retry()
        return NEVER


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("rest", [1, 2, 3, 10])
def test_hold_until_taken(skip, rest):
    engine = Engine(skip=skip)
    sender, receiver = Sender(engine, 5), Receiver(engine, rest)
    sender.out.sink, receiver.in_link = receiver, sender.out
    sender.wake(0)
    assert engine.run(lambda: len(receiver.seen) == 5, 1000)
    assert receiver.seen == [(1 + rest * i, 5 - i) for i in range(5)]
    assert engine.now == 2 + rest * 4


def test_skipping_visits_only_cycles_with_work():
    engine = Engine()
    ticker = Ticker(engine, 100)
    ticker.wake(3)
    engine.advance(1000)
    assert ticker.seen == list(range(3, 1000, 100)) and engine.now == 1000
    assert engine.cycles == 10 == engine.steps


def test_without_skipping_every_cycle_is_visited():
    engine = Engine(skip=False)
    ticker = Ticker(engine, 100)
    ticker.next = 3
    engine.advance(1000)
    assert ticker.seen == list(range(3, 1000, 100))
    assert engine.cycles == 1000 == engine.steps


@pytest.mark.parametrize("skip", [True, False])
def test_run_stops_in_the_cycle_after_the_condition_came_true(skip):
    engine = Engine(skip=skip)
    ticker = Ticker(engine, 50)
    ticker.next = 7
    ticker.wake(7)
    assert engine.run(lambda: len(ticker.seen) == 2, 1000)
    assert engine.now == 58


@pytest.mark.parametrize("skip", [True, False])
def test_run_ends_with_its_budget(skip):
    engine = Engine(skip=skip)
    assert not engine.run(lambda: False, 123)
    assert engine.now == 123


def test_an_earlier_wake_replaces_a_later_one():
    engine = Engine()
    ticker = Ticker(engine, 1000)
    ticker.wake(50)
    ticker.wake(20)
    ticker.wake(30)
    engine.advance(60)
    assert ticker.seen == [20]


def test_idle_means_that_nothing_can_change():
    engine = Engine()
    ticker = Ticker(engine, NEVER)
    assert engine.idle
    ticker.wake(5)
    assert not engine.idle
    engine.advance(6)
    assert engine.idle


def test_reset_forgets_blocks_and_keeps_time():
    engine = Engine()
    Ticker(engine, 1).wake(0)
    engine.advance(10)
    engine.reset(5)
    assert engine.idle and engine.now == engine.origin == 15 and not engine.components and not engine.links


class Relay(Component):
    """Busy with something else until `until`; what it accepts it must act on one cycle later."""

    def __init__(self, engine, until):
        super().__init__(engine, "relay")
        self.until = until
        self.pending = []
        self.acted = []

    def accept(self, flit, now):
        self.pending.append(now)
        self.wake(now + 1)
        return True

    def step(self, now):
        self.acted += [(taken, now) for taken in self.pending if taken < now]
        self.pending = [taken for taken in self.pending if taken >= now]
        return self.until if now < self.until else NEVER


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("step_at", range(4))
def test_a_wake_while_accepting_counts_in_the_cycle_of_a_step(skip, step_at):
    """What phase A schedules must not be lost because the block is about to step in phase B."""
    engine = Engine(skip=skip)
    sender, relay = Sender(engine, 1), Relay(engine, 100)
    sender.out.sink = relay
    sender.wake(0)
    relay.wake(step_at)
    engine.advance(50)
    assert relay.acted == [(1, 2)]


def test_a_block_steps_once_a_cycle_whatever_asked_for_it():
    engine = Engine()
    sender, receiver = Sender(engine, 3), Receiver(engine, 1)
    sender.out.sink, receiver.in_link = receiver, sender.out
    steps = []
    work = sender.step
    sender.step = lambda now: (steps.append(now), work(now), now + 1)[2]
    sender.wake(0)
    engine.advance(6)
    assert steps == list(range(6))
