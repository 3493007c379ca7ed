"""A monitor beside an AXI4 master: `AxiChecker` counts what none may do (AMBA AXI4, IHI 0022). For simulation only."""

from __future__ import annotations

from amaranth import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from rtl.axi import AxiSignature, Burst
from rtl.emit import shared
from rtl.fifo import Fifo
from rtl.parameters import positive

COUNTER_BITS = 8  # of each rule, saturating
OUTSTANDING = 256
CHANNELS = {
    "aw": ("id", "addr", "len", "size", "burst"),
    "ar": ("id", "addr", "len", "size", "burst"),
    "w": ("data", "strb", "last"),
}
# In the order of the counters, lowest first.
RULES = {
    "aw_moved": "a write address was offered, not taken, and withdrawn or changed",
    "w_moved": "write data were offered, not taken, and withdrawn or changed",
    "ar_moved": "a read address was offered, not taken, and withdrawn or changed",
    "aw_page": "a write burst crosses 4 KiB",
    "ar_page": "a read burst crosses 4 KiB",
    "aw_shape": "a write burst is not INCR, not of whole words, or longer than the bound",
    "ar_shape": "a read burst is not INCR, not of whole words, or longer than the bound",
    "w_last": "WLAST on another beat than the last one of its burst",
    "w_stray": "data of more than two bursts were sent before their addresses",
}


def violations(word: int) -> dict[str, int]:
    """The rules that were broken and how often (255 is 255 or more)."""
    counts = {name: word >> (COUNTER_BITS * i) & ((1 << COUNTER_BITS) - 1) for i, name in enumerate(RULES)}
    return {name: count for name, count in counts.items() if count}


class AxiChecker(wiring.Component):
    """Watches the wires of a master that may send bursts of up to `longest` beats; `violations` holds the counters.

    Members: every wire of `AxiSignature`, as inputs, and `violations`.
    """

    def __init__(self, *, addr_width: int, data_width: int, id_width: int, longest: int):
        positive("AxiChecker", longest=longest)
        self.longest = longest
        self.bus_signature = AxiSignature(addr_width=addr_width, data_width=data_width, id_width=id_width)
        watched = {name: In(member.shape) for name, member in self.bus_signature.members.items()}
        super().__init__({**watched, "violations": Out(COUNTER_BITS * len(RULES))})

    def elaborate(self, platform):
        m = Module()
        broken = {name: Signal(name=name) for name in RULES}
        for index, rule in enumerate(RULES):
            count = self.violations.word_select(index, COUNTER_BITS)
            with m.If(broken[rule] & ~count.all()):
                m.d.sync += count.eq(count + 1)
        for channel, names in CHANNELS.items():
            valid, ready = getattr(self, f"{channel}valid"), getattr(self, f"{channel}ready")
            word = Cat(*(getattr(self, channel + name) for name in names))
            stalled, before = Signal(name=f"{channel}_stalled"), Signal(len(word), name=f"{channel}_before")
            m.d.sync += [stalled.eq(valid & ~ready), before.eq(word)]
            m.d.comb += broken[f"{channel}_moved"].eq(stalled & (~valid | (word != before)))
        size = (self.bus_signature.data_width // 8).bit_length() - 1
        for channel in ("aw", "ar"):
            addr, length = getattr(self, f"{channel}addr"), getattr(self, f"{channel}len")
            plain = (getattr(self, f"{channel}size") == size) & (getattr(self, f"{channel}burst") == Burst.INCR)
            taken = getattr(self, f"{channel}valid") & getattr(self, f"{channel}ready")
            m.d.comb += [
                broken[f"{channel}_page"].eq(taken & (addr[size:12] + length >= (4096 >> size))),
                broken[f"{channel}_shape"].eq(taken & ((length >= self.longest) | ((length != 0) & ~plain))),
            ]
        # Data may come before their address: count bursts of each, and compare lengths in the order of both.
        m.submodules.asked = asked = shared(Fifo, width=8, depth=OUTSTANDING)
        m.submodules.sent = sent = shared(Fifo, width=9, depth=OUTSTANDING)
        beats = Signal(9)
        beat = self.wvalid & self.wready
        with m.If(beat):
            m.d.sync += beats.eq(beats + 1)
            with m.If(self.wlast):
                m.d.sync += beats.eq(0)
        m.d.comb += [
            asked.push.eq(self.awvalid & self.awready), asked.push_data.eq(self.awlen),
            sent.push.eq(beat & self.wlast), sent.push_data.eq(beats),
            asked.pop.eq(asked.valid & sent.valid), sent.pop.eq(asked.pop),
            broken["w_last"].eq(asked.pop & (asked.head != sent.head)),
            broken["w_stray"].eq(sent.level > 2),
        ]  # fmt: skip
        return m
