"""Coordinates, and the verbs of waves, quads and groups (spec/xpu.md 1.8).

A wave's lanes are one vector, so that a rendezvous is no more than the vector's next operation. Lanes that are not
there when others meet must not meet elsewhere before they end: `owed` remembers them, and a meeting of one is
undefined behaviour.
"""

from __future__ import annotations

from llvmlite import ir

from kohakutpu.xpu.types import Op, Scalar, i64, u32

from .emit import FLOAT, I1, I32, I64, Value, llvm_type
from .flow import Flow
from .memory import MemoryAccess

INFINITY = float("inf")


class Waves(MemoryAccess, Flow):
    """Verbs that read other lanes."""

    # Coordinates. `self.wave` is the wave's number in its workgroup (i32); `self.dims` the constant block.
    def base(self):
        """The linear index of the wave's lane 0."""
        return self.builder.mul(self.wave, I32(self.width))

    def local(self, axis: int) -> Value:
        """thread.x, y or z."""
        b, (dx, dy, _) = self.builder, self.dims
        if dy == self.dims[2] == 1:
            return Value(self.base(), 1, True, self.waves * self.width) if axis == 0 else Value(I32(0))
        if dx % self.width == 0:
            row = b.udiv(self.base(), I32(dx))
            if axis == 0:
                return Value(b.urem(self.base(), I32(dx)), 1, True, dx)
            return Value(b.urem(row, I32(dy)) if axis == 1 else b.udiv(row, I32(dy)))
        linear = self.spread(Value(self.base(), 1))
        row = b.udiv(linear, self.like(linear, dx))
        if axis == 0:
            return Value(b.urem(linear, self.like(linear, dx)), None)
        last = self.like(linear, dy)
        return Value(b.urem(row, last) if axis == 1 else b.udiv(row, last), None)

    def global_id(self, axis: int) -> Value:
        """group*dim + index, which wraps at 32 bits."""
        start = self.builder.mul(self.group[axis], I32(self.dims[axis]))
        local = self.local(axis)
        if local.stride is None:
            return Value(self.builder.add(local.ir, self.broadcast(start)), None)
        aligned = local.aligned and self.dims[axis] % self.width == 0
        return Value(self.builder.add(local.ir, start), local.stride, aligned)

    def grid_stride(self):
        """Work-items of the grid along x (i64)."""
        return self.builder.mul(self.widen(self.grid[0], 64), I64(self.dims[0]))

    def cast_lane(self, kind: Scalar) -> Value:
        """The lane as an index of a type."""
        return Value(ir.Constant(llvm_type(kind), 0), 1)

    def coordinate(self, node, family: str, word: str) -> Value:
        axis = "xyz".find(word[-1])
        if node.verb == "thread.clock":
            self.refuse("thread.clock: the host's clock is no device's", node.at)
        if family == "thread":
            return self.global_id(axis) if word.startswith("global") else self.local(axis)
        if family == "workgroup":
            return Value(I32(self.dims[axis])) if word.startswith("dim") else Value(self.group[axis])
        if word == "row_id":
            return Value(self.group[0])
        if word == "width":
            return Value(I32(self.width))
        lane = Value(I32(0), 1, True, self.width)
        if word == "is_first_lane":
            return Value(self.lanes([n == 0 for n in range(self.width)], I1), None)
        return lane

    def copy(self, node, into, into_at: Value, source, source_at: Value, count: Value) -> None:
        """This work-item's stripe of a copy into Shared memory: elements linear, linear + items, ... below it."""
        b, mask = self.builder, self.mask
        items = self.dims[0] * self.dims[1] * self.dims[2]
        head, body, after = (b.append_basic_block(name) for name in ("head", "body", "after"))
        slot = self.alloca(I64)
        b.store(self.widen(self.base(), 64), slot)
        b.branch(head)
        b.position_at_end(head)
        at = Value(b.load(slot, typ=I64), 1)
        going = self.under(b.icmp_signed("<", self.spread(at), self.spread(count)))
        b.cbranch(self.any(going), body, after)
        b.position_at_end(body)
        self.mask = going
        found = self.load_at(node, source, self.binary(node, "add", i64, source_at, at), i64)
        self.store_at(node, into, self.binary(node, "add", i64, into_at, at), i64, found)
        b.store(b.add(at.ir, I64(items)), slot)
        b.branch(head)
        b.position_at_end(after)
        self.mask = mask

    # Rendezvous.
    def collective(self, node, family: str, word: str, arguments: list):
        if family == "barrier" and word == "workgroup" or family == "workgroup":
            self.refuse(f"{node.verb} where a workgroup's waves cannot be taken apart", node.at, "XPU-N02")
        self.meet(node)
        if family == "barrier":
            return None
        if family == "quad":
            return self.quad(node, word, *arguments)
        if family == "group":
            if word == "reduce":
                return self.float_reduce(node.options[0], arguments[0])
            return self.segmented(node, node.options[0], arguments[0], arguments[1])
        if word == "ballot_sync":
            held = self.under(self.spread(arguments[0]))
            return Value(self.widen(self.bits(held), 64))
        if word == "rotate" or word.startswith("shuffle"):
            return self.shuffle(node, word.partition("_sync")[0], *arguments)
        kind = i64 if word.endswith("_i64") else u32
        form = word.split("_")[1]
        if word.startswith("prefix"):
            return self.prefix(form, kind, arguments[0])
        op = Op[{"sum": "ADD"}.get(form, form.upper())] if form in ("sum", "max", "min") else None
        if word.endswith("_segmented"):
            return self.segmented(node, op, arguments[1], arguments[0])
        if word.endswith("_f32"):
            return self.float_reduce(op, arguments[0])
        return self.integer_reduce(form, kind, arguments[0])

    def meet(self, node) -> None:
        """Note whom others must not meet any more; whoever is among them meets elsewhere."""
        if self.mask is None and not self.may_be_apart:
            return
        b = self.builder
        slot = self.owed
        owed = slot.load().ir
        if self.checked:
            text = f"lanes of one wave at different wave operations: {node.verb}, which others reached before"
            self.check(Value(owed, None), node.at, text)
        away = b.and_(self.live(), b.not_(self.full()))
        slot.store(Value(b.or_(owed, away), None), whole=True)

    def shuffle_constant(self, value, sources):
        """Lanes in a constant order."""
        kind = value.type
        return self.builder.shuffle_vector(value, ir.Constant(kind, ir.Undefined), self.lanes(sources, I32))

    def shuffle(self, node, form: str, value: Value, amount: Value) -> Value:
        """`form` as in the reference; past the wave's edge a lane reads itself."""
        b, lanes, width = self.builder, self.spread(value), self.width
        here = self.lanes(list(range(width)), I32)
        if form == "rotate":
            source = self.apply(lambda n: b.and_(b.add(n, self.like(n, 0)), self.like(n, width - 1)), amount)
            source = b.and_(b.add(self.spread(source), here), self.like(here, width - 1))
            inside = None
        else:
            by = self.spread(amount)
            moved = {"shuffle_xor": b.xor, "shuffle_up": b.sub, "shuffle_down": b.add}.get(form)
            source = moved(here, by) if moved else by
            inside = b.icmp_unsigned("<", source, self.like(source, width))
            if form in ("shuffle_up", "shuffle_down"):  # the sum may wrap back to the wave
                inside = b.and_(inside, b.icmp_unsigned("<", by, self.like(by, width)))
        if form == "shuffle":
            if self.checked:
                self.check(Value(b.not_(inside), None), node.at, f"shuffle from lane {{0}} of a wave of {width}",
                           (u32, Value(source, None)))  # fmt: skip
        elif inside is not None:
            source = b.select(inside, source, here)
        return self.from_lanes(node, form, lanes, b.and_(source, self.like(source, width - 1)))

    def from_lanes(self, node, what: str, lanes, source) -> Value:
        """Each lane's value from another, which must be there."""
        b = self.builder
        if self.checked and not (self.mask is None and not self.may_be_apart):
            there = self.permute(self.widen(self.full(), 8), source)
            gone = b.icmp_unsigned("==", there, self.like(there, 0))
            self.check(Value(gone, None), node.at, f"{what} from lane {{0}}, which is inactive",
                       (u32, Value(source, None)))  # fmt: skip
        return Value(self.permute(lanes, source), None)

    def permute(self, lanes, source):
        """lanes[source[l]] for every lane l."""
        if isinstance(source, ir.Constant):
            return self.shuffle_constant(lanes, [number.constant for number in source.constant])
        table = self.alloca(lanes.type)
        self.builder.store(lanes, table)
        kept, self.mask = self.mask, None
        found = self.gather(table, lanes.type.element, self.widen(source, 64))
        self.mask = kept
        return found

    def quad(self, node, form: str, value: Value, member: Value | None = None) -> Value:
        """Verbs of the four lanes around one."""
        b, width = self.builder, self.width
        if form in ("all", "any"):
            votes = self.under(self.spread(value))
            for distance in (1, 2):
                other = [lane ^ distance for lane in range(width)]
                absent = [lane if lane < width else width for lane in other]
                padded = b.shuffle_vector(votes, ir.Constant(votes.type, None), self.lanes(absent, I32))
                votes = (b.and_ if form == "all" else b.or_)(votes, padded)
            return Value(votes, None)
        here = list(range(width))
        if form == "broadcast":
            if self.checked:
                bad = self.apply(lambda n: b.icmp_unsigned(">", n, self.like(n, 3)), member)
                self.check(bad, node.at, "quad.broadcast from member {0} of 4", (u32, member))
            numbers = self.spread(member)
            source = b.add(self.lanes([lane & ~3 for lane in here], I32), b.and_(numbers, self.like(numbers, 3)))
        else:
            distance = {"swap_horizontal": 1, "swap_vertical": 2, "swap_diagonal": 3}[form]
            source = self.lanes([lane ^ distance for lane in here], I32)
        if width < 4 and self.checked:
            past = b.icmp_unsigned(">=", source, self.like(source, width))
            self.check(Value(past, None), node.at, f"quad.{form} from lane {{0}} of a wave of {width}",
                       (u32, Value(source, None)))  # fmt: skip
        if isinstance(source, ir.Constant):
            source = self.lanes([number.constant % width for number in source.constant], I32)
        else:
            source = b.and_(source, self.like(source, width - 1))
        return self.from_lanes(node, f"quad.{form}", self.spread(value), source)

    # Reductions.
    def identity(self, op: Op):
        """What a lane that is not there holds in a float reduction."""
        return {Op.ADD: 0.0, Op.MAX: -INFINITY, Op.MIN: INFINITY}[op]

    def combine(self, op: Op, left, right):
        """One step of a float reduction."""
        if op is Op.ADD:
            return self.builder.fadd(left, right, flags=self.flags)
        name = {Op.MAX: "maxnum", Op.MIN: "minnum"}[op]
        return self.pure(name, left, right)

    def butterfly(self, op: Op, value: Value, reach: int | None = None):
        """The XOR butterfly; lane order instead, where that defect is planted."""
        lanes = self.spread(value)
        held = self.kept(lanes, self.const(lanes.type, self.identity(op)))
        if self.fault == "wave-sum-order" and op is Op.ADD and reach is None:
            total = self.const(FLOAT, 0.0)
            for lane in range(self.width):
                total = self.builder.fadd(total, self.builder.extract_element(held, I32(lane)))
            return self.broadcast(total)
        distance = 1
        while distance < (reach or self.width):
            other = self.shuffle_constant(held, [lane ^ distance for lane in range(self.width)])
            held = self.combine(op, held, other)
            distance *= 2
        return held

    def float_reduce(self, op: Op, value: Value) -> Value:
        """A float sum, maximum or minimum of the wave."""
        return Value(self.builder.extract_element(self.butterfly(op, value), I32(0)))

    def segmented(self, node, op: Op, segment: Value, value: Value) -> Value:
        """The butterfly of segments: every stage is computed, and the one that the segment asks for is taken."""
        b = self.builder
        size = self.pick(segment, self.first())
        if self.checked:
            if not segment.uniform:
                lanes = self.spread(segment)
                apart = b.icmp_unsigned("!=", lanes, self.broadcast(size))
                self.check(Value(apart, None), node.at, "a segment that differs between lanes: {0}", (u32, segment))
            ones = self.pure("ctpop", size)
            wrong = b.icmp_unsigned("!=", ones, I32(1))
            self.check(Value(wrong), node.at, "a segment of {0} lanes, no power of two", (u32, Value(size)))
        lanes = self.spread(value)
        held = self.kept(lanes, self.const(lanes.type, self.identity(op)))
        found, distance = held, 1
        while distance < self.width:
            other = self.shuffle_constant(held, [lane ^ distance for lane in range(self.width)])
            held = self.combine(op, held, other)
            distance *= 2
            reached = b.icmp_unsigned(">=", size, I32(distance))
            found = b.select(reached, held, found)
        return Value(found, None)

    def integer_identity(self, form: str, kind: Scalar) -> int:
        """What a lane that is not there holds in an integer reduction."""
        return {"sum": 0, "or": 0, "xor": 0, "and": -1, "product": 1, "max": kind.low, "min": kind.high}[form]

    def integer_reduce(self, form: str, kind: Scalar, value: Value) -> Value:
        """An integer reduction, whose order shows nowhere."""
        lanes = self.spread(value)
        held = self.kept(lanes, self.const(lanes.type, self.integer_identity(form, kind)))
        name = {"sum": "add", "max": "smax" if kind.signed else "umax", "min": "smin" if kind.signed else "umin"}
        return Value(self.reduce(name.get(form, form), held))

    def step(self, form: str, kind: Scalar, left, right):
        """One step of an integer scan."""
        b = self.builder
        if form in ("sum", "product"):
            return (b.add if form == "sum" else b.mul)(left, right)
        how = b.icmp_signed if kind.signed else b.icmp_unsigned
        return b.select(how(">" if form == "max" else "<", left, right), left, right)

    def scanned(self, form: str, kind: Scalar, value: Value):
        """(the exclusive scan in lane order, the whole) over the lanes that are there."""
        b, lanes = self.builder, self.spread(value)
        identity = self.const(lanes.type, self.integer_identity(form, kind))
        held = self.kept(lanes, identity)
        distance = 1
        while distance < self.width:
            sources = [lane - distance if lane >= distance else self.width for lane in range(self.width)]
            held = self.step(form, kind, b.shuffle_vector(held, identity, self.lanes(sources, I32)), held)
            distance *= 2
        sources = [lane - 1 if lane else self.width for lane in range(self.width)]
        before = b.shuffle_vector(held, identity, self.lanes(sources, I32))
        return before, b.extract_element(held, I32(self.width - 1))

    def prefix(self, form: str, kind: Scalar, value: Value) -> Value:
        """wave.prefix_sum and its kin."""
        return Value(self.scanned(form, kind, value)[0], None)
