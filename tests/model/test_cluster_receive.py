"""Inbound CU_DATA bursts (spec: cluster, inbound CU_DATA)."""

import sys
from pathlib import Path

import numpy as np
import pytest

from kohakutpu.conformance.cluster import AGENT, CLUSTER, ClusterBench
from kohakutpu.formats import mxfp7, words
from kohakutpu.fuzz.cluster_reference import Reference
from kohakutpu.isa.cluster import DRAIN, GEMM, WORD, Side
from kohakutpu.isa.flit import Flit, FlitType
from kohakutpu.isa.signals import CU_DATA

sys.path.insert(0, str(Path(__file__).parent))
from cluster_rig import BATCH, FAULT, INST, OTHER, RECEIVED, UNIT, Rig, blocks_of, payloads, sent  # noqa: E402


@pytest.fixture
def bench():
    return ClusterBench(UNIT)


def test_bursts_fill_l1_with_either_buffer(bench):
    a, b = blocks_of(1, 6, "A", low=-64), blocks_of(2, 6, "B", low=-64)
    flat_a, flat_b = ([w for block in side for w in block] for side in (a, b))
    bench.burst(0, 250 * 4, flat_a, flags=1, txn=0x31)
    bench.burst(1, 0, flat_b, flags=1, ack=OTHER, txn=0x32)
    bench.run(0, 2)
    for side, blocks, first in ((Side.A, a, 250), (Side.B, b, 0)):
        expected = mxfp7.unpack(words.from_ints([w for x in blocks for w in x]).reshape(-1, 4, 8), side.name)
        q, scale = bench.cluster.side[side].read(np.arange(first, first + 6))
        assert (q == expected[0]).all() and (scale == expected[1]).all()
    assert [tuple(s)[1:] for s in bench.signals] == [(RECEIVED, 0, 0x31, AGENT), (RECEIVED, 1, 0x32, OTHER)]
    assert {(f.last, f.rsvd, f.src) for f in sent(bench, FlitType.CU_SIGNAL)} == {(1, 0, CLUSTER)}


def test_an_entry_may_be_completed_by_several_bursts(bench):
    (block,) = blocks_of(4, 1, "A")
    for number, word in enumerate(block):
        bench.burst(0, 4 * 7 + number, [word], flags=int(number == 3))
    bench.run(0, 1)
    expected, _ = mxfp7.unpack(words.from_ints(block).reshape(1, 4, 8), "A")
    assert (bench.cluster.side[Side.A].read(np.array([7]))[0] == expected).all()


REJECTED = {
    "unknown buffer": (3, 0, 3), "buffer 7": (7, 0, 1), "A past the end": (0, 2046, 3), "B past the end": (1, 2040, 9),
    "far past the end": (0, 0xFFFF, 1), "odd peer offset": (2, 3, 2), "peer past the end": (2, 1022, 3),
}  # fmt: skip
LARGEST = {"A": (0, 2045, 3), "B": (1, 1792, 256), "peer": (2, 1020, 4)}


@pytest.mark.parametrize("name", REJECTED)
@pytest.mark.parametrize("flags", [0, 1])
def test_a_rejected_burst_is_counted_out_acknowledged_and_faults_the_next_retirement(name, flags):
    rig = Rig()
    rig.operands(2, 2, 1)
    rig.gemm(2, 2, 1)
    rig.run()
    cluster = rig.bench.cluster
    cluster.sweep.evaluate(cluster.sweep.issues)
    before = cluster.tiles.words.copy(), *(cluster.side[s].read(np.arange(512))[0].copy() for s in Side)
    buf, offset, count = REJECTED[name]
    rig.bench.burst(buf, offset, payloads(count), flags=flags, ack=AGENT, txn=0x81)
    rig.bench.burst(0, 0, blocks_of(1, 1, "A")[0], flags=1, ack=AGENT, txn=0x82)
    rig.issue(WORD.pack(op=0), txn=0x90)
    rig.issue(DRAIN.encode(addr=0x4000, n=4), txn=0xA0, last=1)
    rig.run(1 + flags)
    codes = [(s.code, s.arg, s.txn) for s in rig.bench.signals[3:]]
    acknowledged = [(RECEIVED, buf, 0x81)] * flags + [(RECEIVED, 0, 0x82)]
    assert [c for c in codes if c[0] == RECEIVED] == acknowledged
    assert [c for c in codes if c[0] != RECEIVED] == [(FAULT, 3, 0x90), (BATCH, 0xA0, 0xA0)]
    after = cluster.tiles.words, *(cluster.side[s].read(np.arange(512))[0] for s in Side)
    assert all((x == y).all() for x, y in zip(before, after, strict=True))


