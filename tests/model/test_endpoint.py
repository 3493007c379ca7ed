"""The endpoint base: links held, stuttered and held for good, completions, CU_CTRL, priorities, exact latencies."""

from __future__ import annotations

import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kohakutpu.isa.flit import Flit, FlitType, node
from kohakutpu.isa.signals import (
    CU_CAPS,
    CU_COUNTERS,
    CU_CTRL_REPLY,
    CU_CTRL_REQUEST,
    CU_SIGNAL,
    CU_STATUS,
    ControlIndex,
    SignalCode,
    UnitType,
)
from kohakutpu.model.endpoint import COMPLETION_DEPTH, Endpoint
from kohakutpu.noc.engine import NEVER, Component, Engine, Fifo, Link

UNIT, HOST = node(2, 1), node(0, 1)
MASK32 = (1 << 32) - 1


class Worker(Endpoint):
    """Works as many cycles as payload[15:0] says, with payload[63:32] as result and payload[16] as fault.

    `chatter` flits are sent whenever the output register is the unit's.
    """

    def __init__(self, engine, *, inst_depth=32, recv_depth=8, eats=True):
        super().__init__(engine, "worker", node=UNIT, unit_type=UnitType.BENCH_A, version=4, buffers=3,
                         inst_depth=inst_depth, recv_depth=recv_depth)  # fmt: skip
        self.until = NEVER
        self.eats = eats
        self.eaten = []
        self.chatter = deque()

    def debug_counter(self, now):
        return 0xD0000000_00000000 | now

    def unit_step(self, now):
        following = NEVER
        if self.in_flight is not None and now >= self.until:
            payload = self.in_flight.payload
            self.until = NEVER
            self.complete(now, payload >> 32 & MASK32, fault=bool(payload >> 16 & 1))
        elif self.instruction(now) is not None:
            self.until = now + (self.take_instruction(now).payload & 0xFFFF)
        if self.eats and self.receive(now) is not None:
            self.eaten.append((now, self.pop_receive(now)))
            following = now + 1
        if self.chatter:
            if self.may_send:
                self.send(self.chatter.popleft())
            if self.chatter:
                self.wait_to_send()
        return min(following, self.until)


class Peer(Component):
    """The far side of the worker's link: sends a queue, takes what comes unless `busy(cycle)`."""

    def __init__(self, engine, busy=None):
        super().__init__(engine, "peer")
        self.busy = busy
        self.queue = deque()
        self.received = []
        self.out = Link(engine, "peer.out", self)
        self.in_link = None

    def accept(self, flit, now):
        if self.busy is not None and self.busy(now):
            return False
        self.received.append((now, flit))
        return True

    def step(self, now):
        if self.queue:
            if self.out.flit is None:
                self.out.send(self.queue.popleft())
            self.out.wanted = bool(self.queue)
        if self.busy is not None and not self.busy(now + 1):
            self.in_link.retry()
        return now + 1 if self.busy is not None else NEVER


class Bench:
    def __init__(self, *, busy=None, skip=True, kind=Worker, **options):
        self.engine = Engine(skip=skip)
        self.worker = kind(self.engine, **options)
        self.peer = Peer(self.engine, busy)
        self.worker.in_link, self.peer.in_link = self.peer.out, self.worker.out
        self.peer.out.sink, self.worker.out.sink = self.worker, self.peer
        self.moves = []
        self.engine.on_transfer = lambda cycle, link, flit: self.moves.append((cycle, link.name, flit))
        self.peer.wake(0)

    def send(self, *flits):
        self.peer.queue.extend(flits)
        self.peer.wake(self.engine.now)

    def signals(self):
        return [
            (flit.txn, SignalCode(CU_SIGNAL.get(flit.payload, "code")), CU_SIGNAL.get(flit.payload, "arg"))
            for _, flit in self.peer.received
            if flit.type == FlitType.CU_SIGNAL
        ]

    def replies(self):
        return [CU_CTRL_REPLY.decode(flit.payload) for _, flit in self.peer.received if flit.type == FlitType.CU_CTRL]


def work(cycles=1, result=0, *, txn=0, last=0, fault=0):
    return Flit(UNIT, HOST, FlitType.CU_INST, txn, last, 0, result << 32 | fault << 16 | cycles)


def ask(index, txn=0, op=0):
    return Flit(UNIT, HOST, FlitType.CU_CTRL, txn, 1, 0, CU_CTRL_REQUEST.encode(op=op, index=index))


def other(kind=FlitType.CU_DATA, payload=0):
    return Flit(UNIT, HOST, kind, 0, 0, 0, payload)


# ---- the completion queue under a link that is held ----------------------------------------------------


