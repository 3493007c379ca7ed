"""Types of the kernel language (spec/xpu.md 1.2). Every value carries a width and a signedness."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from kohakutpu.wording import counted

from .errors import DeclarationError, HostUse


@dataclass(frozen=True)
class Scalar:
    """A primitive. `bits` is its width in registers; bool takes one byte of memory, and bfloat16 two."""

    name: str
    kind: str
    bits: int
    signed: bool = False

    def __str__(self) -> str:
        return self.name

    def __call__(self, *values):
        raise HostUse(f"{self.name}(...) converts inside a kernel; pass the launch a plain Python or numpy number")

    @property
    def size(self) -> int:
        """Bytes of one element in memory."""
        return max(self.bits // 8, 1)

    @property
    def dtype(self) -> str:
        """The numpy dtype of an element in memory; bool is held as uint8 and bfloat16 as its bits."""
        if self.kind == "int":
            return f"{'int' if self.signed else 'uint'}{self.bits}"
        return {"bool": "uint8", "bf16": "uint16"}.get(self.name, f"float{self.bits}")

    @property
    def low(self) -> int:
        """The smallest integer of the type."""
        return -(1 << self.bits - 1) if self.signed else 0

    @property
    def high(self) -> int:
        """The largest integer of the type."""
        return (1 << self.bits - self.signed) - 1


BOOL = Scalar("bool", "bool", 1)
i8, i16, i32, i64 = (Scalar(f"i{bits}", "int", bits, True) for bits in (8, 16, 32, 64))
u8, u16, u32, u64 = (Scalar(f"u{bits}", "int", bits) for bits in (8, 16, 32, 64))
f16, bf16, f32, f64 = (
    Scalar(name, "float", bits, True) for name, bits in (("f16", 16), ("bf16", 16), ("f32", 32), ("f64", 64))
)
SCALARS = {t.name: t for t in (BOOL, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64)}


def integer(bits: int, signed: bool) -> Scalar:
    """The integer of a width and a signedness."""
    return SCALARS[f"{'i' if signed else 'u'}{bits}"]


class Use(enum.IntEnum):
    """The role of a cooperative matrix in a product."""

    A = 0
    B = 1
    ACCUMULATOR = 2


class MemoryOrder(enum.Enum):
    """The order of an atomic or a fence. The reference is sequentially consistent, so no order changes an answer."""

    RELAXED = "Relaxed"
    ACQUIRE = "Acquire"
    RELEASE = "Release"
    ACQ_REL = "AcqRel"
    SEQ_CST = "SeqCst"


class Op(enum.Enum):
    """The operation of a group or workgroup verb."""

    ADD = "Add"
    MAX = "Max"
    MIN = "Min"


@dataclass(frozen=True)
class VectorType:
    """`Vector[T, N]`: N lanes of a primitive, local to the kernel."""

    element: Scalar
    count: int

    def __str__(self) -> str:
        return f"Vector[{self.element}, {self.count}]"


@dataclass(frozen=True)
class BufferType:
    """`KernelBuffer[T]`: a parameter in device memory; two parameters may overlap."""

    element: Scalar

    def __str__(self) -> str:
        return f"KernelBuffer[{self.element}]"


@dataclass(frozen=True)
class SharedType:
    """`Shared[T]`, `Swizzled[T, S]` or `BlockPadded[T, block, pad]`: memory of a workgroup.

    A swizzle permutes slots where no program can see it. With `block`, element a lives at slot a + a//block*pad, and
    the declared size counts slots.
    """

    element: Scalar
    swizzle: int = 0
    block: int = 0
    pad: int = 0

    def __str__(self) -> str:
        if self.block:
            return f"BlockPadded[{self.element}, {self.block}, {self.pad}]"
        return f"Swizzled[{self.element}, {self.swizzle}]" if self.swizzle else f"Shared[{self.element}]"

    def slot(self, index: int) -> int:
        """Where a logical index lives."""
        return index + index // self.block * self.pad if self.block else index


@dataclass(frozen=True)
class TileType:
    """`CooperativeMatrix[T, rows, cols, use]`: a value of the whole wave."""

    element: Scalar
    rows: int
    cols: int
    use: int

    def __str__(self) -> str:
        return f"CooperativeMatrix[{self.element}, {self.rows}, {self.cols}, {self.use}]"


@dataclass(frozen=True)
class SliceType:
    """`memory.at(offset)`: where the row factors of an epilogue verb begin. An argument form only."""

    element: Scalar


@dataclass(frozen=True)
class WaveVectorType:
    """`WaveVector[T, N]`: the column factors of an epilogue verb. An argument form only."""

    element: Scalar
    count: int


@dataclass(frozen=True)
class FunctionType:
    """`Function[f, g, ...]`: a tag over a closed set of @xpu.device helpers; out of range calls nothing, gives zero."""

    members: tuple

    def __str__(self) -> str:
        return f"Function[{', '.join(member.name for member in self.members)}]"


@dataclass(frozen=True)
class Void:
    """What a function without a value gives."""

    def __str__(self) -> str:
        return "nothing"


VOID = Void()
MEMORY = (BufferType, SharedType)


def _scalar(value, what: str) -> Scalar:
    value = BOOL if value is bool else value
    if not isinstance(value, Scalar):
        raise DeclarationError(f"{what}: the element is a primitive type such as f32, not {value!r}")
    return value


def _positive(value, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise DeclarationError(f"{what}: expected a positive integer constant, not {value!r}")
    return value


class Former:
    """A generic type's name: `former[arguments]` is a type, in annotations and in kernels."""

    def __init__(self, name: str, parameters: str, build):
        self.name, self.parameters, self._build = name, parameters, build

    def __getitem__(self, arguments):
        arguments = arguments if isinstance(arguments, tuple) else (arguments,)
        expected = self.parameters.split(", ")
        if len(arguments) != len(expected) and self.name != "Function":
            raise DeclarationError(
                f"{self.name}[{self.parameters}] takes {counted(len(expected), 'argument')}, not {len(arguments)}"
            )
        return self._build(*arguments)

    def __call__(self, *_):
        raise HostUse(f"{self.name} is a type of the kernel language; host code cannot make one")

    def __repr__(self) -> str:
        return f"{self.name}[{self.parameters}]"


