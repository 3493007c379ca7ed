"""The router against a register-by-register reference: FIFO, holding register, output register, arbiter."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kohakutpu.isa.flit import Flit, node
from kohakutpu.noc.engine import Engine
from kohakutpu.noc.router import Port, Router, RouteTable

NX, NY, X, Y = 3, 3, 2, 2
TABLE = RouteTable(X, Y, NX, NY)
# A destination that leaves the middle router by each port.
TOWARDS = {
    Port.NORTH: node(2, 0),
    Port.EAST: node(4, 2),
    Port.SOUTH: node(2, 3),
    Port.WEST: node(1, 2),
    Port.LOCAL: node(2, 2),
}


class Registers:
    """The router as clocked logic: every register by name, every cycle in full."""

    def __init__(self, depth):
        self.depth = depth
        self.fifo = [deque() for _ in Port]
        self.hold = [None] * 5
        self.out = [None] * 5
        self.pointer = 0

    def cycle(self, offered, busy):
        """One clock edge: `offered[i]` at the inputs, `busy[o]` at the outputs; returns (accepted, sent)."""
        accepted = [offered[i] is not None and len(self.fifo[i]) < self.depth for i in range(5)]
        sent = [self.out[o] if not busy[o] else None for o in range(5)]
        granted = [False] * 5
        out = list(self.out)
        for o in range(5):
            if self.out[o] is not None and busy[o]:
                continue
            out[o] = None
            for k in range(5):
                i = (self.pointer + k) % 5
                if self.hold[i] is not None and TABLE.port[self.hold[i].dst] == o:
                    out[o], granted[i] = self.hold[i], True
                    break
        for i in range(5):
            if self.hold[i] is None or granted[i]:
                self.hold[i] = self.fifo[i].popleft() if self.fifo[i] else None
        for i in range(5):
            if accepted[i]:
                self.fifo[i].append(offered[i])
        self.out = out
        self.pointer = (self.pointer + 1) % 5
        return accepted, sent


class Sink:
    def __init__(self, busy):
        self.busy = busy

    def accept(self, flit, now):
        return not self.busy(now)


def drive_both(depth, stimulus, busy, cycles):
    """Run model and reference side by side; yields what each input accepted and each output sent, a cycle."""
    engine = Engine(skip=False)
    router = Router(engine, "r22", x=X, y=Y, x_hi=NX, y_hi=NY, depth=depth)
    for port in Port:
        router.outputs[port].sink = Sink(lambda now, port=port: busy(port, now))
        router.inputs[port].link = router.outputs[port]  # only its `blocked` is looked at, and skipping is off
    sent = []
    engine.on_transfer = lambda cycle, link, flit: sent.append((link.index, flit))
    reference = Registers(depth)
    waiting = [deque(stimulus[i]) for i in range(5)]
    for now in range(cycles):
        offered = [queue[0][1] if queue and queue[0][0] <= now else None for queue in waiting]
        want_accepted, want_sent = reference.cycle(offered, [busy(o, now) for o in range(5)])
        sent.clear()
        accepted = [flit is not None and router.inputs[i].accept(flit, now) for i, flit in enumerate(offered)]
        engine.cycle()
        got = [None] * 5
        for index, flit in sent:
            got[index] = flit
        yield now, accepted, want_accepted, got, want_sent
        for i in range(5):
            if want_accepted[i]:
                waiting[i].popleft()


def traffic(seed, count, gap):
    """Random flits for each input, to outputs its turn mask allows."""
    chance = random.Random(seed)
    stimulus = []
    for i in Port:
        at, flits = 0, []
        legal = [o for o in Port if (i, o) not in TABLE.masked]
        for serial in range(count):
            at += chance.randrange(gap + 1)
            flits.append((at, Flit(TOWARDS[chance.choice(legal)], 0, 8, serial & 255, 0, 0, int(i) << 16 | serial)))
        stimulus.append(flits)
    return stimulus


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), depth=st.integers(2, 6), gap=st.integers(0, 3),
       share=st.sampled_from([0, 0.2, 0.6, 0.9]))  # fmt: skip
def test_every_register_transfer_is_the_reference_s(seed, depth, gap, share):
    chance = random.Random(seed + 1)
    table = [[chance.random() < share for _ in range(401)] for _ in range(5)]
    moved = 0
    for now, accepted, want_accepted, sent, want_sent in drive_both(
        depth, traffic(seed, 60, gap), lambda o, now: table[o][now % 401], 400
    ):
        assert accepted == want_accepted, f"cycle {now}: inputs"
        assert sent == want_sent, f"cycle {now}: outputs"
        moved += sum(flit is not None for flit in sent)
    assert moved > 50, "the comparison saw next to nothing"


def test_a_different_arbiter_is_seen(monkeypatch):
    """The comparison above notices an arbiter that always starts at the first port."""
    monkeypatch.setattr(Registers, "pointer", property(lambda self: 0, lambda self, value: None), raising=False)
    rows = drive_both(4, traffic(7, 60, 0), lambda o, now: False, 200)
    assert any(sent != want for _, _, _, sent, want in rows)


def test_depth_of_one_is_refused():
    with pytest.raises(ValueError, match="FIFO depth of at least 2"):
        Router(Engine(), "r11", x=1, y=1, x_hi=1, y_hi=1, depth=1)


def test_the_pointer_starts_over_at_reset():
    engine = Engine()
    engine.advance(7)
    engine.reset()
    assert engine.origin == 7
    router = Router(engine, "r22", x=X, y=Y, x_hi=NX, y_hi=NY, depth=4)
    for port in Port:
        router.outputs[port].sink = Sink(lambda now: False)
        router.inputs[port].link = router.outputs[port]
    order = []
    engine.on_transfer = lambda cycle, link, flit: order.append(flit.txn)
    for port in (Port.NORTH, Port.WEST, Port.LOCAL):
        router.inputs[port].accept(Flit(TOWARDS[Port.SOUTH], 0, 8, int(port), 0, 0, 0), 7)
    engine.advance(10)
    # granted in cycles 9, 10, 11: the pointer is 2, 3, 4 and finds WEST, then LOCAL, then wraps to NORTH
    assert order == [Port.WEST, Port.LOCAL, Port.NORTH]
