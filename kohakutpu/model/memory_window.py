"""The host memory window: blocks of bytes to and from memory, and the quantising upload.

Timing is `docs/microarchitecture/memory-agent.md`, section "Host window". Addresses are the mesh's own
40-bit ones. Apertures 4 and 5 take FP16 entries and store operand words in A or B layout (spec: host
memory window).
"""

from __future__ import annotations

from collections.abc import Sequence

from kohakutpu.formats import words
from kohakutpu.isa.memory import APERTURE_ADDRESS, ENTRY_WORDS, WORD_BYTES, Aperture
from kohakutpu.model.memory import Channel, MemoryAccessError
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
        self._reading: tuple[int, int] | None = None  # (address, length) not sampled yet
        self._data: bytes | None = None

    def begin_write(self, address: int, data: bytes) -> None:
        """Start storing `data` at `address`; `busy` falls when the memory has answered.

        To an upload aperture: whole FP16 entries of 256 bytes; 128 bytes each are stored. Raises
        `MemoryAccessError` for a transfer that is refused.
        """
        self._require_idle()
        now = self.engine.now
        channel = self.channel
        memory = channel.memory
        layout = self._upload_layout(address)
        if layout is None:
            self._require(address, len(data), "write")
            beats = _beats(address, len(data))
            last = max(now, channel.next_write) + (beats - 1) * channel.cycles_per_word
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
            entries = len(data) // SOURCE_BYTES
            address, data = destination, words.to_bytes(words.from_ints(convert(data, layout)))
            self._require(address, len(data), "quantising upload")
            beats = entries * ENTRY_WORDS
            period = max(SOURCE_WORDS, ENTRY_WORDS * channel.cycles_per_word)
            last = max(now, channel.next_write) + (entries - 1) * period
            last += SOURCE_WORDS + CONVERTER_LATENCY - 1 + (ENTRY_WORDS - 1) * channel.cycles_per_word
        memory.commit(last, channel.requester, address, data)
        self._finish = channel.answer(last, beats)
        self.busy = True
        self.wake(self._finish)

    def begin_read(self, address: int, length: int) -> None:
        """Start fetching `length` bytes; `take_data` has them when `busy` falls."""
        self._require_idle()
        if self._upload_layout(address) is not None:
            raise MemoryAccessError(f"read at {address:#x}: the quantising upload can only be written")
        self._require(address, length, "read")
        self._reading = (address, length)
        self.busy = True
        self.wake(self.engine.now)

    def take_data(self) -> bytes:
        """The bytes of the last read."""
        data, self._data = self._data, None
        assert data is not None and not self.busy, f"{self.name}: no data were read"
        return data

    def step(self, now: int) -> int:
        if self._reading is not None and all(path.settled(now) for path in self.writes):
            (address, length), self._reading = self._reading, None
            self._data = self.channel.memory.sample(now, address, length)
            beats = _beats(address, length)
            self._finish = self.channel.deliver(now, beats) + (beats - 1) * self.channel.cycles_per_word + 1
        if self._reading is not None:
            return now + 1
        if now >= self._finish:
            self._finish = NEVER
            self.busy = False
        return self._finish

    def describe(self) -> list[str]:
        if self._reading is not None:
            return [f"{self.name}: read of {self._reading[1]} bytes at {self._reading[0]:#x} waits for writes to land"]
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
