"""IEEE binary16 bit patterns at the edges of the machine: memory, operands, results.

Source: `docs/formats.md`. Conversions from numbers round to nearest even; overflow gives infinity.
"""

from __future__ import annotations

import numpy as np


def from_float(values: np.ndarray) -> np.ndarray:
    """uint16 patterns of numbers (anything numpy turns into float64)."""
    with np.errstate(over="ignore", under="ignore"):
        return np.asarray(values, dtype=np.float64).astype(np.float16).view(np.uint16)


def to_float(bits: np.ndarray) -> np.ndarray:
    """float64 values of uint16 patterns; exact."""
    return _checked(bits).view(np.float16).astype(np.float64)


def _checked(bits: np.ndarray) -> np.ndarray:
    bits = np.asarray(bits)
    if bits.dtype != np.uint16:
        raise ValueError(f"FP16 patterns are uint16, got {bits.dtype}")
    return bits
