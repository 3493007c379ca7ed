"""First-word-fall-through FIFO in a memory with a registered read: a push is visible in the next cycle."""

from __future__ import annotations

from amaranth import Module, Mux, Signal
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from .parameters import known_fault, positive

FAULTS = {
    "push-when-full": "a push while full is not ignored and overwrites the oldest word",
    "late-head": "the read port misses the word that is being written, and a FIFO that was empty shows an old one",
}


class Fifo(wiring.Component):
    """A FIFO of `depth` words of `width` bits (spec: router FIFO; docs/microarchitecture.md, FIFOs).

    The read port looks one ahead and is transparent to the write port, so block RAM serves any depth with
    one cycle from push to head. Pushing while full or popping while empty is ignored.

    Members: `push`, `push_data`, `pop` in; `head`, `valid` (an entry of an earlier cycle exists), `full`
    and `level` (entries at the start of the cycle) out, the last three straight from registers.
    """

    def __init__(self, *, width: int, depth: int, fault: str | None = None):
        positive("Fifo", width=width, depth=depth)
        self.width = width
        self.depth = depth
        self.fault = known_fault("Fifo", fault, FAULTS)
        super().__init__(
            {
                "push": In(1),
                "push_data": In(width),
                "pop": In(1),
                "head": Out(width),
                "valid": Out(1),
                "full": Out(1),
                "level": Out(range(depth + 1)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.store = store = memory.Memory(shape=self.width, depth=self.depth, init=[])
        write = store.write_port()
        read = store.read_port(transparent_for=[] if self.fault == "late-head" else [write])
        put = Signal(range(self.depth))
        get = Signal(range(self.depth))
        get_next = Signal(range(self.depth))
        pushing = Signal()
        popping = Signal()

        def after(pointer):
            return Mux(pointer == self.depth - 1, 0, pointer + 1)

        m.d.comb += [
            pushing.eq(self.push & ~self.full),
            popping.eq(self.pop & self.valid),
            write.addr.eq(put),
            write.data.eq(self.push_data),
            write.en.eq(self.push if self.fault == "push-when-full" else pushing),
            get_next.eq(Mux(popping, after(get), get)),
            read.addr.eq(get_next),
            read.en.eq(1),
            self.head.eq(read.data),
        ]
        m.d.sync += get.eq(get_next)
        with m.If(pushing):
            m.d.sync += put.eq(after(put))
        with m.If(pushing & ~popping):
            m.d.sync += [self.level.eq(self.level + 1), self.valid.eq(1), self.full.eq(self.level == self.depth - 1)]
        with m.Elif(popping & ~pushing):
            m.d.sync += [self.level.eq(self.level - 1), self.valid.eq(self.level != 1), self.full.eq(0)]
        return m
