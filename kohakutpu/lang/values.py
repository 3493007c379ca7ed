"""What the body of a kernel handles: buffers, slices and accumulators.

Every operator here either builds an expression or records a statement; none computes.
"""

from __future__ import annotations

from dataclasses import replace

from kohakutpu.wording import counted

from .elementwise import Elementwise, Product, Value, as_value, expression_of
from .extents import KBLOCK, LANES, Axis, Expr, Index, Placed, ceildiv, indices_in, same
from .recorder import active
from .source import KernelError, Source, here
from .trace import Assign, Buffer, BufferLeaf, Contract, Expression, Open, Slice, SliceLeaf, Store, TileLeaf, View


def positive(value, what: str, source: Source | None = None) -> int:
    """An integer of at least 1; the error names `source`, or the line being executed."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise KernelError(f"{what}: expected an integer of at least 1, got {value!r}", source or here())
    return value


# ---- buffers ------------------------------------------------------------------------------------------


class Handle(Elementwise):
    """A buffer inside the body; bare, it stands for all of its elements."""

    def __init__(self, buffer: Buffer):
        self.buffer = buffer

    def _value(self) -> Value:
        active().require_own(self.buffer)
        return Value(BufferLeaf(self.buffer.name))

    @property
    def shape(self) -> tuple[Expr | int, ...]:
        """The extents of one batch element."""
        return self.buffer.shape

    def tiles(self, per: int) -> Axis:
        """The first axis in steps of `per` groups of 4 rows."""
        self._axes(1, 2)
        rows = self.buffer.shape[0]
        return Axis("tiles", positive(per, "tiles"), rows, ceildiv(ceildiv(rows, LANES), per))

    def columns(self, per: int) -> Axis:
        """The last axis in steps of `per` groups of 4 columns, for tiles of a result that no operand has the columns
        of."""
        self._axes(2)
        columns = self.buffer.shape[-1]
        return Axis("tiles", positive(per, "columns"), columns, ceildiv(ceildiv(columns, LANES), per))

    def chunks32(self, per: int) -> Axis:
        """The last axis in steps of `per` blocks of 32."""
        self._axes(2)
        columns = self.buffer.shape[-1]
        return Axis("chunks32", positive(per, "chunks32"), columns, ceildiv(ceildiv(columns, KBLOCK), per))

    def parts(self, per: int) -> Axis:
        """All elements, row-major, in steps of `per`."""
        elements = self._elements()
        return Axis("parts", positive(per, "parts"), elements, ceildiv(elements, per))

    def _elements(self) -> Expr | int:
        if self.buffer.whole:
            return active().elements
        elements: Expr | int = 1
        for extent in self.buffer.shape:
            elements = extent if isinstance(elements, int) and elements == 1 else elements * extent
        return elements

    def _axes(self, *allowed: int) -> None:
        if self.buffer.whole or len(self.buffer.shape) not in allowed:
            shape = "..." if self.buffer.whole else ", ".join(map(str, self.buffer.shape))
            raise KernelError(
                f"{self.buffer.name}({shape}): this needs {' or '.join(map(str, allowed))} axes apart from `...`",
                here(),
            )

    def __getitem__(self, key) -> Part:
        active().require_own(self.buffer)
        indices = key if isinstance(key, tuple) else (key,)
        name = self.buffer.name
        axes = []
        shift = 0
        if len(indices) == 3 and isinstance(indices[2], (int, Expr)) and not isinstance(indices[2], bool):
            shift = moved_by(name, indices[2])
            indices = indices[:2]
        for index in indices:
            if isinstance(index, Placed):
                for opened in indices_in(index.index) if isinstance(index.index, Expr) else []:
                    active().require_open(opened)
                axes.append(index.axis)
                continue
            found = indices_in(index) if isinstance(index, Expr) else []
            if len(found) != 1:
                raise KernelError(f"{name}[{index!r}]: expected an index of an open tiling or loop", here())
            active().require_open(found[0])
            axes.append(found[0].axis)
        part = Slice(name, tuple(i.index if isinstance(i, Placed) else i for i in indices), tuple(axes), shift)
        self._check_kinds(part)
        if part.moved and part.kinds != ("tiles", "chunks32"):
            raise KernelError(f"{name}[...]: only an operand of a product is moved down by rows", here())
        lengths = (self._elements(),) if part.kinds == ("parts",) else self.buffer.shape
        for index, axis, length in zip(indices, axes, lengths, strict=True):
            if isinstance(index, (Index, Placed)) and not same(axis.length, length):
                raise KernelError(
                    f"{name}: the index {getattr(index, 'index', index)} divides an axis of {axis.length}, and this one "
                    f"has {length}",
                    here(),
                )
        return Part(part, self.buffer, any(isinstance(index, Placed) for index in indices))

    def _check_kinds(self, part: Slice) -> None:
        kinds = part.kinds
        rank = 0 if self.buffer.whole else len(self.buffer.shape)
        legal = {1: [("parts",), ("tiles",)], 2: [("parts",), ("tiles", "tiles"), ("tiles", "chunks32")]}
        if kinds == ("chunks32", "tiles"):
            raise KernelError(
                f"{part.buffer} is indexed as [K][out], chunks of K first: @ contracts the last axis of both operands; "
                f"store it [out][in] and write {part.buffer}[j, k]",
                here(),
            )
        if kinds not in legal.get(rank, [("parts",)]):
            raise KernelError(
                f"{part.buffer} has {counted(rank, 'axis', plural='axes')} and is indexed by ({', '.join(kinds)}); legal are "
                + ", ".join(f"({', '.join(kind)})" for kind in legal.get(rank, [("parts",)])),
                here(),
            )

    def __setitem__(self, key, value) -> None:
        if not (isinstance(value, Part) and value.stored and value.buffer is self.buffer):
            raise KernelError(
                f"{self.buffer.name}[...] = value stores nothing; write {self.buffer.name}[...] <<= value", here()
            )
        value.stored = False

    def __ilshift__(self, value) -> Handle:
        """`y <<= value`: every element."""
        source = here()
        expression = _whole_value(self.buffer.name, value, source)
        if expression.reductions and self.buffer.whole:
            raise KernelError(
                f"{self.buffer.name} is declared `...` alone, one row of all its elements; for row reductions declare "
                "it with a last axis, (..., N), or fold it, as_rows(N)",
                source,
            )
        _assign(self.buffer, None, expression, source)
        return self

    # ---- views ----

    def as_rows(self, width: Expr | int) -> RowView:
        """The same elements, row-major, as rows of `width`."""
        return RowView(self.buffer, View(_extent(width, "as_rows: width", 1)))

    def rows_from(self, first: Expr | int, count: Expr | int | None = None) -> RowView:
        """The rows from row `first` on, all or `count` of them."""
        return self._rows(2).rows_from(first, count)

    def per_group(self, rows: Expr | int) -> RowView:
        """Every row as the first one of the `rows` rows it belongs to."""
        return self._rows(2).per_group(rows)

    def repeated(self) -> RowView:
        """The rows over and over, as often as the statement's rows need them."""
        return self._rows(1, 2).repeated()

    def _rows(self, *axes: int) -> RowView:
        if self.buffer.whole or len(self.buffer.shape) not in axes:
            shape = "..." if self.buffer.whole else ", ".join(map(str, self.buffer.shape))
            raise KernelError(
                f"{self.buffer.name}({shape}): rows are those of {' or '.join(map(str, axes))} axes apart from `...`; fold it "
                "first, as_rows(width)",
                here(),
            )
        return RowView(self.buffer, View())


