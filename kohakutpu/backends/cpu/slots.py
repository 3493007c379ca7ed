"""Variables of a wave that change: memory of their own, which LLVM keeps in registers where it can."""

from __future__ import annotations

from kohakutpu.xpu.types import Scalar

from .emit import Value, llvm_type


class Slot:
    """Where a variable that changes lives: `pointer()` gives its place. `stride` and `known` are as in Value."""

    def __init__(self, emitter, kind: Scalar, stride: int | None, pointer):
        self.emitter, self.kind, self.stride, self.pointer = emitter, kind, stride, pointer
        self.type = llvm_type(kind) if stride is not None else emitter.vector(llvm_type(kind))
        self.known: tuple = ()

    def load(self) -> Value:
        """The value."""
        return Value(self.emitter.builder.load(self.pointer(), typ=self.type), self.stride, *self.known)

    def store(self, value: Value, whole: bool = False) -> None:
        """A new value, for the lanes of the mask; `whole` for all, as a declaration does."""
        emitter = self.emitter
        if self.stride is not None:
            assert value.stride == self.stride, "a variable that was found uniform varies"
            emitter.builder.store(value.ir, self.pointer())
            return
        new = emitter.spread(value)
        if emitter.mask is not None and not whole:
            new = emitter.builder.select(emitter.mask, new, self.load().ir)
        emitter.builder.store(new, self.pointer())
