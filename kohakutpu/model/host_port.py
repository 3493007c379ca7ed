"""The host's side of a modelled machine: register accesses and memory transfers that take their cycles.

Timing is `docs/microarchitecture.md`, section "Host port". The mesh runs while an access is on its way.
"""

from __future__ import annotations

from collections.abc import Iterator

from kohakutpu.isa.registers import REGISTER_BYTES
from kohakutpu.model.hang import Hang, report

ADDRESS_CYCLES = 3  # address, decode, register
RESPONSE_CYCLES = 1
TRANSFER_BUDGET = 10_000_000  # cycles a memory transfer may take before it counts as a hang
LONGEST = 256  # beats of an AXI4 burst
AXI_PAGE = 4096  # bytes; no burst crosses a multiple


def pieces(start: int, end: int, width: int) -> Iterator[tuple[int, int]]:
    """(start, end) of the AXI4 bursts, `width` bytes a beat, that the bytes from `start` up to `end` are cut into."""
    while start < end:
        stop = min(end, start + LONGEST * width, (start | AXI_PAGE - 1) + 1)
        yield start, stop
        start = stop


class HostPort:
    """Register window and host memory window of `system`.

    Offsets are bytes in the 64 KiB register window; addresses are inside addresses of the mesh (40 bits).
    `accesses` counts register beats, `bytes_written` and `bytes_read` what crossed the memory window.
    """

    def __init__(self, system):
        self.system = system
        self.accesses = 0
        self.bytes_written = 0
        self.bytes_read = 0

    def write64(self, offset: int, value: int) -> None:
        """One register write: 4 cycles, in force from the fourth on."""
        self._write_beats(offset, [value])

    def read64(self, offset: int) -> int:
        """One register read: 4 cycles, sampled at the start of the fourth."""
        return self._read_beats(offset, 1)[0]

    def write_block(self, offset: int, data: bytes) -> None:
        """Ascending register writes, an access for each burst: one beat a cycle after the first."""
        for start, end in pieces(offset, offset + len(data), REGISTER_BYTES):
            words = range(start - offset, end - offset, REGISTER_BYTES)
            self._write_beats(start, [int.from_bytes(data[i : i + REGISTER_BYTES], "little") for i in words])

    def read_block(self, offset: int, length: int) -> bytes:
        """Ascending register reads, an access for each burst: one beat a cycle after the first."""
        values = []
        for start, end in pieces(offset, offset + length, REGISTER_BYTES):
            values += self._read_beats(start, (end - start) // REGISTER_BYTES)
        return b"".join(value.to_bytes(REGISTER_BYTES, "little") for value in values)

    def _write_beats(self, offset: int, values: list[int]) -> None:
        agent, engine = self.system.orchestrator, self.system.engine
        engine.advance(ADDRESS_CYCLES)
        for index, value in enumerate(values):
            agent.write(offset + REGISTER_BYTES * index, value, engine.now)
            engine.advance(1)
        self.accesses += len(values)

    def _read_beats(self, offset: int, count: int) -> list[int]:
        agent, engine = self.system.orchestrator, self.system.engine
        engine.advance(ADDRESS_CYCLES)
        values = []
        for index in range(count):
            values.append(agent.read(offset + REGISTER_BYTES * index, engine.now))
            engine.advance(RESPONSE_CYCLES)
        self.accesses += count
        return values

    def write_memory(self, address: int, data: bytes) -> None:
        """Write through the host memory window; returns when the write response is there."""
        window = self.system.memory_agent.window
        window.begin_write(address, data)
        self._finish(f"a host write of {len(data)} bytes at {address:#x}")
        self.bytes_written += len(data)

    def read_memory(self, address: int, length: int) -> bytes:
        """Read through the host memory window."""
        window = self.system.memory_agent.window
        window.begin_read(address, length)
        self._finish(f"a host read of {length} bytes at {address:#x}")
        self.bytes_read += length
        return window.take_data()

    def _finish(self, what: str) -> None:
        window = self.system.memory_agent.window
        if not self.system.engine.run(lambda: not window.busy, TRANSFER_BUDGET):
            raise Hang(f"{what} did not finish within {TRANSFER_BUDGET} cycles\n{report(self.system)}")
