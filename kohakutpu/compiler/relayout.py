"""Copies of a temporary in another byte order, made by the vector cores (docs/planning.md, "Relayouts").

A result lies in memory as tiles of 4x4 sub-tiles or row by row; an operand as entries of 4 lanes by 32 K. Row by row the
32-byte words are the same, and a copy is a fill and a drain that walk differently. From tiles, the four words of four
sub-tiles side by side become four words of a lane each: 4x4 groups of 4 elements are transposed, by rotations
inside words and moves under three predicates. No number changes but the sign of a zero, which a product cannot see.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kohakutpu.isa import vector as isa
from kohakutpu.isa.vector import Mask, Opcode, Source
from kohakutpu.lang.source import Source as Line
from kohakutpu.lang.trace import Buffer

from .artifact import BufferImage
from .core import CoreState, CoreWriter, Image
from .layouts import ENTRY, HALVES, KBLOCK, LANES, WORD, Entry, Flat, Layout, Rows, Tile
from .programs import FLIT_CYCLES, RUN_CYCLES
from .refusals import CompileError
from .stages import (
    ClusterStage, Drain, ElementwiseStage, EpilogueStage, Key, Operand, Program, RelayoutStage, RowStage, Sweep,
)  # fmt: skip

QUAD = 4  # sub-tiles that are transposed together
PASS = 8 * QUAD  # words of one pass: a register holds one word of each of 8 quads
ENTRY_WORDS = ENTRY // WORD
AD_SOURCE, AD_TARGET, AD_WINDOW, AD_REPEAT = range(4)
ONE, ZERO = 1, 0  # K registers
# Estimated cycles and words, only to choose among copies that do the same.
PROLOGUE_WORDS, PASS_WORDS, PASS_CYCLES, FETCH_CYCLES = 28, 36, 300, 40
STRIDES = 1 << 17  # a descriptor's stride is below this


@dataclass(frozen=True)
class Need:
    """A buffer that products read in an order it does not have: the entry layout, and the line that needs it."""

    buffer: str
    layout: Entry
    source: Line

    @property
    def name(self) -> str:
        return f"{self.buffer}_{self.layout.groups}x{getattr(self.layout, 'blocks', 1)}"


def insert(program: Program, needs: Sequence[Need]) -> None:
    """Add a stage in front of every product of a buffer that lies in another order, and let the product read the copy.

    A copy is made again where the buffer was written since.
    """
    wanted: dict[tuple[str, int, int], Need] = {}
    for need in needs:
        if need.name in program.buffers:
            raise CompileError(
                f"a copy of {need.buffer} in another order would be named {need.name}, which exists", need.source
            )
        original = program.buffers[need.buffer]
        program.buffers[need.name] = Buffer(
            need.name, "temp", original.shape, original.batched, original.whole, need.source
        )
        wanted[need.buffer, need.layout.groups, getattr(need.layout, 'blocks', 1)] = need
    stages: list = []
    fresh: set[str] = set()  # copies that hold what their buffer holds
    for stage in program.stages:
        if isinstance(stage, ClusterStage):
            for key, ops in stage.programs.items():
                stage.programs[key] = [_redirected(op, wanted) for op in ops]
            read = {operand.buffer for ops in stage.programs.values() for op in ops if isinstance(op, Sweep)
                    for operand in (op.a, op.b)}  # fmt: skip
            for need in wanted.values():
                if need.name in read and need.name not in fresh:
                    stages.append(RelayoutStage(need.buffer, need.name, need.source))
                    fresh.add(need.name)
        stages.append(stage)
        written = _written(stage)
        fresh -= {need.name for need in wanted.values() if need.buffer in written}
    program.stages[:] = stages


def _written(stage) -> set[str]:
    if isinstance(stage, ClusterStage):
        return {op.buffer for ops in stage.programs.values() for op in ops if isinstance(op, Drain)}
    if isinstance(stage, EpilogueStage):
        return {stage.statement.target.buffer}
    return {stage.target} if isinstance(stage, (ElementwiseStage, RowStage)) else set()


def _redirected(op, wanted: Mapping[tuple[str, int, int], Need]):
    if not isinstance(op, Sweep):
        return op

    def copy_of(operand: Operand, groups: int) -> Operand:
        need = wanted.get((operand.buffer, groups, op.nk))
        return operand if need is None else replace(operand, buffer=need.name)

    return replace(op, a=copy_of(op.a, op.gm), b=copy_of(op.b, op.gn))


@dataclass(frozen=True)
class Shape:
    """How a copy is cut: every run moves `blocks` K blocks of `groups` row groups, 8 words each; on so many cores.

    `clean`: no run writes a row group past the last row, so that the rows that pad the operand stay zero.
    """

    groups: int
    blocks: int
    transposes: bool
    cores: int = 1
    clean: bool = False

    @property
    def words(self) -> int:
        return self.groups * self.blocks * ENTRY_WORDS

    @property
    def passes(self) -> int:
        return math.ceil(self.words / PASS)


def shape(
    source: Layout, target: Entry, copies: int, dirty: str | None, name: str, line: Line | None, room: int, cores: int,
    clean: bool = False,
) -> Shape:  # fmt: skip
    """How a buffer of `copies` batch elements is copied from `source` to `target`: in the way that takes least time.

    `dirty` says who left something in the padding of its columns, None where that is zero; `room` is the L1 words of a
    program, `cores` how many there are; `clean` asks for padding rows that stay zero, where `keeps_zeros` says so.

    Raises CompileError, with what would do, where words of one order do not make words of the other.
    """
    if not isinstance(target, Entry):
        raise CompileError(f"{name} would have to be copied into the order {target.key}: such an operand is an input", line)
    if target.columns % KBLOCK and dirty:
        raise CompileError(
            f"{name} has {target.columns} columns, and {dirty} the {KBLOCK}-column blocks' padding, "
            f"which must be zero in an operand; make the columns a multiple of {KBLOCK}, or let the host do the copy "
            "(relayout='host')",
            line,
        )
    groups, blocks, most = target.groups, target.blocks, min(isa.WALK_LIMIT, room)
    if isinstance(source, (Flat, Rows)):
        if target.columns % KBLOCK:
            raise CompileError(
                f"{name} lies row by row with {target.columns} columns: an operand is copied in blocks of {KBLOCK}; "
                f"make the columns a multiple of {KBLOCK}, or let the host do it (relayout='host')",
                line,
            )
        if 2 * LANES * target.columns >= STRIDES:
            raise CompileError(
                f"{name} has rows of {target.columns} columns; vector cores copy those of at most {(STRIDES - 1) // (2 * LANES)} row by row "
                "(a descriptor's stride); take fewer columns at a time, or let the host do it (relayout='host')",
                line,
            )
    elif not isinstance(source, Tile):
        raise CompileError(f"{name} lies as {source.key}; it is copied from tiles or rows only", line)
    elif source.gn % 8:
        raise CompileError(
            f"{name} is written in tiles of gn = {source.gn} and read as an operand: tiles whose gn is a multiple of 8 "
            f"({KBLOCK} columns) can be copied into its order by the vector cores; relayout='host' lets the host do it",
            line,
        )
    else:
        most = min(most, (room - 1) // 2 // PASS * PASS)
        groups, blocks = math.gcd(source.gm, groups), math.gcd(source.gn // 8, blocks)
    clean = clean and bool(padding_rows(target))
    if clean:
        groups = math.gcd(groups, math.ceil(target.rows / LANES))
    cuts = (
        Shape(g, b, isinstance(source, Tile), used, clean)
        for g in _divisors(groups) for b in _divisors(blocks) if g * b * ENTRY_WORDS <= most
        for used in range(1, cores + 1)
    )  # fmt: skip
    return min(cuts, key=lambda cut: _cycles(source, target, copies, cut))


def _cycles(source: Layout, target: Entry, copies: int, cut: Shape) -> float:
    """Estimated cycles of a copy: what has to be sent, then the runs of one core."""
    rows = math.ceil(math.ceil(target.rows / LANES) / cut.groups)
    count = copies * rows * math.ceil(_blocks(source, target) / cut.blocks)
    words = PROLOGUE_WORDS + PASS_WORDS * cut.passes if cut.transposes else 4
    work = PASS_CYCLES * cut.passes if cut.transposes else 0
    run = RUN_CYCLES + FETCH_CYCLES + 2.2 * cut.words + work
    return FLIT_CYCLES * (cut.cores * (words + 10) + 3 * count) + math.ceil(count / cut.cores) * run


def _divisors(value: int) -> list[int]:
    return [d for d in range(1, value + 1) if value % d == 0]


def covers(source: Layout, target: Entry, cut: Shape) -> bool:
    """Whether a copy writes all of the target; what it does not write must be zero beforehand."""
    columns = target.chunks * target.blocks
    return not cut.clean and _blocks(source, target) == columns


def padding_rows(target: Entry) -> int:
    """Rows of an operand's image past its last row."""
    return target.tiles * target.groups * LANES - target.rows if isinstance(target, Entry) else 0


