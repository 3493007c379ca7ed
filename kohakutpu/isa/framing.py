"""Which CU_DATA flit is a descriptor: bursts are framed by count, per sender and receiver."""

from __future__ import annotations

from .flit import Flit, FlitType
from .signals import CU_DATA


class Framing:
    """Follows a stream of flits, all links of a run or one; per (source, destination) pair order must hold."""

    def __init__(self):
        self._left: dict[tuple[int, int], int] = {}

    def is_descriptor(self, flit: Flit) -> bool:
        """True for the CU_DATA flit that opens a burst; advances the pair's burst. False for other types."""
        if flit.type != FlitType.CU_DATA:
            return False
        pair = flit.src, flit.dst
        left = self._left.get(pair, 0)
        if left:
            self._left[pair] = left - 1
            return False
        self._left[pair] = CU_DATA.get(flit.payload, "len") + 1
        return True

    def open_bursts(self) -> dict[tuple[int, int], int]:
        """Data flits still owed, by (source, destination)."""
        return {pair: left for pair, left in self._left.items() if left}
