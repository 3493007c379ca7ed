"""Descriptors of the vector core, their walks, and the two engines that move L1 words over the link.

Timing is `docs/microarchitecture/vector-core.md`, sections "Fills" and "Drains".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from kohakutpu.isa.flit import Flit, FlitType, node
from kohakutpu.isa.memory import ADDRESS_WIDTH, MEM_REQ, MEM_WR, WORD_BYTES, WRITE_BEATS
from kohakutpu.isa.signals import CU_DATA
from kohakutpu.isa.vector import DIMS, PEER_RECORD, DescField
from kohakutpu.noc.engine import NEVER
from kohakutpu.wording import counted

ADDRESS_MASK = (1 << ADDRESS_WIDTH) - 1
PAGE = 4096  # no burst crosses one
READ_BEATS = 256
OUTSTANDING = 32  # read requests without their last response
DRAIN_DEPTH = 16  # words between L1 and the link
DRAIN_READ = 2  # from the L1 read to the word at the queue's head
WRITE_TXN = 0x01
REMOTE = 4  # rsvd[2]


class Descriptor:
    """One of A0..A7: `base`, and `dims` as four (stride, bound) with dim 0 innermost."""

    __slots__ = ("base", "dims")

    def __init__(self):
        self.base = 0
        self.dims = ((0, 1),) * DIMS

    def write(self, part: int, value: int, stride: int, bound: int) -> None:
        """What a DESC does; parts 5 to 7 are ignored and a bound of 0 is 1."""
        if part == DescField.BASE:
            self.base = value
        elif part <= DIMS:
            dims = list(self.dims)
            dims[part - 1] = (stride, bound or 1)
            self.dims = tuple(dims)

    @property
    def words(self) -> int:
        """The bound product: the length of a VFILL or VDRAIN."""
        product = 1
        for _, bound in self.dims:
            product *= bound
        return product


@lru_cache(maxsize=4096)
def l1_walk(base: int, dims: tuple[tuple[int, int], ...], steps: int, words: int) -> np.ndarray:
    """The L1 words that `steps` steps of a walk visit, int64[steps]; past the end the last one repeats."""
    total = 1
    for _, bound in dims:
        total *= bound
    index = np.minimum(np.arange(steps), total - 1)
    address = np.full(steps, base, dtype=np.int64)
    for stride, bound in dims:
        address += index % bound * stride
        index //= bound
    address %= words
    address.flags.writeable = False
    return address


def runs(base: int, dims: tuple[tuple[int, int], ...], limit: int) -> Iterator[tuple[int, int]]:
    """The bursts (byte address, words) of a memory walk.

    Words of dim 0 at stride 32 on an aligned address are joined up to `limit` words and up to the end of the
    4 KB page; everything else is a burst of one word.
    """
    (stride, row), outer = dims[0], dims[1:]
    index = [0] * len(outer)
    while True:
        address = base + sum(i * s for i, (s, _) in zip(index, outer, strict=True))
        left = row
        while left:
            address &= ADDRESS_MASK
            count = 1
            if stride == WORD_BYTES and address % WORD_BYTES == 0:
                count = min(left, limit, (PAGE - address % PAGE) // WORD_BYTES)
            yield address, count
            address += count * stride
            left -= count
        for position, (_, bound) in enumerate(outer):
            index[position] += 1
            if index[position] < bound:
                break
            index[position] = 0
        else:
            return


class FillEngine:
    """Turns VFILLs into read requests and places the responses, which arrive in request order."""

    def __init__(self, own: int, port: int, l1_words: int):
        self.own = own
        self.port = port
        self.l1_words = l1_words
        self.open = 0  # VFILLs whose last word has not landed
        self.strays = 0  # responses that no request asked for
        self._runs: Iterator[tuple[int, int]] | None = None
        self._next: tuple[int, int] | None = None
        self._start = NEVER
        self._asked = -1  # when the latest request was sent
        self._target = 0
        self.outstanding: deque[list] = deque()  # [next L1 word, words left, txn, closes a VFILL]

    @property
    def generating(self) -> bool:
        """Requests of the latest VFILL are still to be sent."""
        return self._next is not None

    @property
    def newest_only(self) -> bool:
        """Every VFILL but the newest has landed."""
        return self.open <= 1

    def launch(self, now: int, descriptor: Descriptor, l1: int) -> None:
        """VFILL executed in cycle `now`; the first request may leave in the next."""
        self.open += 1
        self._runs = runs(descriptor.base, descriptor.dims, READ_BEATS)
        self._next = next(self._runs)
        self._target = l1 % self.l1_words
        self._start = now + 1

    def ready(self, now: int) -> bool:
        """A request can be sent in cycle `now`."""
        return self._next is not None and self._start <= now and len(self.outstanding) < OUTSTANDING

    def request(self, now: int) -> Flit:
        """The next read request, sent in cycle `now`."""
        self._asked = now
        address, count = self._next
        target = self._target
        txn = target & 0xFF
        self._target = (target + count) % self.l1_words
        self._next = next(self._runs, None)
        self.outstanding.append([target, count, txn, self._next is None])
        payload = MEM_REQ.encode(addr=address, len=count - 1)
        return Flit(self.port, self.own, FlitType.MEM_RD_REQ, txn, 1, 0, payload)

    def place(self, txn: int, now: int) -> int | None:
        """The L1 word that a response taken in cycle `now` belongs to; None, and counted, when nothing asked for it
        before."""
        asked = len(self.outstanding) - (self._asked == now)
        if not asked or self.outstanding[0][2] != txn:
            self.strays += 1
            return None
        head = self.outstanding[0]
        word = head[0]
        head[0] = (word + 1) % self.l1_words
        head[1] -= 1
        if not head[1]:
            self.outstanding.popleft()
            self.open -= head[3]
        return word

    def describe(self) -> str:
        owed = sum(head[1] for head in self.outstanding)
        return (
            f"{counted(self.open, 'fill')} open, {counted(owed, 'word')} owed in "
            f"{counted(len(self.outstanding), 'request')}, "
            f"{counted(self.strays, 'stray response')}"
        )


class DrainEngine:
    """Reads consecutive L1 words into a queue and sends them as memory writes or as one CU_DATA burst.

    The route is fixed when the VDRAIN starts and holds until its last flit has been sent.
    """

    def __init__(self, own: int, port: int, l1_words: int, *, slip: bool = False):
        self.own = own
        self.port = port
        self.l1_words = l1_words
        self.slip = slip  # a fault: see vector.FAULTS
        self.peer = False
        self.last_read = -1  # L1 cycle of the latest word whose read is scheduled
        self._left = 0  # words whose read is not scheduled
        self._l1 = 0
        self._reads: deque[tuple[int, int]] = deque()  # (L1 cycle, L1 word) not yet captured
        self._words: deque[tuple[int, int]] = deque()  # (first cycle it can be sent, data)
        self._queued = 0  # words read or being read, and not sent
        self._runs: Iterator[tuple[int, int]] | None = None
        self._burst = 0  # data flits owed in the open burst
        self._header: Flit | None = None  # descriptor flit not yet sent
        self._start = 0
        self._route = (0, 0, 0)  # dst, txn, rsvd

    @property
    def idle(self) -> bool:
        """Nothing to read or send."""
        return self._header is None and not self._burst

    @property
    def reading(self) -> bool:
        """L1 reads are still to be scheduled: the queue to the link is full."""
        return self._left > 0

    def to_memory(self, now: int, descriptor: Descriptor, l1: int) -> None:
        """A memory VDRAIN executed in cycle `now`."""
        self.peer = False
        self._route = (self.port, WRITE_TXN, 0)
        self._runs = self._slipped(descriptor) if self.slip else runs(descriptor.base, descriptor.dims, WRITE_BEATS)
        self._open_burst()
        self._begin(now, l1, descriptor.words)

    def to_peer(self, now: int, descriptor: Descriptor, l1: int, x: int, y: int, buf: int, signal: int) -> None:
        """A peer VDRAIN executed in cycle `now`; the descriptor's base is a packed record."""
        record = PEER_RECORD.decode(descriptor.base)
        count = descriptor.words
        self.peer = True
        self._route = (node(x, y), 0, 0)
        if record["fin"]:
            self._route = (node(x, y), record["fin"], REMOTE | record["mesh"])
        self._runs = iter(())
        self._burst = count
        payload = CU_DATA.encode(
            buf=buf, offset=record["offset"], len=count - 1, flags=signal, ack_y=record["ack_y"], ack_x=record["ack_x"]
        )
        self._header = self._flit(FlitType.CU_DATA, 0, payload)
        self._begin(now, l1, count)

    def _begin(self, now: int, l1: int, words: int) -> None:
        self._start = now + 1
        self._l1 = l1 % self.l1_words
        self._left = words
        self.last_read = now
        self._schedule(now)

    def _slipped(self, descriptor: Descriptor) -> Iterator[tuple[int, int]]:
        for number, (address, count) in enumerate(runs(descriptor.base, descriptor.dims, WRITE_BEATS)):
            yield address + (WORD_BYTES if number else 0), count

    def _open_burst(self) -> None:
        run = next(self._runs, None)
        if run is not None:
            self._burst = run[1]
            self._header = self._flit(FlitType.MEM_WR_REQ, 0, MEM_WR.encode(addr=run[0] & ADDRESS_MASK, len=run[1] - 1))

    def _flit(self, kind: FlitType, last: int, payload: int) -> Flit:
        dst, txn, rsvd = self._route
        return Flit(dst, self.own, kind, txn, last, rsvd, payload)

    def _schedule(self, now: int) -> None:
        """Give an L1 cycle, the earliest being `now` + 1, to every word the queue has room for."""
        while self._left and self._queued < DRAIN_DEPTH:
            self.last_read = max(self.last_read, now) + 1
            self._reads.append((self.last_read, self._l1))
            self._l1 = (self._l1 + 1) % self.l1_words
            self._left -= 1
            self._queued += 1

    def capture(self, now: int, read) -> None:
        """Take the words whose L1 cycle has come; `read(word)` gives the 256 bits that L1 holds."""
        reads = self._reads
        while reads and reads[0][0] <= now:
            cycle, word = reads.popleft()
            self._words.append((cycle + DRAIN_READ, read(word)))

    def sendable(self, now: int) -> int:
        """The first cycle, from `now` on, in which a flit can be sent; NEVER when idle."""
        if self._header is not None:
            return max(now, self._start)
        if not self._burst:
            return NEVER
        if self._words:
            return max(now, self._words[0][0])
        return max(now, self._reads[0][0] + DRAIN_READ)

    def flit(self, now: int) -> Flit:
        """Take the next flit; only when `sendable` says `now` and the words of earlier cycles are captured."""
        if self._header is not None:
            flit, self._header = self._header, None
            return flit
        data = self._words.popleft()[1]
        self._burst -= 1
        self._queued -= 1
        last = self._burst == 0
        flit = self._flit(FlitType.CU_DATA if self.peer else FlitType.MEM_WR_DATA, int(last), data)
        if last:
            self._open_burst()
        self._schedule(now)
        return flit

    def describe(self) -> str:
        if self.idle:
            return "drain idle"
        where = "a node" if self.peer else "memory"
        owed = counted(self._burst, "flit")
        return f"drain to {where}: {owed} owed in the open burst, {counted(self._left, 'word')} unread"
