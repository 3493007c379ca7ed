"""The cycles of docs/microarchitecture/cluster.md, measured on the model and held against the published ones."""

import math

import pytest

from kohakutpu.conformance.cluster import AGENT, CLUSTER, PORT, ClusterBench
from kohakutpu.formats import words
from kohakutpu.fuzz.cluster_reference import entry
from kohakutpu.isa.cluster import DRAIN, FILL, GEMM, WORD
from kohakutpu.isa.flit import Flit, FlitType
from kohakutpu.isa.signals import SignalCode
from kohakutpu.machine import ClusterUnit
from kohakutpu.model.cluster_drain import RESULT_QUEUE

UNIT = ClusterUnit(2, 1, tiles=512, a_entries=512, b_entries=512)
NARROW = [(1, 1, 1), (1, 1, 4), (1, 2, 4), (1, 3, 4), (2, 2, 4), (2, 2, 1)]
SHAPES = [*NARROW, (1, 5, 1), (8, 8, 4), (16, 16, 4), (16, 32, 4)]
NODE = dict(dnode=1, dst_x=1, dst_y=1)
FLOATS = dict(NODE, dbuf=2)


@pytest.fixture(params=[True, False], ids=["skipping", "every cycle"])
def bench(request):
    return ClusterBench(UNIT, skip=request.param)


def retirements(bench, *payloads, **options):
    """Cycles in which each instruction retired: its completion is valid on an idle link two cycles later."""
    before = len(bench.signals)
    bench.instruct(*payloads, **options)
    bench.run(before + len(payloads))
    return [signal.cycle - 2 for signal in bench.signals[before:]]


def period(subtiles):
    """Cycles from K block to K block."""
    return max(subtiles, 5)


def published_issues(gm, gn, nk):
    """Cycles from the first issue of the published sweep to its last."""
    return (gm * gn * nk - 1) * ({1: 5, 2: 3, 3: 2, 4: 2}.get(gm * gn, 1) if nk > 1 else 1)


def test_unknown_opcodes(bench):
    first, second, third = retirements(bench, *[WORD.pack(op=0)] * 3)
    assert third - second == second - first == 2 <= 3


def test_a_request_leaves_three_cycles_after_the_instruction_came(bench):
    bench.engine.advance(10)
    bench.put(Flit(CLUSTER, AGENT, FlitType.CU_INST, 0, 0, 0, FILL.encode(addr=0, n=1, preq=1)), 20)
    bench.run(1)
    ((cycle, flit), *_) = bench.received
    assert (cycle - 20, flit.type) == (3, FlitType.MEM_RD_REQ)  # published: 5


@pytest.mark.parametrize("n", [1, 2, 8, 100, 255])
@pytest.mark.parametrize("latency", [2, 7, 40])
def test_fill_pitch(n, latency):
    bench = ClusterBench(UNIT, latency=latency)
    times = retirements(bench, *[FILL.encode(addr=0, n=n, preq=1)] * 3)
    assert times[2] - times[1] == times[1] - times[0] == 4 * n + latency + 3 <= 4 * n + latency + 8


def test_a_gemm_retires_as_it_starts(bench):
    first, second = retirements(bench, FILL.encode(addr=0, n=1, preq=1), GEMM.encode(gm=2, gn=2))
    assert second - first == 2 <= 6
    assert bench.cluster.sweep.start == second


@pytest.mark.parametrize("gm, gn, nk", SHAPES)
def test_gemm_pitch(bench, gm, gn, nk):
    times = retirements(bench, *[GEMM.encode(gm=gm, gn=gn, nk=nk)] * 5)
    pitches = {times[3] - times[2], times[4] - times[3]}  # the first ones are set by how fast instructions are taken
    expected = period(gm * gn) * nk
    published = gm * gn * nk + 22 if gm * gn >= 5 else published_issues(gm, gn, nk) + 34
    assert pitches == {expected} and expected <= published