def moved_by(name: str, shift: Expr | int) -> Expr | int:
    """How far on an operand begins, once it is known to be no negative number and of open indices."""
    for opened in indices_in(shift):
        active().require_open(opened)
    if isinstance(shift, int) and shift < 0:
        raise KernelError(f"{name}[...]: an operand is moved down by rows, and {shift} is negative", here())
    return shift


class RowView(Elementwise):
    """Rows of a buffer inside the body. A name for one is written as a buffer is: `head = y.rows_from(0, 8)`, then
    `head <<= value`."""

    def __init__(self, buffer: Buffer, view: View):
        self.buffer = buffer
        self.view = view

    def _value(self) -> Value:
        active().require_own(self.buffer)
        return Value(BufferLeaf(self.buffer.name, self.view))

    def rows_from(self, first: Expr | int, count: Expr | int | None = None) -> RowView:
        """The rows from row `first` of this view on, all or `count` of them."""
        self._plain("rows_from")
        first = _extent(first, "rows_from: first", 0)
        if count is not None:
            count = _extent(count, "rows_from: count", 1)
        elif self.view.count is not None:
            count = self.view.count - first
        at = first if isinstance(self.view.first, int) and self.view.first == 0 else self.view.first + first
        return RowView(self.buffer, replace(self.view, first=at, count=count))

    def per_group(self, rows: Expr | int) -> RowView:
        """Every row as the first one of the `rows` rows it belongs to."""
        self._plain("per_group")
        return RowView(self.buffer, replace(self.view, group=_extent(rows, "per_group: rows", 1)))

    def repeated(self) -> RowView:
        """The rows over and over, as often as the statement's rows need them."""
        self._plain("repeated")
        return RowView(self.buffer, replace(self.view, repeats=True))

    def _plain(self, what: str) -> None:
        if self._periodic:
            raise KernelError(f"{self.view.text(self.buffer.name)}: {what} comes before per_group and repeated", here())

    @property
    def _periodic(self) -> bool:
        return self.view.repeats or isinstance(self.view.group, Expr) or self.view.group != 1

    def as_rows(self, width) -> RowView:
        raise KernelError(f"{self.view.text(self.buffer.name)}: as_rows folds a whole buffer, so it comes first", here())

    def __getitem__(self, key) -> Part:
        raise KernelError(
            f"{self.view.text(self.buffer.name)} is a view of rows, which stands in whole-buffer statements and is not "
            "indexed; index the buffer, or take fewer rows with rows_from(first, count)",
            here(),
        )

    def __setitem__(self, key, value) -> None:
        self[key]

    def __ilshift__(self, value) -> RowView:
        """`head <<= value`: every element of these rows."""
        source = here()
        if self._periodic:
            raise KernelError(
                f"{self.view.text(self.buffer.name)} names a row more than once, so it cannot be written", source
            )
        _assign(self.buffer, self.view, _whole_value(self.view.text(self.buffer.name), value, source), source)
        return self


