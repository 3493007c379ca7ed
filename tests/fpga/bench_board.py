"""A whole board, driven through its serial line."""

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, FallingEdge

from fpga.serial import ANSWER, UNKNOWN, Command
from kohakutpu.isa import registers
from kohakutpu.isa.flit import FLIT_WIDTH

DIVISOR = 4
PATIENCE = 2000
DECERR = 3


async def send(dut, *values):
    for value in values:
        for bit in (0, *((value >> at) & 1 for at in range(8)), 1):
            dut.rx.value = bit
            await ClockCycles(dut.clk, DIVISOR, FallingEdge)


async def receive(dut, count):
    found = []
    for _ in range(count):
        for _ in range(PATIENCE):
            if dut.tx.value == 0:
                break
            await FallingEdge(dut.clk)
        else:
            raise AssertionError(f"no answer: {len(found)} of {count} bytes came")
        await ClockCycles(dut.clk, DIVISOR // 2, FallingEdge)
        value = 0
        for at in range(8):
            await ClockCycles(dut.clk, DIVISOR, FallingEdge)
            value |= int(dut.tx.value) << at
        await ClockCycles(dut.clk, DIVISOR, FallingEdge)
        found.append(value)
    return found


async def access(dut, command, address, value=None, response=0):
    data = b"" if value is None else value.to_bytes(8, "little")
    await send(dut, command, *address.to_bytes(5, "little"), *data)
    answer = await receive(dut, 9 if value is None else 1)
    assert answer[0] == ANSWER + response, f"{Command(command).name} {address:#x} is answered {answer[0]:#x}"
    return int.from_bytes(bytes(answer[1:]), "little")


@cocotb.test()
async def registers_and_memory(dut):
    dut.rx.value, dut.rst.value = 1, 1
    cocotb.start_soon(Clock(dut.clk, 2, "ns").start())
    await ClockCycles(dut.clk, 4, FallingEdge)
    dut.rst.value = 0
    await ClockCycles(dut.clk, 4, FallingEdge)
    caps = registers.CAPS.layout.decode(await access(dut, Command.READ_REGISTER, registers.CAPS.offset))
    assert caps["flit_width"] == FLIT_WIDTH and caps["grid_hi"] == 1
    await access(dut, Command.WRITE_REGISTER, registers.CTRL.offset, 0x0123456789ABCDEF)
    assert await access(dut, Command.READ_REGISTER, registers.CTRL.offset) == 0x0123456789ABCDEF
    words = {8: 0x0123456789ABCDEF, 48: 0xFEDCBA9876543210, (64 << 10) - 8: 0x5AA5C33C0FF01EE1}
    for address, value in words.items():
        await access(dut, Command.WRITE_MEMORY, address, value)
    for address, value in words.items():
        assert await access(dut, Command.READ_MEMORY, address) == value
    await access(dut, Command.READ_MEMORY, 64 << 10, response=DECERR)
    await send(dut, 0xFF)
    assert await receive(dut, 1) == [UNKNOWN]
