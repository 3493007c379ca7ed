"""`Transport` over the cycle model: an access costs the cycles its bus transaction takes."""

from __future__ import annotations

from kohakutpu.model.hang import report
from kohakutpu.model.system import System

from .transport import Transport, locate

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
        if window == "control":
            self.system.host.write_block(offset, data)
        else:
            self.system.host.write_memory(offset, data)

    def read_block(self, address: int, length: int) -> bytes:
        window, offset = locate(address, length, "read")
        if window == "control":
            return self.system.host.read_block(offset, length)
        return self.system.host.read_memory(offset, length)

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
