"""Reads of a memory port: every form against the rules of the protocol, memory that changes, bad requests."""

import random

import numpy as np
import pytest

from kohakutpu.formats import mxfp7, words
from kohakutpu.isa.flit import FlitType, node

CLUSTER, VECTOR = node(2, 1), node(1, 0)
BURSTY = {"latency": 20, "stall_seed": 4}
SLOW = {"latency": 37, "cycles_per_word": 3, "latency_seed": 8}


def responses(bench, *requests, **options):
    """What a port answers to `requests`, sent back to back, and what it must answer."""
    port = bench(**options)
    memory = port.fill()
    expected = [flit for request in requests for flit in port.expect(request, memory)]
    port.send(*requests)
    got = port.run(len(expected))
    port.engine.advance(300)
    assert len(port.got) == len(expected), "more flits than were asked for"
    assert port.port.describe() == [] and port.unit.refused == 0
    assert port.memory.read(0, port.memory.size) == memory
    return got, expected


@pytest.mark.parametrize("options", [{}, BURSTY, SLOW, {"latency": 1}], ids=["plain", "stalls", "slow", "latency 1"])
@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 9, 15, 16, 17, 64, 127, 128, 129, 255, 256])
def test_plain_reads_of_every_awkward_length(bench, length, options):
    starts = [0, 0x20, 0xE0, 0x2000 - 32 * (length // 2 + 1)]
    got, expected = responses(bench, *(bench.read(at, txn=at >> 5 & 255, len=length - 1) for at in starts), **options)
    assert got == expected


def test_a_plain_read_up_to_the_last_byte(bench):
    got, expected = responses(bench, bench.read((1 << 20) - 0x2000, len=255))
    assert got == expected


@pytest.mark.parametrize("options", [{}, BURSTY, SLOW], ids=["plain", "stalls", "slow"])
@pytest.mark.parametrize("count", [0, 1, 2, 17, 255])
@pytest.mark.parametrize("entry_words", [0, 1, 2, 3, 4, 5, 255])
def test_entry_streams(bench, entry_words, count, options):
    request = bench.read(0x10C0, txn=0xFE, stream=1, count=count, entry_words=entry_words, len=9)
    got, expected = responses(bench, request, **options)
    assert got == expected
    assert len({flit.txn for flit in got}) == max(count, 1)


@pytest.mark.parametrize("options", [{}, BURSTY, SLOW], ids=["plain", "stalls", "slow"])
@pytest.mark.parametrize("blayout", [0, 1])
@pytest.mark.parametrize("base", [0x4000, 0x4020, 0x40E0, 0xFF00])
@pytest.mark.parametrize("count", [1, 3, 16])
def test_converted_streams(bench, count, base, blayout, options):
    request = bench.read(base, txn=0xFF, stream=1, quant=1, count=count, blayout=blayout)
    got, expected = responses(bench, request, **options)
    assert got == expected


@pytest.mark.parametrize("count", [0, 1, 5])
def test_converting_without_stream_is_one_entry(bench, count):
    got, expected = responses(bench, bench.read(0x4000, quant=1, count=count, entry_words=2))
    assert got == expected and len(got) == 4


@pytest.mark.parametrize("quant", [0, 1])
@pytest.mark.parametrize("npeer", [0, 1, 2, 3])
def test_multicast_serves_requester_then_peers_entry_by_entry(bench, npeer, quant):
    peers = 0x00FF11 | CLUSTER << 8
    request = bench.read(0x4000, txn=3, stream=1, quant=quant, count=6, peers=peers, npeer=npeer, entry_words=3)
    got, expected = responses(bench, request, **BURSTY)
    assert got == expected
    assert len(got) == 6 * (4 if quant else 3) * (npeer + 1)


def test_plain_reads_ignore_peers_count_and_entry_words(bench):
    got, expected = responses(bench, bench.read(0x1100, len=3, count=5, peers=0x201, npeer=2, entry_words=2))
    assert got == expected and len(got) == 4


@pytest.mark.parametrize("seed", range(25))
def test_random_traffic_is_the_same_with_and_without_skipping(bench, seed):
    choose = random.Random(seed)
    options = {
        "latency": choose.choice([1, 3, 20, 57, 100]), "cycles_per_word": choose.choice([1, 1, 2, 3]),
        "latency_seed": choose.choice([None, seed]), "stall_seed": choose.choice([None, seed]),
    }  # fmt: skip
    script, at, target = [], 0, 0x80000
    for _ in range(choose.randint(1, 25)):
        at += choose.choice([0, 0, 0, 1, 7, 60])
        src = choose.choice([node(1, 1), CLUSTER, VECTOR])
        txn, base = choose.randrange(256), choose.randrange(0, 0x40000, 32)
        if choose.random() < 0.25:
            data = [choose.getrandbits(256) for _ in range(choose.randint(1, 8))]
            flits = bench.write(target, data, txn, src)
            target += 32 * len(data)
        elif choose.random() < 0.3:
            flits = [bench.read(base, txn, src, len=choose.choice([0, 0, 0, 1, 7, 8, 15, 63, 255]))]
        else:
            fields = {name: choose.randint(0, 1) for name in ("stream", "quant", "blayout")}
            fields |= {"count": choose.choice([0, 1, 2, 5, 17, 40]), "entry_words": choose.randint(0, 5)}
            flits = [bench.read(base, txn, src, npeer=choose.randint(0, 3), peers=choose.randrange(1 << 24), **fields)]
        script += [(at, flit) for flit in flits]
    runs = []
    for skip in (True, False):
        port = bench(skip=skip, **options)
        memory = port.fill()
        for cycle, flit in script:
            port.send(flit, at=cycle)
        expected = [r for _, f in script if f.type == FlitType.MEM_RD_REQ for r in port.expect(f, memory)]
        writes = sum(f.type == FlitType.MEM_WR_REQ for _, f in script)
        got = port.run(len(expected) + writes)
        assert [flit for flit in got if flit.type == FlitType.MEM_RD_RESP] == expected
        assert sum(flit.type == FlitType.MEM_WR_ACK for flit in got) == writes
        port.engine.advance(300)
        assert port.port.describe() == []
        runs.append((port.sent, port.got, port.memory.read(0, port.memory.size)))
    assert runs[0] == runs[1]


def spy_on_bursts(port):
    """Every read burst the memory answers: (cycle, address, data)."""
    bursts, issue = [], port.unit.channel.read

    def read(now, address, count):
        first, data = issue(now, address, count)
        bursts.append((now, address, data))
        return first, data

    port.unit.channel.read = read
    return bursts


@pytest.mark.parametrize("base", [0x4000, 0x4060])
@pytest.mark.parametrize("seed", range(4))
def test_conversion_sees_exactly_what_the_bursts_returned(bench, seed, base):
    """A whole stream is converted at once; memory that changes meanwhile must not be missed or seen too early."""
    port = bench(latency=30, stall_seed=seed)
    memory = port.fill()
    bursts = spy_on_bursts(port)
    choose = random.Random(seed)
    count = 40
    port.send(port.read(base, stream=1, quant=1, count=count))
    while len(bursts) < count:
        port.engine.advance(choose.randint(1, 30))
        where = base + choose.randrange(0, count * 256, 2)
        change = choose.randbytes(2 * choose.randint(1, 20))
        port.memory.commit(port.engine.now + choose.randint(0, 3), 9, where, change)
    got = port.run(count * 4 - len(port.got))
    source = b"".join(data for _, _, data in bursts)
    assert source != memory[base : base + count * 256], "nothing changed under the stream: the test shows nothing"
    entries = np.frombuffer(source, "<u2").astype(np.uint16).reshape(count, 4, 32)
    assert [flit.payload for flit in got] == words.to_ints(mxfp7.pack(*mxfp7.quantise(entries), "A"))
    assert port.port.describe() == []


def test_a_burst_never_crosses_256_bytes(bench):
    port = bench()
    bursts = spy_on_bursts(port)
    port.send(port.read(0x10C0, len=255), port.read(0x60, stream=1, count=9, entry_words=3), port.read(0x420, quant=1))
    port.run(256 + 27 + 4)
    assert all(address // 256 == (address + len(data) - 1) // 256 for _, address, data in bursts)
    assert sum(len(data) for _, _, data in bursts) == 32 * (256 + 27 + 8)


@pytest.mark.parametrize(
    "address, says", [(1 << 20, "the memory has 0x100000 bytes"), ((1 << 20) - 32, "the memory has 0x100000 bytes"),
                      (1 << 39, "STAGING"), (1 << 39 | 3 << 32, "aperture 3 of mesh 0"), (1 << 36, "memory of mesh 1")],
)  # fmt: skip
@pytest.mark.parametrize(
    "fields", [{"len": 2}, {"stream": 1, "count": 3}, {"stream": 1, "count": 3, "quant": 1, "npeer": 1, "peers": 0x21}]
)
def test_a_read_outside_the_memory_is_answered_with_zeros_and_reported(bench, fields, address, says):
    port = bench()
    memory = port.fill()
    bad, good = port.read(address, txn=7, **fields), port.read(0x100, txn=9)
    shape = port.expect(port.read(0, txn=7, **fields), memory)
    port.send(bad, good)
    got = port.run(len(shape) + 1)
    assert got == [flit._replace(payload=0) for flit in shape] + port.expect(good, memory)
    assert port.unit.refused == 1 and port.unit.reads == 1
    assert says in port.unit.notes[0] and "MEM_RD_REQ of (1, 1) txn 0x07" in port.unit.notes[0]
    assert any(says in line for line in port.port.describe())


def test_low_address_bits_are_dropped_and_reported(bench):
    port = bench()
    memory = port.fill()
    port.send(port.read(0x107))
    assert port.run(1) == port.expect(port.read(0x100), memory)
    assert (port.unit.refused, port.unit.warned) == (0, 1) and "multiple of 32" in port.unit.notes[0]


def test_reads_count_plain_reads_and_entries(bench):
    port = bench()
    port.send(port.read(0, len=9), port.read(0, stream=1, count=5), port.read(0, quant=1, count=5))
    port.run(10 + 20 + 4)
    assert port.unit.reads == 1 + 5 + 1 and port.unit.writes == 0
    assert port.unit.channel.words_read == 10 + 20 + 8


def test_a_full_queue_holds_the_link_and_lets_go(bench):
    port = bench()
    memory = port.fill()
    port.receiver.closed = True
    requests = [port.read(32 * k, txn=k & 255) for k in range(300)]
    port.send(*requests)
    port.engine.advance(1000)
    # 60 in the queue, 64 in flight, and the response in the output register
    assert len(port.sent) == 60 + 64 + 1
    assert "60 read requests queued" in "\n".join(port.port.describe())
    port.receiver.open()
    assert port.run(300) == [flit for request in requests for flit in port.expect(request, memory)]
