"""Memory of a run: buffers over host arrays, and the arrays of a workgroup with what was written of them."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import numpy as np

from kohakutpu.xpu.types import Scalar, SharedType

from . import arithmetic as host
from .arithmetic import Fault


@dataclass(eq=False)
class Memory:
    """Elements of one primitive. `array` has its memory dtype; `written` is None for a buffer.

    `values` is the module that says what a value is: `arithmetic`, or `machine`.
    """

    name: str
    element: Scalar
    array: np.ndarray
    written: np.ndarray | None = None
    layout: SharedType | None = None
    values: ModuleType = host

    def slot(self, index: int, what: str) -> int:
        """Where an element lives. Raises Fault outside."""
        slot = index if self.layout is None or index < 0 else self.layout.slot(index)
        if not 0 <= slot < len(self.array):
            place = f" at slot {slot}" if slot != index else ""
            unit = "slots" if self.layout is not None and self.layout.block else "elements"
            raise Fault(f"{what} of {self.name}[{index}]{place}, which has {len(self.array)} {unit}")
        return slot

    def readable(self, index: int) -> int:
        """The slot of an element that may be read."""
        slot = self.slot(index, "a read")
        if self.written is not None and not self.written[slot]:
            raise Fault(f"a read of {self.name}[{index}], which no work-item wrote")
        return slot

    def load(self, index: int):
        """One element as a value."""
        return self.values.read(self.array, self.element, self.readable(index))

    def raw(self, index: int):
        """One element as it stands."""
        return self.array[self.readable(index)]

    def store(self, index: int, value) -> None:
        """One element."""
        slot = self.slot(index, "a write")
        self.values.write(self.array, self.element, slot, value)
        if self.written is not None:
            self.written[slot] = True


def shared(name: str, kind: SharedType, count: int, values: ModuleType = host) -> Memory:
    """A workgroup's fresh array of `count` slots."""
    return Memory(name, kind.element, np.zeros(count, kind.element.dtype), np.zeros(count, bool), kind, values)
