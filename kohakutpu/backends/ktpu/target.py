"""XPU kernels on the vector cores: integers and masks are computed here, floats become instructions.

A launch is known when it is lowered, so that every index, trip count and guard is a number for each lane. The walk runs
a workgroup's waves together, loops unrolled; what depends on data is only the floats, as E8M15 words. What needs more
than that (data in an index or a branch, integers in memory, other lanes than a rotation reaches) is refused by name.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kohakutpu.backends.lowering import LoweringTarget, element
from kohakutpu.formats import e8m15
from kohakutpu.isa.vector import Opcode
from kohakutpu.xpu import tree
from kohakutpu.xpu.errors import Undefined
from kohakutpu.xpu.types import BOOL, FunctionType, Op, Scalar, TileType, VectorType, f16, f32, u32

from .instructions import Code, Mask, Operand

LANES = 16
LOG2_E, LN_2, LOG10_2 = np.log2(np.e), np.log(2.0), np.log10(2.0)
IDENTITY = {Op.ADD: 0, Op.MAX: e8m15.SIGN | e8m15.INFINITY, Op.MIN: e8m15.INFINITY}
COMBINE = {Op.ADD: Opcode.VADD, Op.MAX: Opcode.VMAX, Op.MIN: Opcode.VMIN}
SIMPLE = {"exp2": Opcode.VEXP2, "log2": Opcode.VLOG2, "rsqrt": Opcode.VRSQRT, "abs": Opcode.VABS,
          "min": Opcode.VMIN, "max": Opcode.VMAX, "fma": Opcode.VFMA}  # fmt: skip
WORD = 32


@dataclass(frozen=True, eq=False)
class Floats:
    """An operand for each wave of the workgroup."""

    waves: tuple[Operand, ...]


@dataclass(frozen=True, eq=False)
class Test:
    """A comparison of floats, for each wave: known only when it runs."""

    waves: tuple[tuple[Opcode, Operand, Operand], ...]


@dataclass(frozen=True, eq=False)
class Buffer:
    """A buffer parameter: the allocation's number, its first byte there, and its elements."""

    name: str
    element: Scalar
    memory: int
    start: int
    count: int


