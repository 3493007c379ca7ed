"""A vector core's L1 for block RAM that reads nothing in particular where its other port writes, as that of the
ECP5."""

from __future__ import annotations

from amaranth import Module, Mux, Signal
from amaranth.lib import memory

from kohakutpu.isa.flit import PAYLOAD_WIDTH
from rtl.vector_memory import L1


class BlockL1(L1):
    """`L1`, cycle by cycle, from memory whose ports never meet: port B writes a cycle late, and port A looks at what is
    on the way.

    Raises `TypeError` for a planted fault, which is for benches of the other one.
    """

    def __init__(self, *, words: int, **planted):
        if planted:
            raise TypeError(f"BlockL1 plants no faults, and not {', '.join(planted)}")
        super().__init__(words=words)

    def elaborate(self, platform):
        m = Module()
        # The attribute allows Yosys what the registers below make true.
        m.submodules.store = store = memory.Memory(
            shape=PAYLOAD_WIDTH, depth=self.words, init=[], attrs={"no_rw_check": 1}
        )
        port_a, port_b, read = store.write_port(), store.write_port(), store.read_port()
        at, word, write = Signal.like(self.b_at), Signal.like(self.b_word), Signal()
        meet, passed, passed_word = Signal(), Signal(), Signal.like(self.b_word)
        m.d.sync += [at.eq(self.b_at), word.eq(self.b_word), write.eq(self.b_write)]
        m.d.comb += [
            meet.eq(write & (at == self.a_at)),
            port_a.addr.eq(self.a_at), port_a.data.eq(self.a_word), port_a.en.eq(self.a_write),
            # what port A writes now is younger
            port_b.addr.eq(at), port_b.data.eq(word), port_b.en.eq(write & ~(meet & self.a_write)),
            read.addr.eq(self.a_at), read.en.eq(1), self.a_data.eq(Mux(passed, passed_word, read.data)),
        ]  # fmt: skip
        m.d.sync += [passed.eq(meet), passed_word.eq(word)]
        return m
