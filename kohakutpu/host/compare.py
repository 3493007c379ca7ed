"""Two images of a buffer, byte for byte: sizes, digests, and the first difference with what produced it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from kohakutpu.compiler.artifact import Artifact
from kohakutpu.formats import fp16

DIGEST_DIGITS = 16


def digest(array: np.ndarray) -> str:
    """sha256 of an array of FP16 patterns, little-endian, in C order; the first 16 digits."""
    return hashlib.sha256(np.ascontiguousarray(array).astype("<u2").tobytes()).hexdigest()[:DIGEST_DIGITS]


@dataclass(frozen=True)
class Mismatch:
    """One element that differs: its byte offset in the buffer's image, index, both FP16 patterns, and its writer."""

    buffer: str
    offset: int
    index: tuple[int, ...]
    expected: int
    found: int
    statement: str
    source: str
    instance: tuple[int, ...]

    def __str__(self) -> str:
        values = [float(fp16.to_float(np.array([bits], np.uint16))[0]) for bits in (self.expected, self.found)]
        return (
            f"{self.buffer} differs at byte {self.offset:#x}, element {list(self.index)}: expected {self.expected:04x} "
            f"({values[0]:g}), found {self.found:04x} ({values[1]:g}); written by {self.source}: {self.statement} "
            f"(instance {self.instance})"
        )


@dataclass(frozen=True)
class Comparison:
    """One buffer on both sides; `first` is the lowest differing byte offset's element."""

    buffer: str
    bytes: int
    expected: str
    found: str
    different: int
    first: Mismatch | None

    @property
    def equal(self) -> bool:
        return self.different == 0

    def to_dict(self) -> dict:
        return {**asdict(self), "equal": self.equal}


def compare(
    artifact: Artifact, expected: Mapping[str, np.ndarray], found: Mapping[str, np.ndarray]
) -> list[Comparison]:
    """Every output buffer of `artifact`, uint16 patterns of its logical shape on both sides.

    Raises `KeyError` when one side lacks an output, `ValueError` when a shape differs: neither is a comparison.
    """
    rows = []
    for image in artifact.outputs:
        ours, theirs = expected[image.name], found[image.name]
        if ours.shape != image.shape or theirs.shape != image.shape:
            raise ValueError(f"{image.name}: shapes {ours.shape} and {theirs.shape}, expected {image.shape}")
        wrong = np.argwhere(ours != theirs)
        first = None
        if len(wrong):
            # Lowest place in memory, which is not the lowest index: layouts permute.
            flags = (ours != theirs).astype(np.uint16)
            offset = image.pack(flags).index(b"\x01\x00")
            offset -= offset % 2
            index = image.element_at(offset)
            statement, instance = artifact.writer_of(image.name, index)
            first = Mismatch(
                image.name,
                offset,
                index,
                int(ours[index]),
                int(theirs[index]),
                statement.text,
                statement.source,
                instance,
            )
        rows.append(Comparison(image.name, 2 * ours.size, digest(ours), digest(theirs), len(wrong), first))
    return rows