@pytest.mark.parametrize("first, second", [((1, 1), (5, 1)), ((5, 1), (1, 1)), ((2, 2), (2, 2)), ((3, 2), (1, 2))])
def test_the_pause_between_sweeps_is_the_earlier_ones(bench, first, second):
    """A GEMM starts with the last issue of the one before; its own first issue waits for that one's tiles."""
    times = retirements(bench, *[GEMM.encode(gm=gm, gn=gn, nk=2) for gm, gn in (first, second, second)])
    one, two = first[0] * first[1], second[0] * second[1]
    assert times[1] - times[0] == period(one) + one
    pause = period(one) - one
    assert times[2] - times[1] == pause + period(two) + two


@pytest.mark.parametrize("gm, gn, tail", [(3, 3, 1), (2, 5, 2), (3, 4, 4), (3, 7, 5), (2, 8, 8)])
def test_a_sweep_that_wraps_pauses_by_where_it_ends(gm, gn, tail):
    """More sub-tiles than the store holds: `tail` of them are in the last round, and their addresses recur first."""
    bench = ClusterBench(ClusterUnit(2, 1, tiles=8, a_entries=32, b_entries=32))
    times = retirements(bench, *[GEMM.encode(gm=gm, gn=gn, nk=3)] * 3)
    assert times[2] - times[1] == 3 * (gm * gn + max(5 - tail, 0))
    (drained,) = retirements(bench, DRAIN.encode(addr=0x4000, n=1))
    assert drained == bench.cluster.sweep.last_issue + 20 + max(5 - tail, 0) + 1 + 9 + 2


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 9, 16, 17, 64, 512])
def test_drain_pitch(bench, n):
    times = retirements(bench, *[DRAIN.encode(addr=0x4000, n=n)] * 3)
    assert times[2] - times[1] == times[1] - times[0] == n + math.ceil(n / 8) + 12
    published = {True: 20 + 2 * n, False: 26 + 10 * n // 8}[n <= 8] if n != 9 else 39
    if n <= 9 or n % 8 == 0:
        assert times[1] - times[0] <= published


@pytest.mark.parametrize("n", [1, 2, 4, 8, 64, 256])
def test_send_pitch(bench, n):
    times = retirements(bench, *[DRAIN.encode(n=n, **FLOATS)] * 3)
    pitch = times[1] - times[0]
    assert times[2] - times[1] == pitch == 2 * n + math.ceil(2 * n / 8) + 11
    assert pitch <= {1: 23, 2: 27, 4: 35}.get(n, 25 + 5 * n / 2)


@pytest.mark.parametrize("gm, gn, nk, unfused, fused", [
    (8, 8, 4, 395, 317), (16, 16, 4, 1403, 1133), (16, 32, 2, 1723, 1197), (16, 32, 4, 2747, 2221),
])  # fmt: skip
def test_from_the_last_fill_to_the_drain(gm, gn, nk, unfused, fused):
    for skip in (True, False):
        spans = []
        for fuse in (0, 1):
            bench = ClusterBench(UNIT, skip=skip)
            times = retirements(
                bench,
                FILL.encode(addr=0, n=min(gn * nk, 255), sel=1, preq=1),
                GEMM.encode(gm=gm, gn=gn, nk=nk, emit=fuse, addr=0x4000),
                DRAIN.encode(addr=0x4000, n=gm * gn, fuse=fuse),
            )
            spans.append(times[2] - times[0])
        subtiles = gm * gn
        flits = subtiles + math.ceil(subtiles / 8)
        # start, sweep, one EMIT behind the last ADD, its word in the queue, the flits, the last transfer
        assert spans[0] == 2 + subtiles * nk + 20 + 1 + 9 + flits <= unfused
        assert spans[1] == 2 + subtiles * (nk - 1) + 1 + 29 + flits <= fused


@pytest.mark.parametrize("gm, gn, nk", SHAPES)
def test_a_narrow_sweeps_drain_waits_for_the_pause_too(bench, gm, gn, nk):
    start, end = retirements(bench, GEMM.encode(gm=gm, gn=gn, nk=nk), DRAIN.encode(addr=0x4000, n=1))
    subtiles = gm * gn
    last = start + (nk - 1) * period(subtiles) + subtiles
    assert last - start - 1 <= published_issues(gm, gn, nk)
    began = last + 20 + period(subtiles) - subtiles
    assert end == began + 1 + 9 + 2  # EMIT, its word, descriptor and data sent, transferred


@pytest.mark.parametrize("gm, gn, nk", [(1, 1, 2), (1, 2, 2), (1, 3, 2), (2, 2, 2), (3, 3, 2), (2, 2, 1)])
def test_emitted_words_come_at_the_sweeps_pace(bench, gm, gn, nk):
    retirements(bench, GEMM.encode(gm=gm, gn=gn, nk=nk, emit=1), DRAIN.encode(addr=0, n=gm * gn, fuse=1))
    start = bench.cluster.sweep.start
    data = [cycle for cycle, flit in bench.received if flit.type == FlitType.MEM_WR_DATA]
    first = (
        start + 1 + (nk - 1) * period(gm * gn) + 29
    )  # the first word at the head of the queue: the descriptor is sent
    expected, free = [], first + 1
    for index in range(gm * gn):
        free += index == 8  # the second descriptor
        free = max(free, first + index)
        expected.append(free + 1)  # transferred the cycle after it was sent
        free += 1
    assert data == expected


@pytest.mark.parametrize("skip", [True, False])
def test_the_result_queue_bounds_an_emitting_sweep(skip):
    """A refused link: 128 issues, then one for each granule that leaves, in the next cycle."""
    open_at = 1000
    bench = ClusterBench(UNIT, skip=skip, refuse=lambda now: now < open_at)
    bench.instruct(GEMM.encode(gm=16, gn=16, emit=1, addr=0x4000), DRAIN.encode(addr=0x4000, n=256, fuse=1))
    bench.engine.advance(open_at)
    sweep = bench.cluster.sweep
    assert (sweep.emitted, bench.cluster.writer.outstanding) == (RESULT_QUEUE, RESULT_QUEUE)
    bench.run(2)
    # the GEMM's completion blocked the register; then 9 flits for 8 granules without a gap
    data = [cycle for cycle, flit in bench.received if flit.type == FlitType.MEM_WR_DATA]
    assert data == [open_at + 2 + i + i // 8 for i in range(256)]
    # granule 127 is sent in the cycle before its transfer, and makes room for issue 255 in the cycle after
    assert sweep.last_issue == data[127]


@pytest.mark.parametrize("skip", [True, False])
def test_the_result_queue_bounds_an_explicit_send(skip):
    bench = ClusterBench(UNIT, skip=skip, refuse=lambda now: now < 1000)
    bench.instruct(DRAIN.encode(n=100, **FLOATS))
    bench.engine.advance(1000)
    assert (bench.cluster.drain.issued, bench.cluster.writer.outstanding) == (64, 128)
    bench.run(1)
    data = [cycle for cycle, flit in bench.received if flit.type == FlitType.CU_DATA]
    assert data == list(range(1000, 1225))  # 200 granules, 25 descriptors, no gap


@pytest.mark.parametrize("program", [
    [DRAIN.encode(n=200, **FLOATS)], [DRAIN.encode(addr=0, n=300)],
    [GEMM.encode(gm=15, gn=20, emit=1), DRAIN.encode(addr=0, n=300, fuse=1)],
])  # fmt: skip
def test_the_result_queue_fills_and_never_overflows(program):
    bench = ClusterBench(UNIT, refuse=lambda now: now % 7 not in (0, 1, 4))
    bench.instruct(*program)
    most = 0
    while len(bench.signals) < len(program):
        bench.engine.cycle()
        most = max(most, bench.cluster.writer.outstanding)
    assert most == RESULT_QUEUE


@pytest.mark.parametrize("skip", [True, False])
def test_a_drain_retires_when_its_last_flit_has_left_the_register(skip):
    bench = ClusterBench(UNIT, skip=skip, refuse=lambda now: 15 <= now < 90)
    bench.instruct(DRAIN.encode(addr=0, n=1))
    bench.engine.advance(90)
    assert bench.cluster.writer.idle and bench.cluster.operations == 0
    bench.run(1)
    assert [cycle for cycle, _ in bench.received] == [14, 90, 92]


def test_bursts_are_taken_one_flit_a_cycle(bench):
    bench.engine.advance(10)
    bench.burst(0, 0, range(16), flags=1)
    bench.burst(1, 0, range(4), flags=1)
    first = bench.engine.now + 1
    bench.run(0, 2)
    # the descriptor is popped in first + 1, the last word in first + 17, the answer valid in first + 19
    assert [s.cycle - first for s in bench.signals] == [19, 25]
    # the second descriptor waits one cycle, for the answer to leave its register


@pytest.mark.parametrize("before", ["nothing", "sweep", "peer"])
def test_peer_streams_open_as_soon_as_the_accumulator_is_theirs(bench, before):
    if before == "sweep":
        retirements(bench, GEMM.encode(gm=3, gn=3, nk=2))
        ready = bench.cluster.sweep.last_issue + 22
    bench.burst(2, 0, [1, 0, 1, 0], flags=1)
    first = bench.engine.now + 1
    if before == "peer":
        bench.burst(2, 0, [1, 0], flags=1)
    bench.run(len(bench.signals), 1 + (before == "peer"))
    answers = [s.cycle for s in bench.signals if s.code == SignalCode.DATA_RECEIVED]
    opened = first + 2 if before != "sweep" else max(first + 2, ready)
    assert answers[0] == opened + 4 + 2  # four granules, the answer sent, transferred
    if before == "peer":
        # last granule popped in y, ADD_PEER in y+1, answer out in y+1; descriptor in y+2, open in y+3
        y = opened + 4
        assert answers[1] == y + 3 + 2 + 2
    assert bench.cluster.peer_command == answers[-1] - 1


def test_a_drain_follows_a_peer_add_by_five_cycles(bench):
    bench.burst(2, 0, [1, 0], flags=1)
    bench.engine.advance(4)  # the burst's last flit leaves with the instruction behind it
    bench.instruct(DRAIN.encode(addr=0, n=1))
    bench.run(1, 1)
    assert bench.cluster.drain.last_command - bench.cluster.peer_command == 5


@pytest.mark.parametrize("held", [GEMM.encode(gm=5, gn=1), DRAIN.encode(addr=0, n=1)])
def test_an_open_peer_stream_holds_gemm_and_drain(bench, held):
    bench.put(Flit(CLUSTER, AGENT, FlitType.CU_DATA, 0, 0, 0, 2 << 248 | 1 << 224))
    bench.engine.advance(20)
    bench.instruct(held)
    bench.engine.advance(100)
    assert not bench.signals
    for cycle, word in ((200, 1), (220, 0)):
        bench.put(Flit(CLUSTER, AGENT, FlitType.CU_DATA, 0, 1, 0, word), cycle)
    bench.run(1)
    # popped in 221, closed from 222 on, when the ADD_PEER is commanded; the drain follows it by 5
    assert (bench.cluster.sweep or bench.cluster.drain).start == (222 if bench.cluster.sweep else 226)


def test_outbound_order_is_answer_request_drain(monkeypatch):
    """All three wait behind a blocked link, then leave in that order behind the completion."""
    monkeypatch.setattr(ClusterBench, "_serve", lambda *_: None)
    bench = ClusterBench(UNIT, refuse=lambda now: now < 300)
    bench.instruct(GEMM.encode(gm=2, gn=2, emit=1), GEMM.encode(gm=2, gn=2))  # the second binds what the first emits
    bench.instruct(FILL.encode(addr=0, n=1, preq=1))
    bench.burst(0, 0, range(2), flags=1, ack=AGENT)
    bench.engine.advance(600)
    kinds = [flit.type for _, flit in bench.received]
    signal, request = FlitType.CU_SIGNAL, FlitType.MEM_RD_REQ
    assert kinds[:5] == [signal, signal, signal, request, FlitType.MEM_WR_REQ]
    assert [s.code for s in bench.signals[:3]] == [0, 0, SignalCode.DATA_RECEIVED]
    assert {flit.dst for _, flit in bench.received[3:]} == {PORT}


def test_operands_may_be_read_two_cycles_after_their_fill_retired():
    bench = ClusterBench(UNIT, latency=2)
    block = entry([[63] * 32] * 4, [0xA0] * 4, "A")
    bench.write(0, words.from_ints(block))
    retirements(
        bench, FILL.encode(addr=0, n=1, preq=1), FILL.encode(addr=0, n=1, sel=1, preq=1), GEMM.encode(gm=1, gn=1),
        DRAIN.encode(addr=0x4000, n=1),
    )  # fmt: skip
    assert bench.memory[0x4000:0x4020].view("<u2").tolist() == [0x7BFF] * 16
