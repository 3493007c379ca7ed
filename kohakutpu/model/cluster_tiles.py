"""The accumulator's tile store and its operations, vectorised over sub-tiles (spec: cluster, accumulator)."""

from __future__ import annotations

import numpy as np

from kohakutpu.formats import words
from kohakutpu.formats.accumulator import TILE, AccumulatorFormat

REUSE_MIN = 5  # cycles between two commands to one tile address


class TileStore:
    """`tiles` sub-tiles of 16 accumulator words, all zero at configuration.

    Addresses count modulo `tiles`. Every operation takes a run of at most `tiles` consecutive addresses, so
    that no address occurs twice in it. `flip` is a fault: a word that is XORed into lane 0 of sub-tile 0 each
    time it is written.
    """

    def __init__(self, tiles: int, mantissa: int, *, flip: int = 0):
        if tiles < 8 or tiles & (tiles - 1):
            raise ValueError(
                f"accumulator of {tiles} tiles: a power of two of at least 8 is expected, so that addresses which "
                f"wrap are still {REUSE_MIN} commands apart"
            )
        self.format = AccumulatorFormat(mantissa)
        self.tiles = tiles
        self.words = np.zeros((tiles, TILE), dtype=np.uint32)
        self.flip = flip

    def _run(self, first: int, count: int) -> slice | np.ndarray:
        first &= self.tiles - 1
        if first + count <= self.tiles:
            return slice(first, first + count)
        return np.arange(first, first + count) & (self.tiles - 1)

    def peek(self, first: int, count: int) -> np.ndarray:
        """The words uint32[count,16] from address `first` on."""
        return self.words[self._run(first, count)]

    def put(self, first: int, value: np.ndarray) -> None:
        if self.flip and first == 0:
            value = value.copy()
            value[0, 0] ^= self.flip
        self.words[self._run(first, len(value))] = value

    def combine(self, tile: np.ndarray | None, value: np.ndarray) -> np.ndarray:
        """tile + value; None is the zero that a LOAD adds to."""
        return self.format.add(np.zeros_like(value) if tile is None else tile, value)

    def add(self, first: int, value: np.ndarray, *, load: bool = False) -> np.ndarray:
        """LOAD, ADD or ADD_PEER of uint32[n,16]; returns the new words."""
        new = self.combine(None if load else self.peek(first, len(value)), value)
        self.put(first, new)
        return self.peek(first, len(value))

    def emit(self, first: int, count: int) -> list[int]:
        """EMIT: FP16 of a run of sub-tiles, a 256-bit integer each; `count` may exceed the store and wraps."""
        return [word for run in self._runs(first, count) for word in words.to_ints(self.format.emit_words(run))]

    def send(self, first: int, count: int) -> list[int]:
        """SEND: a run of sub-tiles as accumulator words, two granules each; `count` may exceed the store too."""
        return [word for run in self._runs(first, count) for word in words.to_ints(self.format.pack_granules(run))]

    def _runs(self, first: int, count: int):
        while count:
            step = min(count, self.tiles)
            yield self.peek(first, step)
            first += step
            count -= step

    def add_peer(self, tile: int, low: int, high: int) -> None:
        """ADD_PEER of one sub-tile that arrived as two granules."""
        granules = words.from_ints([low, high]).reshape(1, 2, 8)
        self.add(tile, self.format.unpack_granules(granules))
