"""Writes of a memory port: every form, bytes just outside, mixed sources, broken rules, the write-orphan erratum."""

import random

import pytest

from kohakutpu.isa.flit import Flit, FlitType, node
from kohakutpu.isa.memory import MEM_WR

CLUSTER, VECTOR, AGENT = node(2, 1), node(1, 0), node(1, 1)
ORPHAN = Flit(node(0, 1), AGENT, FlitType.MEM_WR_DATA, 5, 1, 0, 0xBAD)


def prepared(bench, **options):
    port = bench(**options)
    port.memory.write(0, b"\xaa" * port.memory.size)
    return port


def untouched(port, *ranges):
    """Every byte outside the (start, end) ranges is still 0xAA."""
    image = bytearray(port.memory.read(0, port.memory.size))
    for start, end in ranges:
        image[start:end] = b"\xaa" * (end - start)
    return image == b"\xaa" * len(image)


def in_memory(port, address, data):
    return port.memory.read(address, 32 * len(data)) == b"".join(word.to_bytes(32, "little") for word in data)


def words(choose, count):
    return [choose.getrandbits(256) for _ in range(count)]


@pytest.mark.parametrize("options", [{}, {"stall_seed": 2}, {"latency": 31, "cycles_per_word": 3, "latency_seed": 1}])
@pytest.mark.parametrize("address", [0, 0x20, 0xE0, 0xFE0, 0xF40, (1 << 20) - 256])
@pytest.mark.parametrize("length", range(1, 9))
def test_writes_of_every_length_touch_their_own_bytes_only(bench, length, address, options):
    port = prepared(bench, **options)
    data = words(random.Random(length), length)
    port.send(*port.write(address, data, txn=0x40 + length))
    assert port.run(1) == [port.ack(0x40 + length)]
    assert in_memory(port, address, data)
    assert untouched(port, (address, address + 32 * length))
    assert port.port.describe() == [] and port.unit.writes == port.unit.channel.words_written == length


def test_an_acknowledgement_means_the_bytes_are_there(bench):
    port = prepared(bench, latency=1)
    data = words(random.Random(0), 8)
    port.send(*port.write(0x100, data))
    assert port.engine.run(lambda: bool(port.got), 100)
    assert in_memory(port, 0x100, data)


@pytest.mark.parametrize("seed", range(10))
def test_interleaved_sources_in_any_mixture(bench, seed):
    choose = random.Random(seed)
    sources = [AGENT, CLUSTER, VECTOR, node(3, 1), node(2, 2)]
    streams, expected, base = {}, {}, 0
    for src in sources:
        flits = []
        for txn in range(choose.randint(1, 8)):
            data = words(choose, choose.randint(1, 8))
            flits += bench.write(base, data, txn, src)
            expected.setdefault(src, []).append((base, data, txn))
            base += 32 * len(data)
        streams[src] = flits
    order = [src for src in sources for _ in streams[src]]
    choose.shuffle(order)
    feeds = {src: iter(flits) for src, flits in streams.items()}
    port = prepared(bench, stall_seed=choose.choice([None, seed]), latency=choose.choice([1, 20, 60]))
    for src in order:
        port.send(next(feeds[src]), at=port.engine.now + choose.choice([0, 0, 0, 9]))
    port.run(sum(map(len, expected.values())))
    for src, bursts in expected.items():
        assert all(in_memory(port, address, data) for address, data, _ in bursts)
        acks = [flit for _, flit in port.got if flit.dst == src]
        assert acks == [port.ack(txn, src) for _, _, txn in bursts], "one source's acknowledgements out of order"
    assert untouched(port, (0, base)) and port.port.describe() == []


def test_one_source_writes_land_in_program_order(bench):
    port = prepared(bench, latency=40, latency_seed=3)
    for k in range(60):
        port.send(*port.write(0x200, [k] * (1 + k % 3), txn=k))
    port.run(60)
    assert in_memory(port, 0x200, [59, 59, 59])
    assert [flit.txn for _, flit in port.got] == list(range(60))


