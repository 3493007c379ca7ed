"""Golden entries through the converter in both layouts, with and without pauses, and its nine cycles of latency."""

import os
import random
from collections import deque

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge

from kohakutpu.formats import words

LATENCY = 9  # from the cycle that takes the last source word to the first in which a result can leave
STEP = int(os.environ.get("STEP", "1"))  # every STEP-th entry
GOLDEN = np.load(os.environ["GOLDEN"])


def entries(layout: str):
    """(eight source words, four operand words) of each golden entry."""
    raw = GOLDEN["fp16"].astype("<u2").tobytes()
    sources = [int.from_bytes(raw[at : at + 32], "little") for at in range(0, len(raw), 32)]
    results = words.to_ints(GOLDEN[f"words_{layout}"])
    return [(sources[8 * i : 8 * i + 8], results[4 * i : 4 * i + 4]) for i in range(0, len(GOLDEN["fp16"]), STEP)]


async def convert(
    dut, jobs: list[tuple[int, list[int], list[int]]], pauses: float, holds: float, chance: random.Random
):
    """Run (layout, source words, expected words) through; returns the cycles it took."""
    queue = deque((layout, word, index == 7) for layout, source, _ in jobs for index, word in enumerate(source))
    expected = deque(word for _, _, result in jobs for word in result)
    ready_at: deque[int] = deque()  # the first cycle in which each entry inside can leave
    cycle = index = 0
    offered = False
    while expected:
        await FallingEdge(dut.clk)
        # what is driven now belongs to the cycle that ends at the next rising edge
        if dut.free.value:
            dut.free.value = 0
        cycle += 1
        assert cycle < 400 + 40 * len(jobs), "the converter stopped"
        offered = bool(queue) and bool(dut.accepts.value) and chance.random() >= pauses
        dut.take.value = int(offered)
        if offered:
            layout, word, last = queue.popleft()
            dut.layout.value, dut.word.value = layout, word
            if last:
                ready_at.append(cycle + LATENCY)
        ready = bool(dut.ready.value)
        assert ready == bool(ready_at and ready_at[0] <= cycle), (
            f"cycle {cycle}: ready is {ready}, entries at {list(ready_at)}"
        )
        if ready and chance.random() >= holds:
            got = int(dut.result.value)
            want = expected.popleft()
            assert got == want, (
                f"entry {len(jobs) - len(expected) // 4 - 1} word {index}: {got:064x}, expected {want:064x}"
            )
            index = (index + 1) % 4
            if index == 0:
                ready_at.popleft()
                dut.free.value = 1
                await FallingEdge(dut.clk)
                cycle += 1
                dut.free.value = 0
                dut.take.value = 0
            dut.index.value = index
    return cycle


async def start(dut):
    for name in ("take", "free", "index", "layout", "word"):
        getattr(dut, name).value = 0
    dut.rst.value = 1
    cocotb.start_soon(Clock(dut.clk, 4, "ns").start())
    for _ in range(4):
        await FallingEdge(dut.clk)
    dut.rst.value = 0


@cocotb.test()
@cocotb.parametrize(layout=["A", "B"])
async def golden_entries(dut, layout):
    await start(dut)
    jobs = [("AB".index(layout), source, result) for source, result in entries(layout)]
    await convert(dut, jobs, 0.0, 0.0, random.Random(1))
    dut._log.warning(f"{len(jobs)} entries in layout {layout} equal")


@cocotb.test()
async def mixed_layouts_with_pauses(dut):
    await start(dut)
    chance = random.Random(random.getrandbits(32))
    pool = [(which, *entry) for which, layout in enumerate("AB") for entry in entries(layout)[:300]]
    chance.shuffle(pool)
    await convert(dut, pool[: len(pool) // 4], 0.4, 0.1, chance)
    await convert(dut, pool[len(pool) // 4 :][:150], 0.0, 0.7, chance)