def keeps_zeros(source: Layout, target: Entry, dirty: bool) -> bool:
    """Whether a `clean` copy leaves zeros in the padding rows: the last row group, if it is not full, is copied with
    what the source has there. `dirty`: its rows past the last one are not zero."""
    return not padding_rows(target) or target.rows % LANES == 0 or (isinstance(source, Tile) and not dirty)


def _blocks(source: Layout, target: Entry) -> int:
    """K blocks that the source has."""
    wanted = target.chunks * target.blocks
    if isinstance(source, Tile):
        return min(source.grid[1] * source.gn // 8, wanted)
    return min(target.columns // KBLOCK, wanted)


def read_bytes(source: BufferImage, target: Entry, cut: Shape) -> int:
    """How far into the source is read, in bytes, by all copies: the row groups of whole runs, past the last row."""
    own = source.layout.bytes if isinstance(source.layout, Tile) else 2 * target.columns * _ceil(target.rows, LANES * cut.groups)
    return own + (source.copies - 1) * source.stride


def _ceil(value: int, grain: int) -> int:
    return -(-value // grain) * grain


def runs(source: Layout, target: Entry, cut: Shape) -> Iterator[tuple[int, int]]:
    """(byte offset in the source, byte offset in the target) of every run of one copy."""
    rows = math.ceil(target.rows / LANES)
    for group in range(0, _ceil(rows, cut.groups), cut.groups):
        tile, inside = divmod(group, target.groups)
        for block in range(0, _blocks(source, target), cut.blocks):
            chunk, within = divmod(block, target.blocks)
            to = target.offset(tile, chunk) + (inside * target.blocks + within) * ENTRY
            if isinstance(source, Tile):
                i, g = divmod(group, source.gm)
                j, h = divmod(8 * block, source.gn)
                yield source.offset(i, j) + (g * source.gn + h) * WORD, to
            else:
                yield 2 * (group * LANES * target.columns + block * KBLOCK), to


def image_words(cut: Shape) -> tuple[list[int], int]:
    """The program's words, and where a run that needs no preparation enters it."""
    image = Image()
    if not cut.transposes:
        image.put(Opcode.VFILL, ad=AD_SOURCE, l1=0)
        image.put(Opcode.VBAR)
        image.put(Opcode.VDRAIN, ad=AD_TARGET, l1=0)
        image.put(Opcode.VHALT)
        return image.words, 0
    spare = 2 * cut.passes * PASS
    # S0: all lanes; S1: 4 of them; S2, S3, S4: rotations by 4, 8, 12.
    for register, value in enumerate((isa.VL_MAX, 4, 4, 8, 12)):
        image.set_scalar(register, value)
    image.put(Opcode.VSETMODE, mode=isa.Mode.FLAT)
    # A word of ones in its first four lanes, repeated in every chunk; rotated, it sets P1, P2 and P3.
    image.put(Opcode.VSETVL, va=0)
    image.put(Opcode.VMOV, vd=0, va=ZERO, sa=Source.K)
    image.put(Opcode.VSETVL, va=1)
    image.put(Opcode.VMOV, vd=0, va=ONE, sa=Source.K)
    image.put(Opcode.VST, ad=AD_WINDOW, vd=0, offset=spare)
    image.put(Opcode.VSETVL, va=0)
    image.put(Opcode.VLD, ad=AD_REPEAT, vd=0, offset=spare)
    for place in range(1, QUAD):
        image.put(Opcode.VSHUF, vd=place, va=0, vb=_rotation(-place))
        image.put(Opcode.VCMPGT, vd=place, va=place, vb=ZERO, sb=Source.K, pr=place)
    again = len(image)
    image.put(Opcode.VFILL, ad=AD_SOURCE, l1=0)
    image.put(Opcode.VBAR)
    out = cut.passes * PASS
    temporary = 0
    for first in range(0, out, PASS):
        for place in range(QUAD):
            image.put(Opcode.VLD, ad=AD_WINDOW, vd=place, offset=first + place)
        for place in range(QUAD):  # of the quad's words, then lane by lane of the results
            for lane in range(QUAD):
                mask = {"pr": place, "pm": Mask.WHERE} if place else {}
                if lane == place:
                    image.put(Opcode.VMOV, vd=QUAD + lane, va=place, **mask)
                elif place == 0:
                    image.put(Opcode.VSHUF, vd=QUAD + lane, va=0, vb=_rotation(lane))
                else:
                    spare_register = 2 * QUAD + temporary % (2 * QUAD)
                    temporary += 1
                    image.put(Opcode.VSHUF, vd=spare_register, va=place, vb=_rotation(lane - place))
                    image.put(Opcode.VMOV, vd=QUAD + lane, va=spare_register, **mask)
        for lane in range(QUAD):
            image.put(Opcode.VST, ad=AD_WINDOW, vd=QUAD + lane, offset=out + first + lane)
    image.put(Opcode.VDRAIN, ad=AD_TARGET, l1=out)
    image.put(Opcode.VHALT)
    return image.words, again


def _rotation(places: int) -> int:
    """The scalar register that rotates by `places` groups of 4, not 0."""
    return 1 + places % QUAD


def lower(
    cut: Shape, source: BufferImage, target: BufferImage, nodes: Sequence[int], states: Mapping[int, CoreState]
) -> tuple[dict[Key, list[int]], dict[Key, int], int]:
    """(payloads by instance, node by instance, words written): one instance a core, the runs dealt evenly."""
    layout: Entry = target.layout
    moves = [
        (source.address + copy * source.stride + a, target.address + copy * target.stride + b)
        for copy in range(source.copies) for a, b in runs(source.layout, layout, cut)
    ]  # fmt: skip
    words, again = image_words(cut)
    streams, places = {}, {}
    for number, node in enumerate(nodes[: min(cut.cores, len(moves))]):
        mine = moves[number :: min(cut.cores, len(moves))]
        core = CoreWriter(states[node], reuse=True)
        core.image(words)
        if cut.transposes:
            core.base(AD_WINDOW, 0)
            core.line(AD_WINDOW, QUAD, isa.VL_MAX // HALVES)
            core.base(AD_REPEAT, 0)
            core.line(AD_REPEAT, 0, isa.VL_MAX // HALVES)
        for ad, walk in ((AD_SOURCE, _source_walk(source.layout, layout, cut)), (AD_TARGET, _target_walk(layout, cut))):
            for number_, (stride, bound) in enumerate(walk):
                core.dim(ad, number_, stride, bound)
        for turn, (a, b) in enumerate(mine):
            core.base(AD_SOURCE, a)
            core.base(AD_TARGET, b)
            core.run(again if turn else 0)
        for ad in (AD_SOURCE, AD_TARGET):
            core.restore(ad)
        streams[number,], places[number,] = core.payloads, node
    return streams, places, len(moves) * cut.words


def _source_walk(source: Layout, target: Entry, cut: Shape) -> list[tuple[int, int]]:
    if isinstance(source, Tile):
        return [(WORD, ENTRY_WORDS * cut.blocks), (source.gn * WORD, cut.groups), (0, 1), (0, 1)]
    row = 2 * target.columns
    return [(WORD, 2), (row, LANES), (2 * KBLOCK, cut.blocks), (LANES * row, cut.groups)]


def _target_walk(target: Entry, cut: Shape) -> list[tuple[int, int]]:
    group = (target.blocks * ENTRY, cut.groups)
    if not cut.transposes:
        return [(WORD, ENTRY_WORDS * cut.blocks), group, (0, 1), (0, 1)]
    return [(2 * WORD, LANES), (WORD, 2), (ENTRY, cut.blocks), group]
