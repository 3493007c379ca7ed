"""256-bit words in the four shapes the project uses: Python int, uint32[8], bytes and FP16 or FP32 lanes.

Every shape is little-endian: bit 0 of the integer is bit 0 of uint32 number 0, of byte 0 and of lane 0.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

WORD_BYTES = 32
WORD_BITS = 256


def from_int(value: int) -> np.ndarray:
    """One 256-bit integer as uint32[8]. Raises `ValueError` when it is negative or wider."""
    return from_bytes(_bytes_of(value))[0]


def to_int(word: np.ndarray) -> int:
    """One uint32[8] word as an integer."""
    return int.from_bytes(_checked(word, 8).tobytes(), "little")


def from_ints(values: Iterable[int]) -> np.ndarray:
    """256-bit integers as uint32[n,8]. Raises `ValueError` naming the first that does not fit."""
    return from_bytes(b"".join([_bytes_of(value) for value in values]))


def to_ints(words: np.ndarray) -> list[int]:
    """uint32[...,8] words as a flat list of integers, in C order."""
    data = _checked(words, 8).tobytes()
    return [int.from_bytes(data[at : at + WORD_BYTES], "little") for at in range(0, len(data), WORD_BYTES)]


def from_bytes(data: bytes | bytearray | memoryview) -> np.ndarray:
    """Bytes as uint32[n,8], a copy. Raises `ValueError` when the length is not a multiple of 32."""
    if len(data) % WORD_BYTES:
        raise ValueError(f"{len(data)} bytes are not whole {WORD_BYTES}-byte words")
    return np.frombuffer(data, dtype="<u4").astype(np.uint32).reshape(-1, 8)


def to_bytes(words: np.ndarray) -> bytes:
    """uint32[...,8] words as bytes, in C order."""
    return _checked(words, 8).tobytes()


def to_halves(words: np.ndarray) -> np.ndarray:
    """uint32[...,8] words as uint16[...,16] lanes (FP16 element i at bits 16i+15:16i)."""
    return _checked(words, 8).view("<u2").astype(np.uint16)


def from_halves(halves: np.ndarray) -> np.ndarray:
    """uint16[...,16] lanes as uint32[...,8] words; the inverse of `to_halves`."""
    halves = np.asarray(halves)
    if halves.dtype != np.uint16 or halves.shape[-1:] != (16,):
        raise ValueError(f"expected uint16[...,16], got {halves.dtype}{list(halves.shape)}")
    return np.ascontiguousarray(halves, dtype="<u2").view("<u4").astype(np.uint32)


def _bytes_of(value: int) -> bytes:
    if value < 0 or value >> WORD_BITS:
        raise ValueError(f"{value:#x} does not fit {WORD_BITS} bits")
    return value.to_bytes(WORD_BYTES, "little")


def _checked(words: np.ndarray, last: int) -> np.ndarray:
    words = np.asarray(words)
    if words.dtype != np.uint32 or words.shape[-1:] != (last,):
        raise ValueError(f"expected uint32[...,{last}], got {words.dtype}{list(words.shape)}")
    return np.ascontiguousarray(words, dtype="<u4")
