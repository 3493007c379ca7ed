"""A cluster end to end, its retirements, CU_CTRL, and the faults it can be given (spec: cluster)."""

import sys
from pathlib import Path

import numpy as np
import pytest

from kohakutpu.conformance.cluster import AGENT, CLUSTER, PORT, ClusterBench
from kohakutpu.formats import words
from kohakutpu.formats.accumulator import AccumulatorFormat
from kohakutpu.fuzz.cluster_reference import Reference, entry
from kohakutpu.isa.cluster import DRAIN, FILL, GEMM, WORD, Side
from kohakutpu.isa.flit import Flit, FlitType, node
from kohakutpu.isa.memory import MEM_REQ, MEM_WR
from kohakutpu.isa.signals import CU_CAPS, CU_CTRL_REPLY, CU_CTRL_REQUEST, CU_DATA
from kohakutpu.machine import ClusterUnit, load
from kohakutpu.model import faults as registry
from kohakutpu.model.cluster import FAULTS, build_cluster
from kohakutpu.noc.engine import Engine

sys.path.insert(0, str(Path(__file__).parent))
from cluster_rig import BATCH, INST, OTHER, UNIT, Rig, blocks_of, payloads, sent  # noqa: E402


@pytest.fixture
def bench():
    return ClusterBench(UNIT)


# ---- the spec's vectors ------------------------------------------------------------------------------------

C_WORDS = """
eb98f8e4e300e3ab7bff7632f34eebbf77d4751ef87a684d69537501ed065d9a
f57f737eef35e6f0774571ad70fb6ba5796570917106f041e9e168c06d136e14
7485f0dc745f67beec976fd6f8ae7bfff80b739576717625ed25e57ce3616658
6425739ff07fea33e959f7b4de88e2e17bff78aaf536ecd9782079ff6728ee8d
fbff7bffe8b3f91ef46c71f2eda5e5e778fd72d773726c1c788c73ce727cf394
744ef81b7a4ef4e87312ef8a726f65cbeea6713bfb1e7bfff83171b1704f770e
"""
GRANULES = """
62f93631fccd3732bbec4df4e9351dbce1e71284cb4a54b935014cb41a11d9a4
000000000000000000000000000000000000000000cae60738e48c8c00323aab4f
"""


def worked_operands():
    a = [
        entry([[(7 * e + 13 * lane + 29 * k + 5) % 127 - 63 for k in range(32)] for lane in range(4)],
              [8 * (18 + (e + 2 * lane) % 5) + (3 * e + lane) % 8 for lane in range(4)], "A")
        for e in range(4)
    ]  # fmt: skip
    b = [
        entry([[(11 * e + 17 * lane + 23 * k + 3) % 127 - 63 for k in range(32)] for lane in range(4)],
              [8 * (17 + (2 * e + lane) % 5) + (e + 5 * lane) % 8 for lane in range(4)], "B")
        for e in range(6)
    ]  # fmt: skip
    return a, b


def test_the_worked_example_end_to_end():
    rig = Rig()
    a, b = worked_operands()
    assert f"{a[0][0]:064x}" == "8d8c01d7563a92a7c06aa919411fc1f4d37abc87acda293c5c5fce3990a1b29b"
    assert f"{b[0][0]:064x}" == "8957377b7b3e8ee40ca2512695bc40c61d46f26d6b9f83882cddc41988959aa7"
    rig.fill("A", 0, 0, a)
    rig.fill("B", 0, 0, b)
    emitted = rig.gemm(2, 3, 2)
    rig.issue(DRAIN.encode(addr=0x4000, n=6), DRAIN.encode(n=1, dnode=1, dst_x=1, dst_y=1, dbuf=2))
    rig.run()
    assert rig.memory(0x4000, 6) == [int(line, 16) for line in C_WORDS.split()] == emitted
    assert rig.bench.node_words(AGENT) == [int(line, 16) for line in GRANULES.split()]