class KtpuTarget(LoweringTarget):
    """One workgroup. `code` is what it does; `written` notes (memory, byte) ranges of elements that it stores."""

    name = "ktpu"

    def __init__(self, program: tree.Program, arguments: list, grid: tuple, block: tuple, group: tuple):
        super().__init__(program)
        self.grid, self.dims, self.group = grid, block, group
        self.items = block[0] * block[1] * block[2]
        self.waves = -(-self.items // LANES)
        self.linear = np.arange(self.waves * LANES, dtype=np.int64)
        self.live = self.linear < self.items
        self.mask = self.live
        self.code = Code()
        self.stored: dict[tuple[int, int], list] = {}  # (memory, word) -> lanes of halves that hold what was stored
        self.loaded: set[tuple[int, int]] = set()
        self.stores: list[tuple[int, int, int]] = []  # (memory, byte, bytes) that the kernel stores
        for parameter, value in zip(program.kernel.parameters, arguments, strict=True):
            kind = parameter.type
            if not isinstance(value, Buffer):
                kind = u32 if isinstance(kind, FunctionType) else kind
                value = self.literal(kind, value)
            self.frame.values[parameter] = value

    def run(self) -> Code:
        """The kernel's body."""
        self.frame.state["left"] = {}
        self.block(self.program.kernel.body, self.live)
        return self.code

    # Values.
    def constant(self, word: int) -> Floats:
        """A float that all lanes share."""
        return Floats((("c", word),) * self.waves)

    def whole(self, value, kind: Scalar) -> np.ndarray:
        """A number for every lane."""
        return np.broadcast_to(np.asarray(value, kind.dtype if kind is not BOOL else bool), self.linear.shape)

    def literal(self, kind: Scalar, value):
        if kind.kind == "float":
            return self.constant(e8m15.constant(float(value)))
        return self.whole(value, kind)

    def number(self, value, node, what: str) -> np.ndarray:
        """A value that must be known when the launch is lowered."""
        if isinstance(value, (Floats, Test)):
            self.refuse(f"{what} that depends on data; indices, trip counts and guards come from coordinates", node.at)
        return value

    def read(self, variable: tree.Variable):
        return self.frame.values[variable]

    def declare(self, variable: tree.Variable, value) -> None:
        kind = variable.type
        if isinstance(kind, TileType):
            self.refuse(
                "a cooperative matrix beside vector work; a product with its epilogue stands alone", variable.at
            )
        if value is None:
            zero = self.zero(element(kind))
            value = (zero,) * kind.count if isinstance(kind, VectorType) else zero
        self.frame.values[variable] = value

    def zero(self, kind: Scalar):
        """The value of a local without an initialiser."""
        return self.constant(0) if kind.kind == "float" else self.whole(0, kind)

    def assign(self, variable: tree.Variable, value) -> None:
        old = self.frame.values[variable]
        if isinstance(variable.type, VectorType):
            parts = (self.merged(variable, new, held) for new, held in zip(value, old, strict=True))
            self.frame.values[variable] = tuple(parts)
        else:
            self.frame.values[variable] = self.merged(variable, value, old)

    def merged(self, variable, new, old, mask=None):
        """New where the mask holds."""
        mask = self.mask if mask is None else mask
        if isinstance(new, Test) or isinstance(old, Test):
            if mask.all():
                return new
            self.refuse(f"{variable.name}: a comparison of data kept under a guard", variable.at)
        if not isinstance(new, Floats):
            return np.where(mask, new, old)
        waves = []
        for wave, (a, b) in enumerate(zip(new.waves, old.waves, strict=True)):
            lanes = self.lanes(mask, wave)
            if all(lanes) or a == b or not any(lanes):
                waves.append(a if any(lanes) else b)
                continue
            found = self.code.select(lanes, a, b)
            if found is None:
                what = "a word that was loaded, not computed, kept in some lanes only"
                self.refuse(f"{variable.name}: {what}: the core's move would make its -0 a +0", variable.at)
            waves.append(found)
        return Floats(tuple(waves))

    def lanes(self, mask: np.ndarray, wave: int) -> Mask:
        """A wave's part of a mask."""
        return tuple(map(bool, mask[wave * LANES : (wave + 1) * LANES]))

    # Arithmetic.
    def each(self, op: Opcode, *values: Floats) -> Floats:
        """An operation in every wave; constants alone still take an instruction, whose rounding it has."""
        found = []
        for operands in zip(*(value.waves for value in values), strict=True):
            found.append(self.code.put(op, *operands))
        return Floats(tuple(found))

    def convert(self, node, value, source: Scalar, target: Scalar):
        if target.kind == "float":
            if target not in (f16, f32):
                self.refuse(f"{target}: the core computes in E8M15 from float16 and float32 memory", node.at)
            if isinstance(value, Floats):
                if target is f16 and source is not f16:
                    return Floats(tuple(self.code.put(Opcode.VCVT, self.in_register(w)) for w in value.waves))
                return value
            numbers = np.unique(self.number(value, node, "a number")[self.mask])
            if len(numbers) > 1:
                self.refuse("integers that differ between lanes as floats: the core has no integers", node.at)
            return self.constant(e8m15.constant(float(int(numbers[0]))))
        value = self.number(value, node, f"{source} to {target}: the core has no integers; a number")
        with np.errstate(all="ignore"):
            return value != 0 if target is BOOL else value.astype(target.dtype)

    def in_register(self, operand: Operand) -> Operand:
        """An operand that is in a vector register."""
        return self.code.put(Opcode.VBCAST, operand) if operand[0] == "c" else operand

    def unary(self, node, op: str, kind: Scalar, value):
        if isinstance(value, Floats):
            return self.each(Opcode.VNEG, value)
        value = self.number(value, node, "not of a comparison")
        with np.errstate(all="ignore"):
            return ~value if op in ("invert", "not") else np.negative(value)

    def binary(self, node, op: str, kind: Scalar, left, right):
        if kind.kind == "float":
            if op == "rem":
                self.refuse("rem of floats", node.at)
            if op == "div":
                return self.each(Opcode.VMUL, left, self.each(Opcode.VINV, right))
            return self.each({"add": Opcode.VADD, "sub": Opcode.VSUB, "mul": Opcode.VMUL}[op], left, right)
        left, right = (self.number(value, node, f"{op} of a comparison") for value in (left, right))
        return self.integers(node, op, kind, left, right)

    def integers(self, node, op: str, kind: Scalar, left, right):
        """Integer arithmetic, lane by lane; undefined where the interpreter says so."""
        plain = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "and": np.bitwise_and, "or": np.bitwise_or,
                 "xor": np.bitwise_xor}  # fmt: skip
        with np.errstate(all="ignore"):
            if op in plain:
                return plain[op](left, right)
            if op in ("div", "rem"):
                zero = right == 0
                self.undefined(node, zero, "division by zero")
                if kind.signed:
                    self.undefined(node, (left == kind.low) & (right == -1), f"{kind} overflow: {left.min()} / -1")
                rest = np.fmod(left, np.where(zero, 1, right).astype(left.dtype))
                return rest if op == "rem" else ((left - rest) // np.where(zero, 1, right)).astype(left.dtype)
            bad = (right < 0) | (right >= kind.bits)
            self.undefined(node, bad, f"a shift of {kind} past its width")
            amount = np.where(bad, 0, right).astype(left.dtype)
            if op == "shl":
                return np.left_shift(left, amount)
            if op == "lshr" and kind.signed:
                unsigned = kind.dtype.replace("int", "uint")
                return np.right_shift(left.view(unsigned), amount.astype(unsigned)).view(kind.dtype)
            return np.right_shift(left, amount)

    def undefined(self, node, bad, text: str) -> None:
        """Undefined behaviour that the lowering already meets."""
        lanes = np.flatnonzero(bad & self.mask)
        if len(lanes):
            item = int(lanes[0])
            place = (item % self.dims[0], item // self.dims[0] % self.dims[1], item // (self.dims[0] * self.dims[1]))
            raise Undefined(text, node.at, f"workgroup {self.group}, work-item {place}")

    def compare(self, node, op: str, kind: Scalar, left, right):
        if kind.kind != "float":
            left, right = (self.number(value, node, "a comparison of comparisons") for value in (left, right))
            table = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
                     "ge": np.greater_equal}  # fmt: skip
            return table[op](left, right)
        word = {"lt": Opcode.VCMPLT, "gt": Opcode.VCMPGT, "eq": Opcode.VCMPEQ}.get(op)
        if word is None:
            self.refuse(f"{op} of data: the core compares <, > and ==", node.at)
        return Test(tuple((word, a, b) for a, b in zip(left.waves, right.waves, strict=True)))

    def logical(self, node: tree.Logical):
        left = self.number(self.value(node.left), node, f"{node.op} of data")
        mask = self.mask
        self.mask = mask & (left if node.op == "and" else ~left)
        if self.mask.any():
            right = self.number(self.value(node.right), node, f"{node.op} of data")
            left = left & right if node.op == "and" else left | right
        self.mask = mask
        return left

    def select(self, node: tree.Select):
        condition, mask = self.value(node.condition), self.mask
        if isinstance(condition, Test):
            then, otherwise = self.value(node.then), self.value(node.otherwise)
            if not isinstance(then, Floats):
                self.refuse("a choice by data between numbers that are no floats", node.at)
            found = []
            for test, a, b in zip(condition.waves, then.waves, otherwise.waves, strict=True):
                kept = self.code.put(Opcode.VMOV, b)
                self.code.put(Opcode.VMOV, a, predicate=test)
                last = self.code.instructions[-1]
                last.to = kept[1]
                self.code.made[kept[1]] = None
                found.append(kept)
            return Floats(tuple(found))
        arms = []
        for arm, lanes in ((node.then, mask & condition), (node.otherwise, mask & ~condition)):
            self.mask = lanes
            arms.append(self.value(arm) if lanes.any() else None)
        self.mask = mask
        if not isinstance(next(arm for arm in arms if arm is not None), Floats):
            return arms[0] if arms[1] is None else arms[1] if arms[0] is None else np.where(condition, *arms)
        moved = [None if arm is None else self.each(Opcode.VMOV, arm) for arm in arms]
        if moved[0] is None or moved[1] is None:
            return moved[0] or moved[1]
        return self.merged(tree.Variable("a choice", node.type, node.at), moved[0], moved[1], condition)

    def function(self, node, word: str, kind: Scalar, *values):
        if kind.kind != "float":
            left, *rest = (self.number(value, node, word) for value in values)
            if word == "abs":
                return np.abs(left)
            less = left < rest[0]
            return np.where(less, left, rest[0]) if word == "min" else np.where(less, rest[0], left)
        if word in SIMPLE:
            return self.each(SIMPLE[word], *values)
        scaled = {"exp": LOG2_E}.get(word)
        if scaled:
            return self.each(Opcode.VEXP2, self.each(Opcode.VMUL, values[0], self.constant(e8m15.constant(scaled))))
        if word in ("log", "log10"):
            factor = self.constant(e8m15.constant(LN_2 if word == "log" else LOG10_2))
            return self.each(Opcode.VMUL, self.each(Opcode.VLOG2, values[0]), factor)
        if word == "sqrt":
            return self.each(Opcode.VMUL, values[0], self.each(Opcode.VRSQRT, values[0]))
        if word == "pow":
            power = self.each(Opcode.VMUL, values[1], self.each(Opcode.VLOG2, values[0]))
            return self.each(Opcode.VEXP2, power)
        self.refuse(f"math.{word}: the core has exp2, log2, reciprocals and what they make", node.at)

    # Memory.
    def places(self, node, memory: Buffer, index, what: str):
        """For each wave with lanes in the mask: (wave, its lanes, the first lane's element)."""
        if not isinstance(memory, Buffer):
            self.refuse(f"{what} of Shared memory: lanes reach each other by rotations and reductions only", node.at)
        if memory.element not in (f16, f32):
            self.refuse(f"{what} of {memory.element} memory: the core computes on float16 and float32", node.at)
        index = self.number(index, node, "an index").astype(np.int64)
        bad = (index < 0) | (index >= memory.count)
        first = int(index[np.flatnonzero(bad & self.mask)[0]]) if (bad & self.mask).any() else 0
        self.undefined(node, bad, f"{what} of {memory.name}[{first}], which has {memory.count} elements")
        size, found = memory.element.size, []
        for wave in range(self.waves):
            lanes = self.lanes(self.mask, wave)
            if not any(lanes):
                continue
            part = index[wave * LANES : (wave + 1) * LANES] - np.arange(LANES)
            starts = np.unique(part[list(lanes)])
            if len(starts) > 1:
                self.refuse(
                    f"{memory.name}: lanes that do not read neighbours, in order: the core gathers nothing", node.at
                )
            byte = memory.start + int(starts[0]) * size
            if byte % WORD:
                self.refuse(f"{memory.name}[{int(starts[0])}] is where lane 0 stands, and begins inside a word of "
                            f"{WORD} bytes", node.at)  # fmt: skip
            found.append((wave, lanes, byte))
        return found

    def words(self, memory: Buffer, byte: int):
        """The words of 16 elements from a byte on."""
        count = LANES * memory.element.size // WORD
        return [(memory.memory, byte // WORD + word) for word in range(count)]

    def load(self, node, memory, index) -> Floats:
        found = [("c", 0)] * self.waves
        wide = isinstance(memory, Buffer) and memory.element is f32
        for wave, lanes, byte in self.places(node, memory, index, "a read"):
            words = self.words(memory, byte)
            for place in words:
                held = self.stored.get(place)
                if held is not None and not all(held[n] for n in self.halves(place, byte, memory, lanes)):
                    self.refuse(f"{memory.name}: a word is read that was stored in part", node.at)
                self.loaded.add(place)
            found[wave] = self.code.put(Opcode.VLD, word=words[0], wide=wide)
        return Floats(tuple(found))

    def halves(self, place, byte: int, memory: Buffer, lanes: Mask) -> list[int]:
        """Which halves of a word the lanes of an access touch."""
        size = memory.element.size // 2
        first = (place[1] * WORD - byte) // memory.element.size
        per = WORD // memory.element.size
        return [n * size + k for n in range(per) if lanes[first + n] for k in range(size)]

    def store(self, node: tree.Store) -> None:
        """The lanes of the mask; others of their words hold anything, and the host takes only what was stored."""
        value, memory = self.value(node.value), self.value(node.memory)
        index = self.value(node.index)
        for wave, lanes, byte in self.places(node, memory, index, "a write"):
            words = self.words(memory, byte)
            for place in words:
                held = self.stored.setdefault(place, [place in self.loaded or all(lanes)] * LANES)
                touched = self.halves(place, byte, memory, lanes)
                if len(touched) < LANES:
                    held[:] = [False] * LANES
                for half in touched:
                    held[half] = True
            self.code.put(Opcode.VST, self.in_register(value.waves[wave]), word=words[0], wide=memory.element is f32)
            self.code.instructions[-1].to = None
            size = memory.element.size
            self.stores += [(memory.memory, byte + lane * size, size) for lane in range(LANES) if lanes[lane]]

    def load_vector(self, node, memory, index):
        self.refuse("vload: a work-item's neighbours lie in other lanes", node.at)

    # Coordinates and rendezvous.
    def coordinate(self, node, family: str, word: str):
        axis = "xyz".find(word[-1])
        (dx, dy, _), linear = self.dims, self.linear
        local = [linear % dx, linear // dx % dy, linear // (dx * dy)]
        if node.verb == "thread.clock":
            self.refuse("thread.clock", node.at)
        if family == "thread":
            start = self.group[axis] * self.dims[axis] if word.startswith("global") else 0
            return (local[axis] + start).astype(np.uint32)
        if family == "workgroup":
            return self.whole(self.dims[axis] if word.startswith("dim") else self.group[axis], u32)
        if word == "is_first_lane":
            return linear % LANES == 0
        value = {"row_id": self.group[0], "width": LANES}.get(word)
        return (linear % LANES if value is None else self.whole(value, u32)).astype(element(node.type).dtype)

    def collective(self, node, family: str, word: str, arguments: list):
        if family == "workgroup" or node.verb == "barrier.workgroup":
            lanes = np.flatnonzero(self.live & ~self.mask)
            if len(lanes):
                raise Undefined(f"{node.verb}, which a work-item does not reach", node.at, f"workgroup {self.group}")
        elif not np.array_equal(self.mask, self.alive()):
            self.refuse(f"{node.verb} that some lanes of a wave miss", node.at)
        if family == "barrier":
            return None
        if family == "workgroup":
            return self.workgroup(node, word, arguments[0])
        ops = {"reduce_sum_f32": Op.ADD, "reduce_max_f32": Op.MAX, "reduce_min_f32": Op.MIN}
        if family == "group" and word == "reduce":
            return self.reduce(node, node.options[0], arguments[0], LANES)
        if word in ops:
            return self.reduce(node, ops[word], arguments[0], LANES)
        if word.endswith("f32_segmented") or word == "reduce_segmented":
            value, segment = arguments if family == "wave" else arguments[::-1]
            op = node.options[0] if family == "group" else Op.ADD if "sum" in word else Op.MAX
            sizes = np.unique(self.number(segment, node, "a segment")[self.mask])
            if len(sizes) != 1 or sizes[0] < 1 or sizes[0] & (sizes[0] - 1):
                self.undefined(node, self.mask, f"a segment of {sizes.tolist()} lanes, no one power of two")
            return self.reduce(node, op, value, min(int(sizes[0]), LANES))
        if word in ("shuffle_xor_sync_f32",):
            amounts = np.unique(self.number(arguments[1], node, "a distance")[self.mask])
            if len(amounts) == 1 and amounts[0] in (0, 8):
                return self.rotated(arguments[0], int(amounts[0]))
        self.refuse(f"{node.verb}: lanes reach each other by float reductions, and by shuffles that rotate", node.at)

    def alive(self) -> np.ndarray:
        """Who has not returned."""
        gone = (self.frames[0] if self.frames else self.frame).state["left"].get("return")
        return self.live if gone is None else self.live & ~gone

    def rotated(self, value: Floats, amount: int) -> Floats:
        """Lane l's word from lane (l + amount) mod 16."""
        return Floats(tuple(self.code.put(Opcode.VSHUF, self.in_register(w), amount=amount) for w in value.waves))

    def reduce(self, node, op: Op, value: Floats, reach: int) -> Floats:
        """The XOR butterfly: each stage is computed with either neighbour, and lanes take theirs."""
        found = []
        for wave, held in enumerate(value.waves):
            lanes = self.lanes(self.mask, wave)
            if not any(lanes):
                found.append(held)
                continue
            if not all(lanes):
                kept = self.code.select(lanes, held, ("c", IDENTITY[op]))
                if kept is None:
                    self.refuse(f"{node.verb} of a loaded word in a wave that is not full", node.at)
                held = kept
            held = self.in_register(held)
            distance = 1
            while distance < reach:
                held = self.stage(op, held, distance)
                distance *= 2
            found.append(held)
        return Floats(tuple(found))

    def stage(self, op: Op, held: Operand, distance: int) -> Operand:
        """held[l] op held[l ^ distance] in every lane."""
        code = self.code
        behind = code.put(Opcode.VSHUF, held, amount=LANES - distance)
        result = code.put(COMBINE[op], held, behind)
        if distance * 2 == LANES:
            return result
        ahead = code.put(Opcode.VSHUF, held, amount=distance)
        mask = tuple(not lane & distance for lane in range(LANES))
        whole = code.put(COMBINE[op], held, ahead)
        code.again(whole, result[1], mask)
        return result

    def workgroup(self, node, word: str, value) -> Floats:
        """workgroup.reduce of floats: each wave's, then from wave 0 on. Every lane of a sum holds the same word."""
        if word != "reduce" or not isinstance(value, Floats):
            self.refuse(f"{node.verb} of {node.type}: the core has no integers", node.at)
        op = node.options[0]
        parts = self.reduce(node, op, value, LANES).waves
        total = parts[0]
        for part in parts[1:]:
            total = self.code.put(COMBINE[op], total, part)
        return Floats((total,) * self.waves)

    # Control flow.
    def block(self, body: tuple, mask: np.ndarray) -> np.ndarray:
        """Statements; gives the mask of who goes on."""
        for statement in body:
            if not mask.any():
                break
            self.mask = mask
            mask = self.statement(statement)
        return mask

    def statement(self, node: tree.Statement) -> np.ndarray:
        mask = self.mask
        match node:
            case tree.Declare(variable=variable, value=value):
                self.declare(variable, None if value is None else self.value(value))
            case tree.DeclareShared():
                self.refuse("Shared memory: lanes reach each other by rotations and reductions only", node.at)
            case tree.Assign(variable=variable, value=value):
                self.assign(variable, self.value(value))
            case tree.Store():
                self.store(node)
            case tree.Evaluate(value=value):
                self.value(value)
            case tree.If():
                condition = self.number(self.value(node.condition), node, "a branch")
                then = self.block(node.then, mask & condition)
                return then | self.block(node.otherwise, mask & ~condition)
            case tree.While() | tree.ForRange() | tree.ForStripe() | tree.ForBuffer():
                return self.loop(node, mask)
            case tree.Break(loop=loop) | tree.Continue(loop=loop):
                return self.leave((type(node), loop), mask)
            case tree.Return(value=value):
                if value is not None:
                    given, old = self.value(value), self.frame.state.get("result")
                    place = tree.Variable("a result", self.frame.function.result, node.at)
                    self.frame.state["result"] = given if old is None else self.merged(place, given, old)
                return self.leave("return", mask)
            case _:
                self.refuse(f"{type(node).__name__} has no code on ktpu", node.at)
        return mask

    def leave(self, key, mask: np.ndarray) -> np.ndarray:
        """Those of the mask leave."""
        left = self.frame.state["left"]
        left[key] = left.get(key, False) | mask
        return np.zeros_like(mask)

    def loop(self, node, mask: np.ndarray) -> np.ndarray:
        """Turns until nobody is left; gives those who finished or broke it."""
        out, left = np.zeros_like(mask), self.frame.state["left"]
        active, turns, turn = mask, self.turns(node), 0
        while active.any():
            self.mask = active
            going = turns(turn, active)
            out |= active & ~going
            if not going.any():
                break
            active = self.block(node.body, going) | left.pop((tree.Continue, node.loop), False)
            turn += 1
        return out | left.pop((tree.Break, node.loop), False)

    def turns(self, node):
        """A function from a turn's number and who begins it to who goes on; sets the turn's variables."""
        if isinstance(node, tree.While):

            def test(turn, active):
                if node.test_last and turn == 0:
                    return active
                return active & self.number(self.value(node.condition), node, "a loop's test")

            return test
        if isinstance(node, tree.ForBuffer):
            self.refuse("a walk over a buffer; index it", node.at)
        if isinstance(node, tree.ForRange):
            start, stop = (self.number(self.value(part), node, "a bound") for part in (node.start, node.stop))
            step = node.step
        else:
            start, step = self.linear % LANES, LANES
            stop = self.number(self.value(node.count), node, "a bound")
        start, stop = start.astype(np.int64), stop.astype(np.int64)

        def counted(turn, active):
            at = start + turn * step
            self.frame.values[node.variable] = at.astype(node.variable.type.dtype)
            return active & (at < stop if step > 0 else at > stop)

        return counted

    # Calls.
    def call(self, node, helper: tree.Function, arguments: list):
        mask = self.mask
        self.frames.append(self.frame)
        self.body(helper, arguments, node)
        self.frame.state["left"] = {}
        fell = self.block(helper.body, mask)
        self.mask = mask
        if helper.result is not None and fell.any() and self.frame.state.get("result") is not None:
            self.undefined(node, fell, f"{helper.name} ends without the {helper.result} that it promises")
        found = self.frame.state.get("result")
        self.frame = self.frames.pop()
        return found
