"""The reference interpreter's door: what it refuses, and a launch from arguments to changed memory."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kohakutpu.wording import counted
from kohakutpu.xpu.errors import Refusal, Refused
from kohakutpu.xpu.kernel import Kernel
from kohakutpu.xpu.memory import KernelBuffer
from kohakutpu.xpu.tree import Invoke, Program, Variable
from kohakutpu.xpu.tree import walk as nodes
from kohakutpu.xpu.types import BOOL, BufferType, FunctionType, Scalar, f64, u32

from . import arithmetic as host
from . import machine, machine_tiles, tiles, tracking
from .batch import Bail
from .lockstep import Lockstep
from .memory import Memory
from .schedule import Budget, Workgroup, groups
from .walker import Formats

HOST = Formats(host, tiles)
MACHINE = Formats(machine, machine_tiles)
BATCH = 1 << 14  # work-items that the fast path steps together
UNKNOWABLE = {"thread.clock": "thread.clock has no reference value, by its nature"}


@dataclass(frozen=True)
class Launch:
    """`grid` counts workgroups and `block` work-items, one to three numbers each.

    `wave_width` None takes the kernel's @Wave. `budget_seconds` 0 is no limit. `shared_bytes` bounds the array that
    the launch sizes; None does not.
    """

    grid: Sequence[int] | int = 1
    block: Sequence[int] | int = 1
    wave_width: int | None = None
    budget_seconds: float = 0
    shared_bytes: int | None = None


@dataclass(frozen=True)
class Bits:
    """A scalar argument as the bytes of its parameter's type in memory order, as a recording holds it."""

    data: bytes


def refusals(kernel: Kernel) -> list[Refusal]:
    """Every construct of a kernel and its helpers that the interpreter cannot define; nothing runs."""
    program = kernel.program
    found = list(program.refusals)
    for function in program.functions:
        inside = "" if function is program.kernel else function.name
        if not function.portable:
            found.append(Refusal(f"{function.name} has back-end arms and no portable body", function.at))
        for node in (node for statement in function.body for node in nodes(statement)):
            if isinstance(node, Invoke) and node.verb in UNKNOWABLE:
                found.append(Refusal(UNKNOWABLE[node.verb], node.at, inside))
    return found


SURVEYED = "kernel\tverdict\trefusals\tfirst reason"  # what `survey` gives, in this order


def survey(kernel: Kernel) -> str:
    """One line: `name<TAB>RUNS<TAB>0`, or `name<TAB>REFUSED<TAB>count<TAB>first reason`."""
    found = refusals(kernel)
    return f"{kernel.name}\tREFUSED\t{len(found)}\t{found[0]}" if found else f"{kernel.name}\tRUNS\t0"


def run(kernel: Kernel, arguments: Sequence, launch: Launch, formats: Formats = HOST, walk: bool = False) -> str:
    """Run a kernel; buffers change in place. Gives "fast" or "walk": which path answered.

    The walker is the definition. The fast path (`lockstep`) gives the same bytes or makes way for it; `walk`, or
    XPU_REF_WALK=1, keeps it out, and XPU_REF_COMPILE_LOG=1 prints why it made way. `formats` MACHINE computes as the
    machine does (see `machine`), by the walker alone, and refuses what the machine has no numbers for.

    `arguments` in parameter order: a KernelBuffer or a one-dimensional numpy array of the element's dtype (bfloat16:
    uint16 bits, bool: uint8) for a buffer; a number in the type's range, or Bits, for a scalar; a helper or its tag
    for a function. Raises Refused (XPU-REF01) before anything runs, Undefined (XPU-REF02), OverBudget (XPU-REF03).
    """
    found = refusals(kernel) or (machine.refusals(kernel.program) if formats is MACHINE else [])
    if found:
        raise Refused(kernel.name, found)
    program = kernel.program
    grid, block = extent(program, "grid", launch.grid), extent(program, "block", launch.block)
    width = wave_width(program, launch.wave_width)
    bound = bind(program, arguments, formats)
    budget = Budget(launch.budget_seconds, program.name)
    with np.errstate(all="ignore"):
        if formats is HOST and not walk and os.environ.get("XPU_REF_WALK") != "1":
            why = fast(program, grid, block, width, bound, budget, launch.shared_bytes)
            if why is None:
                return "fast"
            if os.environ.get("XPU_REF_COMPILE_LOG") == "1":
                print(f"{program.name}: walked: {why}", file=sys.stderr)
        for group in groups(grid):
            Workgroup(program, group, grid, block, width, bound, budget, formats, launch.shared_bytes).run()
    return "walk"


