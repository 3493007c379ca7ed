"""The leading-one index of integers: what every normaliser in this package needs and numpy lacks."""

from __future__ import annotations

import numpy as np


def leading_one(value: np.ndarray) -> np.ndarray:
    """Index of the highest set bit of each non-negative int32 or int64, -1 for 0; of the same type."""
    filled = value | (value >> 1)
    for step in (2, 4, 8, 16) if value.dtype.itemsize == 4 else (2, 4, 8, 16, 32):
        filled |= filled >> step
    position = np.bitwise_count(filled).astype(value.dtype)
    position -= 1
    return position
