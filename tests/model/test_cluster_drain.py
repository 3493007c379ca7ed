"""Drains to memory and to nodes, fused ones and their errata (spec: cluster, DRAIN; errata)."""

import sys
from pathlib import Path

import pytest

from kohakutpu.conformance.cluster import AGENT, CLUSTER, PORT, ClusterBench
from kohakutpu.isa.cluster import DRAIN
from kohakutpu.isa.flit import FlitType
from kohakutpu.isa.memory import MEM_WR
from kohakutpu.isa.signals import CU_DATA
from kohakutpu.machine import ClusterUnit

sys.path.insert(0, str(Path(__file__).parent))
from cluster_rig import FAULT, INST, Rig, blocks_of, sent  # noqa: E402

# ---- explicit ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 16, 17])
def test_memory_drain_cuts_bursts_of_eight(n):
    rig = Rig()
    rig.operands(4, 5, 1)
    rig.gemm(4, 5, 1)
    rig.issue(DRAIN.encode(addr=0x4020, n=n))
    rig.run()
    count = max(n, 1)
    assert rig.memory(0x4020, count) == rig.reference.emit(count)
    memory = rig.bench.memory
    assert (memory[0x4000:0x4020] == 0xAA).all() and (memory[0x4020 + 32 * count :][:64] == 0xAA).all()
    flits = sent(rig.bench, FlitType.MEM_WR_REQ, FlitType.MEM_WR_DATA)
    expected = []
    for start in range(0, count, 8):
        length = min(8, count - start)
        expected.append((FlitType.MEM_WR_REQ, 0, MEM_WR.encode(addr=0x4020 + 32 * start, len=length - 1)))
        expected += [(FlitType.MEM_WR_DATA, int(i == length - 1), None) for i in range(length)]
    got = [(f.type, f.last, f.payload if f.type == FlitType.MEM_WR_REQ else None) for f in flits]
    assert got == expected
    assert {(f.dst, f.src, f.txn, f.rsvd) for f in flits} == {(PORT, CLUSTER, 2, 0)}


def test_addresses_have_40_bits_and_node_offsets_16(monkeypatch):
    monkeypatch.setattr(ClusterBench, "_serve", lambda *_: None)
    rig = Rig()
    rig.issue(DRAIN.encode(addr=0xFFFFFFFF00, n=16), DRAIN.encode(addr=0x7F001FFFC0, n=10, dnode=1, dst_x=1, dst_y=1))
    rig.run()
    writes = [MEM_WR.get(f.payload, "addr") for f in sent(rig.bench, FlitType.MEM_WR_REQ)]
    assert writes == [0xFFFFFFFF00, 0]
    flits = sent(rig.bench, FlitType.CU_DATA)
    assert [CU_DATA.get(flits[at].payload, "offset") for at in (0, 9)] == [0xFFFE, 0x0006]


def test_buffer_2_to_memory_is_plain_fp16_and_to_a_node_is_floats():
    rig = Rig()
    rig.operands(2, 2, 1)
    emitted = rig.gemm(2, 2, 1)
    rig.issue(DRAIN.pack(addr=0x4000, n=4, dbuf=2), DRAIN.encode(n=4, dnode=1, dst_x=1, dst_y=1, dbuf=2))
    rig.run()
    assert rig.memory(0x4000, 4) == emitted
    assert rig.bench.node_words(AGENT) == rig.reference.send(4)
    assert all(word >> 96 == 0 for word in rig.bench.node_words(AGENT)[1::2])


def test_flags_and_acknowledgement_fields_are_copied_verbatim():
    rig = Rig()
    rig.issue(DRAIN.encode(n=1, dnode=1, dst_x=1, dst_y=1, dbuf=0x83, dflags=0xA4, dack_x=9, dack_y=6))
    rig.run()
    descriptor = CU_DATA.decode(sent(rig.bench, FlitType.CU_DATA)[0].payload)
    assert descriptor == {"buf": 0x83, "offset": 0, "len": 0, "flags": 0xA4, "ack_y": 6, "ack_x": 9}


def test_a_drain_longer_than_the_tile_store_wraps():
    rig = Rig(ClusterUnit(2, 1, tiles=8))
    rig.operands(2, 4, 1)
    emitted = rig.gemm(2, 4, 1)
    rig.issue(DRAIN.encode(addr=0x4000, n=20))
    rig.run()
    assert rig.memory(0x4000, 20) == (emitted * 3)[:20]


@pytest.mark.parametrize("tiles, gm, gn", [(8, 3, 5), (16, 6, 10), (32, 7, 11)])
def test_a_sweep_larger_than_the_tile_store_wraps(tiles, gm, gn):
    """A sub-tile's word is emitted before the next sub-tile of its address is added to it."""
    rig = Rig(ClusterUnit(2, 1, tiles=tiles, a_entries=32, b_entries=32))
    rig.operands(gm, gn, 2)
    emitted = rig.gemm(gm, gn, 2, emit=1, addr=0x4000)
    rig.issue(DRAIN.encode(addr=0x4000, n=gm * gn, fuse=1), DRAIN.encode(addr=0x8000, n=tiles))
    rig.run()
    assert rig.memory(0x4000, gm * gn) == emitted
    assert rig.memory(0x8000, tiles) == rig.reference.emit(tiles)


def test_a_tile_that_was_never_opened_reads_as_zero():
    rig = Rig()
    rig.operands(2, 2, 2)
    rig.issue(DRAIN.encode(addr=0x4000, n=4))
    rig.gemm(2, 2, 2, acc=1)
    rig.issue(DRAIN.encode(addr=0x5000, n=6))
    rig.run()
    assert rig.memory(0x4000, 4) == [0] * 4
    assert rig.memory(0x5000, 6) == rig.reference.emit(6)


