"""The byte store and the timing of a channel to it."""

import pytest

from kohakutpu.model.memory import Channel, Memory, MemoryAccessError, pieces
from kohakutpu.noc.engine import Engine

SIZE = 1 << 16


@pytest.fixture
def memory():
    return Memory(Engine(), SIZE)


def test_bytes_come_back_and_neighbours_stay(memory):
    memory.write(0, b"\xaa" * SIZE)
    memory.write(0x123, b"hello")
    assert memory.read(0x122, 7) == b"\xaahello\xaa"
    assert memory.read(SIZE - 3, 3) == b"\xaa" * 3
    assert memory.array(0x123, 5).tobytes() == b"hello"


def test_array_follows_and_cannot_be_written(memory):
    view = memory.array(64, 32)
    memory.write(64, bytes(range(32)))
    assert view.tolist() == list(range(32))
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1


@pytest.mark.parametrize("address, length", [(SIZE, 1), (SIZE - 4, 5), (0, SIZE + 1), (8, -1)])
@pytest.mark.parametrize("access", ["read", "array"])
def test_outside_is_refused_by_name(memory, access, address, length):
    with pytest.raises(MemoryAccessError, match=f"{length} bytes at .*the memory has 0x10000 bytes"):
        getattr(memory, access)(address, length)


@pytest.mark.parametrize(
    "address, says",
    [(1 << 39, r"aperture 0 \(STAGING\) of mesh 0"), (1 << 39 | 3 << 36 | 3 << 32, "aperture 3 of mesh 3"),
     (-1, "not negative"), (2 << 36, "memory of mesh 2; this machine is mesh 0"),
     (SIZE, "the memory has 0x10000 bytes")],
)  # fmt: skip
def test_what_an_address_names_instead(memory, address, says):
    with pytest.raises(MemoryAccessError, match=says):
        memory.write(address, b"x")


def test_sixty_four_gibibytes_cost_what_is_written():
    memory = Memory(Engine(), 64 << 30)
    memory.write((64 << 30) - 8, b"far away")
    assert memory.read((64 << 30) - 9, 9) == b"\0far away"


def test_a_commit_is_seen_by_later_cycles_only(memory):
    memory.commit(10, 0, 0, b"new!")
    assert memory.sample(9, 0, 4) == memory.sample(10, 0, 4) == bytes(4)
    assert memory.sample(11, 0, 4) == b"new!"


def test_between_cycles_everything_earlier_is_there(memory):
    memory.commit(3, 0, 0, b"new!")
    memory.engine.advance(3)
    assert memory.read(0, 4) == bytes(4)
    memory.engine.advance(1)
    assert memory.read(0, 4) == b"new!"


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_commits_of_one_cycle_land_by_requester(memory, order):
    for requester in order:
        memory.commit(5, requester, 0, bytes([requester]) * 8)
    assert memory.sample(6, 0, 8) == bytes([2]) * 8


def test_changes_are_noticed_by_page(memory):
    seen = memory.changes
    memory.write(0xFFF, b"ab")  # two pages
    assert memory.changed_since(seen, 0) and memory.changed_since(seen, 0x1FFF)
    assert not memory.changed_since(seen, 0x2000)
    assert not memory.changed_since(memory.changes, 0)


def channel(memory, **options):
    return Channel(memory, 0, **{"latency": 20, "cycles_per_word": 1} | options)


@pytest.mark.parametrize("latency, pace", [(1, 1), (20, 1), (7, 3)])
def test_read_bursts_follow_each_other_at_the_pace(memory, latency, pace):
    port = channel(memory, latency=latency, cycles_per_word=pace)
    now, beats = 100, []
    for words in (8, 1, 3):
        first, data = port.read(now, 0, words)
        assert len(data) == 32 * words
        beats += [first + k * pace for k in range(words)]
        now = port.next_read
    assert beats == [100 + latency + k * pace for k in range(12)]
    assert port.words_read == 12
    with pytest.raises(AssertionError, match="busy"):
        port.read(now - 1, 0, 1)


def test_read_data_are_those_of_the_issue_cycle(memory):
    port = channel(memory)
    port.write(10, 0, b"\1" * 64)  # beats in 10 and 11
    assert port.read(11, 0, 1)[1] == bytes(32)
    assert port.read(12, 0, 1)[1] == b"\1" * 32


@pytest.mark.parametrize("pace", [1, 4])
def test_a_write_lands_whole_with_its_last_beat(memory, pace):
    port = channel(memory, cycles_per_word=pace)
    assert port.write(10, 32, b"\1" * 96) == 10 + 2 * pace + 20
    last = 10 + 2 * pace
    assert memory.sample(last, 0, 160) == bytes(160)
    assert memory.sample(last + 1, 0, 160) == bytes(32) + b"\1" * 96 + bytes(32)
    assert port.next_write == last + pace


def test_random_latencies_are_reproducible_in_order_and_in_range(memory):
    def trace(seed, requester):
        port = Channel(memory, requester, latency=20, cycles_per_word=1, seed=seed)
        reads, writes = [], []
        for k in range(200):
            reads.append(port.read(max(40 * k, port.next_read), 0, 2)[0] - 40 * k)
            writes.append(port.write(max(40 * k, port.next_write), 0, bytes(32)) - 40 * k)
        return reads, writes

    reads, writes = trace(5, 0)
    assert trace(5, 0) == (reads, writes)
    assert reads != writes and trace(6, 0) != (reads, writes) and trace(5, 1) != (reads, writes)
    assert set(reads) == set(writes) == set(range(1, 21))


def test_random_latencies_never_reorder(memory):
    port = channel(memory, seed=3)
    last = -1
    for k in range(100):
        first, _ = port.read(port.next_read, 0, 3)
        assert first > last
        last = first + 2
    answers = [port.write(port.next_write, 0, bytes(32)) for _ in range(100)]
    assert answers == sorted(set(answers))


def test_a_dropped_write_answers_in_order(memory):
    port = channel(memory)
    answer = port.write(0, 0, bytes(32))
    assert port.skip_response(1) == answer + 1
    assert port.skip_response(100) == 100


def test_the_first_burst_after_reset_waits_for_nothing(memory):
    port = channel(memory, latency=2, cycles_per_word=100)
    assert port.read(1, 0, 1)[0] == 3
    assert port.write(1, 0, bytes(32)) == 3


def test_a_reset_forgets_what_had_not_landed_before_it(memory):
    for cycle in (4, 5, 6):
        memory.commit(cycle, 0, 32 * cycle, b"x")
    memory.forget(5)
    assert [memory.sample(100, 32 * cycle, 1) for cycle in (4, 5, 6)] == [b"x", b"\0", b"\0"]


def test_bursts_are_cut_at_4_kib():
    assert list(pieces(0x0FF0, 0x2010)) == [(0x0FF0, 0x10), (0x1000, 0x1000), (0x2000, 0x1000)]
    assert list(pieces(0x1000, 32)) == [(0x1000, 32)]
    assert list(pieces(0x0FE0, 32)) == [(0x0FE0, 32)]
