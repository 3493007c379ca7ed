"""Fills, drains and what they put on the link: bursts, order, addresses, L1 in the right cycle."""

import numpy as np
import pytest

from kohakutpu.conformance.vector import BENCH, PORT, UNIT, VectorBench, burst, integer
from kohakutpu.formats import e8m15
from kohakutpu.isa.assembler import assemble_words
from kohakutpu.isa.flit import Flit, FlitType
from kohakutpu.isa.memory import MEM_WR, decode_request
from kohakutpu.isa.signals import CU_DATA
from kohakutpu.isa.vector import DESC_DIM, PEER_RECORD
from kohakutpu.machine import VectorUnit
from kohakutpu.model.vector_memory import l1_walk, runs

FILLER = 0xAA
MEMORY = (1 << 40) - 1


def dim(ad, number, stride, bound):
    """(ad, field, value) of a dimension."""
    payload = DESC_DIM.encode(ad=ad, field=number + 1, stride=stride, bound=bound)
    return ad, number + 1, (DESC_DIM.get(payload, "stride") & 0x3FFFF) << 16 | bound


def word(value):
    """A 256-bit word that tells itself from others and from every rotation of itself."""
    return int.from_bytes(np.random.default_rng(value).bytes(32), "little")


def filled(bench):
    """L1 with a word of its own everywhere."""
    bench.core.load_l1(np.array([np.frombuffer(word(i).to_bytes(32, "little"), np.uint32) for i in range(512)]))
    return bench


def run(bench, text, descriptors=()):
    signal = bench.run(assemble_words(text), descriptors)
    assert signal.code == 0, f"fault {signal.arg}"
    return [flit for _, flit in bench.sent if flit.type not in (FlitType.CU_SIGNAL,)]


def requests(flits, kind):
    """(address, words) of every request of `kind`."""
    return [(burst(flit)[0], len(burst(flit))) for flit in flits if flit.type == kind]


# ---- how walks become bursts -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "base, dims, limit, expected",
    [
        (0, [(32, 5)], 256, [(0, 5)]),
        (0, [(32, 20)], 8, [(0, 8), (256, 8), (512, 4)]),
        (0xFE0, [(32, 3)], 256, [(0xFE0, 1), (0x1000, 2)]),
        (0x20, [(32, 256)], 256, [(0x20, 127), (0x1000, 128), (0x2000, 1)]),
        (0xF40, [(32, 9)], 8, [(0xF40, 6), (0x1000, 3)]),
        (0, [(64, 3)], 256, [(0, 1), (64, 1), (128, 1)]),
        (96, [(-32, 3)], 256, [(96, 1), (64, 1), (32, 1)]),
        (64, [(0, 3)], 256, [(64, 1)] * 3),
        (16, [(32, 3)], 256, [(16, 1), (48, 1), (80, 1)]),  # not aligned: passed through word by word
        (0, [(32, 2), (64, 2)], 256, [(0, 2), (64, 2)]),  # rows are not joined
        (0, [(32, 2), (4096, 2), (-32, 2)], 8, [(0, 2), (4096, 2), (-32 & MEMORY, 1), (0, 1), (4064, 1), (4096, 1)]),
        ((1 << 40) - 64, [(32, 4)], 256, [((1 << 40) - 64, 2), (0, 2)]),
        (0, [(7, 1), (32, 3)], 256, [(0, 1), (32, 1), (64, 1)]),
    ],
)  # fmt: skip
def test_runs(base, dims, limit, expected):
    dims = tuple((dims + [(0, 1)] * 4)[:4])
    assert list(runs(base, dims, limit)) == expected


def test_l1_walk_sticks_at_its_end():
    assert l1_walk(510, ((1, 3), (5, 2), (0, 1), (0, 1)), 8, 512).tolist() == [510, 511, 0, 3, 4, 5, 5, 5]
    assert l1_walk(1, ((-1, 4), (0, 1), (0, 1), (0, 1)), 4, 512).tolist() == [1, 0, 511, 510]


