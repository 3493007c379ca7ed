"""The arguments of a launch as compiled code takes them: eight bytes each, and eight more for a buffer's count."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kohakutpu.wording import counted
from kohakutpu.xpu.errors import Refusal, Refused
from kohakutpu.xpu.memory import KernelBuffer
from kohakutpu.xpu.tree import Program, Variable
from kohakutpu.xpu.types import BOOL, BufferType, FunctionType, Scalar, bf16, f16, u32


def refuse(program: Program, construct: str) -> Refused:
    """A refusal of the whole launch."""
    return Refused(program.name, [Refusal(construct, program.kernel.at)])


def array_of(program: Program, parameter: Variable, value) -> np.ndarray:
    """A buffer argument's elements: a KernelBuffer, or a one-dimensional array of the element's memory dtype."""
    element = parameter.type.element
    if isinstance(value, KernelBuffer):
        value = value.array
    fits = isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype == np.dtype(element.dtype)
    if not fits or not value.flags.c_contiguous or not value.flags.writeable:
        have = f"{value.dtype}{value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
        raise refuse(
            program, f"argument {parameter.name}: a buffer of {element} ({element.dtype}) expected, not {have}"
        )
    return value


def scalar_bits(program: Program, parameter: Variable, value) -> bytes:
    """A scalar argument as the bytes that a register is loaded from; nothing is cut off in silence."""
    kind = parameter.type
    if isinstance(kind, FunctionType):
        value = kind.members.index(value) if value in kind.members else value
        kind = u32
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if kind is BOOL and isinstance(value, (bool, np.bool_)):
        return bytes([bool(value)])
    if kind.kind == "int" and whole and kind.low <= value <= kind.high:
        return int(value).to_bytes(kind.size, "little", signed=kind.signed)
    if kind.kind == "float" and (whole or isinstance(value, (float, np.floating))):
        return _float_bits(kind, value)
    raise refuse(program, f"argument {parameter.name}: a {kind} expected, not {value!r}")


def _float_bits(kind: Scalar, value) -> bytes:
    """A float rounded to its type as a kernel's conversion from float64 rounds it; a bfloat16 as float32."""
    with np.errstate(all="ignore"):
        wide = np.float64(value)
        if kind is f16:
            return np.float16(np.float32(wide)).tobytes()
        if kind is bf16:
            bits = np.float32(wide).view(np.uint32)
            if np.isnan(wide):
                return np.uint32((bits | 0x0040_0000) & 0xFFFF_0000).tobytes()
            odd = bits >> np.uint32(16) & np.uint32(1)
            return ((bits + np.uint32(0x7FFF) + odd) & np.uint32(0xFFFF_0000)).tobytes()
        return wide.astype(kind.dtype).tobytes()


def pack(program: Program, arguments: Sequence) -> tuple[np.ndarray, list[np.ndarray]]:
    """(the packed words, the arrays that they point to, which the caller keeps). Raises Refused."""
    parameters = program.kernel.parameters
    if len(arguments) != len(parameters):
        raise refuse(program, f"{counted(len(arguments), 'argument')}, where {len(parameters)} are taken")
    words, arrays = bytearray(), []
    for parameter, value in zip(parameters, arguments, strict=True):
        if isinstance(parameter.type, BufferType):
            array = array_of(program, parameter, value)
            arrays.append(array)
            words += array.ctypes.data.to_bytes(8, "little") + len(array).to_bytes(8, "little")
        else:
            words += scalar_bits(program, parameter, value).ljust(8, b"\0")
    return np.frombuffer(bytes(words) or bytes(8), np.uint8), arrays
