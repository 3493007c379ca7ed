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

READ_BUFFER_WORDS = 64  # words requested and not yet taken by the output or by the converter
FLIGHT_DEPTH = 64  # requests whose responses are not complete
SOURCE_WORDS = 8  # words of an FP16 entry
SOURCE_BYTES = SOURCE_WORDS * WORD_BYTES
CONVERTER_LATENCY = 9  # cycles from the one that takes the last source word to the first in which a result can leave
CONVERTED_ENTRIES = 4  # entries inside the converter and its result memory together


def convert(source: bytes, layout: str) -> list[int]:
    """FP16 entries (256 bytes each) as operand words in `layout` 'A' or 'B', four 256-bit integers an entry."""
    entries = np.frombuffer(source, dtype="<u2").astype(np.uint16).reshape(-1, mxfp7.LANES, mxfp7.BLOCK)
    return words.to_ints(mxfp7.pack(*mxfp7.quantise(entries), layout))


class Run:
    """A request in flight: what to fetch, whom to answer, and how far the answer has got.

    `words` a response unit has (a plain read is one unit), `entries` units there are, `void` when the
    address is outside the memory: the answer is then zeros.
    """

    __slots__ = (
        "source", "plain", "quant", "layout", "words", "entries", "destinations", "txn", "void", "loaded", "address",
        "entry", "word", "copy", "snapshot", "change", "patches", "results", "converted",
    )  # fmt: skip

    def __init__(self, flit: Flit, now: int):
        payload = flit.payload
        get = MEM_REQ.get
        self.source = flit.src
        self.txn = flit.txn
        self.loaded = now
        self.address = get(payload, "addr") & -WORD_BYTES
        self.quant = bool(get(payload, "quant"))
        stream = get(payload, "stream")
        self.plain = not (stream or self.quant)
        if self.plain:
            self.words = get(payload, "len") + 1
            self.entries = 1
            self.destinations = (flit.src,)
        else:
            asked = get(payload, "entry_words")
            self.words = asked if 0 < asked < ENTRY_WORDS and not self.quant else ENTRY_WORDS
            self.entries = get(payload, "count") or 1 if stream else 1
            peers = get(payload, "peers")
            self.destinations = (flit.src, *((peers >> 8 * i) & 255 for i in range(get(payload, "npeer"))))
        self.layout = "B" if self.quant and get(payload, "blayout") else "A"
        self.void = False
        self.entry = self.word = self.copy = 0
        self.snapshot = b""  # the whole source when the request was loaded,
        self.change = 0  # good but for pages written after this change,
        self.patches: list[tuple[int, bytes]] = []  # whose bursts are kept here as (offset, data)
        self.results: list[int] | None = None
        self.converted = 0

    @property
    def fetched_words(self) -> int:
        return self.entries * (SOURCE_WORDS if self.quant else self.words)

    def next_result(self) -> list[int]:
        """The operand words of the next entry, converted from exactly the words its bursts returned."""
        if self.results is None:
            self.results = convert(self.snapshot, self.layout)  # all at once: a tenth of the cost
        entry, self.converted = self.converted, self.converted + 1
        found = self.results[entry * ENTRY_WORDS : (entry + 1) * ENTRY_WORDS]
        if self.patches:
            base = entry * SOURCE_BYTES
            source = bytearray(self.snapshot[base : base + SOURCE_BYTES])
            for offset, data in self.patches:
                low, high = max(offset, base), min(offset + len(data), base + SOURCE_BYTES)
                if low < high:
                    source[low - base : high - base] = data[low - offset : high - offset]
            found = convert(bytes(source), self.layout)
        return found

    def describe(self) -> str:
        kind = "plain" if self.plain else "converted" if self.quant else "entry"
        return (
            f"{kind} read for {xy(self.source)} txn {self.txn:#04x}: {self.entry} of {self.entries} units answered, "
            f"next word {self.word} of {self.words} for {xy(self.destinations[self.copy])}"
        )


class Burst:
    """A burst in the read buffer: word k can be taken from `visible + k * pace` on."""

    __slots__ = ("run", "visible", "words", "taken", "data")

    def __init__(self, run: Run, visible: int, count: int, data: list[int] | None):
        self.run = run
        self.visible = visible
        self.words = count
        self.taken = 0
        self.data = data  # None for a converted run, which keeps its bytes itself


