"""A workgroup: its waves run one after another between barriers, and the body splits there (fission).

A stretch without a rendezvous is a region: a loop over the waves, with what outlives it in scratch memory. A branch or
a loop around a barrier is run once for the workgroup, its masks kept for each wave; so a barrier finds by itself
whether every work-item is there, and the one that is not makes it undefined behaviour.
"""

from __future__ import annotations

from contextlib import contextmanager

from llvmlite import ir

from kohakutpu.backends.hoist import hoisted, meets
from kohakutpu.backends.lowering import Frame, void
from kohakutpu.backends.varying import Varying, assigned
from kohakutpu.xpu import tree
from kohakutpu.xpu.types import BOOL, MEMORY, FunctionType, Op, TileType, VectorType, f32, u32

from .emit import I1, I8, I32, I64, POINTER, Value, llvm_type
from .flow import RETURN
from .loops import GroupTurns
from .memory import Memory
from .scratch import Scratch
from .slots import Slot


def mentions(node: tree.Node, found: set) -> None:
    """The variables that a statement names, except where it declares them."""
    for part in tree.walk(node):
        if isinstance(part, (tree.Read, tree.Assign, tree.AssignLane, tree.Assigned)):
            found.add(part.variable)
        if isinstance(part, tree.Invoke) and part.target is not None:
            found.add(part.target)


