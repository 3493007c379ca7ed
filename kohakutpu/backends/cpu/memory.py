"""Memory of a wave: loads, stores and atomics, contiguous where the index is a coordinate, else gathered.

A checked build tests every index against the memory's count, every Shared element against what was written, and every
`align=` that the compiler could not prove.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from kohakutpu.xpu.types import MemoryOrder, Scalar, SharedType, f32, i64

from .emit import I1, I8, I32, I64, Value, memory_type
from .numbers import Numbers

ORDERS = {
    MemoryOrder.RELAXED: "monotonic", MemoryOrder.ACQUIRE: "acquire", MemoryOrder.RELEASE: "release",
    MemoryOrder.ACQ_REL: "acq_rel", MemoryOrder.SEQ_CST: "seq_cst",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Memory:
    """A buffer or a Shared array: `pointer`, `count` slots (i64), and in a checked build `written`, a byte a slot.

    The count of an array that the launch sizes is found where it is asked for: it is a function.
    """

    name: str
    element: Scalar
    pointer: object
    count: object
    written: object = None
    layout: SharedType | None = None

    @property
    def slots(self):
        """The count."""
        return self.count() if callable(self.count) else self.count


class MemoryAccess(Numbers):
    """What reads and writes."""

    # Indices.
    def position(self, index: Value, kind: Scalar, memory: Memory) -> Value:
        """The slot of an index. Linear ones stay linear, unless they are so narrow that they may wrap in bounds."""
        if memory.layout is not None and memory.layout.block:
            block, pad = memory.layout.block, memory.layout.pad
            wide = self.wide(index, kind)
            b = self.builder

            def slot(at):
                # Unsigned, a negative index divides to a slot that is past every end.
                return b.add(at, b.mul(b.udiv(at, self.like(at, block)), self.like(at, pad)))

            return self.apply(slot, wide)
        if index.stride is not None and (index.uniform or kind.bits >= 32):
            return index
        return self.wide(index, kind)

    def wide(self, index: Value, kind: Scalar) -> Value:
        """An index as 64 bits."""
        return self.apply(lambda at: self.widen(at, 64, kind.signed), index)

    def in_bounds(self, node, what: str, memory: Memory, at: Value, index: Value, kind: Scalar, last: int = 0) -> None:
        """Stop where an index, or one up to `last` further, is outside."""
        if not self.checked:
            return
        b, slots = self.builder, memory.slots

        def bad(held):
            width = getattr(held.type, "element", held.type).width
            room = b.sub(slots, I64(last))
            limit = room
            if width < 64:
                top = I64((1 << width - (kind.signed if width == kind.bits else 0)) - 1)
                above = b.icmp_signed(">", room, b.add(top, I64(1)))
                limit = b.select(above, b.add(top, I64(1)), room)
            none = b.icmp_signed("<=", limit, I64(0))
            inside = self.widen(b.sub(limit, I64(1)), width)
            if isinstance(held.type, ir.VectorType):
                inside, none = self.broadcast(inside), self.broadcast(none)
            return b.or_(b.icmp_unsigned(">", held, inside), none)

        units = "slots" if memory.layout is not None and memory.layout.block else "elements"
        past = f", and {last} more" if last else ""
        text = f"{what} of {memory.name}[{{0}}]{past}, which has {{1}} {units}"
        shown = ((kind, index), (i64, Value(slots)))
        if at.stride is None or at.stride < 0:
            self.check(self.apply(bad, at), node.at, text, *shown)
            return
        # One comparison of the first lane clears a whole wave; only where it does not, each lane is looked at.
        room = b.sub(slots, I64((self.width - 1) * at.stride + last))
        room = b.select(b.icmp_signed(">", room, I64(0)), room, I64(0))
        outside = b.icmp_unsigned(">=", self.widen(at.ir, 64, kind.signed), room)
        if at.uniform:
            self.check(Value(outside), node.at, text, *shown)
            return
        with self.when(outside, likely=False):
            self.check(self.apply(bad, at), node.at, text, *shown)

    def base_of(self, at: Value, kind: Scalar):
        """For a linear index of stride 1: where lane 0 would lie (i64), found from the first lane that runs."""
        b = self.builder
        width = at.ir.type.width
        if self.mask is None:
            return self.widen(at.ir, 64, kind.signed)
        first = self.first()
        start = b.add(at.ir, self.widen(first, width))
        return b.sub(self.widen(start, 64, kind.signed), first)

    # One element.
    def load(self, node, memory: Memory, index: Value) -> Value:
        return self.load_at(node, memory, index, node.index.type)

    def load_at(self, node, memory: Memory, index: Value, kind: Scalar) -> Value:
        """An element by an index of a type."""
        at = self.position(index, kind, memory)
        self.in_bounds(node, "a read", memory, at, index, kind)
        if memory.written is not None:
            seen = self.fetch(memory.written, I8, at, kind)
            unwritten = self.apply(lambda held: self.builder.icmp_unsigned("==", held, self.like(held, 0)), seen)
            text = f"a read of {memory.name}[{{0}}], which no work-item wrote"
            self.check(unwritten, node.at, text, (kind, index))
        found = self.fetch(memory.pointer, memory_type(memory.element), at, kind)
        return self.apply(lambda held: self.from_memory(memory.element, held), found)

    def fetch(self, pointer, kind, at: Value, index_kind: Scalar) -> Value:
        """What memory holds at checked slots."""
        b = self.builder
        size = self.size(kind)
        if at.uniform:
            place = self.address(pointer, self.widen(at.ir, 64, index_kind.signed), kind)
            return Value(b.load(place, typ=kind, align=size))
        lanes = self.vector(kind)
        if at.stride == 1:
            place = self.address(pointer, self.base_of(at, index_kind), kind)
            if self.mask is None:
                return Value(b.load(place, typ=lanes, align=size), None)
            name = f"llvm.masked.load.{self.suffix(lanes)}.p0"
            loaded = self.masked_call(name, lanes, [place, self.mask, ir.Constant(lanes, None)], 0, size)
            return Value(loaded, None)
        return Value(self.gather(pointer, kind, self.offsets(at, index_kind)), None)

    def offsets(self, at: Value, kind: Scalar):
        """Slots as 64-bit lanes."""
        return self.widen(self.spread(at), 64, kind.signed)

    def gather(self, pointer, kind, offsets, scale=None):
        """Lanes from anywhere."""
        lanes = self.vector(kind)
        places = self.address(pointer, offsets, scale or kind)
        name = f"llvm.masked.gather.{self.suffix(lanes)}.v{self.width}p0"
        size = self.size(scale or kind)
        return self.masked_call(name, lanes, [places, self.full(), ir.Constant(lanes, None)], 0, size)

    def masked_call(self, name: str, result, arguments: list, pointer: int, align: int):
        """A masked intrinsic, whose pointer argument carries its alignment."""
        call = self.intrinsic(name, result, arguments)
        call.arg_attributes[pointer] = ir.values.ArgumentAttributes()
        call.arg_attributes[pointer].align = align
        return call

    @staticmethod
    def size(kind) -> int:
        """Bytes of an LLVM type in memory."""
        return {"half": 2, "float": 4, "double": 8}.get(str(kind)) or max(kind.width // 8, 1)

    def store(self, node, memory: Memory, index: Value, value: Value) -> None:
        """One element each."""
        self.store_at(node, memory, index, node.index.type, value)

    def store_at(self, node, memory: Memory, index: Value, kind: Scalar, value: Value) -> None:
        """An element by an index of a type."""
        at = self.position(index, kind, memory)
        self.in_bounds(node, "a write", memory, at, index, kind)
        value = self.apply(lambda held: self.to_memory(memory.element, held), value)
        self.put(memory.pointer, memory_type(memory.element), at, kind, value)
        if memory.written is not None:
            self.put(memory.written, I8, at, kind, Value(I8(1)))

    def put(self, pointer, kind, at: Value, index_kind: Scalar, value: Value) -> None:
        """Into checked slots; of several lanes at one slot the last stays."""
        b = self.builder
        size = self.size(kind)
        if at.uniform:
            place = self.address(pointer, self.widen(at.ir, 64, index_kind.signed), kind)
            b.store(self.pick(value, self.last()), place, align=size)
            return
        lanes = self.spread(value)
        if at.stride == 1:
            place = self.address(pointer, self.base_of(at, index_kind), kind)
            if self.mask is None:
                b.store(lanes, place, align=size)
                return
            name = f"llvm.masked.store.{self.suffix(lanes.type)}.p0"
            self.masked_call(name, ir.VoidType(), [lanes, place, self.mask], 1, size)
            return
        places = self.address(pointer, self.offsets(at, index_kind), kind)
        name = f"llvm.masked.scatter.{self.suffix(lanes.type)}.v{self.width}p0"
        self.masked_call(name, ir.VoidType(), [lanes, places, self.full()], 1, size)

    # Vectors.
    def aligned(self, node, memory: Memory, index: Value) -> Value:
        """In a checked build, an index whose stated alignment does not hold is noted and rounded down."""
        if not self.checked or node.align <= node.proven:
            return index
        step = node.align // memory.element.size
        if step < 2:
            return index
        b = self.builder
        bad = self.apply(lambda at: b.icmp_unsigned("!=", b.and_(at, self.like(at, step - 1)), self.like(at, 0)), index)
        text = f"{node.align} bytes are promised of {memory.name}, and the index is {{0}}"
        self.note(bad, node.at, text, (node.index.type, index))
        return self.apply(lambda at: b.and_(at, self.like(at, -step)), index)

    def moved(self, index: Value, by: int, kind: Scalar) -> Value:
        """An index and a constant more, which never wraps: in 64 bits."""
        return self.apply(lambda at: self.builder.add(at, self.like(at, by)), index) if by else index

    def wider(self, index: Value, kind: Scalar) -> tuple[Value, Scalar]:
        """A vector's first index as 64 bits, so that the others do not wrap."""
        if index.stride is not None and not index.uniform and self.mask is not None:
            return Value(self.widen(self.spread(index), 64, kind.signed), None), i64
        if index.stride is not None and not index.uniform:
            return Value(self.widen(index.ir, 64, kind.signed), index.stride), i64
        return self.wide(index, kind), i64

    def load_vector(self, node, memory: Memory, index: Value) -> tuple:
        index = self.aligned(node, memory, index)
        count, element = node.type.count, memory.element
        index, kind = self.wider(index, node.index.type)
        plain = memory.written is None and not (memory.layout is not None and memory.layout.block)
        pack = 4 // element.size if element.size < 4 and element.kind != "bool" else 1
        if not plain or index.uniform or pack == 1 or count % pack:
            return tuple(self.load_at(node, memory, self.moved(index, k, kind), kind) for k in range(count))
        self.in_bounds(node, "a read", memory, index, index, kind, count - 1)
        return self.unpacked(memory, self.offsets(index, kind), count, pack)

    def unpacked(self, memory: Memory, offsets, count: int, pack: int) -> tuple:
        """Narrow elements, gathered as words of 32 bits: few machines gather bytes."""
        b, element = self.builder, memory.element
        bits, found = element.size * 8, []
        for start in range(0, count, pack):
            at = b.add(offsets, self.like(offsets, start))
            words = self.gather(memory.pointer, I32, at, memory_type(element))
            for part in range(pack):
                lane = self.widen(b.lshr(words, self.like(words, part * bits)), bits)
                if element.kind == "float" and element.name == "f16":
                    lane = b.bitcast(lane, self.vector(memory_type(element)))
                found.append(Value(self.from_memory(element, lane), None))
        return tuple(found)

    def store_vector(self, node, memory: Memory, index: Value, values: tuple) -> None:
        """`memory.vstore`."""
        index, kind = self.wider(self.aligned(node, memory, index), node.index.type)
        for offset, value in enumerate(values):
            self.store_at(node, memory, self.moved(index, offset, kind), kind, value)

    # Atomics.
    def atomic(self, node, op: str, memory: Memory, index: Value, *values: Value) -> Value:
        kind, element = node.arguments[1].type, memory.element
        at = self.position(index, kind, memory)
        self.in_bounds(node, "a read", memory, at, index, kind)
        if memory.written is not None:
            seen = self.fetch(memory.written, I8, at, kind)
            unwritten = self.apply(lambda held: self.builder.icmp_unsigned("==", held, self.like(held, 0)), seen)
            self.check(unwritten, node.at, f"a read of {memory.name}[{{0}}], which no work-item wrote", (kind, index))
        function = self.atomic_function(op, element, ORDERS[node.options[0]])
        lanes = [self.spread(value) for value in values]
        mask = self.widen(self.bits(self.full()), 64)
        return Value(self.builder.call(function, [memory.pointer, self.offsets(at, kind), *lanes, mask]), None)

    def atomic_function(self, op: str, element: Scalar, order: str) -> ir.Function:
        """A function that does one atomic after another, lane by lane, and gives the old values."""
        name = f"xpu.{op}.{element}.{order}"
        found = self.module.globals.get(name)
        if found:
            return found
        kind = memory_type(element)
        lanes = self.vector(kind)
        operands = [lanes] * (2 if op == "compare_exchange" else 1)
        # The mask goes in as a number: LLVM cannot pass the mask of a wave of one lane.
        taken = [ir.PointerType(), self.vector(I64), *operands, I64]
        made = ir.Function(self.module, ir.FunctionType(lanes, taken), name)
        made.linkage = "internal"
        made.attributes.add("noinline")
        b = ir.IRBuilder(made.append_basic_block("entry"))
        pointer, offsets, *values, mask = made.args
        head, turn, work, done = (made.append_basic_block(n) for n in ("head", "turn", "work", "done"))
        index_slot, result = b.alloca(I32), b.alloca(lanes)
        b.store(I32(0), index_slot)
        b.store(ir.Constant(lanes, None), result)
        b.branch(head)
        b.position_at_end(head)
        index = b.load(index_slot, typ=I32)
        b.cbranch(b.icmp_unsigned("<", index, I32(self.width)), turn, done)
        b.position_at_end(turn)
        b.store(b.add(index, I32(1)), index_slot)
        b.cbranch(b.trunc(b.lshr(mask, b.zext(index, I64)), I1), work, head)
        b.position_at_end(work)
        place = b.gep(pointer, [b.extract_element(offsets, index)], source_etype=kind)
        held = [b.extract_element(value, index) for value in values]
        old = self.one_atomic(b, op, element, place, held, order)
        b.store(b.insert_element(b.load(result, typ=lanes), old, index), result)
        b.branch(head)
        b.position_at_end(done)
        b.ret(b.load(result, typ=lanes))
        return made

    def one_atomic(self, b: ir.IRBuilder, op: str, element: Scalar, place, held: list, order: str):
        """One lane's atomic."""
        if op == "compare_exchange":
            if element is f32:
                return self.exchange_equal(b, place, *held, order)
            failing = {"release": "monotonic", "acq_rel": "acquire"}.get(order, order)
            return b.extract_value(b.cmpxchg(place, *held, order, failing), 0)
        word = {"exchange": "xchg"}.get(op, op)
        if element is f32:
            word = {"add": "fadd", "min": "fmin", "max": "fmax"}.get(word, word)
        elif op in ("min", "max") and not element.signed:
            word = "u" + op
        return b.atomic_rmw(word, place, held[0], order)

    def exchange_equal(self, b: ir.IRBuilder, place, expected, desired, order: str):
        """Compare and exchange of floats, which compares by value: the words go round until one of them holds still."""
        function = b.function
        again, equal, done = (function.append_basic_block(n) for n in ("again", "equal", "kept"))
        slot = b.alloca(I32)
        b.store(b.load(place, typ=I32), slot)
        b.branch(again)
        b.position_at_end(again)
        word = b.load(slot, typ=I32)
        value = b.bitcast(word, memory_type(f32))
        b.cbranch(b.fcmp_ordered("==", value, expected), equal, done)
        b.position_at_end(equal)
        failing = {"release": "monotonic", "acq_rel": "acquire"}.get(order, order)
        pair = b.cmpxchg(place, word, b.bitcast(desired, I32), order, failing)
        b.store(b.extract_value(pair, 0), slot)
        b.cbranch(b.extract_value(pair, 1), done, again)
        b.position_at_end(done)
        return b.bitcast(b.load(slot, typ=I32), memory_type(f32))
