"""Arithmetic of a wave (spec/xpu.md 2.3): conversions, operators, comparisons and functions."""

from __future__ import annotations

import math
from dataclasses import replace

from llvmlite import ir

from kohakutpu.xpu import tree
from kohakutpu.xpu.types import BOOL, Scalar, bf16, f16, f64

from . import library
from .emit import DOUBLE, FLOAT, HALF, I1, I16, I32, Value, float_type, is_half, llvm_type
from .traps import Traps

SIGN = {"div": "/", "rem": "%", "shl": "<<", "shr": ">>", "lshr": "lshr"}
COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
FAST = ("reassoc", "contract", "arcp", "nsz", "afn")


class Numbers(Traps):
    """`flags` are LLVM's fast-math flags, `checked` whether undefined behaviour is tested, `fault` a planted defect."""

    flags: tuple[str, ...] = ()
    fault = ""

    def literal(self, kind: Scalar, value) -> Value:
        if kind.kind != "float":
            return Value(ir.Constant(llvm_type(kind), int(value)))
        with_single = value if kind is f64 else library.single(value)
        held = ir.Constant(float_type(kind), with_single)
        return Value(self.settle(kind, held)) if is_half(kind) else Value(held)

    def zero(self, kind: Scalar) -> Value:
        """The value of a local without an initialiser."""
        return Value(ir.Constant(llvm_type(kind), None if kind.kind == "float" else 0))

    # Floats of 16 bits.
    def lift(self, kind: Scalar, value):
        """A float in the type that it is computed in."""
        return self.builder.fpext(value, self.shaped(FLOAT, value)) if kind is f16 else value

    def settle(self, kind: Scalar, value):
        """A computed float as its type holds it."""
        if kind is f16:
            return self.builder.fptrunc(value, self.shaped(HALF, value))
        return self.round_bf16(value) if kind is bf16 else value

    def round_bf16(self, value):
        """float32 to the nearest bfloat16, ties to even, a NaN kept quiet."""
        b = self.builder
        bits = b.bitcast(value, self.shaped(I32, value))
        odd = b.and_(b.lshr(bits, self.like(bits, 16)), self.like(bits, 1))
        rounded = b.add(b.add(bits, self.like(bits, 0x7FFF)), odd)
        quiet = b.or_(bits, self.like(bits, 0x0040_0000))
        kept = b.select(b.fcmp_unordered("uno", value, value), quiet, rounded)
        return b.bitcast(b.and_(kept, self.like(kept, 0xFFFF_0000)), value.type)

    def to_memory(self, kind: Scalar, value):
        """A register's value as memory holds it."""
        b = self.builder
        if kind is bf16:
            bits = b.bitcast(value, self.shaped(I32, value))
            return b.trunc(b.lshr(bits, self.like(bits, 16)), self.shaped(I16, value))
        return self.widen(value, 8) if kind is BOOL else value

    def from_memory(self, kind: Scalar, value):
        """What memory holds as a register's value."""
        b = self.builder
        if kind is bf16:
            wide = self.widen(value, 32)
            return b.bitcast(b.shl(wide, self.like(wide, 16)), self.shaped(FLOAT, value))
        return b.icmp_unsigned("!=", value, self.like(value, 0)) if kind is BOOL else value

    # Conversions.
    def convert(self, node, value: Value, source: Scalar, target: Scalar) -> Value:
        if source is target:
            return value
        signed = source.signed
        if self.fault == "vector-lane-sign" and isinstance(node.value, tree.Lane) and source.kind == "int":
            signed = True
        if self.fault == "call-result-sign" and isinstance(node.value, tree.Call) and source.kind == "int":
            signed = True
        if target.kind == "int" and source.kind == "int" and (linear := self.linear_cast(value, source, target)):
            return linear
        if target.kind == "int" and source.kind == "float":
            self.check_range(node, value, source, target)
        return self.apply(lambda held: self.converted(held, source, target, signed), value)

    def linear_cast(self, value: Value, source: Scalar, target: Scalar) -> Value | None:
        """A coordinate in another width is one still, where its lanes do not wrap."""
        if value.stride in (None, 0):
            return None
        fits = value.below is not None and value.below <= 1 << min(source.bits - 1, target.bits - 1)
        if target.bits > source.bits and not fits:
            return None
        held = self.widen(value.ir, target.bits)
        if target.bits < source.bits and not fits:
            # A power of two, the width divides every range: the first lane stays a multiple of it.
            return Value(held, value.stride, value.aligned and self.width <= 1 << target.bits)
        return Value(held, value.stride, value.aligned, value.below)

    def converted(self, value, source: Scalar, target: Scalar, signed: bool):
        """A scalar or lanes of another primitive."""
        b = self.builder
        if target is BOOL:
            if source.kind == "float":
                return b.fcmp_unordered("!=", value, self.float_zero(value))
            return b.icmp_unsigned("!=", value, self.like(value, 0))
        if target.kind == "int":
            if source.kind == "int" or source is BOOL:
                return self.widen(value, target.bits, signed and source is not BOOL)
            return self.saturated(self.lift(source, value), target)
        if source.kind != "float":
            wide = self.shaped(float_type(target), value)
            value = b.sitofp(value, wide) if signed and source is not BOOL else b.uitofp(value, wide)
            return self.settle(target, value)
        value = self.lift(source, value)
        if target is f64:
            return b.fpext(value, self.shaped(DOUBLE, value)) if source is not f64 else value
        if source is f64:
            value = b.fptrunc(value, self.shaped(FLOAT, value))
        return self.settle(target, value)

    def float_zero(self, value):
        """0.0 in a float's type."""
        return ir.Constant(value.type, None)

    def saturated(self, value, target: Scalar):
        """A float truncated, held at the type's ends: never poison, whatever lanes that do not run hold."""
        kind = self.shaped(ir.IntType(target.bits), value)
        name = f"llvm.fpto{'s' if target.signed else 'u'}i.sat.{self.suffix(kind)}.{self.suffix(value.type)}"
        return self.intrinsic(name, kind, [value])

    def check_range(self, node, value: Value, source: Scalar, target: Scalar) -> None:
        """A float that the integer type cannot hold is undefined."""
        if not self.checked:
            return

        def bad(held):
            b, wide = self.builder, self.lift(source, held)
            if wide.type not in (DOUBLE, self.vector(DOUBLE)):
                wide = b.fpext(wide, self.shaped(DOUBLE, wide))
            whole = self.pure("trunc", wide)
            low = b.fcmp_ordered(">=", whole, self.like(whole, float(target.low)))
            high = b.fcmp_ordered("<", whole, self.like(whole, math.ldexp(1.0, target.bits - target.signed)))
            return b.not_(b.and_(low, high))

        text = f"{source} {{0}} converts to {target}, which cannot hold it"
        self.check(self.apply(bad, value), node.at, text, (source, value))

    # Operators.
    def unary(self, node, op: str, kind: Scalar, value: Value) -> Value:
        b = self.builder
        if op == "neg":
            if kind.kind == "float":
                return self.apply(lambda held: b.fneg(held), value)
            return self.apply(lambda held: b.sub(self.like(held, 0), held), value)
        return self.apply(b.not_, value)

    def binary(self, node, op: str, kind: Scalar, left: Value, right: Value) -> Value:
        b = self.builder
        if kind.kind == "float":
            return self.apply(lambda x, y: self.float_binary(op, kind, x, y), left, right)
        if op in ("add", "sub", "mul") and (linear := self.linear(op, left, right)):
            return linear
        constant = right.uniform and self.is_constant(right.ir) and right.ir.constant
        if op == "and" and constant and not constant & (constant + 1):
            if whole := self.split("rem", kind, left, constant + 1):
                return whole
        if op in ("shr", "lshr") and constant and 0 < constant < kind.bits:
            if whole := self.split("div", kind, left, 1 << constant):
                return whole
        if op in ("add", "sub", "mul", "and", "or", "xor"):
            return self.apply(getattr(b, {"and": "and_", "or": "or_"}.get(op, op)), left, right)
        if op in ("div", "rem"):
            return self.divide(node, op, kind, left, right)
        return self.shift(node, op, kind, left, right)

    def linear(self, op: str, left: Value, right: Value) -> Value | None:
        """A coordinate moved or scaled by what all lanes share is one still."""
        if left.stride is None or right.stride is None or left.uniform and right.uniform:
            return None
        b = self.builder
        if op == "add":
            return Value(b.add(left.ir, right.ir), left.stride + right.stride)
        if op == "sub":
            return Value(b.sub(left.ir, right.ir), left.stride - right.stride)
        one, by = (left, right) if right.uniform else (right, left)
        if by.uniform and isinstance(by.ir, ir.Constant) and 0 < by.ir.constant < 1 << 15:
            return Value(b.mul(one.ir, by.ir), one.stride * by.ir.constant)
        return None

    def float_binary(self, op: str, kind: Scalar, left, right):
        """One rounding, in float32 or float64; nothing is contracted unless the kernel is @FastMath."""
        left, right = self.lift(kind, left), self.lift(kind, right)
        if op == "rem":
            return self.settle(kind, self.builder.frem(left, right))
        return self.settle(kind, getattr(self.builder, "f" + op)(left, right, flags=self.flags))

    def split(self, op: str, kind: Scalar, left: Value, by: int) -> Value | None:
        """A coordinate divided by a multiple of the width: all lanes share the quotient."""
        positive = not kind.signed or left.below is not None and left.below <= 1 << kind.bits - 1
        if left.stride != 1 or not left.aligned or not positive or by <= 0 or by % self.width:
            return None
        number = self.like(left.ir, by)
        if op == "div":
            return Value(self.builder.udiv(left.ir, number))
        return Value(self.builder.urem(left.ir, number), 1, True, by)

    def divide(self, node, op: str, kind: Scalar, left: Value, right: Value) -> Value:
        b = self.builder
        if right.uniform and self.is_constant(right.ir) and (whole := self.split(op, kind, left, right.ir.constant)):
            return whole
        if self.checked:
            zero = self.apply(lambda y: b.icmp_unsigned("==", y, self.like(y, 0)), right)
            self.check(zero, node.at, f"division by zero: {{0}} {SIGN[op]} 0", (kind, left))
            if kind.signed:
                self.check(self.apply(lambda x, y: self.overflows(kind, x, y), left, right), node.at,
                           f"{kind} overflow: {{0}} {SIGN[op]} -1", (kind, left))  # fmt: skip

        def guarded(x, y):
            bad = b.icmp_unsigned("==", y, self.like(y, 0))
            if kind.signed:
                bad = b.or_(bad, self.overflows(kind, x, y))
            if isinstance(y, ir.Constant) and not isinstance(y.type, ir.VectorType) and y.constant not in (0, -1):
                return self.quotient(op, kind, x, y)
            return self.quotient(op, kind, x, b.select(bad, self.like(y, 1), y))

        return self.apply(guarded, left, right)

    def overflows(self, kind: Scalar, left, right):
        """MIN / -1."""
        b = self.builder
        lowest = b.icmp_signed("==", left, self.like(left, kind.low))
        return b.and_(lowest, b.icmp_signed("==", right, self.like(right, -1)))

    def quotient(self, op: str, kind: Scalar, left, right):
        """A defined quotient or remainder. Up to 32 bits lanes divide as float64, whose truncated quotient is exact."""
        b = self.builder
        if not isinstance(left.type, ir.VectorType) or kind.bits > 32 or self.is_constant(right):
            return getattr(b, ("s" if kind.signed else "u") + op)(left, right)
        wide, there = self.vector(DOUBLE), left.type
        into, back = (b.sitofp, b.fptosi) if kind.signed else (b.uitofp, b.fptoui)
        found = back(b.fdiv(into(left, wide), into(right, wide)), there)
        return found if op == "div" else b.sub(left, b.mul(found, right))

    @staticmethod
    def is_constant(value) -> bool:
        """True for a constant, whose division LLVM strengthens."""
        return isinstance(value, ir.Constant)

    def shift(self, node, op: str, kind: Scalar, left: Value, right: Value) -> Value:
        b = self.builder
        amount_kind = node.right.type
        amount_kind = getattr(amount_kind, "element", amount_kind)
        if self.checked and not isinstance(right.ir, ir.Constant):
            bad = self.apply(lambda n: b.icmp_unsigned(">=", n, self.like(n, kind.bits)), right)
            text = f"a shift of {kind} by {{1}}: {{0}} {SIGN[op]} {{1}}"
            self.check(bad, node.at, text, (kind, left), (amount_kind, right))
        elif self.checked and not 0 <= right.ir.constant < kind.bits:
            text = f"a shift of {kind} by {{1}}: {{0}} {SIGN[op]} {{1}}"
            self.check(Value(I1(1)), node.at, text, (kind, left), (amount_kind, right))
        word = {"shl": b.shl, "lshr": b.lshr, "shr": b.ashr if kind.signed else b.lshr}[op]
        return self.apply(lambda x, n: word(x, b.and_(n, self.like(n, kind.bits - 1))), left, right)

    def compare(self, node, op: str, kind: Scalar, left: Value, right: Value) -> Value:
        b = self.builder
        if kind.kind == "float":
            how = b.fcmp_unordered if op == "ne" else b.fcmp_ordered
            return self.apply(lambda x, y: how(COMPARE[op], x, y), left, right)
        signed = kind.signed
        if self.fault == "call-result-sign":
            signed = signed or any(isinstance(part, tree.Call) for part in (node.left, node.right))
        how = b.icmp_signed if signed else b.icmp_unsigned
        found = self.apply(lambda x, y: how(COMPARE[op], x, y), left, right)
        return replace(found, whole=self.whole(op, how, left, right))

    def whole(self, op: str, how, left: Value, right: Value):
        """Whether a comparison of a coordinate with what all lanes share holds in all lanes: its extreme lane says."""
        if right.uniform and left.stride == 1 and left.aligned:
            x, y, last = left.ir, right.ir, op in ("lt", "le")
            x = self.builder.add(x, self.like(x, self.width - 1)) if last else x
        elif left.uniform and right.stride == 1 and right.aligned:
            x, y, last = left.ir, right.ir, op in ("gt", "ge")
            y = self.builder.add(y, self.like(y, self.width - 1)) if last else y
        else:
            return None
        return how(COMPARE[op], x, y) if op in ("lt", "le", "gt", "ge") else None

    # Functions.
    def function(self, node, word: str, kind: Scalar, *values: Value) -> Value:
        return self.apply(lambda *held: self.computed(word, kind, *held), *values)

    def computed(self, word: str, kind: Scalar, *held):
        """A function of spec/xpu.md 1.9 on scalars or lanes."""
        b = self.builder
        if word in ("min", "max"):
            x, y = held
            if kind.kind == "float":
                less = b.fcmp_ordered("<", x, y)
            else:
                less = (b.icmp_signed if kind.signed else b.icmp_unsigned)("<", x, y)
            return b.select(less, x, y) if word == "min" else b.select(less, y, x)
        if word == "abs":
            (x,) = held
            if kind.kind == "float":
                return self.pure("fabs", x)
            negative = b.icmp_signed("<", x, self.like(x, 0))
            return b.select(negative, b.sub(self.like(x, 0), x), x) if kind.signed else x
        held = [self.lift(kind, value) for value in held]
        if word in ("floor", "ceil", "trunc", "round", "sqrt", "fma"):
            return self.settle(kind, self.pure(word, *held))
        if word == "exp" and kind is not f64:
            return self.settle(kind, library.exp(self, held[0]))
        wide = [value if kind is f64 else b.fpext(value, self.shaped(DOUBLE, value)) for value in held]
        if word == "rsqrt":
            root = self.pure("sqrt", wide[0])
            found = b.fdiv(self.like(root, 1.0), root)
        else:
            found = library.call(self, word, wide)
        return found if kind is f64 else self.settle(kind, b.fptrunc(found, self.shaped(FLOAT, found)))