def _extent(value, what: str, least: int) -> Expr | int:
    """An extent, or an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, (int, Expr)) or (isinstance(value, int) and value < least):
        raise KernelError(f"{what}: expected an extent or an integer of at least {least}, got {value!r}", here())
    for opened in indices_in(value):
        active().require_open(opened)
    return value


def _whole_value(name: str, value, source: Source) -> Expression:
    """What a statement over whole buffers computes."""
    active().require_top(f"{name} <<= value writes a whole buffer, so it stands outside units")
    expression = expression_of(as_value(value))
    for leaf in expression.leaves:
        if isinstance(leaf, (TileLeaf, SliceLeaf)):
            raise KernelError(
                f"{name} <<= value writes a whole buffer and may read only whole buffers and constants, not "
                f"{Expression((leaf,)).text()}",
                source,
            )
    return expression


def _assign(buffer: Buffer, view: View | None, expression: Expression, source: Source) -> None:
    recorder = active()
    recorder.record_write(buffer, expression, source)
    recorder.emit(Assign(recorder.next_id(), buffer.name, expression, source, view))


class Part(Elementwise):
    """A slice of a buffer inside the body."""

    def __init__(self, part: Slice, buffer: Buffer, placed: bool = False):
        """`placed`: an index says itself what it divides, so that axes of two lengths may meet."""
        self.placed = placed
        self.slice = part
        self.buffer = buffer
        self.stored = False

    def _value(self) -> Value:
        if self.slice.kinds == ("tiles", "chunks32"):
            raise KernelError(
                f"{self.slice.buffer}: an operand slice stands only in a product, a[i, k] @ b[j, k]", here()
            )
        return Value(SliceLeaf(self.slice))

    def __matmul__(self, other) -> Product:
        if not isinstance(other, Part):
            return super().__matmul__(other)
        for side in (self, other):
            if side.slice.kinds != ("tiles", "chunks32"):
                raise KernelError(
                    f"{side.slice.buffer}: @ takes slices by (tiles, chunks32), not by ({', '.join(side.slice.kinds)})",
                    here(),
                )
        a, b = (side.slice.axes[1].length for side in (self, other))
        free = any(side.placed or side.slice.plane for side in (self, other))
        if not same(a, b) and not free:
            raise KernelError(
                f"@ contracts the last axes, which differ: {self.slice.buffer} {a}, {other.slice.buffer} {b}", here()
            )
        return Product(self.slice, other.slice)

    def __ilshift__(self, value) -> Part:
        """`y[i, j] <<= value` or `y[e] <<= value`."""
        source = here()
        recorder = active()
        if isinstance(value, Product):
            raise KernelError("a product is added to an accumulator first: acc += a[i, k] @ b[j, k]", source)
        expression = expression_of(as_value(value))
        if expression.reductions:
            instead = "store the tile to a temp, and reduce that" if self.slice.kinds == ("tiles", "tiles") else "reduce"
            raise KernelError(
                f"{self.slice.buffer}[...] is a part of a buffer, and a row reduction needs whole rows: {instead} with a "
                "whole-buffer statement, y <<= value, outside the tiling",
                source,
            )
        if self.slice.kinds == ("tiles", "tiles"):
            self._check_tile(expression, source)
        elif self.slice.kinds == ("parts",):
            self._check_parts(expression, source)
        else:
            raise KernelError(
                f"{self.slice.buffer}: a slice by ({', '.join(self.slice.kinds)}) cannot be written", source
            )
        recorder.record_write(self.buffer, expression, source)
        recorder.emit(Store(recorder.next_id(), self.slice, expression, source))
        self.stored = True
        return self

    def _check_tile(self, expression: Expression, source) -> None:
        per = tuple(axis.per for axis in self.slice.axes)
        tiles = [leaf for leaf in expression.leaves if isinstance(leaf, TileLeaf)]
        shapes = {leaf.accumulator: active().tile_shape(leaf.accumulator, source) for leaf in tiles}
        if len(set(shapes.values())) > 1:
            listed = ", ".join(f"{name} {gm}x{gn}" for name, (gm, gn) in shapes.items())
            raise KernelError(f"the accumulators of one expression must have one shape: {listed}", source)
        for gm, gn in shapes.values():
            if per != (gm, gn):
                raise KernelError(
                    f"{self.slice.buffer} is tiled {per[0]}x{per[1]} and the accumulator is {gm}x{gn}",
                    source,
                )
        for leaf in tiles:
            active().require_accumulated(leaf.accumulator, source)
        for leaf in expression.leaves:
            if isinstance(leaf, BufferLeaf):
                raise KernelError(
                    f"{leaf.buffer} stands for the whole buffer, and {self.slice.buffer}[...] is one tile of it; "
                    "index it",
                    source,
                )
            if isinstance(leaf, SliceLeaf):
                wanted = {2: self.slice.indices, 1: self.slice.indices[1:]}[len(leaf.slice.indices)]
                axes = self.slice.axes[-len(wanted) :]
                alike = all(map(same, leaf.slice.indices, wanted))
                if not alike or [(a.kind, a.per) for a in leaf.slice.axes] != [(a.kind, a.per) for a in axes]:
                    raise KernelError(
                        f"{Expression((leaf,)).text()} does not meet the tile that is written: it must be indexed "
                        f"like {self.slice.buffer}, or by its column index alone",
                        source,
                    )

    def _check_parts(self, expression: Expression, source) -> None:
        for leaf in expression.leaves:
            if isinstance(leaf, (TileLeaf, BufferLeaf)) or (
                isinstance(leaf, SliceLeaf) and leaf.slice.kinds != ("parts",)
            ):
                raise KernelError(
                    f"{self.slice.buffer} is written by parts, and {Expression((leaf,)).text()} is no part of a buffer",
                    source,
                )
            if isinstance(leaf, SliceLeaf) and not same_axis(leaf.slice.axes[0], self.slice.axes[0]):
                raise KernelError(
                    f"{Expression((leaf,)).text()} has parts of another size or buffer than the target", source
                )


def same_axis(a: Axis, b: Axis) -> bool:
    """Two axes divide equal extents in equal steps."""
    return a.kind == b.kind and a.per == b.per and same(a.length, b.length)


# ---- accumulators -------------------------------------------------------------------------------------


class Tile(Elementwise):
    """An accumulator of 4*gm by 4*gn elements."""

    def __init__(self, name: str, gm: int, gn: int, nk: int):
        self.name = name
        self.gm = gm
        self.gn = gn
        self.nk = nk
        self.recorder = active()

    def _value(self) -> Value:
        self._require_own()
        return Value(TileLeaf(self.name))

    def _require_own(self) -> None:
        if self.recorder is not active():
            raise KernelError(f"{self.name} is an accumulator of another kernel, or of another trace of this one", here())

    def __iadd__(self, product) -> Tile:
        source = here()
        self._require_own()
        if not isinstance(product, Product):
            raise KernelError(
                "acc += takes a product, a[i, k] @ b[j, k]; for elementwise work write acc + value", source
            )
        for side, part, groups in (("gm", product.a, self.gm), ("gn", product.b, self.gn)):
            rows, chunk = part.axes
            if rows.per != groups:
                raise KernelError(
                    f"{part.buffer} is tiled by {counted(rows.per, 'group')} of 4 and the accumulator has {side}={groups}", source
                )
            if chunk.per != self.nk:
                raise KernelError(
                    f"{part.buffer} is cut into chunks of {counted(chunk.per, 'block')} of 32 and the accumulator has "
                    f"nk={self.nk}",
                    source,
                )
        recorder = active()
        recorder.record_contract(self.name, product.a, product.b, source)
        recorder.emit(Contract(recorder.next_id(), self.name, product.a, product.b, source))
        return self


class Region(Elementwise):
    """A place in a cluster's L1 for one operand: `groups` groups of 4 rows by `blocks` blocks of 32 K."""

    def __init__(self, groups: int, blocks: int, source: Source):
        self.groups = groups
        self.blocks = blocks
        self.source = source
        self.held: Slice | None = None
        self.buffer: Buffer | None = None
        self.side: str | None = None

    def _value(self) -> Value:
        raise KernelError("a region of L1 stands only in a product, a @ b", here())

    def __ilshift__(self, part) -> Region:
        """`a <<= x[i, k]`: fetch an operand slice into the region."""
        if not isinstance(part, Part) or part.slice.kinds != ("tiles", "chunks32"):
            raise KernelError("a region is filled from an operand slice, x[i, k], by (tiles, chunks32)", here())
        per = tuple(axis.per for axis in part.slice.axes)
        if per != (self.groups, self.blocks):
            raise KernelError(
                f"{part.slice.buffer} is cut into {counted(per[0], 'group')} by {counted(per[1], 'block')} and the region has "
                f"{self.groups} by {self.blocks}",
                here(),
            )
        self.held, self.buffer = part.slice, part.buffer
        active().record_fill(self, here())
        return self

    def __matmul__(self, other) -> Product:
        if not isinstance(other, Region):
            return super().__matmul__(other)
        for region, side in ((self, "A, left of @"), (other, "B, right of @")):
            if region.held is None:
                raise KernelError("a region is multiplied before anything was fetched into it", here())
            if region.side not in (None, side):
                raise KernelError(f"a region that served side {region.side}, cannot serve side {side}: use two", here())
        if self is other:
            raise KernelError("one region cannot serve both sides of a product: use two", here())
        if self.blocks != other.blocks:
            raise KernelError(
                f"@ contracts regions of equal K blocks, and these have {self.blocks} and {other.blocks}", here()
            )
        self.side, other.side = "A, left of @", "B, right of @"
        active().record_use(self, other)
        return Part(self.held, self.buffer) @ Part(other.held, other.buffer)


def region(groups: int, blocks: int) -> Region:
    """A place in L1 to name explicitly: `a <<= x[i, k]`, then `acc += a @ b`. The same program as `acc += x[i, k] @
    w[j, k]`."""
    source = here()
    active().require_units("a region belongs to one instance: open it inside units")
    return Region(positive(groups, "groups"), positive(blocks, "blocks"), source)


def tile(gm: int, gn: int, nk: int | None = None) -> Tile:
    """An accumulator of `gm` by `gn` sub-tiles, swept `nk` blocks of 32 K at a time (the knob `nk`, else 2)."""
    source = here()
    recorder = active()
    recorder.require_units("an accumulator belongs to one instance: open it inside units")
    if nk is None:
        nk = recorder.knobs.get("nk", 2)
    gm, gn, nk = positive(gm, "gm"), positive(gn, "gn"), positive(nk, "nk")
    name = recorder.fresh("acc")
    recorder.record_open(name, gm, gn)
    recorder.emit(Open(recorder.next_id(), name, gm, gn, nk, source))
    return Tile(name, gm, gn, nk)
