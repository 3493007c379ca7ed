"""Inside the simulator: a `MachineTop` under cocotb, and the functions that work on it as if it were a machine.

A job is a plain function `job(machine, **arguments)` named "module:function". It runs in a thread that cocotb lets go
on only while the simulation stands still, so loader and scenarios need not know what they run on.
"""

from __future__ import annotations

import importlib
import os
import pickle
import signal
from collections.abc import Callable
from pathlib import Path

import cocotb
from cocotb.clock import Clock
from cocotb.task import bridge, resume
from cocotb.triggers import ClockCycles, Event, FallingEdge, First, RisingEdge, Timer

from kohakutpu.isa.flit import Flit
from kohakutpu.machine import Dram
from kohakutpu.model.hang import flit_text, signal_text
from kohakutpu.wording import counted

from . import port_rules
from .dram import WORD_BYTES, Backdoor
from .orphan import end_with

PERIOD = 4  # ns
RESET_CYCLES = 10
JOB_VARIABLE = "KOHAKUTPU_JOB"


class BrokenRules(RuntimeError):
    """Checkers have seen endpoints break the rules of their ports: a line for each endpoint and rule."""

    exit_status = 1


class Machine:
    """A running simulation; every method but `start` blocks, for use in a job.

    Time stands at a falling edge between calls: `now` is the next cycle, the first that anything done now can touch.
    """

    def __init__(self, dut, links: list[str], endpoints: dict[str, tuple[int, int]], memory: Dram, ports: int):
        self.dut = dut
        self.ports = ports
        self.links = links
        self.endpoints = endpoints
        self.memory = memory
        self.memory_bytes = memory.bytes
        self.received: list[tuple[int, Flit]] = []  # (cycle, flit) of what reached a bench
        self._arrived = Event()
        self.is_bench = hasattr(dut, "send_push")
        self.advance = resume(self._advance)
        self.wait = resume(self._wait)
        self.wait_quiet = resume(self._wait_quiet)
        self.inject = resume(self._inject)
        self.write_memory = resume(self._write_memory)
        self.read_memory = resume(self._read_memory)
        self.end_trace = resume(self._end_trace)

    async def start(self) -> None:
        dut = self.dut
        dut.quiet_for.value = dut.over.value = 0
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

    async def _end_trace(self) -> None:
        """The cycle that is about to be simulated is not part of the run any more."""
        self.dut.over.value = 1
        await Timer(1, "ns")

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
            raise ValueError(f"{counted(len(flits), 'flit')} to inject, and room for {room}")
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

    def _words(self, name: str, width: int) -> list[int]:
        """The parts of a port of the top that has `width` bits for each endpoint or memory port."""
        port = getattr(self.dut, name)
        word = int(port.value)
        return [word >> at & (1 << width) - 1 for at in range(0, len(port), width)]

    @property
    def activity(self) -> int:
        """Cycles in which a link or a memory port moved something."""
        return int(self.dut.activity.value)

    def moved_words(self) -> dict[str, list[int]]:
        """Words that each memory port has `read` and `written`."""
        return {kind: self._words(f"{kind}_words", 32) for kind in ("read", "written")}

    def broken(self) -> str:
        """A line for each rule that an endpoint has broken since reset."""
        words = zip(self.endpoints, self._words("violations", port_rules.VIOLATIONS_WIDTH))
        return "\n".join(filter(None, (port_rules.report(name, word) for name, word in words)))

    def node_state(self) -> list[str]:
        """What each endpoint is doing, as its checker knows it."""
        moved, settled = self.moved_words(), int(self.dut.settled.value)
        owed = [port_rules.owed(word) for word in self._words("owed", port_rules.OWED_WIDTH)]
        states = [port_rules.state(word) for word in self._words("states", port_rules.STATE_WIDTH)]
        lines = []
        for (name, at), owes, state in zip(self.endpoints.items(), owed, states):
            parts = []
            if count := owes.get("instructions"):
                oldest = f"the oldest of cycle {state['since']} with txn {state['txn']:#04x}"
                parts.append(f"{counted(count, 'instruction')} not completed, {oldest}")
            data = {"write_data": "write data", "burst_data": "burst data"}
            parts += [f"{owes[kind]} {counted(words, 'flit')} to send" for kind, words in data.items() if kind in owes]
            if name.startswith("mag"):
                port = int(name.removeprefix("mag"))
                parts += [f"{moved[kind][port]} words {kind}" for kind in moved]
                parts += [] if settled >> port & 1 else ["writes on their way into memory"]
            parts += ["takes no flit"] if state["busy"] else []
            parts += ["its own flit is not taken"] if state["blocked"] else []
            lines.append(f"{name} ({at[0]},{at[1]}): {'; '.join(parts) or 'idle'}")
            if state["signals"]:
                last = signal_text((state["cycle"], state["code"], state["arg"]))
                lines.append(f"  last signal raised: {last}, {state['signals']} in all")
        return lines

    def report(self) -> str:
        """Every node's state, broken rules, which links are blocked, and every link's last flit."""
        states = self.link_state()
        blocked = [f"{name} holds a flit" for name, _, _, _, stuck, _ in states if stuck]
        last = [
            f"{name}: cycle {cycle}, {flit_text(flit)}, {total} in all"
            for name, cycle, flit, total, _, _ in states
            if flit is not None
        ]
        sections = {
            "nodes": self.node_state(),
            "broken rules": self.broken().splitlines() or ["none"],
            "blocked links": blocked or ["none"],
            "last flit on each link": last,
        }
        lines = [f"cycle {self.now}: nothing has moved for {counted(int(self.dut.quiet.value), 'cycle')}"]
        for title, items in sections.items():
            lines += [f"{title}:", *(f"  {item}" for item in items)]
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
    end_with(task["parent"], lambda: os.kill(os.getpid(), signal.SIGKILL))
    machine = Machine(dut, task["links"], task["endpoints"], task["memory"], task["ports"])
    await machine.start()
    try:
        outcome = "done", await bridge(call(task["job"]))(machine, **task["arguments"])
    except Exception as error:
        outcome = "failed", error
    await machine._end_trace()
    if broken := machine.broken():
        if outcome[0] == "done":
            outcome = "failed", BrokenRules(f"the job ended, but rules of ports were broken:\n{broken}")
        else:
            outcome[1].add_note(f"broken rules:\n{broken}")
    path.with_suffix(".result").write_bytes(pickle.dumps(outcome))