def program(count):
    return [work(2, 100 + i, txn=7, last=i == count - 1) for i in range(count)]


def test_nothing_escapes_a_held_link_and_nothing_is_lost():
    free = [1 << 40]
    bench = Bench(busy=lambda cycle: cycle < free[0])
    bench.send(*program(8))
    bench.engine.advance(300)
    assert bench.worker.retired == 8 and bench.signals() == []
    free[0] = bench.engine.now
    bench.engine.advance(100)
    signals = bench.signals()
    assert len(signals) == 8
    assert sum(arg for _, code, arg in signals if code == SignalCode.INST_COMPLETE) == sum(range(100, 107))
    assert signals[-1] == (7, SignalCode.BATCH_COMPLETE, 7)


@pytest.mark.parametrize("period, open_for", [(2, 1), (7, 2), (5, 4)])
def test_a_stuttering_link_loses_nothing(period, open_for):
    bench = Bench(busy=lambda cycle: cycle % period >= open_for)
    bench.send(*program(24))
    assert bench.engine.run(lambda: len(bench.signals()) == 24, 2000)
    assert [arg for _, _, arg in bench.signals()] == [*range(100, 123), 7]


def test_a_link_held_for_good_then_one_signal_for_each_accepted_cycle():
    gate = set()
    bench = Bench(busy=lambda cycle: cycle not in gate)
    bench.send(*program(12))
    bench.engine.advance(200)
    for expected in range(1, 7):
        gate.add(bench.engine.now + 3)
        bench.engine.advance(20)
        assert len(bench.signals()) == expected


@pytest.mark.parametrize("skip", [True, False])
def test_a_full_completion_queue_stops_the_next_instruction(skip):
    bench = Bench(busy=lambda cycle: True, skip=skip)
    bench.send(*program(30))
    bench.engine.advance(500)
    # 16 in the queue, one in the output register; the next instruction is not taken
    assert bench.worker.retired == COMPLETION_DEPTH + 1
    assert bench.worker.in_flight is None and len(bench.worker.inst) == 30 - COMPLETION_DEPTH - 1
    bench.peer.busy = None
    bench.peer.in_link.retry()
    assert bench.engine.run(lambda: len(bench.signals()) == 30, 500)


# ---- codes and arguments -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault, last, code, arg",
    [
        (0, 0, SignalCode.INST_COMPLETE, 0xABCD1234),
        (0, 1, SignalCode.BATCH_COMPLETE, 0x5A),
        (1, 0, SignalCode.FAULT, 0xABCD1234),
        (1, 1, SignalCode.FAULT, 0xABCD1234),
    ],
)
def test_a_completion_says_what_happened(fault, last, code, arg):
    bench = Bench()
    bench.send(work(3, 0xABCD1234, txn=0x5A, last=last, fault=fault))
    assert bench.engine.run(lambda: bench.peer.received, 100)
    flit = bench.peer.received[0][1]
    assert flit == Flit(HOST, UNIT, FlitType.CU_SIGNAL, 0x5A, 1, 0, CU_SIGNAL.encode(code=code, arg=arg))


def test_the_completion_goes_to_the_instruction_s_source():
    bench = Bench()
    bench.send(work()._replace(src=node(3, 2)), work()._replace(src=node(1, 0)))
    assert bench.engine.run(lambda: len(bench.peer.received) == 2, 100)
    assert [flit.dst for _, flit in bench.peer.received] == [node(3, 2), node(1, 0)]


# ---- exact times -------------------------------------------------------------------------------------


@pytest.mark.parametrize("cycles", [1, 2, 9])
def test_latency_of_an_instruction(cycles):
    bench = Bench()
    bench.send(work(cycles))
    assert bench.engine.run(lambda: bench.peer.received, 100)
    accepted = next(cycle for cycle, name, _ in bench.moves if name == "peer.out")
    assert bench.peer.received[0][0] == accepted + 3 + cycles


def test_instructions_follow_each_other_by_their_time_and_one():
    bench = Bench()
    bench.send(*[work(4)] * 6)
    assert bench.engine.run(lambda: len(bench.peer.received) == 6, 200)
    times = [cycle for cycle, _ in bench.peer.received]
    assert {b - a for a, b in zip(times, times[1:])} == {5}


@pytest.mark.parametrize("skip", [True, False])
def test_the_next_instruction_is_not_offered_in_the_cycle_of_a_retirement(skip):
    """However eagerly a unit asks."""

    class Eager(Worker):
        def unit_step(self, now):
            following = super().unit_step(now)
            if self.in_flight is None and self.instruction(now) is not None:
                self.until = following = now + (self.take_instruction(now).payload & 0xFFFF)
            return following

    bench = Bench(skip=skip, kind=Eager)
    bench.send(*[work(4)] * 6)
    assert bench.engine.run(lambda: len(bench.peer.received) == 6, 200)
    times = [cycle for cycle, _ in bench.peer.received]
    assert {b - a for a, b in zip(times, times[1:])} == {5}


