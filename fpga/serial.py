"""A serial line to a machine's registers and memory: 8N1, one access at a time."""

from __future__ import annotations

from enum import IntEnum

from amaranth import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.cdc import FFSynchronizer
from amaranth.lib.wiring import In, Out

from rtl.axi import Burst
from rtl.host_port import HOST
from rtl.memory_window import HOST_AXI
from rtl.parameters import positive

ADDRESS_BYTES, DATA_BYTES = 5, 8
SIZE = (DATA_BYTES - 1).bit_length()
ANSWER, UNKNOWN = 0xA0, 0xEE
PATIENCE_BYTES = 64  # a command whose next byte takes longer than so many is forgotten


class Command(IntEnum):
    """First byte of a command; 5 bytes of address and, for a write, 8 of data follow, the lowest first."""

    READ_REGISTER = 0x50
    WRITE_REGISTER = 0x51
    READ_MEMORY = 0x52
    WRITE_MEMORY = 0x53


class Receiver(wiring.Component):
    """Bytes of a serial line: `valid` for one cycle with each `byte` whose stop bit is one."""

    def __init__(self, *, divisor: int):
        self.divisor = divisor
        super().__init__({"line": In(1), "byte": Out(8), "valid": Out(1)})

    def elaborate(self, platform):
        m = Module()
        line = Signal(init=1)
        m.submodules.line = FFSynchronizer(self.line, line, init=1)
        wait, bits = Signal(range(2 * self.divisor)), Signal(range(11))
        shifted = Signal(9)
        m.d.sync += self.valid.eq(0)
        with m.If(bits == 0):
            with m.If(~line):
                # to the middle of the start bit, which is looked at again
                m.d.sync += [bits.eq(10), wait.eq(self.divisor // 2)]
        with m.Elif(wait != 0):
            m.d.sync += wait.eq(wait - 1)
        with m.Else():
            m.d.sync += [wait.eq(self.divisor - 1), bits.eq(bits - 1), shifted.eq(Cat(shifted[1:], line))]
            with m.If((bits == 10) & line):
                m.d.sync += bits.eq(0)
            with m.If((bits == 1) & line):
                m.d.sync += [self.valid.eq(1), self.byte.eq(shifted[1:])]
        return m


class Sender(wiring.Component):
    """Bytes onto a serial line: `byte` is taken in a cycle with `valid` and `ready`."""

    def __init__(self, *, divisor: int):
        self.divisor = divisor
        super().__init__({"line": Out(1, init=1), "byte": In(8), "valid": In(1), "ready": Out(1)})

    def elaborate(self, platform):
        m = Module()
        wait, bits = Signal(range(self.divisor)), Signal(range(11))
        shifted = Signal(10, init=0x3FF)
        m.d.comb += [self.ready.eq(bits == 0), self.line.eq(shifted[0])]
        with m.If(bits == 0):
            with m.If(self.valid):
                m.d.sync += [shifted.eq(Cat(0, self.byte, 1)), bits.eq(10), wait.eq(self.divisor - 1)]
        with m.Elif(wait != 0):
            m.d.sync += wait.eq(wait - 1)
        with m.Else():
            m.d.sync += [shifted.eq(Cat(shifted[1:], 1)), bits.eq(bits - 1), wait.eq(self.divisor - 1)]
        return m


class SerialHost(wiring.Component):
    """A host on a serial line of `divisor` cycles a bit.

    Members: `rx`, `tx`, the line; `host` and `window`, AXI4 masters to the orchestrator and to the memory window. Each
    `Command` is answered with a byte, `ANSWER` plus the AXI response, and for a read 8 bytes of data, the lowest first;
    another first byte with `UNKNOWN`. Addresses are multiples of 8.
    """

    def __init__(self, *, divisor: int):
        positive("SerialHost", divisor=divisor)
        if divisor < 4:
            raise TypeError(f"SerialHost divisor must be at least 4, not {divisor}")
        self.divisor = divisor
        super().__init__({"rx": In(1, init=1), "tx": Out(1), "host": Out(HOST), "window": Out(HOST_AXI)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.receiver = receiver = Receiver(divisor=self.divisor)
        m.submodules.sender = sender = Sender(divisor=self.divisor)
        m.d.comb += [receiver.line.eq(self.rx), self.tx.eq(sender.line)]
        command, write, of_memory = Signal(8), Signal(), Signal()
        address, value = Signal(8 * ADDRESS_BYTES), Signal(8 * DATA_BYTES)
        response = Signal(2)
        left = Signal(range(DATA_BYTES + 1))
        patience = Signal(range(10 * PATIENCE_BYTES * self.divisor + 1))
        m.d.comb += [write.eq(command[0]), of_memory.eq(command[1])]
        m.d.sync += patience.eq(patience - 1)
        with m.If(receiver.valid):
            m.d.sync += patience.eq(10 * PATIENCE_BYTES * self.divisor)
        with m.FSM():
            with m.State("COMMAND"):
                m.d.sync += [command.eq(receiver.byte), left.eq(ADDRESS_BYTES - 1)]
                with m.If(receiver.valid):
                    with m.If(receiver.byte.matches(*Command)):
                        m.next = "ADDRESS"
                    with m.Else():
                        m.next = "UNKNOWN"
            with m.State("UNKNOWN"):
                m.d.comb += [sender.byte.eq(UNKNOWN), sender.valid.eq(1)]
                with m.If(sender.ready):
                    m.next = "COMMAND"
            with m.State("ADDRESS"):
                with m.If(receiver.valid):
                    m.d.sync += [address.eq(Cat(address[8:], receiver.byte)), left.eq(left - 1)]
                    with m.If(left == 0):
                        m.d.sync += left.eq(DATA_BYTES - 1)
                        with m.If(write):
                            m.next = "VALUE"
                        with m.Else():
                            m.next = "ACCESS"
                with m.Elif(patience == 0):
                    m.next = "COMMAND"
            with m.State("VALUE"):
                with m.If(receiver.valid):
                    m.d.sync += [value.eq(Cat(value[8:], receiver.byte)), left.eq(left - 1)]
                    with m.If(left == 0):
                        m.next = "ACCESS"
                with m.Elif(patience == 0):
                    m.next = "COMMAND"
            with m.State("ACCESS"):
                for chosen, bus in ((~of_memory, self.host), (of_memory, self.window)):
                    with m.If(chosen):
                        m.d.sync += [bus.awvalid.eq(write), bus.wvalid.eq(write), bus.arvalid.eq(~write)]
                m.next = "WAIT"
            with m.State("WAIT"):
                for chosen, bus in ((~of_memory, self.host), (of_memory, self.window)):
                    self._finish(m, bus, chosen, write, address, value, response)
                m.d.sync += left.eq(DATA_BYTES - 1)
            with m.State("ANSWER"):
                m.d.comb += [sender.byte.eq(ANSWER | response), sender.valid.eq(1)]
                with m.If(sender.ready):
                    with m.If(write):
                        m.next = "COMMAND"
                    with m.Else():
                        m.next = "DATA"
            with m.State("DATA"):
                m.d.comb += [sender.byte.eq(value[:8]), sender.valid.eq(1)]
                with m.If(sender.ready):
                    m.d.sync += [value.eq(value[8:]), left.eq(left - 1)]
                    with m.If(left == 0):
                        m.next = "COMMAND"
        for bus in (self.host, self.window):
            self._drive(m, bus, address, value)
        return m

    def _drive(self, m: Module, bus, address, value) -> None:
        """What does not change during an access: single beats of 8 bytes, in their lane of the bus."""
        lanes = len(bus.wdata) // (8 * DATA_BYTES)
        lane = address[SIZE : SIZE + (lanes - 1).bit_length()]
        m.d.comb += [
            bus.awaddr.eq(address), bus.araddr.eq(address), bus.awsize.eq(SIZE), bus.arsize.eq(SIZE),
            bus.awburst.eq(Burst.INCR),
            bus.arburst.eq(Burst.INCR), bus.wdata.eq(value.replicate(lanes)), bus.wlast.eq(1),
            bus.wstrb.eq((1 << DATA_BYTES) - 1 if lanes == 1 else ((1 << DATA_BYTES) - 1) << (lane << SIZE)),
        ]  # fmt: skip
        for valid, ready in ((bus.awvalid, bus.awready), (bus.wvalid, bus.wready), (bus.arvalid, bus.arready)):
            with m.If(valid & ready):
                m.d.sync += valid.eq(0)

    def _finish(self, m: Module, bus, chosen, write, address, value, response) -> None:
        """Take the answer of the chosen bus."""
        lanes = len(bus.rdata) // (8 * DATA_BYTES)
        lane = address[SIZE : SIZE + (lanes - 1).bit_length()]
        with m.If(chosen):
            m.d.comb += [bus.bready.eq(write), bus.rready.eq(~write)]
            with m.If(bus.bvalid & bus.bready):
                m.d.sync += response.eq(bus.bresp)
                m.next = "ANSWER"
            with m.If(bus.rvalid & bus.rready):
                m.d.sync += [
                    response.eq(bus.rresp),
                    value.eq(bus.rdata.word_select(lane, 8 * DATA_BYTES) if lanes > 1 else bus.rdata),
                ]
                m.next = "ANSWER"
