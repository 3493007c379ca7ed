"""Memory behind the ports: a byte-addressable store, and the timing of one requester's channel to it.

Timing is `docs/microarchitecture/memory-agent.md`, section "Memory". Every requester (each port, the host
window, the mover) owns a `Channel`: one word a `cycles_per_word` in each direction, reads and writes
independent of each other.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from heapq import heapify, heappop, heappush

import numpy as np

from kohakutpu.isa.memory import APERTURE_ADDRESS, DRAM_ADDRESS, WORD_BYTES, Aperture
from kohakutpu.noc.engine import Engine

PAGE_BITS = 12  # granularity at which changes are noticed
BURST_WORDS = 8  # read bursts of a port end at multiples of so many words
AXI_PAGE = 4096  # no burst crosses a multiple of it
DIRECTIONS = ("read", "write")
LAZY_PAGES = getattr(mmap, "MAP_NORESERVE", 0x4000)  # the host allocates a page when it is first written


def pieces(address: int, length: int) -> Iterator[tuple[int, int]]:
    """(address, length) of the bursts that a byte range is cut into: none crosses 4 KiB."""
    end = address + length
    while address < end:
        stop = min(end, (address | AXI_PAGE - 1) + 1)
        yield address, stop - address
        address = stop


class MemoryAccessError(ValueError):
    """An access outside the populated memory: names the range and what is populated."""


class Memory:
    """`size` bytes, zero at the start. `read`, `write` and `array` are for use between cycles.

    Within a cycle the channels use `sample` and `commit`: what is committed in cycle t is seen by samples of
    cycles after t, whichever block is visited first; commits of one cycle land in the order of `requester`.
    """

    def __init__(self, engine: Engine, size: int):
        self.engine = engine
        self.size = size
        self._bytes = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | LAZY_PAGES)
        self._array = np.frombuffer(self._bytes, dtype=np.uint8)
        self._array.flags.writeable = False
        self._pending: list[tuple[int, int, int, int, bytes]] = []  # heap of (cycle, requester, order, address, data)
        self._order = 0
        self._changes = 0
        self._changed: dict[int, int] = {}  # page -> number of the last change that touched it

    def read(self, address: int, length: int) -> bytes:
        """The bytes at `address`, every commit of earlier cycles included."""
        self._require(address, length, "read")
        self._settle(self.engine.now)
        return self._bytes[address : address + length]

    def write(self, address: int, data: bytes) -> None:
        """Change the bytes at `address` at once. Raises `MemoryAccessError` outside the memory."""
        self._require(address, len(data), "write")
        self._settle(self.engine.now)
        self._store(address, data)

    def array(self, address: int, length: int) -> np.ndarray:
        """The bytes at `address` as a read-only uint8[length] view; it follows later changes."""
        self._require(address, length, "view")
        self._settle(self.engine.now)
        return self._array[address : address + length]

    def contains(self, address: int, length: int) -> bool:
        return 0 <= address and address + length <= self.size

    def sample(self, now: int, address: int, length: int) -> bytes:
        """The bytes at `address` as they are at the start of cycle `now`."""
        if self._pending:
            self._settle(now)
        return self._bytes[address : address + length]

    def commit(self, cycle: int, requester: int, address: int, data: bytes) -> None:
        """Change the bytes at `address` at the end of `cycle`, the current one or a later one."""
        self._order += 1
        heappush(self._pending, (cycle, requester, self._order, address, data))

    def forget(self, cycle: int) -> None:
        """A reset that begins in `cycle`: what would be committed in it or later never is."""
        self._pending = [item for item in self._pending if item[0] < cycle]
        heapify(self._pending)

    @property
    def changes(self) -> int:
        """Number of the last change; with `changed_since` it tells whether a copy is still good."""
        return self._changes

    def changed_since(self, change: int, address: int) -> bool:
        """Whether the page that holds `address` was written after change number `change`; call `sample` first."""
        return self._changed.get(address >> PAGE_BITS, 0) > change

    def _settle(self, now: int) -> None:
        pending = self._pending
        while pending and pending[0][0] < now:
            _, _, _, address, data = heappop(pending)
            self._store(address, data)

    def _store(self, address: int, data: bytes) -> None:
        self._bytes[address : address + len(data)] = data
        self._changes += 1
        for page in range(address >> PAGE_BITS, ((address + len(data) - 1) >> PAGE_BITS) + 1):
            self._changed[page] = self._changes

    def _require(self, address: int, length: int, what: str) -> None:
        if length < 0 or not self.contains(address, length):
            raise MemoryAccessError(f"{what} of {length} bytes at {address:#x}: {self.why_not(address)}")

    def why_not(self, address: int) -> str:
        """What an address outside the memory names instead."""
        if address < 0:
            return "addresses are not negative"
        if APERTURE_ADDRESS.get(address, "special"):
            index, mesh = APERTURE_ADDRESS.get(address, "aperture"), APERTURE_ADDRESS.get(address, "mesh")
            known = f" ({Aperture(index).name})" if index in Aperture._value2member_map_ else ""
            return f"it names aperture {index}{known} of mesh {mesh}, which is not built here"
        mesh = DRAM_ADDRESS.get(address, "mesh")
        if mesh:
            return f"it names memory of mesh {mesh}; this machine is mesh 0"
        return f"the memory has {self.size:#x} bytes"


def latencies(limit: int, seed: int | None, requester: int, direction: str) -> Iterator[int]:
    """The latency of each burst of a requester in one direction: `limit`, or with a seed drawn from 1..`limit`.

    The stream is a 32-bit xorshift (13, 17, 5), its state at first the seed times 0x9E3779B1, exclusive or 0x85EBCA6B
    times 2 * requester + 1 (reads) or + 2 (writes), modulo 2^32, or 1 instead of 0; each draw is 1 + state mod limit.
    """
    if seed is None:
        while True:
            yield limit
    word = (1 << 32) - 1
    state = (seed * 0x9E3779B1 ^ (2 * requester + DIRECTIONS.index(direction) + 1) * 0x85EBCA6B) & word or 1
    while True:
        state ^= state << 13 & word
        state ^= state >> 17
        state ^= state << 5 & word
        yield 1 + state % limit


class Channel:
    """One requester's way to the memory (spec: AXI side; timing: memory-agent.md, "Memory").

    Latency is `latency` cycles for every burst, or, when `seed` is given, drawn per burst from 1..latency;
    requester and direction have streams of their own (`latencies`), so that equal programs see equal latencies, and the
    gates see the same. `late` is a fault: the first read burst takes a cycle longer.
    """

    def __init__(self, memory: Memory, requester: int, *, latency: int, cycles_per_word: int, seed: int | None = None,
                 late: bool = False):  # fmt: skip
        self.memory = memory
        self.requester = requester
        self.cycles_per_word = cycles_per_word
        self.next_read = 0  # first cycle in which a read burst may be issued
        self.next_write = 0  # first cycle in which a write burst may be issued
        self.words_read = 0
        self.words_written = 0
        self._last_beat = -cycles_per_word
        self.last_response = -1  # cycle of the latest answer to a write, those included that never reach the memory
        self._on_bus = -1  # cycle of the memory's latest response
        self.observer = None  # told of each burst: "read" or "write", cycle of its issue, of its last word or response
        self._read_latency, self._write_latency = (latencies(latency, seed, requester, way) for way in DIRECTIONS)
        self._late = int(late)

    def read(self, now: int, address: int, words: int) -> tuple[int, bytes]:
        """Issue a read burst in cycle `now`: (cycle of its first beat, data as they are at the start of `now`).

        Beat k arrives `k * cycles_per_word` cycles after the first.
        """
        return self.deliver(now, words), self.memory.sample(now, address, words * WORD_BYTES)

    def write(self, now: int, address: int, data: bytes) -> int:
        """Issue a write burst whose first beat leaves in cycle `now`; the cycle of its response.

        All of it lands at the end of the cycle of its last beat.
        """
        assert now >= self.next_write, "write burst issued while the channel is busy"
        words = len(data) // WORD_BYTES
        last = now + (words - 1) * self.cycles_per_word
        self.memory.commit(last, self.requester, address, data)
        return self.answer(last, words)

    def deliver(self, now: int, words: int) -> int:
        """The timing of `read` alone: the cycle of the first beat."""
        assert now >= self.next_read, "read burst issued while the channel is busy"
        pace = self.cycles_per_word
        self.next_read = now + words * pace
        first = max(now + next(self._read_latency) + self._late, self._last_beat + pace)
        self._late = 0
        self._last_beat = first + (words - 1) * pace
        self.words_read += words
        if self.observer is not None:
            self.observer("read", now, self._last_beat)
        return first

    def answer(self, last: int, words: int) -> int:
        """The timing of `write` alone: the cycle of the response to `words` words, the last one in cycle `last`."""
        self.next_write = last + self.cycles_per_word
        self.words_written += words
        self._on_bus = max(last + next(self._write_latency), self._on_bus + 1)
        self.last_response = max(self._on_bus, self.last_response + 1)
        if self.observer is not None:
            self.observer("write", last - (words - 1) * self.cycles_per_word, self._on_bus)
        return self.last_response

    def skip_response(self, now: int) -> int:
        """The response cycle of a write that is dropped instead of issued: in order with the others."""
        self.last_response = max(now, self.last_response + 1)
        return self.last_response
