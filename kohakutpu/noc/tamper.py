"""Injectable faults of the network: flits that change or disappear as they enter the mesh."""

from __future__ import annotations

from kohakutpu.isa.flit import Flit, FlitType

FAULTS = {
    "noc-flipped-bit": "bit 3 of the payload of every sender's second MEM_WR_DATA flit is inverted",
    "noc-lost-tail": "the last data flit of every sender's second write burst vanishes",
}
FLIPPED = 1 << 3


class Tamper:
    """A sink in front of `sink`, a router input that faces an endpoint, which lets the faults have their way."""

    def __init__(self, sink, faults: frozenset[str]):
        self.sink = sink
        self.faults = faults
        self.data = 0
        self.tails = 0

    def accept(self, flit: Flit, now: int) -> bool:
        """Phase A: as `sink` would, with what becomes of the flit."""
        if len(self.sink.queue) > self.sink.depth:
            return False
        changed = self._passed(flit)
        return True if changed is None else self.sink.accept(changed, now)

    def _passed(self, flit: Flit) -> Flit | None:
        if flit.type != FlitType.MEM_WR_DATA:
            return flit
        self.data += 1
        self.tails += flit.last
        if "noc-lost-tail" in self.faults and flit.last and self.tails == 2:
            return None
        if "noc-flipped-bit" in self.faults and self.data == 2:
            return flit._replace(payload=flit.payload ^ FLIPPED)
        return flit