def test_slots_issue_in_the_order_they_fill(bench):
    port = prepared(bench)
    slow, quick = port.write(0x100, [1, 2], txn=1, src=CLUSTER), port.write(0x100, [3, 4], txn=2, src=VECTOR)
    port.send(*slow[:2], *quick, slow[2])
    assert [flit.txn for flit in port.run(2)] == [2, 1]
    assert in_memory(port, 0x100, [1, 2])


@pytest.mark.parametrize("skip", [True, False])
def test_every_slot_taken_blocks_the_queue_until_one_is_acknowledged(bench, skip):
    port = prepared(bench, slots=4, latency=200, skip=skip)
    for k in range(5):
        port.send(*port.write(32 * k, [k], txn=k))
    port.engine.advance(100)
    report = "\n".join(port.port.describe())
    assert "descriptor that waits for one of 4 slots" in report and "4 writes wait for their response" in report
    assert [flit.txn for flit in port.run(5)] == list(range(5))
    assert in_memory(port, 0, list(range(5)))


def test_an_open_write_is_named_in_the_report(bench):
    port = prepared(bench)
    port.send(*port.write(0x8000, [1, 2, 3], txn=0x2A, src=CLUSTER)[:3])
    port.engine.advance(100)
    assert "open write of (2, 1) txn 0x2a to 0x8000, 2 of 3 words" in "\n".join(port.port.describe())


def test_data_without_an_open_write_are_dropped_and_counted(bench):
    port = prepared(bench)
    good = port.write(0x300, [7, 8], txn=3)
    port.send(ORPHAN, *good, ORPHAN)
    assert port.run(1) == [port.ack(3)]
    port.engine.advance(100)
    assert in_memory(port, 0x300, [7, 8]) and untouched(port, (0x300, 0x340))
    assert port.unit.refused == port.unit.write_path.orphans == 2
    assert "no write of this source is open" in port.unit.notes[0] and "(1, 1)" in port.unit.notes[0]


def test_erratum_write_orphan_blocks_the_queue_for_good(bench):
    port = prepared(bench, errata=frozenset({"write-orphan"}))
    port.send(ORPHAN, *port.write(0x300, [7, 8]), port.read(0x100))
    assert [flit.type for flit in port.run(1)] == [FlitType.MEM_RD_RESP], "reads still pass"
    port.engine.advance(5000)
    assert len(port.got) == 1 and untouched(port)
    assert "(erratum write-orphan)" in "\n".join(port.port.describe())
    port.send(*[ORPHAN] * 80)
    port.engine.advance(5000)
    assert len(port.sent) == 61, "60 write flits queued, then the link is held"


@pytest.mark.parametrize(
    "address, says", [(1 << 20, "the memory has 0x100000 bytes"), ((1 << 20) - 32, "the memory has 0x100000 bytes"),
                      (1 << 39, "STAGING"), (2 << 36, "memory of mesh 2")],
)  # fmt: skip
def test_a_write_outside_the_memory_is_dropped_acknowledged_and_reported(bench, address, says):
    port = prepared(bench)
    port.send(*port.write(address, [1, 2], txn=4), *port.write(0x40, [3], txn=5))
    assert port.run(2) == [port.ack(4), port.ack(5)]
    assert untouched(port, (0x40, 0x60)) and in_memory(port, 0x40, [3])
    assert port.unit.refused == 1 and port.unit.writes == 1
    assert says in port.unit.notes[0] and "MEM_WR_REQ of (1, 1) txn 0x04" in port.unit.notes[0]


@pytest.mark.parametrize("length", [9, 16, 17, 256])
def test_a_burst_longer_than_a_slot_is_counted_out_and_refused(bench, length):
    port = prepared(bench)
    port.send(*port.write(0x100, [1] * length, txn=4), *port.write(0x40, [3], txn=5))
    assert port.run(2) == [port.ack(4), port.ack(5)]
    assert untouched(port, (0x40, 0x60)) and port.unit.write_path.orphans == 0
    assert f"{length} beats, a write has at most 8" in port.unit.notes[0]


