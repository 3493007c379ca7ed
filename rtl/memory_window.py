"""The host memory window: a host's AXI4 bursts to memory, and the quantising upload.

Timing: docs/microarchitecture/memory-agent.md, host window.
"""

from __future__ import annotations

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from kohakutpu.isa.memory import APERTURE_ADDRESS, Aperture

from .axi import Burst, Response
from .emit import shared
from .fifo import Fifo
from .link import view
from .memory_issue import AXI_SIZE, INDEX_BITS, OFFSET_BITS, PAGE_WORDS, WORD_BYTES, WriteIssue
from .memory_port import MEMORY_AXI
from .parameters import known_fault, positive
from .quantiser import SOURCE_WORDS, WORDS, Quantiser

HOST_AXI = MEMORY_AXI
OUTSTANDING = 64  # bursts to memory, each way
ENTRIES = 4  # destinations of entries inside the converter
ANSWER = data.StructLayout({"id": 4, "refused": 1, "final": 1, "cut": 1})
PLACE = data.StructLayout({"index": INDEX_BITS, "id": 4, "final": 1})

FAULTS = {
    "window-ignores-strobes": "bytes whose strobe is low are written too",
    "window-early-answer": "an upload is answered when its first entry is in memory",
    "window-impatient": "a read does not wait for writes that have reached a port",
    "window-wrong-step": "entries of an upload are stored every eight words",
}


class Write:
    """Kinds of host write bursts."""

    PLAIN = 0
    UPLOAD = 1
    REFUSED = 2


