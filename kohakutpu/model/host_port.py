"""The host's side of a modelled machine: register accesses and memory transfers that take their cycles.

Timing is `docs/microarchitecture.md`, section "Host port". The mesh runs while an access is on its way.
"""

from __future__ import annotations

from kohakutpu.isa.registers import REGISTER_BYTES
from kohakutpu.model.hang import Hang, report

ADDRESS_CYCLES = 3  # address, decode, register
RESPONSE_CYCLES = 1
TRANSFER_BUDGET = 10_000_000  # cycles a memory transfer may take before it counts as a hang


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
        """Ascending register writes: one beat a cycle after the first."""
        words = range(0, len(data), REGISTER_BYTES)
        self._write_beats(offset, [int.from_bytes(data[i : i + REGISTER_BYTES], "little") for i in words])

    def read_block(self, offset: int, length: int) -> bytes:
        """Ascending register reads: one beat a cycle after the first."""
        values = self._read_beats(offset, length // REGISTER_BYTES)
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
