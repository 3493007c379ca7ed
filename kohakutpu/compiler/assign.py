"""Which byte order each buffer has in memory (spec: layouts, requirement rule).

Operands of a product, results of a tiling and per-channel vectors have the order their instructions need. Elementwise
work commutes with any order, so the buffers of one statement share one: the one that is needed, else row-major.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from kohakutpu.lang.extents import Extents
from kohakutpu.lang.source import Source
from kohakutpu.lang.trace import Buffer, BufferLeaf, Contract, Slice, SliceLeaf, Store, Trace

from . import payloads
from .layouts import HALVES, KBLOCK, ChannelBias, ConvEntry, Entry, Flat, Layout, Quantised, Shifted, Tile, in_rows
from .refusals import CompileError
from .relayout import Need
from .stages import ClusterStage, Drain, ElementwiseStage, EpilogueStage, Program, RowStage, Sweep


class _Needs:
    """The order each buffer needs, and the line that needs it; apart from it, those that products need of operands."""

    def __init__(self, buffers: Mapping[str, Buffer], extents: Extents):
        self.buffers = buffers
        self.extents = extents
        self.operands: dict[str, dict[Layout, Source]] = {}
        self.needed: dict[str, tuple[Layout, Source]] = {}
        self.group: dict[str, set[str]] = {}

    def need(self, name: str, layout: Layout, source: Source) -> None:
        held = self.needed.setdefault(name, (layout, source))
        if held[0] != layout:
            self.refuse(name, held, name, (layout, source))

    def operand(self, name: str, layout: Layout, source: Source) -> None:
        self.operands.setdefault(name, {}).setdefault(layout, source)

    def refuse(self, name: str, held: tuple[Layout, Source], other: str, wanted: tuple[Layout, Source]) -> None:
        both = name if name == other else f"{name} and {other}"
        raise CompileError(
            f"{both} would need two byte orders: {held[0].key} ({held[1]}) and {wanted[0].key}; only a temp is copied "
            "into another order, for a product to read it: give each use a buffer of its own",
            wanted[1],
        )

    def together(self, names: list[str]) -> None:
        """The buffers of one elementwise statement."""
        merged = set(names).union(*(self.group.get(name, {name}) for name in names))
        for name in merged:
            self.group[name] = merged

    def own_tile(self, name: str) -> bool:
        """Whether it must lie in tiles."""
        return name in self.needed and isinstance(self.needed[name][0], Tile)

    def tiled(self, name: str) -> bool:
        """Whether it must, or what it shares an order with."""
        return any(self.own_tile(member) for member in self.group.get(name, {name}))

    def shape(self, name: str) -> tuple[int, ...]:
        return self.buffers[name].element_shape(self.extents)


def assign(
    program: Program, trace: Trace, extents: Extents, preq: Collection[str] = (),
    given: Mapping[str, Layout] = MappingProxyType({}), by_rows: bool = True, carriers: Collection[str] = (),
) -> tuple[dict[str, Layout], list[Need]]:  # fmt: skip
    """The layout of every buffer, and the copies that products need of temps in another one; `preq` names operands
    that are MXFP7 in memory, `given` operands that lie in an order already. With `by_rows`, elementwise statements of
    `program` may become ones over rows; then `carriers` (`payloads`) that are copied keep out of tiles where they can.

    Raises CompileError for two needs that disagree, for a port nothing uses, and for a `preq` that is no operand.
    """
    held = carriers if by_rows else ()
    needs, written = _collect(program, trace, extents, preq, given, held)
    while by_rows and _by_rows(program, needs):
        needs, written = _collect(program, trace, extents, preq, given, held)
    layouts: dict[str, Layout] = {}
    for name in preq:
        read = [n for n in needs.operands if program.buffers[n].role == "in" and n not in needs.group]
        if name not in read:
            listed = ", ".join(read) or "none"
            line = program.buffers[name].source if name in program.buffers else trace.source
            raise CompileError(f"preq: {name} is not an input that only products read; those are {listed}", line)
    copies: list[Need] = []
    for name in program.buffers:
        members = sorted(needs.group.get(name, {name}), key=list(program.buffers).index)
        needed = [(member, needs.needed[member]) for member in members if member in needs.needed]
        for other, wanted in needed[1:]:
            if wanted[0] != needed[0][1][0]:
                needs.refuse(needed[0][0], needed[0][1], other, wanted)
        read = [(member, pair) for member in members for pair in needs.operands.get(member, {}).items()]
        if not needed and not read and name not in needs.group:
            raise CompileError(f"{name} is declared and never used", program.buffers[name].source)
        _check_planes(read, name in needs.group)
        orders = {layout for _, (layout, _) in read}
        if not needed and len(orders) == 1:
            layouts[name] = read[0][1][0]
        else:
            held = needed[0][1] if needed else (Flat(needs.shape(name)), program.buffers[name].source)
            layouts[name] = held[0]
            for layout, source in needs.operands.get(name, {}).items():
                if layout == held[0]:
                    continue
                if program.buffers[name].role != "temp":
                    first, second = (needed[0], (name, (layout, source))) if needed else (read[0], read[1])
                    needs.refuse(*first, *second)
                copies.append(Need(name, layout, source))
        _check_padding(name, layouts[name], written)
    return layouts, copies


def _collect(
    program: Program, trace: Trace, extents: Extents, preq: Collection[str], given: Mapping[str, Layout], carriers: Collection[str]
) -> tuple[_Needs, dict[str, Source]]:
    """What every stage needs, and the buffers that elementwise work computes, with a line that does."""
    needs = _Needs(program.buffers, extents)
    for name, layout in given.items():
        _given(needs, trace, name, layout)
    written: dict[str, Source] = {}
    moved = _moved(program)
    statements = trace.statements
    read_by_rows: list[tuple[str, Layout, Source]] = []  # whose rows may also lie in tiles
    for stage in program.stages:
        if isinstance(stage, ClusterStage):
            for ops in stage.programs.values():
                for op in ops:
                    if isinstance(op, Sweep):
                        contract: Contract = statements[op.statement]
                        for side, operand, groups, part in (("A", op.a, op.gm, contract.a), ("B", op.b, op.gn, contract.b)):
                            if part.plane is not None:
                                layout = _image(needs.shape(operand.buffer), part, operand.buffer in preq, contract)
                                needs.operand(operand.buffer, layout, contract.source)
                                continue
                            layout = Entry(*needs.shape(operand.buffer), groups, op.nk)
                            if operand.buffer in moved:
                                layout = _shifted(layout, moved[operand.buffer], operand.buffer in preq, contract)
                            elif operand.buffer in preq:
                                layout = Quantised(*needs.shape(operand.buffer), groups, op.nk, side)
                            needs.operand(operand.buffer, layout, contract.source)
                    elif isinstance(op, Drain):
                        _need_tile(needs, op.buffer, statements[op.statement])
        elif isinstance(stage, EpilogueStage):
            _need_tile(needs, stage.statement.target.buffer, stage.statement)
            for leaf in stage.statement.expression.leaves:
                if isinstance(leaf, SliceLeaf) and len(leaf.slice.indices) == 1:
                    name = leaf.slice.buffer
                    needs.need(name, ChannelBias(*needs.shape(name), stage.gn), stage.statement.source)
        elif isinstance(stage, ElementwiseStage):
            operands = [leaf.buffer for leaf in stage.expression.leaves if isinstance(leaf, BufferLeaf)]
            needs.together([stage.target, *operands])
            if stage.layout is not None:
                needs.need(stage.target, stage.layout, stage.statement.source)
            written[stage.target] = stage.statement.source
        elif isinstance(stage, RowStage):
            for leaf, shape in stage.shapes.items():
                layout = _rows_of(leaf, needs.shape(leaf.buffer), stage.statement.source)
                if leaf.buffer == stage.target or leaf.view or shape != stage.shape:
                    needs.need(leaf.buffer, layout, stage.statement.source)
                else:
                    read_by_rows.append((leaf.buffer, layout, stage.statement.source))
    copied = {payloads.copied(stage) for stage in program.stages if isinstance(stage, RowStage)}
    for name, layout, source in read_by_rows:
        if not needs.tiled(name) or name in carriers and name in copied and not needs.own_tile(name):
            needs.need(name, layout, source)
    for name, orders in needs.operands.items():
        if name in carriers and program.buffers[name].role == "temp" and needs.tiled(name) and not needs.own_tile(name):
            needs.need(name, in_rows(needs.shape(name)), next(iter(orders.values())))
    return needs, written


def _by_rows(program: Program, needs: _Needs) -> bool:
    """Turn elementwise statements whose operands lie in tiles, beside others that cannot, into ones over rows, which
    read each operand as it lies. Returns whether there was one."""
    found = False
    for number, stage in enumerate(program.stages):
        if not isinstance(stage, ElementwiseStage) or stage.spans:
            continue
        orders = {needs.needed[name][0] for name in needs.group[stage.target] if name in needs.needed}
        leaves = [leaf for leaf in stage.expression.leaves if isinstance(leaf, BufferLeaf)]
        if len(orders) < 2 or needs.own_tile(stage.target) or not any(needs.own_tile(leaf.buffer) for leaf in leaves):
            continue
        shape = needs.shape(stage.target)
        shapes = dict.fromkeys((stage.written, *leaves), shape)
        program.stages[number] = RowStage(stage.written, stage.expression, stage.part, stage.statement, shape, shapes)
        found = True
    return found


def _given(needs: _Needs, trace: Trace, name: str, layout: Layout) -> None:
    inputs = [port.name for port in trace.inputs]
    if name not in inputs:
        raise CompileError(f"layouts: {name} is no operand of {trace.name}; it has {', '.join(inputs)}")
    if not isinstance(layout, Layout) or layout.shape != needs.shape(name):
        shape = layout.shape if isinstance(layout, Layout) else repr(layout)
        raise CompileError(f"layouts: {name} has elements of shape {needs.shape(name)}, not {shape}")
    needs.need(name, layout, needs.buffers[name].source)


def _moved(program: Program) -> dict[str, int]:
    """Buffers that products read from rows other than a tile's first, and by how many rows at most."""
    moved: dict[str, int] = {}
    for stage in program.stages:
        if isinstance(stage, ClusterStage):
            for ops in stage.programs.values():
                for op in ops:
                    for operand in (op.a, op.b) if isinstance(op, Sweep) else ():
                        if operand.shift:
                            moved[operand.buffer] = max(moved.get(operand.buffer, 0), operand.shift)
    return moved


