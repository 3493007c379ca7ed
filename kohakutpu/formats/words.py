"""Wide words in the shapes the project uses: Python int, uint32 array, bytes and FP16 lanes.

Every shape is little-endian: bit 0 of the integer is bit 0 of uint32 number 0, of byte 0 and of lane 0. A
memory or payload word is 256 bits, uint32[8]; a whole flit is 288, uint32[9].
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

WORD_BYTES = 32
WORD_BITS = 256


def from_int(value: int) -> np.ndarray:
    """One 256-bit integer as uint32[8]. Raises `ValueError` when it is negative or wider."""
    return from_bytes(_bytes_of(value, 8))[0]


def to_int(word: np.ndarray) -> int:
    """One uint32[k] word as an integer."""
    return int.from_bytes(_little(word).tobytes(), "little")


def from_ints(values: Iterable[int], size: int = 8) -> np.ndarray:
    """Integers of `size` x 32 bits as uint32[n,size]. Raises `ValueError` naming the first that does not fit."""
    return _from_bytes(b"".join([_bytes_of(value, size) for value in values]), size)


def to_ints(words: np.ndarray) -> list[int]:
    """uint32[...,k] words as a flat list of integers, in C order."""
    words = _little(words)
    data, step = words.tobytes(), 4 * words.shape[-1]
    return [int.from_bytes(data[at : at + step], "little") for at in range(0, len(data), step)]


def from_bytes(data: bytes | bytearray | memoryview) -> np.ndarray:
    """Bytes as 256-bit words uint32[n,8], a copy. Raises `ValueError` when they are not whole words."""
    return _from_bytes(data, 8)


def to_bytes(words: np.ndarray) -> bytes:
    """uint32[...,8] words as bytes, in C order."""
    return _little(words, 8).tobytes()


def to_halves(words: np.ndarray) -> np.ndarray:
    """uint32[...,8] words as uint16[...,16] lanes (FP16 element i at bits 16i+15:16i)."""
    return _little(words, 8).view("<u2").astype(np.uint16)


def from_halves(halves: np.ndarray) -> np.ndarray:
    """uint16[...,16] lanes as uint32[...,8] words; the inverse of `to_halves`."""
    halves = np.asarray(halves)
    if halves.dtype != np.uint16 or halves.shape[-1:] != (16,):
        raise ValueError(f"expected uint16[...,16], got {halves.dtype}{list(halves.shape)}")
    return np.ascontiguousarray(halves, dtype="<u2").view("<u4").astype(np.uint32)


def checked(array: np.ndarray, name: str, dtype: type, *tail: int) -> np.ndarray:
    """`array` when it is `dtype[n,*tail]`; otherwise `ValueError` naming what it is and what was expected."""
    array = np.asarray(array)
    if array.dtype != dtype or array.shape[1:] != tail or not array.ndim:
        wanted = ",".join(str(size) for size in ("n", *tail))
        raise ValueError(f"{name}: expected {np.dtype(dtype)}[{wanted}], got {array.dtype}{list(array.shape)}")
    return array


def _from_bytes(data, size: int) -> np.ndarray:
    if len(data) % (4 * size):
        raise ValueError(f"{len(data)} bytes are not whole words of {4 * size} bytes")
    return np.frombuffer(data, dtype="<u4").astype(np.uint32).reshape(-1, size)


def _bytes_of(value: int, size: int) -> bytes:
    if value < 0 or value >> 32 * size:
        raise ValueError(f"{value:#x} does not fit {32 * size} bits")
    return value.to_bytes(4 * size, "little")


def _little(words: np.ndarray, size: int | None = None) -> np.ndarray:
    """`words` as contiguous little-endian uint32, refused when of another type or width."""
    words = np.asarray(words)
    if words.dtype != np.uint32 or not words.ndim or size not in (None, words.shape[-1]):
        raise ValueError(f"expected uint32[...,{size or 'k'}], got {words.dtype}{list(words.shape)}")
    return np.ascontiguousarray(words, dtype="<u4")
