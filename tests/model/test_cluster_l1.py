"""FILL and the L1 it writes (spec: cluster, L1)."""

import sys
from pathlib import Path

import numpy as np
import pytest

from kohakutpu.conformance.cluster import AGENT, CLUSTER, PORT, ClusterBench
from kohakutpu.formats import mxfp7, words
from kohakutpu.fuzz.cluster_reference import Reference
from kohakutpu.isa.cluster import DRAIN, FILL, GEMM, Side
from kohakutpu.isa.flit import Flit, FlitType
from kohakutpu.isa.memory import MEM_REQ
from kohakutpu.machine import ClusterUnit

sys.path.insert(0, str(Path(__file__).parent))
from cluster_rig import FAULT, INST, UNIT, Rig, answer, blocks_of, sent  # noqa: E402


@pytest.fixture
def bench():
    return ClusterBench(UNIT)


def test_fill_wraps_inside_its_bank_and_drops_the_bank_bit_on_a_small_side():
    rig = Rig()
    a = blocks_of(3, 4, "A")
    rig.fill("A", 1, 254, a)
    rig.fill("B", 0, 0, blocks_of(4, 4, "B"))
    rig.gemm(4, 4, 1, aoff=254, abank=1)
    rig.issue(DRAIN.encode(addr=0x8000, n=16))
    rig.run()
    assert rig.memory(0x8000, 16) == rig.reference.emit(16)

    small = Rig(ClusterUnit(2, 1, tiles=16, a_entries=32, b_entries=32))
    small.fill("A", 1, 30, a)  # entries 30, 31, 0, 1
    small.fill("B", 1, 0, blocks_of(4, 4, "B"))
    small.gemm(4, 4, 1, aoff=30, bbank=1)
    small.issue(DRAIN.encode(addr=0x8000, n=16))
    small.run()
    assert small.memory(0x8000, 16) == small.reference.emit(16) == rig.memory(0x8000, 16)


def test_fill_counts_zero_as_one_and_255_is_the_most():
    rig = Rig()
    rig.fill("A", 0, 0, blocks_of(1, 255, "A"))
    rig.issue(FILL.encode(addr=0, n=0, preq=1))
    rig.run()
    assert [s.arg for s in rig.bench.signals] == [1, 2]
    assert len(sent(rig.bench, FlitType.MEM_RD_REQ)) == 2
    assert MEM_REQ.get(sent(rig.bench, FlitType.MEM_RD_REQ)[1].payload, "count") == 1


def test_fill_of_more_than_255_faults_and_asks_for_nothing(bench):
    bench.instruct(FILL.pack(addr=0, n=256, preq=1))
    bench.instruct(FILL.encode(addr=0, n=1, preq=1))
    bench.run(2)
    assert [(s.code, s.arg) for s in bench.signals] == [(FAULT, 0), (INST, 1)]
    assert len(sent(bench, FlitType.MEM_RD_REQ)) == 1


@pytest.mark.parametrize("peers, leads", [
    ((), True), ((0x13,), True), ((0x13, 0xFF, 0x20), True), ((0x12,), False), ((0x11,), False), ((0x20, 0x11), False),
])  # fmt: skip
def test_only_the_lowest_node_of_a_shared_fetch_asks(bench, peers, leads, monkeypatch):
    monkeypatch.setattr(ClusterBench, "_serve", lambda *_: None)
    fields = {"peers": int.from_bytes(bytes(peers), "little"), "npeer": len(peers)}
    bench.instruct(FILL.encode(addr=0x100, n=2, preq=1, eoff=5, **fields))
    bench.engine.advance(50)
    requests = sent(bench, FlitType.MEM_RD_REQ)
    assert len(requests) == leads
    if leads:
        assert MEM_REQ.get(requests[0].payload, "peers") == fields["peers"]
        assert MEM_REQ.get(requests[0].payload, "npeer") == fields["npeer"]
    a = blocks_of(3, 2, "A")
    for index, block in enumerate(a):
        for number, word in enumerate(block):
            answer(bench, 5 + index, number, word)
    bench.run(1)
    assert (bench.cluster.side[Side.A].read(np.array([5, 6]))[0] != 0).any()


def test_a_peer_beyond_npeer_is_not_looked_at(bench):
    bench.instruct(FILL.pack(addr=0, n=1, preq=1, peers=0x000100, npeer=0))
    bench.run(1)
    assert len(sent(bench, FlitType.MEM_RD_REQ)) == 1


def test_words_of_an_entry_may_come_in_any_order_before_word_3_and_scales_are_word_0s(monkeypatch):
    monkeypatch.setattr(ClusterBench, "_serve", lambda *_: None)
    bench = ClusterBench(UNIT)
    (block,) = blocks_of(5, 1, "A")
    spoiled = [block[0], block[1] ^ 0xFF, block[2] ^ 0xFFFF, block[3] ^ 0xFF000000]  # other words' scale bytes
    bench.instruct(FILL.encode(addr=0, n=1, preq=1))
    for number in (2, 0, 1, 3):
        answer(bench, 9, number, spoiled[number])
    bench.run(1)
    q, scale = bench.cluster.side[Side.A].read(np.array([9]))
    expected_q, expected = mxfp7.unpack(words.from_ints(block).reshape(1, 4, 8), "A")
    assert (q == expected_q).all() and (scale == expected).all()


def test_data_that_comes_before_its_fill_waits_and_is_used(monkeypatch):
    monkeypatch.setattr(ClusterBench, "_serve", lambda *_: None)
    bench = ClusterBench(UNIT)
    for number, word in enumerate(blocks_of(5, 1, "B")[0]):
        answer(bench, 3, number, word)
    bench.engine.advance(100)
    assert len(bench.cluster.recv) == 4 and not bench.signals
    bench.instruct(FILL.encode(addr=0, n=1, sel=1, preq=1, eoff=3))
    bench.run(1)
    # it retires, but not before it has asked: its request is the first thing it sends
    assert [flit.type for _, flit in bench.received] == [FlitType.MEM_RD_REQ, FlitType.CU_SIGNAL]


