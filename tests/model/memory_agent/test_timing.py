"""The cycle numbers of docs/microarchitecture/memory-agent.md, and never more than the published memory port needs."""

import pytest

from kohakutpu.isa.flit import FlitType, node

CLUSTER = node(2, 1)
LATENCIES = [1, 2, 3, 20, 55]


def cycles(port, kind):
    return [cycle for cycle, flit in port.got if flit.type == kind]


def after_request(port, count):
    """Transfers of `count` responses, counted from the transfer of the first request."""
    port.run(count)
    return [cycle - port.sent[0][0] for cycle in cycles(port, FlitType.MEM_RD_RESP)]


@pytest.mark.parametrize("pace", [1, 2, 5])
@pytest.mark.parametrize("latency", LATENCIES)
def test_plain_read(bench, latency, pace):
    port = bench(latency=latency, cycles_per_word=pace)
    port.send(port.read(0x1000, len=19))
    assert after_request(port, 20) == [4 + latency + k * pace for k in range(20)]


@pytest.mark.parametrize("latency", [*LATENCIES, 60])
def test_single_word_reads_follow_each_other_every_cycle(bench, latency):
    port = bench(latency=latency)
    port.send(*[port.read(32 * k) for k in range(200)])
    assert after_request(port, 200) == [4 + latency + k for k in range(200)]


@pytest.mark.parametrize("latency", LATENCIES)
@pytest.mark.parametrize("entry_words", [1, 2, 3, 4])
def test_entry_stream_sends_a_flit_a_cycle(bench, entry_words, latency):
    port = bench(latency=latency)
    port.send(port.read(0x1000, stream=1, count=64, entry_words=entry_words))
    assert after_request(port, 64 * entry_words) == [4 + latency + k for k in range(64 * entry_words)]
    assert entry_words < 5 + latency, "the published port needs 5 + latency an entry"