def _image(shape: tuple[int, ...], part: Slice, preq: bool, contract: Contract) -> ConvEntry:
    """The order in which an image can be read as a plane."""
    if preq:
        raise CompileError(
            f"preq: {part.buffer} is a plane, read from every lane on, and MXFP7 in memory holds whole entries of four",
            contract.source,
        )
    return ConvEntry(*shape, part.plane.gm)


def _check_planes(read: list[tuple[str, tuple[Layout, Source]]], elementwise: bool) -> None:
    """Elementwise work would leave something else than zeros around an image that it shares an order with."""
    for name, (layout, source) in read:
        if elementwise and isinstance(layout, ConvEntry):
            raise CompileError(
                f"{name} is a plane here, and an operand of elementwise work too, whose result would lie as {layout.key} like it, "
                "without the zeros around an image: give each use a buffer of its own",
                source,
            )


def _shifted(layout: Entry, most: int, preq: bool, contract: Contract) -> Shifted:
    """The order in which an operand can be read from any row on."""
    name = contract.a.buffer if contract.a.moved else contract.b.buffer
    if layout.blocks != 1:
        raise CompileError(
            f"{name} is read from rows other than a tile's first, which needs nk = 1 (chunks of one block), not "
            f"{layout.blocks}",
            contract.source,
        )
    if preq:
        raise CompileError(
            f"preq: {name} is read from rows other than a tile's first, and MXFP7 in memory holds whole entries",
            contract.source,
        )
    return Shifted(layout.rows, layout.columns, layout.groups, most)


