"""The memory mover: every mode against a plain loop, bounds, faults, cycles, and through the agent's registers."""

import itertools
import random

import numpy as np
import pytest

from kohakutpu.isa import registers as reg
from kohakutpu.isa.registers import MoverFault, MoverMode, Walker
from kohakutpu.machine import load
from kohakutpu.model.mover import generated_word, philox
from kohakutpu.model.system import System

SOURCE, DESTINATION = Walker.SOURCE, Walker.DESTINATION


class Move:
    """Writes registers and waits, and does the same to an image with loops."""

    def __init__(self, bench, **options):
        self.port = bench(**options)
        self.mover = self.port.agent.mover
        self.engine = self.port.engine
        self.image = bytearray(self.port.fill())
        self.walks = {}
        self.bounds = {}

    def put(self, layout, **fields):
        offset = next(offset for offset, each in reg.MOVER.items() if each is layout)
        self.mover.configure(offset, layout.pack(**fields), self.engine.now)

    def walk(self, walker, base, *dims):
        """Dimensions are (count, stride) or (count, stride, axis, step), the last innermost."""
        self.walks[walker] = (base, dims)
        self.put(reg.MV_WALKER, walker=walker, base=base, dims=len(dims))
        for number, (count, stride, *axis) in enumerate(dims):
            self.put(reg.MV_DIM, walker=walker, dim=number, count=count, stride=stride)
            tag, step = axis or (0, 0)
            self.put(reg.MV_AXIS, axis=tag, step=step)

    def bound(self, walker, axis, base, extent):
        self.bounds[walker, axis + 1] = (base, extent)
        self.put(reg.MV_BOUNDS, walker=walker, axis=axis, base=base, extent=extent)

    def go(self, mode, width=2, budget=1_000_000):
        """Cycles from the start until the mover is idle again."""
        self.put(reg.MV_CONTROL, mode=mode, width=width, go=1)
        begin = self.engine.now
        assert self.mover.busy and self.engine.run(lambda: not self.mover.busy, budget)
        return self.engine.now - begin

    def places(self, walker):
        base, dims = self.walks[walker]
        out = []
        for index in itertools.product(*(range(dim[0]) for dim in dims)):
            address = base + sum(i * dim[1] for i, dim in zip(index, dims))
            inside = True
            for (owner, tag), (start, extent) in self.bounds.items():
                at = start + sum(i * dim[3] for i, dim in zip(index, dims) if dim[2:] and dim[2] == tag)
                inside &= owner != walker or extent == 0 or 0 <= at < extent
            out.append((address, inside))
        return out

    def check(self, values):
        """`values` maps destination addresses to 32-byte words; nothing else may have changed."""
        for address, word in values.items():
            self.image[address : address + 32] = word
        found = self.port.memory.read(0, self.port.memory.size)
        # words, not whole images: a diff of two images takes longer than the suite
        assert not [hex(at) for at in range(0, len(found), 32) if found[at : at + 32] != self.image[at : at + 32]]


@pytest.fixture
def move(bench):
    return lambda **options: Move(bench, **options)


@pytest.mark.parametrize("options", [{}, {"skip": False}, {"latency": 90, "cycles_per_word": 2, "latency_seed": 1}])
@pytest.mark.parametrize(
    "source, target",
    [([(16, 32)], [(16, 32)]), ([(4, 128), (4, 32)], [(4, 32), (4, 128)]), ([(3, 0), (5, 32)], [(3, 160), (5, 32)]),
     ([(2, 4096), (3, 512), (2, 64), (1, 0), (2, -32), (3, 96)], [(72, 32)]), ([], []), ([(100, -32)], [(100, 32)])],
    ids=["straight", "transpose", "broadcast", "six dims", "one word", "backwards"],
)  # fmt: skip
def test_copy(move, source, target, options):
    bench = move(**options)
    bench.walk(SOURCE, 0x8000, *source)
    bench.walk(DESTINATION, 0x40000, *target)
    old = bytes(bench.image)
    bench.go(MoverMode.COPY)
    pairs = zip(bench.places(SOURCE), bench.places(DESTINATION), strict=True)
    bench.check({dst: old[src : src + 32] for (src, _), (dst, _) in pairs})
    assert (bench.mover.done, bench.mover.fault) == (1, MoverFault.NONE)