# ---- CU_CTRL -----------------------------------------------------------------------------------------


def test_caps_and_status():
    bench = Bench(inst_depth=12)
    bench.send(ask(ControlIndex.CAPS, txn=9), *[work(50)] * 4, ask(ControlIndex.STATUS))
    assert bench.engine.run(lambda: len(bench.replies()) == 2, 100)
    caps, status = bench.replies()
    assert CU_CAPS.decode(caps["value"]) == {"type": UnitType.BENCH_A, "version": 4, "buffers": 3, "inst_depth": 12}
    assert (caps["op"], caps["index"]) == (2, ControlIndex.CAPS)
    assert CU_STATUS.decode(status["value"]) == {"busy": 1, "error": 0, "inst_space": 9}
    flit = bench.peer.received[0][1]
    assert (flit.dst, flit.src, flit.type, flit.txn, flit.last) == (HOST, UNIT, FlitType.CU_CTRL, 9, 1)


def test_status_of_an_idle_endpoint():
    bench = Bench(inst_depth=12)
    bench.send(ask(ControlIndex.STATUS))
    assert bench.engine.run(lambda: bench.replies(), 100)
    assert CU_STATUS.decode(bench.replies()[0]["value"]) == {"busy": 0, "error": 0, "inst_space": 12}


def test_counters_are_sampled_on_arrival():
    bench = Bench()
    bench.send(work(10), work(20))
    bench.engine.advance(100)
    bench.send(ask(ControlIndex.COUNTERS))
    bench.engine.advance(20)
    bench.send(ask(ControlIndex.DEBUG))
    bench.engine.advance(20)
    counters, debug = bench.replies()
    # queued t+1, taken t+1, retired t+11, taken t+12, retired t+32, completion popped t+33: t+1 .. t+33
    assert CU_COUNTERS.decode(counters["value"]) == {"retired": 2, "busy_cycles": 33}
    arrival = [cycle for cycle, name, flit in bench.moves if name == "peer.out" and flit.type == FlitType.CU_CTRL]
    assert debug["value"] == 0xD0000000_00000000 | arrival[1]


@pytest.mark.parametrize("index", [4, 9, 0xE0, 0xE7, 0xFF])
def test_other_indices_read_zero_and_writes_are_reads(index):
    bench = Bench()
    bench.send(ask(index, op=1))
    assert bench.engine.run(lambda: bench.replies(), 100)
    assert bench.replies()[0] == {"op": 2, "index": index, "value": 0}


def test_every_second_request_of_a_back_to_back_run_is_lost():
    bench = Bench()
    bench.send(*[ask(ControlIndex.CAPS, txn=i) for i in range(8)])
    bench.engine.advance(100)
    assert [flit.txn for _, flit in bench.peer.received] == [0, 2, 4, 6]


def test_one_answer_waits_while_the_link_is_held():
    free = [1 << 40]
    bench = Bench(busy=lambda cycle: cycle < free[0])
    bench.send(*[ask(ControlIndex.CAPS, txn=i) for i in range(8)])
    bench.engine.advance(50)
    free[0] = 50
    bench.engine.advance(50)
    # request 0 is in the output register, 2 waits behind it, the rest met a pending answer
    assert [flit.txn for _, flit in bench.peer.received] == [0, 2]


# ---- who owns the output register -----------------------------------------------------------------------


def test_completion_before_reply_before_unit():
    free = [40]
    bench = Bench(busy=lambda cycle: cycle < free[0])
    bench.worker.chatter.extend(other(payload=i) for i in range(3))
    bench.worker.wake(0)  # the first chatter occupies the held register
    bench.send(work(1), work(1, txn=1), ask(ControlIndex.CAPS))
    bench.engine.advance(80)
    kinds = [flit.type for _, flit in bench.peer.received]
    data, done, reply = FlitType.CU_DATA, FlitType.CU_SIGNAL, FlitType.CU_CTRL
    assert kinds == [data, done, done, reply, data, data]
    assert [cycle for cycle, _ in bench.peer.received] == list(range(40, 46)), "and without a gap"


