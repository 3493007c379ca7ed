"""`Transport` over the cycle model: an access costs the cycles its bus transaction takes."""

from __future__ import annotations

from collections.abc import Callable

from kohakutpu.model.hang import Hang, report
from kohakutpu.model.memory import MemoryAccessError
from kohakutpu.model.system import System

from .transport import Transport, TransportError, Unanswered, locate

POLL_INTERVAL = 31  # cycles between two polls, as the published control engine has it


class ModelTransport(Transport):
    """Registers through the orchestrator's host port, memory through the host memory window."""

    bulk = True
    unit = "cycles"

    def __init__(self, system: System):
        self.system = system

    @property
    def now(self) -> int:
        return self.system.engine.now

    def write64(self, address: int, value: int) -> None:
        self.write_block(address, value.to_bytes(8, "little"))

    def read64(self, address: int) -> int:
        return int.from_bytes(self.read_block(address, 8), "little")

    def write_block(self, address: int, data: bytes) -> None:
        window, offset = locate(address, len(data), "write")
        host = self.system.host
        write = host.write_block if window == "control" else host.write_memory
        self._access(f"write of {len(data)} bytes at {address:#x}", lambda: write(offset, data))

    def read_block(self, address: int, length: int) -> bytes:
        window, offset = locate(address, length, "read")
        host = self.system.host
        read = host.read_block if window == "control" else host.read_memory
        return self._access(f"read of {length} bytes at {address:#x}", lambda: read(offset, length))

    def _access(self, what: str, access: Callable):
        try:
            return access()
        except MemoryAccessError as error:
            raise TransportError(f"{what}: {error}") from error
        except Hang as error:
            raise Unanswered(f"{what}: {error}") from error

    def pause(self) -> None:
        self.system.engine.advance(POLL_INTERVAL)

    @property
    def progress(self) -> int:
        """Flits that links accepted and words that memory ports served; neither grows by polling."""
        engines = [port.memory for port in self.system.ports]
        words = sum(engine.reads + engine.writes for engine in engines)
        return words + sum(link.count for link in self.system.engine.links)

    def diagnose(self) -> str:
        return report(self.system)
