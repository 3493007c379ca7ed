"""IEEE binary32 bit patterns at the edges of the machine: memory and constants.

Source: `docs/formats.md`. Conversions from numbers round to nearest even; overflow gives infinity.
"""

from __future__ import annotations

import numpy as np


def from_float(values: np.ndarray) -> np.ndarray:
    """uint32 patterns of numbers (anything numpy turns into float64)."""
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(values, dtype=np.float64).astype(np.float32).view(np.uint32)


def to_float(bits: np.ndarray) -> np.ndarray:
    """float64 values of uint32 patterns; exact."""
    return _checked(bits).view(np.float32).astype(np.float64)


def _checked(bits: np.ndarray) -> np.ndarray:
    bits = np.asarray(bits)
    if bits.dtype != np.uint32:
        raise ValueError(f"FP32 patterns are uint32, got {bits.dtype}")
    return bits