# The spec's golden payloads and what each must make the cluster send.
FILLS = {
    "1000008000008200000128000000206000010000000000000000000000000000": (
        dict(addr=0x2000, count=32, stream=1, blayout=1, quant=0, len=3), 3),
    "1048d15800000400000128000000000000000000000000130000000000000000": (
        dict(addr=0x9812345600, count=1, stream=1, blayout=0, quant=1, len=3), 0),
}  # fmt: skip


@pytest.mark.parametrize("payload", FILLS)
def test_golden_fill_payloads_become_one_read_request(bench, payload, monkeypatch):
    monkeypatch.setattr(ClusterBench, "_serve", lambda *_: None)
    bench.instruct(int(payload, 16))
    bench.engine.advance(100)
    ((_, flit),) = bench.received
    fields, txn = FILLS[payload]
    assert flit == Flit(PORT, CLUSTER, FlitType.MEM_RD_REQ, txn, 1, 0, MEM_REQ.encode(**fields))


def test_golden_gemm_payload_reads_banks_and_offsets_and_keeps_the_tile():
    """2000... 8x8 nk4 acc aoff1 boff2, both in bank 1."""
    rig = Rig()
    rig.fill("A", 1, 1, blocks_of(1, 32, "A"))
    rig.fill("B", 1, 2, blocks_of(2, 32, "B"))
    rig.issue(0x2000000000000108080428000000000020460000000000000000000000000000)
    rig.reference.gemm(8, 8, 4, acc=1, aoff=1, boff=2, abank=1, bbank=1)
    rig.issue(0x3000010000010000000128000000000000000000000000000000000000000000)  # DRAIN addr 4000 n64
    rig.run()
    assert rig.memory(0x4000, 64) == rig.reference.emit(64)


def test_golden_emitting_gemm_and_its_fused_drain():
    """GEMM 16x32 nk2 emit addr 4000, DRAIN addr 4000 n512 fuse."""
    rig = Rig()
    rig.operands(16, 32, 2)
    rig.issue(
        0x2000010000000010200228000000000000100000000000000000000000000000,
        0x3000010000080000000128000000000000080000000000000000000000000000,
    )
    rig.run()
    got = rig.bench.memory[0x4000 : 0x4000 + 512 * 32].view("<u2").reshape(512, 16)
    tiles = rig.bench.cluster.tiles
    assert (got == tiles.format.to_fp16(tiles.words)).all()
    descriptors = sent(rig.bench, FlitType.MEM_WR_REQ)
    assert [MEM_WR.decode(flit.payload) for flit in descriptors] == [
        {"addr": 0x4000 + 256 * i, "len": 7} for i in range(64)
    ]


def test_golden_node_drain_payload_with_buffer_2_sends_floats():
    """DRAIN addr 40 n9 dnode dst(3,2) buf2 fl1 ack(1,4): 18 granules in bursts of 8, 8, 2 from granule 2."""
    rig = Rig()
    rig.operands(3, 3, 1)
    rig.gemm(3, 3, 1)
    rig.issue(0x300000010000240000012800000000000000990100A080000000000000000000)
    rig.run()
    target = node(3, 2)
    assert rig.bench.node_words(target) == rig.reference.send(9)
    flits = [flit for flit in sent(rig.bench, FlitType.CU_DATA) if flit.dst == target]
    assert {(f.src, f.txn, f.rsvd) for f in flits} == {(CLUSTER, 0x02, 0)}
    starts = [0, 9, 18]
    assert [CU_DATA.decode(flits[at].payload) for at in starts] == [
        {"buf": 2, "offset": 2 + 8 * i, "len": length, "flags": 1, "ack_y": 4, "ack_x": 1}
        for i, length in enumerate((7, 7, 1))
    ]
    assert [at for at, flit in enumerate(flits) if flit.last] == [8, 17, 20]