class Groups(Scratch):
    """The function that runs a range of workgroups.

    `dims` is the block, a constant of the code. `shared_bytes` is what the launch gives to the array that it sizes.
    """

    def __init__(self, program: tree.Program, dims: tuple, width: int, checked: bool, flags: tuple, fault: str):
        super().__init__(width)
        self.program, self.dims, self.checked, self.flags, self.fault = program, dims, checked, flags, fault
        self.kernel = hoisted(program)
        self.frame = Frame(self.kernel)
        self.frames: list = []
        self.name = "cpu"
        analysis = Varying(self.kernel)
        self.differs, self.varying, self.results = analysis.differs, analysis.variables, analysis.results
        self.assigned = assigned(self.kernel)
        self.crossing: set[tree.Variable] = set()
        self.items = dims[0] * dims[1] * dims[2]
        self.waves = -(-self.items // width)
        self.scratch_bytes = 0
        self.shared: dict[tree.DeclareShared, Memory] = {}
        self.may_be_apart = self.diverges()
        self.splits = any(map(meets, self.kernel.body))

    def diverges(self) -> bool:
        """False if every work-item runs every statement that it could: nobody branches, nobody returns."""
        functions = (self.kernel, *self.program.helpers)
        kinds = (tree.If, tree.While, tree.ForRange, tree.ForStripe, tree.ForBuffer, tree.Return, tree.Select,
                 tree.Logical, tree.CallTag)  # fmt: skip
        found = (node for function in functions for s in function.body for node in tree.walk(s))
        return self.items % self.width != 0 or any(isinstance(node, kinds) for node in found)

    # The function.
    def build(self) -> ir.Module:
        """run(arguments, first, last, gridx, gridy, gridz, scratch, shared, shared bytes, record) over workgroups."""
        kind = ir.FunctionType(ir.VoidType(), [POINTER, I64, I64, I32, I32, I32, POINTER, I64, POINTER])
        function = ir.Function(self.module, kind, "run")
        packed, first, last, gx, gy, gz, scratch, shared_bytes, record = function.args
        for argument in (packed, scratch, record):
            argument.add_attribute("noalias")
        self.grid, self.scratch, self.record, self.launch_bytes = (gx, gy, gz), scratch, record, shared_bytes
        entry = function.append_basic_block("entry")
        start = function.append_basic_block("start")
        self.stop = function.append_basic_block("stop")
        self.builder = b = ir.IRBuilder(entry)
        b.position_at_end(start)
        self.unpack(packed)
        head, body, done = (function.append_basic_block(name) for name in ("groups", "group", "done"))
        number_slot = self.alloca(I64)
        b.store(first, number_slot)
        b.branch(head)
        b.position_at_end(head)
        self.number = b.load(number_slot, typ=I64)
        b.cbranch(b.icmp_unsigned("<", self.number, last), body, done)
        b.position_at_end(body)
        wide = [self.widen(part, 64) for part in (gx, gy)]
        x, rest = b.urem(self.number, wide[0]), b.udiv(self.number, wide[0])
        y, z = b.urem(rest, wide[1]), b.udiv(rest, wide[1])
        self.group = tuple(self.widen(part, 32) for part in (x, y, z))
        self.run_group()
        b.store(b.add(self.number, I64(1)), number_slot)
        b.branch(head)
        b.position_at_end(done)
        b.ret_void()
        b.position_at_end(self.stop)
        b.ret_void()
        b.position_at_end(entry)
        b.branch(start)
        return self.module

    def unpack(self, packed) -> None:
        """The parameters, from 8 bytes each, and 8 more for a buffer's count."""
        self.inputs, place = [], 0
        for parameter in self.program.kernel.parameters:
            kind = parameter.type
            at = self.address(packed, I64(place), I64)
            if isinstance(kind, MEMORY):
                pointer = self.builder.load(at, typ=POINTER)
                count = self.builder.load(self.address(packed, I64(place + 1), I64), typ=I64)
                self.inputs.append(Memory(parameter.name, kind.element, pointer, count))
                place += 2
                continue
            element = u32 if isinstance(kind, FunctionType) else kind
            if element is BOOL:
                held = self.from_memory(BOOL, self.builder.load(at, typ=I8))
            else:
                held = self.builder.load(at, typ=llvm_type(element))
            self.inputs.append(Value(held))
            place += 1

    def run_group(self) -> None:
        """One workgroup: its Shared arrays, its parameters, its body."""
        self.clear_written = []
        for function in (self.kernel, *self.reached()):
            for node in (n for s in function.body for n in tree.walk(s) if isinstance(n, tree.DeclareShared)):
                self.lay_shared(node)
        if self.splits:
            self.crossing |= {p for p in self.kernel.parameters if p in self.assigned}
        initial = self.initial
        with self.region(initial):
            for parameter, value in zip(self.kernel.parameters, self.inputs, strict=True):
                if isinstance(parameter.type, MEMORY):
                    self.frame.values[parameter] = value
                else:
                    self.declare(parameter, value)
            self.owed = self.slot(BOOL, None, self.splits)
            self.nobody(self.owed)
            if RETURN in self.leaves.of(self.kernel.body):
                self.nobody(self.open_leave(RETURN, self.splits))
            if not self.splits:
                self.block(self.kernel.body, self.mask)
        if self.splits:
            self.group_block(self.kernel.body, initial)

    def reached(self) -> list[tree.Function]:
        """Helpers, as they are after hoisting."""
        found: dict[tree.Function, None] = {}

        def look(function):
            for node in (n for s in function.body for n in tree.walk(s)):
                helpers = (node.helper,) if isinstance(node, tree.Call) else ()
                for helper in node.members if isinstance(node, tree.CallTag) else helpers:
                    if helper not in found:
                        found[helper] = None
                        look(helper)

        look(self.kernel)
        return list(found)

    # Regions.
    def initial(self):
        """The mask of a whole wave of the workgroup."""
        if self.items % self.width == 0:
            return None
        linear = self.spread(Value(self.base(), 1))
        return self.builder.icmp_unsigned("<", linear, self.like(linear, self.items))

    def live(self):
        """Who has not returned."""
        mask = self.initial()
        mask = self.full_of(mask)
        kernel = self.frames[0] if self.frames else self.frame
        if RETURN in kernel.state:
            mask = self.builder.and_(mask, self.builder.not_(kernel.state[RETURN].load().ir))
        return mask

    def full_of(self, mask):
        """A mask as a vector."""
        return self.const(self.vector(I1), 1) if mask is None else mask

    @contextmanager
    def region(self, masked, everyone: bool = False):
        """What is emitted inside runs for each wave with a lane in the mask that `masked()` gives there.

        `everyone` runs it for waves with none, too.
        """
        b = self.builder
        slot = self.alloca(I32)
        b.store(I32(0), slot)
        head, after = b.append_basic_block("waves"), b.append_basic_block("met")
        end = b.append_basic_block("next")
        b.branch(head)
        b.position_at_end(head)
        self.wave = b.load(slot, typ=I32)
        self.mask = masked()
        if self.mask is not None and not everyone:
            some = b.append_basic_block("some")
            b.cbranch(self.any(self.mask), some, end)
            b.position_at_end(some)
        yield
        b.branch(end)
        b.position_at_end(end)
        more = b.add(self.wave, I32(1))
        b.store(more, slot)
        b.cbranch(b.icmp_unsigned("<", more, I32(self.waves)), head, after)
        b.position_at_end(after)
        self.wave = self.mask = None

    def group_block(self, body: tuple, masked) -> None:
        """Statements of a workgroup; `masked()` gives a wave's mask at their beginning."""
        runs: list[list] = []
        for statement in body:
            if meets(statement):
                runs.append([statement])
            elif runs and not meets(runs[-1][0]):
                runs[-1].append(statement)
            else:
                runs.append([statement])
        self.find_crossing(runs)
        gone: frozenset = frozenset()
        end = None
        for number, run in enumerate(runs):

            def present(gone=gone):
                return self.remaining(masked(), gone) if gone else masked()

            if meets(run[0]):
                self.group_statement(run[0], present, masked, gone)
            else:
                with self.region(present), self.at_hand(run):
                    self.block(tuple(run), self.mask)
            left = self.leaves.of(tuple(run))
            gone |= left
            if isinstance(run[-1], (tree.Break, tree.Continue, tree.Return)):
                break
            if left and number + 1 < len(runs):
                end = end or self.builder.append_basic_block("end")
                self.go_on_with(lambda gone=gone: self.remaining(masked(), gone), end)
        if end is not None:
            self.builder.branch(end)
            self.builder.position_at_end(end)

    @contextmanager
    def at_hand(self, run: list):
        """Variables of other regions that loops of this one name lie on the stack meanwhile, and so in registers."""
        named: set = set()
        for statement in run:
            if isinstance(statement, (tree.While, tree.ForRange, tree.ForStripe, tree.ForBuffer)):
                mentions(statement, named)
        values, kept = self.frame.values, {}
        for variable in sorted(named, key=lambda one: one.name):
            held = values.get(variable)
            slots = held if isinstance(held, tuple) else (held,)
            if all(isinstance(slot, Slot) for slot in slots) and not isinstance(variable.type, TileType):
                kept[variable] = held
                near = tuple(self.copied(slot) for slot in slots)
                values[variable] = near if isinstance(held, tuple) else near[0]
        yield
        for variable, held in kept.items():
            if variable in self.assigned:
                pairs = held, values[variable]
                for far, near in zip(*pairs, strict=True) if isinstance(held, tuple) else (pairs,):
                    far.store(near.load(), whole=True)
            values[variable] = held

    def copied(self, slot: Slot) -> Slot:
        """A slot on the stack with the same in it."""
        near = self.slot(slot.kind, slot.stride, False)
        near.known = slot.known
        near.store(slot.load(), whole=True)
        return near

    def go_on_with(self, present, end) -> None:
        """Leave for a block where nobody of the workgroup is left."""
        flag = self.flag()
        with self.region(present):
            self.builder.store(I1(1), flag)
        rest = self.builder.append_basic_block("rest")
        self.builder.cbranch(self.builder.load(flag, typ=I1), rest, end)
        self.builder.position_at_end(rest)

    def find_crossing(self, runs: list[list]) -> None:
        """Variables that a run declares and another run names."""
        for number, run in enumerate(runs):
            declared = {s.variable for s in run if isinstance(s, (tree.Declare, tree.DeclareShared))}
            if not declared:
                continue
            if meets(run[0]):
                self.crossing |= declared
                continue
            named: set = set()
            for other in runs[number + 1 :]:
                for statement in other:
                    mentions(statement, named)
            self.crossing |= declared & named

    def group_statement(self, node, present, masked, gone) -> None:
        """A statement inside which a workgroup meets."""
        match node:
            case tree.If():
                self.group_if(node, present)
            case tree.While() | tree.ForRange() | tree.ForStripe() | tree.ForBuffer():
                self.group_loop(node, present)
            case tree.Evaluate(value=tree.Invoke() as verb):
                self.group_verb(verb, None, present, masked, gone)
            case tree.Declare(variable=variable, value=tree.Invoke() as verb):
                self.group_verb(verb, variable, present, masked, gone)
            case tree.Evaluate(value=tree.Call() as call):
                self.group_call(call, None, present)
            case tree.Declare(variable=variable, value=tree.Call() as call):
                self.group_call(call, variable, present)
            case _:
                self.refuse("a barrier inside a function value's call cannot be taken apart", node.at, "XPU-N02")

    def flag(self):
        """A flag of the workgroup, unset."""
        slot = self.alloca(I1)
        self.builder.store(I1(0), slot)
        return slot

    def raise_flag(self, slot, mask) -> None:
        """Set a flag if a mask has a lane."""
        b = self.builder
        b.store(b.or_(b.load(slot, typ=I1), self.any(mask)), slot)

    def group_if(self, node: tree.If, present) -> None:
        """Both ways, each for the waves that go it."""
        bodies = [(body, wanted) for body, wanted in ((node.then, True), (node.otherwise, False)) if body]
        ways = [(self.slot(BOOL, None, True), self.flag(), body, wanted) for body, wanted in bodies]
        with self.region(lambda: self.full_of(present()), everyone=True):
            for slot, *_ in ways:
                self.nobody(slot)
            mask = self.mask
            with self.when(self.any(mask)):
                taken = self.spread(self.value(node.condition))
                for slot, flag, _, wanted in ways:
                    held = self.builder.and_(mask, taken if wanted else self.builder.not_(taken))
                    slot.store(Value(held, None), whole=True)
                    self.raise_flag(flag, held)
        for slot, flag, body, _ in ways:
            with self.when(self.builder.load(flag, typ=I1)):
                self.group_block(body, lambda slot=slot: slot.load().ir)

    def group_loop(self, node, present) -> None:
        """Turns of the workgroup: a wave takes part with the lanes that pass the test."""
        b = self.builder
        active = self.slot(BOOL, None, True)
        gone = self.leaves.of(node.body)
        own = {(tree.Break, node.loop), (tree.Continue, node.loop)}
        turns = None
        leaves = [self.open_leave(key, True) for key in sorted(gone & own, key=str)]
        with self.region(lambda: self.full_of(present()), everyone=True):
            active.store(Value(self.mask, None), whole=True)
            for slot in leaves:
                self.nobody(slot)
            with self.when(self.any(self.mask)):
                turns = GroupTurns(self, node)
        turn = self.alloca(I64)
        b.store(I64(0), turn)
        head, body, after = (b.append_basic_block(name) for name in ("head", "body", "after"))
        b.branch(head)
        b.position_at_end(head)
        flag, count = self.flag(), b.load(turn, typ=I64)
        with self.region(lambda: active.load().ir):
            going = self.mask
            test = turns.test(count)
            if test is not None:
                going = b.and_(going, self.spread(test))
                active.store(Value(going, None), whole=True)
            self.raise_flag(flag, going)
            for slot, key in zip(leaves, sorted(gone & own, key=str), strict=True):
                if key[0] is tree.Continue:
                    self.nobody(slot)
            with self.when(self.any(going)):
                self.mask = going
                turns.begin(count)
        b.cbranch(b.load(flag, typ=I1), body, after)
        b.position_at_end(body)
        self.group_block(node.body, lambda: active.load().ir)
        with self.region(lambda: active.load().ir):
            left = self.remaining(self.mask, gone - {(tree.Continue, node.loop)})
            active.store(Value(left, None), whole=True)
        b.store(b.add(count, I64(1)), turn)
        b.branch(head)
        b.position_at_end(after)

    def arrive(self, node, present, masked, gone) -> None:
        """In a checked build: undefined unless every work-item of the workgroup is there."""
        whole = masked == self.initial and not gone
        if whole or not self.checked:
            return
        with self.region(lambda: self.full_of(present()), everyone=True):
            here, self.mask = self.mask, None
            away = self.builder.and_(self.full_of(self.initial()), self.builder.not_(here))
            self.check(Value(away, None), node.at, f"{node.verb}, which a work-item does not reach")

    def group_verb(self, node: tree.Invoke, variable, present, masked, gone) -> None:
        """A barrier, a reduction or a scan of the workgroup."""
        if node.verb == "barrier.workgroup":
            self.arrive(node, present, masked, gone)
            return
        kind, op = node.type, node.options[0]
        form = {Op.ADD: "sum", Op.MAX: "max", Op.MIN: "min"}[op]
        scan = node.verb == "workgroup.scan"
        total = self.alloca(llvm_type(kind))
        empty = self.alloca(I1)
        self.builder.store(I1(1), empty)
        start = self.identity(op) if kind is f32 else self.integer_identity(form, kind)
        self.builder.store(self.const(llvm_type(kind), start), total)
        before = self.slot(kind, None, True) if scan else None
        self.arrive(node, present, masked, gone)
        with self.region(present):
            value = self.value(node.arguments[0])
            held = self.builder.load(total, typ=llvm_type(kind))
            if scan:
                lanes, whole = self.scanned(form, kind, value)
                before.store(self.apply(lambda x, y: self.step(form, kind, x, y), Value(held), Value(lanes, None)),
                             whole=True)  # fmt: skip
                self.builder.store(self.step(form, kind, held, whole), total)
            else:
                part = (self.float_reduce(op, value) if kind is f32 else self.integer_reduce(form, kind, value)).ir
                first = self.builder.load(empty, typ=I1)
                joined = self.combine(op, held, part) if kind is f32 else self.step(form, kind, held, part)
                self.builder.store(self.builder.select(first, part, joined), total)
                self.builder.store(I1(0), empty)
        if variable is not None:
            self.crossing.add(variable)
            with self.region(present):
                found = before.load() if scan else Value(self.builder.load(total, typ=llvm_type(kind)))
                self.declare(variable, found)

    def group_call(self, node: tree.Call, variable, present) -> None:
        """A helper inside which the workgroup meets."""
        helper, outer = node.helper, self.frame
        temporaries = []
        with self.region(present):
            for argument, parameter in zip(node.arguments, helper.parameters, strict=True):
                value = self.value(argument)
                if isinstance(parameter.type, MEMORY):
                    temporaries.append(value)
                else:
                    self.crossing.add(parameter)
                    self.declare(parameter, value)
                    temporaries.append(self.frame.values.pop(parameter))
        self.frames.append(outer)
        self.frame = type(outer)(helper)
        self.frame.values.update(zip(helper.parameters, temporaries, strict=True))
        kind, slots = helper.result, []
        present = present_in(outer, self, present)
        with self.region(present):
            if self.leaves.of(helper.body):
                self.nobody(self.open_leave(RETURN, True))
            if not void(kind):
                element = kind.element if isinstance(kind, VectorType) else kind
                slots = [self.slot(element, None, True) for _ in range(getattr(kind, "count", 1))]
                for slot in slots:
                    slot.store(self.zero(element), whole=True)
                self.frame.state["results"] = slots
        self.group_block(helper.body, present)
        with self.region(present):
            if not void(kind):
                self.check_ended(node, helper, self.mask)
            uniform = helper not in self.results
            found = [slot.load() for slot in slots]
            if uniform:
                found = [Value(self.pick(part, self.first())) for part in found]
            self.frame = self.frames.pop()
            if variable is not None:
                self.crossing.add(variable)
                self.declare(variable, tuple(found) if isinstance(kind, VectorType) else found[0])


def present_in(frame, groups: Groups, masked):
    """A mask that is found in another frame than the present."""

    def found():
        kept, groups.frame = groups.frame, frame
        mask = masked()
        groups.frame = kept
        return mask

    return found
