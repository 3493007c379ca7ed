"""Runs the statements of a trace in the order that `docs/kernels.md` defines; what they compute is the subclass's
matter."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping

import numpy as np

from kohakutpu.lang.extents import BORDER, KBLOCK, LANES, Extents, resolve
from kohakutpu.lang.shapes import settled, shape_of, statement_shape
from kohakutpu.lang.slices import check_product, check_shift, check_slice
from kohakutpu.lang.source import KernelError, Source, located
from kohakutpu.lang.trace import (
    READ_ONLY, Assign, Buffer, BufferLeaf, Contract, Expression, Loop, Open, Slice, Statement, Store, TileLeaf, Trace,
    Units, View, unit_of,
)  # fmt: skip

MOST = 1 << 28  # elements of a tile or an operand over its blocks; no machine's accumulator comes near


class InterpreterError(KernelError):
    """A kernel has no meaning for these operands; names the statement and what it would need."""


class Walk:
    """One batch element at a time: its buffers as views, who wrote what, and the open accumulators."""

    def __init__(self, trace: Trace, extents: Extents):
        self.trace = trace
        self.extents = extents
        self.values: dict[str, np.ndarray] = {}
        self.writers: dict[str, np.ndarray] = {}
        self.tiles: dict[str, object] = {}  # by accumulator, what `zeros` made of it: those of one point of a tiling
        self.element = 0  # of the batch

    # ---- what a subclass computes ----

    def zeros(self, rows: int, columns: int) -> object:
        """A new accumulator, in whatever form `contract` and `tile` take it."""
        raise NotImplementedError

    def contract(self, statement: Contract, known: dict[str, int]) -> None:
        """Add a product to an accumulator."""
        raise NotImplementedError

    def tile(self, name: str) -> np.ndarray:
        """An accumulator as its elements leave it."""
        raise NotImplementedError

    def evaluate(self, expression: Expression, shape, tiles, known: dict[str, int], statement: Statement) -> np.ndarray:
        """The value of an expression, of `shape`, as buffers hold it."""
        raise NotImplementedError

    def table(self, patterns: np.ndarray) -> np.ndarray:
        """A table's FP16 patterns as buffers hold them."""
        return patterns

    # ---- order ----

    def body(self, nodes, known: dict[str, int]) -> None:
        for node in nodes:
            if isinstance(node, Units):
                self.units(node, known)
            elif isinstance(node, Loop):
                with located(node.source):
                    count = resolve(node.count, known)
                for value in range(count):
                    self.body(node.body, known | {node.index.name: value})
            else:
                with located(node.source):
                    self.statement(node, known)

    def units(self, node: Units, known: dict[str, int]) -> None:
        """Run by run: every point finishes one before any point begins its next."""
        with located(node.source):
            counts = [range(resolve(count, known)) for count in node.counts]
        indices = [index.name for index in node.indices]
        points = [self.runs(node.body, known | dict(zip(indices, point, strict=True))) for point in itertools.product(*counts)]
        while points:
            points = [point for point in points if next(point, None)]

    def runs(self, body, known: dict[str, int]) -> Iterator[str]:
        """Executes one point of a tiling; stops, with the unit that has done its run, wherever another unit's begins."""
        tiles: dict[str, object] = {}
        unit = None
        for statement, bound in self.unrolled(body, known):
            own = unit_of(statement) or unit
            if unit not in (None, own):
                yield unit
            unit = own
            self.tiles = tiles
            with located(statement.source):
                self.statement(statement, bound)

    def unrolled(self, body, known: dict[str, int]) -> Iterator[tuple[Statement, dict[str, int]]]:
        for node in body:
            if isinstance(node, Loop):
                with located(node.source):
                    count = resolve(node.count, known)
                for value in range(count):
                    yield from self.unrolled(node.body, known | {node.index.name: value})
            else:
                yield node, known

    def statement(self, statement: Statement, known: dict[str, int]) -> None:
        if isinstance(statement, Open):
            gm, gn, nk = statement.gm, statement.gn, statement.nk
            if nk * max(LANES * gm * LANES * gn, KBLOCK * LANES * max(gm, gn)) > MOST:
                raise InterpreterError(
                    f"a tile of {gm}x{gn} sub-tiles swept {nk} blocks at a time: at most {MOST:,} elements of it, or of an "
                    "operand, in all of the blocks are computed; use a smaller gm, gn or nk",
                    statement.source,
                )
            self.tiles[statement.accumulator] = self.zeros(LANES * gm, LANES * gn)
        elif isinstance(statement, Contract):
            check_product(statement.a, statement.b, known, statement.source)
            self.contract(statement, known)
        elif isinstance(statement, Store):
            self.store(statement, known)
        elif isinstance(statement, Assign):
            self.assign(statement, known)

    def run(self, inputs: Mapping[str, np.ndarray], dtype) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Every buffer, and the writer of each element, of logical shape; `inputs` are of `dtype` and their shapes."""
        whole: dict[str, np.ndarray] = {}
        marks: dict[str, np.ndarray] = {}
        for buffer in self.trace.buffers.values():
            shape = buffer.logical_shape(self.extents)
            if buffer.role == "table":
                whole[buffer.name] = self.table(buffer.values(self.extents))
            else:
                whole[buffer.name] = inputs[buffer.name] if buffer.role == "in" else np.zeros(shape, dtype)
            marks[buffer.name] = np.full(shape, -1, np.int32)
        # One batch element at a time; a buffer without batch axes is shared by all.
        copies = {name: buffer.copies(self.extents) for name, buffer in self.trace.buffers.items()}
        split = {
            name: data.reshape(copies[name], *self.trace.buffers[name].element_shape(self.extents))
            for name, data in whole.items()
        }
        batch = max(copies.values())
        for element in range(batch):
            self.element = element
            for name in whole:
                index = element if copies[name] == batch else 0
                self.values[name] = split[name][index]
                self.writers[name] = marks[name].reshape(split[name].shape)[index]
            self.body(self.trace.body, dict(self.extents.dims))
        return whole, marks

    # ---- buffers ----

    def region(self, part: Slice, known: dict[str, int], source: Source) -> tuple[Buffer, tuple[slice, ...]]:
        """The buffer and the elements of it that a slice covers, cut at the ends (none, where a shift moves it past
        them); 'parts' index the flat buffer."""
        buffer = self.trace.buffers[part.buffer]
        shape = buffer.element_shape(self.extents)
        lengths = (math.prod(shape),) if part.kinds == ("parts",) else shape
        values = check_slice(part, buffer, self.extents, known, source)
        spans = (axis.span(value, length) for axis, value, length in zip(part.axes, values, lengths, strict=True))
        where = tuple(slice(first, last) for first, last in spans)
        if part.moved:
            first = min(values[0] * part.axes[0].step + check_shift(part, known, source), shape[0])
            where = (slice(first, min(first + part.axes[0].step, shape[0])), *where[1:])
        return buffer, where

    def padded(self, part: Slice, rows: int, columns: int, known: dict[str, int], source: Source) -> np.ndarray:
        """A slice of `rows` rows as a product takes it, with zeros where it was cut."""
        if part.plane is not None:
            data = self.window(part, known, source)
        else:
            buffer, where = self.region(part, known, source)
            data = self.read(buffer, where, source)
        padded = np.zeros((rows, columns), data.dtype)
        padded[: data.shape[0], : data.shape[1]] = data
        return padded

    def window(self, part: Slice, known: dict[str, int], source: Source) -> np.ndarray:
        """What the rows of a result's tile meet of a plane: 32 channels of the position that lies as far from the row's own
        as the slice is moved, zeros where that is outside the image."""
        tile, _ = check_slice(part, self.trace.buffers[part.buffer], self.extents, known, source)
        plane = part.plane.at(known)
        block, moved = divmod(check_shift(part, known, source), plane.lanes)
        position = np.arange(*part.axes[0].span(tile, plane.rows)) + moved
        down, across = position // plane.across - BORDER, position % plane.across - BORDER
        inside = (down >= 0) & (down < plane.height) & (across >= 0) & (across < plane.width)
        image = self.values[part.buffer][..., block * KBLOCK : (block + 1) * KBLOCK]
        data = np.zeros((len(position), image.shape[-1]), image.dtype)
        data[inside] = image[down[inside], across[inside]]
        return data

    def view(self, name: str, dimensions: int) -> tuple[np.ndarray, np.ndarray]:
        values, writers = self.values[name], self.writers[name]
        if values.ndim != dimensions:
            return values.reshape(-1), writers.reshape(-1)
        return values, writers

    def read(self, buffer: Buffer, where: tuple[slice, ...], source: Source) -> np.ndarray:
        values, writers = self.view(buffer.name, len(where))
        if buffer.role not in READ_ONLY and (writers[where] < 0).any():
            raise InterpreterError(f"{buffer.name} is read where nothing has been written", source)
        return values[where]

    def write(self, buffer: Buffer, where: tuple[slice, ...], value: np.ndarray, statement: Statement) -> None:
        values, writers = self.view(buffer.name, len(where))
        values[where] = value
        writers[where] = statement.id

    def write_rows(self, buffer: Buffer, view: View, value: np.ndarray, statement: Statement) -> None:
        """The rows of a settled view."""
        rows = slice(view.first, view.first + view.count)
        self.values[buffer.name].reshape(-1, view.width)[rows] = value
        self.writers[buffer.name].reshape(-1, view.width)[rows] = statement.id

    # ---- statements that write ----

    def store(self, statement: Store, known: dict[str, int]) -> None:
        buffer, where = self.region(statement.target, known, statement.source)
        shape = tuple(part.stop - part.start for part in where)
        tiles = {}
        if statement.target.kinds == ("tiles", "tiles"):
            cut = tuple(slice(0, extent) for extent in shape)
            names = {leaf.accumulator for leaf in statement.expression.leaves if isinstance(leaf, TileLeaf)}
            tiles = {name: self.tile(name)[cut] for name in names}
        self.write(buffer, where, self.evaluate(statement.expression, shape, tiles, known, statement), statement)

    def assign(self, statement: Assign, known: dict[str, int]) -> None:
        buffer = self.trace.buffers[statement.target]
        target = self.settled(BufferLeaf(statement.target, statement.view), known, statement.source)
        nodes = (self.settled(n, known, statement.source) if isinstance(n, BufferLeaf) else n for n in statement.expression.nodes)
        expression = Expression(tuple(nodes))
        shape = statement_shape(target, expression, self.trace.buffers, self.extents, statement.source)
        value = self.evaluate(expression, shape, {}, known, statement)
        wanted = shape_of(target, self.trace.buffers, self.extents)
        if shape != wanted:
            value = value[..., : wanted[-1]]
        if target.view is None:
            self.write(buffer, tuple(slice(0, extent) for extent in wanted), value, statement)
            return
        self.write_rows(buffer, target.view, value, statement)

    def settled(self, leaf: BufferLeaf, known: dict[str, int], source: Source) -> BufferLeaf:
        return settled(leaf, self.trace.buffers, self.extents, known, source)

    def rows(self, leaf: BufferLeaf, count: int, source: Source) -> np.ndarray:
        """The rows of a settled view, as many as the statement has where they repeat."""
        view, buffer = leaf.view, self.trace.buffers[leaf.buffer]
        index = np.arange(view.count) // view.group * view.group
        if view.repeats:
            index = np.tile(index, count // view.count)
        index += view.first
        if buffer.role not in READ_ONLY and (self.writers[leaf.buffer].reshape(-1, view.width)[index] < 0).any():
            raise InterpreterError(f"{leaf.text()} is read where nothing has been written", source)
        return self.values[leaf.buffer].reshape(-1, view.width)[index]

    def leaf(self, node, shape, tiles, known, source: Source) -> np.ndarray:
        """The elements of a leaf that is no constant, repeated to `shape`."""
        if isinstance(node, TileLeaf):
            data = tiles[node.accumulator]
        elif isinstance(node, BufferLeaf) and node.view is not None:
            data = self.rows(node, math.prod(shape[:-1]), source)
            data = data.reshape(*shape[:-1], -1) if node.view.repeats else data
        elif isinstance(node, BufferLeaf):
            buffer = self.trace.buffers[node.buffer]
            data = self.read(buffer, tuple(slice(0, n) for n in buffer.element_shape(self.extents)), source)
        else:
            buffer, where = self.region(node.slice, known, source)
            data = self.read(buffer, where, source)
            if len(where) == len(shape) and data.shape != tuple(shape):
                raise InterpreterError(
                    f"{buffer.name} has {list(data.shape)} elements where {list(shape)} are written: such buffers have one shape",
                    source,
                )
            # A per-channel vector's element n stands in every row of column n.
            data = data[: shape[-1]] if len(where) < len(shape) else data
        return np.ascontiguousarray(np.broadcast_to(data, shape))


def check_operands(trace: Trace, extents: Extents, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The operands as uint16. Raises InterpreterError for a missing, surplus or misshapen one."""
    surplus = sorted(set(inputs) - {port.name for port in trace.inputs})
    if surplus:
        raise InterpreterError(f"{trace.name} has no operand {', '.join(surplus)}", trace.source)
    checked = {}
    for port in trace.inputs:
        if port.name not in inputs:
            raise InterpreterError(f"{trace.name}: no value for {port.name}", port.source)
        data, shape = np.asarray(inputs[port.name]), port.logical_shape(extents)
        if data.shape != shape or data.dtype not in (np.dtype(np.uint16), np.dtype(np.float16)):
            raise InterpreterError(
                f"{trace.name}: {port.name} is {data.dtype}{list(data.shape)}, expected float16 or uint16{list(shape)}",
                port.source,
            )
        checked[port.name] = np.ascontiguousarray(data).view(np.uint16)
    return checked
