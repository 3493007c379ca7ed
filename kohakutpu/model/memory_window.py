"""The host memory window: blocks of bytes to and from memory, and the quantising upload.

Timing is `docs/microarchitecture/memory-agent.md`, section "Host window". Addresses are the mesh's own
40-bit ones. Apertures 4 and 5 take FP16 entries and store operand words in A or B layout (spec: host
memory window).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from kohakutpu.formats import words
from kohakutpu.isa.memory import APERTURE_ADDRESS, ENTRY_WORDS, WORD_BYTES, Aperture
from kohakutpu.model.memory import Channel, MemoryAccessError, pieces
from kohakutpu.model.memory_read import CONVERTER_LATENCY, SOURCE_BYTES, SOURCE_WORDS, convert
from kohakutpu.model.memory_write import WritePath
from kohakutpu.noc.engine import NEVER, Component, Engine

LAYOUTS = {Aperture.UPLOAD_A: "A", Aperture.UPLOAD_B: "B"}


class HostWindow(Component):
    """One transfer at a time, on a channel of its own.

    A read waits until every write that has reached a port in full is in memory, so that a host that has seen
    a completion sees the data too.
    """

    def __init__(self, engine: Engine, name: str, channel: Channel, writes: Sequence[WritePath]):
        super().__init__(engine, name)
        self.channel = channel
        self.writes = writes
        self.busy = False
        self._finish = NEVER
        self._reading: deque[tuple[int, int]] = deque()  # (address, length) of the bursts that were not issued yet
        self._offered = False  # the first of them waits for the memory alone
        self._data: bytearray | None = None

    def begin_write(self, address: int, data: bytes) -> None:
        """Start storing `data` at `address`; `busy` falls when the memory has answered.

        To an upload aperture: whole FP16 entries of 256 bytes; 128 bytes each are stored. Raises
        `MemoryAccessError` for a transfer that is refused.
        """
        self._require_idle()
        now = self.engine.now
        layout = self._upload_layout(address)
        if layout is None:
            self._require(address, len(data), "write")
            self._store(now, address, data)
        else:
            destination = APERTURE_ADDRESS.get(address, "local")
            if len(data) % SOURCE_BYTES or not data:
                raise MemoryAccessError(
                    f"quantising upload of {len(data)} bytes at {address:#x}: "
                    f"whole entries of {SOURCE_BYTES} are expected"
                )
            if destination % WORD_BYTES:
                raise MemoryAccessError(
                    f"quantising upload at {address:#x}: the destination is not a multiple of {WORD_BYTES}"
                )
            packed = words.to_bytes(words.from_ints(convert(data, layout)))
            self._require(destination, len(packed), "quantising upload")
            for entry in range(len(data) // SOURCE_BYTES):
                at = entry * ENTRY_WORDS * WORD_BYTES
                first = now + (entry + 1) * SOURCE_WORDS - 1 + CONVERTER_LATENCY
                self._store(first, destination + at, packed[at : at + ENTRY_WORDS * WORD_BYTES])
        self.busy = True
        self.wake(self._finish)

    def _store(self, earliest: int, address: int, data: bytes) -> None:
        """Write bursts back to back from cycle `earliest` on; `_finish` is then the cycle of the last response."""
        channel = self.channel
        for piece, length in pieces(address, len(data)):
            beats = _beats(piece, length)
            last = max(earliest, channel.next_write) + (beats - 1) * channel.cycles_per_word
            channel.memory.commit(last, channel.requester, piece, data[piece - address :][:length])
            self._finish = channel.answer(last, beats)

    def begin_read(self, address: int, length: int) -> None:
        """Start fetching `length` bytes; `take_data` has them when `busy` falls."""
        self._require_idle()
        if self._upload_layout(address) is not None:
            raise MemoryAccessError(f"read at {address:#x}: the quantising upload can only be written")
        self._require(address, length, "read")
        self._reading.extend(pieces(address, length))
        self._data = bytearray()
        self.busy = True
        self.wake(self.engine.now)

    def take_data(self) -> bytes:
        """The bytes of the last read."""
        data, self._data = self._data, None
        assert data is not None and not self.busy, f"{self.name}: no data were read"
        return bytes(data)

    def step(self, now: int) -> int:
        channel = self.channel
        if self._reading:
            self._offered = self._offered or all(path.settled(now) for path in self.writes)
            if self._offered and now >= channel.next_read:
                self._offered = False
                address, length = self._reading.popleft()
                self._data += channel.memory.sample(now, address, length)
                beats = _beats(address, length)
                self._finish = channel.deliver(now, beats) + (beats - 1) * channel.cycles_per_word + 1
        if self._reading:
            return max(now + 1, channel.next_read) if self._offered else now + 1
        if now >= self._finish:
            self._finish = NEVER
            self.busy = False
        return self._finish

    def describe(self) -> list[str]:
        if self._reading:
            length = sum(length for _, length in self._reading)
            return [f"{self.name}: read of {length} bytes at {self._reading[0][0]:#x} waits for writes to be answered"]
        return [f"{self.name}: transfer until cycle {self._finish}"] if self.busy else []

    def _upload_layout(self, address: int) -> str | None:
        if not APERTURE_ADDRESS.get(address, "special") or APERTURE_ADDRESS.get(address, "mesh"):
            return None
        return LAYOUTS.get(APERTURE_ADDRESS.get(address, "aperture"))

    def _require(self, address: int, length: int, what: str) -> None:
        memory = self.channel.memory
        if length <= 0 or not memory.contains(address, length):
            raise MemoryAccessError(f"{what} of {length} bytes at {address:#x}: {memory.why_not(address)}")

    def _require_idle(self) -> None:
        if self.busy:
            raise MemoryAccessError(f"{self.name}: a transfer is in progress; one at a time is possible")


def _beats(address: int, length: int) -> int:
    """Words that a range touches."""
    return (address + length - 1) // WORD_BYTES - address // WORD_BYTES + 1
