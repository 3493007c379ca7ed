"""How loops of a wave count their turns: which lanes have one, and the variables that it sets."""

from __future__ import annotations

from llvmlite import ir

from kohakutpu.xpu import tree
from kohakutpu.xpu.types import BOOL, u32, u64

from .emit import I1, I64, Value


class Tested:
    """The turns of a while loop."""

    def __init__(self, flow, node: tree.While):
        self.flow, self.node = flow, node
        always = isinstance(node.condition, tree.Literal) and node.condition.value
        self.varies = not always and flow.differs(node.condition)
        self.always = always

    def test(self, count) -> Value | None:
        """Whether lanes go on; None if they do without asking."""
        if self.always:
            return None
        if not self.node.test_last:
            return self.flow.value(self.node.condition)
        flow, mask = self.flow, self.flow.mask
        slot = flow.slot(BOOL, None, False)
        slot.store(Value(I1(1)), whole=True)
        kept = []
        with flow.when(flow.builder.icmp_unsigned("!=", count, I64(0))):
            value = flow.value(self.node.condition)
            kept.append(value.uniform)
            slot.store(value)
        flow.mask = mask
        found = slot.load()
        return Value(flow.pick(found, flow.first())) if not self.varies else found

    def begin(self, count) -> None:
        """A while loop sets nothing."""


class Counted:
    """The turns of a counted loop: how many there are for each lane, and the variables of one."""

    def __init__(self, flow, node):
        self.flow, self.node = flow, node
        self.memory = None
        if isinstance(node, tree.ForRange):
            start, stop = flow.value(node.start), flow.value(node.stop)
            self.kind, self.step = node.start.type, node.step
        elif isinstance(node, tree.ForStripe):
            stop = flow.value(node.count)
            self.kind, self.step = node.variable.type, flow.width
            start = flow.cast_lane(self.kind)
        else:
            self.memory, stop = flow.value(node.memory), flow.value(node.count)
            self.kind, self.step = u32, None
            start = flow.global_id(0)
        self.start, self.stop_kind = start, (node.count if not isinstance(node, tree.ForRange) else node.stop).type
        self.total = flow.apply(self.turns_between, start, stop)
        self.varies = not self.total.uniform

    def turns_between(self, start, stop):
        """How many turns, as unsigned 64 bits. In 128 bits, where nothing wraps, if the bounds have 64."""
        flow, b = self.flow, self.flow.builder
        bits = 128 if max(self.kind.bits, self.stop_kind.bits) == 64 else 64
        start, stop = flow.widen(start, bits, self.kind.signed), flow.widen(stop, bits, self.stop_kind.signed)
        if self.step is None:
            stride = flow.widen(flow.grid_stride(), bits)
            stride = flow.broadcast(stride) if isinstance(start.type, ir.VectorType) else stride
        else:
            stride = flow.like(start, abs(self.step))
        span = b.sub(stop, start) if self.step is None or self.step > 0 else b.sub(start, stop)
        up = b.add(span, b.sub(stride, flow.like(span, 1)))
        none = b.icmp_signed("<=", span, flow.like(span, 0))
        count = up if self.step is not None and abs(self.step) == 1 else b.udiv(up, stride)
        return flow.widen(b.select(none, flow.like(count, 0), count), 64)

    def test(self, count) -> Value:
        """Whether lanes have a turn of this number."""
        flow = self.flow
        if self.total.uniform:
            return Value(flow.builder.icmp_unsigned("<", count, self.total.ir))
        return Value(flow.builder.icmp_unsigned("<", flow.broadcast(count), flow.spread(self.total)), None)

    def begin(self, count) -> None:
        """Set the turn's variables."""
        flow, b, node = self.flow, self.flow.builder, self.node
        number = flow.widen(count, self.kind.bits)
        step = flow.widen(flow.grid_stride(), self.kind.bits) if self.step is None else flow.like(number, self.step)
        moved = b.mul(number, step)
        if self.start.stride is not None:
            at = Value(b.add(self.start.ir, moved), self.start.stride)
        else:
            at = Value(b.add(self.start.ir, flow.broadcast(moved)), None)
        if isinstance(node, tree.ForBuffer):
            flow.declare(node.index, at)
            flow.declare(node.element, flow.load_at(node, self.memory, at, u32))
        else:
            flow.declare(node.variable, at)


class GroupTurns:
    """A loop's turns where the workgroup meets inside: its bounds are kept for each wave."""

    def __init__(self, groups, node):
        self.groups, self.node = groups, node
        self.inner = groups.turns(node)
        if isinstance(node, tree.While):
            return
        inner = self.inner
        self.start = groups.slot(inner.kind, inner.start.stride, True)
        self.start.store(inner.start, whole=True)
        self.total = groups.slot(u64, 0 if inner.total.uniform else None, True)
        self.total.store(inner.total, whole=True)
        names = (node.index, node.element) if isinstance(node, tree.ForBuffer) else (node.variable,)
        groups.crossing.update(names)

    def test(self, count):
        """Whether lanes have this turn."""
        if not isinstance(self.node, tree.While):
            self.inner.total = self.total.load()
        return self.inner.test(count)

    def begin(self, count) -> None:
        """Set the turn's variables."""
        if not isinstance(self.node, tree.While):
            self.inner.start = self.start.load()
        self.inner.begin(count)
