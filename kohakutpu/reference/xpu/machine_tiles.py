"""Cooperative matrices on the machine's cluster: MXFP7 operands in blocks of 32 along k, FP22 accumulation.

Operands are FP16 patterns, quantised where a product reads them; an accumulator starts at zero and adds a block product
at a time. Its elements are read through the FP16 drain, which saturates. A tile whose elements a kernel changes is from
then on a tile of E8M15 words. `tiles` has the same functions for the host's rules.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from kohakutpu.formats import e8m15, mxfp7
from kohakutpu.formats.accumulator import AccumulatorFormat
from kohakutpu.xpu.types import Scalar, TileType, Use

from .arithmetic import Fault
from .memory import Memory
from .tiles import elements, owned, places

LANES, BLOCK = 4, 32
FORMAT = AccumulatorFormat()
__all__ = ["elements", "owned"]


@dataclass(frozen=True, eq=False)
class Tile:
    """`words` uint32[rows, cols] in a `form`: "fp16" an operand, "fp22" an accumulator, "e8m15" changed elements."""

    words: np.ndarray
    form: str

    def tobytes(self) -> bytes:
        """For comparing tiles."""
        return self.form.encode() + self.words.tobytes()


def zeros(kind: TileType) -> Tile:
    """A tile before anything filled it."""
    return Tile(np.zeros((kind.rows, kind.cols), np.uint32), "fp22" if kind.use == Use.ACCUMULATOR else "fp16")


def splat(kind: TileType, value: int) -> Tile:
    """Every element the same; an accumulator's is zero."""
    tile = zeros(kind)
    return tile if tile.form == "fp22" else replace(tile, words=tile.words + e8m15.to_fp16(np.uint32([value])))


def load(kind: TileType, memory: Memory, offset: int, layout: int, stride: int) -> Tile:
    """FP16 patterns as they stand in memory."""
    tile = zeros(kind)
    for row, col, place in places(kind, offset, layout, stride):
        tile.words[row, col] = memory.raw(place).view(np.uint16)
    return tile


def registers(tile: Tile) -> np.ndarray:
    """The elements as E8M15 words."""
    if tile.form == "e8m15":
        return tile.words
    patterns = FORMAT.to_fp16(tile.words) if tile.form == "fp22" else tile.words.astype(np.uint16)
    return e8m15.from_fp16(patterns)


def store(kind: TileType, tile: Tile, memory: Memory, offset: int, layout: int, stride: int) -> None:
    """The elements to memory of the tile's type."""
    words = registers(tile)
    for row, col, place in places(kind, offset, layout, stride):
        memory.store(place, int(words[row, col]))


def element_value(element: Scalar, tile: Tile, row: int, col: int) -> int:
    """An element as a value of the language."""
    return int(registers(tile)[row, col])


def changed(tile: Tile, row: int, col: int, value: int) -> Tile:
    """A tile with another element."""
    words = registers(tile).copy()
    words[row, col] = value
    return Tile(words, "e8m15")


def gather(tiles: dict[int, Tile], width: int) -> Tile:
    """The wave's tile from its lanes' copies."""
    forms = {tile.form for tile in tiles.values()}
    held = {lane: tile.words if len(forms) == 1 else registers(tile) for lane, tile in tiles.items()}
    result = held[min(held)].copy()
    for lane, words in held.items():
        result.ravel()[lane::width] = words.ravel()[lane::width]
    return Tile(result, forms.pop() if len(forms) == 1 else "e8m15")


def _quantised(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Patterns [lines, k] as q int8[groups, blocks, 4, 32] and scales uint8[groups, blocks, 4], padded with zeros."""
    lines, depth = rows.shape
    groups, blocks = -(-lines // LANES), -(-depth // BLOCK)
    padded = np.zeros((groups * LANES, blocks * BLOCK), np.uint16)
    padded[:lines, :depth] = rows
    entries = padded.reshape(groups, LANES, blocks, BLOCK).transpose(0, 2, 1, 3)
    q, scale = mxfp7.quantise(np.ascontiguousarray(entries).reshape(-1, LANES, BLOCK))
    return q.reshape(groups, blocks, LANES, BLOCK), scale.reshape(groups, blocks, LANES)


def mma(kinds: tuple[TileType, TileType, TileType], total: Tile, left: Tile, right: Tile) -> Tile:
    """total + left @ right, a block of 32 along k after another."""
    if total.form != "fp22" or left.form != "fp16" or right.form != "fp16":
        raise Fault("mma of a tile whose elements were changed: it left the cluster")
    rows, cols = total.words.shape
    (qa, sa), (qb, sb) = _quantised(left.words), _quantised(right.words.T)
    high, wide = len(qa) * LANES, len(qb) * LANES
    words = np.zeros((high, wide), np.uint32)
    words[:rows, :cols] = total.words
    for block in range(qa.shape[1]):
        sums = mxfp7.outer_products(qa[:, block], qb[:, block]).transpose(0, 2, 1, 3).reshape(high, wide)
        scales = sa[:, block].reshape(high, 1), sb[:, block].reshape(1, wide)
        words = FORMAT.add(words, FORMAT.from_block(sums, *scales, mxfp7.ANCHOR))
    return Tile(words[:rows, :cols], "fp22")