def _vector(element, count):
    return VectorType(_scalar(element, "Vector"), _positive(count, "Vector"))


def _swizzled(element, swizzle):
    return SharedType(_scalar(element, "Swizzled"), swizzle=_positive(swizzle, "Swizzled"))


def _padded(element, block, pad):
    what = "BlockPadded"
    return SharedType(_scalar(element, what), block=_positive(block, what), pad=_positive(pad, what))


def _tile(element, rows, cols, use):
    element = _scalar(element, "CooperativeMatrix")
    if element is BOOL or use not in tuple(Use):
        raise DeclarationError(
            f"CooperativeMatrix[{element}, {rows}, {cols}, {use!r}]: a number and a Use were expected"
        )
    return TileType(element, _positive(rows, "CooperativeMatrix"), _positive(cols, "CooperativeMatrix"), int(use))


def _wave_vector(element, count):
    return WaveVectorType(_scalar(element, "WaveVector"), _positive(count, "WaveVector"))


def _function(*members):
    if not members or not all(hasattr(member, "is_device_helper") for member in members):
        raise DeclarationError(f"Function[...] lists the @xpu.device helpers it may hold, not {members!r}")
    return FunctionType(members)


Vector = Former("Vector", "T, N", _vector)
Shared = Former("Shared", "T", lambda element: SharedType(_scalar(element, "Shared")))
Swizzled = Former("Swizzled", "T, S", _swizzled)
BlockPadded = Former("BlockPadded", "T, Block, Pad", _padded)
CooperativeMatrix = Former("CooperativeMatrix", "T, Rows, Cols, Use", _tile)
WaveVector = Former("WaveVector", "T, N", _wave_vector)
Function = Former("Function", "f, g, ...", _function)
