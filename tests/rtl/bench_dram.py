"""The memory of simulations: its back door, its times, and what it does not put up with."""

from __future__ import annotations

import os
import random

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge, RisingEdge

from sim.dram import Backdoor

BYTES = 1 << 20
LATENCY, PACE = int(os.environ["LATENCY"]), int(os.environ["PACE"])


class Port:
    """Drives AXI wires of port 0 just after clock edges."""

    def __init__(self, dut):
        self.dut = dut

    def __setattr__(self, name, value):
        if name == "dut":
            return super().__setattr__(name, value)
        getattr(self.dut, f"axi__0__{name}").value = value

    def __getattr__(self, name):
        return int(getattr(self.dut, f"axi__0__{name}").value)


async def start(dut) -> tuple[Port, Backdoor]:
    port = Port(dut)
    for name in ("arvalid", "awvalid", "wvalid"):
        setattr(port, name, 0)
    port.arsize = port.awsize = 5
    port.arburst = port.awburst = 1
    port.wstrb = (1 << 32) - 1
    port.rready = port.bready = 1
    port.awid = port.arid = 9
    dut.rst.value = 1
    cocotb.start_soon(Clock(dut.clk, 4, "ns").start())
    for _ in range(3):
        await FallingEdge(dut.clk)
    dut.rst.value = 0
    await RisingEdge(dut.clk)
    return port, Backdoor(dut)


@cocotb.test()
async def files_go_in_and_out(dut):
    _, backdoor = await start(dut)
    chance = random.Random(1)
    pieces = [(0x40, chance.randbytes(96)), (BYTES - 64, chance.randbytes(64))]
    await backdoor.load(*pieces)
    image = bytearray(BYTES)
    for at, data in pieces:
        image[at : at + len(data)] = data
    assert await backdoor.dump(0, BYTES) == bytes(image)
    assert await backdoor.dump(0x55, 7) == bytes(image[0x55:0x5C])
    backdoor.close()


@cocotb.test()
async def a_burst_takes_its_time(dut):
    """Two bursts of three words each way: handshakes, beats and responses in the cycles that the contract has."""
    port, backdoor = await start(dut)
    seen = {name: [] for name in ("ar", "r", "aw", "w", "b")}
    port.araddr, port.arlen, port.arvalid = 0x1000, 2, 1
    port.awaddr, port.awlen, port.awvalid = 0x1000, 2, 1
    port.wvalid, port.wdata, port.wlast = 1, 100, 0
    words = 0
    for cycle in range(6 * PACE + LATENCY + 4):
        await FallingEdge(dut.clk)
        for name in seen:
            if getattr(port, f"{name}valid") and getattr(port, f"{name}ready"):
                seen[name].append((cycle, port.rdata, port.rlast, port.rid) if name == "r" else cycle)
        await RisingEdge(dut.clk)
        if seen["ar"] and len(seen["ar"]) == 2:
            port.arvalid = 0
        if len(seen["aw"]) == 2:
            port.awvalid = 0
        if len(seen["w"]) != words:
            words = len(seen["w"])
            port.wdata, port.wlast, port.wvalid = 100 + words, int(words % 3 == 2), int(words < 6)
    beats = [LATENCY + k * PACE for k in range(6)]
    assert seen["ar"] == seen["aw"] == [0, 3 * PACE]
    assert seen["w"] == [k * PACE for k in range(6)]
    assert seen["b"] == [2 * PACE + LATENCY, 5 * PACE + LATENCY]
    # the first burst is read in cycle 0 and lands at the end of 2 PACE; the second read sees it
    assert seen["r"] == [(cycle, 0 if k < 3 else 97 + k, int(k % 3 == 2), 9) for k, cycle in enumerate(beats)]
    backdoor.close()


@cocotb.test(skip="BAD" not in os.environ)
async def a_wrong_burst_stops_the_simulation(dut):
    port, _ = await start(dut)
    port.araddr, port.arlen, port.arvalid = int(os.environ["BAD"], 0), 1, 1
    for _ in range(20):
        await FallingEdge(dut.clk)