def _rows_of(leaf: BufferLeaf, shape: tuple[int, ...], source: Source) -> Layout:
    """The order in which a statement over rows reads a buffer of that shape, or writes it."""
    if leaf.view is None or leaf.view.width == shape[-1]:
        return in_rows(shape)
    if leaf.view.width % HALVES:
        raise CompileError(
            f"{leaf.text()}: rows begin on words of memory, {HALVES} elements each, and {leaf.view.width} elements are no "
            "whole words",
            source,
        )
    return Flat(shape)


def _need_tile(needs: _Needs, name: str, store: Store) -> None:
    gm, gn = (axis.per for axis in store.target.axes)
    needs.need(name, Tile(*needs.shape(name), gm, gn), store.source)


def _check_padding(name: str, layout: Layout, written: Mapping[str, Source]) -> None:
    """Elementwise work also writes padding, which in an operand would join in its blocks' scales and products."""
    if isinstance(layout, Shifted) and name in written:
        raise CompileError(
            f"{name} is read by a product from rows other than a tile's first, so that rows around it must stay zero, "
            "and this statement computes it: such an operand is an input",
            written[name],
        )
    if isinstance(layout, Entry) and name in written and layout.columns % (KBLOCK * layout.blocks):
        raise CompileError(
            f"{name} is an operand of {layout.columns} columns in chunks of {KBLOCK * layout.blocks}, whose padding "
            "must stay zero, and this statement computes it; choose nk so that the chunks divide the columns",
            written[name],
        )
