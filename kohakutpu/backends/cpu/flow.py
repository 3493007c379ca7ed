"""Control flow inside a wave: every statement runs under the mask of the lanes that are there.

Code is reached only with a lane in its mask. Lanes that leave a loop or a function early are noted in masks of that
loop or function; after a statement that lanes may leave, the mask is what it was without those.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from kohakutpu.backends.lowering import LoweringTarget, void
from kohakutpu.xpu import tree
from kohakutpu.xpu.types import BOOL, Scalar, TileType, VectorType, u32

from .emit import I1, I64, Value, llvm_type
from .loops import Counted, Tested
from .slots import Slot

RETURN = "return"
COPIES = 16  # bodies of a kernel that are emitted a second time, for waves of which every lane is there


class Leaves:
    """What a statement may leave early: the set of loops' (kind, loop) and RETURN, memoised."""

    def __init__(self):
        self._known: dict[int, frozenset] = {}

    def of(self, node) -> frozenset:
        """Of a statement or a block."""
        if isinstance(node, tuple):
            return frozenset().union(*map(self.of, node)) if node else frozenset()
        if id(node) not in self._known:
            match node:
                case tree.Break(loop=loop) | tree.Continue(loop=loop):
                    found = frozenset({(type(node), loop)})
                case tree.Return():
                    found = frozenset({RETURN})
                case tree.If(then=then, otherwise=otherwise):
                    found = self.of(then) | self.of(otherwise)
                case tree.While() | tree.ForRange() | tree.ForStripe() | tree.ForBuffer():
                    inner = {(tree.Break, node.loop), (tree.Continue, node.loop)}
                    found = self.of(node.body) - inner
                case _:
                    found = frozenset()
            self._known[id(node)] = found
        return self._known[id(node)]


