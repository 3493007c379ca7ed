"""L1 of the vector core and the two engines that move its words over the link.

Timing: docs/microarchitecture/vector-core.md, blocks, fills, drains.
"""

from __future__ import annotations

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from kohakutpu.isa.flit import PAYLOAD_WIDTH, FlitType, node
from kohakutpu.isa.memory import MEM_REQ, MEM_WR, WRITE_BEATS
from kohakutpu.isa.signals import CU_DATA
from kohakutpu.isa.vector import PEER_RECORD, VDRAIN_PEER

from .emit import shared
from .fifo import Fifo
from .link import FLIT, view
from .parameters import OFF
from .vector_walk import COUNT, DESCRIPTOR, L1_BITS, BurstWalker

READ_BEATS = 256
OUTSTANDING = 32
DRAIN_DEPTH = 16
WRITE_TXN = 0x01
REMOTE = 1  # rsvd[2]


class L1(wiring.Component):
    """`words` words. Port A reads (`a_data` in the next cycle, as the word was before a write of this cycle) or writes;
    port B writes, and wins. `a_wins`, while high, is a deliberate bug: port A's data stays.
    """

    def __init__(self, *, words: int, a_wins: Value = OFF):
        self.words = words
        self.a_wins = a_wins
        address = (words - 1).bit_length()
        super().__init__(
            {
                "a_at": In(address),
                "a_write": In(1),
                "a_word": In(PAYLOAD_WIDTH),
                "a_data": Out(PAYLOAD_WIDTH),
                "b_at": In(address),
                "b_write": In(1),
                "b_word": In(PAYLOAD_WIDTH),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.store = store = memory.Memory(shape=PAYLOAD_WIDTH, depth=self.words, init=[])
        port_a, port_b, read = store.write_port(), store.write_port(), store.read_port()
        both = self.a_write & self.b_write & (self.a_at == self.b_at)
        m.d.comb += [
            port_a.addr.eq(self.a_at), port_a.data.eq(self.a_word), port_a.en.eq(self.a_write),
            port_b.addr.eq(self.b_at), port_b.data.eq(self.b_word), port_b.en.eq(self.b_write),
            read.addr.eq(self.a_at), read.en.eq(1), self.a_data.eq(read.data),
        ]  # fmt: skip
        with m.If(both):
            m.d.comb += [port_a.en.eq(self.a_wins), port_b.en.eq(~self.a_wins)]
        return m


class FillEngine(wiring.Component):
    """VFILLs of the unit at (`x`, `y`) into requests to the port at `port`, and the places of the responses.

    Members: `start`, `descriptor`, `l1` in; `generating`, `open` (VFILLs whose last word has not landed); `request`,
    `request_valid` out and `request_sent` in; `response`, `txn` in and, in the same cycle, `write` and `at` out.
    Deliberate bugs, while high: `page_crossed` of the walker, `unlimited` does not wait for room among the outstanding
    requests.
    """

    def __init__(self, *, x: int, y: int, port: tuple[int, int], l1_words: int, page_crossed: Value = OFF,
                 unlimited: Value = OFF):  # fmt: skip
        self.node = node(x, y)
        self.port = node(*port)
        self.bits = (l1_words - 1).bit_length()
        self.page_crossed = page_crossed
        self.unlimited = unlimited
        super().__init__(
            {
                "start": In(1),
                "descriptor": In(DESCRIPTOR),
                "l1": In(L1_BITS),
                "generating": Out(1),
                "open": Out(range(OUTSTANDING + 2)),
                "request": Out(FLIT),
                "request_valid": Out(1),
                "request_sent": In(1),
                "response": In(1),
                "txn": In(8),
                "write": Out(1),
                "at": Out(self.bits),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.walker = walker = BurstWalker(limit=READ_BEATS, page_crossed=self.page_crossed)
        target = Signal(self.bits)
        waiting = data.StructLayout({"target": self.bits, "count": COUNT, "closes": 1})
        m.submodules.outstanding = outstanding = shared(Fifo, width=waiting.size, depth=OUTSTANDING)
        entering, oldest = Signal(waiting), Signal(waiting)
        read = data.View(view(MEM_REQ), self.request.payload)
        m.d.comb += [
            walker.load.eq(self.start),
            walker.descriptor.eq(self.descriptor),
            self.generating.eq(walker.valid),
            self.request_valid.eq(walker.valid & (self.unlimited | ~outstanding.full)),
            walker.next.eq(self.request_sent),
            entering.target.eq(target),
            entering.count.eq(walker.count),
            entering.closes.eq(walker.last),
            outstanding.push.eq(self.request_sent),
            outstanding.push_data.eq(entering),
            oldest.eq(outstanding.head),
            Cat(self.request.dst_x, self.request.dst_y).eq(self.port),
            Cat(self.request.src_x, self.request.src_y).eq(Const(self.node, 8)),
            self.request.type.eq(FlitType.MEM_RD_REQ),
            self.request.txn.eq(target),
            self.request.last.eq(1),
            read.addr.eq(walker.address),
            read.len.eq(walker.count - 1),
        ]
        with m.If(self.request_sent):
            m.d.sync += target.eq(target + walker.count)
        with m.If(self.start):
            m.d.sync += target.eq(self.l1[: self.bits])

        placed = Signal(COUNT)  # words of the oldest request that have come
        ends = Signal()
        m.d.comb += [
            self.write.eq(self.response & outstanding.valid & (self.txn == oldest.target[:8])),
            self.at.eq((oldest.target + placed)[: self.bits]),
            ends.eq(self.write & (placed + 1 == oldest.count)),
            outstanding.pop.eq(ends),
        ]
        with m.If(self.write):
            m.d.sync += placed.eq(Mux(ends, 0, placed + 1))
        m.d.sync += self.open.eq(self.open + self.start - (ends & oldest.closes))
        return m


class DrainEngine(wiring.Component):
    """VDRAINs of the unit at (`x`, `y`): memory writes to the port at `port`, or one CU_DATA burst to a node.

    Members: `start`, `word` (the instruction), `descriptor`, `length` in; `idle`; `read`, `at` out, an L1 read in this
    cycle, and `read_last`, it is the last of the VDRAIN; `data` in, what was read in the cycle before; `send`,
    `send_valid` out and `send_ready` in. `long_bursts`, while high, is a deliberate bug: bursts grow past what a port
    takes.
    """

    def __init__(self, *, x: int, y: int, port: tuple[int, int], l1_words: int, long_bursts: Value = OFF):
        self.node = node(x, y)
        self.port = node(*port)
        self.bits = (l1_words - 1).bit_length()
        self.limit = WRITE_BEATS + long_bursts
        super().__init__(
            {
                "start": In(1),
                "word": In(view(VDRAIN_PEER)),
                "descriptor": In(DESCRIPTOR),
                "length": In(COUNT),
                "idle": Out(1),
                "read": Out(1),
                "read_last": Out(1),
                "at": Out(self.bits),
                "data": In(PAYLOAD_WIDTH),
                "send": Out(FLIT),
                "send_valid": Out(1),
                "send_ready": In(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.walker = walker = BurstWalker(limit=self.limit)
        m.submodules.queue = queue = shared(Fifo, width=PAYLOAD_WIDTH, depth=DRAIN_DEPTH)
        word, record = self.word, data.View(view(PEER_RECORD), self.descriptor.base)

        # ---- from L1 -----------------------------------------------------------------------------------------
        left = Signal(COUNT)
        held = Signal(range(DRAIN_DEPTH + 1))  # words read or being read, and not sent
        at = Signal(self.bits)
        coming = Signal()
        m.d.comb += [
            self.read.eq((left != 0) & (held < DRAIN_DEPTH)),
            self.read_last.eq(self.read & (left == 1)),
            self.at.eq(at),
            queue.push.eq(coming),
            queue.push_data.eq(self.data),
        ]
        m.d.sync += [coming.eq(self.read), held.eq(held + self.read - queue.pop)]
        with m.If(self.read):
            m.d.sync += [left.eq(left - 1), at.eq(at + 1)]

        # ---- to the link ---------------------------------------------------------------------------------------
        route = Signal(data.StructLayout({"peer": 1, "dst": 8, "txn": 8, "rsvd": 3}))
        descriptor = Signal(view(CU_DATA))
        describing = Signal()
        owed = Signal(COUNT)  # data flits of the open burst
        going = Signal()
        m.d.comb += [
            self.idle.eq(~describing & (owed == 0)),
            self.send_valid.eq(describing | ((owed != 0) & queue.valid)),
            going.eq(self.send_valid & self.send_ready),
            queue.pop.eq(going & ~describing),
            walker.load.eq(self.start & ~word.peer),
            walker.descriptor.eq(self.descriptor),
            walker.next.eq(going & describing & ~route.peer),
        ]
        with m.If(going & describing):
            m.d.sync += [describing.eq(0), owed.eq(Mux(route.peer, descriptor.len + 1, walker.count))]
        with m.Elif(going):
            m.d.sync += owed.eq(owed - 1)
            with m.If(owed == 1):
                m.d.sync += describing.eq(~route.peer & walker.valid)
        with m.If(self.start):
            m.d.sync += [describing.eq(1), left.eq(self.length), at.eq(word.l1)]
            m.d.sync += [
                route.peer.eq(word.peer),
                route.dst.eq(Mux(word.peer, Cat(word.x, word.y), self.port)),
                route.txn.eq(Mux(word.peer, record.fin, WRITE_TXN)),
                route.rsvd.eq(Mux(word.peer & (record.fin != 0), Cat(record.mesh, REMOTE), 0)),
                descriptor.buf.eq(word.buf),
                descriptor.offset.eq(record.offset),
                descriptor.len.eq(self.length - 1),
                descriptor.flags.eq(word.signal),
                descriptor.ack_y.eq(record.ack_y),
                descriptor.ack_x.eq(record.ack_x),
            ]
        flit, write = self.send, Signal(view(MEM_WR))
        m.d.comb += [
            write.addr.eq(walker.address),
            write.len.eq(walker.count - 1),
            Cat(flit.dst_x, flit.dst_y).eq(route.dst),
            Cat(flit.src_x, flit.src_y).eq(Const(self.node, 8)),
            flit.txn.eq(route.txn),
            flit.rsvd.eq(route.rsvd),
        ]
        with m.If(describing):
            m.d.comb += [
                flit.type.eq(Mux(route.peer, FlitType.CU_DATA, FlitType.MEM_WR_REQ)),
                flit.payload.eq(Mux(route.peer, descriptor.as_value(), write.as_value())),
            ]
        with m.Else():
            m.d.comb += [
                flit.type.eq(Mux(route.peer, FlitType.CU_DATA, FlitType.MEM_WR_DATA)),
                flit.payload.eq(queue.head),
                flit.last.eq(owed == 1),
            ]
        return m
