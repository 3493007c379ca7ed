"""First-word-fall-through FIFO in a memory with a registered read: a push is visible in the next cycle."""

from __future__ import annotations

from amaranth import Module, Mux, Signal
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out


class Fifo(wiring.Component):
    """A FIFO of `depth` words of `width` bits (spec: router FIFO; docs/microarchitecture.md, FIFOs).

    The read port looks one ahead and is transparent to the write port, so block RAM serves any depth with
    one cycle from push to head. Pushing while full or popping while empty is ignored.

    Members: `push`, `push_data`, `pop` in; `head`, `valid` (an entry of an earlier cycle exists), `full`
    and `level` (entries at the start of the cycle) out.
    """

    def __init__(self, *, width: int, depth: int):
        for name, value in (("width", width), ("depth", depth)):
            if not isinstance(value, int) or value < 1:
                raise TypeError(f"Fifo {name} must be a positive integer, not {value!r}")
        self.width = width
        self.depth = depth
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
        read = store.read_port(transparent_for=[write])
        put = Signal(range(self.depth))
        get = Signal(range(self.depth))
        get_next = Signal(range(self.depth))
        pushing = Signal()
        popping = Signal()

        def after(pointer):
            return Mux(pointer == self.depth - 1, 0, pointer + 1)

        m.d.comb += [
            self.valid.eq(self.level != 0),
            self.full.eq(self.level == self.depth),
            pushing.eq(self.push & ~self.full),
            popping.eq(self.pop & self.valid),
            write.addr.eq(put),
            write.data.eq(self.push_data),
            write.en.eq(pushing),
            get_next.eq(Mux(popping, after(get), get)),
            read.addr.eq(get_next),
            read.en.eq(1),
            self.head.eq(read.data),
        ]
        m.d.sync += [get.eq(get_next), self.level.eq(self.level + pushing - popping)]
        with m.If(pushing):
            m.d.sync += put.eq(after(put))
        return m
