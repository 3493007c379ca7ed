"""What a vector core does with CU_DATA: taken, refused, interleaved, cut short (spec: inbound CU_DATA; errata)."""

import numpy as np
import pytest

from kohakutpu.conformance.vector import BENCH, UNIT, VectorBench, integer
from kohakutpu.isa.assembler import assemble_words
from kohakutpu.isa.flit import Flit, FlitType
from kohakutpu.isa.signals import CU_DATA, CU_SIGNAL, SignalCode
from kohakutpu.isa.vector import Fault
from kohakutpu.machine import VectorUnit
from kohakutpu.model.vector_receive import ACK_DEPTH

A, B, C = 0x12, 0x13, 0x22  # senders
AGENT = 0x21
PUBLISHED = frozenset({"reject-silent"})
EMPTY = [0] * 512


def word(value):
    return int.from_bytes(np.random.default_rng(value).bytes(32), "little")


def descriptor(source, *, offset=0, count=1, buf=0, flags=1, ack=AGENT):
    payload = CU_DATA.encode(buf=buf, offset=offset, len=count - 1, flags=flags, ack_y=ack >> 4, ack_x=ack & 15)
    return Flit(UNIT.node, source, FlitType.CU_DATA, 0x77, 0, 0, payload)


def data(source, value, last=0):
    return Flit(UNIT.node, source, FlitType.CU_DATA, 0x77, last, 0, word(value))


def sequence(source, first, count, **fields):
    """A well-formed burst whose words are `first`, `first` + 1, ..."""
    words = [data(source, first + i, int(i + 1 == count)) for i in range(count)]
    return [descriptor(source, count=count, **fields), *words]


def receive(flits, errata=frozenset(), **options):
    """Send the flits; returns the bench, L1, and the acknowledgements as (destination, buffer)."""
    bench = VectorBench(errata=errata, **options)
    for flit in flits:
        bench.put(flit)
    bench.engine.advance(len(flits) + 200)
    acks = []
    for _, flit in bench.sent:
        assert flit == Flit(flit.dst, UNIT.node, FlitType.CU_SIGNAL, 0, 1, 0, flit.payload)
        assert CU_SIGNAL.get(flit.payload, "code") == SignalCode.DATA_RECEIVED
        acks.append((flit.dst, CU_SIGNAL.get(flit.payload, "arg")))
    return bench, [integer(row) for row in bench.core.l1_image()], acks


def placed(*spans):
    """L1 with (offset, first, count) written."""
    image = list(EMPTY)
    for offset, first, count in spans:
        image[offset : offset + count] = [word(first + i) for i in range(count)]
    return image


@pytest.mark.parametrize("errata", [frozenset(), PUBLISHED], ids=["ours", "published"])
@pytest.mark.parametrize("offset, count", [(0, 1), (5, 9), (256, 256), (511, 1), (503, 9)])
def test_taken(offset, count, errata):
    bench, image, acks = receive(sequence(A, 100, count, offset=offset), errata)
    assert image == placed((offset, 100, count))
    assert acks == [(AGENT, 0)]
    assert not bench.core.receiver.fault


@pytest.mark.parametrize("errata", [frozenset(), PUBLISHED], ids=["ours", "published"])
def test_acknowledgement_is_asked_for_and_addressed(errata):
    """No flag, no answer; ack node 0 means the sender; bursts of several sources in turn."""
    flits = [
        *sequence(A, 0, 2, offset=0, flags=0), *sequence(B, 10, 2, offset=2, ack=0),
        *sequence(C, 20, 2, offset=4, flags=0xFF), *sequence(A, 30, 1, offset=6, flags=0xFE),
    ]  # fmt: skip
    _, image, acks = receive(flits, errata)
    assert image == placed((0, 0, 2), (2, 10, 2), (4, 20, 2), (6, 30, 1))
    assert acks == [(B, 0), (AGENT, 0)]


def test_acknowledgement_cycle():
    """Written in the cycle its flit leaves the FIFO, acknowledged on the link two cycles later."""
    bench, _, _ = receive(sequence(A, 0, 3))
    # flits on the link in 1, 2, 3, 4; the last leaves its FIFO in 5, the answer loads the register in 6
    assert [cycle for cycle, _ in bench.sent] == [7]


BAD = {
    "buffer 1": {"buf": 1},
    "buffer 255": {"buf": 255},
    "past the end by one": {"offset": 509, "count": 4},
    "far past the end": {"offset": 0xFFFF, "count": 4},
    "all of it past the end": {"offset": 512, "count": 4},
}


