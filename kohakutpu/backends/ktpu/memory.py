"""Memory of the machine's waves: whole words of 16 neighbours, found when the launch is lowered."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kohakutpu.isa.vector import Opcode
from kohakutpu.xpu import tree
from kohakutpu.xpu.types import Scalar, f16, f32

from .instructions import LANES, WORD, Mask
from .numbers import Floats, Numbers

UNBOUND = 9  # of kohakutpu.xpu.launch.REASONS: a view at an offset that the device cannot bind


@dataclass(frozen=True, eq=False)
class Buffer:
    """A buffer parameter: the allocation's number, its first byte there, and its elements."""

    name: str
    element: Scalar
    memory: int
    start: int
    count: int


class MemoryAccess(Numbers):
    """`stored` and `loaded` are by (memory, word); `stores` are (memory, byte, bytes) of elements."""

    stored: dict[tuple[int, int], list]
    loaded: set[tuple[int, int]]
    stores: list[tuple[int, int, int]]

    def places(self, node, memory: Buffer, index, what: str):
        """For each wave with lanes in the mask: (wave, its lanes, the first lane's element)."""
        if not isinstance(memory, Buffer):
            self.refuse(f"{what} of Shared memory: lanes reach each other by rotations and reductions only", node.at)
        if memory.element not in (f16, f32):
            self.refuse(f"{what} of {memory.element} memory: the core computes on float16 and float32", node.at)
        index = self.number(index, node, "an index").astype(np.int64)
        bad = (index < 0) | (index >= memory.count)
        first = int(index[np.flatnonzero(bad & self.mask)[0]]) if (bad & self.mask).any() else 0
        self.undefined(node, bad, f"{what} of {memory.name}[{first}], which has {memory.count} elements")
        size, found = memory.element.size, []
        for wave in range(self.waves):
            lanes = self.lanes(self.mask, wave)
            if not any(lanes):
                continue
            part = index[wave * LANES : (wave + 1) * LANES] - np.arange(LANES)
            starts = np.unique(part[list(lanes)])
            if len(starts) > 1:
                self.refuse(
                    f"{memory.name}: lanes that do not read neighbours, in order: the core gathers nothing", node.at
                )
            byte = memory.start + int(starts[0]) * size
            if byte % WORD and int(starts[0]) * size % WORD == 0:
                what = f"{memory.name} begins at byte {memory.start} of its allocation, inside a word of {WORD} bytes"
                self.refuse(what, node.at, reason=UNBOUND)
            if byte % WORD:
                self.refuse(f"{memory.name}[{int(starts[0])}] is where lane 0 stands, and begins inside a word of "
                            f"{WORD} bytes", node.at)  # fmt: skip
            found.append((wave, lanes, byte))
        return found

    def words(self, memory: Buffer, byte: int):
        """The words of 16 elements from a byte on."""
        count = LANES * memory.element.size // WORD
        return [(memory.memory, byte // WORD + word) for word in range(count)]

    def load(self, node, memory, index) -> Floats:
        found = [("c", 0)] * self.waves
        wide = isinstance(memory, Buffer) and memory.element is f32
        for wave, lanes, byte in self.places(node, memory, index, "a read"):
            words = self.words(memory, byte)
            for place in words:
                held = self.stored.get(place)
                if held is not None and not all(held[n] for n in self.halves(place, byte, memory, lanes)):
                    self.refuse(f"{memory.name}: a word is read that was stored in part", node.at)
                self.loaded.add(place)
            found[wave] = self.code.put(Opcode.VLD, word=words[0], wide=wide)
        return Floats(tuple(found))

    def halves(self, place, byte: int, memory: Buffer, lanes: Mask) -> list[int]:
        """Which halves of a word the lanes of an access touch."""
        size = memory.element.size // 2
        first = (place[1] * WORD - byte) // memory.element.size
        per = WORD // memory.element.size
        return [n * size + k for n in range(per) if lanes[first + n] for k in range(size)]

    def store(self, node: tree.Store) -> None:
        """The lanes of the mask; others of their words hold anything, and the host takes only what was stored."""
        value, memory = self.value(node.value), self.value(node.memory)
        index = self.value(node.index)
        for wave, lanes, byte in self.places(node, memory, index, "a write"):
            words = self.words(memory, byte)
            for place in words:
                held = self.stored.setdefault(place, [place in self.loaded or all(lanes)] * LANES)
                touched = self.halves(place, byte, memory, lanes)
                if len(touched) < LANES:
                    held[:] = [False] * LANES
                for half in touched:
                    held[half] = True
            self.code.put(Opcode.VST, self.in_register(value.waves[wave]), word=words[0], wide=memory.element is f32)
            self.code.instructions[-1].to = None
            size = memory.element.size
            self.stores += [(memory.memory, byte + lane * size, size) for lane in range(LANES) if lanes[lane]]

    def load_vector(self, node, memory, index):
        self.refuse("vload: a work-item's neighbours lie in other lanes", node.at)