class MemoryWindow(wiring.Component):
    """A host's way to `memory_bytes` of memory.

    Members: `host`, an AXI4 slave; `axi`, an AXI4 master; `settled`: every write that reached a port in full is in
    memory.

    A plain burst is INCR with beats of a whole word, or one beat. A burst to an upload aperture has a multiple of 8
    whole beats (its type is not looked at) and a destination that is a multiple of 32: the address that it names.
    Anything else, and what lies outside of memory, is answered with DECERR and changes nothing.
    """

    def __init__(self, *, memory_bytes: int, fault: str | None = None):
        positive("MemoryWindow", memory_bytes=memory_bytes)
        if memory_bytes % WORD_BYTES:
            raise TypeError(f"MemoryWindow memory_bytes must be a multiple of {WORD_BYTES}, not {memory_bytes}")
        self.fault = known_fault("MemoryWindow", fault, FAULTS)
        self.words = memory_bytes // WORD_BYTES
        super().__init__({"host": In(HOST_AXI), "axi": Out(MEMORY_AXI), "settled": In(1)})

    def elaborate(self, platform):
        m = Module()
        self._write(m)
        self._read(m)
        return m

    def _plain(self, address, length, size, burst):
        """The burst is one of memory words."""
        index = address[OFFSET_BITS:]
        inside = index + length + 1 <= self.words
        one_page = index[: (PAGE_WORDS - 1).bit_length()] + length < PAGE_WORDS
        return inside & one_page & ((length == 0) | ((size == AXI_SIZE) & (burst == Burst.INCR)))

    # ---- writes --------------------------------------------------------------------------------------------------

    def _write(self, m: Module) -> None:
        host, axi = self.host, self.axi
        m.submodules.converter = converter = shared(Quantiser, fault=None)
        m.submodules.issue = issue = shared(WriteIssue, fault=None)
        m.submodules.answers = answers = shared(Fifo, width=ANSWER.size, depth=OUTSTANDING)
        m.submodules.places = places = shared(Fifo, width=PLACE.size, depth=ENTRIES)
        target = data.View(view(APERTURE_ADDRESS), host.awaddr)
        upload = target.special & (target.mesh == 0) & target.aperture.matches(Aperture.UPLOAD_A, Aperture.UPLOAD_B)
        first_place = target.local[OFFSET_BITS:]
        entries = host.awlen[3:] + 1
        whole = (host.awlen[:3] == SOURCE_WORDS - 1) & (host.awsize == AXI_SIZE) & (target.local[:OFFSET_BITS] == 0)
        kind, offered = Signal(2), Signal(2)
        with m.If(upload & whole & (first_place + entries * WORDS <= self.words)):
            m.d.comb += offered.eq(Write.UPLOAD)
        with m.Elif(upload | ~self._plain(host.awaddr, host.awlen, host.awsize, host.awburst)):
            m.d.comb += offered.eq(Write.REFUSED)

        # One burst of data at a time; plain and refused ones wait until no upload is under way.
        opened, held = Signal(), Signal()  # data are to come; the address was not taken by the memory
        quiet = converter.empty & ~issue.awvalid & ~issue.wvalid
        begins = host.awvalid & host.awready
        forwards = begins & (offered == Write.PLAIN)
        address = Signal(data.StructLayout({"addr": 40, "len": 8, "size": 3, "burst": 2}))
        here = Signal(address.shape())
        m.d.comb += [
            host.awready.eq(~opened & ~held & ~answers.full & ((offered == Write.UPLOAD) | quiet)),
            here.eq(Cat(host.awaddr, host.awlen, host.awsize, host.awburst)),
        ]
        with m.If(forwards):
            m.d.sync += address.eq(here)
        m.d.sync += held.eq((forwards | held) & ~axi.awready)

        left, now_left = Signal(8), Signal(8)  # beats of the burst behind this one
        id_, now_id = Signal(4), Signal(4)
        layout, now_layout = Signal(), Signal()
        place, now_place = Signal(INDEX_BITS), Signal(INDEX_BITS)
        now_kind, active = Signal(2), Signal()
        m.d.comb += [
            active.eq(opened | begins),
            now_kind.eq(Mux(opened, kind, offered)),
            now_left.eq(Mux(opened, left, host.awlen)),
            now_id.eq(Mux(opened, id_, host.awid)),
            now_layout.eq(Mux(opened, layout, target.aperture == Aperture.UPLOAD_B)),
            now_place.eq(Mux(opened, place, first_place)),
        ]
        beat = Signal()
        plain = active & (now_kind == Write.PLAIN)
        uploads = active & (now_kind == Write.UPLOAD)
        refuses = active & (now_kind == Write.REFUSED)
        first_of_entry = now_left[:3] == SOURCE_WORDS - 1
        step = SOURCE_WORDS if self.fault == "window-wrong-step" else WORDS
        m.d.comb += [
            host.wready.eq((plain & axi.wready) | (uploads & converter.accepts) | (refuses & ~answers.full)),
            beat.eq(host.wvalid & host.wready),
            converter.word.eq(host.wdata),
            converter.layout.eq(now_layout),
            converter.take.eq(beat & uploads),
            places.push.eq(converter.take & first_of_entry),
            places.push_data.eq(Cat(now_place, now_id, now_left[3:] == 0)),
        ]
        with m.If(active):
            m.d.sync += [
                opened.eq(~(beat & (now_left == 0))), kind.eq(now_kind), left.eq(now_left - beat), id_.eq(now_id),
                layout.eq(now_layout), place.eq(now_place + Mux(places.push, step, 0)),
            ]  # fmt: skip

        # Entries leave the converter as bursts of four words.
        waiting = Signal(range(ENTRIES + 1))  # complete, and not handed to the issue
        word = Signal(range(WORDS))
        to_place = Signal(PLACE)
        m.d.comb += [
            to_place.eq(places.head),
            issue.index.eq(to_place.index),
            issue.words.eq(WORDS),
            issue.go.eq(((waiting != 0) | converter.done) & issue.idle & ~answers.full),
            places.pop.eq(issue.go),
            converter.index.eq(word),
            converter.free.eq(issue.taken & (word == WORDS - 1)),
        ]
        m.d.sync += [waiting.eq(waiting + converter.done - issue.go), word.eq(word + issue.taken)]
        m.d.comb += [axi.awid.eq(0), axi.awsize.eq(AXI_SIZE), axi.awburst.eq(Burst.INCR)]
        with m.If(quiet):
            current = Signal(address.shape())
            m.d.comb += [
                current.eq(Mux(held, address, here)),
                axi.awaddr.eq(current.addr), axi.awlen.eq(current.len),
                axi.awsize.eq(current.size), axi.awburst.eq(current.burst),
                axi.awvalid.eq(held | forwards),
                axi.wdata.eq(host.wdata), axi.wlast.eq(now_left == 0), axi.wvalid.eq(host.wvalid & plain),
                axi.wstrb.eq(~0 if self.fault == "window-ignores-strobes" else host.wstrb),
            ]  # fmt: skip
        with m.Else():
            m.d.comb += [
                axi.awaddr.eq(issue.awaddr), axi.awlen.eq(issue.awlen), axi.awvalid.eq(issue.awvalid),
                issue.awready.eq(axi.awready),
                axi.wdata.eq(converter.result), axi.wstrb.eq(~0), axi.wlast.eq(issue.wlast),
                axi.wvalid.eq(issue.wvalid),
                issue.wready.eq(axi.wready),
            ]  # fmt: skip

        # Answers in the order of the bursts.
        answer = Signal(ANSWER)
        with m.If(forwards):
            m.d.comb += [answers.push.eq(1), answer.eq(Cat(host.awid, 0, 1, 0))]
        with m.If(beat & refuses & (now_left == 0)):
            m.d.comb += [answers.push.eq(1), answer.eq(Cat(now_id, 1, 1, 0))]
        with m.If(issue.go):
            m.d.comb += [answers.push.eq(1), answer.eq(Cat(to_place.id, 0, to_place.final, issue.cut))]
        oldest = Signal(ANSWER)
        half, ends = Signal(), Signal()
        wrong = Signal(2)  # an error response to an earlier piece of the same host burst
        m.d.comb += [
            answers.push_data.eq(answer),
            oldest.eq(answers.head),
            ends.eq(~oldest.cut | half),
            host.bid.eq(oldest.id),
        ]
        piece = Signal()  # a response that is not the last one of its host burst
        with m.If(answers.valid & oldest.refused):
            m.d.comb += [host.bvalid.eq(1), host.bresp.eq(Response.DECERR), answers.pop.eq(host.bready)]
        with m.Elif(answers.valid & ends & oldest.final):
            m.d.comb += [
                host.bvalid.eq(axi.bvalid), axi.bready.eq(host.bready),
                host.bresp.eq(Mux(wrong == 0, axi.bresp, wrong)),
                answers.pop.eq(axi.bvalid & host.bready),
            ]  # fmt: skip
        with m.Elif(answers.valid):
            m.d.comb += [axi.bready.eq(1), piece.eq(axi.bvalid), answers.pop.eq(axi.bvalid & ends)]
        if self.fault == "window-early-answer":
            m.d.comb += oldest.final.eq(1)
        with m.If(answers.pop):
            m.d.sync += [half.eq(0), wrong.eq(Mux(piece, wrong | axi.bresp, 0))]
        with m.Elif(piece):
            m.d.sync += [half.eq(1), wrong.eq(wrong | axi.bresp)]

    # ---- reads ---------------------------------------------------------------------------------------------------

    def _read(self, m: Module) -> None:
        host, axi = self.host, self.axi
        m.submodules.reads = reads = shared(Fifo, width=4, depth=OUTSTANDING)
        fits = self._plain(host.araddr, host.arlen, host.arsize, host.arburst)
        held, due = Signal(), Signal()  # the address waits; and no longer for writes
        refusing = Signal()
        left = Signal(8)
        address = Signal(data.StructLayout({"addr": 40, "len": 8, "size": 3, "burst": 2}))
        here, current = Signal(address.shape()), Signal(address.shape())
        begins = host.arvalid & host.arready
        forwards = begins & fits
        may = due | self.settled | (self.fault == "window-impatient")
        m.d.comb += [
            host.arready.eq(~held & ~refusing & ~reads.full & (fits | ~reads.valid)),
            here.eq(Cat(host.araddr, host.arlen, host.arsize, host.arburst)),
            current.eq(Mux(held, address, here)),
            axi.arid.eq(0),
            axi.araddr.eq(current.addr), axi.arlen.eq(current.len),
            axi.arsize.eq(current.size), axi.arburst.eq(current.burst),
            axi.arvalid.eq((held | forwards) & may),
            reads.push.eq(begins),
            reads.push_data.eq(host.arid),
        ]  # fmt: skip
        with m.If(forwards):
            m.d.sync += address.eq(here)
        with m.If(held | forwards):
            m.d.sync += [held.eq(~(axi.arvalid & axi.arready)), due.eq(axi.arvalid & ~axi.arready)]
        with m.If(begins & ~fits):
            m.d.sync += [refusing.eq(1), left.eq(host.arlen)]

        # Data pass a register.
        room = ~host.rvalid | host.rready
        m.d.comb += axi.rready.eq(room & ~refusing)
        with m.If(room):
            m.d.sync += [host.rvalid.eq(axi.rvalid | (refusing & reads.valid)), host.rid.eq(reads.head)]
            with m.If(refusing):
                m.d.sync += [host.rdata.eq(0), host.rresp.eq(Response.DECERR), host.rlast.eq(left == 0)]
                with m.If(reads.valid):
                    m.d.sync += left.eq(left - 1)
                    with m.If(left == 0):
                        m.d.sync += refusing.eq(0)
            with m.Else():
                m.d.sync += [host.rdata.eq(axi.rdata), host.rresp.eq(axi.rresp), host.rlast.eq(axi.rlast)]
        m.d.comb += reads.pop.eq(room & Mux(refusing, reads.valid & (left == 0), axi.rvalid & axi.rlast))
