"""Results on their way out: batches, the result queue, and bursts of eight (spec: cluster, DRAIN).

A batch is what one explicit DRAIN or one emitting GEMM produces. Its granules enter the result queue in
order; the writer sends each burst as a descriptor and up to eight data flits, cut through the queue, because
the batch's length tells every burst's length beforehand.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from kohakutpu.isa.cluster import Instruction
from kohakutpu.isa.flit import Flit, FlitType, node
from kohakutpu.isa.memory import ADDRESS_WIDTH, MEM_WR, WORD_BYTES
from kohakutpu.isa.signals import CU_DATA, Buffer

from .cluster_sweep import EMIT_VALID, QUEUE, SEND_VALID

WBURST = 8
RESULT_QUEUE = 128  # granules issued and not yet sent
WRITE_TXN = 0x02
INDEX_MASK = 0xFFFF  # the granule index has 16 bits
REMOTE = 0b100  # rsvd bit 2
GRANULE_BITS = 5


@dataclass(frozen=True)
class Destination:
    """Where a batch goes: the destination fields of a DRAIN or an emitting GEMM."""

    inst: Instruction
    source: int
    port: int

    def flit(self, kind: FlitType, payload: int, last: int) -> Flit:
        inst = self.inst
        target = node(inst.dst_x, inst.dst_y) if inst.dnode else self.port
        if inst.dfin:
            return Flit(target, self.source, kind, inst.dfin, last, REMOTE | inst.dmesh, payload)
        return Flit(target, self.source, kind, WRITE_TXN, last, 0, payload)

    def descriptor(self, first: int, length: int) -> Flit:
        """The first flit of a burst of `length` granules from granule `first` on."""
        inst = self.inst
        first &= INDEX_MASK
        if not inst.dnode:
            address = (inst.addr + WORD_BYTES * first) & ((1 << ADDRESS_WIDTH) - 1)
            return self.flit(FlitType.MEM_WR_REQ, MEM_WR.encode(addr=address, len=length - 1), 0)
        payload = CU_DATA.encode(
            buf=inst.dbuf, offset=((inst.addr >> GRANULE_BITS) + first) & INDEX_MASK, len=length - 1,
            flags=inst.dflags, ack_y=inst.dack_y, ack_x=inst.dack_x,
        )  # fmt: skip
        return self.flit(FlitType.CU_DATA, payload, 0)

    def data(self, word: int, last: int) -> Flit:
        return self.flit(FlitType.CU_DATA if self.inst.dnode else FlitType.MEM_WR_DATA, word, last)


def sends_floats(inst: Instruction) -> bool:
    """An explicit DRAIN that leaves as accumulator words, two granules a sub-tile."""
    return bool(inst.dnode) and inst.dbuf == Buffer.ACCUMULATOR


class Batch:
    """`total` granules in order; `word(i, now)` is granule i, which cycle `now` sees in the result queue.

    `destination` is None while an emitting GEMM's batch is not bound (`own` is then the GEMM's).
    """

    def __init__(self, total: int, word: Callable[[int, int], int], own: Destination, *, fused: bool):
        self.total = total
        self.word = word
        self.own = own
        self.fused = fused
        self.destination = None if fused else own
        self.taken = 0

    def bind(self, destination: Destination | None = None) -> None:
        """Fix the destination for good; the batch's own one when none is given. Later calls change nothing."""
        if self.destination is None:
            self.destination = self.own if destination is None else destination


class Writer:
    """The result queue and the burst sender.

    `outstanding` counts granules issued and not sent; `visible` holds the cycles in which those that were
    issued can be sent, oldest first. `last_kept` False is a fault: the final data flit leaves with last = 0.
    """

    def __init__(self, *, last_kept: bool = True):
        self.batch: Batch | None = None
        self.outstanding = 0
        self.visible: deque[int] = deque()
        self.left = 0  # data flits that the open burst still needs
        self.sent: Flit | None = None  # the last flit given to the output register
        self._last = int(last_kept)

    @property
    def idle(self) -> bool:
        """No granule of any batch is still to be sent."""
        return self.batch is None or self.batch.taken == self.batch.total

    def issue_emit(self, command: int) -> None:
        """An EMIT command in cycle `command`."""
        self.outstanding += 1
        self.visible.append(command + EMIT_VALID + QUEUE)

    def issue_send(self, command: int) -> None:
        self.outstanding += 2
        self.visible += (command + SEND_VALID + QUEUE, command + SEND_VALID + 1 + QUEUE)

    def next_flit(self, now: int) -> bool:
        """A flit can be sent in cycle `now`, as far as the writer is concerned."""
        return bool(self.visible) and self.visible[0] <= now and self.batch.destination is not None

    def pop(self, now: int) -> Flit:
        """The next flit: a descriptor, or the oldest granule, which is thereby taken."""
        batch = self.batch
        if not self.left:
            self.left = min(WBURST, batch.total - batch.taken)
            self.sent = batch.destination.descriptor(batch.taken, self.left)
            return self.sent
        self.left -= 1
        self.visible.popleft()
        self.outstanding -= 1
        last = self._last if self.left == 0 else 0
        self.sent = batch.destination.data(batch.word(batch.taken, now), last)
        batch.taken += 1
        return self.sent


class Drain:
    """The command counter of one explicit DRAIN that was started in cycle `start`: a command a cycle, or every two
    cycles for SEND, held while the bound leaves no room."""

    def __init__(self, inst: Instruction, start: int):
        self.floats = sends_floats(inst)
        self.subtiles = max(inst.n, 1)
        self.issued = 0
        self.start = start
        self.next = start + 1
        self.last_command = start

    @property
    def issuing(self) -> bool:
        return self.issued < self.subtiles

    def step(self, now: int, outstanding: int, writer: Writer) -> bool:
        """Issue the command that is due in cycle `now`, if there is room; `outstanding` is the start-of-cycle count."""
        if not self.issuing or now < self.next or outstanding + 1 + self.floats > RESULT_QUEUE:
            return False
        if self.floats:
            writer.issue_send(now)
        else:
            writer.issue_emit(now)
        self.issued += 1
        self.last_command = now
        self.next = now + 1 + self.floats
        return True