@pytest.mark.parametrize("bad", BAD)
def test_refused_burst(bad):
    """`reject-silent`, ours: nothing written, counted out, answered, F_CUDATA once, and the next burst is taken."""
    fields = {"count": 4} | BAD[bad]
    count = fields.pop("count")
    bench, image, acks = receive([*sequence(A, 100, count, **fields), *sequence(A, 200, 2, offset=7)])
    assert image == placed((7, 200, 2))
    assert acks == [(AGENT, fields.get("buf", 0)), (AGENT, 0)]
    signal = bench.run(assemble_words("VBCAST v1, s1\nVHALT"))
    assert (signal.code, signal.arg) == (SignalCode.FAULT, Fault.F_CUDATA)
    assert bench.run(assemble_words("VHALT")).code == SignalCode.INST_COMPLETE


@pytest.mark.parametrize("bad", BAD)
def test_refused_burst_published(bad):
    fields = {"count": 4} | BAD[bad]
    count = fields.pop("count")
    bench, image, acks = receive([*sequence(A, 100, count, **fields), *sequence(A, 200, 2, offset=7)], PUBLISHED)
    assert image == placed((7, 200, 2))
    assert acks == [(AGENT, 0)]
    assert bench.run(assemble_words("VHALT")).arg == Fault.F_CUDATA


def test_unflagged_refused_burst_is_not_answered():
    assert receive(sequence(A, 0, 3, buf=2, flags=0))[2] == []


def test_a_second_sender_in_the_middle_loses_its_burst_alone():
    """The open burst goes on; the other is counted out to its `last`, answered, and its next one is taken."""
    one, two = sequence(A, 100, 6, offset=0), sequence(B, 200, 4, offset=20)
    mixed = [one[0], one[1], two[0], one[2], two[1], two[2], one[3], one[4], two[3], one[5], two[4], one[6]]
    bench, image, acks = receive([*mixed, *sequence(B, 300, 2, offset=30), *sequence(A, 400, 2, offset=40)])
    assert image == placed((0, 100, 6), (30, 300, 2), (40, 400, 2))
    assert acks == [(AGENT, 0)] * 4
    assert bench.core.receiver.fault


def test_three_senders_interleaved_and_a_refused_one_outlasting_the_open_one():
    sources = {
        "a": sequence(A, 100, 2, ack=0), "b": sequence(B, 200, 5, offset=20, ack=0),
        "c": sequence(C, 300, 3, offset=30, ack=0),
    }  # fmt: skip
    mixed = [sources[name].pop(0) for name in "abccbaabcbcbb"]
    _, image, acks = receive([*mixed, *sequence(C, 400, 1, offset=31)])
    assert image == placed((0, 100, 2), (31, 400, 1))
    assert acks == [(A, 0), (C, 0), (B, 0), (AGENT, 0)]


def test_a_burst_refused_while_another_source_is_counted_out():
    """Counting out A's burst does not close the door to B."""
    flits = [descriptor(A, count=3, buf=9), *sequence(B, 100, 2, offset=4), data(A, 0), data(A, 1), data(A, 2, last=1)]
    bench, image, acks = receive(flits)
    assert image == placed((4, 100, 2))
    assert acks == [(AGENT, 0), (AGENT, 9)]


def test_interleaving_published():
    """The alien flit and the rest are dropped without an answer, yet counted: one flit too many is a descriptor."""
    one, two = sequence(A, 100, 3, offset=0), sequence(B, 200, 2, offset=20)
    bench, image, acks = receive([one[0], one[1], two[0], one[2], two[1]], PUBLISHED)
    assert image == placed((0, 100, 1))
    assert acks == []
    assert bench.core.receiver.fault
    assert bench.core.receiver.burst is not None  # B's data word was taken for a descriptor


def test_short_burst():
    """`last` too early ends the burst: what came is written and answered, F_CUDATA."""
    flits = [descriptor(A, count=5, offset=3), data(A, 10), data(A, 11, last=1), *sequence(A, 20, 1, offset=9)]
    bench, image, acks = receive(flits)
    assert image == placed((3, 10, 2), (9, 20, 1))
    assert acks == [(AGENT, 0), (AGENT, 0)]
    assert bench.core.receiver.fault


def test_long_burst():
    """Words beyond len are not written; the burst ends at `last`."""
    flits = [descriptor(A, count=2, offset=3), *[data(A, 10 + i, int(i == 4)) for i in range(5)]]
    flits += sequence(A, 20, 1, offset=9)
    bench, image, acks = receive(flits)
    assert image == placed((3, 10, 2), (9, 20, 1))
    assert acks == [(AGENT, 0), (AGENT, 0)]
    assert bench.core.receiver.fault


def test_last_is_not_looked_at_published():
    flits = [descriptor(A, count=3), data(A, 1, last=1), data(A, 2, last=1), data(A, 3), *sequence(A, 20, 1, offset=9)]
    bench, image, acks = receive(flits, PUBLISHED)
    assert image == placed((0, 1, 3), (9, 20, 1))
    assert acks == [(AGENT, 0)] * 2
    assert not bench.core.receiver.fault


