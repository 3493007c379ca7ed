"""Read path of a memory port: requests to bursts, bursts to response flits, FP16 entries through the converter.

Timing is `docs/microarchitecture/memory-agent.md`, section "Read path". A request of any kind is one run of
consecutive words; the address generator cuts it into bursts without knowing about entries, and everything
leaves in the order of the requests.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from kohakutpu.formats import mxfp7, words
from kohakutpu.isa.flit import Flit, FlitType, xy
from kohakutpu.isa.memory import ENTRY_WORDS, MEM_REQ, WORD_BYTES
from kohakutpu.model.memory import BURST_WORDS, Channel
from kohakutpu.noc.engine import NEVER, Fifo
from kohakutpu.wording import counted

READ_BUFFER_WORDS = 64  # words requested and not yet taken by the output or by the converter
FLIGHT_DEPTH = 64  # requests whose responses are not complete
SOURCE_WORDS = 8  # words of an FP16 entry
SOURCE_BYTES = SOURCE_WORDS * WORD_BYTES
CONVERTER_LATENCY = 9  # cycles from the one that takes the last source word to the first in which a result can leave
CONVERTED_ENTRIES = 4  # entries inside the converter and its result memory together
BY_ENTRY = MEM_REQ.fields["stream"].mask | MEM_REQ.fields["quant"].mask
RESPONSE = int(FlitType.MEM_RD_RESP)
NOTHING, BUFFER_WORD, CONVERTED_ENTRY = range(3)  # what a response flit frees when it leaves


def convert(source: bytes, layout: str) -> list[int]:
    """FP16 entries (256 bytes each) as operand words in `layout` 'A' or 'B', four 256-bit integers an entry."""
    entries = np.frombuffer(source, dtype="<u2").astype(np.uint16).reshape(-1, mxfp7.LANES, mxfp7.BLOCK)
    return words.to_ints(mxfp7.pack(*mxfp7.quantise(entries), layout))


class Run:
    """A request in flight: what to fetch, whom to answer, and the responses that are known.

    It has `entries` units of `words` words; a plain read is one unit. `responses` holds (first cycle in which
    it can leave, flit, what it frees), `unsent` counts all that are to come. A run outside the memory is
    `void` and answered with zeros.
    """

    def __init__(self, flit: Flit, now: int):
        payload = flit.payload
        get = MEM_REQ.get
        self.source = flit.src
        self.txn = flit.txn
        self.loaded = now
        self.requested = get(payload, "addr")
        self.address = self.requested & -WORD_BYTES
        self.plain = not payload & BY_ENTRY
        self.quant = False
        self.void = False
        self.responses: deque[tuple[int, Flit, int]] = deque()
        if self.plain:
            self.words = self.fetched = self.unsent = get(payload, "len") + 1
            self.entries = 1
            self.destinations = (flit.src,)
        else:
            self._by_entry(payload)
        self.entry = self.word = 0  # the next word of the run to be made a response of
        self._copied: list[Flit] = []  # this entry's words so far

    def _by_entry(self, payload: int) -> None:
        f = MEM_REQ.decode(payload)
        self.quant = bool(f["quant"])
        self.words = f["entry_words"] if 0 < f["entry_words"] < ENTRY_WORDS and not self.quant else ENTRY_WORDS
        self.entries = (f["count"] or 1) if f["stream"] else 1
        self.destinations = (self.source, *((f["peers"] >> 8 * i) & 255 for i in range(f["npeer"])))
        self.fetched = self.entries * (SOURCE_WORDS if self.quant else self.words)
        self.unsent = self.entries * self.words * len(self.destinations)
        if self.quant:
            self.layout = "B" if f["blayout"] else "A"
            self.snapshot = b""  # the whole source when the request was loaded,
            self.change = 0  # good but for pages written after this change,
            self.patches: list[tuple[int, bytes]] = []  # whose bursts are kept here as (offset, data)
            self.results: list[int] | None = None

    def add_words(self, data: list[int], visible: int, pace: int, node: int) -> None:
        """The next words of a run that is not converted; the first can leave in cycle `visible`."""
        if self.plain:
            last = self.words - 1
            source, txn, word = self.source, self.txn, self.word
            for value in data:
                flit = Flit(source, node, RESPONSE, txn, 1 if word == last else 0, 0, value)
                self.responses.append((visible, flit, BUFFER_WORD))
                visible += pace
                word += 1
            self.word = word
            return
        for value in data:
            last = self.word == self.words - 1
            flit = Flit(self.source, node, RESPONSE, (self.txn + self.entry) & 255, int(last), self.word, value)
            self.responses.append((visible, flit, BUFFER_WORD))
            self._copied.append(flit)
            self.word += 1
            if last:
                self._end_entry(NOTHING)
            visible += pace

    def add_entry(self, data: list[int], visible: int, node: int, frees: int) -> None:
        """The next entry, whole; its first word can leave in cycle `visible` and the others behind it."""
        txn = (self.txn + self.entry) & 255
        last = self.words - 1
        for k, value in enumerate(data):
            self._copied.append(Flit(self.source, node, RESPONSE, txn, int(k == last), 0 if self.plain else k, value))
        self.responses.extend((visible, flit, NOTHING) for flit in self._copied)
        self._end_entry(frees)

    def _end_entry(self, frees: int) -> None:
        """Once more for every peer, from the copy that the output keeps; the last flit of all frees `frees`."""
        for peer in self.destinations[1:]:
            self.responses.extend((0, flit._replace(dst=peer), NOTHING) for flit in self._copied)
        if frees:
            cycle, flit, _ = self.responses.pop()
            self.responses.append((cycle, flit, frees))
        self._copied = []
        self.word = 0
        self.entry += 1

    def convert_entry(self) -> list[int]:
        """The operand words of the next entry, converted from exactly the words its bursts returned."""
        if self.results is None:
            self.results = convert(self.snapshot, self.layout)  # all at once: a tenth of the cost
        entry = self.entry
        if self.patches:
            base = entry * SOURCE_BYTES
            source = bytearray(self.snapshot[base : base + SOURCE_BYTES])
            for offset, data in self.patches:
                low, high = max(offset, base), min(offset + len(data), base + SOURCE_BYTES)
                if low < high:
                    source[low - base : high - base] = data[low - offset : high - offset]
            return convert(bytes(source), self.layout)
        return self.results[entry * ENTRY_WORDS : (entry + 1) * ENTRY_WORDS]

    def describe(self) -> str:
        kind = "plain" if self.plain else "converting" if self.quant else "entry"
        total = self.entries * self.words * len(self.destinations)
        to = ", ".join(str(xy(destination)) for destination in self.destinations)
        sent = f"{total - self.unsent} of {counted(total, 'flit')} sent"
        return f"{kind} read at {self.requested:#x} for {to}, txn {self.txn:#04x}: {sent}"


class Burst:
    """A burst of a converted run in the read buffer: word k can be taken from `visible + k * pace` on."""

    __slots__ = ("run", "visible", "words", "taken")

    def __init__(self, run: Run, visible: int, count: int):
        self.run = run
        self.visible = visible
        self.words = count
        self.taken = 0


class ReadPath:
    """The reads of one port at packed coordinate `node`.

    `next_at` is the first cycle in which the next response can be loaded, as far as is known. `refuse(now,
    flit, reason)` is told of every request outside the memory. `room()` is called whenever the queue got shorter.
    """

    def __init__(self, channel: Channel, *, node: int, depth: int, refuse: Callable, room: Callable):
        self.channel = channel
        self.node = node
        self.queue = Fifo(depth)
        self.served = 0
        self.next_at = NEVER
        self.idle_until = NEVER  # no stage before the output has work in earlier cycles
        self._refuse = refuse
        self._room = room
        self._run: Run | None = None  # in the address generator
        self._address = 0
        self._left = 0
        self.flight = Fifo(FLIGHT_DEPTH)
        self._reserved = 0  # words of the read buffer
        self._starved = False  # a stage waits for something the output frees
        self._bursts: deque[tuple[int, Burst]] = deque()  # (raw words ahead of it ever, burst) of converted runs
        self._raw_in = self._raw_out = 0  # raw words ever reserved, ever taken
        self._draining: tuple[int, int, int] | None = None  # (begin, visible, words) going into the converter
        self._converter_free = 0
        self._missing = 0  # source words the entry in the converter still needs
        self._converting = 0  # entries from first source word to last result word

    # ---- fetch ---------------------------------------------------------------------------------------

    def accept(self, flit: Flit, now: int) -> None:
        self.queue.push(flit, now)
        if now + 1 < self.idle_until:
            self.idle_until = now + 1

    def step(self, now: int) -> None:
        """Every stage before the output in cycle `now`; afterwards `idle_until` and `next_at` are right."""
        self._starved = False
        following = self._generate(now) if self._run is not None else NEVER
        if self._run is None:
            following = min(following, self._load(now))
        if self._bursts:
            following = min(following, self._feed_converter(now))
        if self._starved and self._draining is not None:
            following = now + 1  # the converter frees a word a cycle
        self.idle_until = following
        flight = self.flight.items
        if flight and flight[0].responses:
            self.next_at = flight[0].responses[0][0]

    def _load(self, now: int) -> int:
        flit = self.queue.head(now)
        if flit is None:
            return now + 1 if self.queue.items else NEVER
        if self.flight.full(now):
            self._starved = True
            return NEVER
        self.queue.pop(now)
        self._room()
        run = self._run = Run(flit, now)
        self.flight.push(run, now)
        memory = self.channel.memory
        length = run.fetched * WORD_BYTES
        if run.requested != run.address:
            self._refuse(now, flit, "the address is not a multiple of 32; the low bits are dropped", served=True)
        if not memory.contains(run.address, length):
            run.void = True
            for _ in range(run.entries):
                run.add_entry([0] * run.words, now + 1, self.node, NOTHING)
            self._refuse(now, flit, f"{length} bytes at {run.address:#x}: {memory.why_not(run.address)}")
            return now + 1
        self.served += run.entries
        self._address, self._left = run.address, run.fetched
        if run.quant:
            run.snapshot = memory.sample(now, run.address, length)
            run.change = memory.changes
        return now + 1

    def _generate(self, now: int) -> int:
        run = self._run
        if run.loaded == now:
            return now + 1
        if run.void:
            self._run = None
            return NEVER
        channel = self.channel
        if now < channel.next_read:
            return channel.next_read
        address = self._address
        count = BURST_WORDS - address // WORD_BYTES % BURST_WORDS
        if count > self._left:
            count = self._left
        if self._reserved_at(now) + count > READ_BUFFER_WORDS:
            self._starved = True
            return NEVER
        first, data = channel.read(now, address, count)
        self._reserved += count
        if run.quant:
            if channel.memory.changed_since(run.change, address):
                run.patches.append((address - run.address, data))
            self._bursts.append((self._raw_in, Burst(run, first + 1, count)))
        else:
            self._raw_in += count
            beats = [int.from_bytes(data[at : at + WORD_BYTES], "little") for at in range(0, len(data), WORD_BYTES)]
            run.add_words(beats, first + 1, channel.cycles_per_word, self.node)
        self._address = address + count * WORD_BYTES
        self._left -= count
        if self._left == 0:
            self._run = None
            return NEVER
        return max(now + 1, channel.next_read)

    def _reserved_at(self, now: int) -> int:
        """Words of the read buffer that are spoken for at the start of cycle `now`."""
        if self._draining is not None:
            begin, visible, count = self._draining
            taken = min(count, now - begin, -((visible - now) // self.channel.cycles_per_word))
            if taken < count:
                return self._reserved - taken
            self._reserved -= count
            self._draining = None
        return self._reserved

    def _feed_converter(self, now: int) -> int:
        """Start on the words that the oldest burst holds for the current entry; they follow one a cycle."""
        ahead, burst = self._bursts[0]
        if self._raw_out < ahead:
            return NEVER  # words that the output takes are in front
        pace = self.channel.cycles_per_word
        visible = burst.visible + burst.taken * pace
        start = max(self._converter_free, visible)
        if now < start:
            return start
        if self._missing == 0:
            if self._converting == CONVERTED_ENTRIES:
                self._starved = True
                return NEVER
            self._missing = SOURCE_WORDS
            self._converting += 1
        count = min(self._missing, burst.words - burst.taken)
        last = max(now + count - 1, visible + (count - 1) * pace)
        if self._draining is not None:
            self._reserved -= self._draining[2]
        self._draining = (now, visible, count)
        self._converter_free = last + 1
        burst.taken += count
        if burst.taken == burst.words:
            self._bursts.popleft()
        self._missing -= count
        if self._missing == 0:
            burst.run.add_entry(burst.run.convert_entry(), last + CONVERTER_LATENCY, self.node, CONVERTED_ENTRY)
        return last + 1

    # ---- responses -----------------------------------------------------------------------------------

    def take(self, now: int) -> Flit:
        """The next response flit, on its way into the output register; call when `next_at <= now`."""
        flight = self.flight
        run = flight.items[0]
        responses = run.responses
        _, flit, frees = responses.popleft()
        run.unsent -= 1
        if frees:
            self._free(frees, now)
        if not run.unsent:
            flight.pop(now)
            responses = flight.items[0].responses if flight.items else ()
        self.next_at = responses[0][0] if responses else NEVER
        if self._starved:
            self.idle_until = now + 1
        return flit

    def _free(self, what: int, now: int) -> None:
        if what == BUFFER_WORD:
            self._reserved -= 1
            self._raw_out += 1
            if self._bursts and self._raw_out == self._bursts[0][0]:
                self.idle_until = now + 1
        else:
            self._converting -= 1

    def describe(self) -> list[str]:
        lines = []
        if self.queue.items:
            lines.append(f"{counted(len(self.queue), 'read request')} queued")
        if self.flight.items:
            lines.append(f"{len(self.flight)} reads in flight; the oldest: {self.flight.items[0].describe()}")
            lines.append(
                f"{self._reserved} of {READ_BUFFER_WORDS} buffer words reserved, "
                f"{self._converting} of {CONVERTED_ENTRIES} entries in the converter"
            )
        return lines
