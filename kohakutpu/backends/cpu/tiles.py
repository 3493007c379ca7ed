"""Cooperative matrices: one copy for the wave, row by row in memory that LLVM may keep in registers.

A tile is the wave's: its verbs must be reached by all live lanes together, with the same arguments. The interpreter
also gives a meaning to lanes that go apart; here a launch in which they do is refused when they do (XPU-N04).
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass

from llvmlite import ir

from kohakutpu.xpu.types import Scalar, TileType, Use, f32, f64, i32, i64, u32

from .emit import DOUBLE, FLOAT, I1, I8, I32, I64, Value, llvm_type, memory_type
from .memory import Memory
from .vectors import Vectors

ROWS_AT_ONCE = 16


@dataclass(frozen=True, eq=False)
class Tile:
    """A tile's storage: `place()` is the address of its elements, each in its register's type."""

    kind: TileType
    place: object


class Tiles(Vectors):
    """Verbs of tiles."""

    # Storage.
    def new_tile(self, kind: TileType, value: Tile | None, across: bool) -> Tile:
        """A fresh tile: zero, or another's copy."""
        made = Tile(kind, self.place(ir.ArrayType(self.element_type(kind), kind.rows * kind.cols), across))
        for row in range(kind.rows):
            empty = ir.Constant(ir.VectorType(self.element_type(kind), kind.cols), None)
            self.put_row(made, I64(row), empty if value is None else self.row(value, I64(row)))
        return made

    def set_tile(self, kind: TileType, tile: Tile, value: Tile) -> None:
        """A verb changes its target in place, so that the value is there already."""
        assert value is tile

    @staticmethod
    def element_type(kind: TileType):
        """An element's type in the tile."""
        return llvm_type(kind.element)

    def row(self, tile: Tile, row):
        """A row's vector."""
        kind = ir.VectorType(self.element_type(tile.kind), tile.kind.cols)
        at = self.builder.mul(row, I64(tile.kind.cols))
        place = self.address(tile.place(), at, self.element_type(tile.kind))
        return self.builder.load(place, typ=kind, align=self.size(kind.element))

    def put_row(self, tile: Tile, row, vector) -> None:
        """Change a row."""
        at = self.builder.mul(row, I64(tile.kind.cols))
        place = self.address(tile.place(), at, self.element_type(tile.kind))
        self.builder.store(vector, place, align=self.size(vector.type.element))

    def cell(self, tile: Tile, at):
        """The address of an element by its number; of several for a vector."""
        return self.address(tile.place(), at, self.element_type(tile.kind))

    @contextmanager
    def counting(self, count: int):
        """A loop; gives its number (i64)."""
        b = self.builder
        before = b.block
        head, after = b.append_basic_block("count"), b.append_basic_block("counted")
        b.branch(head)
        b.position_at_end(head)
        number = b.phi(I64)
        number.add_incoming(I64(0), before)
        yield number
        more = b.add(number, I64(1))
        number.add_incoming(more, b.block)
        b.cbranch(b.icmp_unsigned("<", more, I64(count)), head, after)
        b.position_at_end(after)

    # What all lanes must share.
    def together(self, node) -> None:
        """Refuse a launch in which only some live lanes of a wave reach a tile's verb."""
        if self.mask is None and not self.may_be_apart:
            return
        away = self.builder.and_(self.live(), self.builder.not_(self.full()))
        some = self.any(away)
        self.stop_if(Value(some), node.at, f"XPU-N04: {node.verb}, which only some lanes of a wave reach", refused=True)

    def shared_value(self, node, value: Value, kind: Scalar, what: str):
        """A scalar that all lanes share; a launch in which they do not is refused."""
        if value.uniform:
            return value.ir
        one = self.pick(value, self.first())
        lanes, whole = self.spread(value), self.broadcast(one)
        if kind.kind == "float":
            bits = self.vector(ir.IntType({"half": 16, "float": 32}.get(str(one.type), 64)))
            lanes, whole = self.builder.bitcast(lanes, bits), self.builder.bitcast(whole, bits)
        apart = self.builder.icmp_unsigned("!=", lanes, whole)
        text = f"XPU-N04: {node.verb}: {what} differs between the lanes of a wave, whose tile is one"
        self.stop_if(Value(apart, None), node.at, text, refused=True)
        return one

    def shared_index(self, node, value: Value, kind: Scalar, what: str):
        """An index that all lanes share, as 64 bits."""
        return self.widen(self.shared_value(node, value, kind, what), 64, kind.signed)

    # Verbs.
    def tile(self, node, word: str, arguments: list, kinds: list):
        own: TileType = kinds[0]
        tile, *rest = arguments
        if word in ("elements", "get", "set", "row", "col"):
            return self.fragment(node, word, own, arguments, kinds)
        self.together(node)
        if word in ("load", "from_words") or word.startswith(("scaled", "rank1")):
            self.meet(node)
        if word == "splat":
            value = self.shared_value(node, rest[0], own.element, "the value")
            for row in range(own.rows):
                self.put_row(tile, I64(row), self.broadcast(value, own.cols))
            return tile
        if word in ("load", "store"):
            memory, *numbers = rest
            named = zip(numbers, kinds[2:], ("the offset", "the layout", "the stride"), strict=True)
            places = [self.shared_index(node, value, kind, what) for value, kind, what in named]
            self.move(node, word, tile, memory, *places)
            return tile if word == "load" else None
        if word == "mma":
            self.multiply(tile, *rest)
            return tile
        if word == "from_words":
            self.from_words(node, tile, rest)
            return tile
        return self.epilogue(node, word, tile, rest, kinds)

    def move(self, node, word: str, tile: Tile, memory: Memory, offset, layout, stride) -> None:
        """load and store: a row at a time, whose elements lie `step` apart."""
        b, kind = self.builder, tile.kind
        self.stop_if(Value(b.icmp_unsigned(">", layout, I64(1))), node.at,
                     "a tile layout of {0}; 0 is row by row, 1 column by column", (i64, Value(layout)))  # fmt: skip
        by_rows = b.icmp_unsigned("==", layout, I64(0))
        line, step = b.select(by_rows, stride, I64(1)), b.select(by_rows, I64(1), stride)
        numbers = self.lanes(list(range(kind.cols)), I64)
        padded = memory.layout is not None and memory.layout.block
        with self.counting(kind.rows) as row:
            start = b.add(offset, b.mul(row, line))
            places = b.add(self.broadcast(start, kind.cols), b.mul(numbers, self.broadcast(step, kind.cols)))
            slots = self.padded_slots(memory, places) if padded else places
            self.check_places(node, "a read" if word == "load" else "a write", memory, slots, places)
            if padded:
                self.strided_row(word, tile, row, memory, slots)
            else:
                self.fork(b.icmp_unsigned("==", step, I64(1)),
                          lambda: self.plain_row(word, tile, row, memory, start),
                          lambda: self.strided_row(word, tile, row, memory, slots))  # fmt: skip

    def padded_slots(self, memory: Memory, places):
        """Where elements of a padded array lie."""
        b, layout = self.builder, memory.layout
        return b.add(places, b.mul(b.udiv(places, self.like(places, layout.block)), self.like(places, layout.pad)))

    def check_places(self, node, what: str, memory: Memory, slots, places) -> None:
        """A row's elements must be in bounds, and written if they are read."""
        if not self.checked:
            return
        b = self.builder
        count = memory.slots
        bad = b.icmp_unsigned(">=", slots, self.broadcast(count, slots.type.count))
        worst = self.first_of(bad)
        units = "slots" if memory.layout is not None and memory.layout.block else "elements"
        self.stop_if(Value(worst[0]), node.at, f"{what} of {memory.name}[{{0}}], which has {{1}} {units}",
                     (i64, Value(b.extract_element(places, worst[1]))), (i64, Value(count)))  # fmt: skip
        if memory.written is None:
            return
        if what == "a write":
            self.scatter_lanes(memory.written, I8, slots, self.broadcast(I8(1), slots.type.count))
            return
        marks = self.gather_lanes(memory.written, I8, slots)
        worst = self.first_of(b.icmp_unsigned("==", marks, self.like(marks, 0)))
        self.stop_if(Value(worst[0]), node.at, f"a read of {memory.name}[{{0}}], which no work-item wrote",
                     (i64, Value(b.extract_element(places, worst[1]))))  # fmt: skip

    def first_of(self, lanes):
        """(whether any lane is set, the first that is, or 0)."""
        b = self.builder
        bits = self.bits(lanes)
        some = b.icmp_unsigned("!=", bits, self.like(bits, 0))
        first = self.pure_flag("cttz", bits)
        return some, self.widen(b.select(some, first, self.like(first, 0)), 32)

    def gather_lanes(self, pointer, kind, offsets):
        """As many lanes as there are offsets, from anywhere."""
        lanes = ir.VectorType(kind, offsets.type.count)
        name = f"llvm.masked.gather.{self.suffix(lanes)}.v{lanes.count}p0"
        all_ = self.const(ir.VectorType(I1, lanes.count), 1)
        places = self.address(pointer, offsets, kind)
        return self.masked_call(name, lanes, [places, all_, ir.Constant(lanes, None)], 0, self.size(kind))

    def scatter_lanes(self, pointer, kind, offsets, values) -> None:
        """The other way round."""
        name = f"llvm.masked.scatter.{self.suffix(values.type)}.v{values.type.count}p0"
        all_ = self.const(ir.VectorType(I1, values.type.count), 1)
        places = self.address(pointer, offsets, kind)
        self.masked_call(name, ir.VoidType(), [values, places, all_], 1, self.size(kind))

    def plain_row(self, word: str, tile: Tile, row, memory: Memory, start) -> None:
        """A row of neighbours."""
        kind = memory_type(memory.element)
        place, lanes = self.address(memory.pointer, start, kind), ir.VectorType(kind, tile.kind.cols)
        if word == "load":
            found = self.builder.load(place, typ=lanes, align=self.size(kind))
            self.put_row(tile, row, self.from_memory(memory.element, found))
        else:
            self.builder.store(self.to_memory(memory.element, self.row(tile, row)), place, align=self.size(kind))

    def strided_row(self, word: str, tile: Tile, row, memory: Memory, slots) -> None:
        """A row from anywhere."""
        kind = memory_type(memory.element)
        if word == "load":
            self.put_row(tile, row, self.from_memory(memory.element, self.gather_lanes(memory.pointer, kind, slots)))
        else:
            self.scatter_lanes(memory.pointer, kind, slots, self.to_memory(memory.element, self.row(tile, row)))

    def multiply(self, total: Tile, left: Tile, right: Tile) -> None:
        """Products summed over k in order, in float32 or float64, or in the accumulator's integers; rounded once."""
        b, kind = self.builder, total.kind
        element = kind.element
        work = None
        if element.kind == "float":
            work = f64 if f64 in (element, left.kind.element, right.kind.element) else f32
        for first in range(0, kind.rows, ROWS_AT_ONCE):
            rows = range(first, min(first + ROWS_AT_ONCE, kind.rows))
            held = [self.as_work(self.row(total, I64(row)), element, work, element) for row in rows]
            before = b.block
            head, after = b.append_basic_block("k"), b.append_basic_block("summed")
            b.branch(head)
            b.position_at_end(head)
            k = b.phi(I64)
            k.add_incoming(I64(0), before)
            sums = []
            for value in held:
                phi = b.phi(value.type)
                phi.add_incoming(value, before)
                sums.append(phi)
            line = self.as_work(self.row(right, k), right.kind.element, work, element)
            new = []
            for row, value in zip(rows, sums, strict=True):
                place = self.cell(left, b.add(I64(row * left.kind.cols), k))
                one = b.load(place, typ=self.element_type(left.kind), align=self.size(self.element_type(left.kind)))
                factor = self.broadcast(self.as_work(one, left.kind.element, work, element), kind.cols)
                if work is None:
                    new.append(b.add(value, b.mul(factor, line)))
                else:
                    product = b.fmul(factor, line, flags=self.flags)
                    new.append(b.fadd(value, product, flags=self.flags))
            more = b.add(k, I64(1))
            k.add_incoming(more, head)
            for phi, value in zip(sums, new, strict=True):
                phi.add_incoming(value, head)
            b.cbranch(b.icmp_unsigned("<", more, I64(left.kind.cols)), head, after)
            b.position_at_end(after)
            for row, value in zip(rows, new, strict=True):
                self.put_row(total, I64(row), self.from_work(value, element, work))

    def as_work(self, value, element: Scalar, work: Scalar | None, into: Scalar):
        """Elements in the type of the sum; integers by their own sign."""
        if work is None:
            return self.widen(value, into.bits, element.signed)
        value = self.lift(element, value)
        wide = self.shaped(DOUBLE if work is f64 else FLOAT, value)
        return value if value.type == wide else self.builder.fpext(value, wide)

    def from_work(self, value, element: Scalar, work: Scalar | None):
        """A sum as the element holds it."""
        if work is None or element is f64:
            return value
        if work is f64:
            value = self.builder.fptrunc(value, self.shaped(FLOAT, value))
        return self.settle(element, value)

    # Fragments: lane L owns elements L, L + W, ...
    def fragment(self, node, word: str, own: TileType, arguments: list, kinds: list):
        """The verbs of a lane's own elements."""
        b, size = self.builder, own.rows * own.cols
        lane = self.lanes(list(range(self.width)), I64)
        counts = self.lanes([len(range(number, size, self.width)) for number in range(self.width)], I32)
        if word == "elements":
            return Value(counts, None)
        index = self.wide(arguments[1], kinds[1])
        at = self.spread(index)
        if self.checked:
            bad = b.icmp_unsigned(">=", at, self.widen(counts, 64))
            text = f"element {{0}} of the {{1}} that a lane owns of a {own}"
            self.check(Value(bad, None), node.at, text, (kinds[1], arguments[1]), (u32, Value(counts, None)))
        number = b.add(b.mul(at, self.like(at, self.width)), lane)
        if word == "row":
            return Value(self.widen(b.udiv(number, self.like(number, own.cols)), 32), None)
        if word == "col":
            return Value(self.widen(b.urem(number, self.like(number, own.cols)), 32), None)
        kind, tile = self.element_type(own), arguments[0]
        if word == "get":
            return Value(self.gather(tile.place(), kind, number), None)
        lanes = self.spread(arguments[2])
        name = f"llvm.masked.scatter.{self.suffix(lanes.type)}.v{self.width}p0"
        places = self.address(tile.place(), number, kind)
        self.masked_call(name, ir.VoidType(), [lanes, places, self.full()], 1, self.size(kind))
        return tile

    # Epilogues.
    def epilogue(self, node, word: str, tile: Tile, rest: list, kinds: list) -> Tile:
        """The verbs that scale a tile by factors of its rows and columns."""
        b = self.builder
        if word == "scaled_accum_i32":
            into, columns = rest
            scale = self.columns(node, columns, kinds[2].count, i32, node.arguments[2])
            self.fits_24(node, scale, "column factor")
            for row in range(tile.kind.rows):
                held = self.row(tile, I64(row))
                self.fits_24(node, held, "tile")
                self.put_row(into, I64(row), b.add(self.row(into, I64(row)), b.mul(scale, held)))
            return into
        pairs = rest if word == "rank1_accum" else rest[1:]
        factors = []
        for place, (rows, columns) in enumerate(zip(pairs[::2], pairs[1::2], strict=True)):
            argument = node.arguments[(1 if word == "rank1_accum" else 2) + 2 * place + 1]
            factors.append((rows, self.columns(node, columns, argument.type.count, f32, argument),
                            node.arguments[(1 if word == "rank1_accum" else 2) + 2 * place]))  # fmt: skip
        target = tile if word == "rank1_accum" else rest[0]
        for row in range(tile.kind.rows):
            total = self.row(target, I64(row))
            for place, (rows, columns, source) in enumerate(factors):
                factor = self.broadcast(self.row_factor(node, rows, row, source), tile.kind.cols)
                if word != "rank1_accum" and place == 0:
                    scale = b.fmul(factor, columns)
                    total = self.pure("fma", scale, self.as_float(tile.kind.element, self.row(tile, I64(row))), total)
                else:
                    total = self.pure("fma", factor, columns, total)
            self.put_row(target, I64(row), total)
        return target

    def as_float(self, element: Scalar, value):
        """Elements as float32."""
        return self.converted(value, element, f32, element.signed) if element is not f32 else value

    def row_factor(self, node, rows: tuple, row: int, source):
        """A row's factor, from a slice of Shared memory."""
        memory, offset = rows
        kind = source.offset.type
        at = self.shared_index(node, offset, kind, "a slice's offset")
        return self.one(node, memory, self.builder.add(at, I64(row)))

    def one(self, node, memory: Memory, at):
        """An element that the wave reads, by an index of 64 bits."""
        return self.load_at(node, memory, Value(at), i64).ir

    def columns(self, node, columns: tuple, count: int, kind: Scalar, source):
        """The column factors, as a vector."""
        b = self.builder
        form, *given = columns
        lanes = ir.VectorType(llvm_type(kind), count)
        if form == "broadcast":
            return self.broadcast(self.shared_value(node, given[0], kind, "a column factor"), count)
        if form == "slice":
            memory, *numbers = given
            types = [argument.type for argument in source.arguments[1:]]
            places = [self.shared_index(node, n, t, "a slice's place") for n, t in zip(numbers, types, strict=True)]
            base, stride = (*places, I64(1))[:2]
            found = ir.Constant(lanes, ir.Undefined)
            for column in range(count):
                value = self.one(node, memory, b.add(base, b.mul(stride, I64(column))))
                found = b.insert_element(found, value, I32(column))
            return found
        return self.by_lane(node, given[0], count, kind, lanes)

    def by_lane(self, node, value: Value, count: int, kind: Scalar, lanes):
        """Lane L gives column L mod N; lanes of one column must agree, and one of them be there."""
        b = self.builder
        held, mask = self.spread(value), self.full()
        found = ir.Constant(lanes, ir.Undefined)
        for column in range(count):
            one, there = self.line_of(node, held, mask, column, count, f"column {column} of WaveVector.of_lane", kind)
            self.stop_if(Value(b.not_(there)), node.at,
                         f"column {column} of WaveVector.of_lane, whose lanes are all inactive")  # fmt: skip
            found = b.insert_element(found, one, I32(column))
        return found

    def line_of(self, node, held, mask, line: int, count: int, what: str, kind: Scalar):
        """(the value of the first active lane L with L mod count == line, whether there is one)."""
        b = self.builder
        members = list(range(line, self.width, count))
        one, there = self.like(held, 0) if kind.kind == "int" else None, I1(0)
        one = ir.Constant(held.type.element, None)
        for lane in reversed(members):
            active = b.extract_element(mask, I32(lane))
            one = b.select(active, b.extract_element(held, I32(lane)), one)
            there = b.or_(there, active)
        for lane in members if self.checked else ():
            other = b.extract_element(held, I32(lane))
            left, right = other, one
            if kind.kind == "float":
                left, right = b.bitcast(other, I32), b.bitcast(one, I32)
            apart = b.and_(b.extract_element(mask, I32(lane)), b.icmp_unsigned("!=", left, right))
            self.stop_if(Value(apart), node.at, f"{what}, for which lanes {members} disagree")
        return one, there

    def fits_24(self, node, values, what: str) -> None:
        """Both factors of scaled_accum_i32 have 24 signed bits."""
        b = self.builder
        moved = b.add(values, self.like(values, 1 << 23))
        worst = self.first_of(b.icmp_unsigned(">=", moved, self.like(moved, 1 << 24)))
        self.stop_if(Value(worst[0]), node.at, f"scaled_accum_i32 of a {what} of {{0}}, past 24 signed bits",
                     (i32, Value(b.extract_element(values, worst[1]))))  # fmt: skip

    def from_words(self, node, tile: Tile, words: list) -> None:
        """Lane L gives row (A) or column (B) L mod 16: four bytes a word, the least k in the low byte."""
        b, mask = self.builder, self.full()
        spread = [self.spread(word) for word in words]
        for line in range(16):
            for place, held in enumerate(spread):
                one, there = self.line_of(node, held, mask, line, 16, "from_words", u32)
                if place == 0:
                    text = f"from_words without an active lane for line {line}"
                    self.stop_if(Value(b.not_(there)), node.at, text)
                for part in range(4):
                    byte = self.widen(b.lshr(one, self.like(one, 8 * part)), 8)
                    k = 4 * place + part
                    at = line * 16 + k if tile.kind.use == Use.A else k * 16 + line
                    b.store(byte, self.cell(tile, I64(at)))
