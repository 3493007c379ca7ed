"""The GEMM sweep: issue timing in closed form, arithmetic on demand (spec: cluster, GEMM sweep).

The counters issue one (A entry, B entry, sub-tile) a cycle, K outermost, and pause between K blocks of so few
sub-tiles that an address would recur too soon. Only an issue that emits can be held up, so every other issue's
cycle is known when the sweep starts. Arithmetic is evaluated
when somebody looks at a result, and before an L1 entry that the sweep still needs is overwritten.
"""

from __future__ import annotations

import numpy as np

from kohakutpu.formats import mxfp7
from kohakutpu.formats.accumulator import TILE
from kohakutpu.isa.cluster import Instruction
from kohakutpu.noc.engine import NEVER

from .cluster_l1 import L1Side
from .cluster_tiles import REUSE_MIN, TileStore

CHAIN = 20  # counter issue to accumulator command: 3 to the operands, 17 through the array
TILE_WRITE = 6  # accumulator command to the end of its tile write
EMIT_VALID = 8  # EMIT command to its word
SEND_VALID = 7  # SEND command to its first granule; the second follows in the next cycle
QUEUE = 1  # result queue: pushed to visible


class Sweep:
    """One GEMM that was started in cycle `start`; its first issue is in the next, or when the pause after the sweep
    `before` is over.

    `paced` False is a fault: K blocks follow each other without a pause, and a command that comes within REUSE_MIN of
    the last one to its address reads the tile as it was before.
    """

    def __init__(self, inst: Instruction, start: int, a: L1Side, b: L1Side, tiles: TileStore, *,
                 before: Sweep | None = None, paced: bool = True):  # fmt: skip
        self.gm, self.gn, self.nk = max(inst.gm, 1), max(inst.gn, 1), max(inst.nk, 1)
        self.subtiles = self.gm * self.gn
        self.issues = self.subtiles * self.nk
        # Cycles between the last issue of a K block and whatever comes next to the tiles, beyond the usual one.
        self.pause = max(REUSE_MIN - 1 - (self.subtiles - 1) % tiles.tiles, 0)
        self._block = self.subtiles + (self.pause if paced else 0)  # cycles from block to block
        self.load = not inst.acc
        self.anchor = inst.anchor
        self.start = start
        self.first = start + 1 if before is None else max(start, before.last_issue + before.pause) + 1
        self.a, self.b, self.tiles = a, b, tiles
        blocks = np.arange(self.nk)
        self._a = a.address(inst.abank, inst.aoff + np.arange(self.gm)[:, None] * self.nk + blocks)
        self._b = b.address(inst.bbank, inst.boff + np.arange(self.gn)[:, None] * self.nk + blocks)
        self._reads: dict[L1Side, frozenset[int]] = {}
        self.evaluated = 0
        self.emits = bool(inst.emit)
        self.words: list[int] = []  # emitted so far, in sub-tile order
        # the issues whose cycle is known from the start; an emitting sweep's last K block is issued one by one
        self.fixed = self.issues - self.subtiles if self.emits else self.issues
        self.emitted = 0
        last_block = self.first + (self.nk - 1) * self._block
        self.next_emit = last_block if self.emits else NEVER
        self.last_issue = NEVER if self.emits else last_block + self.subtiles - 1
        # Blocks that are in flight to one address when the next is read; 1 unless pacing is off.
        self._lag = 1 if paced else max(-(-REUSE_MIN // self.subtiles), 1)
        self._history: list[np.ndarray] = []

    def emit(self, now: int) -> None:
        """Issue the next emitting command in cycle `now`."""
        self.emitted += 1
        if self.emitted == self.subtiles:
            self.next_emit, self.last_issue = NEVER, now
        else:
            self.next_emit = now + 1

    @property
    def settled(self) -> int:
        """The first cycle in which an explicit DRAIN may start; NEVER while that is not known."""
        return self.last_issue + CHAIN + self.pause

    def issued(self, now: int) -> int:
        """Issues up to and including cycle `now`."""
        blocks, rest = divmod(max(now + 1 - self.first, 0), self._block)
        return min(self.fixed, blocks * self.subtiles + min(rest, self.subtiles)) + self.emitted

    def needs(self, side: L1Side, entry: int) -> bool:
        """The sweep reads `entry` of `side`, and has not been evaluated to its end."""
        if self.evaluated == self.issues:
            return False
        if side not in self._reads:
            self._reads[side] = frozenset((self._a if side is self.a else self._b).ravel().tolist())
        return entry in self._reads[side]

    def evaluate(self, upto: int) -> None:
        """Carry out the first `upto` issues with the operands that L1 holds now."""
        while self.evaluated < upto:
            block, low = divmod(self.evaluated, self.subtiles)
            high = min(upto - block * self.subtiles, self.subtiles, low + self.tiles.tiles)
            new = self._accumulate(block, low, self._products(block, low, high))
            if self.emits and block == self.nk - 1:
                self.words += self.tiles.emit(low, len(new))
            self.evaluated = block * self.subtiles + high

    def word(self, index: int, now: int) -> int:
        """Emitted word `index`; asked for in a cycle `now` by which it has left the accumulator."""
        if index >= len(self.words):
            self.evaluate(self.issued(now))
        return self.words[index]

    def _products(self, block: int, low: int, high: int) -> np.ndarray:
        """Accumulator words uint32[high-low,16] of one K block's sub-tiles low..high-1."""
        whole = low == 0 and high == self.subtiles
        if whole:
            qa, fa = self.a.read(self._a[:, block])
            qb, fb = self.b.read(self._b[:, block])
            sums = mxfp7.outer_products(qa, qb)
            fa, fb = fa[:, None, :, None], fb[None, :, None, :]
        else:
            g, h = np.divmod(np.arange(low, high), self.gn)
            qa, fa = self.a.read(self._a[g, block])
            qb, fb = self.b.read(self._b[h, block])
            sums = mxfp7.block_products(qa, qb)
            fa, fb = fa[:, :, None], fb[:, None, :]
        return self.tiles.format.from_block(sums, fa, fb, self.anchor).reshape(-1, TILE)

    def _accumulate(self, block: int, low: int, value: np.ndarray) -> np.ndarray:
        opens = self.load and block == 0
        if self._lag == 1:
            return self.tiles.add(low, value, load=opens)
        if not self._history:  # the tile before the sweep, then a slot per block
            before = self.tiles.peek(0, self.subtiles).copy()
            self._history = [before] + [before.copy() for _ in range(self.nk)]
        high = low + len(value)
        seen = self._history[max(block + 1 - self._lag, 0)][low:high]
        new = self.tiles.combine(None if opens else seen, value)
        self._history[block + 1][low:high] = new
        self.tiles.put(low, new)
        return new