@pytest.mark.parametrize("name", LARGEST)
def test_the_last_granule_of_a_buffer_is_inside_it(bench, name):
    buf, offset, count = LARGEST[name]
    bench.burst(buf, offset, payloads(count), flags=1)
    bench.instruct(WORD.pack(op=0))
    bench.run(1, 1)
    assert [s.code for s in bench.signals if s.code != RECEIVED] == [INST]


def test_fault_wins_over_last_and_clears(bench):
    bench.burst(9, 0, payloads(1))
    bench.engine.advance(20)
    bench.instruct(WORD.pack(op=0), txn=7, last=1)
    bench.instruct(WORD.pack(op=0), txn=8, last=1)
    bench.run(2)
    assert [(s.code, s.arg, s.txn) for s in bench.signals] == [(FAULT, 0, 7), (BATCH, 8, 8)]


def test_the_length_counts_and_last_and_the_source_do_not(bench):
    """Data flits of another source and unknown types in the middle of a burst; `last` in the wrong place."""
    (block,) = blocks_of(4, 1, "A")
    descriptor = CU_DATA.encode(buf=0, offset=0, len=3, flags=1, ack_x=1, ack_y=1)
    bench.put(Flit(CLUSTER, AGENT, FlitType.CU_DATA, 0x44, 0, 0, descriptor))
    for number, word in enumerate(block):
        source = (AGENT, OTHER)[number % 2]
        bench.put(Flit(CLUSTER, source, FlitType.CU_DATA, 0x45, int(number == 1), 0, word))
        bench.put(Flit(CLUSTER, AGENT, 0xA + number, 0x46, 1, 0, word))
    bench.run(0, 1)
    expected, _ = mxfp7.unpack(words.from_ints(block).reshape(1, 4, 8), "A")
    assert (bench.cluster.side[Side.A].read(np.array([0]))[0] == expected).all()
    assert tuple(bench.signals[0])[1:] == (RECEIVED, 0, 0x44, AGENT)


@pytest.mark.parametrize("kind", [FlitType.MEM_RD_REQ, FlitType.MEM_WR_REQ, FlitType.MEM_WR_DATA, FlitType.CU_SIGNAL,
                                  9, 10, 11, 12, 13, 14, FlitType.ERROR])  # fmt: skip
def test_types_that_are_not_for_a_unit_are_dropped(bench, kind):
    bench.put(Flit(CLUSTER, AGENT, kind, 1, 1, 0, (1 << 256) - 1))
    bench.instruct(WORD.pack(op=0))
    bench.run(1)
    bench.engine.advance(50)
    assert len(bench.received) == 1 and not bench.cluster.recv


@pytest.mark.parametrize("tile, pairs, dangling", [(0, 9, 0), (2, 1, 1), (5, 0, 1), (0, 128, 0)])
def test_peer_add(tile, pairs, dangling):
    rig = Rig()
    rig.operands(16, 8, 1)
    rig.gemm(16, 8, 1)
    rig.run()
    donor = Reference()
    donor.l1 = rig.reference.l1
    donor.gemm(16, 8, 1, anchor=42)
    granules = donor.send(512)[2 * tile : 2 * (tile + pairs) + dangling]
    granules = [word | (i % 2) * (0xABCDEF << 200) for i, word in enumerate(granules)]  # bits above 352 do not count
    rig.bench.burst(2, 2 * tile, granules, flags=1)
    rig.reference.peer(2 * tile, granules)
    rig.bench.run(rig.done, 1)
    rig.issue(DRAIN.encode(addr=0x4000, n=128))
    rig.run(1)
    assert rig.memory(0x4000, 128) == rig.reference.emit(128)


