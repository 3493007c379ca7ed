"""Values of a wave in LLVM IR, and the small things that every part of the target emits with.

A value is uniform (one scalar), linear (lane l holds the scalar plus l times a stride, as coordinates do) or varying
(a vector of W lanes). bool is i1, bfloat16 a float of its value, every other primitive the LLVM type of its name.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass

from llvmlite import ir

from kohakutpu.xpu.types import BOOL, Scalar, bf16, f16, f64

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
HALF, FLOAT, DOUBLE = ir.HalfType(), ir.FloatType(), ir.DoubleType()
POINTER = ir.PointerType()
FLOATS = {"f16": HALF, "bf16": FLOAT, "f32": FLOAT, "f64": DOUBLE}


def llvm_type(kind: Scalar):
    """The type of one value in a register."""
    return FLOATS[kind.name] if kind.kind == "float" else ir.IntType(kind.bits)


def memory_type(kind: Scalar):
    """The type of one element in memory."""
    return I8 if kind is BOOL else I16 if kind is bf16 else llvm_type(kind)


@dataclass(frozen=True, eq=False)
class Value:
    """`ir` is a scalar if `stride` is a number, where lane l holds ir + l*stride (mod 2**bits); else W lanes.

    Of stride 1: `aligned` if `ir` is a multiple of W as an unsigned number; `below`, a bound that all lanes are under.
    Of a condition: `whole`, a scalar that is true only where the condition holds in all W lanes.
    """

    ir: object
    stride: int | None = 0
    aligned: bool = False
    below: int | None = None
    whole: object = None

    @property
    def uniform(self) -> bool:
        """True if every lane holds the same."""
        return self.stride == 0


@dataclass(frozen=True)
class Site:
    """Where a run may stop: what it says, with {0} and {1} as the shown values, which are of `kinds`.

    `refused`: what stops it is defined, and has no code here.
    """

    text: str
    at: object
    kinds: tuple[Scalar, ...]
    refused: bool = False


class Emitter:
    """Builds one function. `width` lanes; `mask` says which run, None for all."""

    def __init__(self, width: int):
        self.width = width
        self.module = ir.Module("kernel")
        self.builder: ir.IRBuilder = None
        self.mask = None
        self.sites: list[Site] = []
        self._intrinsics: dict[str, ir.Function] = {}

    # Types and constants.
    def vector(self, kind) -> ir.VectorType:
        """W lanes of an LLVM type."""
        return ir.VectorType(kind, self.width)

    def const(self, kind, value):
        """A constant of an LLVM type, in every lane if it is a vector."""
        if isinstance(kind, ir.VectorType):
            return ir.Constant(kind, [ir.Constant(kind.element, value)] * kind.count)
        return ir.Constant(kind, value)

    def like(self, value, number):
        """A constant of a value's type."""
        return self.const(value.type, number)

    def lanes(self, numbers, kind):
        """A constant vector."""
        return ir.Constant(ir.VectorType(kind, len(numbers)), [ir.Constant(kind, number) for number in numbers])

    def shaped(self, kind, value):
        """`kind` with the lanes of a value."""
        return ir.VectorType(kind, value.type.count) if isinstance(value.type, ir.VectorType) else kind

    def broadcast(self, scalar, count: int | None = None):
        """A scalar in every lane."""
        count = count or self.width
        if isinstance(scalar, ir.Constant) and not isinstance(scalar.type, ir.PointerType):
            return ir.Constant(ir.VectorType(scalar.type, count), [scalar] * count)
        kind = ir.VectorType(scalar.type, count)
        one = self.builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, I32(0))
        return self.builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), self.lanes([0] * count, I32))

    def spread(self, value: Value):
        """A value's W lanes."""
        if value.stride is None:
            return value.ir
        whole = self.broadcast(value.ir)
        if value.stride == 0:
            return whole
        kind = value.ir.type
        steps = [lane * value.stride & (1 << kind.width) - 1 for lane in range(self.width)]
        return self.builder.add(whole, self.lanes(steps, kind))

    def apply(self, compute, *values: Value) -> Value:
        """An operation on scalars where all are uniform, else on lanes."""
        if all(value.uniform for value in values):
            return Value(compute(*(value.ir for value in values)))
        return Value(compute(*(self.spread(value) for value in values)), None)

    def intrinsic(self, name: str, result, arguments: list):
        """A call of an LLVM intrinsic by its full name."""
        if name not in self._intrinsics:
            kind = ir.FunctionType(result, [argument.type for argument in arguments])
            self._intrinsics[name] = ir.Function(self.module, kind, name)
        return self.builder.call(self._intrinsics[name], arguments)

    def suffix(self, kind) -> str:
        """An LLVM type in an intrinsic's name."""
        if isinstance(kind, ir.VectorType):
            return f"v{kind.count}{self.suffix(kind.element)}"
        return {HALF: "f16", FLOAT: "f32", DOUBLE: "f64", POINTER: "p0"}.get(kind) or f"i{kind.width}"

    def pure(self, name: str, *arguments):
        """An intrinsic overloaded on its first argument's type, which it gives."""
        kind = arguments[0].type
        return self.intrinsic(f"llvm.{name}.{self.suffix(kind)}", kind, list(arguments))

    def reduce(self, name: str, vector):
        """llvm.vector.reduce.NAME of a vector."""
        kind = vector.type
        return self.intrinsic(f"llvm.vector.reduce.{name}.{self.suffix(kind)}", kind.element, [vector])

    # Masks.
    def bits(self, mask):
        """A mask as an integer of W bits."""
        return self.builder.bitcast(mask, ir.IntType(mask.type.count))

    def any(self, mask):
        """True if a lane is set."""
        return self.builder.icmp_unsigned("!=", self.bits(mask), ir.Constant(ir.IntType(self.width), 0))

    def all(self, mask):
        """True if every lane is set."""
        return self.builder.icmp_unsigned("==", self.bits(mask), ir.Constant(ir.IntType(self.width), -1))

    def full(self):
        """The mask as a vector."""
        return self.const(self.vector(I1), 1) if self.mask is None else self.mask

    def under(self, lanes):
        """A condition, where the mask holds."""
        return lanes if self.mask is None else self.builder.and_(self.mask, lanes)

    def kept(self, lanes, otherwise):
        """Lanes where the mask holds, else another value."""
        return lanes if self.mask is None else self.builder.select(self.mask, lanes, otherwise)

    def first(self, mask=None):
        """The number of the first lane of a mask (i64); of the present one by default."""
        mask = self.mask if mask is None else mask
        if mask is None:
            return I64(0)
        found = self.pure_flag("cttz", self.bits(mask))
        return self.widen(found, 64)

    def last(self):
        """The number of the last lane of the mask (i64)."""
        if self.mask is None:
            return I64(self.width - 1)
        found = self.widen(self.pure_flag("ctlz", self.bits(self.mask)), 64)
        return self.builder.sub(I64(self.width - 1), found)

    def pure_flag(self, name: str, value):
        """cttz or ctlz, which give the width for zero."""
        return self.intrinsic(f"llvm.{name}.{self.suffix(value.type)}", value.type, [value, I1(0)])

    def widen(self, value, bits: int, signed: bool = False):
        """An integer as one of another width."""
        kind = self.shaped(ir.IntType(bits), value)
        have = getattr(value.type, "element", value.type).width
        if have == bits:
            return value
        if have > bits:
            return self.builder.trunc(value, kind)
        return self.builder.sext(value, kind) if signed else self.builder.zext(value, kind)

    def pick(self, value: Value, lane):
        """A value's lane by its number (i64), as a scalar."""
        if value.uniform:
            return value.ir
        return self.builder.extract_element(self.spread(value), self.widen(lane, 32))

    # Blocks.
    @contextmanager
    def when(self, condition, likely: bool | None = None):
        """What is emitted inside runs if a scalar condition holds."""
        then, after = (self.builder.append_basic_block(name) for name in ("then", "after"))
        branch = self.builder.cbranch(condition, then, after)
        if likely is not None:
            branch.set_weights([2000, 1] if likely else [1, 2000])
        self.builder.position_at_end(then)
        yield
        if not self.builder.block.is_terminated:
            self.builder.branch(after)
        self.builder.position_at_end(after)

    def alloca(self, kind, name: str = ""):
        """A stack slot of the function."""
        with self.builder.goto_entry_block():
            return self.builder.alloca(kind, name=name)

    def address(self, base, offset, kind=I8):
        """base + offset elements of a type; a vector of pointers for a vector of offsets."""
        pointer = self.builder.gep(base, [offset], source_etype=kind)
        vector = isinstance(offset.type, ir.VectorType)
        pointer.type = ir.VectorType(POINTER, offset.type.count) if vector else POINTER
        return pointer


def float_type(kind: Scalar):
    """The type that a float is computed in."""
    return DOUBLE if kind is f64 else FLOAT


def is_half(kind: Scalar) -> bool:
    """True for the 16-bit floats, which are computed in float32."""
    return kind in (f16, bf16)