def test_other_types_are_dropped():
    """Acks, write data, errors and unknown types vanish, also inside a burst."""
    strangers = [
        Flit(UNIT.node, A, kind, 0, 1, 0, word(kind))
        for kind in range(16)
        if kind not in (FlitType.CU_INST, FlitType.CU_CTRL, FlitType.CU_DATA)
    ]
    burst = sequence(A, 100, 3)
    bench, image, acks = receive([*strangers, *burst[:2], *strangers, *burst[2:]])
    assert image == placed((0, 100, 3))
    assert acks == [(AGENT, 0)]
    assert bench.core.fill.strays == 2


# RUN is on the link in cycle 0 and taken in 1; words leave decode in 3 and 4, then, the queue being full, in 12, 20, ..
# The descriptor is on the link in 1 + moment, leaves its FIFO a cycle later, and decode sees the flag in 3 + moment
@pytest.mark.parametrize("moment, expected", [(0, 0), (1, 1), (2, 2), (9, 2), (10, 3), (17, 3), (18, 4), (26, 5)])
def test_reject_in_the_middle_of_a_kernel(moment, expected):
    """F_CUDATA ends the kernel where decode is; what came before completed, what comes after never starts."""
    bench = VectorBench()
    bench.core.path.s[1:] = range(1, 16)
    text = "\n".join(f"VBCAST v{r}, s{r}" for r in range(1, 16)) + "\nVHALT"
    count = bench.load(assemble_words(text))
    bench.wait(count)
    bench.instruct(0x3 << 252)
    start = bench.engine.now + 1
    for flit in sequence(A, 0, 1, buf=3):
        bench.put(flit, start + 1 + moment)
    bench.wait(count + 1, received=1)
    signal = bench.completions()[-1]
    assert (signal.code, signal.arg) == (SignalCode.FAULT, Fault.F_CUDATA)
    ran = bench.core.sequencer.pc
    assert (bench.core.path.v == np.array([r if r <= ran else 0 for r in range(16)])[:, None]).all()
    assert ran == expected
    assert bench.run(assemble_words("VHALT")).code == SignalCode.INST_COMPLETE


def test_fault_while_waiting_for_a_fill_that_never_comes():
    """VHALT waits in decode; a refused burst ends the kernel there instead of a hang."""
    bench = VectorBench(latency=1_000_000)
    count = bench.load(assemble_words("VFILL A0, 0\nVHALT"))
    bench.wait(count)
    bench.instruct(0x3 << 252)
    bench.engine.advance(50)
    for flit in sequence(A, 0, 1, buf=3):
        bench.put(flit)
    bench.wait(count + 1, received=1, budget=200)
    assert bench.completions()[-1].arg == Fault.F_CUDATA


def test_acknowledgements_queue_and_then_hold_the_intake():
    """With the link stopped, as many bursts are taken as answers fit; nothing is lost."""
    stopped = 400
    bench = VectorBench(VectorUnit(x=1, y=0, recv_depth=64), accepts=lambda cycle: cycle > stopped)
    for i in range(20):
        for flit in sequence(A, i, 1, offset=i):
            bench.put(flit)
    bench.engine.advance(stopped)
    # one answer in the output register, the rest queued
    assert [integer(row) for row in bench.core.l1_image()] == placed(*[(i, i, 1) for i in range(ACK_DEPTH + 1)])
    bench.engine.advance(200)
    assert [integer(row) for row in bench.core.l1_image()] == placed(*[(i, i, 1) for i in range(20)])
    assert len(bench.signals) == 20


@pytest.mark.parametrize("skip", [True, False], ids=["skip", "every-cycle"])
def test_answers_go_before_requests_and_drains(skip):
    """Priority on the link: DATA_RECEIVED, read request, drain."""
    bench = VectorBench(skip=skip, accepts=lambda cycle: not 30 <= cycle < 80)
    descriptors = [(1, 0, 0x8000), (1, 1, 32 << 16 | 16), (2, 0, 0x9000), (2, 1, 64 << 16 | 4)]
    count = bench.load(assemble_words("VDRAIN A1, 0\nVFILL A2, 100\nVHALT"), descriptors)
    bench.instruct(0x3 << 252)
    for flit in sequence(A, 50, 1, offset=200):
        bench.put(flit, 60)
    bench.wait(count + 1, received=1)
    held = [flit.type for cycle, flit in bench.sent if cycle >= 80]
    # the drain's word that already sat in the output register leaves first
    assert held[1] == FlitType.CU_SIGNAL
    assert held[2:6] == [FlitType.MEM_RD_REQ] * 4
    assert held[6] == FlitType.MEM_WR_DATA or held[6] == FlitType.MEM_WR_REQ


def test_source_of_a_burst_is_the_sender_not_the_bench():
    """The frame is kept per source even when both name the same acknowledgement node."""
    flits = [descriptor(A, count=2, buf=1), *sequence(BENCH, 9, 1, offset=3), data(A, 1), data(A, 2, last=1)]
    _, image, acks = receive(flits)
    assert image == placed((3, 9, 1))
    assert acks == [(AGENT, 0), (AGENT, 1)]
