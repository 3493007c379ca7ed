"""Who touched what since the last barrier: what makes the fast path sure that order did not matter."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np

from kohakutpu.xpu import tree
from kohakutpu.xpu.types import Scalar, u32

from . import batch
from .batch import Bail
from .memory import Memory

MANY = 1 << 31
EPOCH = 1 << 32


class Touched:
    """Who read and who wrote each element of a memory since an epoch began; a stamp is the epoch plus who."""

    def __init__(self, count: int):
        self.readers = np.full(count, -1, np.int64)
        self.writers = np.full(count, -1, np.int64)

    def read(self, slots, me, epoch: int) -> None:
        """Bail if another wrote a slot.

        Of several that read a slot at once the last is noted. If it writes the slot later, the others stand before it
        in the walker's order too, and have read.
        """
        writer = self.writers[slots]
        if np.any((writer >= epoch) & (writer != me)):
            raise Bail("a read of what another work-item wrote")
        old = self.readers[slots]
        self.readers[slots] = np.where((old < epoch) | (old == me), me, epoch + MANY)

    def write(self, slots, me, epoch: int) -> None:
        """Bail if another touched a slot, or writes it now."""
        for stamps in (self.writers, self.readers):
            held = stamps[slots]
            if np.any((held >= epoch) & (held != me)):
                raise Bail("a write of what another work-item touched")
        self.writers[slots] = me
        if np.any(self.writers[slots] != me):
            raise Bail("a write of what another work-item touched")


class Tracked:
    """A memory of the batch. `items` tells work-items apart since the last barrier, `groups` workgroups in the batch.

    Shared memory has one array for all workgroups of the batch: `count` elements each, a work-item's from `base` on.
    """

    def __init__(self, memory: Memory, items: bool, groups: bool = False, base=None, count: int | None = None):
        size = len(memory.array)
        self.memory, self.base, self.count = memory, base, size if count is None else count
        self.items = Touched(size) if items else None
        self.groups = Touched(size) if groups else None


def bind(program: tree.Program, arguments: list, watched: set) -> dict:
    """The parameters' values: numpy scalars, and memories that are watched if they may be stored to."""
    frame = {}
    meets = "workgroup rendezvous" in program.uses
    for parameter, value in zip(program.kernel.parameters, arguments, strict=True):
        if isinstance(value, Memory):
            frame[parameter] = Tracked(value, parameter in watched, meets and parameter in watched)
        else:
            kind = parameter.type if isinstance(parameter.type, Scalar) else u32
            frame[parameter] = np.array(value, batch.dtype(kind))[()]
    return frame


def epochs() -> Iterator[int]:
    """Stamps that leave room for whoever is told apart."""
    return count(EPOCH, EPOCH)


UNKNOWN = (tree.Slice, tree.MakeWaveVector, tree.CallTag)
FAMILIES = ("tile.", "memory.", "async_copy.")


def nodes(program: tree.Program):
    """Every node of a program."""
    for function in program.functions:
        for statement in function.body:
            yield from tree.walk(statement)


def unknown(program: tree.Program) -> str | None:
    """What the fast path does not know of a program, or None."""
    for node in nodes(program):
        if isinstance(node, UNKNOWN):
            return type(node).__name__
        if isinstance(node, tree.Invoke) and node.verb.startswith(FAMILIES):
            return node.verb
    return None


def stored(program: tree.Program) -> set[tree.Variable]:
    """The kernel's parameters that may be stored to: all of them, if a helper stores through one of its own."""
    found = {n.memory.variable for n in nodes(program) if isinstance(n, (tree.Store, tree.StoreVector))}
    parameters = set(program.kernel.parameters)
    through = any(variable.kind == "parameter" and variable not in parameters for variable in found)
    return parameters if through else found & parameters
