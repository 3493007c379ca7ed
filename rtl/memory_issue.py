"""Write bursts onto AXI4: one piece of consecutive words after another, cut where AXI must not cross (4 KiB).

Timing: docs/microarchitecture/memory-agent.md, memory.
"""

from __future__ import annotations

from amaranth import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .parameters import known_fault

WORD_BYTES = 32
WORD_BITS = 8 * WORD_BYTES
ADDRESS_BITS = 40
OFFSET_BITS = 5  # of a byte in its word
INDEX_BITS = ADDRESS_BITS - OFFSET_BITS
PAGE_WORDS = 4096 // WORD_BYTES
AXI_SIZE = OFFSET_BITS
LONGEST = 8  # words of a piece

FAULTS = {
    "issue-crosses-page": "a burst is not cut at 4 KiB",
    "issue-early-last": "WLAST comes on the last beat but one",
}


class WriteIssue(wiring.Component):
    """Address and handshakes of write bursts; the data are beside it.

    `go` hands over `words` (1 to 8) words from word `index` on, in a cycle in which `idle` is high; the first beat is
    offered in the next cycle, and `taken` asks for the next beat's data. `cut`: the piece offered to `go` takes two
    bursts, and so gets two responses.
    """

    def __init__(self, *, fault: str | None = None):
        self.fault = known_fault("WriteIssue", fault, FAULTS)
        super().__init__(
            {
                "index": In(INDEX_BITS),
                "words": In(range(LONGEST + 1)),
                "go": In(1),
                "idle": Out(1),
                "cut": Out(1),
                "taken": Out(1),
                "awaddr": Out(ADDRESS_BITS),
                "awlen": Out(8),
                "awvalid": Out(1),
                "awready": In(1),
                "wlast": Out(1),
                "wvalid": Out(1),
                "wready": In(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        address = Signal(INDEX_BITS)
        length = Signal(range(LONGEST))  # of the burst, less one
        left = Signal(range(LONGEST + 1))  # beats of the burst that were not taken
        after = Signal(range(LONGEST))  # words behind the cut
        room = Signal(range(PAGE_WORDS + 1))
        m.d.comb += [
            room.eq(PAGE_WORDS - self.index[: (PAGE_WORDS - 1).bit_length()]),
            self.cut.eq(0 if self.fault == "issue-crosses-page" else self.words > room),
            self.awaddr[OFFSET_BITS:].eq(address),
            self.awlen.eq(length),
            self.wvalid.eq(left != 0),
            self.wlast.eq(left == (2 if self.fault == "issue-early-last" else 1)),
            self.taken.eq(self.wvalid & self.wready),
        ]
        over = Signal()  # address and data of the burst are taken by the end of this cycle
        m.d.comb += [
            over.eq(((left == 0) | ((left == 1) & self.wready)) & (~self.awvalid | self.awready)),
            self.idle.eq(over & (after == 0)),
        ]
        with m.If(self.awready):
            m.d.sync += self.awvalid.eq(0)
        with m.If(self.taken):
            m.d.sync += left.eq(left - 1)
        with m.If(over & (after != 0)):
            m.d.sync += [
                self.awvalid.eq(1), left.eq(after), length.eq(after - 1), after.eq(0),
                address.eq((address | (PAGE_WORDS - 1)) + 1),
            ]  # fmt: skip
        with m.Elif(self.go):
            first = Mux(self.cut, room, self.words)
            m.d.sync += [
                self.awvalid.eq(1), left.eq(first), length.eq(first - 1), address.eq(self.index),
                after.eq(Mux(self.cut, self.words - room, 0)),
            ]  # fmt: skip
        return m
