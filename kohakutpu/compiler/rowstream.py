"""Rows that do not fit L1: a program that goes along a row in segments, once for each reduction that waits for another.

A segment is some pieces of 128 elements. A pass fills what it needs of a segment, adds to its reductions, and the last
one stores; each segment is a run. What one run leaves for the next stays in the core's registers, which outlive runs.
Pieces are combined in the order of the row, so the bits are those of a row that fits. Rows of tiles go in fours, as they
lie: a segment is then some sub-tiles side by side, of whole tiles or of one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kohakutpu.isa import vector as isa
from kohakutpu.isa.vector import Mode, Opcode, Source
from kohakutpu.lang.trace import Reduce, RowOp

from .artifact import BufferImage
from .core import CoreState, CoreWriter, Image
from .elementwise import FILL_CYCLES
from .expressions import K_REGISTERS, REGISTERS, Constants
from .layouts import HALVES, WORD
from .programs import CHUNK, FLIT_CYCLES, RUN_CYCLES
from .rowcode import NoRegister, Reg, Word, assign_sections, emit, estimated_cycles, in_step, one_by_one, woven
from .rowplan import STRIDES, Leaf, RowPlan, RowSpan, address_of, begun
from .rowwords import (
    AD_QUAD, COMBINE, PIECE, QUAD, RESULT, Piece, Place, RowWords, Storage, Stream, group_predicates, pieces_of, prologue,
)  # fmt: skip

CANDIDATES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # pieces of a segment


@dataclass(frozen=True)
class Segment:
    """Part of a row: its first L1 word in the row, and its pieces, whose words count from there."""

    word: int
    pieces: tuple[Piece, ...]

    @property
    def words(self) -> int:
        return sum(-(-piece.elements // HALVES) for piece in self.pieces)


def segments_of(columns: int, most: int) -> list[Segment]:
    """A row in segments of `most` pieces, the last one of what is left."""
    pieces = pieces_of(columns)
    out = []
    for first in range(0, len(pieces), most):
        start = pieces[first].word
        out.append(Segment(start, tuple(replace(p, word=p.word - start) for p in pieces[first : first + most])))
    return out


@dataclass(frozen=True)
class Section:
    """The code of one run: where it begins, the leaves (by node) it fills, whether it drains, about how long it takes."""

    entry: int
    fills: tuple[int, ...]
    drains: bool
    cycles: int


@dataclass(frozen=True)
class Streamed:
    """An image of sections, and the order in which a row's runs take them, or four rows' at once: (section, segment)."""

    words: list[int]
    runs: list[tuple[Section, Segment]]
    first: Mapping[int, int]  # L1 word by node
    rows: int
    total: float = 0.0  # cycles of the statement, about

    @property
    def cycles(self) -> int:
        """Of a row, or four, about."""
        return sum(
            RUN_CYCLES + FILL_CYCLES + section.cycles + self.rows * segment.words * (len(section.fills) + section.drains)
            for section, segment in self.runs
        )


def choose(plan: RowPlan, known: Mapping[str, int], arrays: bool, room: int, rows: int, cores: int) -> Streamed | str:
    """The program of least estimated time for `rows` rows on the busiest of `cores` cores, or why there is none."""
    choices: list[tuple[float, Streamed]] = []
    if plan.tiled and (refused := _unquad(plan)):
        return refused
    refused = ""
    for pieces in CANDIDATES:
        if not _aligned(plan, pieces):
            refused = refused or f"is in tiles whose sub-tiles are not side by side for {PIECE} elements at a time; give them one gn"
            continue
        made = _program(plan, pieces, known, arrays, room)
        if isinstance(made, str):
            refused = refused or made
            break
        turns = math.ceil(rows / made.rows)
        runs = turns * cores * sum(len(section.fills) + 2 for section, _ in made.runs)
        # The image is staged, then sent; what moves the runs along is sent while they work.
        begin = 2 * FLIT_CYCLES * cores * len(made.words)
        choices.append((begin + max(FLIT_CYCLES * runs, turns * made.cycles), made))
    if not choices:
        return refused
    cycles, made = min(choices, key=lambda choice: choice[0])
    return replace(made, total=cycles)


def _unquad(plan: RowPlan) -> str | None:
    """Why four rows of tiles cannot go along with the rows of another operand, if they cannot."""
    for leaf in plan.leaves:
        apart = leaf.step * leaf.words * WORD
        if not (leaf.tile or _same(leaf)) and (leaf.group > 1 or (leaf.period or QUAD) % QUAD):
            return f"is in tiles, of which {QUAD} rows at a time are read, and {leaf.name} has no {QUAD} rows side by side for them"
        if not (leaf.tile or _same(leaf)) and apart >= STRIDES:
            return f"is in tiles, and rows of {leaf.name} are {apart} bytes apart, above {STRIDES - 1}"
    apart = plan.result_words * WORD
    return f"is in tiles, and rows of the result are {apart} bytes apart, above {STRIDES - 1}" if apart >= STRIDES else None


def _aligned(plan: RowPlan, pieces: int) -> bool:
    """Whether all operands in tiles have a segment at one place behind where they are filled: they share a window."""
    segments = segments_of(plan.stage.shape[-1], pieces)
    tiled = [leaf for leaf in plan.leaves if leaf.tile]
    return all(len({_subtiles(leaf, segment)[2] for leaf in tiled}) <= 1 for segment in segments)


def _subtiles(leaf: Leaf, segment: Segment) -> tuple[int, int, int]:
    """The sub-tiles that are filled for a segment of a leaf in tiles: the first one, how many, and how many of these come
    before the segment. Those of one tile alone, or whole tiles."""
    gn = leaf.tile.gn
    first = QUAD * segment.word
    end = min(first + QUAD * segment.words, leaf.quad)
    tile, inside = divmod(first, gn)
    if inside + end - first <= gn:
        return first, end - first, 0
    return tile * gn, (math.ceil(end / gn) - tile) * gn, inside


def _same(leaf: Leaf) -> bool:
    """Whether four neighbouring rows, from a multiple of four on, read one row of it."""
    return leaf.repeated or leaf.group % QUAD == 0


@dataclass(frozen=True)
class _Way:
    """How sections are made, from fast to small: pieces in `step`; `sparing` as in `RowWords.rows`; reductions `apart`, each in
    a pass of its own; `tails`, which begin and close a pass in runs of their own."""

    step: int = 1
    sparing: bool = False
    apart: bool = False
    tails: bool = False


WAYS = [_Way(step) for step in (4, 3, 2, 1)]
QUAD_WAYS = [_Way(), _Way(sparing=True), _Way(sparing=True, apart=True)]  # four rows in step are enough


@dataclass
class _Pass:
    """Going over the row once: what is reduced, what is computed for that, whether results are stored; the level (`RowWords`) of
    which everything is reduced then."""

    wanted: list[int]
    needed: list[int]
    stores: bool
    level: int | None = None


def _passes(code: RowWords, single: bool, apart: bool) -> list[_Pass]:
    """`single`: the result is one word a row."""
    last = len(code.nodes) - 1
    passes = []
    for level in range(code.level[last]):
        wanted = [p for p, n in enumerate(code.nodes) if isinstance(n, Reduce) and code.level[p] == level + 1]
        for some in [[position] for position in wanted] if apart else [wanted]:
            roots = [operand for position in some for operand in code.nodes[position].operands]
            passes.append(_Pass(some, sorted(code.closure(roots)), False))
        passes[-1].level = level + 1
    if code.along[last] or not single or not passes:
        passes.append(_Pass([], sorted(code.closure([last])) if code.along[last] else [], True))
    return passes


@dataclass
class _Rows:
    """The words of one row's sections in the making, or of four rows'."""

    code: RowWords
    storage: Storage
    way: _Way
    rows: int
    passes: list[_Pass] = field(init=False)
    numbers: list[Stream] = field(init=False)  # what each row is one number of, from section to section
    gathered: list[dict[int, Reg]] = field(init=False)
    begun: Reg | None = None  # with tails: not zero once a piece was combined

    def __post_init__(self):
        whole, way = self.code.pieces[0], self.way
        self.passes = _passes(self.code, self.storage.single(RESULT), way.apart)
        self.numbers = [Stream(self.code, self.storage, row, whole, {}, sparing=way.sparing) for row in range(self.rows)]
        self.gathered = [{} for _ in self.numbers]

    def section(self, number: int, segment: Segment, opening: bool, closing: bool) -> list[Word]:
        """Of pass `number` over a segment; `opening` and `closing` are the first and the last one of a row."""
        passed = self.passes[number] if number >= 0 else _Pass([], [], False, 0)
        out: list[Word] = []
        if opening:
            self.gathered = [{position: Reg("V") for position in passed.wanted} for _ in self.numbers]
            if number == 0:
                self._numbers(0)
        started = self.way.tails or not opening
        out += self._taken()
        # Rows lie side by side as a drain takes them, so the last segment's are closer together.
        strides = {node: min(stride, segment.words) for node, stride in self.storage.stride.items()}
        storage = replace(self.storage, stride=strides)
        positions = self.code.order({*passed.needed, *passed.wanted}, self.storage, self.way.sparing)
        for group in self._groups(segment.pieces):
            streams = []
            common: dict | None = {} if self.rows > 1 else None
            for piece in group:
                for held in self.numbers:
                    stream = Stream(self.code, storage, held.row, piece, dict(held.where), set(passed.wanted), common,
                                    sparing=self.way.sparing)  # fmt: skip
                    for position in positions:
                        stream.node(position)
                    if passed.stores:
                        stream.store()
                    streams.append(stream)
            if self.way.sparing:
                self._gather(passed, streams, started, streams)
            # The results of one group are combined while the next one is reduced; four rows have no registers for that.
            words = self._joined([stream.words for stream in streams])
            out += [*self._taken(), *words] if self.rows > 1 else woven(words, self._taken())
            if not self.way.sparing:
                self._gather(passed, streams, started, self.numbers)
            if self.way.tails and passed.wanted:
                out += [*self._taken(), self._mark(K_REGISTERS[0x3F8000])]
            started = True
        if closing:
            out += self._taken()
            for stream, found in zip(self.numbers, self.gathered, strict=True):
                stream.hold(dict(found))
            if passed.level is not None:
                self._numbers(passed.level)
            if self.way.tails and number + 1 < len(self.passes):
                out += [*self._taken(), *self._begin(self.passes[number + 1])]
        return out + self._taken()

    def _numbers(self, level: int) -> None:
        for stream in self.numbers:
            stream.numbers(level)

    def _begin(self, passed: _Pass) -> list[Word]:
        """Before anything is gathered: zeros, and the mark that says so."""
        self.gathered = [{position: Reg("V") for position in passed.wanted} for _ in self.numbers]
        if not passed.wanted:
            return []
        self.begun = Reg("V")
        zero = {"sa": Source.K, "va": K_REGISTERS[0]}
        regs = [held for row in self.gathered for held in row.values()]
        return [*(self.numbers[0].word(Opcode.VMOV, [], [("vd", held)], **zero) for held in regs), self._mark(zero["va"])]

    def _mark(self, register: int) -> Word:
        return self.numbers[0].word(Opcode.VMOV, [], [("vd", self.begun)], sa=Source.K, va=register)

    def _gather(self, passed: _Pass, streams: Sequence[Stream], started: bool, into: Sequence[Stream]) -> None:
        """Combine what pieces were reduced to, by words of `into`: a stream for each of `streams`, or for each row."""
        for position in passed.wanted:
            for place, stream in enumerate(streams):
                row, later = place % self.rows, started or place >= self.rows
                self._combine(into[place % len(into)], row, position, stream.where[position], later)

    def finish(self) -> list[Word]:
        """Store a result that is one word a row."""
        for stream in self.numbers:
            stream.store()
        return self._taken()

    def _groups(self, pieces: Sequence[Piece]) -> Iterator[Sequence[Piece]]:
        full = [piece for piece in pieces if piece.elements == PIECE]
        for first in range(0, len(full), self.way.step):
            yield full[first : first + self.way.step]
        if len(full) < len(pieces):
            yield pieces[-1:]

    def _joined(self, streams: list) -> list[Word]:
        return one_by_one(streams) if self.way.sparing else in_step(streams)

    def _taken(self) -> list[Word]:
        words = self._joined([stream.words for stream in self.numbers])
        for stream in self.numbers:
            stream.words = []
        return words

    def _combine(self, stream: Stream, row: int, position: int, scalar: Place, started: bool) -> None:
        """Add one more piece's result to a row's, in order."""
        held, op = self.gathered[row][position], self.code.nodes[position].op
        if not started:
            stream.put(Opcode.VBCAST, [("va", scalar)], [("vd", held)], sa=Source.S)
            return
        opcode, _ = COMBINE[op]
        fields, uses = stream.fields(opcode, [held, scalar])
        stream.put(opcode, uses, [("vd", held)], **fields)
        # Zero and a sum are the sum, bit for bit; of the others the first piece is taken as it is.
        if self.way.tails and op is not RowOp.SUM:
            fields, uses = stream.fields(Opcode.VSEL, [held, scalar, self.begun])
            stream.put(Opcode.VSEL, uses, [("vd", held)], **fields)


def _storage(plan: RowPlan, code: RowWords, segments: Sequence[Segment], rows: int) -> tuple[Storage, int]:
    """L1 for segments of so many rows: operands, one word for those of one number a row, the result; and its words in
    all."""
    words = max(segment.words for segment in segments)
    singles = [leaf.node for leaf in plan.leaves if not code.along[leaf.node]]
    first: dict[int, int] = {}
    stride: dict[int, int] = {}
    quads: dict[int, int] = {}
    end = 0
    alike = None
    for leaf in plan.leaves:
        row = 1 if leaf.node in singles else words
        first[leaf.node], stride[leaf.node] = end, 0 if _same(leaf) else row
        if leaf.tile:
            quads[leaf.node] = max(_subtiles(leaf, segment)[1] for segment in segments)
            end += quads[leaf.node]
            continue
        if row == words and alike is None and (rows == 1 or not _same(leaf)):
            alike = end
        end += row * (1 if _same(leaf) else rows)
    if plan.target_columns == 1:
        singles.append(RESULT)
    stride[RESULT] = 1 if RESULT in singles else words
    if alike is not None and RESULT not in singles:
        first[RESULT] = alike
    else:
        first[RESULT] = end
        end += rows * stride[RESULT]
    return Storage(first, stride, frozenset(singles), quads), end + bool(quads)


def _program(plan: RowPlan, pieces: int, known, arrays: bool, room: int, tails: bool = False) -> Streamed | str:
    """The sections for segments of `pieces` pieces, or why there are none; with `tails` where they take too many words
    otherwise."""
    stage = plan.stage
    source = stage.statement.source
    if CHUNK * pieces > isa.WALK_LIMIT:
        return f"is walked in {CHUNK * pieces} words at a time, above {isa.WALK_LIMIT}"
    segments = segments_of(stage.shape[-1], pieces)
    rows = QUAD if plan.tiled else 1
    longest = rows * max(segment.words for segment in segments)
    longest = max([longest, *(_subtiles(leaf, segment)[1] for leaf in plan.leaves if leaf.tile for segment in segments)])
    if longest > isa.WALK_LIMIT:
        return f"is walked in {longest} words at a time, above {isa.WALK_LIMIT}"
    for way in QUAD_WAYS if plan.tiled else WAYS:
        constants = Constants(source, known, {}, {}, arrays, stage.expression.leaves)
        code = RowWords(stage.expression, stage.shape[-1], plan.single_leaves, plan.repeated_leaves, constants, source)
        storage, footprint = _storage(plan, code, segments, rows)
        if footprint > room:
            return f"takes {footprint} words of L1 for {pieces} pieces of {PIECE} elements, above {room}"
        lengths = code.lengths()
        streams = _Rows(code, storage, replace(way, step=min(way.step, pieces), tails=tails), rows)
        order = list(_order(streams.passes, segments, tails))
        made = _sections(order, streams)
        scalars = [s for s in range(1, REGISTERS) if s not in constants.scalars.values()]
        try:
            settled = dict(zip(made, assign_sections([words for words, _, _ in made.values()], scalars), strict=True))
            break
        except NoRegister:
            continue
    else:
        return f"keeps more values than {REGISTERS} vector and {len(scalars)} scalar registers; split it over a temp"
    lanes = [constants.scalar(count) for count in (4, 8, 12)] if plan.tiled else []
    image = Image()
    prologue(image, code, lengths)
    if plan.tiled:
        group_predicates(image, lanes, footprint - 1)
    descriptors = {leaf.node: plan.first_descriptor + place for place, leaf in enumerate(plan.leaves)}
    for leaf in plan.leaves:
        if leaf.repeated and storage.single(leaf.node):
            image.put(Opcode.VFILL, ad=descriptors[leaf.node], l1=storage.first[leaf.node])
    sections = {}
    for key, (words, needed, drains) in made.items():
        entry = len(image)
        image.put(Opcode.VSETVL, va=0)
        image.put(Opcode.VSETMODE, mode=Mode.FLAT)
        once = [leaf.node for leaf in plan.leaves if storage.single(leaf.node) and not leaf.repeated] if not sections else []
        fills = (*once, *(leaf.node for leaf in plan.leaves if leaf.node in needed and not storage.single(leaf.node)))
        for node in fills:
            image.put(Opcode.VFILL, ad=descriptors[node], l1=storage.first[node])
        if fills or not sections:
            image.put(Opcode.VBAR)
        emit(image, settled[key], lengths, code.pieces[0].length)
        if drains:
            image.put(Opcode.VDRAIN, ad=plan.descriptors - 1, l1=storage.first[RESULT])
        image.put(Opcode.VHALT)
        sections[key] = Section(entry, fills, drains, estimated_cycles(words))
    if len(image) > isa.IMEM_WORDS and not tails:
        return _program(plan, pieces, known, arrays, room, True)
    if len(image) > isa.IMEM_WORDS:
        return f"takes {len(image)} words of image of {isa.IMEM_WORDS}; split the statement over a temp"
    runs = [(sections[key], segment) for key, segment in order]
    return Streamed(image.words, runs, storage.first, rows)


_Key = tuple  # (pass, pieces, opening, closing)


def _order(passes: Sequence[_Pass], segments: Sequence[Segment], tails: bool) -> Iterator[tuple[_Key, Segment]]:
    """The sections of a row in the order they are run."""
    tail = Segment(0, ())
    if tails:
        yield (-1, (), False, True), tail
    for number, passed in enumerate(passes):
        reduces = bool(passed.wanted)
        for place, segment in enumerate(segments):
            opening = place == 0 and (reduces or number == 0) and not tails
            yield (number, segment.pieces, opening, reduces and not tails and place == len(segments) - 1), segment
        if tails and reduces:
            yield (number, (), False, True), tail


def _sections(order: Sequence[tuple[_Key, Segment]], rows: _Rows) -> dict[_Key, tuple[list[Word], list[int], bool]]:
    """Words, nodes needed and whether it drains, of every section, in the order in which they first run."""
    made: dict[_Key, tuple[list[Word], list[int], bool]] = {}
    for key, segment in order:
        number, _, opening, closing = key
        if key in made:
            continue
        words = rows.section(number, segment, opening, closing)
        finishes = closing and number == len(rows.passes) - 1
        if finishes:
            words += rows.finish()
        passed = rows.passes[max(number, 0)]
        made[key] = words, passed.needed if segment.pieces else [], passed.stores and bool(segment.pieces) or finishes
    return made


def instance(plan: RowPlan, span: RowSpan, images: Mapping[str, BufferImage], state: CoreState, program: Streamed) -> list[int]:
    """The payloads of an instance's rows."""
    stage = plan.stage
    core = begun(state, program.words, plan.tiled)
    ad_drain = plan.descriptors - 1
    leaves = list(enumerate(plan.leaves, plan.first_descriptor))
    for ad, leaf in leaves:
        if leaf.repeated and leaf.node in plan.single_leaves:
            core.line(ad, WORD, 1)
            core.base(ad, address_of(images[leaf.name], span.copy) + leaf.row(0) * WORD)
    for row in range(span.first, span.first + span.rows, program.rows):
        count = min(program.rows, span.first + span.rows - row)
        for turn, (section, segment) in enumerate(program.runs):
            for ad, leaf in leaves:
                if leaf.node not in section.fills:
                    continue
                at = address_of(images[leaf.name], span.copy)
                if leaf.tile:
                    _walk_tiles(core, ad, at, leaf, row, segment)
                else:
                    same = _same(leaf) or count == 1
                    _walk(core, ad, at + leaf.row(row) * leaf.words * WORD, leaf.node in plan.single_leaves, segment,
                          leaf.step * leaf.words * WORD, 1 if same else count)  # fmt: skip
            if section.drains:
                at = address_of(images[stage.target], span.copy) + (plan.target_row + row) * plan.result_words * WORD
                _walk(core, ad_drain, at, plan.target_columns == 1, segment, plan.result_words * WORD, count)
            core.run(0 if turn == 0 and row == span.first else section.entry)
    for ad in range(plan.first_descriptor, ad_drain + 1):
        core.restore(ad)
    return core.payloads


def _walk(core: CoreWriter, ad: int, at: int, single: bool, segment: Segment, stride: int, rows: int) -> None:
    """A segment of `rows` rows that are `stride` bytes apart, the first one at `at`; or one word of each."""
    words = 1 if single else segment.words
    if rows == 1:
        core.line(ad, WORD, words)
    else:
        core.dim(ad, 0, WORD, words)
        core.dim(ad, 1, stride, rows)
    core.base(ad, at if single else at + segment.word * WORD)


def _walk_tiles(core: CoreWriter, ad: int, at: int, leaf: Leaf, row: int, segment: Segment) -> None:
    """The sub-tiles that hold a segment of four rows from `row` on, of a buffer in tiles at `at`; the window on them."""
    tile = leaf.tile
    i, group = divmod(row // QUAD, tile.gm)
    first, count, before = _subtiles(leaf, segment)
    j, inside = divmod(first, tile.gn)
    if inside + count <= tile.gn:
        core.line(ad, WORD, count)
    else:
        core.dim(ad, 0, WORD, tile.gn)
        core.dim(ad, 1, tile.words * WORD, count // tile.gn)
    core.base(ad, at + tile.offset(i, j) + (group * tile.gn + inside) * WORD)
    core.base(AD_QUAD, before)
