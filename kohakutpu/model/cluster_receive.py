"""Inbound CU_DATA: one burst at a time into L1 A, L1 B or the accumulator (spec: cluster, inbound CU_DATA).

A burst that does not fit is counted out and acknowledged like any other; nothing of it is written and the
next retirement reports FAULT.
"""

from __future__ import annotations

from enum import Enum

from kohakutpu.isa.flit import Flit, FlitType, node, xy
from kohakutpu.isa.signals import CU_DATA, CU_SIGNAL, SIGNAL_ON_COMPLETE, Buffer, SignalCode
from kohakutpu.wording import counted

GRANULES_PER_TILE = 2
DECODE = CU_DATA.decode


class Burst(Enum):
    """What the receiver does with the data flits it takes."""

    NONE = "no burst open"
    L1 = "L1"
    PEER_WAIT = "accumulator, waiting for the array"
    PEER = "accumulator"
    REJECT = "counted out"


class Receiver:
    """The burst counter; the unit pops the flits and carries out what they ask for.

    `limits` maps a buffer to its size in granules. `acknowledge` is the pending DATA_RECEIVED. `to_source` is a
    fault: acknowledgements ignore the node that the descriptor names.
    """

    def __init__(self, node: int, limits: dict[int, int], *, to_source: bool = False):
        self.node = node
        self.limits = limits
        self.state = Burst.NONE
        self.buf = self.offset = self.left = 0
        self.source = 0
        self.low: int | None = None  # the first granule of a pair
        self.acknowledge: Flit | None = None
        self._answer: Flit | None = None
        self._to_source = to_source

    def open(self, flit: Flit) -> bool:
        """Take a descriptor; False when the burst is rejected."""
        fields = DECODE(flit.payload)
        self.buf, self.offset, self.left = fields["buf"], fields["offset"], fields["len"] + 1
        self.source = flit.src
        self._answer = None
        if fields["flags"] & SIGNAL_ON_COMPLETE:
            target = node(fields["ack_x"], fields["ack_y"])
            if not target or self._to_source:
                target = flit.src
            payload = CU_SIGNAL.encode(code=SignalCode.DATA_RECEIVED, arg=self.buf)
            self._answer = Flit(target, self.node, FlitType.CU_SIGNAL, flit.txn, 1, 0, payload)
        peer = self.buf == Buffer.ACCUMULATOR
        fits = self.offset + self.left <= self.limits.get(self.buf, 0)
        if not fits or (peer and self.offset % GRANULES_PER_TILE):
            self.state = Burst.REJECT
            return False
        self.state = Burst.PEER_WAIT if peer else Burst.L1
        return True

    def advance(self) -> None:
        """One data flit was taken; after the last, the burst closes and its acknowledgement is due."""
        self.offset += 1
        self.left -= 1
        if not self.left:
            self.state = Burst.NONE
            self.low = None  # a dangling half is dropped
            self.acknowledge = self._answer

    def describe(self) -> list[str]:
        if self.state is Burst.NONE:
            return []
        return [
            f"  open burst from {xy(self.source)} into buffer {self.buf}: {self.state.value}, "
            f"{counted(self.left, 'data flit')} to come"
        ]