# ---- fills ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("l1", [0, 200, 256 - 3, 511, 500])
@pytest.mark.parametrize("count", [1, 7, 100, 256])
def test_fill_in_a_row(count, l1):
    """Every word where it belongs, past word 256 and around the end of L1, and no other word touched."""
    bench = filled(VectorBench())
    bench.memory.update({0x10000 + 32 * i: word(1000 + i) for i in range(count)})
    flits = run(bench, f"VFILL A2, {l1}\nVHALT", [(2, 0, 0x10000), dim(2, 0, 32, count)])
    pages = [(0x10000 + 4096 * p, min(128, count - 128 * p)) for p in range(-(-count // 128))]
    assert requests(flits, FlitType.MEM_RD_REQ) == pages
    assert [flit.txn for flit in flits] == [(l1 + 128 * p) % 512 % 256 for p in range(len(pages))]
    expected = {i: word(i) for i in range(512)} | {(l1 + i) % 512: word(1000 + i) for i in range(count)}
    assert [integer(row) for row in bench.core.l1_image()] == [expected[i] for i in range(512)]


def test_fill_request_is_a_plain_read():
    """No flag, no entry, no peer: header and payload in full."""
    bench = VectorBench()
    (flit,) = run(bench, "VFILL A2, 300\nVHALT", [(2, 0, 0x10000), dim(2, 0, 32, 4)])
    assert flit == Flit(PORT, UNIT.node, FlitType.MEM_RD_REQ, 300 & 255, 1, 0, flit.payload)
    fields = decode_request(flit.payload)._asdict()
    assert {name: value for name, value in fields.items() if value} == {"addr": 0x10000, "len": 3}


def test_high_address_bits_reach_memory():
    """Base bits 39:34, which sit apart in the DESC word, on reads and on writes."""
    base = 0xAB_CDEF_1000
    bench = filled(VectorBench())
    bench.memory[base] = word(77)
    flits = run(bench, "VFILL A2, 9\nVBAR\nVDRAIN A3, 9\nVHALT", [(2, 0, base), (3, 0, base ^ 0xFC_0000_0000)])
    assert requests(flits, FlitType.MEM_RD_REQ) == [(base, 1)]
    assert bench.memory[base ^ 0xFC_0000_0000] == word(77)


def test_strided_fill_sustains_a_request_a_cycle_up_to_the_outstanding_limit():
    bench = VectorBench(latency=100)
    run(bench, "VFILL A2, 0\nVHALT", [(2, 0, 0), dim(2, 0, 64, 64)])
    cycles = [cycle for cycle, flit in bench.sent if flit.type == FlitType.MEM_RD_REQ]
    first = cycles[0]
    assert cycles[:32] == list(range(first, first + 32))
    # the first response is on the link 100 cycles after its request; its slot is free two cycles later, and the
    # request loads the output register then
    assert cycles[32] == first + 100 + 2 + 1
    assert cycles[32:] == list(range(cycles[32], cycles[32] + 32))


def test_fill_target_wraps_while_a_burst_arrives():
    """A fill around the end of L1 with a CU_DATA burst into neighbouring words in between."""
    bench = filled(VectorBench(latency=6))
    count = bench.load(assemble_words("VFILL A2, 500\nVBAR\nVHALT"), [(2, 0, 0), dim(2, 0, 64, 20)])
    bench.memory.update({64 * i: word(1000 + i) for i in range(20)})
    bench.wait(count)
    bench.instruct(0x3 << 252)
    bench.burst([word(2000 + i) for i in range(24)], offset=8, flags=1)
    bench.wait(count + 1, received=1)
    expected = [word(i) for i in range(512)]
    for i in range(20):
        expected[(500 + i) % 512] = word(1000 + i)
    for i in range(24):
        expected[8 + i] = word(2000 + i)
    assert [integer(row) for row in bench.core.l1_image()] == expected


@pytest.mark.parametrize("outstanding", [False, True])
def test_unasked_responses_are_counted_and_dropped(outstanding):
    """A multicast entry that names the core as a peer neither lands nor keeps VHALT waiting."""
    bench = filled(VectorBench(latency=60))
    count = bench.load(assemble_words("VFILL A2, 5\nVHALT"), [(2, 0, 0), dim(2, 0, 32, 8)])
    bench.memory.update({32 * i: word(1000 + i) for i in range(8)})
    bench.wait(count)
    bench.instruct(0x3 << 252)
    if outstanding:
        bench.engine.advance(20)
    for part in range(4):
        bench.put(Flit(UNIT.node, PORT, FlitType.MEM_RD_RESP, 0x33, int(part == 3), part, word(5000)))
    bench.wait(count + 1)
    assert bench.core.fill.strays == 4
    expected = [word(i) for i in range(512)]
    expected[5:13] = [word(1000 + i) for i in range(8)]
    assert [integer(row) for row in bench.core.l1_image()] == expected
    assert bench.run(assemble_words("VBAR\nVHALT")).code == 0


def test_smaller_l1_wraps_at_its_depth():
    bench = VectorBench(VectorUnit(x=1, y=0, l1_words=64))
    bench.memory.update({32 * i: word(i) for i in range(10)})
    text = "VFILL A2, 60\nVBAR\nVLD v1, A0+60, FP16\nVST v1, A0+124, FP16\nVHALT"
    run(bench, text, [(2, 0, 0), dim(2, 0, 32, 10), dim(0, 0, 1, 512)])
    image = [integer(row) for row in bench.core.l1_image()]
    assert image[60:64] + image[:6] == [word(i) for i in range(10)]


def test_fill_waits_for_a_store_that_waits_for_the_lanes():
    """VST held back by a chain, then a VFILL of the same words from a fast memory: the fill's data stays."""
    bench = VectorBench(latency=2)
    bench.memory.update({32 * i: word(1000 + i) for i in range(8)})
    chain = "VSETMODE D4\nVMOV v1, k1" + "\nVADD v1, c, k1 vb=k0" * 3
    run(bench, chain + "\nVST v1, A0, FP16\nVFILL A2, 0\nVHALT", [dim(0, 0, 1, 8), (2, 0, 0), dim(2, 0, 32, 8)])
    assert [integer(row) for row in bench.core.l1_image()[:8]] == [word(1000 + i) for i in range(8)]


# ---- drains ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 7, 8, 9, 16, 17, 100, 256])
@pytest.mark.parametrize("base", [0x10000, 0x10FE0, 0x10F40])
def test_drain_in_a_row(count, base):
    """Bursts of at most 8 that stay inside a page; exactly the named words change."""
    bench = filled(VectorBench())
    flits = run(bench, "VDRAIN A2, 300\nVHALT", [(2, 0, base), dim(2, 0, 32, count)])
    assert bench.memory == {base + 32 * i: word((300 + i) % 512) for i in range(count)}
    bursts = requests(flits, FlitType.MEM_WR_REQ)
    assert all(words <= 8 and address // 4096 == (address + 32 * words - 1) // 4096 for address, words in bursts)
    assert sum(words for _, words in bursts) == count
    assert len(bursts) <= -(-count // 8) + 2
    position = 0
    for _, words in bursts:  # descriptor, data, last on the final flit; header otherwise fixed
        descriptor, *data = flits[position : position + words + 1]
        assert descriptor[:6] == (PORT, UNIT.node, FlitType.MEM_WR_REQ, 1, 0, 0)
        assert descriptor.payload == MEM_WR.encode(addr=burst(descriptor)[0], len=words - 1)
        assert [flit[:6] for flit in data] == [
            (PORT, UNIT.node, FlitType.MEM_WR_DATA, 1, int(i + 1 == words), 0) for i in range(words)
        ]
        position += words + 1


def test_strided_drain_with_overlapping_words_keeps_order():
    """A walk that meets an address twice leaves the later word there."""
    bench = filled(VectorBench())
    run(bench, "VDRAIN A2, 0\nVHALT", [(2, 0, 0x8000), dim(2, 0, -64, 3), dim(2, 1, 64, 2)])
    assert bench.memory == {0x8000: word(4 - 0), 0x7FC0: word(5), 0x7F80: word(2), 0x8040: word(3)} | {0x8000: word(4)}


@pytest.mark.parametrize("remote", [False, True])
@pytest.mark.parametrize("count, signal", [(1, 0), (5, 1), (256, 1)])
def test_peer_drain(count, signal, remote):
    """One descriptor and the words; a remote drain marks every flit."""
    record = {"offset": 300, "ack_x": 1, "ack_y": 1} | ({"fin": 0x23, "mesh": 2} if remote else {})
    bench = filled(VectorBench())
    text = f"VDRAIN A2, 400 -> (2,1) buf=2{' signal' if signal else ''}\nVHALT"
    flits = run(bench, text, [(2, 0, PEER_RECORD.encode(**record)), dim(2, 0, -7, count)])
    header = (0x12, UNIT.node, FlitType.CU_DATA, 0x23 if remote else 0)
    rsvd = 6 if remote else 0
    descriptor = CU_DATA.encode(buf=2, offset=300, len=count - 1, flags=signal, ack_y=1, ack_x=1)
    expected = [Flit(*header, 0, rsvd, descriptor)]
    expected += [Flit(*header, int(i + 1 == count), rsvd, word((400 + i) % 512)) for i in range(count)]
    assert flits == expected


@pytest.mark.parametrize("order", ["peer first", "memory first"])
def test_a_route_holds_under_backpressure(order):
    """`peer-route`: drains of both kinds and a fill back to back while the link is stopped for long."""
    bench = filled(VectorBench(accepts=lambda cycle: cycle % 50 == 0))
    descriptors = [(1, 0, PEER_RECORD.encode(offset=3)), dim(1, 0, 1, 5), (2, 0, 0x8000), dim(2, 0, 32, 11)]
    descriptors.append((3, 0, 0x9000))
    drains = ["VDRAIN A1, 0 -> (2,1) buf=1", "VDRAIN A2, 100"]
    if order == "memory first":
        drains.reverse()
    flits = run(bench, "\n".join([*drains, "VFILL A3, 60", *drains, "VHALT"]), descriptors)
    to_peer = [flit.payload for flit in flits if flit.type == FlitType.CU_DATA]
    assert to_peer == ([CU_DATA.encode(buf=1, offset=3, len=4)] + [word(i) for i in range(5)]) * 2
    assert bench.memory == {0x8000 + 32 * i: word(100 + i) for i in range(11)}
    assert requests(flits, FlitType.MEM_RD_REQ) == [(0x9000, 1)]


def test_completion_follows_the_drain_on_the_link():
    """Nothing of a drain leaves after the completion of its kernel, however slow the link."""
    bench = filled(VectorBench(accepts=lambda cycle: cycle % 7 == 0))
    bench.run(assemble_words("VDRAIN A2, 0\nVHALT"), [(2, 0, 0x8000), dim(2, 0, 32, 30)])
    assert bench.sent[-1][1].type == FlitType.CU_SIGNAL
    assert len(bench.memory) == 30


def test_drain_reads_what_the_stores_before_it_wrote():
    """VST, VDRAIN, VST into the same words, with nothing in between and the link stopped."""
    bench = filled(VectorBench(accepts=lambda cycle: cycle % 40 == 0))
    text = "VBCAST v1, s1\nVBCAST v2, s2\nVST v1, A0, FP16\nVDRAIN A2, 0\nVST v2, A0, FP16\nVDRAIN A3, 0\nVHALT"
    bench.core.path.s[1:3] = [0x3F8000, 0x400000]
    run(bench, text, [dim(0, 0, 1, 8), (2, 0, 0x8000), dim(2, 0, 32, 8), (3, 0, 0x9000), dim(3, 0, 32, 8)])
    assert [bench.memory[0x8000 + 32 * i] for i in range(8)] == [int("3c00" * 16, 16)] * 8
    assert [bench.memory[0x9000 + 32 * i] for i in range(8)] == [int("4000" * 16, 16)] * 8


def test_a_stopped_drain_has_read_as_much_as_its_queue_holds():
    """With the link stopped at the descriptor, 16 words are read; what lands afterwards shows in the others."""
    opens = 200
    bench = filled(VectorBench(accepts=lambda cycle: cycle < 40 or cycle >= opens))
    count = bench.load(assemble_words("VDRAIN A2, 0\nVHALT"), [(2, 0, 0x8000), dim(2, 0, 32, 32)])
    bench.wait(count)
    bench.engine.advance(40 - bench.engine.now)
    bench.instruct(0x3 << 252)
    payload = CU_DATA.encode(len=31)
    bench.put(Flit(UNIT.node, BENCH, FlitType.CU_DATA, 0, 0, 0, payload), 100)
    for i in range(32):
        bench.put(Flit(UNIT.node, BENCH, FlitType.CU_DATA, 0, int(i == 31), 0, word(1000 + i)), 100)
    bench.wait(count + 1)
    assert [bench.memory[0x8000 + 32 * i] for i in range(32)] == [word(i if i < 16 else 1000 + i) for i in range(32)]


# ---- L1 in the right cycle ---------------------------------------------------------------------------------------


def race(text, descriptors, delay, spacing):
    """Run `text` while 16 words of a burst arrive for L1 words 0 to 15, the first `delay` cycles after RUN.

    Returns the bench, the cycle RUN was accepted in and the cycles in which the words were written.
    """
    bench = filled(VectorBench())
    count = bench.load(assemble_words(text), descriptors)
    bench.wait(count)
    bench.engine.advance(10)
    transfers = {FlitType.CU_INST: [], FlitType.CU_DATA: []}

    def see(cycle, link, flit):
        if link is bench.link:
            transfers[flit.type].append(cycle)

    bench.engine.on_transfer = see
    start = bench.engine.now + 1
    bench.put(Flit(UNIT.node, BENCH, FlitType.CU_DATA, 0, 0, 0, CU_DATA.encode(len=15)), start)
    bench.put(Flit(UNIT.node, BENCH, FlitType.CU_INST, 0x40, 0, 0, 0x3 << 252), start + 1)
    for i in range(16):
        flit = Flit(UNIT.node, BENCH, FlitType.CU_DATA, 0, int(i == 15), 0, word(1000 + i))
        bench.put(flit, start + 2 + delay + spacing * i)
    bench.wait(count + 1)
    bench.engine.advance(60)
    # a flit leaves its FIFO the cycle after the link
    return bench, transfers[FlitType.CU_INST][0] + 1, [cycle + 1 for cycle in transfers[FlitType.CU_DATA][1:]]


@pytest.mark.parametrize("spacing, delay", [(1, d) for d in range(8)] + [(3, d) for d in range(0, 9, 2)])
@pytest.mark.parametrize("kind", ["load", "drain"])
def test_reads_and_arrivals_meet_in_their_cycles(kind, spacing, delay):
    """A word that lands in the cycle of its read is not seen, one of an earlier cycle is."""
    text = "VLD v1, A0, FP32\nVHALT" if kind == "load" else "VDRAIN A2, 0\nVHALT"
    bench, accepted, written = race(text, [dim(0, 0, 1, 64), (2, 0, 0x8000), dim(2, 0, 32, 16)], delay, spacing)
    # decoded 2 after acceptance; a beat a cycle from the next, L1 3 later; a drain reads from the next
    first = accepted + 2 + 1 + (3 if kind == "load" else 0)
    expected = [word(1000 + i if written[i] < first + i else i) for i in range(16)]
    if kind == "drain":
        assert [bench.memory[0x8000 + 32 * i] for i in range(16)] == expected
    else:
        words = np.array([np.frombuffer(w.to_bytes(32, "little"), np.uint32) for w in expected])
        assert (bench.core.path.v[1] == e8m15.from_fp32(words.reshape(-1))).all()


@pytest.mark.parametrize("spacing, delay", [(1, d) for d in range(8)] + [(3, d) for d in range(0, 9, 2)])
def test_stores_and_arrivals_meet_in_their_cycles(spacing, delay):
    """Of two writes of one word the later stays; in one cycle the arriving flit's."""
    bench, accepted, written = race("VST v1, A0, FP32\nVHALT", [dim(0, 0, 1, 64)], delay, spacing)
    first = accepted + 2 + 1 + 3
    image = [integer(row) for row in bench.core.l1_image()[:16]]
    assert image == [word(1000 + i) if written[i] >= first + i else 0 for i in range(16)]