class ReadPath:
    """The reads of one port at packed coordinate `node`.

    `refuse(now, flit, reason)` is told of every request outside the memory. `room()` is called whenever the
    queue got shorter.
    """

    def __init__(self, channel: Channel, *, node: int, depth: int, refuse: Callable, room: Callable):
        self.channel = channel
        self.node = node
        self.queue = Fifo(depth)
        self.served = 0
        self.idle_until = NEVER  # no stage before the output has work in earlier cycles
        self._skip = channel.memory.engine.skip
        self._refuse = refuse
        self._room = room
        self._run: Run | None = None  # in the address generator
        self._address = 0
        self._left = 0
        self._flight = Fifo(FLIGHT_DEPTH)
        self._buffer: deque[Burst] = deque()
        self._reserved = 0
        self._starved = False  # a stage waits for something the output frees
        self._draining: tuple[int, int, int] | None = None  # (begin, visible, words) going into the converter
        self._converter_free = 0
        self._missing = 0  # source words the entry in the converter still needs
        self._converting = 0  # entries from first source word to last result word
        self._results: deque[tuple[int, list[int]]] = deque()  # (first cycle they can leave, operand words)
        self._copied: list[int] = []  # words of an entry that peers still want

    # ---- fetch ---------------------------------------------------------------------------------------

    def accept(self, flit: Flit, now: int) -> None:
        self.queue.push(flit, now)
        if now + 1 < self.idle_until:
            self.idle_until = now + 1

    def step(self, now: int) -> None:
        """Every stage before the output in cycle `now`; afterwards `idle_until` is right."""
        if now < self.idle_until and self._skip:
            return
        self._starved = False
        following = self._generate(now) if self._run is not None else NEVER
        if self._run is None:
            following = min(following, self._load(now))
        if self._buffer and self._buffer[0].run.quant:
            following = min(following, self._feed_converter(now))
        if self._starved and self._draining is not None:
            following = now + 1  # the converter frees a word a cycle
        self.idle_until = following

    def _load(self, now: int) -> int:
        flit = self.queue.head(now)
        if flit is None:
            return now + 1 if self.queue.items else NEVER
        if self._flight.full(now):
            self._starved = True
            return NEVER
        self.queue.pop(now)
        self._room()
        run = self._run = Run(flit, now)
        self._flight.push(run, now)
        memory = self.channel.memory
        length = run.fetched_words * WORD_BYTES
        if MEM_REQ.get(flit.payload, "addr") != run.address:
            self._refuse(now, flit, "the address is not a multiple of 32; the low bits are dropped", served=True)
        if not memory.contains(run.address, length):
            run.void = True
            self._refuse(now, flit, f"{length} bytes at {run.address:#x}: {memory.why_not(run.address)}")
        else:
            self.served += run.entries
            self._address, self._left = run.address, run.fetched_words
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
        count = min(self._left, BURST_WORDS - address // WORD_BYTES % BURST_WORDS)
        if self._reserved_at(now) + count > READ_BUFFER_WORDS:
            self._starved = True
            return NEVER
        first, data = channel.read(now, address, count)
        self._reserved += count
        if run.quant:
            if channel.memory.changed_since(run.change, address, len(data)):
                run.patches.append((address - run.address, data))
            beats = None
        else:
            beats = [int.from_bytes(data[at : at + WORD_BYTES], "little") for at in range(0, len(data), WORD_BYTES)]
        self._buffer.append(Burst(run, first + 1, count, beats))
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
        """Start on the words that the head burst holds for the current entry; they follow one a cycle."""
        burst = self._buffer[0]
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
            self._buffer.popleft()
        self._missing -= count
        if self._missing == 0:
            self._results.append((last + CONVERTER_LATENCY, burst.run.next_result()))
        return last + 1

    # ---- responses -----------------------------------------------------------------------------------

    def ready_at(self) -> int:
        """First cycle in which the next response flit can be loaded, as far as is known."""
        flight = self._flight.items
        if not flight:
            return NEVER
        run = flight[0]
        if run.void:
            return run.loaded + 1
        if run.quant:
            if run.word or run.copy:
                return 0
            return self._results[0][0] if self._results else NEVER
        if run.copy:
            return 0
        if not self._buffer:
            return NEVER
        burst = self._buffer[0]
        return burst.visible + burst.taken * self.channel.cycles_per_word

    def take(self, now: int) -> Flit:
        """The next response flit, on its way into the output register; call when `ready_at() <= now`."""
        run = self._flight.items[0]
        word = run.word
        if run.void:
            data = 0
        elif run.quant:
            data = self._results[0][1][word]
        elif run.copy:
            data = self._copied[word]
        else:
            burst = self._buffer[0]
            data = burst.data[burst.taken]
            burst.taken += 1
            if burst.taken == burst.words:
                self._buffer.popleft()
                if self._buffer and self._buffer[0].run.quant:
                    self.idle_until = now + 1
            self._reserved -= 1
            if len(run.destinations) > 1:
                self._copied.append(data)
        last = word == run.words - 1
        flit = Flit(
            run.destinations[run.copy], self.node, FlitType.MEM_RD_RESP, run.txn, int(last), 0 if run.plain else word, data
        )
        if last:
            self._end_of_copy(run, now)
        else:
            run.word = word + 1
        if self._starved:
            self.idle_until = now + 1
        return flit

    def _end_of_copy(self, run: Run, now: int) -> None:
        run.word = 0
        run.copy += 1
        if run.copy < len(run.destinations):
            return
        run.copy = 0
        self._copied.clear()
        run.entry += 1
        run.txn = (run.txn + 1) & 255
        if run.quant and not run.void:
            self._results.popleft()
            self._converting -= 1
        if run.entry == run.entries:
            self._flight.pop(now)

    def describe(self) -> list[str]:
        lines = []
        if self.queue.items:
            lines.append(f"{len(self.queue)} read requests queued")
        if self._flight.items:
            lines.append(f"{len(self._flight)} reads in flight; the oldest is a {self._flight.items[0].describe()}")
            lines.append(
                f"{self._reserved} of {READ_BUFFER_WORDS} buffer words reserved, "
                f"{self._converting} of {CONVERTED_ENTRIES} entries in the converter"
            )
        return lines