def test_golden_remote_drain_payload_marks_every_flit():
    """DRAIN ... dst(0,1) buf0 fl1 ack(1,4) mesh2 dfin(1,3)."""
    rig = Rig()
    rig.operands(3, 3, 1)
    emitted = rig.gemm(3, 3, 1)
    rig.issue(0x300000010000240000012800000000000000808000A0C6200000000000000000)
    rig.run()
    flits = sent(rig.bench, FlitType.CU_DATA)
    assert {(f.dst, f.txn, f.rsvd) for f in flits} == {(PORT, node(1, 3), 0b110)}
    assert rig.bench.node_words(PORT) == emitted
    assert [CU_DATA.get(flits[at].payload, "ack_y") for at in (0, 9)] == [4, 4]


def test_remote_drain_to_memory_marks_descriptor_and_data(monkeypatch):
    rig = Rig()
    rig.operands(1, 2, 1)
    rig.gemm(1, 2, 1)
    rig.issue(DRAIN.pack(addr=0x40, n=2, dmesh=3, dfin=0x25))
    rig.run()
    flits = sent(rig.bench, FlitType.MEM_WR_REQ, FlitType.MEM_WR_DATA)
    assert [(f.type, f.dst, f.txn, f.rsvd, f.last) for f in flits] == [
        (FlitType.MEM_WR_REQ, PORT, 0x25, 7, 0), (FlitType.MEM_WR_DATA, PORT, 0x25, 7, 0),
        (FlitType.MEM_WR_DATA, PORT, 0x25, 7, 1),
    ]  # fmt: skip


def test_a_mesh_number_without_a_far_endpoint_is_not_remote():
    rig = Rig()
    rig.issue(DRAIN.pack(addr=0x40, n=1, dmesh=3))
    rig.run()
    assert {(f.txn, f.rsvd) for f in sent(rig.bench, FlitType.MEM_WR_REQ, FlitType.MEM_WR_DATA)} == {(0x02, 0)}


# ---- retirement --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opcode", [0, 4, 7, 15])
def test_unknown_opcodes_retire_with_no_effect(bench, opcode):
    bench.instruct(WORD.pack(op=opcode, n=5, gm=3, emit=1), txn=0x51)
    bench.instruct(WORD.pack(op=opcode), txn=0x54, last=1)
    bench.run(2)
    assert [tuple(s)[1:4] for s in bench.signals] == [(INST, 0, 0x51), (BATCH, 0x54, 0x54)]
    assert len(bench.received) == 2


def test_completions_count_fills_gemms_and_drains_and_go_to_the_instructions_source():
    rig = Rig()
    rig.operands(2, 2, 1)
    rig.gemm(2, 2, 1)
    rig.issue(WORD.pack(op=9), DRAIN.encode(addr=0x4000, n=4))
    rig.bench.put(Flit(CLUSTER, OTHER, FlitType.CU_INST, 0x99, 1, 0, GEMM.encode(gm=1, gn=1)))
    rig.done += 1
    rig.run()
    assert [(s.code, s.arg) for s in rig.bench.signals] == [
        (INST, 1), (INST, 2), (INST, 3), (INST, 3), (INST, 4), (BATCH, 0x99),
    ]  # fmt: skip
    assert [s.dst for s in rig.bench.signals] == [AGENT] * 5 + [OTHER]


def test_the_operation_count_wraps_at_16_bits(bench):
    bench.cluster.operations = 65535
    bench.instruct(GEMM.encode(gm=1, gn=1))
    bench.run(1)
    assert bench.signals[0].arg == 0


# ---- control and description -------------------------------------------------------------------------------


def control(bench, index):
    before = len(sent(bench, FlitType.CU_CTRL))
    bench.put(Flit(CLUSTER, AGENT, FlitType.CU_CTRL, 0x11, 1, 0, CU_CTRL_REQUEST.pack(index=index)))
    assert bench.engine.run(lambda: len(sent(bench, FlitType.CU_CTRL)) > before, 100)
    return CU_CTRL_REPLY.get(sent(bench, FlitType.CU_CTRL)[-1].payload, "value")


