"""Moves for the memory mover: random ones of every mode, their register writes, and what a plain loop makes of them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from kohakutpu.isa import registers as reg
from kohakutpu.isa.registers import ElementWidth, MoverFault, MoverMode, Walker

BYTES = 1 << 16
ADDRESSES = 1 << 40
WORD = 32
TABLES = 1 << 12  # index vectors, at the start of memory
VECTORS = (0, TABLES // 2)  # indices below 300; even ones, for pitches whose product overflows
LEGAL = (MoverMode.COPY, MoverMode.GATHER, MoverMode.GENERATE, MoverMode.FILL)


def contents(seed: int) -> bytes:
    """The whole memory: random, but for the index vectors."""
    chance = random.Random(f"{seed} contents")
    words = [chance.randrange(300) for _ in range(TABLES // 8)]
    words += [2 * chance.randrange(150) for _ in range(TABLES // 8)]
    return b"".join(word.to_bytes(4, "little") for word in words) + chance.randbytes(BYTES - TABLES)


@dataclass
class Walk:
    """A base, dimensions (count, stride, axis tag, axis step), and (base, extent) of both axes."""

    base: int = 0
    dims: list[tuple[int, int, int, int]] = field(default_factory=list)
    axes: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0), (0, 0)])

    def places(self) -> list[tuple[int, bool]]:
        """(address, inside) of every element."""
        out = []
        for index in itertools.product(*(range(max(1, count)) for count, *_ in self.dims)):
            inside = True
            for tag, (base, extent) in enumerate(self.axes, 1):
                at = base + sum(i * step for i, (_, _, axis, step) in zip(index, self.dims) if axis == tag)
                inside &= extent == 0 or 0 <= at < extent
            address = self.base + sum(i * stride for i, (_, stride, _, _) in zip(index, self.dims))
            out.append((address & ADDRESSES - 1, inside))
        return out

    def put_inside(self, chance: random.Random, low: int, high: int) -> None:
        """Choose the base so that all of the walk is from `low` to `high`, where that can be."""
        self.base = 0
        at = [address - ADDRESSES * (address >> 39) for address, _ in self.places()]
        least, most = low - min(at), high - WORD - max(at)
        self.base = max(0, least if most <= least else chance.randrange(least, most + 1, WORD))


@dataclass
class Move:
    mode: int
    width: int = ElementWidth.BITS_32
    source: Walk = field(default_factory=Walk)
    target: Walk = field(default_factory=Walk)
    vector: int = 0
    count: int = 1
    pitch: int = 0
    words: int = 0
    seed: int = 0
    value: int = 0
    burst: int = 0
    coalesce: int = 0

    def writes(self) -> Iterator[tuple[int, int]]:
        """(index in AUX_CFG, value) of the registers, GO last."""
        for number, walk in ((Walker.SOURCE, self.source), (Walker.DESTINATION, self.target)):
            for dim, (count, stride, axis, step) in enumerate(walk.dims):
                yield put(reg.MV_DIM, walker=number, dim=dim, count=count, stride=stride)
                yield put(reg.MV_AXIS, axis=axis, step=step)
            for axis, (base, extent) in enumerate(walk.axes):
                yield put(reg.MV_BOUNDS, walker=number, axis=axis, base=base, extent=extent)
            yield put(reg.MV_WALKER, walker=number, base=walk.base, dims=len(walk.dims))
        yield put(reg.MV_INDEX, addr=self.vector, count=self.count)
        yield put(reg.MV_GATHER, pitch=self.pitch, words=self.words)
        yield put(reg.MV_SEED, seed=self.seed)
        yield put(reg.MV_VALUE, value=self.value)
        yield self.go()

    def go(self) -> tuple[int, int]:
        return put(
            reg.MV_CONTROL, mode=self.mode, width=self.width, go=1, burst=self.burst, coalesce=self.coalesce
        )

    def result(self, image: bytes, generated) -> tuple[MoverFault, dict[int, bytes], set[int]]:
        """How the move ends, the word at each address it writes, and the addresses of the words it reads, by the rules
        alone; `generated(address, seed)` is the word of mode GENERATE."""
        writes: dict[int, bytes] = {}
        reads: set[int] = set()
        fault = self._refusal() or self._loop(image, generated, writes, reads)
        return fault, writes, reads

    def _loop(self, image: bytes, generated, writes: dict[int, bytes], reads: set[int]) -> MoverFault:
        indices = []
        if self.mode == MoverMode.GATHER:
            vector = range(self.vector, self.vector + 4 * self.count, WORD)
            if vector[-1] + WORD > len(image):
                return MoverFault.AXI
            table = image[self.vector : self.vector + 4 * self.count]
            indices = [int.from_bytes(table[at : at + 4], "little") for at in range(0, 4 * self.count, 4)]
        size = {ElementWidth.BITS_8: 1, ElementWidth.BITS_16: 2, ElementWidth.BITS_32: 4}[self.width]
        pattern = self.value.to_bytes(4, "little")[:size] * (WORD // size)
        sources = itertools.cycle(self.source.places())
        for number, ((to, inside), (start, held)) in enumerate(zip(self.target.places(), sources)):
            if not inside:
                continue
            if to % WORD:
                return MoverFault.ALIGNMENT
            if to + WORD > len(image):
                return MoverFault.AXI
            if self.mode == MoverMode.GENERATE:
                writes[to] = generated(to, self.seed).to_bytes(WORD, "little")
                continue
            if self.mode == MoverMode.FILL or self.mode == MoverMode.COPY and not held:
                writes[to] = pattern
                continue
            if self.mode == MoverMode.GATHER:
                row, word = divmod(number, max(1, self.words))
                if row >= self.count:
                    return MoverFault.INDEX_LENGTH
                start = self.source.base + indices[row] * self.pitch % (1 << 32) + word * WORD & ADDRESSES - 1
            if start % WORD:
                return MoverFault.ALIGNMENT
            if start + WORD > len(image):
                return MoverFault.AXI
            reads.add(start)
            writes[to] = image[start : start + WORD]
        return MoverFault.NONE

    def _refusal(self) -> MoverFault:
        if self.mode not in LEGAL:
            return MoverFault.MODE
        if self.width == ElementWidth.FAULTS:
            return MoverFault.ELEMENT_WIDTH
        if max(len(self.source.dims), len(self.target.dims)) > 6:
            return MoverFault.RANGE
        if self.mode == MoverMode.GATHER and not 0 < self.count <= 2048:
            return MoverFault.INDEX_LENGTH
        if self.mode == MoverMode.GATHER and self.vector % WORD:
            return MoverFault.ALIGNMENT
        return MoverFault.NONE


def put(layout, **fields: int) -> tuple[int, int]:
    """(index in AUX_CFG, value) of one register."""
    offset = next(offset for offset, each in reg.MOVER.items() if each is layout)
    return offset // reg.REGISTER_BYTES, layout.pack(**fields)


def walk(chance: random.Random, elements: int, low: int, high: int, bounded: float) -> Walk:
    """A walk of about `elements` elements from `low` to `high`."""
    out = Walk()
    left = elements
    dims = chance.choice([0, 1, 1, 1, 2, 2, 2, 3, 3, 4, 6, 6])
    for number in range(dims):
        whole = number == dims - 1
        count = left if whole else min(left, chance.choice([0, 1, 2, 2, 3, 4]))
        left = max(1, left // max(1, count))
        stride = WORD * chance.choice([1, 1, 1, -1, 2, 0] if whole else [0, 1, 3, 8, 40, -1, -2, -7, -50])
        out.dims.append((count, stride, chance.choice([0, 1, 1, 2, 2, 3]), chance.choice([1, 1, 1, 2, -1, 0, 30000])))
    chance.shuffle(out.dims)
    for axis in range(2):
        if chance.random() < bounded:
            out.axes[axis] = (chance.choice([0, -1, -2, 1, -30000]), chance.choice([0, 1, 2, 3, 3, 5, 60000]))
    out.put_inside(chance, low, high)
    return out


def move(chance: random.Random, *, elements: int, apart: bool = False, wrong: float = 0.15) -> Move:
    """One move; `apart` keeps what is read below the middle of memory and what is written above it."""
    middle = BYTES // 2 if apart else TABLES
    end = middle if apart else BYTES
    mode = chance.choice([*LEGAL, MoverMode.COPY, MoverMode.GATHER])
    size = chance.choice([1, 5, 20, elements, elements])
    out = Move(
        mode,
        width=chance.randrange(3),
        source=walk(chance, size, TABLES, end, 0.4 if mode == MoverMode.COPY else 0.1),
        target=walk(chance, size, middle, BYTES, 0.3),
        seed=chance.getrandbits(64), value=chance.getrandbits(32),
        burst=chance.randrange(8), coalesce=chance.randrange(2),
    )  # fmt: skip
    if mode == MoverMode.GATHER:
        out.target = walk(chance, size, middle, BYTES, 0.1)
        out.words = chance.choice([0, 1, 1, 2, 3, 7])
        rows = -(-len(out.target.places()) // max(1, out.words))
        out.count = min(max(1, rows + chance.choice([0, 0, 0, 1, 30, -1])), TABLES // 8)
        overflows = chance.random() < 0.4
        out.vector = VECTORS[overflows] + WORD * chance.randrange((TABLES // 2 - 4 * out.count) // WORD + 1)
        out.pitch = WORD * chance.choice([0, 1, 2]) + (1 << 31 if overflows else 0)
        out.source.base = chance.randrange(TABLES, BYTES // 2 - (300 * 2 + 7) * WORD, WORD)
    if chance.random() < wrong:
        spoil(chance, out)
    return out


def spoil(chance: random.Random, out: Move) -> None:
    """Something that faults, or may."""
    far = chance.choice([BYTES - 64, BYTES, 1 << 36, (1 << 40) - 64])
    match chance.randrange(8):
        case 0:
            out.mode = chance.choice([1, 5, 6, 7])
        case 1:
            out.width = ElementWidth.FAULTS
        case 2:
            out.target.base = far
        case 3:
            out.source.base = far
        case 4:
            out.target.base += chance.choice([1, 8, 16])
        case 5:
            out.source.base += chance.choice([1, 8, 16])
        case 6:
            out.source.dims = [(1, 0, 0, 0)] * 7
        case 7:
            out.mode = MoverMode.GATHER
            vectors = [(0, 0), (2049, 0), (3, 4), (30, BYTES - 64), (9, BYTES), (5, 1 << 39)]
            out.count, out.vector = chance.choice(vectors)


def directed() -> list[Move]:
    """What random moves rarely have all of."""
    here, there = TABLES, BYTES // 2
    padded = [(4, 128, 1, 1), (3, WORD, 2, 1)]
    return [
        Move(MoverMode.FILL, ElementWidth.BITS_8, target=Walk(there, [(130, WORD, 0, 0)]), value=0xA5A6A7A8),
        # a source that starts over, backwards, and a dimension of no steps
        Move(MoverMode.COPY, source=Walk(here, [(3, 96, 0, 0)]), target=Walk(there, [(0, 8, 0, 0), (8, WORD, 0, 0)])),
        Move(MoverMode.COPY, source=Walk(here + 640, [(4, -128, 0, 0), (2, WORD, 0, 0)]),
             target=Walk(there, [(8, WORD, 0, 0)])),
        # a window with padding before it and behind it
        Move(MoverMode.COPY, source=Walk(here, padded, [(-1, 2), (-1, 1)]), target=Walk(there, padded), value=7),
        Move(MoverMode.GENERATE, target=Walk(there, [(30, WORD, 0, 0)]), seed=0x0123456789ABCDEF),
        # more words than may be under way
        Move(MoverMode.COPY, source=Walk(here, [(80, WORD, 0, 0)]), target=Walk(there, [(80, WORD, 0, 0)])),
        # products that overflow, two words a row, more elements than rows
        Move(MoverMode.GATHER, source=Walk(here), target=Walk(there, [(26, WORD, 0, 0)]), vector=VECTORS[1], count=12,
             pitch=1 << 31 | WORD, words=2),
    ]  # fmt: skip


# ---- lives ----------------------------------------------------------------------------------------------------------


def life(seed: int, moves: int, elements: int):
    """A generator that says what the host does: it is sent whether the mover is busy at the start of each cycle and
    yields the register write in force in that cycle, or None; it ends when nothing more is to come."""
    chance = random.Random(f"{seed} life")
    busy = yield None
    for item in [*directed(), *(move(chance, elements=elements) for _ in range(moves))]:
        writes = list(item.writes())
        if chance.random() < 0.1:
            writes = [item.go()]  # whatever the registers hold
        pause = chance.choice([0, 0, 1, 3])
        for write in writes:
            busy = yield write
            for _ in range(chance.randrange(pause + 1)):
                busy = yield None
        if chance.random() < 0.2:  # a register whose GO bit is not set, and one that nobody has
            busy = yield (0, reg.MV_CONTROL.pack(mode=MoverMode.FILL))
            busy = yield (chance.choice([1, 9, 11, 16, 17, 31]), chance.getrandbits(64))
        meddles = chance.random() < 0.5
        while busy:
            junk = move(chance, elements=4)
            busy = yield chance.choice(list(junk.writes())) if meddles and chance.random() < 0.3 else None
        for _ in range(chance.choice([0, 0, 0, 1, 2])):
            busy = yield None
