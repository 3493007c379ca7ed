"""The host memory window: blocks, the quantising upload, order behind unit writes, refusals."""

import numpy as np
import pytest

from kohakutpu.formats import mxfp7, words
from kohakutpu.isa.memory import APERTURE_ADDRESS, Aperture
from kohakutpu.model.memory import MemoryAccessError

UPLOAD = {"A": Aperture.UPLOAD_A, "B": Aperture.UPLOAD_B}


def aperture(index, local, mesh=0):
    return APERTURE_ADDRESS.encode(aperture=index, local=local, mesh=mesh)


def finish(port, budget=100_000):
    """Cycles until the transfer is over."""
    begin = port.engine.now
    assert port.engine.run(lambda: not port.window.busy, budget)
    return port.engine.now - begin


def read(port, address, length):
    port.window.begin_read(address, length)
    finish(port)
    return port.window.take_data()


@pytest.mark.parametrize(
    "address, length", [(0, 8), (8, 8), (24, 16), (0x100, 32), (0x1F8, 3000), (0xFFFF8, 8), (0, 1 << 20)]
)
def test_blocks_there_and_back(bench, address, length):
    port = bench()
    port.memory.write(0, b"\xaa" * port.memory.size)
    data = np.random.default_rng(length).integers(0, 256, length, dtype=np.uint8).tobytes()
    port.window.begin_write(address, data)
    finish(port)
    image = port.memory.read(0, port.memory.size)
    before, after = image[:address], image[address + length :]
    assert before + after == b"\xaa" * (len(image) - length)
    assert image[address : address + length] == data == read(port, address, length)


@pytest.mark.parametrize("latency, pace", [(1, 1), (20, 1), (20, 3)])
@pytest.mark.parametrize("address, length, beats", [(0, 8, 1), (24, 16, 2), (0, 32, 1), (32, 256, 8), (16, 256, 9)])
def test_a_transfer_takes_a_beat_a_word_and_the_latency(bench, address, length, beats, latency, pace):
    port = bench(latency=latency, cycles_per_word=pace)
    port.window.begin_write(address, bytes(length))
    assert finish(port) == (beats - 1) * pace + latency + 1
    port.engine.advance(50)
    port.window.begin_read(address, length)
    assert finish(port) == (beats - 1) * pace + latency + 2


@pytest.mark.parametrize("layout", "AB")
@pytest.mark.parametrize("entries", [1, 2, 17])
def test_upload_stores_operand_words(bench, entries, layout):
    port = bench()
    port.memory.write(0, b"\xaa" * port.memory.size)
    source = np.random.default_rng(entries).integers(0, 1 << 16, (entries, 4, 32), dtype=np.uint16)
    port.window.begin_write(aperture(UPLOAD[layout], 0x4020), source.astype("<u2").tobytes())
    assert finish(port) == 8 * entries + 8 + 3 + 20 + 1
    packed = words.to_bytes(mxfp7.pack(*mxfp7.quantise(source), layout))
    image = port.memory.read(0, port.memory.size)
    assert image[0x4020 : 0x4020 + 128 * entries] == packed
    assert image[:0x4020] + image[0x4020 + 128 * entries :] == b"\xaa" * (len(image) - 128 * entries)


def test_uploaded_entries_equal_entries_converted_on_the_way(bench):
    port = bench()
    memory = port.fill()
    request = port.read(0x8000, stream=1, quant=1, count=16, blayout=1)
    port.window.begin_write(aperture(UPLOAD["B"], 0x40000), memory[0x8000:0x9000])
    finish(port)
    port.send(request, port.read(0x40000, stream=1, count=16))
    got = [flit.payload for flit in port.run(128)]
    assert got[:64] == got[64:] == [flit.payload for flit in port.expect(request, memory)]


@pytest.mark.parametrize("skip", [True, False])
def test_a_read_waits_for_writes_that_have_arrived(bench, skip):
    port = bench(latency=50, skip=skip)
    flits = [flit for k in range(6) for flit in port.write(0x100 * k, [k + 1] * 8)]
    port.send(*flits)
    assert port.engine.run(lambda: len(port.sent) == len(flits), 1000)
    assert not port.got
    data = read(port, 0x500, 32)
    assert int.from_bytes(data, "little") == 6


