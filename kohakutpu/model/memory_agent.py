"""The memory agent: an engine behind each memory port, the memory, the host window (spec: memory agent).

Timing is `docs/microarchitecture/memory-agent.md`. `MagPort` (model/mag.py) owns the mesh side and clocks the
engine; reads and writes are in `memory_read` and `memory_write`.
"""

from __future__ import annotations

from collections.abc import Sequence

from kohakutpu.isa.flit import Flit, FlitType, type_name, xy
from kohakutpu.machine import Machine
from kohakutpu.model.mag import MagPort
from kohakutpu.model.memory import Channel, Memory
from kohakutpu.model.memory_read import ReadPath
from kohakutpu.model.memory_window import HostWindow
from kohakutpu.model.memory_write import SHOWN_BIT, WritePath
from kohakutpu.model.mover import MemoryMover
from kohakutpu.noc.engine import Engine
from kohakutpu.wording import counted

QUEUE_MARGIN = 4  # a queue counts as full this much early
NOTES_KEPT = 16

FAULTS = {
    "memory-read-bit": "one bit of the first word that a memory port returns is inverted",
    "memory-last": "the first MEM_RD_RESP that should carry last does not",
    "memory-word-index": "word 1 of the first entry that a memory port returns is labelled word 2",
    "memory-ack-lost": "the first write acknowledgement of a memory port is not sent",
    "memory-write-bit": "one bit of the first word written through a memory port is inverted",
    "memory-late": "the first read burst of a memory port takes a cycle longer",
    "memory-write-lost": "the first write burst of a memory port is acknowledged and not stored",
}


class MemoryEngine:
    """Reads and writes of one port: intake, arbitration of the output, and a record of what was refused.

    `notes` keeps the first descriptions of requests that were refused or broke a rule, `refused` counts them
    all, `warned` those that were served nevertheless.
    """

    def __init__(self, port: MagPort, channel: Channel, *, queue_depth: int, write_slots: int,
                 errata: frozenset[str], faults: frozenset[str]):  # fmt: skip
        self.port = port
        self.channel = channel
        self.limit = queue_depth - QUEUE_MARGIN
        self.refused = 0
        self.warned = 0
        self.notes: list[str] = []
        self.read_path = ReadPath(channel, node=port.node, depth=queue_depth, refuse=self._refuse, room=self._room)
        self.write_path = WritePath(
            channel, node=port.node, depth=queue_depth, slots=write_slots, refuse=self._refuse, room=self._room,
            errata=errata, faults=faults,
        )  # fmt: skip
        self._faults = set(faults) & FAULTS.keys()
        self._always = not port.engine.skip
        self._inside = False  # the last flit sent was not the last of its unit: nothing may come between
        self._owed = False  # an acknowledgement gave way to a read at the last boundary

    @property
    def reads(self) -> int:
        """Plain reads and entries fetched since reset."""
        return self.read_path.served

    @property
    def writes(self) -> int:
        """Words in memory and acknowledged since reset: what a host waits for before it reads a result."""
        return self.write_path.served

    def accept(self, flit: Flit, now: int) -> bool:
        reads, writes = self.read_path, self.write_path
        if len(reads.queue.items) >= self.limit or len(writes.queue.items) >= self.limit:
            return False
        (reads if flit.type == FlitType.MEM_RD_REQ else writes).accept(flit, now)
        self.port.wake(now + 1)
        return True

    def _room(self) -> None:
        self.port.in_link.retry()

    def _refuse(self, now: int, flit: Flit, reason: str, *, served: bool = False) -> None:
        if served:
            self.warned += 1
        else:
            self.refused += 1
        if len(self.notes) < NOTES_KEPT:
            self.notes.append(f"cycle {now}: {type_name(flit.type)} of {xy(flit.src)} txn {flit.txn:#04x}: {reason}")

    def step(self, now: int) -> int:
        reads, writes, port = self.read_path, self.write_path, self.port
        if now >= reads.idle_until or self._always:
            reads.step(now)
        if now >= writes.idle_until or self._always:
            writes.step(now)
        if port.may_send:
            self._send(now, reads, writes)
        ready = reads.next_at if self._inside else min(reads.next_at, writes.next_at)
        following = min(reads.idle_until, writes.idle_until)
        if ready <= now + 1 and port.out.flit is not None:
            port.wait_to_send()
        elif ready < following:
            following = ready if ready > now else now + 1
        return following

    def _send(self, now: int, reads: ReadPath, writes: WritePath) -> None:
        """Load the output register: data before acknowledgements, which are passed over once at most."""
        ack = writes.next_at <= now and not self._inside
        if reads.next_at <= now and not (ack and self._owed):
            if ack:
                self._owed = True
            flit = reads.take(now)
            self._inside = not flit.last
            if self._faults:
                flit = self._spoil_response(flit)
            self.port.send(flit)
        elif ack:
            self._owed = False
            flit = writes.take(now)
            if "memory-ack-lost" in self._faults:
                self._faults.remove("memory-ack-lost")
            else:
                self.port.send(flit)

    def _spoil_response(self, flit: Flit) -> Flit:
        faults = self._faults
        if "memory-read-bit" in faults:
            faults.remove("memory-read-bit")
            flit = flit._replace(payload=flit.payload ^ 1 << SHOWN_BIT)
        if "memory-last" in faults and flit.last:
            faults.remove("memory-last")
            flit = flit._replace(last=0)
        if "memory-word-index" in faults and flit.rsvd == 1:
            faults.remove("memory-word-index")
            flit = flit._replace(rsvd=2)
        return flit

    def describe(self) -> list[str]:
        lines = self.read_path.describe() + self.write_path.describe()
        if self.refused or self.warned:
            lines.append(f"{counted(self.refused, 'request')} refused, {self.warned} broke a rule and were served:")
            lines += [f"  {note}" for note in self.notes]
        return lines


