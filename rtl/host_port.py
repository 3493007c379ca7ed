"""The host's AXI4 slave in front of the registers: one write and one read access at a time, 64 bits a beat.

Timing: docs/microarchitecture.md, host port. Nothing here knows a register.
"""

from __future__ import annotations

from amaranth import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from kohakutpu.isa.registers import REGISTER_BYTES, WINDOW

from .axi import AxiSignature, Burst, Response
from .parameters import known_fault

ADDR_WIDTH = 32
DATA_WIDTH = 8 * REGISTER_BYTES
ID_WIDTH = 4
BYTE_BITS = REGISTER_BYTES.bit_length() - 1
INDEX_BITS = (WINDOW // REGISTER_BYTES).bit_length() - 1
SIZE = BYTE_BITS  # AxSIZE of a whole register
HOST = AxiSignature(addr_width=ADDR_WIDTH, data_width=DATA_WIDTH, id_width=ID_WIDTH)

FAULTS = {
    "frozen-write-address": "every beat of a write burst goes to the first register",
    "unheld-read-data": "a beat that the master does not take at once is replaced by the register's later value",
}


class HostPort(wiring.Component):
    """Registers are numbered by `index`, byte offset / 8 in the 64 KiB window; higher address bits are not looked at.

    Members: `host`, the AXI4 slave; `write`, `write_index`, `write_data`, `write_strobe`: a register load in the cycle
    in which `write` is high; `read_index`: the register whose value is wanted on `read_data` in the cycle after one in
    which `read_next` is high.

    Bursts are INCR and beats 8 bytes; anything else is answered with SLVERR and touches no register, as is a write
    whose WLAST does not fit its length from the first wrong beat on.
    """

    def __init__(self, *, fault: str | None = None):
        self.fault = known_fault("HostPort", fault, FAULTS)
        super().__init__(
            {
                "host": In(HOST),
                "write": Out(1),
                "write_index": Out(INDEX_BITS),
                "write_data": Out(DATA_WIDTH),
                "write_strobe": Out(REGISTER_BYTES),
                "read_index": Out(INDEX_BITS),
                "read_next": Out(1),
                "read_data": In(DATA_WIDTH),
            }
        )

    @staticmethod
    def _unfit(size, burst, length):
        """The access is none of whole registers."""
        return (size != SIZE) | ((burst != Burst.INCR) & (length != 0))

    def elaborate(self, platform):
        m = Module()
        self._write(m)
        self._read(m)
        return m

    def _write(self, m: Module) -> None:
        bus = self.host
        left = Signal(8)
        unfit = Signal()
        m.d.comb += [
            self.write_data.eq(bus.wdata),
            self.write_strobe.eq(bus.wstrb),
            bus.bresp.eq(Mux(unfit, Response.SLVERR, Response.OKAY)),
        ]
        with m.FSM(name="write_state"):
            with m.State("ADDRESS"):
                m.d.comb += bus.awready.eq(1)
                m.d.sync += [
                    bus.bid.eq(bus.awid),
                    self.write_index.eq(bus.awaddr[BYTE_BITS:]),
                    left.eq(bus.awlen),
                    unfit.eq(self._unfit(bus.awsize, bus.awburst, bus.awlen)),
                ]
                with m.If(bus.awvalid):
                    m.next = "DECODE"
            with m.State("DECODE"):
                m.next = "DATA"
            with m.State("DATA"):
                wrong = bus.wlast != (left == 0)
                m.d.comb += [bus.wready.eq(1), self.write.eq(bus.wvalid & ~unfit & ~wrong)]
                with m.If(bus.wvalid):
                    m.d.sync += [left.eq(left - 1), unfit.eq(unfit | wrong)]
                    if self.fault != "frozen-write-address":
                        m.d.sync += self.write_index.eq(self.write_index + 1)
                    with m.If(bus.wlast):
                        m.next = "RESPONSE"
            with m.State("RESPONSE"):
                m.d.comb += bus.bvalid.eq(1)
                with m.If(bus.bready):
                    m.next = "ADDRESS"

    def _read(self, m: Module) -> None:
        bus = self.host
        left = Signal(8)
        unfit = Signal()
        # A beat shows the register as it is in its first cycle, and that value for as long as the master waits.
        held = Signal(DATA_WIDTH)
        waiting = Signal()
        value = Mux(waiting, held, self.read_data)
        m.d.comb += [
            bus.rdata.eq(Mux(unfit, 0, self.read_data if self.fault == "unheld-read-data" else value)),
            bus.rresp.eq(Mux(unfit, Response.SLVERR, Response.OKAY)),
            bus.rlast.eq(left == 0),
        ]
        m.d.sync += [held.eq(value), waiting.eq(bus.rvalid & ~bus.rready)]
        with m.If(self.read_next):
            m.d.sync += self.read_index.eq(self.read_index + 1)
        with m.FSM(name="read_state"):
            with m.State("ADDRESS"):
                m.d.comb += bus.arready.eq(1)
                m.d.sync += [
                    bus.rid.eq(bus.arid),
                    self.read_index.eq(bus.araddr[BYTE_BITS:]),
                    left.eq(bus.arlen),
                    unfit.eq(self._unfit(bus.arsize, bus.arburst, bus.arlen)),
                ]
                with m.If(bus.arvalid):
                    m.next = "DECODE"
            with m.State("DECODE"):
                m.next = "ACCESS"
            with m.State("ACCESS"):
                m.d.comb += self.read_next.eq(1)
                m.next = "DATA"
            with m.State("DATA"):
                m.d.comb += [bus.rvalid.eq(1), self.read_next.eq(bus.rready)]
                with m.If(bus.rready):
                    m.d.sync += left.eq(left - 1)
                    with m.If(left == 0):
                        m.next = "ADDRESS"
