"""Write path of a memory port: slots gather a burst per source, issue in the order they fill, acknowledge.

Timing: docs/microarchitecture/memory-agent.md, write path.
"""

from __future__ import annotations

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from kohakutpu.isa.flit import FlitType
from kohakutpu.isa.memory import MEM_REQ, WRITE_BEATS

from .emit import shared
from .fifo import Fifo
from .link import FLIT, view
from .memory_issue import FAULTS as ISSUE_FAULTS
from .memory_issue import INDEX_BITS, OFFSET_BITS, WORD_BITS, WriteIssue
from .parameters import OFF, known_fault, positive

QUEUE_MARGIN = 4  # a queue counts as full this much early
COUNT_BITS = 16
QUEUED = data.StructLayout({"payload": WORD_BITS, "src": 8, "txn": 8, "last": 1, "head": 1})
INFO = data.StructLayout({"index": INDEX_BITS, "length": 3, "src": 8, "txn": 8})

FAULTS = {
    **ISSUE_FAULTS,
    "write-wrong-slot": "data go to the highest open slot of their source, not the lowest",
    "write-any-source": "data go to the lowest open slot, whoever sent them",
    "write-short-burst": "a burst closes one word early",
    "write-ack-lost": "an acknowledgement that becomes ready while another one leaves is lost",
    "write-ack-slot": "acknowledgements of slot 0 are lost",
    "write-slot-early": "a slot is free again as soon as its burst was issued",
}