def test_a_second_descriptor_of_one_source_is_reported(bench):
    port = prepared(bench)
    first, second = port.write(0x100, [1, 2], txn=1), port.write(0x200, [3, 4], txn=2)
    port.send(first[0], second[0], *first[1:], *second[1:])
    assert port.run(2) == [port.ack(1), port.ack(2)]
    assert in_memory(port, 0x100, [1, 2]) and in_memory(port, 0x200, [3, 4])
    assert port.unit.warned == 1 and "open already" in port.unit.notes[0]


def test_data_of_a_source_with_two_open_writes_go_to_the_lower_slot(bench):
    port = prepared(bench)
    first, second = port.write(0x100, [1, 2], txn=1), port.write(0x200, [3, 4], txn=2)
    other = port.write(0x300, [5], txn=3, src=CLUSTER)
    port.send(other[0], first[0], other[1])  # slots 0 and 1
    port.run(1)
    port.send(second[0], *first[1:], *second[1:])  # slot 0 again
    assert [flit.txn for flit in port.run(2)] == [3, 2, 1]
    assert in_memory(port, 0x200, [1, 2]) and in_memory(port, 0x100, [3, 4])


@pytest.mark.parametrize("lasts", [(1, 1), (0, 0), (1, 0)])
def test_a_wrong_last_is_reported_and_the_count_decides(bench, lasts):
    port = prepared(bench)
    head, *data = port.write(0x100, [1, 2], txn=1)
    port.send(head, *(flit._replace(last=last) for flit, last in zip(data, lasts, strict=True)))
    assert port.run(1) == [port.ack(1)] and in_memory(port, 0x100, [1, 2])
    assert port.unit.warned == (lasts[0] != 0) + (lasts[1] != 1) and f"last = {lasts[0] or 0}" in port.unit.notes[0]


def test_low_address_bits_are_dropped_and_reported(bench):
    port = prepared(bench)
    head, data = port.write(0x100, [9])
    port.send(head._replace(payload=MEM_WR.encode(addr=0x11F)), data)
    port.run(1)
    assert in_memory(port, 0x100, [9]) and untouched(port, (0x100, 0x120))
    assert port.unit.warned == 1 and "multiple of 32" in port.unit.notes[0]


@pytest.mark.parametrize("stall_seed, longest", [(None, 200), (7, 1200)])
def test_reads_and_writes_share_the_link_for_long(bench, stall_seed, longest):
    """The published bench's mixture: 300 single-word writes between plain reads; none waits long."""
    port = prepared(bench, stall_seed=stall_seed)
    choose = random.Random(7)
    values = words(choose, 300)
    for k, value in enumerate(values):
        port.send(*port.write(32 * k, [value], txn=k & 255, src=VECTOR), port.read(0x80000, txn=k & 255, len=k % 4))
    port.run(300 + sum(1 + k % 4 for k in range(300)))
    assert in_memory(port, 0, values)
    written = [cycle for cycle, flit in port.sent if flit.type == FlitType.MEM_WR_DATA]
    acked = [cycle for cycle, flit in port.got if flit.type == FlitType.MEM_WR_ACK]
    assert max(ack - data for data, ack in zip(written, acked, strict=True)) < longest


@pytest.mark.parametrize("skip", [True, False])
def test_a_burst_across_4_kib_is_two_on_the_bus_and_acknowledged_once(bench, skip):
    port = bench(skip=skip)
    port.send(*port.write(0x0FA0, list(range(1, 9))))  # three words, then five
    assert port.engine.run(lambda: len(port.sent) == 9, 100)
    port.engine.advance(5)  # the third word leaves in the fifth cycle
    words = [port.memory.read(0x0FA0 + 32 * k, 32)[0] for k in range(8)]
    assert words == [1, 2, 3, 0, 0, 0, 0, 0]
    assert port.run(1) == [port.ack()]
    assert port.got[0][0] - port.sent[-1][0] == 5 + 7 + 20
    assert [port.memory.read(0x0FA0 + 32 * k, 32)[0] for k in range(8)] == list(range(1, 9))