def test_peer_streams_to_one_tile_back_to_back_all_count():
    rig = Rig()
    rig.operands(1, 1, 1)
    rig.gemm(1, 1, 1)
    rig.run()
    pair = rig.reference.send(1)
    for _ in range(5):
        rig.bench.burst(2, 0, pair)
        rig.reference.peer(0, pair)
    rig.issue(GEMM.encode(gm=1, gn=1, acc=1))
    rig.bench.engine.advance(200)
    rig.reference.gemm(1, 1, 1, acc=1)
    rig.issue(DRAIN.encode(addr=0x4000, n=1))
    rig.run()
    assert rig.memory(0x4000, 1) == rig.reference.emit(1)


@pytest.mark.parametrize("refuse", [None, lambda now: now % 4], ids=["free link", "slow link"])
def test_a_stream_that_comes_during_a_drain_adds_after_it(refuse):
    """Also while the drain's commands are held because the result queue is full."""
    rig = Rig(refuse=refuse)
    rig.operands(16, 16, 1)
    emitted = rig.gemm(16, 16, 1)
    rig.run()
    rig.issue(DRAIN.encode(addr=0x4000, n=256))
    rig.bench.engine.advance(250)
    pair = rig.reference.send(1)
    rig.bench.burst(2, 2 * 250, pair, flags=1)
    rig.reference.peer(2 * 250, pair)
    rig.run(1)
    assert rig.bench.cluster.peer_command >= rig.bench.cluster.drain.last_command + 5
    rig.issue(DRAIN.encode(addr=0x8000, n=256))
    rig.run(1)
    assert rig.memory(0x4000, 256) == emitted
    assert rig.memory(0x8000, 256) == rig.reference.emit(256) != emitted


def test_two_clusters_add_partial_sums():
    """SEND of one cluster is the peer burst of another: a split K ends in the same tile as the adder says."""
    left, right = Rig(), Rig()
    left.operands(3, 3, 2, seed=1)
    right.operands(3, 3, 2, seed=5)
    left.gemm(3, 3, 2)
    right.gemm(3, 3, 2)
    left.issue(DRAIN.encode(n=9, dnode=1, dst_x=1, dst_y=0, dbuf=2, dflags=1, dack_x=1, dack_y=1))
    left.run()
    right.run()
    flits = [f._replace(dst=CLUSTER) for f in sent(left.bench, FlitType.CU_DATA)]
    for flit in flits:
        right.bench.put(flit)
    right.run(3)
    right.reference.peer(0, left.reference.send(9))
    right.issue(DRAIN.encode(addr=0x4000, n=9))
    right.run(3)
    assert right.memory(0x4000, 9) == right.reference.emit(9)
    assert [s.txn for s in right.bench.signals if s.code == RECEIVED] == [0x02] * 3


def test_an_acknowledgement_that_cannot_leave_holds_the_next_burst():
    free = [True]
    bench = ClusterBench(UNIT, refuse=lambda now: not free[0])
    free[0] = False
    bench.burst(0, 0, payloads(4), flags=1)
    bench.burst(0, 4, payloads(4), flags=1)
    bench.engine.advance(100)
    # the first answer is in the output register, the second in the unit's; a third burst would wait
    bench.burst(0, 8, payloads(4), flags=1)
    bench.engine.advance(100)
    assert len(bench.cluster.recv) == 5 and not bench.signals
    free[0] = True
    bench.run(0, 3)
    assert [s.code for s in bench.signals] == [RECEIVED] * 3
