"""One side of the cluster's L1: banked entries of packed MXFP7, decoded when the array reads them.

Spec: cluster, L1. An entry is four 256-bit operand words; words are placed by number through an assembly
register that both sides share, the entry is written when word 3 arrives, and its scales are word 0's.
"""

from __future__ import annotations

import numpy as np

from kohakutpu.formats import mxfp7

WORD_BYTES = 32
ENTRY_BYTES = mxfp7.WORDS * WORD_BYTES
BANK_BITS = 8  # an entry number inside a bank; the bank is the bit above
BANK_MASK = (1 << BANK_BITS) - 1


class Assembly:
    """The assembly register: the last word seen of each number. Cleared at reset, never between entries."""

    def __init__(self) -> None:
        self.words = [0] * mxfp7.WORDS

    def put(self, number: int, word: int) -> bytes | None:
        """Keep word `number` (0..3); with word 3 the entry is complete and its 128 bytes are returned."""
        self.words[number] = word
        if number != mxfp7.WORDS - 1:
            return None
        return b"".join([value.to_bytes(WORD_BYTES, "little") for value in self.words])


class L1Side:
    """`entries` operand entries (a power of two, at most two banks of 256) in `layout` 'A' or 'B'.

    Every entry is zero at configuration.
    """

    def __init__(self, entries: int, layout: str):
        if not 1 <= entries <= 512 or entries & (entries - 1):
            raise ValueError(f"L1 side {layout}: {entries} entries; a power of two up to 512 is expected")
        self.entries = entries
        self.layout = layout
        self.granules = entries * mxfp7.WORDS
        self._packed = np.zeros((entries, ENTRY_BYTES), dtype=np.uint8)
        self._q = np.zeros((entries, mxfp7.LANES, mxfp7.BLOCK), dtype=np.int8)
        self._scale = np.zeros((entries, mxfp7.LANES), dtype=np.uint8)
        self._stale = np.zeros(entries, dtype=bool)

    def address(self, bank: int, offset: int | np.ndarray) -> int | np.ndarray:
        """Entry of `offset` (modulo 256) in `bank`; the bank bit falls away on a side of up to 256 entries."""
        return ((bank << BANK_BITS) | (offset & BANK_MASK)) & (self.entries - 1)

    @property
    def packed(self) -> np.ndarray:
        """The entries as they came, uint8[entries,128]."""
        return self._packed

    def write(self, entry: int, packed: bytes) -> None:
        self._packed[entry] = np.frombuffer(packed, dtype=np.uint8)
        self._stale[entry] = True

    def read(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(q int8[n,4,32], scale uint8[n,4]) of the entries named by `index`."""
        stale = np.unique(index[self._stale[index]])
        if len(stale):
            words = self._packed[stale].view("<u4").astype(np.uint32).reshape(-1, mxfp7.WORDS, 8)
            self._q[stale], self._scale[stale] = mxfp7.unpack(words, self.layout)
            self._stale[stale] = False
        return self._q[index], self._scale[index]
