"""Scratch memory of a workgroup: places that outlive a region, a wave each, and Shared arrays."""

from __future__ import annotations

from llvmlite import ir

from kohakutpu.xpu import tree
from kohakutpu.xpu.types import SharedType

from .emit import I1, I8, I64, POINTER, Value
from .memory import Memory
from .tiles import Tiles
from .traps import DYNAMIC

SCRATCH_ALIGN = 64


class Scratch(Tiles):
    """`scratch` is the function's pointer, `scratch_bytes` what of it is taken, `shared` the arrays by declaration."""

    def reserve(self, size: int) -> int:
        """An offset of bytes in scratch memory."""
        at = self.scratch_bytes
        self.scratch_bytes += -(-size // SCRATCH_ALIGN) * SCRATCH_ALIGN
        return at

    def bytes_of(self, kind) -> int:
        """Bytes of an LLVM type in memory."""
        if isinstance(kind, ir.ArrayType):
            return kind.count * self.size(kind.element)
        if isinstance(kind, ir.VectorType):
            return -(-kind.count // 8) if kind.element == I1 else kind.count * self.size(kind.element)
        return self.size(kind)

    def scratch_place(self, kind):
        """A place for each wave; its address is found from the present wave."""
        step = -(-self.bytes_of(kind) // SCRATCH_ALIGN) * SCRATCH_ALIGN
        at = self.reserve(step * self.waves)

        def pointer():
            moved = self.builder.mul(self.widen(self.wave, 64), I64(step))
            return self.address(self.scratch, self.builder.add(moved, I64(at)))

        return pointer

    def lay_shared(self, node: tree.DeclareShared) -> None:
        """A Shared array's place; in a checked build nothing of it is written yet."""
        kind: SharedType = node.variable.type
        if node.dynamic:
            if self.dynamic is None:
                pointer = self.builder.load(self.address(self.record, I64(DYNAMIC), I64), typ=POINTER)
                written = self.address(pointer, self.launch_bytes) if self.checked else None
                self.dynamic, self.dynamic_count = (pointer, written), self.alloca(I64)
            if self.checked:
                self.clear(self.dynamic[1], self.launch_bytes)
            self.builder.store(I64(0), self.dynamic_count)
            return
        count = node.count.value
        if count < 1:
            return
        pointer = self.address(self.scratch, I64(self.reserve(count * kind.element.size)))
        written = None
        if self.checked:
            written = self.address(self.scratch, I64(self.reserve(count)))
            self.clear(written, I64(count))
        self.shared[node] = Memory(node.variable.name, kind.element, pointer, I64(count), written, kind)

    def clear(self, pointer, count) -> None:
        """Zero bytes."""
        function = self._intrinsics.get("llvm.memset")
        if function is None:
            kind = ir.FunctionType(ir.VoidType(), [POINTER, I8, I64, I1])
            function = self._intrinsics["llvm.memset"] = ir.Function(self.module, kind, "llvm.memset.p0.i64")
        self.builder.call(function, [pointer, I8(0), count, I1(0)])

    dynamic = None

    def declare_shared(self, node: tree.DeclareShared) -> None:
        kind = node.variable.type
        if node in self.shared:
            self.frame.values[node.variable] = self.shared[node]
            return
        if not node.dynamic:
            self.check(Value(I1(1)), node.at, f"{node.count.value} elements of Shared {node.variable.name}")
            self.frame.values[node.variable] = Memory(
                node.variable.name, kind.element, self.scratch, I64(0), None, kind
            )
            return
        self.frame.values[node.variable] = self.dynamic_shared(node, self.value(node.count))

    def dynamic_shared(self, node: tree.DeclareShared, count: Value) -> Memory:
        """The array that the launch sizes: after the constant part of scratch memory, then its written marks."""
        b, kind, of = self.builder, node.variable.type, node.count.type
        name = node.variable.name
        first = self.widen(self.pick(count, self.first()), 64, of.signed)
        slots = b.udiv(self.launch_bytes, I64(kind.element.size))
        if self.checked:
            wide = self.wide(count, of)
            bad = self.apply(lambda n: b.icmp_signed("<", n, self.like(n, 1)), wide)
            self.check(bad, node.at, f"{{0}} elements of Shared {name}", (of, count))
            past = self.apply(lambda n: b.icmp_signed(">", n, self.spread_like(slots, n)), wide)
            self.check(past, node.at, f"{{0}} elements of Shared {name}, where the launch gives {{1}}", (of, count),
                       (of, Value(self.widen(slots, of.bits))))  # fmt: skip
            held = b.load(self.dynamic_count, typ=I64)
            first = b.select(b.icmp_unsigned("==", held, I64(0)), first, held)
            apart = self.apply(lambda n: b.icmp_unsigned("!=", n, self.spread_like(first, n)), wide)
            self.check(apart, node.at, f"{{0}} elements of Shared {name}, to which another gave {{1}}", (of, count),
                       (of, Value(self.widen(first, of.bits))))  # fmt: skip
        b.store(first, self.dynamic_count)
        pointer, written = self.dynamic
        slot = self.dynamic_count
        return Memory(name, kind.element, pointer, lambda: b.load(slot, typ=I64), written, kind)

    def spread_like(self, scalar, like):
        """A scalar as wide as another value."""
        return self.broadcast(scalar) if isinstance(like.type, ir.VectorType) else scalar
