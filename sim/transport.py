"""`Transport` over a running simulation: AXI masters on the host's two slaves. For use in a job (`sim.inside`)."""

from __future__ import annotations

from collections.abc import Callable

from cocotb.task import resume

from kohakutpu.host.model_transport import POLL_INTERVAL
from kohakutpu.host.transport import Transport, TransportError, Unanswered, locate
from kohakutpu.isa import registers
from kohakutpu.isa.memory import WORD_BYTES
from kohakutpu.isa.registers import REGISTER_BYTES

from .host_bus import HostBus
from .inside import Machine

SILENCE = 10_000  # cycles that an AXI burst may wait, besides the memory's own, while nothing moves
DIAGNOSED = (registers.PROG_STAT, registers.PROG_CRED, registers.RX_STATUS, registers.AUX_STAT)


class RtlTransport(Transport):
    """Registers through the orchestrator's AXI4 slave, memory through that of the memory window."""

    bulk = True
    unit = "cycles"

    def __init__(self, machine: Machine):
        self.machine = machine
        memory = machine.memory
        self._patience = SILENCE + memory.latency + memory.cycles_per_word
        self._buses = {
            "control": HostBus(machine.dut, "host__", REGISTER_BYTES, self._alive, self._patience),
            "memory": HostBus(machine.dut, "window__", WORD_BYTES, self._alive, self._patience),
        }
        self._write = resume(self._write_later)
        self._read = resume(self._read_later)
        self._moved = 0  # activity when an access was last looked at
        self.accesses = 0

    @property
    def now(self) -> int:
        """The cycle in which an access that is asked for now begins."""
        return self.machine.now - 1

    def write64(self, address: int, value: int) -> None:
        self.write_block(address, value.to_bytes(8, "little"))

    def read64(self, address: int) -> int:
        return int.from_bytes(self.read_block(address, 8), "little")

    def write_block(self, address: int, data: bytes) -> None:
        self._named(
            f"write of {len(data)} bytes at {address:#x}", self._write, *locate(address, len(data), "write"), data
        )

    def read_block(self, address: int, length: int) -> bytes:
        return self._named(
            f"read of {length} bytes at {address:#x}", self._read, *locate(address, length, "read"), length
        )

    def _named(self, what: str, access: Callable, *arguments):
        """Do an access; its failure names the host's address."""
        try:
            return access(*arguments)
        except TransportError as error:
            raise type(error)(f"{what}: {error}") from error

    def pause(self) -> None:
        self.machine.advance(POLL_INTERVAL)

    def _alive(self) -> None:
        """Give an access up when nothing has moved for as long as the memory can take."""
        self._moved, before = self.machine.activity, self._moved
        if self._moved == before:
            report = self.machine.report()
            raise Unanswered(f"an access was not answered, and nothing has moved for {self._patience} cycles\n{report}")

    async def _write_later(self, window: str, offset: int, data: bytes) -> None:
        self.accesses += len(data) // REGISTER_BYTES if window == "control" else 0
        await self._buses[window].write(offset, data)

    async def _read_later(self, window: str, offset: int, length: int) -> bytes:
        self.accesses += length // REGISTER_BYTES if window == "control" else 0
        return await self._buses[window].read(offset, length)

    @property
    def progress(self) -> int:
        """Cycles in which links or memory ports moved something; polling is none."""
        return self.machine.activity

    def diagnose(self) -> str:
        """What the control agent's registers say, and the links."""
        from kohakutpu.host.driver import Driver

        self.machine.end_trace()  # what follows is about the run, and no part of it
        driver = Driver(self)
        lines = ["control agent:"]
        for register in DIAGNOSED:
            fields = " ".join(f"{name}={value}" for name, value in driver.read(register).items())
            lines.append(f"  {register.name}: {fields}")
        return "\n".join([*lines, self.machine.report()])