@pytest.mark.parametrize("latency", LATENCIES)
def test_converted_stream_takes_8_cycles_an_entry(bench, latency):
    port = bench(latency=latency)
    port.send(port.read(0x1000, stream=1, quant=1, count=40))
    assert after_request(port, 160) == [20 + latency + 8 * (k // 4) + k % 4 for k in range(160)]
    assert max(20, 9 + latency) > 8, "the published port's cycles an entry"


def test_first_response_is_not_later_than_the_published_one(bench):
    for fields, published in (({"stream": 1}, 13), ({"quant": 1}, 27)):
        port = bench(latency=3)
        port.send(port.read(0x1000, **fields))
        assert after_request(port, 4)[0] <= published


@pytest.mark.parametrize("pace", [1, 2, 3])
def test_a_slow_memory_sets_the_period_of_conversion(bench, pace):
    port = bench(cycles_per_word=pace)
    port.send(port.read(0x1000, stream=1, quant=1, count=10))
    first = after_request(port, 40)[::4]
    assert [b - a for a, b in zip(first, first[1:])] == [8 * pace] * 9


def test_an_entry_across_two_bursts_waits_for_no_gap(bench):
    port = bench()
    port.send(port.read(0x10C0, stream=1, quant=1, count=10))
    assert after_request(port, 40)[::4] == [40 + 8 * k for k in range(10)]


def test_multicast_repeats_at_one_flit_a_cycle(bench):
    port = bench()
    port.send(port.read(0x1000, stream=1, count=8, npeer=3, peers=0x030201))
    assert after_request(port, 128) == [24 + k for k in range(128)]
    port = bench()
    port.send(port.read(0x1000, stream=1, count=8, quant=1, npeer=3, peers=0x030201))
    assert after_request(port, 128) == [40 + k for k in range(128)], "16 flits hide the 8 cycles of the next entry"


@pytest.mark.parametrize("latency, period", [(56, 65), (100, 109), (500, 509)])
def test_beyond_55_cycles_64_words_go_a_round_trip(bench, latency, period):
    port = bench(latency=latency)
    port.send(port.read(0, stream=1, count=128))
    got = after_request(port, 512)
    assert [got[k + 64] - got[k] for k in range(0, 448, 64)] == [period] * 7


def test_a_held_output_stops_conversion_at_four_entries_and_the_fetch_at_64_words(bench):
    port = bench()
    port.receiver.closed = True
    port.send(port.read(0, stream=1, quant=1, count=100))
    port.engine.advance(1000)
    assert port.unit.channel.words_read == 4 * 8 + 64
    assert "64 of 64 buffer words reserved, 4 of 4 entries" in "\n".join(port.port.describe())


def test_conversion_waits_behind_words_that_the_output_takes(bench):
    port = bench()
    port.receiver.closed = True
    port.send(port.read(0, len=7), port.read(0x100, quant=1))
    port.engine.advance(200)
    port.receiver.open()
    port.run(12)
    cycle = [cycle for cycle, _ in port.got]
    assert cycle[8] - cycle[7] == 8 + 9, "eight words into the converter, nine cycles to the result"


def test_a_word_is_free_again_one_cycle_after_the_converter_took_it(bench, latency=100):
    port = bench(latency=latency)
    issued, read = [], port.unit.channel.read
    port.unit.channel.read = lambda now, address, count: issued.append(now) or read(now, address, count)
    port.send(port.read(0, stream=1, quant=1, count=4), port.read(0x800, len=4))
    port.send(port.read(0x1000, stream=1, quant=1, count=9))
    port.run(16 + 5 + 36)
    # Bursts of 8, 8, 8, 8, 5, 8, 8, 8 words; the next 8 need five words that have left again.
    assert issued[8] - issued[0] == latency + 1 + 5


@pytest.mark.parametrize("pace", [3, 7])
def test_writes_follow_each_other_at_the_pace_of_the_memory(bench, pace):
    port = bench(cycles_per_word=pace)
    for k in range(20):
        port.send(*port.write(32 * k, [k]))
    port.run(20)
    acks = cycles(port, FlitType.MEM_WR_ACK)
    assert [b - a for a, b in zip(acks, acks[1:])] == [pace] * 19


@pytest.mark.parametrize("pace", [1, 3])
@pytest.mark.parametrize("latency", LATENCIES)
@pytest.mark.parametrize("length", [1, 2, 8])
def test_write_acknowledgement(bench, length, latency, pace):
    port = bench(latency=latency, cycles_per_word=pace)
    port.send(*port.write(0x1000, [1] * length))
    port.run(1)
    assert port.got[0][0] - port.sent[-1][0] == 5 + (length - 1) * pace + latency


def test_writes_retire_as_fast_as_their_flits_arrive(bench):
    port = bench()
    for k in range(30):
        port.send(*port.write(256 * k, [k] * 8))
    port.run(30)
    acks = cycles(port, FlitType.MEM_WR_ACK)
    assert [b - a for a, b in zip(acks, acks[1:])] == [9] * 29, "the published port needs about 11"


def test_single_word_writes_keep_13_slots_busy(bench):
    port = bench()
    for k in range(60):
        port.send(*port.write(32 * k, [k]))
    port.run(60)
    acks = cycles(port, FlitType.MEM_WR_ACK)
    assert [b - a for a, b in zip(acks, acks[1:])] == [2] * 59


def test_a_read_one_cycle_behind_a_burst_sees_the_old_words(bench):
    """The published port does the same: reads are not ordered behind writes that are not acknowledged."""
    port = bench()
    port.send(*port.write(0x100, [5] * 8), port.read(0x100, len=7))
    assert [flit.payload for flit in port.run(9)][:8] == [0] * 8


@pytest.mark.parametrize("gap, sees", [(7, 0), (8, 5)])
def test_the_first_read_that_sees_a_burst(bench, gap, sees):
    port = bench()
    port.send(*port.write(0x100, [5] * 8))
    port.send(port.read(0x100), at=9 + gap)
    port.run(2)
    assert port.sent[-1][0] - port.sent[-2][0] == gap + 1
    assert next(flit.payload for _, flit in port.got if flit.type == FlitType.MEM_RD_RESP) == sees


def test_an_acknowledgement_gives_way_to_one_unit_of_data_only(bench):
    port = bench()
    port.send(*port.write(0x8000, [1] * 8), port.read(0x100, len=7), port.read(0x1000, stream=1, count=6))
    got = port.run(8 + 24 + 1)
    assert [flit.type for flit in got].index(FlitType.MEM_WR_ACK) == 8 + 4, "not inside a unit, and after one entry"


def test_an_acknowledgement_takes_an_idle_cycle_at_once(bench):
    port = bench()
    port.send(*port.write(0x8000, [1]))
    port.send(*port.write(0x8000, [2], src=CLUSTER), at=200)
    port.run(2)
    data = [cycle for cycle, flit in port.sent if flit.type == FlitType.MEM_WR_DATA]
    assert [ack - word for ack, word in zip(cycles(port, FlitType.MEM_WR_ACK), data)] == [25, 25]


@pytest.mark.parametrize("seed", [1, 2])
def test_random_latency_keeps_order_and_repeats_itself(bench, seed):
    def run():
        port = bench(latency_seed=seed)
        port.fill()
        for k in range(20):
            port.send(port.read(0x100 * k, len=k), *port.write(0x80000 + 0x100 * k, [k] * 5))
        port.run(20 + sum(range(1, 21)))
        return port.got

    first = run()
    assert first == run()
    fixed = bench()
    fixed.fill()
    for k in range(20):
        fixed.send(fixed.read(0x100 * k, len=k), *fixed.write(0x80000 + 0x100 * k, [k] * 5))
    fixed.run(len(first))
    assert [c for c, _ in fixed.got] != [c for c, _ in first]
    data = [[f for _, f in trace if f.type == FlitType.MEM_RD_RESP] for trace in (first, fixed.got)]
    assert data[0] == data[1]
