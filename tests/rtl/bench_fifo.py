"""FIFOs of several depths side by side against the models' FIFO: head, valid, full and level in every cycle."""

from __future__ import annotations

import random

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge

from kohakutpu.noc.engine import Fifo
from support.fifo_bank import DEPTHS, WIDTH

PERIOD = 4  # ns
# (share of cycles that push, share that pop, cycles)
PHASES = ((1, 0, 50), (0, 1, 50), (1, 1, 60), (0.5, 0.5, 300), (0.9, 0.4, 200), (0.3, 0.8, 200), (1, 0, 40))


class Bank:
    def __init__(self, dut):
        self.dut = dut
        self.models = {depth: Fifo(depth) for depth in DEPTHS}
        self.now = 0
        self.serial = 0
        self.checks = 0

    async def reset(self):
        dut = self.dut
        dut.rst.value = 1
        dut.push.value = dut.pop.value = dut.push_data.value = 0
        for _ in range(3):
            await FallingEdge(dut.clk)
        dut.rst.value = 0
        self.models = {depth: Fifo(depth) for depth in DEPTHS}

    async def cycle(self, push, pop):
        """One cycle: compare what the registers say, then let push and pop take effect at its end."""
        dut, now = self.dut, self.now
        self.serial += 1
        for depth, model in self.models.items():
            level, full = model.level(now), model.full(now)
            head = model.head(now)
            got = [int(getattr(dut, f"{name}_{depth}").value) for name in ("level", "full", "valid")]
            assert got == [level, full, head is not None], f"depth {depth}, cycle {now}: level, full, valid {got}"
            if head is not None:
                value = int(getattr(dut, f"head_{depth}").value)
                assert value == head, f"depth {depth}, cycle {now}: head {value:#x}, expected {head:#x}"
            self.checks += 1
            if pop and head is not None:
                model.pop(now)
            if push and not full:
                model.push(self.serial & ((1 << WIDTH) - 1), now)
        dut.push.value, dut.pop.value = push, pop
        dut.push_data.value = self.serial & ((1 << WIDTH) - 1)
        await FallingEdge(dut.clk)
        self.now += 1


@cocotb.test()
async def behaves_as_the_model(dut):
    """Filling, draining, streaming and random mixtures, with resets in between."""
    cocotb.start_soon(Clock(dut.clk, PERIOD, "ns").start())
    bank = Bank(dut)
    for _ in range(3):
        await bank.reset()
        for push_share, pop_share, cycles in PHASES:
            for _ in range(cycles):
                await bank.cycle(int(random.random() < push_share), int(random.random() < pop_share))
    assert bank.checks == 3 * sum(cycles for _, _, cycles in PHASES) * len(DEPTHS)