class Flow(LoweringTarget):
    """Variables, branches, loops and calls of a wave."""

    copies = 0

    @cached_property
    def leaves(self) -> Leaves:
        """See Leaves."""
        return Leaves()

    # Variables.
    def place(self, kind, across: bool):
        """A function that gives a fresh place of an LLVM type: on the stack, or `across` regions in scratch memory."""
        if not across:
            slot = self.alloca(kind)
            return lambda: slot
        return self.scratch_place(kind)

    def slot(self, kind: Scalar, stride: int | None, across: bool) -> Slot:
        """A slot of a scalar."""
        type_ = llvm_type(kind) if stride is not None else self.vector(llvm_type(kind))
        return Slot(self, kind, stride, self.place(type_, across))

    def read(self, variable: tree.Variable):
        return self.held(self.frame.values[variable])

    def held(self, value):
        """The value that a slot holds, or what is no slot itself."""
        if isinstance(value, tuple) and value and isinstance(value[0], (Slot, Value)):
            return tuple(self.held(part) for part in value)
        return value.load() if isinstance(value, Slot) else value

    def declare(self, variable: tree.Variable, value) -> None:
        kind = variable.type
        if isinstance(kind, TileType):
            self.frame.values[variable] = self.new_tile(kind, value, variable in self.crossing)
            return
        if value is None:
            vector = isinstance(kind, VectorType)
            zero = self.zero(kind.element if vector else kind if isinstance(kind, Scalar) else u32)
            value = (zero,) * kind.count if vector else zero
        across = variable in self.crossing
        if variable not in self.assigned and not across:
            self.frame.values[variable] = value
            return
        parts = value if isinstance(kind, VectorType) else (value,)
        element = kind.element if isinstance(kind, VectorType) else kind if isinstance(kind, Scalar) else u32
        slots = []
        for part in parts:
            stride = part.stride
            if variable in self.assigned:
                stride = None if variable in self.varying else 0
            slot = self.slot(element, stride, across)
            slot.store(part, whole=True)
            if variable not in self.assigned:
                slot.known = (part.aligned, part.below)
            slots.append(slot)
        self.frame.values[variable] = tuple(slots) if isinstance(kind, VectorType) else slots[0]

    def assign(self, variable: tree.Variable, value) -> None:
        slots = self.frame.values[variable]
        if isinstance(variable.type, TileType):
            self.set_tile(variable.type, slots, value)
        elif isinstance(slots, tuple):
            for slot, part in zip(slots, value, strict=True):
                slot.store(part)
        else:
            slots.store(value)

    def assign_lane(self, node: tree.AssignLane) -> None:
        """A lane of a vector."""
        value, index = self.value(node.value), self.value(node.index)
        slots = self.frame.values[node.variable]
        if isinstance(node.index, tree.Literal) and 0 <= node.index.value < len(slots):
            slots[node.index.value].store(value)
            return
        self.check_lane(node, index, len(slots), node.variable.type)
        for lane, slot in enumerate(slots):
            here = self.apply(lambda at, lane=lane: self.builder.icmp_unsigned("==", at, self.like(at, lane)), index)
            slot.store(self.apply(self.builder.select, here, value, slot.load()))

    def lane(self, node, lanes: tuple, index: Value) -> Value:
        self.check_lane(node, index, len(lanes), node.vector.type)
        found = lanes[0]
        for number, value in enumerate(lanes[1:], 1):
            if number >= 1 << node.index.type.bits - node.index.type.signed:
                break
            here = self.apply(lambda at, n=number: self.builder.icmp_unsigned("==", at, self.like(at, n)), index)
            found = self.apply(self.builder.select, here, value, found)
        return found

    def check_lane(self, node, index: Value, count: int, kind) -> None:
        """A lane that a vector does not have is undefined."""
        if self.checked and count < 1 << node.index.type.bits:
            bad = self.apply(lambda at: self.builder.icmp_unsigned(">=", at, self.like(at, count)), index)
            self.check(bad, node.at, f"lane {{0}} of a {kind}", (node.index.type, index))

    # Leaving early.
    def leave_slot(self, key) -> Slot:
        """The mask of those who left by a key, in the frame."""
        return self.frame.state[key]

    def open_leave(self, key, across: bool = False) -> Slot:
        """A mask for a key, with nobody in it; its place is the caller's to clear on every entry."""
        slot = self.slot(BOOL, None, across)
        self.frame.state[key] = slot
        return slot

    def nobody(self, slot: Slot) -> None:
        """Empty a mask."""
        slot.store(Value(I1(0)), whole=True)

    def leave(self, key) -> None:
        """Those of the mask leave."""
        slot = self.leave_slot(key)
        slot.store(Value(self.builder.or_(slot.load().ir, self.full()), None), whole=True)

    def remaining(self, mask, keys):
        """A mask without those who left by any of the keys. An order that does not depend on hashes."""
        for slot in sorted((self.leave_slot(key) for key in keys), key=id):
            gone = self.builder.not_(slot.load().ir)
            mask = gone if mask is None else self.builder.and_(mask, gone)
        return mask

    # Statements.
    def block(self, body: tuple, mask) -> None:
        """Statements under a mask with a lane in it."""
        end = None
        for number, statement in enumerate(body):
            self.mask = mask
            self.statement(statement)
            if isinstance(statement, (tree.Break, tree.Continue, tree.Return)):
                break
            gone = self.leaves.of(statement) if number + 1 < len(body) else ()
            rest = body[number + 1 :]
            if gone == {RETURN} and mask is None and not self.outlived(rest) and self.may_copy():
                self.without(self.remaining(mask, gone), rest)
                break
            if gone:
                mask = self.remaining(mask, gone)
                left = self.builder.append_basic_block("rest")
                end = end or self.builder.append_basic_block("end")
                self.builder.cbranch(self.any(mask), left, end)
                self.builder.position_at_end(left)
        if end is not None:
            self.builder.branch(end)
            self.builder.position_at_end(end)

    def outlived(self, body: tuple) -> bool:
        """True if statements declare what later regions name; emitted twice, it would have two places, one unread."""
        return any(isinstance(s, (tree.Declare, tree.DeclareShared)) and s.variable in self.crossing for s in body)

    def may_copy(self) -> bool:
        """True while a body may be emitted twice, for whole waves and for parts of one. Code must not grow without
        end."""
        self.copies += 1
        return self.copies <= COPIES

    def without(self, left, rest: tuple) -> None:
        """The rest of a block after some may have returned: without a mask where nobody did."""

        def part():
            with self.when(self.any(left)):
                self.block(rest, left)

        self.fork(self.all(left), lambda: self.block(rest, None), part)

    def statement(self, node: tree.Statement) -> None:
        """One statement."""
        match node:
            case tree.Declare(variable=variable, value=value):
                self.declare(variable, None if value is None else self.value(value))
            case tree.DeclareShared():
                self.declare_shared(node)
            case tree.Assign(variable=variable, value=value):
                self.assign(variable, self.value(value))
            case tree.AssignLane():
                self.assign_lane(node)
            case tree.Store():
                value = self.value(node.value)
                self.store(node, self.value(node.memory), self.value(node.index), value)
            case tree.StoreVector():
                memory, index = self.value(node.memory), self.value(node.index)
                self.store_vector(node, memory, index, self.value(node.value))
            case tree.Evaluate(value=value):
                self.value(value)
            case tree.If():
                self.choose(self.value(node.condition), lambda m: self.block(node.then, m),
                            (lambda m: self.block(node.otherwise, m)) if node.otherwise else None)  # fmt: skip
            case tree.While() | tree.ForRange() | tree.ForStripe() | tree.ForBuffer():
                self.loop(node)
            case tree.Break(loop=loop) | tree.Continue(loop=loop):
                self.leave((type(node), loop))
            case tree.Return(value=value):
                self.give(node, value)

    def give(self, node: tree.Return, value) -> None:
        """A function's end."""
        if value is not None:
            held = self.value(value)
            self.frame.state["result"] = held
            slots = self.frame.state.get("results")
            if slots is not None:
                for slot, part in zip(slots, held if isinstance(held, tuple) else (held,), strict=True):
                    slot.store(part)
        if RETURN in self.frame.state:
            self.leave(RETURN)

    def choose(self, condition: Value, then, otherwise) -> None:
        """Run either or both of two ways, each under its mask. The mask afterwards is the one before."""
        if condition.whole is not None and self.mask is None and self.may_copy():
            part = replace(condition, whole=None)
            self.fork(condition.whole, lambda: then(None), lambda: self.choose(part, then, otherwise))
            self.mask = None
            return
        b, mask = self.builder, self.mask
        ways = [(condition.ir if condition.uniform else self.under(self.spread(condition)), then)]
        if otherwise is not None:
            if condition.uniform:
                self.fork(condition.ir, lambda: then(mask), lambda: otherwise(mask))
                self.mask = mask
                return
            no = b.not_(condition.ir)
            ways.append((self.under(no), otherwise))
        for lanes, way in ways:
            if condition.uniform:
                with self.when(lanes):
                    way(mask)
            else:
                with self.when(self.any(lanes)):
                    self.mask = lanes
                    way(lanes)
            self.mask = mask

    def fork(self, condition, then, otherwise) -> None:
        """if and else on a scalar."""
        b, mask = self.builder, self.mask
        yes, no, after = (b.append_basic_block(name) for name in ("yes", "no", "after"))
        b.cbranch(condition, yes, no)
        for block, way in ((yes, then), (no, otherwise)):
            b.position_at_end(block)
            self.mask = mask
            way()
            b.branch(after)
        b.position_at_end(after)

    def logical(self, node: tree.Logical) -> Value:
        left = self.value(node.left)
        b, mask = self.builder, self.mask
        asked = left if node.op == "and" else self.apply(b.not_, left)
        slot = self.slot(BOOL, None, False)
        slot.store(left, whole=True)
        uniform = []

        def right(lanes):
            self.mask = lanes
            value = self.value(node.right)
            uniform.append(value.uniform)
            slot.store(value)

        self.choose(asked, right, None)
        self.mask = mask
        found = slot.load()
        if left.uniform and uniform[0]:
            return Value(b.extract_element(found.ir, self.widen(self.first(), 32)))
        return found

    def select(self, node: tree.Select):
        condition = self.value(node.condition)
        mask, kind = self.mask, node.type
        element = kind.element if isinstance(kind, VectorType) else kind
        if isinstance(kind, TileType):
            self.refuse("a choice of tiles", node.at)
        if void(kind):
            self.choose(condition, lambda m: self.arm(node.then, m), lambda m: self.arm(node.otherwise, m))
            return None
        count = kind.count if isinstance(kind, VectorType) else 1
        slots = [self.slot(element, None, False) for _ in range(count)]
        uniform = []

        def way(arm):
            def run(lanes):
                self.mask = lanes
                found = self.value(arm)
                parts = found if isinstance(found, tuple) else (found,)
                uniform.append(all(part.uniform for part in parts))
                for slot, part in zip(slots, parts, strict=True):
                    slot.store(part)

            return run

        self.choose(condition, way(node.then), way(node.otherwise))
        self.mask = mask
        found = [slot.load() for slot in slots]
        if condition.uniform and all(uniform):
            lane = self.first()
            found = [Value(self.pick(part, lane)) for part in found]
        return tuple(found) if isinstance(kind, VectorType) else found[0]

    def arm(self, node, mask) -> None:
        """An arm without a value."""
        self.mask = mask
        self.value(node)

    # Loops.
    def loop(self, node) -> None:
        """A loop: a turn's lanes are those that are left of the last and pass the test."""
        b, mask = self.builder, self.mask
        gone = self.leaves.of(node.body)
        own = {(tree.Break, node.loop), (tree.Continue, node.loop)}
        for key in sorted(gone & own, key=str):
            self.nobody(self.open_leave(key))
        turns = self.turns(node)
        head, body, after = (b.append_basic_block(name) for name in ("head", "body", "after"))
        leaving = gone - {(tree.Continue, node.loop)}
        dynamic = turns.varies or bool(leaving)
        active = self.slot(BOOL, None, False) if dynamic else None
        if dynamic:
            active.store(Value(self.full(), None), whole=True)
        turn = self.alloca(I64)
        b.store(I64(0), turn)
        b.branch(head)
        b.position_at_end(head)
        going = self.mask = active.load().ir if dynamic else mask
        count = b.load(turn, typ=I64)
        test = turns.test(count)
        if test is None:
            b.branch(body)
        elif test.uniform:
            b.cbranch(test.ir, body, after)
        else:
            going = self.under(self.spread(test))
            b.cbranch(self.any(going), body, after)
        b.position_at_end(body)
        self.mask = going
        turns.begin(count)
        if (tree.Continue, node.loop) in gone:
            self.nobody(self.leave_slot((tree.Continue, node.loop)))
        self.block(node.body, going)
        b.store(b.add(count, I64(1)), turn)
        if dynamic:
            left = self.remaining(going, leaving)
            active.store(Value(left if left is not None else self.full(), None), whole=True)
            if leaving:
                b.cbranch(self.any(left), head, after)
            else:
                b.branch(head)
        else:
            b.branch(head)
        b.position_at_end(after)
        self.mask = mask

    def turns(self, node):
        """How a loop counts."""
        return Tested(self, node) if isinstance(node, tree.While) else Counted(self, node)

    # Calls.
    def call(self, node, helper: tree.Function, arguments: list):
        outer, mask = self.frame, self.mask
        self.frames.append(outer)
        self.body(helper, arguments, node)
        last = helper.body[-1] if helper.body else None
        early = self.leaves.of(helper.body[:-1]) or (last is not None and not isinstance(last, tree.Return)
                                                     and self.leaves.of(last))  # fmt: skip
        kind = helper.result
        if early:
            self.nobody(self.open_leave(RETURN))
            if not void(kind):
                element = kind.element if isinstance(kind, VectorType) else kind
                count = kind.count if isinstance(kind, VectorType) else 1
                slots = [self.slot(element, None, False) for _ in range(count)]
                self.frame.state["results"] = slots
                for slot in slots:
                    slot.store(self.zero(element), whole=True)
        self.block(helper.body, mask)
        self.mask = mask
        if not void(kind):
            self.check_ended(node, helper, mask)
        found = self.frame.state.get("result")
        if early and not void(kind):
            parts = tuple(slot.load() for slot in self.frame.state["results"])
            if helper not in self.results:
                parts = tuple(Value(self.pick(part, self.first())) for part in parts)
            found = parts if isinstance(kind, VectorType) else parts[0]
        self.frame = self.frames.pop()
        return None if void(kind) else found

    def check_ended(self, node, helper: tree.Function, mask) -> None:
        """A helper that ends without the value that it promises is undefined."""
        text = f"{helper.name} ends without the {helper.result} that it promises"
        if RETURN in self.frame.state:
            if not (helper.body and isinstance(helper.body[-1], tree.Return)):
                back = self.builder.not_(self.leave_slot(RETURN).load().ir)
                self.check(Value(back, None), node.at, text)
        elif not (helper.body and isinstance(helper.body[-1], tree.Return)):
            self.frame.state["result"] = self.nothing(helper.result)
            self.check(Value(I1(1)), node.at, text)

    def nothing(self, kind):
        """Zero of a type."""
        if isinstance(kind, VectorType):
            return (self.zero(kind.element),) * kind.count
        return self.zero(kind)

    def call_tag(self, node: tree.CallTag, tag: Value, arguments: list):
        """One helper after another, each for the lanes whose tag names it; past them nothing, and zero."""
        kind, mask = node.type, self.mask
        slots = []
        if not void(kind):
            element = kind.element if isinstance(kind, VectorType) else kind
            slots = [self.slot(element, None, False) for _ in range(getattr(kind, "count", 1))]
            for slot in slots:
                slot.store(self.zero(element), whole=True)
        for number, helper in enumerate(node.members):
            here = self.apply(lambda at, n=number: self.builder.icmp_unsigned("==", at, self.like(at, n)), tag)

            def run(lanes, helper=helper):
                self.mask = lanes
                found = self.call(node, helper, arguments)
                if slots:
                    for slot, part in zip(slots, found if isinstance(found, tuple) else (found,), strict=True):
                        slot.store(part)

            self.choose(here, run, None)
        self.mask = mask
        found = [slot.load() for slot in slots]
        if tag.uniform and not self.results.intersection(node.members):
            found = [Value(self.pick(part, self.first())) for part in found]
        return None if void(kind) else tuple(found) if isinstance(kind, VectorType) else found[0]
