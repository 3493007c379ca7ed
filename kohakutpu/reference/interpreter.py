"""The reference interpreter of tile kernels: executes a trace in machine arithmetic, statement by statement.

The meaning it follows is `docs/kernels.md`, "What a kernel means". It reads the same trace as the compiler
and shares the number formats with the machine; layouts, placement, stages and instructions do not exist here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np

from kohakutpu.formats import alu, e8m15, fp16, mxfp7
from kohakutpu.formats.accumulator import AccumulatorFormat
from kohakutpu.formats.alu import AluOp
from kohakutpu.formats.reduction import Reduction, reduce_rows
from kohakutpu.lang.extents import KBLOCK, LANES, Extents
from kohakutpu.lang.source import Source
from kohakutpu.lang.trace import (
    Buffer, Constant, Contract, ElementOp, Expression, Op, Reduce, RowOp, Slice, Statement, TileLeaf, Trace, View,
)  # fmt: skip
from kohakutpu.wording import counted

from .walk import InterpreterError, Walk, check_operands

SMALLEST_NORMAL = 2.0**-126
OVERFLOWS = 65520.0  # from here on a finite number is rounded beyond FP16, and saturates


class Constants(Enum):
    """How a number in an expression is held: in a register (E8M15, truncated) or in memory (FP16)."""

    REGISTERS = "registers"
    ARRAYS = "arrays"


@dataclass(frozen=True)
class Saturation:
    """How many elements of `buffer` a statement saturated, in all batch elements, instances and turns of loops; `first`:
    the index of the first of them, batch axes included."""

    elements: int
    buffer: str
    first: tuple[int, ...]


@dataclass(frozen=True)
class Image:
    """What a kernel leaves: `outputs` by port, uint16 FP16 patterns of the logical shape.

    `writers` has, for every output element, the id of the statement that wrote it last (`trace.statements[id]`);
    `saturated`, by id, what a statement wrote as 65504 with its sign because it was larger.
    """

    outputs: Mapping[str, np.ndarray]
    writers: Mapping[str, np.ndarray]
    saturated: Mapping[int, Saturation] = field(default_factory=dict)


# Operands by the ALU's field: VADD and VSUB take their second one in c, the others in b.
OPERATIONS = {
    ElementOp.NEG: (AluOp.VNEG, "a"),
    ElementOp.ABS: (AluOp.VABS, "a"),
    ElementOp.ADD: (AluOp.VADD, "ac"),
    ElementOp.SUB: (AluOp.VSUB, "ac"),
    ElementOp.MUL: (AluOp.VMUL, "ab"),
    ElementOp.MAX: (AluOp.VMAX, "ab"),
    ElementOp.MIN: (AluOp.VMIN, "ab"),
    ElementOp.EXP2: (AluOp.VEXP2, "a"),
    ElementOp.LOG2: (AluOp.VLOG2, "a"),
    ElementOp.RECIP: (AluOp.VINV, "a"),
    ElementOp.RSQRT: (AluOp.VRSQRT, "a"),
    ElementOp.FMA: (AluOp.VFMA, "abc"),
}
CHOICES = {
    ElementOp.WHERE_LESS: AluOp.VCMPLT,
    ElementOp.WHERE_GREATER: AluOp.VCMPGT,
    ElementOp.WHERE_EQUAL: AluOp.VCMPEQ,
}
REDUCTIONS = {RowOp.SUM: Reduction.SUM, RowOp.MAX: Reduction.MAX, RowOp.MIN: Reduction.MIN}


def hold(value: float, constants: Constants, source: Source) -> int:
    """The E8M15 word of a constant, refused where it has none."""
    if not math.isfinite(value):
        raise InterpreterError(f"the constant {value!r} is not finite", source)
    if constants is Constants.ARRAYS:
        pattern = fp16.from_float(np.array([value]))
        if (pattern[0] & 0x7C00) == 0x7C00:
            raise InterpreterError(f"the constant {value!r} is outside the range of FP16", source)
        if value and not pattern[0] & 0x7C00:
            raise InterpreterError(f"the constant {value!r} is no normal FP16 number", source)
        return int(e8m15.from_fp16(pattern)[0])
    if value and abs(value) < SMALLEST_NORMAL:
        raise InterpreterError(f"the constant {value!r} is no normal E8M15 number", source)
    try:
        return e8m15.constant(value)
    except ValueError as error:
        raise InterpreterError(str(error), source) from None


def overflows(words: np.ndarray) -> np.ndarray:
    """Which E8M15 words are finite and saturate as FP16."""
    magnitude = words & 0x7FFFFF
    return (magnitude >= e8m15.constant(OVERFLOWS)) & (magnitude < 0x7F8000)


class _Accumulator:
    """A tile's sum in the accumulator float, uint32[rows, columns].

    In one part, products are added as they come. In several, contractions are kept until the sum is asked for, since
    how many there are says where they are cut.
    """

    def __init__(self, shape: tuple[int, int], held: AccumulatorFormat, parts: int):
        self.shape = shape
        self.held = held
        self.parts = parts
        self._sum = np.zeros(shape, np.uint32)
        self._contractions: list[list[np.ndarray]] = []
        self._summed = True

    def add(self, products: list[np.ndarray]) -> None:
        """One contraction: the products of its blocks, in ascending order."""
        if self.parts == 1:
            self._sum = self._chain(self._sum, products)
        else:
            self._contractions.append(products)
            self._summed = False

    def _chain(self, total: np.ndarray, products: list[np.ndarray]) -> np.ndarray:
        for product in products:
            total = self.held.add(total, product)
        return total

    @property
    def value(self) -> np.ndarray:
        """The sum of everything added so far."""
        if not self._summed:
            self._sum, self._summed = self._in_parts(), True
        return self._sum

    def _in_parts(self) -> np.ndarray:
        """Runs of contractions, the first of them one longer where they do not come out even, each a chain of its own from
        zero; then neighbours, and neighbours of those, added until one is left."""
        parts = min(self.parts, len(self._contractions))
        size, longer = divmod(len(self._contractions), parts)
        sums, first = [], 0
        for part in range(parts):
            end = first + size + (part < longer)
            sums.append(self._chain(np.zeros(self.shape, np.uint32), sum(self._contractions[first:end], [])))
            first = end
        while len(sums) > 1:
            pairs = [self.held.add(a, b) for a, b in zip(sums[::2], sums[1::2], strict=False)]
            sums = pairs + sums[len(pairs) * 2 :]
        return sums[0]


class _Run(Walk):
    """In machine arithmetic. `saturated` has, by statement, how many elements overflowed, and where the first did."""

    def __init__(self, trace: Trace, extents: Extents, accumulator: AccumulatorFormat, constants: Constants,
                 exp2_wrap: bool):  # fmt: skip
        super().__init__(trace, extents)
        self.format = accumulator
        self.constants = constants
        self.exp2_wrap = exp2_wrap
        self.saturated: dict[int, Saturation] = {}
        self.over: np.ndarray = np.zeros((), bool)  # which elements of the last value saturated

    def zeros(self, rows: int, columns: int) -> _Accumulator:
        return _Accumulator((rows, columns), self.format, self.trace.ksplit)

    def tile(self, name: str) -> np.ndarray:
        return self.format.to_fp16(self.tiles[name].value)

    def operand(self, part: Slice, rows: int, blocks: int, known, source) -> tuple[np.ndarray, np.ndarray]:
        """A slice as quantised entries, zeros where it was cut: q int8[groups, blocks, 4, 32], scale uint8[groups,
        blocks, 4]."""
        padded = self.padded(part, rows, KBLOCK * blocks, known, source)
        groups = rows // LANES
        entries = padded.reshape(groups, LANES, blocks, KBLOCK).transpose(0, 2, 1, 3)
        q, scale = mxfp7.quantise(np.ascontiguousarray(entries).reshape(-1, LANES, KBLOCK))
        return q.reshape(groups, blocks, LANES, KBLOCK), scale.reshape(groups, blocks, LANES)

    def contract(self, statement: Contract, known: dict[str, int]) -> None:
        tile = self.tiles[statement.accumulator]
        rows, columns = tile.shape
        blocks = statement.a.axes[1].step // KBLOCK
        qa, sa = self.operand(statement.a, rows, blocks, known, statement.source)
        qb, sb = self.operand(statement.b, columns, blocks, known, statement.source)
        products = []
        for block in range(blocks):
            sums = mxfp7.outer_products(qa[:, block], qb[:, block])
            product = self.format.from_block(
                sums.transpose(0, 2, 1, 3).reshape(rows, columns),
                sa[:, block].reshape(rows, 1), sb[:, block].reshape(1, columns), mxfp7.ANCHOR,
            )  # fmt: skip
            products.append(product)
        tile.add(products)

    # ---- expressions -----------------------------------------------------------------------------------

    def evaluate(self, expression: Expression, shape, tiles, known, statement: Statement) -> np.ndarray:
        """FP16 patterns of `shape`: each node once, in order, in E8M15."""
        self.over = np.zeros(shape, bool)
        for name in tiles:
            held = np.abs(self.format.to_float(self.tiles[name].value))[tuple(slice(0, extent) for extent in shape)]
            self.over |= held >= OVERFLOWS
        if expression.is_copy and isinstance(expression.nodes[0], TileLeaf):
            return tiles[expression.nodes[0].accumulator]
        count = math.prod(shape)
        done: list[np.ndarray] = []
        for node in expression.nodes:
            if isinstance(node, Constant):
                word = hold(node.number(known), self.constants, statement.source)
                done.append(np.full(count, word, np.uint32))
            elif isinstance(node, Reduce):
                rows = done[node.operands[0]].reshape(-1, shape[-1])
                done.append(np.repeat(reduce_rows(REDUCTIONS[node.op], rows), shape[-1]))
            elif isinstance(node, Op) and node.op in CHOICES:
                a, b, chosen, other = (done[i] for i in node.operands)
                holds = alu.execute(CHOICES[node.op], a, b, None)[1]
                done.append(alu.execute(AluOp.VMOV, np.where(holds, chosen, other), None, None)[0])
            elif isinstance(node, Op):
                code, fields = OPERATIONS[node.op]
                operands = dict.fromkeys("abc") | {f: done[i] for f, i in zip(fields, node.operands, strict=True)}
                done.append(alu.execute(code, **operands, exp2_wrap=self.exp2_wrap)[0])
            else:
                done.append(e8m15.from_fp16(self.leaf(node, shape, tiles, known, statement.source).reshape(-1)))
        self.over |= overflows(done[-1]).reshape(shape)
        return e8m15.to_fp16(done[-1]).reshape(shape)

    # ---- what saturates ----------------------------------------------------------------------------------

    def write(self, buffer: Buffer, where: tuple[slice, ...], value: np.ndarray, statement: Statement) -> None:
        super().write(buffer, where, value, statement)
        shape = self.view(buffer.name, len(where))[0].shape
        self._note(statement, buffer, value.shape, shape, tuple(part.start for part in where))

    def write_rows(self, buffer: Buffer, view: View, value: np.ndarray, statement: Statement) -> None:
        super().write_rows(buffer, view, value, statement)
        rows = self.values[buffer.name].size // view.width
        self._note(statement, buffer, value.shape, (rows, view.width), (view.first, 0))

    def _note(self, statement: Statement, buffer: Buffer, written: tuple[int, ...], shape: tuple[int, ...],
              start: tuple[int, ...]) -> None:  # fmt: skip
        """Count what saturated of the value just written: `written` elements of the buffer seen as `shape`, from `start`."""
        over = self.over[tuple(slice(0, extent) for extent in written)]
        count = int(over.sum())
        if not count:
            return
        held = self.saturated.get(statement.id)
        if held:
            self.saturated[statement.id] = replace(held, elements=held.elements + count)
            return
        place = int(np.ravel_multi_index(tuple(np.argwhere(over)[0] + start), shape))
        if buffer.copies(self.extents) > 1:
            place += self.element * self.values[buffer.name].size
        first = np.unravel_index(place, buffer.logical_shape(self.extents))
        self.saturated[statement.id] = Saturation(count, buffer.name, tuple(int(axis) for axis in first))


def interpret(trace: Trace, extents: Extents, inputs: Mapping[str, np.ndarray], *, mantissa: int = 14,
              constants: Constants = Constants.REGISTERS, exp2_wrap: bool = False) -> Image:  # fmt: skip
    """Execute a traced kernel on FP16 operands.

    `inputs` maps each input port to uint16 (FP16 patterns) or float16 of its logical shape; `extents` is
    `Kernel.solve` of those shapes. `mantissa` is the accumulator's, `constants` how numbers are held, `exp2_wrap`
    the published exp2 (errata: exp2-wrap). Raises `InterpreterError` for a missing, surplus or misshapen operand,
    for an element read before it is written and for an output element that nothing writes.
    """
    run = _Run(trace, extents, AccumulatorFormat(mantissa), constants, exp2_wrap)
    whole, marks = run.run(check_operands(trace, extents, inputs), np.uint16)
    for port in trace.outputs:
        missing = int((marks[port.name] < 0).sum())
        if missing:
            raise InterpreterError(f"{trace.name} leaves {counted(missing, 'element')} of {port.name} unwritten", trace.source)
    names = [port.name for port in trace.outputs]
    return Image({name: whole[name] for name in names}, {name: marks[name] for name in names}, run.saturated)
