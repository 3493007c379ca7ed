"""`Transport` over a running simulation: AXI masters on the host's two slaves. For use in a job (`sim.inside`)."""

from __future__ import annotations

from cocotb.task import resume
from cocotb.triggers import First, Timer
from cocotbext.axi import AxiBus, AxiMaster, AxiResp

from kohakutpu.host.model_transport import POLL_INTERVAL
from kohakutpu.host.transport import Transport, TransportError, locate
from kohakutpu.isa import registers

from .inside import PERIOD, Machine

SILENCE = 10_000  # cycles that an AXI burst may wait, besides the memory's own, while nothing moves
DIAGNOSED = (registers.PROG_STAT, registers.PROG_CRED, registers.RX_STATUS, registers.AUX_STAT)


class RtlTransport(Transport):
    """Registers through the orchestrator's AXI4 slave, memory through that of the memory window."""

    bulk = True
    unit = "cycles"

    def __init__(self, machine: Machine):
        self.machine = machine
        dut = machine.dut
        self._masters = {
            "control": AxiMaster(AxiBus.from_prefix(dut, "host_"), dut.clk, dut.rst),
            "memory": AxiMaster(AxiBus.from_prefix(dut, "window_"), dut.clk, dut.rst),
        }
        self._write = resume(self._write_later)
        self._read = resume(self._read_later)
        self.accesses = 0

    @property
    def now(self) -> int:
        return self.machine.now

    def write64(self, address: int, value: int) -> None:
        self.write_block(address, value.to_bytes(8, "little"))

    def read64(self, address: int) -> int:
        return int.from_bytes(self.read_block(address, 8), "little")

    def write_block(self, address: int, data: bytes) -> None:
        self._write(*locate(address, len(data), "write"), data)

    def read_block(self, address: int, length: int) -> bytes:
        return self._read(*locate(address, length, "read"), length)

    def pause(self) -> None:
        self.machine.advance(POLL_INTERVAL)

    async def _finish(self, access, what: str):
        memory = self.machine.memory
        budget = SILENCE + memory.latency + memory.cycles_per_word
        moved = None
        done = access.wait()
        while await First(done, limit := Timer(budget * PERIOD, "ns")) is limit:
            moved, before = self.machine.activity, moved
            if moved == before:
                report = self.machine.report()
                raise TransportError(f"{what} was not answered, and nothing has moved for {budget} cycles\n{report}")
        response = access.data
        if response.resp != AxiResp.OKAY:
            raise TransportError(f"{what} was answered with {AxiResp(response.resp).name}")
        return response

    async def _write_later(self, window: str, offset: int, data: bytes) -> None:
        self.accesses += len(data) // 8 if window == "control" else 0
        access = self._masters[window].init_write(offset, data)
        await self._finish(access, f"a write of {len(data)} bytes at {window} address {offset:#x}")

    async def _read_later(self, window: str, offset: int, length: int) -> bytes:
        self.accesses += length // 8 if window == "control" else 0
        access = self._masters[window].init_read(offset, length)
        return (await self._finish(access, f"a read of {length} bytes at {window} address {offset:#x}")).data

    @property
    def progress(self) -> int:
        """Cycles in which links or memory ports moved something; polling is none."""
        return self.machine.activity

    def diagnose(self) -> str:
        """What the control agent's registers say, and the links."""
        from kohakutpu.host.driver import Driver

        driver = Driver(self)
        lines = ["control agent:"]
        for register in DIAGNOSED:
            fields = " ".join(f"{name}={value}" for name, value in driver.read(register).items())
            lines.append(f"  {register.name}: {fields}")
        return "\n".join([*lines, self.machine.report()])