class WritePath(wiring.Component):
    """`depth` flits of queue, `slots` writes gathered, issued or waiting for their acknowledgement.

    Members: `push`, `flit` in and `full` out, the queue; `ack`, `ack_valid`, `ack_take`; `node`, the port; `size`
    words of memory, the bound of what is written; the write channels of AXI4; `served`: words acknowledged;
    `settled`: all that had arrived in full is in memory; `refused` and `warned`: how many refusals and broken rules
    this cycle brought.
    """

    def __init__(self, *, depth: int, slots: int, words: int, fault: str | None = None):
        positive("WritePath", depth=depth, slots=slots, words=words)
        self.fault = known_fault("WritePath", fault, FAULTS)
        self.depth, self.slots, self.words = depth, slots, words
        super().__init__(
            {
                "push": In(1),
                "flit": In(FLIT),
                "full": Out(1),
                "node": In(8),
                "ack": Out(FLIT),
                "ack_valid": Out(1),
                "ack_take": In(1),
                "awaddr": Out(OFFSET_BITS + INDEX_BITS),
                "awlen": Out(8),
                "awvalid": Out(1),
                "awready": In(1),
                "wdata": Out(WORD_BITS),
                "wlast": Out(1),
                "wvalid": Out(1),
                "wready": In(1),
                "bvalid": In(1),
                "served": Out(COUNT_BITS),
                "settled": Out(1),
                "refused": Out(1),
                "warned": Out(2),
            }
        )

    def elaborate(self, platform):
        m = Module()
        slots = self.slots
        slot_bits = max(1, (slots - 1).bit_length())
        m.submodules.queue = queue = shared(Fifo, width=QUEUED.size, depth=self.depth)
        m.submodules.ready = ready = shared(Fifo, width=slot_bits, depth=slots)
        arriving, head = Signal(QUEUED), Signal(QUEUED)
        m.d.comb += [
            arriving.payload.eq(self.flit.payload),
            arriving.src.eq(Cat(self.flit.src_x, self.flit.src_y)),
            arriving.txn.eq(self.flit.txn),
            arriving.last.eq(self.flit.last),
            arriving.head.eq(self.flit.type == FlitType.MEM_WR_REQ),
            queue.push.eq(self.push),
            queue.push_data.eq(arriving),
            self.full.eq(queue.level >= self.depth - QUEUE_MARGIN),
            head.eq(queue.head),
        ]
        request = data.View(view(MEM_REQ), head.payload)

        # ---- slots ---------------------------------------------------------------------------------------------
        number = range(slots)
        used, open_, void = Signal(slots), Signal(slots), Signal(slots)
        sources = [Signal(8, name=f"source_{i}") for i in number]
        lefts = [Signal(8, name=f"left_{i}") for i in number]  # words to come after the next one
        places = [Signal(range(WRITE_BEATS), name=f"place_{i}") for i in number]  # where the next word goes
        m.submodules.words = words = memory.Memory(shape=WORD_BITS, depth=slots * WRITE_BEATS, init=[])
        m.submodules.info = info = memory.Memory(shape=INFO, depth=slots, init=[])
        put, keep = words.write_port(), info.write_port()

        free = Signal(slots)  # one-hot: the free slot of the lowest number
        own, chosen = Signal(slots), Signal(slots)
        opens, claimed, gathers, completes = Signal(), Signal(), Signal(), Signal()
        index = request.addr[OFFSET_BITS:]
        end = Signal(INDEX_BITS + 1)
        too_long = Signal()
        m.d.comb += [
            free.eq(~used & -(~used)),
            own.eq(Cat(open_[i] & ((sources[i] == head.src) | (self.fault == "write-any-source")) for i in number)),
            chosen.eq(self._highest(own) if self.fault == "write-wrong-slot" else own & -own),
            opens.eq(queue.valid & head.head & free.any()),
            claimed.eq(own.any()),
            gathers.eq(queue.valid & ~head.head & claimed),
            queue.pop.eq(queue.valid & (~head.head | free.any())),
            end.eq(index + request.len + 1),
            too_long.eq(request.len >= WRITE_BEATS),
        ]
        out_of_memory = too_long | (end > self.words)
        lost = queue.valid & ~head.head & ~claimed
        m.d.comb += [
            self.refused.eq((opens & out_of_memory) | lost),
            self.warned.eq(
                (opens & (request.addr[:OFFSET_BITS] != 0)) + ((opens & claimed) | (gathers & (head.last != completes)))
            ),
        ]
        slot = Signal(slot_bits)
        for i in number:
            with m.If(Mux(head.head, free[i], chosen[i])):
                m.d.comb += slot.eq(i)
        closing = Cat(lefts[i] == (1 if self.fault == "write-short-burst" else 0) for i in number)
        place = Signal(range(WRITE_BEATS))
        for i in number:
            with m.If(chosen[i]):
                m.d.comb += place.eq(places[i])
        m.d.comb += [
            completes.eq((closing & chosen).any()),
            put.addr.eq(slot * WRITE_BEATS + place),
            put.data.eq(head.payload),
            put.en.eq(gathers & ~(chosen & void).any()),
            keep.addr.eq(slot),
            keep.data.eq(Cat(index, request.len[:3], head.src, head.txn)),
            keep.en.eq(opens),
            ready.push.eq(gathers & completes),
            ready.push_data.eq(slot),
        ]
        for i in number:
            with m.If(opens & free[i]):
                m.d.sync += [
                    used[i].eq(1), open_[i].eq(1), void[i].eq(out_of_memory), sources[i].eq(head.src),
                    lefts[i].eq(request.len), places[i].eq(0),
                ]  # fmt: skip
            with m.If(gathers & chosen[i]):
                m.d.sync += [lefts[i].eq(lefts[i] - 1), places[i].eq(places[i] + 1)]
                with m.If(completes):
                    m.d.sync += open_[i].eq(0)

        # ---- issue ----------------------------------------------------------------------------------------------
        m.submodules.issue = issue = shared(WriteIssue, fault=self.fault if self.fault in ISSUE_FAULTS else None)
        m.submodules.issued = issued = shared(Fifo, width=slot_bits + 2, depth=slots)
        first = info.read_port(domain="comb")
        get = words.read_port()
        beat = Signal(range(slots * WRITE_BEATS))
        next_beat = Signal(range(slots * WRITE_BEATS))
        next_slot = ready.head
        dropped = void.bit_select(next_slot, 1)
        m.d.comb += [
            first.addr.eq(next_slot),
            issue.index.eq(first.data.index),
            issue.words.eq(first.data.length + 1),
            issue.go.eq(ready.valid & ~dropped & issue.idle),
            ready.pop.eq(ready.valid & (dropped | issue.idle)),
            issued.push.eq(ready.pop),
            issued.push_data.eq(Cat(ready.head, dropped, issue.cut)),
            next_beat.eq(beat + issue.taken),
            get.addr.eq(next_beat),
            get.en.eq(1),
            self.wdata.eq(get.data),
            self.awaddr.eq(issue.awaddr), self.awlen.eq(issue.awlen), self.awvalid.eq(issue.awvalid),
            self.wlast.eq(issue.wlast), self.wvalid.eq(issue.wvalid),
            issue.awready.eq(self.awready), issue.wready.eq(self.wready),
        ]  # fmt: skip
        with m.If(issue.go):
            m.d.comb += next_beat.eq(next_slot * WRITE_BEATS)
        m.d.sync += beat.eq(next_beat)

        # ---- responses: one a cycle, in the order of issue; a dropped write answers itself --------------------------
        m.submodules.acks = acks = shared(Fifo, width=slot_bits, depth=slots)
        waiting = Signal(range(2 * slots + 1))  # responses that came and are not used
        half = Signal()  # of the two responses to a burst that was cut, one was used
        answered_slot, void_one, cut_one = issued.head[:slot_bits], issued.head[slot_bits], issued.head[slot_bits + 1]
        uses, answers = Signal(), Signal()
        lost = {"write-ack-lost": acks.pop, "write-ack-slot": answered_slot == 0}.get(self.fault, OFF)
        m.d.comb += [
            uses.eq(issued.valid & ~void_one & (self.bvalid | (waiting != 0))),
            answers.eq((issued.valid & void_one) | (uses & (half | ~cut_one))),
            issued.pop.eq(answers),
            acks.push.eq(answers & ~lost),
            acks.push_data.eq(answered_slot),
        ]
        m.d.sync += waiting.eq(waiting + self.bvalid - uses)
        with m.If(uses):
            m.d.sync += half.eq(cut_one & ~half)

        done = info.read_port(domain="comb")
        done_slot = acks.head
        m.d.comb += [
            done.addr.eq(done_slot),
            self.ack_valid.eq(acks.valid),
            acks.pop.eq(self.ack_take),
            Cat(self.ack.dst_x, self.ack.dst_y).eq(done.data.src),
            Cat(self.ack.src_x, self.ack.src_y).eq(self.node),
            self.ack.type.eq(FlitType.MEM_WR_ACK),
            self.ack.txn.eq(done.data.txn),
            self.ack.last.eq(1),
            self.settled.eq(~queue.valid & ~ready.valid & ~issued.valid),
        ]
        with m.If(self.ack_take):
            m.d.sync += used.bit_select(done_slot, 1).eq(0)
            with m.If(~void.bit_select(done_slot, 1)):
                m.d.sync += self.served.eq(self.served + done.data.length + 1)
        if self.fault == "write-slot-early":
            with m.If(issue.go):
                m.d.sync += used.bit_select(next_slot, 1).eq(0)
        return m

    def _highest(self, bits):
        out = 0
        for i in range(self.slots):
            out = out | Mux(bits[i] & ~bits[i + 1 :].any() if i + 1 < self.slots else bits[i], 1 << i, 0)
        return out
