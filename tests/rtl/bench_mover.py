"""The memory mover: gates and model live the same life, in every cycle the same status and the same bursts."""

from __future__ import annotations

import os
from itertools import zip_longest

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge
from mover_rig import SEEN
from mover_scenario import BYTES, contents, life

from kohakutpu.isa.registers import REGISTER_BYTES
from kohakutpu.model.memory import Channel, Memory
from kohakutpu.model.mover import MemoryMover
from kohakutpu.noc.engine import Engine
from sim.dram import Backdoor

PERIOD = 4  # ns
MOVES = int(os.environ.get("MOVES", "30"))
ELEMENTS = int(os.environ.get("ELEMENTS", "100"))
LATENCY = int(os.environ["LATENCY"])
PACE = int(os.environ.get("PACE", "1"))
SEEDS = [int(word) for word in os.environ.get("SEEDS", "1,2,3,4").split(",")]
STRAY = 50_000  # cycles of a life: more than any takes that ends


class Recorded(Channel):
    """A channel that notes what is on the bus: (cycle, kind, word or None, data or None)."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.events = []

    def read(self, now, address, words):
        first, data = super().read(now, address, words)
        self.events += [(now, "ar", address // 32, None), (first, "r", None, None)]
        return first, data

    def write(self, now, address, data):
        answer = super().write(now, address, data)
        self.events += [(now, "w", address // 32, int.from_bytes(data, "little")), (answer, "b", None, None)]
        return answer


def on_the_model(seed: int):
    """(register writes by the cycle they are in force, status of every cycle, events in order, memory in the end)."""
    engine = Engine()
    memory = Memory(engine, BYTES)
    memory.write(0, contents(seed))
    channel = Recorded(memory, 0, latency=LATENCY, cycles_per_word=PACE)
    mover = MemoryMover(engine, "mover", channel)
    host = life(seed, MOVES, ELEMENTS)
    next(host)
    writes, status = {}, [(0, 0, 0)]
    engine.advance(1)
    while True:
        try:
            write = host.send(mover.busy)
        except StopIteration:
            break
        if write is not None:
            writes[engine.now] = write
            mover.configure(write[0] * REGISTER_BYTES, write[1], engine.now)
        status.append((int(mover.busy), int(mover.fault), mover.done))
        engine.advance(1)
        assert engine.now < STRAY, f"seed {seed}: the model's life has no end"
    return writes, status, sorted(channel.events, key=lambda event: event[:2]), memory.read(0, BYTES)


def fields(word: int) -> dict[str, int]:
    out = {}
    for name, bits in SEEN.items():
        out[name] = word & (1 << bits) - 1
        word >>= bits
    return out


def text(event: tuple | None) -> str:
    if event is None:
        return "none"
    cycle, kind, word, data = event
    at = "" if word is None else f" of word {word:#x}"
    return f"{kind}{at} in cycle {cycle}" + ("" if data is None else f": {data:#x}")


async def reset(dut):
    dut.rst.value = 1
    dut.write.value = dut.index.value = dut.data.value = 0
    for _ in range(3):
        await FallingEdge(dut.clk)
    dut.rst.value = 0


@cocotb.test()
async def lives_like_the_model(dut):
    cocotb.start_soon(Clock(dut.clk, PERIOD, "ns").start())
    backdoor = Backdoor(dut)
    compared = 0
    for seed in SEEDS:
        await reset(dut)
        await backdoor.load((0, contents(seed)))
        writes, status, events, image = on_the_model(seed)
        found = []
        for cycle, expected in enumerate(status):
            await FallingEdge(dut.clk)
            seen = fields(int(dut.seen.value))
            got = seen["busy"], seen["fault"], seen["moves"]
            where = f"seed {seed}, cycle {cycle}"
            assert got == expected, f"{where}: busy, fault and moves are {got}, the model's {expected}"
            assert seen["aw"] == seen["w"], f"{where}: an address without its word"
            for kind, word in (("ar", "araddr"), ("b", None), ("r", None), ("w", "awaddr")):
                if seen[kind]:
                    data = int(dut.wdata.value) if kind == "w" else None
                    found.append((cycle, kind, seen[word] if word else None, data))
            dut.write.value, (dut.index.value, dut.data.value) = int(cycle + 1 in writes), writes.get(cycle + 1, (0, 0))
        for index, (got, want) in enumerate(zip_longest(found, events)):
            assert got == want, f"seed {seed}: event {index} of {len(found)} is {text(got)}, the model's {text(want)}"
        after = await backdoor.dump(0, BYTES)
        wrong = [hex(at) for at in range(0, BYTES, 32) if after[at : at + 32] != image[at : at + 32]]
        assert not wrong, f"seed {seed}: memory differs in words {wrong[:8]}"
        compared += len(events)
        ends = [now[1] for before, now in zip(status, status[1:]) if before[0] and not now[0]]
        faults = {fault: ends.count(fault) for fault in sorted(set(ends))}
        dut._log.warning(f"seed {seed}: {len(status)} cycles, {len(events)} events in equal cycles, ends {faults}")
    assert compared
    backdoor.close()
