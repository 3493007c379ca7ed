"""Read path of a memory port: requests to bursts, bursts to response flits, FP16 entries through the converter.

Timing: docs/microarchitecture/memory-agent.md, read path.
"""

from __future__ import annotations

from amaranth import Array, Cat, Module, Mux, Signal
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from kohakutpu.isa.flit import FlitType
from kohakutpu.isa.memory import ENTRY_WORDS, MEM_REQ

from .emit import shared
from .fifo import Fifo
from .link import FLIT, view
from .memory_issue import INDEX_BITS, OFFSET_BITS, WORD_BITS
from .memory_write import COUNT_BITS, QUEUE_MARGIN
from .parameters import known_fault, positive
from .quantiser import FAULTS as QUANTISER_FAULTS
from .quantiser import Quantiser

BUFFER_WORDS = 64  # requested and not yet taken by the output or the converter
FLIGHT_DEPTH = 64  # requests whose responses are not complete
BURST_WORDS = 8  # bursts end at multiples of so many words
RUN_BITS = 12  # words of a run
FIELDS_LOW = MEM_REQ.fields["entry_words"].bits[0][1]  # payload bits below it carry nothing
QUEUED = data.StructLayout({"fields": WORD_BITS - FIELDS_LOW, "src": 8, "txn": 8})
FLIGHT = data.StructLayout(
    {"src": 8, "txn": 8, "plain": 1, "quant": 1, "void": 1, "last_word": 8, "last_entry": 8, "npeer": 2, "peers": 24}
)
TAG = data.StructLayout({"convert": 1, "layout": 1})

FAULTS = {
    **QUANTISER_FAULTS,
    "read-burst-close": "a burst may run one word past a multiple of 256 bytes",
    "read-last-dropped": "the last word of an entry is not marked last",
    "read-txn-stuck": "every entry of a stream carries the request's own txn",
    "read-overbooked": "bursts are issued whether the read buffer has room or not",
    "read-peer-order": "peers are served in reverse order",
}


