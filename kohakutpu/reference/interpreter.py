"""The reference interpreter of tile kernels: executes a trace in machine arithmetic, statement by statement.

The meaning it follows is `docs/kernels.md`, "What a kernel means". It reads the same trace as the compiler
and shares the number formats with the machine; layouts, placement, stages and instructions do not exist here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import numpy as np

from kohakutpu.formats import alu, e8m15, fp16, mxfp7
from kohakutpu.formats.accumulator import AccumulatorFormat
from kohakutpu.formats.alu import AluOp
from kohakutpu.formats.reduction import Reduction, reduce_rows
from kohakutpu.lang.extents import KBLOCK, LANES, Extents, resolve
from kohakutpu.lang.shapes import statement_shape
from kohakutpu.lang.source import KernelError, Source
from kohakutpu.lang.trace import (
    Assign,
    Buffer,
    BufferLeaf,
    Constant,
    Contract,
    ElementOp,
    Expression,
    Loop,
    Op,
    Open,
    Reduce,
    RowOp,
    Slice,
    SliceLeaf,
    Statement,
    Store,
    TileLeaf,
    Trace,
    Units,
    check_slice,
)

SMALLEST_NORMAL = 2.0**-126


class InterpreterError(KernelError):
    """A kernel has no meaning for these operands; names the statement and what it would need."""


class Constants(Enum):
    """How a number in an expression is held: in a register (E8M15, truncated) or in memory (FP16)."""

    REGISTERS = "registers"
    ARRAYS = "arrays"


@dataclass(frozen=True)
class Image:
    """What a kernel leaves: `outputs` by port, uint16 FP16 patterns of the logical shape.

    `writers` has, for every output element, the id of the statement that wrote it last
    (`trace.statements[id]`).
    """

    outputs: Mapping[str, np.ndarray]
    writers: Mapping[str, np.ndarray]


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


class _Run:
    """One batch element: its buffers as views, who wrote what, and the open accumulators."""

    def __init__(self, trace: Trace, extents: Extents, accumulator: AccumulatorFormat, constants: Constants,
                 exp2_wrap: bool):  # fmt: skip
        self.trace = trace
        self.extents = extents
        self.format = accumulator
        self.constants = constants
        self.exp2_wrap = exp2_wrap
        self.values: dict[str, np.ndarray] = {}
        self.writers: dict[str, np.ndarray] = {}
        self.tiles: dict[str, np.ndarray] = {}

    def body(self, nodes, known: dict[str, int]) -> None:
        for node in nodes:
            if isinstance(node, Units):
                counts = [range(resolve(count, known)) for count in node.counts]
                for point in itertools.product(*counts):
                    self.body(node.body, known | {i.name: v for i, v in zip(node.indices, point, strict=True)})
            elif isinstance(node, Loop):
                for value in range(resolve(node.count, known)):
                    self.body(node.body, known | {node.index.name: value})
            else:
                self.statement(node, known)

    def statement(self, statement: Statement, known: dict[str, int]) -> None:
        if isinstance(statement, Open):
            self.tiles[statement.accumulator] = np.zeros((LANES * statement.gm, LANES * statement.gn), np.uint32)
        elif isinstance(statement, Contract):
            self.contract(statement, known)
        elif isinstance(statement, Store):
            self.store(statement, known)
        elif isinstance(statement, Assign):
            self.assign(statement, known)

    # ---- buffers ---------------------------------------------------------------------------------------

    def region(self, part: Slice, known: dict[str, int], source: Source) -> tuple[Buffer, tuple[slice, ...]]:
        """The buffer and the elements of it that a slice covers, cut at the ends; 'parts' index the flat buffer."""
        buffer = self.trace.buffers[part.buffer]
        shape = buffer.element_shape(self.extents)
        lengths = (math.prod(shape),) if part.kinds == ("parts",) else shape
        values = check_slice(part, buffer, self.extents, known, source)
        spans = (axis.span(value, length) for axis, value, length in zip(part.axes, values, lengths, strict=True))
        return buffer, tuple(slice(first, last) for first, last in spans)

    def view(self, name: str, dimensions: int) -> tuple[np.ndarray, np.ndarray]:
        values, writers = self.values[name], self.writers[name]
        if values.ndim != dimensions:
            return values.reshape(-1), writers.reshape(-1)
        return values, writers

    def read(self, buffer: Buffer, where: tuple[slice, ...], source: Source) -> np.ndarray:
        values, writers = self.view(buffer.name, len(where))
        if buffer.role != "in" and (writers[where] < 0).any():
            raise InterpreterError(f"{buffer.name} is read where nothing has been written", source)
        return values[where]

    def write(self, buffer: Buffer, where: tuple[slice, ...], value: np.ndarray, statement: Statement) -> None:
        values, writers = self.view(buffer.name, len(where))
        values[where] = value
        writers[where] = statement.id

    # ---- statements ------------------------------------------------------------------------------------

    def operand(self, part: Slice, rows: int, blocks: int, known, source) -> tuple[np.ndarray, np.ndarray]:
        """A slice as quantised entries, zeros where it was cut: q int8[groups, blocks, 4, 32], scale uint8[groups, blocks, 4]."""
        buffer, where = self.region(part, known, source)
        padded = np.zeros((rows, KBLOCK * blocks), np.uint16)
        data = self.read(buffer, where, source)
        padded[: data.shape[0], : data.shape[1]] = data
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
        for block in range(blocks):
            sums = mxfp7.outer_products(qa[:, block], qb[:, block])
            product = self.format.from_block(
                sums.transpose(0, 2, 1, 3).reshape(rows, columns),
                sa[:, block].reshape(rows, 1), sb[:, block].reshape(1, columns), mxfp7.ANCHOR,
            )  # fmt: skip
            tile = self.format.add(tile, product)
        self.tiles[statement.accumulator] = tile

    def store(self, statement: Store, known: dict[str, int]) -> None:
        buffer, where = self.region(statement.target, known, statement.source)
        shape = tuple(part.stop - part.start for part in where)
        tiles = {name: self.format.to_fp16(tile)[tuple(slice(0, n) for n in shape)] for name, tile in self.tiles.items()
                 if statement.target.kinds == ("tiles", "tiles")}  # fmt: skip
        self.write(buffer, where, self.evaluate(statement.expression, shape, tiles, known, statement), statement)

    def assign(self, statement: Assign, known: dict[str, int]) -> None:
        buffer = self.trace.buffers[statement.target]
        target = buffer.element_shape(self.extents)
        shape = statement_shape(statement.target, statement.expression, self.trace.buffers, self.extents, statement.source)
        value = self.evaluate(statement.expression, shape, {}, known, statement)
        if shape != target:
            value = value[..., : target[-1]]
        self.write(buffer, tuple(slice(0, extent) for extent in target), value, statement)

    # ---- expressions -----------------------------------------------------------------------------------

    def leaf(self, node, shape, tiles, known, source: Source) -> np.ndarray:
        """The FP16 patterns of a leaf, broadcastable to `shape`."""
        if isinstance(node, TileLeaf):
            return tiles[node.accumulator]
        if isinstance(node, BufferLeaf):
            buffer = self.trace.buffers[node.buffer]
            return self.read(buffer, tuple(slice(0, n) for n in buffer.element_shape(self.extents)), source)
        buffer, where = self.region(node.slice, known, source)
        data = self.read(buffer, where, source)
        # A per-channel vector's element n stands in every row of column n.
        return data[: shape[-1]] if len(where) < len(shape) else data

    def evaluate(self, expression: Expression, shape, tiles, known, statement: Statement) -> np.ndarray:
        """FP16 patterns of `shape`: each node once, in order, in E8M15."""
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
                data = self.leaf(node, shape, tiles, known, statement.source)
                done.append(e8m15.from_fp16(np.ascontiguousarray(np.broadcast_to(data, shape)).reshape(-1)))
        return e8m15.to_fp16(done[-1]).reshape(shape)


def interpret(trace: Trace, extents: Extents, inputs: Mapping[str, np.ndarray], *, mantissa: int = 14,
              constants: Constants = Constants.REGISTERS, exp2_wrap: bool = False) -> Image:  # fmt: skip
    """Execute a traced kernel on FP16 operands.

    `inputs` maps each input port to uint16 (FP16 patterns) or float16 of its logical shape; `extents` is
    `Kernel.solve` of those shapes. `mantissa` is the accumulator's, `constants` how numbers are held, `exp2_wrap`
    the published exp2 (errata: exp2-wrap). Raises `InterpreterError` for a missing, surplus or misshapen operand,
    for an element read before it is written and for an output element that nothing writes.
    """
    surplus = sorted(set(inputs) - {port.name for port in trace.inputs})
    if surplus:
        raise InterpreterError(f"{trace.name} has no operand {', '.join(surplus)}")
    whole: dict[str, np.ndarray] = {}
    marks: dict[str, np.ndarray] = {}
    for buffer in trace.buffers.values():
        shape = buffer.logical_shape(extents)
        if buffer.role == "in":
            if buffer.name not in inputs:
                raise InterpreterError(f"{trace.name}: no value for {buffer.name}")
            data = np.asarray(inputs[buffer.name])
            if data.shape != shape or data.dtype not in (np.dtype(np.uint16), np.dtype(np.float16)):
                raise InterpreterError(
                    f"{trace.name}: {buffer.name} is {data.dtype}{list(data.shape)}, expected float16 or uint16{list(shape)}"
                )
            whole[buffer.name] = np.ascontiguousarray(data).view(np.uint16)
        else:
            whole[buffer.name] = np.zeros(shape, np.uint16)
        marks[buffer.name] = np.full(shape, -1, np.int32)
    # One batch element at a time; a buffer without batch axes is shared by all.
    elements = {
        name: buffer.copies(extents) for name, buffer in trace.buffers.items()
    }
    split = {name: data.reshape(elements[name], *trace.buffers[name].element_shape(extents)) for name, data in whole.items()}
    split_marks = {name: mark.reshape(split[name].shape) for name, mark in marks.items()}
    run = _Run(trace, extents, AccumulatorFormat(mantissa), constants, exp2_wrap)
    batch = max(elements.values())
    for element in range(batch):
        for name in whole:
            index = element if elements[name] == batch else 0
            run.values[name], run.writers[name] = split[name][index], split_marks[name][index]
        run.body(trace.body, dict(extents.dims))
    for port in trace.outputs:
        missing = int((marks[port.name] < 0).sum())
        if missing:
            raise InterpreterError(f"{trace.name} leaves {missing} elements of {port.name} unwritten", trace.source)
    return Image({port.name: whole[port.name] for port in trace.outputs}, {port.name: marks[port.name] for port in trace.outputs})
