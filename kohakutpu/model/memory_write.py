"""Write path of a memory port: slots gather a burst per source, issue in the order they fill, acknowledge.

Timing is `docs/microarchitecture/memory-agent.md`, section "Write path".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heapify, heappop, heappush

from kohakutpu.isa.flit import Flit, FlitType, xy
from kohakutpu.isa.memory import MEM_REQ, WORD_BYTES, WRITE_BEATS
from kohakutpu.model.memory import Channel, pieces
from kohakutpu.noc.engine import NEVER, Fifo
from kohakutpu.wording import counted

SHOWN_BIT = 254  # the bit that planted faults invert: large in FP16 and in a packed significand alike


class Slot:
    """One write from its descriptor to its acknowledgement; `void` when its data are to be dropped."""

    __slots__ = ("index", "source", "txn", "address", "beats", "data", "void", "opened")

    def __init__(self, index: int, flit: Flit, now: int):
        self.index = index
        self.source = flit.src
        self.txn = flit.txn
        self.address = MEM_REQ.get(flit.payload, "addr") & -WORD_BYTES
        self.beats = MEM_REQ.get(flit.payload, "len") + 1
        self.data: list[int] = []
        self.void = False
        self.opened = now


class WritePath:
    """The writes of one port at packed coordinate `node`, with `slots` slots.

    `next_at` is the first cycle in which the next acknowledgement can be loaded, as far as is known.
    `refuse(now, flit, reason)` is told of every flit that is dropped and every broken rule. `room()` is
    called whenever the queue got shorter.
    """

    def __init__(self, channel: Channel, *, node: int, depth: int, slots: int, refuse: Callable, room: Callable,
                 errata: frozenset[str] = frozenset(), faults: frozenset[str] = frozenset()):  # fmt: skip
        self.channel = channel
        self.node = node
        self.queue = Fifo(depth)
        self.served = 0  # words acknowledged
        self.orphans = 0  # data flits that no open write claimed
        self.next_at = NEVER
        self.idle_until = NEVER
        self.slots = slots
        self._refuse = refuse
        self._room = room
        self._errata = errata
        self._faults = set(faults)
        self._free = list(range(slots))
        heapify(self._free)
        self._open: dict[int, list[Slot]] = {}  # by source, lowest index first
        self._ready = Fifo(slots)
        self._acks: deque[tuple[int, Slot]] = deque()  # (first cycle the acknowledgement can leave, slot)
        self._starved = False  # the head descriptor waits for a slot
        self._wedged = False  # erratum write-orphan: the head is data that nothing claims

    def settled(self, now: int) -> bool:
        """Whether at the start of cycle `now` the memory has answered all that had arrived in full."""
        return not self.queue.level(now) and not self._ready.level(now) and now > self.channel.last_response

    def accept(self, flit: Flit, now: int) -> None:
        self.queue.push(flit, now)
        if now + 1 < self.idle_until:
            self.idle_until = now + 1

    def step(self, now: int) -> None:
        """Issue and intake in cycle `now`; afterwards `idle_until` and `next_at` are right."""
        following = self._issue(now)
        self.idle_until = min(following, self._take_in(now))
        if self._ready.pushed == now:
            self.idle_until = now + 1

    def _issue(self, now: int) -> int:
        slot: Slot | None = self._ready.head(now)
        if slot is None:
            return NEVER
        channel = self.channel
        if slot.void:
            response = channel.skip_response(now + 1)
        elif now + 1 < channel.next_write:
            return channel.next_write - 1
        else:
            data = b"".join([word.to_bytes(WORD_BYTES, "little") for word in slot.data])
            if "memory-write-lost" in self._faults:
                self._faults.remove("memory-write-lost")
                data = channel.memory.sample(now, slot.address, len(data))
            begin = now + 1
            for address, length in pieces(slot.address, len(data)):
                offset = address - slot.address
                response = channel.write(begin, address, data[offset : offset + length])
                begin = channel.next_write
        self._ready.pop(now)
        self._acks.append((response + 1, slot))
        self.next_at = self._acks[0][0]
        return now + 1 if self._ready.items else NEVER

    def _take_in(self, now: int) -> int:
        """Serve the head of the queue; the next cycle in which there may be something to do."""
        self._starved = False
        flit = self.queue.head(now)
        if flit is None:
            return now + 1 if self.queue.items else NEVER
        if flit.type == FlitType.MEM_WR_REQ:
            if not self._free:
                self._starved = True
                return NEVER
            self._open_slot(flit, now)
        elif flit.src in self._open:
            self._gather(flit, now)
        elif "write-orphan" in self._errata:
            self._wedged = True
            return NEVER
        else:
            self.orphans += 1
            self._refuse(now, flit, "no write of this source is open; the word is dropped")
        self.queue.pop(now)
        self._room()
        return now + 1 if self.queue.items else NEVER

    def _open_slot(self, flit: Flit, now: int) -> None:
        slot = Slot(heappop(self._free), flit, now)
        memory = self.channel.memory
        length = slot.beats * WORD_BYTES
        if MEM_REQ.get(flit.payload, "addr") != slot.address:
            self._refuse(now, flit, "the address is not a multiple of 32; the low bits are dropped", served=True)
        if slot.beats > WRITE_BEATS:
            slot.void = True
            self._refuse(
                now, flit, f"{counted(slot.beats, 'beat')}, a write has at most {WRITE_BEATS}; its words are dropped"
            )
        elif not memory.contains(slot.address, length):
            slot.void = True
            self._refuse(now, flit, f"{length} bytes at {slot.address:#x}: {memory.why_not(slot.address)}; dropped")
        mine = self._open.setdefault(flit.src, [])
        if mine:
            self._refuse(now, flit, "a write of this source is open already; data go to the lower slot", served=True)
        mine.append(slot)
        mine.sort(key=lambda each: each.index)

    def _gather(self, flit: Flit, now: int) -> None:
        mine = self._open[flit.src]
        slot = mine[0]
        data = flit.payload
        if "memory-write-bit" in self._faults:
            self._faults.remove("memory-write-bit")
            data ^= 1 << SHOWN_BIT
        slot.data.append(data)
        complete = len(slot.data) == slot.beats
        if bool(flit.last) != complete:
            self._refuse(now, flit, f"last = {flit.last} on word {len(slot.data)} of {slot.beats}", served=True)
        if complete:
            del mine[0]
            if not mine:
                del self._open[flit.src]
            self._ready.push(slot, now)

    def take(self, now: int) -> Flit:
        """The next acknowledgement, on its way into the output register; its slot is free from the next cycle."""
        _, slot = self._acks.popleft()
        self.next_at = self._acks[0][0] if self._acks else NEVER
        if not slot.void:
            self.served += slot.beats
        heappush(self._free, slot.index)
        if self._starved:
            self.idle_until = now + 1
        return Flit(slot.source, self.node, FlitType.MEM_WR_ACK, slot.txn, 1, 0, 0)

    def describe(self) -> list[str]:
        lines = []
        for mine in self._open.values():
            lines += [
                f"slot {slot.index}: open write of {xy(slot.source)} txn {slot.txn:#04x} to {slot.address:#x}, "
                f"{len(slot.data)} of {counted(slot.beats, 'word')} since cycle {slot.opened}"
                for slot in mine
            ]
        if self._ready.items:
            lines.append(f"{len(self._ready)} complete writes wait for the memory")
        if self._acks:
            lines.append(f"{len(self._acks)} writes wait for their response or acknowledgement")
        if self.queue.items:
            why = ""
            if self._starved:
                why = f"; the first is a descriptor that waits for one of {counted(self.slots, 'slot')}"
            elif self._wedged:
                source = xy(self.queue.items[0].src)
                why = f"; the first is data of {source} without an open write (erratum write-orphan)"
            lines.append(f"{counted(len(self.queue), 'write flit')} queued{why}")
        return lines
