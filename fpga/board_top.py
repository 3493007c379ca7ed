"""A whole machine for a small board: gates, block RAM as its memory, a serial line as its host."""

from __future__ import annotations

from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from kohakutpu.machine import Machine
from rtl import emit
from rtl.memory_issue import WORD_BYTES
from rtl.merge import merge
from rtl.top import MachineTop

from .block_l1 import BlockL1
from .block_memory import BlockMemory
from .serial import SerialHost

NAME = "kohakutpu_board"
BAUD = 115_200


class BoardTop(wiring.Component):
    """`machine`, with or without its `units`, its memory, and a serial host of `divisor` cycles a bit.

    There is no memory mover: its generator alone takes 152 multipliers, and the largest of the boards has 156.

    Members: `rx` and `tx`, the line.
    """

    def __init__(self, machine: Machine, *, divisor: int, units: bool = True):
        self.machine = MachineTop(machine, l1=BlockL1, units=units, mover=False)
        self.memory = BlockMemory(ports=len(self.machine.dram), words=machine.memory.bytes // WORD_BYTES)
        self.serial = SerialHost(divisor=divisor)
        super().__init__({"rx": In(1, init=1), "tx": Out(1)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.gates = gates = self.machine
        m.submodules.memory = self.memory
        m.submodules.serial = serial = self.serial
        for master, slave in zip(gates.dram, self.memory.axi, strict=True):
            wiring.connect(m, master, slave)
        wiring.connect(m, serial.host, gates.host)
        wiring.connect(m, serial.window, gates.window)
        m.d.comb += [serial.rx.eq(self.rx), self.tx.eq(serial.tx)]
        return m


def board_verilog(machine: Machine, *, divisor: int, units: bool = True) -> str:
    """The Verilog of `BoardTop` with top module `NAME`."""
    return merge(emit.verilog(BoardTop(machine, divisor=divisor, units=units), name=NAME))