@pytest.mark.parametrize("skip", [True, False])
def test_a_read_begins_when_the_last_write_was_answered(bench, skip):
    port = bench(skip=skip)
    port.send(*port.write(0x100, [1]))
    assert port.engine.run(lambda: len(port.sent) == 2, 100)
    port.window.begin_read(0x100, 32)
    # From the cycle behind the data's transfer: on the bus 2 later, answered 20 later, issued in the next.
    assert finish(port) == 2 + 20 + 1 + 20 + 2


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("pace", [1, 3])
def test_bursts_of_a_transfer_end_at_4_kib_and_land_one_by_one(bench, skip, pace):
    port = bench(skip=skip, cycles_per_word=pace)
    port.window.begin_write(0x0F80, b"\x11" * 256)  # four words, then four more
    port.engine.advance(3 * pace + 1)
    assert port.memory.read(0x0F80, 256) == b"\x11" * 128 + bytes(128)
    assert finish(port) == 4 * pace + 20
    assert port.memory.read(0x0F80, 256) == b"\x11" * 256


@pytest.mark.parametrize("skip", [True, False])
def test_bursts_of_a_read_are_as_the_memory_is_when_each_is_issued(bench, skip):
    port = bench(skip=skip)
    port.window.begin_read(0x0F80, 256)  # issued in cycles 0 and 4
    port.engine.advance(3)
    port.memory.write(0x0F80, b"\x22" * 256)
    finish(port)
    assert port.window.take_data() == bytes(128) + b"\x22" * 128


@pytest.mark.parametrize("skip", [True, False])
def test_a_burst_that_waits_for_the_bus_alone_is_not_taken_back(bench, skip):
    port = bench(skip=skip)
    port.send(*port.write(0x8000, [1]))  # in memory, and answered, in cycle 25
    port.window.begin_read(0x0F80, 256)
    assert finish(port) == 4 + 20 + 3 + 2, (
        "the second burst is offered in cycle 1, when no write had arrived, and issued in 4"
    )


@pytest.mark.parametrize("skip", [True, False])
def test_every_burst_of_a_read_waits_for_writes(bench, skip):
    port = bench(skip=skip)
    port.send(*port.write(0x8000, [1]))
    port.send(*port.write(0x8000, [2]), at=22)  # transferred in 23 and 24
    assert port.engine.run(lambda: len(port.sent) == 2, 100)
    port.window.begin_read(
        0x0F80, 256
    )  # issued in 26, but for what has come since; the second burst one response later
    assert finish(port) + 3 == 24 + 3 + 20 + 1 + 4 + 20 + 3 + 2


def test_a_read_does_not_wait_for_data_that_never_come(bench):
    port = bench()
    port.send(*port.write(0x100, [1, 2])[:2])
    port.engine.advance(50)
    assert read(port, 0x100, 64) == bytes(64)


@pytest.mark.parametrize(
    "address, length, says",
    [(1 << 20, 8, "the memory has 0x100000 bytes"), ((1 << 20) - 8, 16, "the memory has"), (0, 0, "0 bytes"),
     (1 << 37, 8, "memory of mesh 2"), (aperture(0, 0), 8, "STAGING"), (aperture(3, 0), 8, "aperture 3 of mesh 0"),
     (aperture(Aperture.UPLOAD_A, 0, mesh=1), 256, "of mesh 1")],
)  # fmt: skip
def test_what_is_not_there_is_refused_by_name(bench, address, length, says):
    port = bench()
    with pytest.raises(MemoryAccessError, match=says):
        port.window.begin_write(address, bytes(length))
    with pytest.raises(MemoryAccessError, match=says):
        port.window.begin_read(address, length)
    assert not port.window.busy and port.memory.read(0, 64) == bytes(64)


@pytest.mark.parametrize("length", [0, 8, 255, 257, 384])
def test_a_partial_upload_is_refused(bench, length):
    port = bench()
    with pytest.raises(MemoryAccessError, match=f"upload of {length} bytes.*whole entries of 256"):
        port.window.begin_write(aperture(Aperture.UPLOAD_A, 0), bytes(length))
    with pytest.raises(MemoryAccessError, match="can only be written"):
        port.window.begin_read(aperture(Aperture.UPLOAD_B, 0), 256)
    with pytest.raises(MemoryAccessError, match="not a multiple of 32"):
        port.window.begin_write(aperture(Aperture.UPLOAD_A, 8), bytes(256))
    with pytest.raises(MemoryAccessError, match="quantising upload of 128 bytes at 0x100000"):
        port.window.begin_write(aperture(Aperture.UPLOAD_A, 1 << 20), bytes(256))


def test_one_transfer_at_a_time(bench):
    port = bench()
    port.window.begin_write(0, bytes(64))
    for again in (lambda: port.window.begin_write(0, bytes(8)), lambda: port.window.begin_read(0, 8)):
        with pytest.raises(MemoryAccessError, match="one at a time"):
            again()
    assert port.window.describe()
    finish(port)
    assert port.window.describe() == []