@pytest.mark.parametrize("seed", range(6))
def test_padding_and_suppression(move, seed):
    """A window that slides off its source is padded, and off its destination not written."""
    choose = random.Random(seed)
    bench = move()
    height, width = choose.randint(2, 5), choose.randint(2, 5)
    bench.walk(SOURCE, 0x8000, (height + 2, 1024, 1, 1), (width + 2, 32, 2, 1))
    bench.bound(SOURCE, 0, -1, height)
    bench.bound(SOURCE, 1, -1, width)
    bench.walk(DESTINATION, 0x40000, (height + 2, 2048, 1, 1), (width + 2, 64, 2, 1))
    bench.bound(DESTINATION, 0, choose.randint(-1, 1), choose.choice([0, height]))
    bench.bound(DESTINATION, 1, 0, width + 1)
    bench.put(reg.MV_VALUE, value=0xDEADBEEF)
    old = bytes(bench.image)
    bench.go(MoverMode.COPY)
    values = {}
    for (src, held), (dst, inside) in zip(bench.places(SOURCE), bench.places(DESTINATION), strict=True):
        if inside:
            values[dst] = old[src : src + 32] if held else bytes.fromhex("efbeadde") * 8
    bench.check(values)
    assert 0 < len(values) < (height + 2) * (width + 2)


@pytest.mark.parametrize("width, pattern", [(0, "ef" * 32), (1, "efbe" * 16), (2, "efbeadde" * 8)])
def test_fill(move, width, pattern):
    bench = move()
    bench.walk(DESTINATION, 0x40020, (3, 256), (2, 32))
    bench.put(reg.MV_VALUE, value=0xDEADBEEF)
    bench.go(MoverMode.FILL, width=width)
    bench.check({dst: bytes.fromhex(pattern) for dst, _ in bench.places(DESTINATION)})


