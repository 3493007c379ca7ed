"""Tensors of a session: FP16 arrays that kernels on the machine read and write."""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from kohakutpu.compiler import BufferImage
from kohakutpu.lang.source import KernelError, Source, at

if TYPE_CHECKING:
    from .graph import Graph
    from .session import Session

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
FP16 = (np.dtype(np.float16), np.dtype(np.uint16))


class SessionError(KernelError):
    """A tensor, a call or a plan that is refused: says which, what was given and what is expected, and on what line."""


def caller() -> Source:
    """The line outside this package that is being executed."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return at(frame.f_code.co_filename, frame.f_lineno)


def patterns(name: str, array: object, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """An array's FP16 patterns, uint16. Raises SessionError for another type, or another shape than the one given."""
    if not isinstance(array, np.ndarray) or array.dtype not in FP16:
        found = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise SessionError(
            f"{name}: expected an array of float16 or of uint16 bit patterns, got {found}; nothing is converted in silence",
            caller(),
        )
    if shape is not None and array.shape != shape:
        raise SessionError(f"{name}: expected shape {list(shape)}, got {list(array.shape)}", caller())
    if not array.size:
        raise SessionError(f"{name}: shape {list(array.shape)} has no elements", caller())
    return np.array(array, order="C").view(np.uint16)


@dataclass(eq=False)
class Tensor:
    """FP16 of `shape` in the memory of a session's machine.

    `kind` is 'pinned' (what `Session.pin` was given; `array` are its patterns), 'input' of a model function, a 'result'
    of a kernel, or a 'view' of one of these, its `base`, in another shape. All but pinned ones belong to a `graph`; a result that
    stays has a place in memory, `image`, and can be read once it is `written`.
    """

    session: Session
    name: str
    shape: tuple[int, ...]
    kind: str
    graph: Graph | None = None
    array: np.ndarray | None = None
    image: BufferImage | None = None
    written: bool = False
    freed: bool = False
    dirt: tuple[bool, str | None] = (False, None)  # `compiler.padding`: of rows, and of columns with who computed it
    quiet: bool = False  # `compiler.payloads`: holds no NaN but the one that arithmetic makes
    base: Tensor | None = None
    views: dict[tuple[int, ...], Tensor] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name}{list(self.shape)}>"

    def __bool__(self) -> bool:
        """Refused inside a model function, which is traced for all values."""
        if self.session.tracing is None:
            return True
        raise SessionError(
            f"{self.name} is a tensor of a model function, which runs before there are values: it cannot be branched on (if, not, and, or)",
            caller(),
        )

    def named(self, name: str) -> Tensor:
        """The same tensor, under another name in plans and messages."""
        if self.kind != "result" or self.graph is None:
            raise SessionError(f"{self.name} is {self.kind}: only results of a model function are renamed", caller())
        if self.graph is not self.session.tracing:
            raise SessionError(f"{self.name} is renamed after {self.graph.name} was traced: a plan has its name by now", caller())
        self.graph.rename(self, name)
        return self

    @property
    def root(self) -> Tensor:
        """The tensor itself, or what it is a view of."""
        return self if self.base is None else self.base

    def reshape(self, *shape: int | tuple[int, ...]) -> Tensor:
        """The same elements, row-major, in another shape, for kernels to read: as they lie, where they lie row by row, or out of
        tiles after a copy; what does not lie in one run is refused when it is read (`docs/models.md`).

        Raises SessionError for a shape that has another number of elements.
        """
        self.require(caller())
        given = shape[0] if len(shape) == 1 and isinstance(shape[0], tuple) else shape
        shape = tuple(int(n) if isinstance(n, np.integer) else n for n in given)
        if not all(type(n) is int and n > 0 for n in shape) or math.prod(shape) != math.prod(self.shape) or not shape:
            raise SessionError(
                f"{self.name}{list(self.shape)} has {math.prod(self.shape)} elements, which {list(shape)} is no shape of", caller()
            )
        if shape == self.shape:
            return self
        if shape == self.root.shape:
            return self.root
        root, name = self.root, f"{self.root.name}.reshape({', '.join(map(str, shape))})"
        return root.views.setdefault(shape, Tensor(self.session, name, shape, "view", root.graph, base=root))

    def read(self) -> np.ndarray:
        """What the tensor holds, float16 of `shape`, read from the machine's memory.

        Raises SessionError for a tensor that is freed, not written yet, or not in memory between kernels.
        """
        self.require(caller())
        if self.base is not None:
            return self.base.read().reshape(self.shape)
        if self.kind == "pinned":
            return self.array.view(np.float16).copy()
        if self.image is None:
            raise SessionError(
                f"{self.name} is {self.kind} of a model function and stands in memory only while that runs; return it to keep it",
                caller(),
            )
        if not self.written:
            raise SessionError(f"{self.name} is read before anything has been written to it", caller())
        return self.image.unpack(self.session.loader.read_buffer(self.image)).view(np.float16)

    def free(self) -> None:
        """Give the memory back. What still uses the tensor is refused from now on."""
        self.require(caller())
        self.session.release(self)
        self.freed = True

    def require(self, source: Source) -> None:
        """Refuse a tensor that is freed."""
        if self.root.freed:
            raise SessionError(f"{self.root.name} was freed", source)
