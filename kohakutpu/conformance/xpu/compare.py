"""Comparing one buffer of a back end with the reference's (spec/xpu.md 3.3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kohakutpu.xpu.types import Scalar, bf16

MANTISSA = {"f16": 10, "bf16": 7, "f32": 23, "f64": 52}
APART = np.uint64((1 << 64) - 1)  # the distance of a NaN and a number


@dataclass(frozen=True)
class Bound:
    """How far elements may be apart: units in the last place (integers: steps), or a fraction of the buffer's scale.

    Either measure admits an element. The default is equality.
    """

    ulps: int = 0
    rel: float = 0.0

    def __str__(self) -> str:
        parts = [f"ulps={self.ulps}"] if self.ulps or not self.rel else []
        return ",".join(parts + ([f"rel={self.rel:g}"] if self.rel else []))


EXACT = Bound()


@dataclass(frozen=True)
class Comparison:
    """`outside` of `count` elements lie outside the bound, `first` the first of them (None: all agree).

    `ulps` and `rel` are the worst distances of all elements; a NaN beside a number is APART and infinite.
    """

    count: int
    outside: int
    first: int | None
    ulps: int
    rel: float


def values(kind: Scalar, memory: np.ndarray) -> np.ndarray:
    """Float elements of memory as float64."""
    memory = (memory.astype(np.uint32) << 16).view(np.float32) if kind is bf16 else memory
    with np.errstate(invalid="ignore"):
        return memory.astype(np.float64)


def is_nan(kind: Scalar, memory: np.ndarray) -> np.ndarray:
    """Where float elements are NaN, each format by its own layout."""
    magnitude = memory.view(f"uint{kind.bits}") & ((1 << kind.bits - 1) - 1)
    return magnitude > (1 << kind.bits - 1) - (1 << MANTISSA[kind.name])


def ulp_distance(kind: Scalar, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Units in the last place between float elements, as uint64: sign-magnitude, so that +0 and -0 are equal.

    Two NaNs are equal; a NaN and a number are APART.
    """
    mask = np.uint64((1 << kind.bits - 1) - 1)
    bits = [memory.view(f"uint{kind.bits}").astype(np.uint64) for memory in (left, right)]
    a, b = bits[0] & mask, bits[1] & mask
    same_sign = (bits[0] > mask) == (bits[1] > mask)
    distance = np.where(same_sign, np.maximum(a, b) - np.minimum(a, b), a + b)
    nan = is_nan(kind, left), is_nan(kind, right)
    return np.where(nan[0] & nan[1], np.uint64(0), np.where(nan[0] | nan[1], APART, distance))


def scale(kind: Scalar, before: np.ndarray, reference: np.ndarray) -> float:
    """The magnitude that `rel` is a fraction of: the largest finite one that the reference wrote.

    An element that it left as it was does not count, nor does a sentinel: a quarter of the type's largest value or
    more. If it left every element as it was, all count.
    """
    width = f"uint{kind.bits}"
    wrote = before.view(width) != reference.view(width)
    magnitude = np.abs(values(kind, reference))
    largest = float(values(kind, np.array([(1 << kind.bits - 1) - (1 << MANTISSA[kind.name]) - 1], width).view(
        reference.dtype))[0])  # fmt: skip
    counts = np.isfinite(magnitude) & (magnitude < largest / 4) & (wrote if wrote.any() else True)
    return float(magnitude[counts].max()) if counts.any() else 0.0


def _rel_distance(kind: Scalar, before, reference, found) -> np.ndarray:
    with np.errstate(all="ignore"):
        left, right = values(kind, reference), values(kind, found)
        equal = (left == right) | (np.isnan(left) & np.isnan(right))
        gap = np.where(equal, 0.0, np.abs(left - right) / scale(kind, before, reference))
    return np.where(np.isnan(gap), np.inf, gap)


def compare(kind: Scalar, before: np.ndarray, reference: np.ndarray, found: np.ndarray, bound: Bound) -> Comparison:
    """Elements of one primitive, in its memory dtype: before the launch, after it by the reference, and as found."""
    if kind.kind == "float":
        ulps = ulp_distance(kind, reference, found)
        rel = _rel_distance(kind, before, reference, found)
        outside = (ulps > np.uint64(bound.ulps)) & ~((rel <= bound.rel) if bound.rel else False)
        outside |= ulps == APART
        worst = float(rel.max(initial=0.0))
    else:
        low, high = np.minimum(reference, found), np.maximum(reference, found)
        ulps = high.astype(np.uint64) - low.astype(np.uint64)
        outside = ulps > np.uint64(bound.ulps if kind.kind == "int" else 0)
        worst = 0.0
    where = np.flatnonzero(outside)
    first = int(where[0]) if len(where) else None
    return Comparison(len(found), len(where), first, int(ulps.max(initial=0)), worst)