class MemoryAgent:
    """Everything behind the memory ports of a machine."""

    def __init__(self, memory: Memory, engines: Sequence[MemoryEngine], window: HostWindow, mover: MemoryMover):
        self.memory = memory
        self.engines = tuple(engines)
        self.window = window
        self.mover = mover

    @property
    def refused(self) -> int:
        """Requests refused at any port since reset; a run in which this is not 0 has gone wrong."""
        return sum(engine.refused for engine in self.engines)

    @property
    def notes(self) -> list[str]:
        """What was refused or broke a rule, the first of each port."""
        return [f"{engine.port.name}: {note}" for engine in self.engines for note in engine.notes]

    @property
    def channels(self) -> list[Channel]:
        """The memory's requesters, ports first: `words_read` and `words_written` of each."""
        return [*(engine.channel for engine in self.engines), self.window.channel, self.mover.channel]


def build_memory_agent(engine: Engine, machine: Machine, ports: Sequence[MagPort], *,
                       errata: frozenset[str] = frozenset(), faults: frozenset[str] = frozenset(),
                       memory: Memory | None = None, latency_seed: int | None = None) -> MemoryAgent:  # fmt: skip
    """Put an engine behind each of `ports` (as listed in `machine.ports`) and return what they share.

    `memory` is the store to keep over a reset. With `latency_seed` every burst's latency is drawn from
    1..machine.memory.latency, equally for equal seeds.
    """
    timing = machine.memory
    store = Memory(engine, timing.bytes) if memory is None else memory

    def channel(requester: int) -> Channel:
        return Channel(
            store, requester, latency=timing.latency, cycles_per_word=timing.cycles_per_word, seed=latency_seed,
            late="memory-late" in faults and requester < len(ports),
        )  # fmt: skip

    engines = []
    for index, (port, site) in enumerate(zip(ports, machine.ports, strict=True)):
        port.memory = MemoryEngine(
            port, channel(index), queue_depth=site.queue_depth, write_slots=site.write_slots,
            errata=errata, faults=faults,
        )  # fmt: skip
        engines.append(port.memory)
    window = HostWindow(engine, "window", channel(len(ports)), [each.write_path for each in engines])
    mover = MemoryMover(engine, "mover", channel(len(ports) + 1), faults=faults)
    return MemoryAgent(store, engines, window, mover)


__all__ = ["FAULTS", "MemoryAgent", "MemoryEngine", "build_memory_agent"]