def test_caps_are_those_of_the_recordings():
    bench = ClusterBench(ClusterUnit(2, 1, inst_depth=64))
    caps = CU_CAPS.encode(type=0x4D47, version=4, buffers=2, inst_depth=64)
    assert control(bench, 0) == caps == 0x4D47_04_2_0040_00000


def test_the_debug_word_counts_array_and_fill_cycles():
    rig = Rig()
    rig.operands(4, 4, 2)
    rig.run()
    value = control(rig.bench, 3)
    assert value >> 32 == 0
    fills = value & 0xFFFFFFFF
    n, latency = 8, rig.bench.latency
    assert fills == 2 * (4 * n + latency + 2)  # taken to retired; FILL to FILL is one more
    rig.gemm(4, 4, 2)
    rig.gemm(4, 4, 2)
    rig.run()
    rig.bench.engine.advance(200)
    value = control(rig.bench, 3)
    assert value >> 32 == 64 + 19 and value & 0xFFFFFFFF == fills  # two sweeps without a gap, and the array behind them
    rig.gemm(1, 1, 1)
    rig.run()
    rig.bench.engine.advance(200)
    assert control(rig.bench, 3) >> 32 == 64 + 19 + 20


def test_a_stuck_cluster_says_what_it_waits_for(monkeypatch):
    monkeypatch.setattr(ClusterBench, "_serve", lambda *_: None)
    bench = ClusterBench(UNIT)
    bench.instruct(FILL.encode(addr=0, n=7, sel=1, preq=1))
    bench.burst(0, 0, payloads(2), length=5)
    with pytest.raises(TimeoutError) as stuck:
        bench.run(1, budget=500)
    text = str(stuck.value)
    assert "FILL of 7 entries into B: 0 have landed, waiting for memory at (0, 1)" in text
    assert "open burst from (1, 1) into buffer 0: L1, 3 data flits to come" in text

    monkeypatch.undo()
    bench = ClusterBench(UNIT)
    bench.instruct(GEMM.encode(gm=13, gn=13, emit=1))
    with pytest.raises(TimeoutError) as stuck:
        bench.run(2, budget=2000)
    assert "0 of 169 granules sent, 128 issued and waiting, not bound to a destination" in str(stuck.value)


def test_build_cluster_takes_everything_from_the_machine():
    machine = load("ship_3x2")
    engine = Engine()
    units = [build_cluster(engine, spec, machine=machine) for spec in machine.clusters]
    assert [unit.name for unit in units] == [f"cluster{i}" for i in range(6)]
    assert [unit.node for unit in units] == [spec.node for spec in machine.clusters]
    assert [unit.port for unit in units] == [machine.port_of(spec).node for spec in machine.clusters]
    assert {(unit.tiles.tiles, unit.side[Side.A].entries, unit.inst.depth, unit.recv.depth) for unit in units} == {
        (4096, 512, 512, 512)
    }


@pytest.mark.parametrize("sizes, text", [
    (dict(tiles=4), "accumulator of 4 tiles"), (dict(tiles=24), "accumulator of 24 tiles"),
    (dict(a_entries=48), "L1 side A: 48 entries"), (dict(b_entries=1024), "L1 side B: 1024 entries"),
    (dict(mantissa=9), "mantissa"),
])  # fmt: skip
def test_sizes_that_cannot_be_built_are_refused_by_name(sizes, text):
    with pytest.raises(ValueError, match=text):
        ClusterBench(ClusterUnit(2, 1, **sizes))


@pytest.mark.parametrize("mantissa", [10, 12, 16])
def test_other_mantissa_widths_drain_and_send(mantissa):
    rig = Rig(ClusterUnit(2, 1, tiles=16, mantissa=mantissa))
    rig.operands(2, 2, 3)
    rig.gemm(2, 2, 3)
    rig.issue(DRAIN.encode(addr=0x4000, n=4), DRAIN.encode(n=4, dnode=1, dst_x=1, dst_y=1, dbuf=2))
    rig.run()
    fmt = rig.bench.cluster.tiles.format
    tile = fmt.unpack_granules(words.from_ints(rig.bench.node_words(AGENT)).reshape(-1, 2, 8))
    assert words.from_ints(rig.memory(0x4000, 4)).tolist() == fmt.emit_words(tile).tolist()
    exact = fmt.to_float(tile)
    wide = AccumulatorFormat(14).to_float(np.array(rig.reference.tiles[:4], dtype=np.uint32))
    assert np.allclose(exact, wide, rtol=2.0 ** -(mantissa - 3), atol=1e-3 * np.abs(wide).max())