class ReadPath(wiring.Component):
    """`depth` requests of queue in front of a memory of `words` words.

    Members: `push`, `flit` in and `full` out, the queue; `send`, `send_valid`, `send_take`; `node`, the port; the read
    channels of AXI4, whose beats are always taken; `served`: plain reads and entries fetched; `refused` and
    `warned`: pulses.
    """

    def __init__(self, *, depth: int, words: int, fault: str | None = None):
        positive("ReadPath", depth=depth, words=words)
        self.fault = known_fault("ReadPath", fault, FAULTS)
        self.depth, self.words = depth, words
        super().__init__(
            {
                "push": In(1),
                "flit": In(FLIT),
                "full": Out(1),
                "node": In(8),
                "send": Out(FLIT),
                "send_valid": Out(1),
                "send_take": In(1),
                "araddr": Out(OFFSET_BITS + INDEX_BITS),
                "arlen": Out(8),
                "arvalid": Out(1),
                "arready": In(1),
                "rdata": In(WORD_BITS),
                "rlast": In(1),
                "rvalid": In(1),
                "served": Out(COUNT_BITS),
                "refused": Out(1),
                "warned": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.queue = queue = shared(Fifo, width=QUEUED.size, depth=self.depth)
        m.submodules.flight = flight = shared(Fifo, width=FLIGHT.size, depth=FLIGHT_DEPTH)
        m.submodules.buffer = buffer = shared(Fifo, width=WORD_BITS + TAG.size, depth=BUFFER_WORDS)
        m.submodules.tags = tags = shared(Fifo, width=TAG.size, depth=BUFFER_WORDS)
        converter_fault = self.fault if self.fault in QUANTISER_FAULTS else None
        m.submodules.converter = converter = shared(Quantiser, fault=converter_fault)
        arriving, head = Signal(QUEUED), Signal(QUEUED)
        m.d.comb += [
            arriving.fields.eq(self.flit.payload[FIELDS_LOW:]),
            arriving.src.eq(Cat(self.flit.src_x, self.flit.src_y)),
            arriving.txn.eq(self.flit.txn),
            queue.push.eq(self.push),
            queue.push_data.eq(arriving),
            self.full.eq(queue.level >= self.depth - QUEUE_MARGIN),
            head.eq(queue.head),
        ]
        load, issue = Signal(), Signal()
        burst = Signal(range(BURST_WORDS + 1))
        taken = Signal()  # a word leaves the read buffer
        self._request(m, head, queue, flight, load, tags, burst, issue, taken)

        # ---- read buffer and converter --------------------------------------------------------------------------
        word = buffer.head[:WORD_BITS]
        tag = data.View(TAG, buffer.head[WORD_BITS:])
        m.d.comb += [
            buffer.push.eq(self.rvalid),
            buffer.push_data.eq(Cat(self.rdata, tags.head)),
            tags.pop.eq(self.rvalid & self.rlast),
            converter.word.eq(word),
            converter.layout.eq(tag.layout),
            converter.take.eq(buffer.valid & tag.convert & converter.accepts),
            buffer.pop.eq(taken),
        ]
        self._respond(m, flight, buffer.valid & ~tag.convert, word, converter, taken)
        return m

    def _request(self, m: Module, head, queue, flight, load, tags, burst, issue, taken) -> None:
        """The request register and the address generator."""
        request = Signal(view(MEM_REQ))
        m.d.comb += request.eq(head.fields << FIELDS_LOW)
        entry = Signal(FLIGHT)
        plain = ~request.stream & ~request.quant
        short = ~request.quant & (request.entry_words != 0) & (request.entry_words < ENTRY_WORDS)
        words = Signal(range(ENTRY_WORDS + 1))
        entries, fetched = Signal(9), Signal(RUN_BITS)
        end = Signal(INDEX_BITS + 1)
        index = request.addr[OFFSET_BITS:]
        m.d.comb += [
            words.eq(Mux(short, request.entry_words, ENTRY_WORDS)),
            entries.eq(Mux(request.stream & (request.count != 0), request.count, 1)),
            end.eq(index + fetched),
        ]
        with m.If(plain):
            m.d.comb += fetched.eq(request.len + 1)
        with m.Elif(request.quant):
            m.d.comb += fetched.eq(entries << 3)
        with m.Else():
            with m.Switch(words):
                for count in range(1, ENTRY_WORDS + 1):
                    with m.Case(count):
                        m.d.comb += fetched.eq(entries * count if count == 3 else entries << (count.bit_length() - 1))
        m.d.comb += [
            entry.src.eq(head.src),
            entry.txn.eq(head.txn),
            entry.plain.eq(plain),
            entry.quant.eq(request.quant),
            entry.void.eq(end > self.words),
            entry.last_word.eq(Mux(plain, request.len, words - 1)),
            entry.last_entry.eq(Mux(plain, 0, entries - 1)),
            entry.npeer.eq(Mux(plain, 0, request.npeer)),
            entry.peers.eq(request.peers),
        ]

        valid, void = Signal(), Signal()
        address, left = Signal(INDEX_BITS), Signal(RUN_BITS)
        kind = Signal(TAG)
        reserved = Signal(range(BUFFER_WORDS + BURST_WORDS))
        to_end = Signal(range(BURST_WORDS + 2))
        release = Signal()
        low = address[: (BURST_WORDS - 1).bit_length()]
        m.d.comb += [
            to_end.eq(BURST_WORDS - low),
            burst.eq(Mux(left < to_end, left, to_end)),
            self.arvalid.eq(valid & ~void & (reserved + burst <= BUFFER_WORDS)),
            self.araddr[OFFSET_BITS:].eq(address),
            self.arlen.eq(burst - 1),
            issue.eq(self.arvalid & self.arready),
            release.eq(void | (issue & (burst == left))),
            load.eq(queue.valid & ~flight.full & (~valid | release)),
            queue.pop.eq(load),
            flight.push.eq(load),
            flight.push_data.eq(entry),
            tags.push.eq(issue),
            tags.push_data.eq(kind),
            self.refused.eq(load & entry.void),
            self.warned.eq(load & (request.addr[:OFFSET_BITS] != 0)),
        ]
        if self.fault == "read-burst-close":
            m.d.comb += to_end.eq(BURST_WORDS - low + (low != 0))
        if self.fault == "read-overbooked":
            m.d.comb += self.arvalid.eq(valid & ~void)
        m.d.sync += reserved.eq(reserved + Mux(issue, burst, 0) - taken)
        with m.If(issue):
            m.d.sync += [address.eq(address + burst), left.eq(left - burst)]
        with m.If(release):
            m.d.sync += valid.eq(0)
        with m.If(load):
            m.d.sync += [
                valid.eq(1), void.eq(entry.void), address.eq(index), left.eq(fetched), kind.convert.eq(request.quant),
                kind.layout.eq(request.blayout), self.served.eq(self.served + Mux(entry.void, 0, entries)),
            ]  # fmt: skip

    def _respond(self, m: Module, flight, direct, word, converter, taken) -> None:
        """Responses of the oldest request: unit by unit, to the requester and then to each peer."""
        run = Signal(FLIGHT)
        entry, place, target = Signal(8), Signal(8), Signal(2)
        m.submodules.copy = copy = memory.Memory(shape=WORD_BITS, depth=ENTRY_WORDS, init=[])
        put, get = copy.write_port(), copy.read_port(domain="comb")
        from_buffer, from_copy = Signal(), Signal()
        last_word, last_target, last_entry = Signal(), Signal(), Signal()
        source = Signal()
        out = self.send
        peers = [run.peers[8 * i : 8 * i + 8] for i in range(3)]
        if self.fault == "read-peer-order":
            peers.reverse()
        m.d.comb += [
            run.eq(flight.head),
            from_copy.eq((target != 0) & ~run.quant),
            from_buffer.eq(~run.void & ~run.quant & ~from_copy),
            last_word.eq(place == run.last_word),
            last_target.eq(target == run.npeer),
            last_entry.eq(entry == run.last_entry),
            source.eq(run.void | from_copy | Mux(run.quant, converter.ready, direct)),
            self.send_valid.eq(flight.valid & source),
            taken.eq(converter.take | (self.send_take & from_buffer)),
            converter.index.eq(place),
            converter.free.eq(self.send_take & run.quant & ~run.void & last_word & last_target),
            flight.pop.eq(self.send_take & last_word & last_target & last_entry),
            put.addr.eq(place),
            put.data.eq(word),
            put.en.eq(self.send_take & from_buffer),
            get.addr.eq(place),
            Cat(out.dst_x, out.dst_y).eq(Array([run.src, *peers])[target]),
            Cat(out.src_x, out.src_y).eq(self.node),
            out.type.eq(FlitType.MEM_RD_RESP),
            out.txn.eq(run.txn + (0 if self.fault == "read-txn-stuck" else entry)),
            out.last.eq(last_word & run.plain if self.fault == "read-last-dropped" else last_word),
            out.rsvd.eq(Mux(run.plain, 0, place[:2])),
        ]
        with m.If(~run.void):
            m.d.comb += out.payload.eq(Mux(run.quant, converter.result, Mux(from_copy, get.data, word)))
        with m.If(self.send_take):
            m.d.sync += place.eq(place + 1)
            with m.If(last_word):
                m.d.sync += [place.eq(0), target.eq(target + 1)]
                with m.If(last_target):
                    m.d.sync += [target.eq(0), entry.eq(Mux(last_entry, 0, entry + 1))]