@pytest.mark.parametrize("skip", [True, False])
def test_a_fill_whose_data_is_all_there_still_asks_before_it_retires(monkeypatch, skip):
    """The link is blocked while the data lands, so the request leaves last; retirement is in the cycle after that."""
    monkeypatch.setattr(ClusterBench, "_serve", lambda *_: None)
    bench = ClusterBench(UNIT, skip=skip, refuse=lambda now: now < 60)
    bench.instruct(0)  # its completion holds the output register
    bench.instruct(FILL.encode(addr=0, n=1, preq=1))
    for number, word in enumerate(blocks_of(5, 1, "A")[0]):
        answer(bench, 0, number, word)
    bench.engine.advance(60)
    assert bench.cluster.landed == 1 and bench.cluster.operations == 0
    bench.run(2)
    assert [(cycle, flit.type) for cycle, flit in bench.received] == [
        (60, FlitType.CU_SIGNAL), (61, FlitType.MEM_RD_REQ), (63, FlitType.CU_SIGNAL),
    ]  # fmt: skip


def test_a_full_receive_fifo_before_the_fill_holds_the_link_and_loses_nothing(monkeypatch):
    monkeypatch.setattr(ClusterBench, "_serve", lambda *_: None)
    bench = ClusterBench(ClusterUnit(2, 1, tiles=512, a_entries=512, b_entries=512, recv_depth=8))
    blocks = blocks_of(5, 4, "A")
    bench.instruct(*[FILL.encode(addr=0, n=4, preq=1, peers=0x01, npeer=1)] * 2)
    for _ in range(2):
        for index, block in enumerate(blocks):
            for number, word in enumerate(block):
                answer(bench, index, number, word)
    bench.run(2)
    expected, _ = mxfp7.unpack(words.from_ints([w for b in blocks for w in b]).reshape(4, 4, 8), "A")
    assert (bench.cluster.side[Side.A].read(np.arange(4))[0] == expected).all()


def test_write_acknowledgements_pass_a_full_receive_fifo(monkeypatch):
    monkeypatch.setattr(ClusterBench, "_serve", lambda *_: None)
    bench = ClusterBench(ClusterUnit(2, 1, tiles=512, recv_depth=2))
    for number in range(2):
        answer(bench, 0, number, 0)
    for _ in range(3):
        bench.put(Flit(CLUSTER, PORT, FlitType.MEM_WR_ACK, 2, 1, 0, 0))
    bench.engine.advance(20)
    assert bench.out.count == 5 and len(bench.cluster.recv) == 2


def test_quantised_fill_equals_a_prequantised_one(bench):
    rng = np.random.default_rng(8)
    source = rng.standard_normal((6, 4, 32)).astype(np.float16).view(np.uint16)
    bench.write(0, source)
    for side, address in ((Side.A, 0x8000), (Side.B, 0x9000)):
        bench.write(address, mxfp7.pack(*mxfp7.quantise(source), side.name))
        bench.instruct(FILL.encode(addr=0, n=6, sel=side), FILL.encode(addr=address, n=6, sel=side, preq=1, fbank=1))
    bench.run(4)
    for side in Side:
        converted, stored = (bench.cluster.side[side].read(first + np.arange(6)) for first in (0, 256))
        assert (converted[0] == stored[0]).all() and (converted[1] == stored[1]).all() and converted[0].any()


def test_an_issue_reads_what_l1_held_when_it_was_issued(bench):
    """No interlock: a burst that overwrites B entries in use splits the K blocks at its own speed."""
    old, new, a = blocks_of(1, 64, "B"), blocks_of(2, 64, "B"), blocks_of(3, 64, "A")
    reference = Reference()
    bench.load(Side.A, 0, words.from_ints([w for e in a for w in e]).reshape(-1, 4, 8))
    bench.load(Side.B, 0, words.from_ints([w for e in old for w in e]).reshape(-1, 4, 8))
    bench.run(0, 2)
    bench.instruct(GEMM.encode(gm=16, gn=16, nk=4))
    bench.run(1, 2)
    start = bench.cluster.sweep.start
    bench.burst(1, 0, [w for e in new for w in e], flags=1, ack=AGENT)
    first = bench.engine.now + 1  # the descriptor's cycle at the port; entry e's word 3 is popped 4e+5 later
    bench.instruct(DRAIN.encode(addr=0x4000, n=256))
    bench.run(2, 3)
    reference.fill("A", 0, 0, a)
    for e in range(64):
        reference.l1["B"][e] = old[e]
    popped = [first + 4 * e + 5 for e in range(64)]
    overwritten, at = 0, 0
    for kb in range(4):
        for g in range(16):
            for h in range(16):
                issue = start + 1 + at
                at += 1
                while overwritten < 64 and popped[overwritten] < issue:
                    reference.l1["B"][overwritten] = new[overwritten]
                    overwritten += 1
                tile = reference.tiles[16 * g + h]
                one = Reference()
                one.l1["A"][0], one.l1["B"][0] = reference.l1["A"][4 * g + kb], reference.l1["B"][4 * h + kb]
                one.tiles[0] = tile
                one.gemm(1, 1, 1, acc=int(kb > 0))
    assert 8 < overwritten <= 64
    got = words.to_ints(bench.memory[0x4000 : 0x4000 + 8192].view("<u4").reshape(256, 8))
    assert got == reference.emit(256)