@pytest.mark.parametrize("words", [0, 1, 3])
@pytest.mark.parametrize("count", [1, 7, 8, 9, 100])
def test_gather(move, count, words):
    bench = move()
    rows = np.random.default_rng(count).integers(0, 1000, count)
    vector = rows.astype("<u4").tobytes()
    bench.port.memory.write(0xF000, vector)
    bench.image[0xF000 : 0xF000 + len(vector)] = vector
    bench.put(reg.MV_INDEX, addr=0xF000, count=count)
    bench.put(reg.MV_GATHER, words=words, pitch=256)
    bench.walk(SOURCE, 0x10000)
    each = max(words, 1)
    bench.walk(DESTINATION, 0x80000, (count * each, 32))
    old = bytes(bench.image)
    bench.go(MoverMode.GATHER)
    values = {}
    for number, (dst, _) in enumerate(bench.places(DESTINATION)):
        src = 0x10000 + int(rows[number // each]) * 256 + number % each * 32
        values[dst] = old[src : src + 32]
    bench.check(values)
    assert bench.mover.done == 1


def test_gather_offsets_wrap_at_32_bits(move):
    bench = move()
    bench.port.memory.write(0xF000, (0x80000001).to_bytes(4, "little"))
    bench.put(reg.MV_INDEX, addr=0xF000, count=1)
    bench.put(reg.MV_GATHER, words=1, pitch=0x40)
    bench.walk(SOURCE, 0x1000)
    bench.walk(DESTINATION, 0x2000)
    bench.go(MoverMode.GATHER)
    assert bench.port.memory.read(0x2000, 32) == bench.image[0x1040:0x1060]


@pytest.mark.parametrize(
    "counter, key, expected",
    [((0,) * 4, (0,) * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
     ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
     ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
      "d16cfe09 94fdcceb 5001e420 24126ea1")],
)  # fmt: skip
def test_philox_known_answers(counter, key, expected):
    assert " ".join(f"{word:08x}" for word in philox(counter, key)) == expected


def test_generate_depends_on_address_and_seed_alone(move):
    seed = 0x0123456789ABCDEF
    whole, tiled = move(), move(latency=50)
    whole.put(reg.MV_SEED, seed=seed)
    whole.walk(DESTINATION, 0x40000, (64, 32))
    whole.go(MoverMode.GENERATE)
    whole.check({dst: generated_word(dst, seed).to_bytes(32, "little") for dst, _ in whole.places(DESTINATION)})
    tiled.put(reg.MV_SEED, seed=seed)
    tiled.walk(DESTINATION, 0x40000 + 63 * 32, (8, -32), (8, -256))
    tiled.go(MoverMode.GENERATE)
    assert tiled.port.memory.read(0x40000, 2048) == whole.port.memory.read(0x40000, 2048)
    number, key = 0x40000 >> 5, (0x89ABCDEF, 0x01234567)
    low = b"".join(word.to_bytes(4, "little") for half in (0, 1) for word in philox((number, half, 0, 0), key))
    assert whole.port.memory.read(0x40000, 32) == low


@pytest.mark.parametrize(
    "mode, width, setup, fault",
    [(1, 2, {}, "MODE"), (5, 2, {}, "MODE"), (7, 2, {}, "MODE"), (0, 3, {}, "ELEMENT_WIDTH"),
     (0, 2, {"target": 0x40010}, "ALIGNMENT"), (0, 2, {"source": 0x8004}, "ALIGNMENT"),
     (0, 2, {"target": 1 << 20}, "AXI"), (0, 2, {"source": 1 << 36}, "AXI"), (4, 2, {"target": 1 << 39}, "AXI"),
     (2, 2, {"count": 0}, "INDEX_LENGTH"), (2, 2, {"count": 2049}, "INDEX_LENGTH"),
     (2, 2, {"count": 2}, "INDEX_LENGTH"),
     (2, 2, {"count": 4, "vector": 0xF004}, "ALIGNMENT"), (2, 2, {"count": 4, "vector": 1 << 20}, "AXI"),
     (0, 2, {"dims": 7}, "RANGE")],
)  # fmt: skip
def test_faults_stop_the_move_and_are_shown(move, mode, width, setup, fault):
    bench = move()
    bench.port.memory.write(0xF000, bytes(64))
    bench.image[0xF000:0xF040] = bytes(64)
    bench.put(reg.MV_INDEX, addr=setup.get("vector", 0xF000), count=setup.get("count", 8))
    bench.put(reg.MV_GATHER, words=1, pitch=32)
    bench.walk(SOURCE, setup.get("source", 0x8000), (4, 32))
    bench.walk(DESTINATION, setup.get("target", 0x40000), (4, 32))
    if "dims" in setup:
        bench.put(reg.MV_WALKER, walker=DESTINATION, base=0x40000, dims=7)
    bench.go(mode, width=width)
    assert (bench.mover.fault.name, bench.mover.done, bench.mover.busy) == (fault, 0, False)
    if (mode, setup.get("count")) == (2, 2):  # two rows were there
        bench.check({0x40000 + 32 * k: bytes(bench.image[0x8000:0x8020]) for k in range(2)})
    else:
        bench.check({})
    bench.walk(SOURCE, 0x8000, (1, 32))
    bench.walk(DESTINATION, 0x40000, (1, 32))
    bench.go(MoverMode.COPY)
    assert (bench.mover.fault, bench.mover.done) == (MoverFault.NONE, 1), "the next move starts afresh"


def test_nothing_is_taken_while_busy(move):
    bench = move()
    bench.walk(SOURCE, 0x8000, (50, 32))
    bench.walk(DESTINATION, 0x40000, (50, 32))
    bench.put(reg.MV_CONTROL, mode=MoverMode.COPY, go=1)
    bench.engine.advance(10)
    assert "of 50 elements" in bench.mover.describe()[0]
    bench.put(reg.MV_WALKER, walker=DESTINATION, base=0, dims=1)
    bench.put(reg.MV_CONTROL, mode=MoverMode.FILL, go=1)
    assert bench.engine.run(lambda: not bench.mover.busy, 1000)
    bench.check({0x40000: bytes(bench.image[0x8000 : 0x8000 + 1600])[:32]} | {
        0x40000 + 32 * k: bytes(bench.image[0x8000 + 32 * k : 0x8020 + 32 * k]) for k in range(50)})  # fmt: skip
    assert bench.mover.done == 1 and bench.mover.describe() == []


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("pace", [1, 3, 30])
@pytest.mark.parametrize("latency", [1, 20])
def test_cycles(move, latency, pace, skip):
    def cycles(mode, words):
        bench = move(latency=latency, cycles_per_word=pace, skip=skip)
        bench.walk(SOURCE, 0x8000, (words, 32))
        bench.walk(DESTINATION, 0x40000, (words, 32))
        bench.put(reg.MV_INDEX, addr=0, count=words)
        return bench.go(mode)

    for words in (1, 2, 40):
        last = (words - 1) * pace
        assert cycles(MoverMode.COPY, words) == 1 + last + (latency + 1) + latency + 1 + 1
        assert cycles(MoverMode.FILL, words) == 1 + last + 1 + latency + 1 + 1
        assert cycles(MoverMode.GENERATE, words) == 1 + last + 20 + latency + 1 + 1


@pytest.mark.parametrize("pace", [1, 3])
def test_gather_starts_when_its_indices_are_there(move, pace):
    bench = move(cycles_per_word=pace)
    bench.port.memory.write(0xF000, bytes(64))
    bench.put(reg.MV_INDEX, addr=0xF000, count=16)
    bench.put(reg.MV_GATHER, words=1)
    bench.walk(SOURCE, 0x10000)
    bench.walk(DESTINATION, 0x80000, (16, 32))
    first = 1 + pace + 20 + 7
    assert bench.go(MoverMode.GATHER) == first + 15 * pace + 21 + 20 + 2


def test_a_vector_that_leaves_the_memory_faults_when_what_was_read_of_it_is_there(move):
    bench = move(latency=50)
    bench.put(reg.MV_INDEX, addr=(1 << 20) - 64, count=24)
    bench.walk(SOURCE, 0)
    bench.walk(DESTINATION, 0x80000, (24, 32))
    assert bench.go(MoverMode.GATHER) == 2 + 50 + 2
    assert bench.mover.fault == MoverFault.AXI
    bench.check({})


def test_only_what_is_read_waits_for_the_channel(move):
    """Every other word is padding: a read can follow every cycles_per_word all the same."""
    bench = move(cycles_per_word=4)
    bench.walk(SOURCE, 0x8000, (8, 32), (2, 0, 1, 1))
    bench.bound(SOURCE, 0, 0, 1)
    bench.walk(DESTINATION, 0x40000, (16, 32))
    bench.bound(DESTINATION, 0, 0, 0)
    reads = []
    bench.mover.channel.observer = lambda way, begin, _: reads.append(begin - start) if way == "read" else None
    start = bench.engine.now
    bench.go(MoverMode.COPY)
    assert reads == [1 + 4 * k for k in range(8)]


def test_sixty_four_words_are_under_way_at_most(move):
    bench = move(latency=500)
    bench.walk(SOURCE, 0x8000, (200, 32))
    bench.walk(DESTINATION, 0x40000, (200, 32))
    assert bench.go(MoverMode.COPY) == 1 + 3 * (500 + 2) + 7 + 501 + 500 + 2


def test_a_planted_fault_is_seen(move):
    bench = move(faults=frozenset({"mover-skips-word"}))
    bench.walk(SOURCE, 0x8000, (4, 32))
    bench.walk(DESTINATION, 0x40000, (4, 32))
    bench.go(MoverMode.COPY)
    with pytest.raises(AssertionError):
        bench.check({0x40000 + 32 * k: bytes(bench.image[0x8000 + 32 * k : 0x8020 + 32 * k]) for k in range(4)})


def test_the_published_transpose_through_the_agents_registers():
    system = System(load("mm_mesh"))
    words = [bytes([k]) * 32 for k in range(16)]
    system.memory.write(0x1000, b"".join(words))

    def put(layout, **fields):
        offset = next(offset for offset, each in reg.MOVER.items() if each is layout)
        system.host.write64(reg.aux_offset(offset), layout.encode(**fields))

    for walker, base, strides in ((SOURCE, 0x1000, (128, 32)), (DESTINATION, 0x2000, (32, 128))):
        put(reg.MV_WALKER, walker=walker, base=base, dims=2)
        for dim, stride in enumerate(strides):
            put(reg.MV_DIM, walker=walker, dim=dim, count=4, stride=stride)
            put(reg.MV_AXIS)
    put(reg.MV_CONTROL, mode=MoverMode.COPY, width=1, go=1)

    def status():
        return reg.AUX_STAT.layout.decode(system.host.read64(reg.AUX_STAT.offset))

    seen = [status() for _ in range(40)]
    assert seen[0]["busy"] and seen[-1] == seen[-1] | {"busy": 0, "moves": 1, "fault": 0}
    assert system.memory.read(0x2000, 512) == b"".join(words[4 * (k % 4) + k // 4] for k in range(16))
