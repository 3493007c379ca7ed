"""Block RAM behind the AXI ports of a small machine: one burst at a time each way."""

from __future__ import annotations

from collections.abc import Iterator

from amaranth import Module, Signal
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In

from rtl.memory_issue import OFFSET_BITS, WORD_BITS
from rtl.memory_port import MEMORY_AXI
from rtl.parameters import positive


class BlockMemory(wiring.Component):
    """`words` words of 32 bytes, zero when the board is configured, behind `ports` AXI4 slaves (`axi`, an array).

    Bursts are INCR with beats of any size within a word, as the memory ports and the host's window issue them;
    addresses wrap at the end. Ports take turns, a burst each; a burst is answered OKAY when its last beat is stored. A
    beat takes a cycle to write and two to read.
    """

    def __init__(self, *, ports: int, words: int):
        positive("BlockMemory", ports=ports, words=words)
        if words & (words - 1):
            raise TypeError(f"BlockMemory words must be a power of two, not {words}")
        self.ports, self.words = ports, words
        super().__init__({"axi": In(MEMORY_AXI).array(ports)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.store = store = memory.Memory(shape=WORD_BITS, depth=self.words, init=[])
        self._read(m, store.read_port())
        self._write(m, store.write_port(granularity=8))
        return m

    def _turn(self, m: Module, asking: list) -> tuple[Signal, Signal, Signal]:
        """(somebody asks, whose turn it was, who is next): the first that asks after the last one."""
        turn, following = Signal(range(self.ports)), Signal(range(self.ports))
        any_asks = Signal()
        m.d.comb += [any_asks.eq(sum(asking) != 0), following.eq(turn)]
        with m.Switch(turn):
            for last in range(self.ports):
                with m.Case(last):
                    for distance in reversed(range(1, self.ports + 1)):
                        port = (last + distance) % self.ports
                        with m.If(asking[port]):
                            m.d.comb += following.eq(port)
        return any_asks, turn, following

    def _idle(self, m: Module, asks: Signal, turn: Signal, following: Signal) -> None:
        """State IDLE, until a port asks; its address is taken in ADDRESS."""
        with m.State("IDLE"), m.If(asks):
            m.d.sync += turn.eq(following)
            m.next = "ADDRESS"

    def _in(self, m: Module, state: str, turn: Signal) -> Iterator:
        """Each port, for statements of a state that hold while it is its turn."""
        with m.State(state), m.Switch(turn):
            for number, axi in enumerate(self.axi):
                with m.Case(number):
                    yield axi

    def _index(self, address):
        return address[OFFSET_BITS : OFFSET_BITS + (self.words - 1).bit_length()]

    def _read(self, m: Module, port) -> None:
        asks, turn, following = self._turn(m, [axi.arvalid for axi in self.axi])
        index, left, identity = Signal((self.words - 1).bit_length()), Signal(8), Signal(4)
        m.d.comb += [port.addr.eq(index), port.en.eq(0)]
        with m.FSM(name="read"):
            self._idle(m, asks, turn, following)
            for axi in self._in(m, "ADDRESS", turn):
                m.d.comb += axi.arready.eq(1)
                m.d.sync += [index.eq(self._index(axi.araddr)), left.eq(axi.arlen), identity.eq(axi.arid)]
                m.next = "FETCH"
            with m.State("FETCH"):
                m.d.comb += port.en.eq(1)
                m.next = "DATA"
            for axi in self._in(m, "DATA", turn):
                m.d.comb += [axi.rvalid.eq(1), axi.rlast.eq(left == 0)]
                with m.If(axi.rready):
                    m.d.sync += [index.eq(index + 1), left.eq(left - 1)]
                    with m.If(left == 0):
                        m.next = "IDLE"
                    with m.Else():
                        m.next = "FETCH"
        for axi in self.axi:
            m.d.comb += [axi.rdata.eq(port.data), axi.rid.eq(identity)]

    def _write(self, m: Module, port) -> None:
        asks, turn, following = self._turn(m, [axi.awvalid for axi in self.axi])
        index, identity = Signal((self.words - 1).bit_length()), Signal(4)
        m.d.comb += port.addr.eq(index)
        with m.FSM(name="write"):
            self._idle(m, asks, turn, following)
            for axi in self._in(m, "ADDRESS", turn):
                m.d.comb += axi.awready.eq(1)
                m.d.sync += [index.eq(self._index(axi.awaddr)), identity.eq(axi.awid)]
                m.next = "DATA"
            for axi in self._in(m, "DATA", turn):
                m.d.comb += [axi.wready.eq(1), port.data.eq(axi.wdata)]
                with m.If(axi.wvalid):
                    m.d.comb += port.en.eq(axi.wstrb)
                    m.d.sync += index.eq(index + 1)
                    with m.If(axi.wlast):
                        m.next = "ANSWER"
            for axi in self._in(m, "ANSWER", turn):
                m.d.comb += axi.bvalid.eq(1)
                with m.If(axi.bready):
                    m.next = "IDLE"
        for axi in self.axi:
            m.d.comb += axi.bid.eq(identity)