# ---- fused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "gm, gn, nk, acc", [(1, 1, 1, 0), (3, 3, 1, 0), (1, 1, 1, 1), (2, 2, 3, 0), (1, 5, 4, 1), (12, 11, 1, 0)]
)
def test_every_emitting_gemm_emits(gm, gn, nk, acc):
    """Also with acc = 0 and nk = 1, where the published unit hangs: erratum emit-load."""
    rig = Rig()
    rig.operands(gm, gn, nk)
    rig.gemm(gm, gn, nk)
    emitted = rig.gemm(gm, gn, nk, emit=1, acc=acc, addr=0x4000)
    rig.issue(DRAIN.encode(addr=0x4000, n=gm * gn, fuse=1))
    rig.issue(DRAIN.encode(addr=0x8000, n=gm * gn))
    rig.run()
    assert rig.memory(0x4000, gm * gn) == emitted == rig.memory(0x8000, gm * gn)


@pytest.mark.parametrize("fills_between", [0, 1, 3])
def test_the_fused_drains_destination_rules(fills_between):
    """Erratum fused-drain-destination: whatever the timing, nothing goes where the GEMM pointed."""
    rig = Rig()
    rig.operands(13, 13, 1)
    emitted = rig.gemm(13, 13, 1, emit=1, addr=0x20000)
    for _ in range(fills_between):
        rig.fill("A", 1, 0, blocks_of(9, 60, "A"))
    rig.issue(DRAIN.encode(addr=0x4000, n=169, fuse=1))
    rig.run()
    assert rig.memory(0x4000, 169) == emitted
    assert (rig.bench.memory[0x20000:0x22000] == 0xAA).all()


def test_a_fused_drain_to_a_node_with_buffer_2_carries_fp16():
    rig = Rig()
    rig.operands(3, 3, 2)
    emitted = rig.gemm(3, 3, 2, emit=1)
    rig.issue(DRAIN.encode(addr=0x60, n=9, fuse=1, dnode=1, dst_x=1, dst_y=1, dbuf=2, dflags=1, dack_x=1, dack_y=1))
    rig.run()
    assert rig.bench.node_words(AGENT) == emitted
    first = CU_DATA.decode(sent(rig.bench, FlitType.CU_DATA)[0].payload)
    assert (first["buf"], first["offset"], first["len"]) == (2, 3, 7)


def test_other_gemms_may_run_before_the_fused_drain_and_the_batch_then_goes_where_its_own_gemm_said():
    rig = Rig()
    rig.operands(13, 13, 1)
    emitted = rig.gemm(13, 13, 1, emit=1, addr=0x4000)  # more sub-tiles than the result queue holds
    rig.gemm(2, 2, 1)
    rig.issue(DRAIN.encode(addr=0x10000, n=169, fuse=1), DRAIN.encode(addr=0x8000, n=4))
    rig.run()
    assert rig.memory(0x4000, 169) == emitted
    assert rig.memory(0x8000, 4) == rig.reference.emit(4)
    assert (rig.bench.memory[0x10000:0x12000] == 0xAA).all()


def test_two_emitting_gemms_and_an_explicit_drain_without_any_fused_drain():
    rig = Rig()
    rig.operands(13, 13, 1)
    first = rig.gemm(13, 13, 1, emit=1, addr=0x4000)
    second = rig.gemm(3, 3, 1, emit=1, acc=1, addr=0x8000)
    rig.issue(DRAIN.encode(addr=0xA000, n=9))
    rig.run()
    assert rig.memory(0x4000, 169) == first
    assert rig.memory(0x8000, 9) == second == rig.memory(0xA000, 9)
    assert {s.code for s in rig.bench.signals} == {INST}


def test_a_peer_stream_that_waits_for_a_held_sweep_releases_it():
    """The stream is ahead of the FILL's data, the FILL ahead of the DRAIN, the DRAIN ahead of the queue."""
    rig = Rig()
    rig.operands(13, 13, 1)
    rig.run()
    emitted = rig.gemm(13, 13, 1, emit=1, addr=0x4000)
    rig.run()
    rig.bench.burst(2, 0, [1, 0])
    rig.fill("A", 1, 0, blocks_of(9, 4, "A"))
    rig.issue(DRAIN.encode(addr=0x4000, n=169, fuse=1))
    rig.run()
    assert rig.memory(0x4000, 169) == emitted


@pytest.mark.parametrize("before", ["nothing", "explicit", "emitting"])
def test_a_fused_drain_that_matches_no_batch_faults_and_does_not_hang(before):
    rig = Rig()
    if before == "explicit":
        rig.issue(DRAIN.encode(addr=0x4000, n=4))
    elif before == "emitting":
        rig.gemm(3, 3, 1, emit=1, addr=0x4000)
    count = rig.done
    rig.issue(DRAIN.encode(addr=0x8000, n=4, fuse=1))
    rig.run()
    assert [s.code for s in rig.bench.signals] == [INST] * count + [FAULT]
    assert (rig.bench.memory[0x8000:0x8200] == 0xAA).all()
    if before == "emitting":  # what the GEMM emitted has left for where the GEMM said
        assert rig.memory(0x4000, 9) == [0] * 9


def test_a_second_fused_drain_of_the_same_batch_only_waits():
    rig = Rig()
    rig.operands(2, 2, 1)
    rig.gemm(2, 2, 1, emit=1, addr=0x4000)
    rig.issue(DRAIN.encode(addr=0x4000, n=4, fuse=1), DRAIN.encode(addr=0x8000, n=4, fuse=1))
    rig.run()
    assert [s.code for s in rig.bench.signals] == [INST] * 5
    assert len(sent(rig.bench, FlitType.MEM_WR_DATA)) == 4
