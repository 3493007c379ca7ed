"""Memory of a run: buffers over host arrays, and the arrays of a workgroup with what was written of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kohakutpu.xpu.types import BOOL, Scalar, SharedType, bf16

from .arithmetic import Fault


def read_element(array: np.ndarray, kind: Scalar, index: int):
    """An element as a value (see `arithmetic`)."""
    value = array[index]
    if kind is bf16:
        return (np.uint32(value) << np.uint32(16)).view(np.float32)
    return bool(value) if kind is BOOL else int(value) if kind.kind == "int" else value


def write_element(array: np.ndarray, kind: Scalar, index: int, value) -> None:
    """A value as an element."""
    array[index] = np.float32(value).view(np.uint32) >> np.uint32(16) if kind is bf16 else value


@dataclass(eq=False)
class Memory:
    """Elements of one primitive. `array` has its memory dtype; `written` is None for a buffer."""

    name: str
    element: Scalar
    array: np.ndarray
    written: np.ndarray | None = None
    layout: SharedType | None = None

    def slot(self, index: int, what: str) -> int:
        """Where an element lives. Raises Fault outside."""
        slot = index if self.layout is None or index < 0 else self.layout.slot(index)
        if not 0 <= slot < len(self.array):
            place = f" at slot {slot}" if slot != index else ""
            unit = "slots" if self.layout is not None and self.layout.block else "elements"
            raise Fault(f"{what} of {self.name}[{index}]{place}, which has {len(self.array)} {unit}")
        return slot

    def load(self, index: int):
        """One element."""
        slot = self.slot(index, "a read")
        if self.written is not None and not self.written[slot]:
            raise Fault(f"a read of {self.name}[{index}], which no work-item wrote")
        return read_element(self.array, self.element, slot)

    def store(self, index: int, value) -> None:
        """One element."""
        slot = self.slot(index, "a write")
        write_element(self.array, self.element, slot, value)
        if self.written is not None:
            self.written[slot] = True


def shared(name: str, kind: SharedType, count: int) -> Memory:
    """A workgroup's fresh array of `count` slots."""
    return Memory(name, kind.element, np.zeros(count, kind.element.dtype), np.zeros(count, bool), kind)
