"""Device memory as the host holds it (spec/xpu.md 1.3): allocations, buffers and their views."""

from __future__ import annotations

import enum
import os

import numpy as np

from .errors import HostUse, XpuError
from .types import BOOL, BufferType, Scalar, f16, u32

POISON = 0xFF


class Residency(enum.IntEnum):
    """Where an allocation lives. Pinned and unified memory can be read by the host without a copy."""

    DEVICE = 0
    PINNED = 1
    UNIFIED = 2


class Allocation:
    """`size` bytes. Fresh memory is 0xFF, so that an element nobody wrote is a NaN, unless XPU_POISON is 0."""

    def __init__(self, size: int):
        fill = 0 if os.environ.get("XPU_POISON") == "0" else POISON
        self.bytes: np.ndarray | None = np.full(size, fill, np.uint8)
        self.borrowers: set = set()


def _primitive(element, what: str) -> Scalar:
    element = BOOL if element is bool else element
    if not isinstance(element, Scalar):
        raise XpuError(f"{what}: the element is a primitive type such as f32, not {element!r}")
    return element


class KernelBuffer:
    """`count` elements of a primitive in device memory; `KernelBuffer[T]` is the type of a kernel's parameter.

    Only kernels index elements. A view shares its buffer's allocation and never frees it.
    """

    is_buffer_type = True

    def __class_getitem__(cls, element):
        (element,) = element if isinstance(element, tuple) else (element,)
        return BufferType(_primitive(element, "KernelBuffer"))

    def __init__(self, element: Scalar, count: int, residency: Residency = Residency.DEVICE):
        self.element = _primitive(element, "KernelBuffer")
        if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 1:
            raise XpuError(f"KernelBuffer: a positive count of elements is expected, not {count!r}")
        self.count, self.residency = int(count), Residency(residency)
        self.allocation, self.offset, self.owned = Allocation(self.count * self.element.size), 0, True

    @classmethod
    def of(cls, element: Scalar, values) -> KernelBuffer:
        """A buffer that holds the given values (see `upload`)."""
        values = np.asarray(values)
        buffer = cls(element, values.size)
        buffer.upload(values)
        return buffer

    @property
    def array(self) -> np.ndarray:
        """The elements in place, in their memory dtype (bfloat16 as uint16 bits, bool as uint8)."""
        if self.allocation.bytes is None:
            raise XpuError("this buffer was freed")
        size = self.count * self.element.size
        return self.allocation.bytes[self.offset : self.offset + size].view(self.element.dtype)

    def _view(self, element: Scalar, offset: int, count: int) -> KernelBuffer:
        view = object.__new__(KernelBuffer)
        view.element, view.count, view.residency = element, count, self.residency
        view.allocation, view.offset, view.owned = self.allocation, self.offset + offset, False
        return view

    def slice(self, offset: int, count: int) -> KernelBuffer:
        """A view of `count` elements from `offset` on."""
        if offset < 0 or count < 1 or offset + count > self.count:
            raise XpuError(f"slice({offset}, {count}) of a buffer of {self.count} elements")
        return self._view(self.element, offset * self.element.size, count)

    def _words(self, element: Scalar, bits: int, what: str) -> KernelBuffer:
        if self.element.size != 1 or element.bits != bits or self.count % element.size:
            raise XpuError(
                f"{what} sees bytes, a multiple of {bits // 8} of them, as {bits}-bit elements; "
                f"this holds {self.count} of {self.element}, to be seen as {element}"
            )
        return self._view(element, 0, self.count // element.size)

    def word_view(self, element: Scalar = u32) -> KernelBuffer:
        """The bytes as 32-bit elements."""
        return self._words(element, 32, "word_view")

    def half_view(self, element: Scalar = f16) -> KernelBuffer:
        """The bytes as 16-bit elements."""
        return self._words(element, 16, "half_view")

    def upload(self, values) -> None:
        """Fill the buffer. The dtype must be the element's, or Python numbers that it holds exactly enough."""
        self.settle()
        values = np.asarray(values)
        if values.size != self.count:
            raise XpuError(f"upload of {values.size} elements into a buffer of {self.count}")
        wanted = np.dtype(self.element.dtype)
        if values.dtype == bool and self.element is BOOL:
            values = values.astype(wanted)
        if values.dtype != wanted:
            raise XpuError(f"upload of {values.dtype} into a buffer of {self.element}: {wanted} is expected")
        self.array[:] = values.reshape(-1)

    def download(self) -> np.ndarray:
        """A copy of the elements, once the launches that use them have run."""
        self.settle()
        return self.array.copy()

    def upload_async(self, stream, values) -> None:
        """`upload` in a stream's order. Streams run what they are given at once."""
        stream.check()
        self.upload(values)

    def download_async(self, stream) -> np.ndarray:
        """`download` in a stream's order."""
        stream.check()
        return self.array.copy()

    def host_load(self, index: int):
        """An element without a copy, on pinned or unified memory."""
        return self._host()[index]

    def host_store(self, index: int, value) -> None:
        """Write an element without a copy, on pinned or unified memory."""
        self._host()[index] = value

    def _host(self) -> np.ndarray:
        if self.residency is Residency.DEVICE:
            raise XpuError("host_load and host_store need pinned or unified memory; download copies")
        return self.array

    def settle(self) -> None:
        """Wait for the streams that use the allocation."""
        for stream in list(self.allocation.borrowers):
            stream.sync()

    def free(self) -> None:
        """Give the allocation back; again does nothing. XPU-K02 while a launch may still use it."""
        if not self.owned:
            raise XpuError("a view does not own its memory; free the buffer")
        if self.allocation.borrowers:
            raise XpuError("XPU-K02: a launch still uses this buffer; sync its stream first")
        self.allocation.bytes = None

    def __getitem__(self, _):
        raise HostUse("only kernels index a buffer's elements; download copies them")

    def __setitem__(self, _, __):
        raise HostUse("only kernels index a buffer's elements; upload fills them")

    def __len__(self) -> int:
        return self.count