# ---- planted faults ----------------------------------------------------------------------------------------


def program(faults=frozenset()):
    """A run that every fault of the table shows in; returns what was seen, without cycles."""
    rig = Rig(faults=faults)
    rig.operands(2, 2, 4)
    rig.operands(2, 2, 4, seed=7, bank=1)
    rig.gemm(2, 2, 4)
    rig.issue(DRAIN.encode(addr=0x4000, n=4))
    rig.gemm(2, 2, 4, acc=1, abank=1, bbank=1)
    rig.issue(DRAIN.encode(n=4, dnode=1, dst_x=1, dst_y=0, dflags=1, dack_x=1, dack_y=1))
    rig.bench.burst(0, 0, payloads(4), flags=1, ack=OTHER)
    rig.bench.engine.run(lambda: False, 3000)
    return [flit for _, flit in rig.bench.received]


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_shows(fault):
    assert program(frozenset({fault})) != program()


def test_faults_do_what_their_table_says():
    clean = program()

    def under(name):
        return program(frozenset({name}))

    completions = [f for f in clean if f.type == FlitType.CU_SIGNAL and f.dst == AGENT]
    assert len([f for f in under("cluster-lost-completion") if f.type == FlitType.CU_SIGNAL and f.dst == AGENT]) == (
        len(completions) - 1
    )
    assert [f.dst for f in clean if f.type == FlitType.CU_SIGNAL and f.dst == OTHER] == [OTHER]
    assert not [f for f in under("cluster-ack-source") if f.type == FlitType.CU_SIGNAL and f.dst == OTHER]
    assert [f.last for f in clean if f.type == FlitType.MEM_WR_DATA] == [0, 0, 0, 1]
    assert [f.last for f in under("cluster-last-dropped") if f.type == FlitType.MEM_WR_DATA] == [0] * 4
    (descriptor,) = [f for f in under("cluster-drain-ack") if f.type == FlitType.CU_DATA][:1]
    assert CU_DATA.get(descriptor.payload, "ack_x") == CU_DATA.get(descriptor.payload, "ack_y") == 0
    runs = clean, under("cluster-tile-bit")
    first = [next(f.payload for f in run if f.type == FlitType.MEM_WR_DATA) for run in runs]
    assert first[0] != first[1] and first[0] >> 16 == first[1] >> 16  # lane 0 alone


def test_unpaced_sweeps_lose_the_earlier_of_two_close_adds():
    """gm = gn = 2 without pacing: two K blocks are in flight to a tile, so blocks 0 and 2 never meet 1 and 3."""
    rig = Rig(faults=frozenset({"cluster-pacing"}))
    rig.operands(2, 2, 4)
    rig.gemm(2, 2, 4)
    rig.issue(DRAIN.encode(addr=0x4000, n=4))
    rig.run()
    # distance 4: the add of block k sees the tile of block k - 2
    odd = Reference()
    odd.l1 = rig.reference.l1
    for kb in (1, 3):
        for g in range(2):
            for h in range(2):
                one = Reference(tiles=8)
                one.l1["A"][0], one.l1["B"][0] = odd.l1["A"][4 * g + kb], odd.l1["B"][4 * h + kb]
                one.tiles[0] = odd.tiles[2 * g + h]
                one.gemm(1, 1, 1, acc=1)
    assert rig.memory(0x4000, 4) == odd.emit(4) != rig.reference.emit(4)


def test_the_fault_table_is_registered():
    assert registry.check(FAULTS) == frozenset(FAULTS)
