"""The memory mover's generator: one word after another, or with gaps, `PIPELINE` cycles after each start."""

from __future__ import annotations

import random

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge

from kohakutpu.model.mover import generated_word
from rtl.mover_generate import PIPELINE

PERIOD = 4  # ns
WORDS = 200


@cocotb.test()
async def words_of_addresses_and_seeds(dut):
    cocotb.start_soon(Clock(dut.clk, PERIOD, "ns").start())
    dut.rst.value = 1
    dut.start.value = dut.index.value = dut.seed.value = 0
    for _ in range(3):
        await FallingEdge(dut.clk)
    dut.rst.value = 0
    words = 0
    for seed in (0, (1 << 64) - 1, random.getrandbits(64)):
        dut.seed.value = seed
        await FallingEdge(dut.clk)
        due = {}
        for cycle in range(2 * WORDS + PIPELINE):
            ready = cycle in due
            assert int(dut.ready.value) == ready, f"seed {seed:#x}, cycle {cycle}: ready is {dut.ready.value}"
            if ready:
                index = due.pop(cycle)
                expected = generated_word(32 * index, seed)
                got = int(dut.word.value)
                assert got == expected, f"seed {seed:#x}, word {index:#x}: {got:064x}, expected {expected:064x}"
                words += 1
            starts = cycle < 2 * WORDS and (cycle < WORDS // 2 or random.random() < 0.5)
            index = random.choice([random.getrandbits(35), random.getrandbits(11), (1 << 35) - 1])
            dut.start.value, dut.index.value = int(starts), index
            if starts:
                due[cycle + PIPELINE] = index
            await FallingEdge(dut.clk)
        assert not due
    assert words > 3 * WORDS