def fast(program: Program, grid, block, width, bound: list, budget: Budget, shared_bytes: int | None) -> str | None:
    """Run a launch by the fast path. Otherwise memory is as it was, and the answer says why."""
    why = tracking.unknown(program)
    if why:
        return why
    watched = tracking.stored(program)
    held = [(p, value) for p, value in zip(program.kernel.parameters, bound, strict=True) if isinstance(value, Memory)]
    for (one, left), (two, right) in itertools.combinations(held, 2):
        if watched & {one, two} and np.may_share_memory(left.array, right.array):
            return f"{one.name} and {two.name} overlap"
    saved = [(value.array, value.array.copy()) for parameter, value in held if parameter in watched]
    size = max(1, BATCH // (block[0] * block[1] * block[2]))
    order, epochs, frame = groups(grid), tracking.epochs(), tracking.bind(program, bound, watched)
    try:
        while batch := list(itertools.islice(order, size)):
            Lockstep(program, batch, grid, block, width, frame, epochs, budget.look, shared_bytes).run()
    except Bail as bail:
        for array, before in saved:
            array[:] = before
        return str(bail)
    return None


def refuse(program: Program, construct: str) -> Refused:
    """A refusal of the whole launch."""
    return Refused(program.name, [Refusal(construct, program.kernel.at)])


def extent(program: Program, name: str, value: Sequence[int] | int) -> tuple[int, int, int]:
    """One to three positive numbers, filled up with 1."""
    numbers = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if not 1 <= len(numbers) <= 3 or not all(isinstance(n, (int, np.integer)) and n >= 1 for n in numbers):
        raise refuse(program, f"{name}={value!r}: one to three positive integers are expected")
    return (*map(int, numbers), 1, 1)[:3]


def wave_width(program: Program, width: int | None) -> int | None:
    """The launch's width, else the declared one; refused where the answer depends on it and neither is."""
    width = width or program.width
    if width is None and "wave" in program.uses:
        raise refuse(program, "a wave operation, and neither the launch nor @Wave gives the width")
    if width is not None and (width & (width - 1) or not 1 <= width <= 64):
        raise refuse(program, f"a wave of {width} lanes: a power of two from 1 to 64 is expected")
    return width


def bind(program: Program, arguments: Sequence, formats: Formats) -> list:
    """The arguments as the walker's values. A wrong count or kind is a refusal."""
    parameters = program.kernel.parameters
    if len(arguments) != len(parameters):
        raise refuse(program, f"{counted(len(arguments), 'argument')}, where {len(parameters)} are taken")
    return [_argument(program, p, value, formats) for p, value in zip(parameters, arguments, strict=True)]


def _argument(program: Program, parameter: Variable, value, formats: Formats):
    kind, what = parameter.type, f"argument {parameter.name}"
    if isinstance(kind, BufferType):
        if isinstance(value, KernelBuffer):
            value = value.array
        if not isinstance(value, np.ndarray) or value.ndim != 1 or value.dtype != np.dtype(kind.element.dtype):
            have = f"{value.dtype}{value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
            raise refuse(program, f"{what}: a buffer of {kind.element} ({kind.element.dtype}) expected, not {have}")
        return Memory(parameter.name, kind.element, value, values=formats.values)
    if isinstance(kind, FunctionType):
        value = kind.members.index(value) if value in kind.members else value
        kind = u32
    if isinstance(value, Bits):
        if len(value.data) < kind.size:
            raise refuse(program, f"{what}: {len(value.data)} bytes for a {kind}")
        value = host.read(np.frombuffer(value.data[: kind.size], kind.dtype), kind, 0)
    number = _number(program, kind, value, what)
    return formats.values.literal(kind, float(number)) if kind.kind == "float" and formats is MACHINE else number


def _number(program: Program, kind: Scalar, value, what: str):
    """A Python or numpy number as a value of a primitive; nothing is cut off in silence."""
    if kind is BOOL and isinstance(value, (bool, np.bool_)):
        return bool(value)
    is_integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if kind.kind == "int" and is_integer and kind.low <= value <= kind.high:
        return int(value)
    if kind.kind == "float" and (is_integer or isinstance(value, (float, np.floating))):
        with np.errstate(all="ignore"):
            return host.convert(np.float64(value), f64, kind)
    raise refuse(program, f"{what}: a {kind} expected, not {value!r}")
