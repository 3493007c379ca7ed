"""Values of the machine's waves: integers and masks are numbers for each lane, floats operands of instructions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kohakutpu.backends.lowering import LoweringTarget, element
from kohakutpu.formats import e8m15
from kohakutpu.isa.vector import Opcode
from kohakutpu.xpu import tree
from kohakutpu.xpu.errors import Undefined
from kohakutpu.xpu.types import BOOL, Scalar, TileType, VectorType, f16, f32

from .instructions import LANES, Code, Mask, Operand

LOG2_E, LN_2, LOG10_2 = np.log2(np.e), np.log(2.0), np.log10(2.0)
SIMPLE = {"exp2": Opcode.VEXP2, "log2": Opcode.VLOG2, "rsqrt": Opcode.VRSQRT, "abs": Opcode.VABS,
          "min": Opcode.VMIN, "max": Opcode.VMAX, "fma": Opcode.VFMA}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Floats:
    """An operand for each wave of the workgroup."""

    waves: tuple[Operand, ...]


@dataclass(frozen=True, eq=False)
class Test:
    """A comparison of floats, for each wave: known only when it runs."""

    waves: tuple[tuple[Opcode, Operand, Operand], ...]


class Numbers(LoweringTarget):
    """Variables and arithmetic of a workgroup: of `waves` waves, under `mask`, into `code`."""

    name = "ktpu"
    code: Code
    mask: np.ndarray
    linear: np.ndarray
    waves: int
    dims: tuple
    group: tuple

    # Variables.
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
