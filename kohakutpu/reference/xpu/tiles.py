"""Cooperative matrices (spec/xpu.md 1.9): arrays of the whole wave, never changed in place.

A bfloat16 tile is held as float32. Lane L of a wave of W owns elements L, L + W, L + 2W, ... in row order.
"""

from __future__ import annotations

import numpy as np

from kohakutpu.xpu.types import Scalar, TileType, Use, bf16, f64, i8

from .arithmetic import Fault, fma32, round_bf16, wrap
from .memory import Memory


def dtype(element: Scalar) -> str:
    """The numpy dtype of a tile's array."""
    return "float32" if element is bf16 else element.dtype


def zeros(kind: TileType) -> np.ndarray:
    """A tile's value before anything filled it."""
    return np.zeros((kind.rows, kind.cols), dtype(kind.element))


def splat(kind: TileType, value) -> np.ndarray:
    """Every element the same."""
    return np.full((kind.rows, kind.cols), value, dtype(kind.element))


def element_value(element: Scalar, tile: np.ndarray, row: int, col: int):
    """An element of a tile as a value of the language."""
    return int(tile[row, col]) if element.kind == "int" else tile[row, col]


def changed(tile: np.ndarray, row: int, col: int, value) -> np.ndarray:
    """A tile with another element."""
    result = tile.copy()
    result[row, col] = value
    return result


def places(kind: TileType, offset: int, layout: int, stride: int):
    """(row, column, index in memory) of every element."""
    if layout not in (0, 1):
        raise Fault(f"a tile layout of {layout}; 0 is row by row, 1 column by column")
    for row in range(kind.rows):
        for col in range(kind.cols):
            yield row, col, offset + (row * stride + col if layout == 0 else col * stride + row)


def load(kind: TileType, memory: Memory, offset: int, layout: int, stride: int) -> np.ndarray:
    """Element (r, c) from offset + r*stride + c, or offset + c*stride + r."""
    tile = zeros(kind)
    for row, col, place in places(kind, offset, layout, stride):
        tile[row, col] = memory.load(place)
    return tile


def store(kind: TileType, tile: np.ndarray, memory: Memory, offset: int, layout: int, stride: int) -> None:
    """`load` the other way round."""
    for row, col, place in places(kind, offset, layout, stride):
        memory.store(place, element_value(kind.element, tile, row, col))


def mma(kinds: tuple[TileType, TileType, TileType], total, left, right) -> np.ndarray:
    """total[r][c] + the products over k in order. Integers wrap; floats round product and sum, each in float32.

    The sum is stored to the element type once. With a float64 tile among the three, all is float64.
    """
    element = kinds[0].element
    if element.kind == "int":
        wide = [part.astype(np.int64).view(np.uint64) for part in (total, left, right)]
        return (wide[0] + wide[1] @ wide[2]).astype(dtype(element))
    work = np.float64 if f64 in [kind.element for kind in kinds] else np.float32
    held, left, right = (part.astype(work) for part in (total, left, right))
    for k in range(left.shape[1]):
        held = held + left[:, k, None] * right[None, k, :]
    return round_bf16(held) if element is bf16 else held.astype(dtype(element))


def elements(kind: TileType, lane: int, width: int) -> int:
    """How many elements a lane owns."""
    return len(range(lane, kind.rows * kind.cols, width))


def owned(kind: TileType, lane: int, width: int, index: int) -> tuple[int, int]:
    """The row and column of a lane's element by its index."""
    if not 0 <= index < elements(kind, lane, width):
        raise Fault(f"element {index} of the {elements(kind, lane, width)} that lane {lane} owns of a {kind}")
    return divmod(lane + index * width, kind.cols)


def gather(tiles: dict[int, np.ndarray], width: int) -> np.ndarray:
    """The wave's tile from its lanes' copies: each element from its owner, or the first lane if that is gone."""
    result = tiles[min(tiles)].copy()
    for lane, tile in tiles.items():
        result.ravel()[lane::width] = tile.ravel()[lane::width]
    return result


def columns(count: int, form: str, lanes: dict[int, tuple], lane: int) -> list:
    """The column factors that a WaveVector stands for at one lane; `of_lane` reads lane c for column c."""
    arguments = lanes[lane]
    if form == "broadcast":
        return [arguments[0]] * count
    if form == "slice":
        memory, base, stride = (*arguments, 1)[:3]
        return [memory.load(base + stride * col) for col in range(count)]
    factors = []
    for col in range(count):
        given = {held: values[0] for held, values in lanes.items() if held % count == col}
        if not given:
            raise Fault(f"column {col} of WaveVector.of_lane, whose lanes are all inactive")
        if len({np.asarray(value).tobytes() for value in given.values()}) > 1:
            raise Fault(f"column {col} of WaveVector.of_lane, for which lanes {sorted(given)} disagree")
        factors.append(next(iter(given.values())))
    return factors


def rows(count: int, memory: Memory, offset: int) -> list:
    """The row factors from a slice of Shared memory."""
    return [memory.load(offset + row) for row in range(count)]


def scaled(tile: np.ndarray, into: np.ndarray, factors: list[tuple[list, list]]) -> np.ndarray:
    """into + (row * col) * tile, one fma with the rounded product of the factors; a second pair adds row * col."""
    (row, col), *more = factors
    scale = np.asarray(row, np.float32)[:, None] * np.asarray(col, np.float32)[None, :]
    result = fma32(scale, tile.astype(np.float32), into)
    for row, col in more:
        result = rank1(result, row, col)
    return result


def rank1(tile: np.ndarray, row: list, col: list) -> np.ndarray:
    """tile + row * col, one fma per element."""
    return fma32(np.asarray(row, np.float32)[:, None], np.asarray(col, np.float32)[None, :], tile)


def scaled_i32(tile: np.ndarray, into: np.ndarray, col: list) -> np.ndarray:
    """into + col * tile, wrapped; both factors must fit 24 signed bits."""
    scale = np.asarray(col, np.int64)[None, :] + np.zeros(tile.shape, np.int64)
    for name, part in (("tile", tile), ("column factor", scale)):
        outside = (part < -(1 << 23)) | (part >= 1 << 23)
        if outside.any():
            raise Fault(f"scaled_accum_i32 of a {name} of {int(part[outside][0])}, past 24 signed bits")
    return (into.astype(np.int64) + scale * tile).astype(np.int32)


def from_words(kind: TileType, lanes: dict[int, tuple]) -> np.ndarray:
    """An int8 operand: lane L gives row (A) or column (B) L mod 16, four bytes a word, the least k in the low byte."""
    tile = np.zeros((16, 16), np.int8)
    for line in range(16):
        given = {lane: words for lane, words in lanes.items() if lane % 16 == line}
        if not given:
            raise Fault(f"from_words without an active lane for line {line}")
        if len(set(given.values())) > 1:
            raise Fault(f"from_words, for which lanes {sorted(given)} disagree")
        data = b"".join(word.to_bytes(4, "little") for word in next(iter(given.values())))
        tile[line] = [wrap(i8, byte) for byte in data]
    return tile if kind.use == Use.A else tile.T.copy()