def test_a_different_priority_is_seen():
    """With answers before completions the order above is another."""

    class Late(Fifo):
        def head(self, now):
            return None if bench.worker.reply is not None else super().head(now)

    free = [40]
    bench = Bench(busy=lambda cycle: cycle < free[0])
    bench.worker.completions = Late(COMPLETION_DEPTH)
    bench.send(work(1), work(1), ask(ControlIndex.CAPS))
    bench.engine.advance(80)
    kinds = [flit.type for _, flit in bench.peer.received]
    assert kinds != [FlitType.CU_SIGNAL, FlitType.CU_SIGNAL, FlitType.CU_CTRL]


# ---- inbound ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*range(5), 6, *range(8, 16)])
def test_every_other_type_reaches_the_unit_and_is_disposed_of(kind):
    bench = Bench()
    bench.send(other(kind, 5))
    bench.engine.advance(20)
    assert [flit for _, flit in bench.worker.eaten] == [other(kind, 5)]


def test_a_full_receive_fifo_stalls_instructions_too_and_clears():
    bench = Bench(recv_depth=4, eats=False)
    bench.send(*[other(payload=i) for i in range(6)], work(1))
    bench.engine.advance(50)
    assert len(bench.worker.recv) == 4 and bench.peer.out.flit is not None and not bench.peer.received
    bench.worker.eats = True
    bench.worker.wake(bench.engine.now)
    bench.engine.advance(50)
    assert [flit.payload for _, flit in bench.worker.eaten] == list(range(6)) and len(bench.signals()) == 1


def test_a_full_instruction_fifo_stalls_data_too_and_clears():
    bench = Bench(inst_depth=2)
    bench.send(*[work(40)] * 4, other())
    bench.engine.advance(60)
    assert not bench.worker.eaten
    bench.engine.advance(200)
    assert len(bench.worker.eaten) == 1 and len(bench.signals()) == 4


# ---- misuse by a unit --------------------------------------------------------------------------------


def test_retiring_in_the_accepting_cycle_is_caught():
    class Hasty(Worker):
        def unit_step(self, now):
            if self.instruction(now) is not None:
                self.take_instruction(now)
                self.complete(now, 0)
            return NEVER

    engine = Engine()
    unit = Hasty(engine)
    peer = Peer(engine)
    unit.in_link, peer.out.sink = peer.out, unit
    peer.queue.append(work())
    peer.wake(0)
    with pytest.raises(AssertionError, match="in the cycle that accepted"):
        engine.advance(10)


def test_retiring_nothing_is_caught():
    bench = Bench()
    with pytest.raises(AssertionError, match="no instruction in flight"):
        bench.worker.complete(0, 0)


def test_sending_out_of_turn_is_caught():
    bench = Bench()
    with pytest.raises(AssertionError, match="not the unit's"):
        bench.worker.send(other())


# ---- skipping ------------------------------------------------------------------------------------------

kinds = st.sampled_from(["work", "ask", "data", "ack"])


@settings(max_examples=60, deadline=None)
@given(items=st.lists(st.tuples(kinds, st.integers(1, 12)), max_size=40), seed=st.integers(0, 99),
       share=st.sampled_from([0, 0.4, 0.9]))  # fmt: skip
def test_skipping_gives_the_same_transfers(items, seed, share):
    make = {
        "work": lambda n: work(n, n, txn=n, last=n % 2, fault=n % 5 == 0),
        "ask": lambda n: ask(n % 4, txn=n),
        "data": lambda n: other(payload=n),
        "ack": lambda n: other(FlitType.MEM_WR_ACK),
    }
    chance = random.Random(seed)
    table = [chance.random() < share for _ in range(997)]
    busy = (lambda cycle: table[cycle % 997]) if share else None
    logs = []
    for skip in (True, False):
        bench = Bench(skip=skip, busy=busy, inst_depth=3, recv_depth=2)
        bench.worker.chatter.extend(other(payload=i) for i in range(seed % 7))
        bench.worker.wake(0)
        bench.send(*[make[kind](n) for kind, n in items])
        bench.engine.advance(2000)
        logs.append((sorted(bench.moves), bench.worker.eaten, bench.worker.busy_cycles(2000), bench.worker.retired))
    assert logs[0] == logs[1]


# ---- reports -------------------------------------------------------------------------------------------


def test_an_idle_endpoint_has_nothing_to_report_and_a_busy_one_says_what_it_waits_for():
    bench = Bench(eats=False, busy=lambda cycle: True)
    assert bench.worker.describe() == []
    bench.send(work(1, txn=0x21), work(1000, txn=0x42), other(13))
    bench.engine.advance(20)
    text = "\n".join(bench.worker.describe())
    assert "worker (2, 1): instruction in flight txn 0x42 since cycle 4" in text
    assert "the first received flit is a type 0xd from (0, 1)" in text
    assert "output register holds a CU_SIGNAL for (0, 1)" in text
