"""Inside the simulator: a `MachineTop` under cocotb, and the functions that work on it as if it were a machine.

A job is a plain function `job(machine, **arguments)` named "module:function". It runs in a thread that cocotb lets go on
only while the simulation stands still, so loader and scenarios need not know what they run on.
"""

from __future__ import annotations

import importlib
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import cocotb
from cocotb.clock import Clock
from cocotb.task import bridge, resume
from cocotb.triggers import ClockCycles, Event, FallingEdge, First, RisingEdge, Timer

from kohakutpu.isa.flit import Flit, type_name, xy

from .dram import WORD_BYTES, Backdoor

PERIOD = 4  # ns
RESET_CYCLES = 10
JOB_VARIABLE = "KOHAKUTPU_JOB"


class Machine:
    """A running simulation; every method but `start` blocks, for use in a job.

    Time stands at a falling edge between calls: `now` is the next cycle, the first that anything done now can touch.
    """

    def __init__(self, dut, links: list[str], memory_bytes: int, ports: int):
        self.dut = dut
        self.ports = ports
        self.links = links
        self.memory_bytes = memory_bytes
        self.received: list[tuple[int, Flit]] = []  # (cycle, flit) of what reached a bench
        self._arrived = Event()
        self.is_bench = hasattr(dut, "send_push")
        self.advance = resume(self._advance)
        self.wait = resume(self._wait)
        self.wait_quiet = resume(self._wait_quiet)
        self.inject = resume(self._inject)
        self.write_memory = resume(self._write_memory)
        self.read_memory = resume(self._read_memory)

    async def start(self) -> None:
        dut = self.dut
        dut.quiet_for.value = 0
        dut.rst.value = 1
        self.backdoor = Backdoor(dut)
        if self.is_bench:
            dut.send_push.value = 0
        cocotb.start_soon(Clock(dut.clk, PERIOD, "ns").start())
        await ClockCycles(dut.clk, RESET_CYCLES)
        await FallingEdge(dut.clk)
        dut.rst.value = 0
        if self.is_bench:
            cocotb.start_soon(self._receive())

    @property
    def now(self) -> int:
        return int(self.dut.cycle.value) + 1

    async def _advance(self, cycles: int) -> None:
        if cycles > 1:
            # Ends a little after a falling edge, so that the next one is always another.
            await Timer((cycles - 1) * PERIOD + 1, "ns")
        await FallingEdge(self.dut.clk)

    # ---- memory ----------------------------------------------------------------------------------------

    async def _write_memory(self, address: int, data: bytes) -> None:
        """Put bytes into memory between two cycles, whatever the ports are doing."""
        start, end = address // WORD_BYTES * WORD_BYTES, -(-(address + len(data)) // WORD_BYTES) * WORD_BYTES
        if end > self.memory_bytes:
            raise ValueError(f"{len(data)} bytes at {address:#x} do not lie in {self.memory_bytes:#x} bytes of memory")
        if (start, end) != (address, address + len(data)):
            around = bytearray(await self.backdoor.dump(start, end - start))
            around[address - start : address - start + len(data)] = data
            data = bytes(around)
        await self.backdoor.load((start, data))

    async def _read_memory(self, address: int, length: int) -> bytes:
        """Bytes of memory as they are between two cycles."""
        if address + length > self.memory_bytes:
            raise ValueError(f"{length} bytes at {address:#x} do not lie in {self.memory_bytes:#x} bytes of memory")
        return await self.backdoor.dump(address, length)

    # ---- a bench in the agent's place ------------------------------------------------------------------

    async def _receive(self) -> None:
        dut = self.dut
        while True:
            if not dut.valid.value:
                await RisingEdge(dut.valid)
            await FallingEdge(dut.clk)
            while dut.valid.value:
                self.received.append((int(dut.cycle.value), Flit.from_int(int(dut.flit.value))))
                self._arrived.set()
                await FallingEdge(dut.clk)

    async def _inject(self, flits: list[Flit]) -> None:
        """Queue flits; the first may enter the output register in cycle `now`, each other one a cycle later."""
        dut = self.dut
        room = 2 ** len(dut.unsent) // 2 - int(dut.unsent.value)
        if len(flits) > room:
            raise ValueError(f"{len(flits)} flits to inject, and room for {room}")
        dut.send_push.value = 1
        for flit in flits:
            dut.send.value = flit.to_int()
            await FallingEdge(dut.clk)
        dut.send_push.value = 0

    @property
    def unsent(self) -> int:
        """Flits that were injected and have not entered the output register."""
        return int(self.dut.unsent.value)

    async def _wait(self, condition: Callable[[], bool], budget: int) -> bool:
        """Until `condition()`, looked at whenever a flit arrives; False when `budget` cycles pass first."""
        limit = Timer(budget * PERIOD + 1, "ns")
        while not condition():
            self._arrived.clear()
            if await First(self._arrived.wait(), limit) is limit:
                await FallingEdge(self.dut.clk)
                return condition()
        return True

    async def _wait_quiet(self, cycles: int, budget: int) -> bool:
        """Until no link has moved a flit for `cycles`; False when `budget` cycles pass first."""
        self.dut.quiet_for.value = cycles
        await FallingEdge(self.dut.clk)
        if self.dut.still.value:
            return True
        limit = Timer(budget * PERIOD + 1, "ns")
        ended = await First(RisingEdge(self.dut.still), limit)
        await FallingEdge(self.dut.clk)
        return ended is not limit

    # ---- reports ---------------------------------------------------------------------------------------

    def link_state(self) -> list[tuple[str, int, Flit | None, int, bool, dict[int, int]]]:
        """(link, cycle of its last flit, that flit, flits in all, a flit is waiting, flits by type) of each link."""
        states = []
        for index, name in enumerate(self.links):
            monitor = getattr(self.dut, f"monitor_{index}")
            counts = {kind: count for kind in range(16) if (count := int(monitor.count[kind].value))}
            total = sum(counts.values())
            last = Flit.from_int(int(monitor.last.value)) if total else None
            states.append((name, int(monitor.last_cycle.value), last, total, bool(monitor.stuck.value), counts))
        return states

    def report(self) -> str:
        """Every link's last flit, which links are blocked, and how long nothing has moved."""
        states = self.link_state()
        lines = [f"cycle {self.now}: nothing has moved for {int(self.dut.quiet.value)} cycles", "blocked links:"]
        blocked = [f"  {name} holds a flit" for name, _, _, _, stuck, _ in states if stuck]
        lines += blocked or ["  none"]
        lines.append("last flit on each link:")
        lines += [
            f"  {name}: cycle {cycle}, {type_name(flit.type)} {xy(flit.src)} to {xy(flit.dst)} txn {flit.txn:#04x} "
            f"last {flit.last}, {total} in all"
            for name, cycle, flit, total, _, _ in states
            if flit is not None
        ]
        return "\n".join(lines)


def call(name: str) -> Callable:
    """The function that "module:function" names."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


@cocotb.test()
async def job(dut):
    """Run the job that the environment names; its result or its error goes back as a file."""
    path = Path(os.environ[JOB_VARIABLE])
    task = pickle.loads(path.read_bytes())
    machine = Machine(dut, task["links"], task["memory_bytes"], task["ports"])
    await machine.start()
    try:
        outcome = "done", await bridge(call(task["job"]))(machine, **task["arguments"])
    except Exception as error:
        outcome = "failed", error
    path.with_suffix(".result").write_bytes(pickle.dumps(outcome))
