"""Rows that do not fit L1: a program that goes along a row in segments, once for each reduction that waits for another.

A segment is some pieces of 128 elements. A pass fills what it needs of a segment, adds to its reductions, and the last
one stores; each segment is a run. What one run leaves for the next stays in the core's registers, which outlive runs.
Pieces are combined in the order of the row, so the bits are those of a row that fits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kohakutpu.isa import vector as isa
from kohakutpu.isa.vector import Mode, Opcode, Source
from kohakutpu.lang.trace import Reduce

from .artifact import BufferImage
from .core import CoreState, Image
from .elementwise import FILL_CYCLES
from .expressions import REGISTERS, Constants
from .layouts import HALVES, WORD
from .programs import CHUNK, FLIT_CYCLES, RUN_CYCLES
from .rowcode import NoRegister, Reg, Word, assign_registers, emit, estimated_cycles, in_step, woven
from .rowplan import RowPlan, RowSpan, address_of, begun
from .rowwords import (
    COMBINE, PIECE, RESULT, Piece, Place, RowWords, Storage, Stream, pieces_of, prologue,
)  # fmt: skip

CANDIDATES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # pieces of a segment
WIDTHS = (4, 3, 2, 1)  # pieces in step


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
    """An image of sections, and the order in which a row's runs take them: (section, segment)."""

    words: list[int]
    runs: list[tuple[Section, Segment]]
    first: Mapping[int, int]  # L1 word by node
    total: float = 0.0  # cycles of the statement, about

    @property
    def cycles(self) -> int:
        """Of a row, about."""
        return sum(
            RUN_CYCLES + FILL_CYCLES + section.cycles + segment.words * (len(section.fills) + section.drains)
            for section, segment in self.runs
        )


def choose(plan: RowPlan, known: Mapping[str, int], arrays: bool, room: int, rows: int, cores: int) -> Streamed | str:
    """The program of least estimated time for `rows` rows on the busiest of `cores` cores, or why there is none."""
    choices: list[tuple[float, Streamed]] = []
    refused = ""
    for pieces in CANDIDATES:
        made = _program(plan, pieces, known, arrays, room)
        if isinstance(made, str):
            refused = refused or made
            break
        runs = rows * cores * sum(len(section.fills) + 2 for section, _ in made.runs)
        # The image is staged, then sent; what moves the runs along is sent while they work.
        begin = 2 * FLIT_CYCLES * cores * len(made.words)
        choices.append((begin + max(FLIT_CYCLES * runs, rows * made.cycles), made))
    if not choices:
        return refused
    cycles, made = min(choices, key=lambda choice: choice[0])
    return replace(made, total=cycles)


@dataclass
class _Pass:
    """Going over the row once: what is reduced, what is computed for that, whether results are stored."""

    wanted: list[int]
    needed: list[int]
    stores: bool


def _passes(code: RowWords, single: bool) -> list[_Pass]:
    """`single`: the result is one word a row."""
    last = len(code.nodes) - 1
    passes = []
    for level in range(code.level[last]):
        wanted = [p for p, n in enumerate(code.nodes) if isinstance(n, Reduce) and code.level[p] == level + 1]
        roots = [operand for position in wanted for operand in code.nodes[position].operands]
        passes.append(_Pass(wanted, sorted(code.closure(roots)), False))
    if code.along[last] or not single or not passes:
        passes.append(_Pass([], sorted(code.closure([last])) if code.along[last] else [], True))
    return passes


@dataclass
class _Row:
    """The words of one row's sections in the making."""

    code: RowWords
    storage: Storage
    width: int
    number: Stream = field(init=False)  # what the row is one number of, from section to section
    gathered: dict[int, Reg] = field(default_factory=dict)

    def __post_init__(self):
        self.number = Stream(self.code, self.storage, 0, self.code.pieces[0], {})

    def section(self, passed: _Pass, number: int, segment: Segment, opening: bool, closing: bool) -> list[Word]:
        """Of pass `number` over a segment; `opening` and `closing` are the first and the last segment of a row."""
        out: list[Word] = []
        if opening:
            self.gathered = {position: Reg("V") for position in passed.wanted}
            if number == 0:
                self.number.numbers(0)
        started = not opening
        out += self._taken()
        for group in self._groups(segment.pieces):
            streams = []
            for piece in group:
                stream = Stream(self.code, self.storage, 0, piece, dict(self.number.where), set(passed.wanted))
                for position in sorted({*passed.needed, *passed.wanted}):
                    stream.node(position)
                if passed.stores:
                    stream.store()
                streams.append(stream)
            # The results of one group are combined while the next one is reduced.
            out += woven(in_step([stream.words for stream in streams]), self._taken())
            for position in passed.wanted:
                for place, stream in enumerate(streams):
                    self._combine(position, stream.where[position], started or place > 0)
            started = True
        if closing and passed.wanted:
            self.number.hold(dict(self.gathered))
            self.number.numbers(number + 1)
        return out + self._taken()

    def finish(self) -> list[Word]:
        """Store a result that is one word a row."""
        self.number.store()
        return self._taken()

    def _groups(self, pieces: Sequence[Piece]) -> Iterator[Sequence[Piece]]:
        full = [piece for piece in pieces if piece.elements == PIECE]
        for first in range(0, len(full), self.width):
            yield full[first : first + self.width]
        if len(full) < len(pieces):
            yield pieces[-1:]

    def _taken(self) -> list[Word]:
        words, self.number.words = [word for bundle in self.number.words for word in bundle], []
        return words

    def _combine(self, position: int, scalar: Place, started: bool) -> None:
        """Add one more piece's result, in order."""
        held = self.gathered[position]
        if not started:
            self.number.put(Opcode.VBCAST, [("va", scalar)], [("vd", held)], sa=Source.S)
            return
        opcode, _ = COMBINE[self.code.nodes[position].op]
        fields, uses = self.number.fields(opcode, [held, scalar])
        self.number.put(opcode, uses, [("vd", held)], **fields)


def _storage(plan: RowPlan, code: RowWords, words: int) -> tuple[Storage, int]:
    """L1 for segments of `words` words: operands, one word for those of one number a row, the result; and its words in
    all."""
    singles = [leaf.node for leaf in plan.leaves if not code.along[leaf.node]]
    first: dict[int, int] = {}
    end = 0
    for leaf in plan.leaves:
        first[leaf.node] = end
        end += 1 if leaf.node in singles else words
    if plan.target_columns == 1:
        singles.append(RESULT)
    along = [leaf.node for leaf in plan.leaves if code.along[leaf.node]]
    if along and RESULT not in singles:
        first[RESULT] = first[along[0]]
    else:
        first[RESULT] = end
        end += 1 if RESULT in singles else words
    return Storage(first, dict.fromkeys(first, 0), frozenset(singles)), end


def _program(plan: RowPlan, pieces: int, known, arrays: bool, room: int) -> Streamed | str:
    """The sections for segments of `pieces` pieces, or why there are none."""
    stage = plan.stage
    source = stage.statement.source
    if CHUNK * pieces > isa.WALK_LIMIT:
        return f"is walked in {CHUNK * pieces} words at a time, above {isa.WALK_LIMIT}"
    segments = segments_of(stage.shape[-1], pieces)
    for width in WIDTHS:
        constants = Constants(source, known, {}, {}, arrays)
        code = RowWords(stage.expression, stage.shape[-1], plan.single_leaves, plan.repeated_leaves, constants, source)
        storage, footprint = _storage(plan, code, max(segment.words for segment in segments))
        if footprint > room:
            return f"takes {footprint} words of L1 for {pieces} pieces of {PIECE} elements, above {room}"
        lengths = code.lengths()
        made = _sections(code, storage, segments, min(width, pieces))
        scalars = [s for s in range(1, REGISTERS) if s not in constants.scalars.values()]
        try:
            pinned = _pinned([words for words, _, _ in made.values()], scalars)
            settled = {key: assign_registers(words, scalars, pinned) for key, (words, _, _) in made.items()}
            break
        except NoRegister:
            continue
    else:
        return f"keeps more values than {REGISTERS} vector and {len(scalars)} scalar registers; split it over a temp"
    image = Image()
    prologue(image, code, lengths)
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
    if len(image) > isa.IMEM_WORDS:
        return f"takes {len(image)} words of image of {isa.IMEM_WORDS}; split the statement over a temp"
    runs = [(sections[key], segment) for key, segment in _order(code, storage, segments)]
    return Streamed(image.words, runs, storage.first)


_Key = tuple  # (pass, pieces, opening, closing)


def _order(code: RowWords, storage: Storage, segments: Sequence[Segment]) -> Iterator[tuple[_Key, Segment]]:
    """The sections of a row in the order they are run."""
    for number, passed in enumerate(_passes(code, storage.single(RESULT))):
        for place, segment in enumerate(segments):
            reduces = bool(passed.wanted)
            opening = place == 0 and (reduces or number == 0)
            yield (number, segment.pieces, opening, reduces and place == len(segments) - 1), segment


def _sections(
    code: RowWords, storage: Storage, segments: Sequence[Segment], width: int
) -> dict[_Key, tuple[list[Word], list[int], bool]]:
    """Words, nodes needed and whether it drains, of every section."""
    passes = _passes(code, storage.single(RESULT))
    row = _Row(code, storage, width)
    made: dict[_Key, tuple[list[Word], list[int], bool]] = {}
    for key, segment in _order(code, storage, segments):
        number, _, opening, closing = key
        if key in made:
            continue
        passed = passes[number]
        words = row.section(passed, number, segment, opening, closing)
        finishes = closing and number == len(passes) - 1
        if finishes:
            words += row.finish()
        made[key] = words, passed.needed, passed.stores or finishes
    return made


def _pinned(sections: Sequence[Sequence[Word]], scalars: Sequence[int]) -> dict[Reg, int]:
    """Registers of their own for values that more than one section knows. Raises NoRegister."""
    seen: dict[Reg, int] = {}
    shared: dict[Reg, None] = {}
    for number, words in enumerate(sections):
        for word in words:
            for _, reg in (*word.uses, *word.makes):
                if seen.setdefault(reg, number) != number:
                    shared[reg] = None
    free = {"V": list(range(REGISTERS)), "S": list(scalars)}
    pinned = {}
    for reg in shared:
        if not free[reg.bank]:
            raise NoRegister
        pinned[reg] = free[reg.bank].pop()
    return pinned


def instance(plan: RowPlan, span: RowSpan, images: Mapping[str, BufferImage], state: CoreState, program: Streamed) -> list[int]:
    """The payloads of an instance's rows."""
    stage = plan.stage
    core = begun(state, program.words)
    ad_drain = plan.descriptors - 1
    for place, leaf in enumerate(plan.leaves):
        if leaf.repeated and leaf.node in plan.single_leaves:
            core.line(plan.first_descriptor + place, WORD, 1)
            core.base(plan.first_descriptor + place, address_of(images[leaf.name], span.copy) + leaf.row(0) * WORD)
    for row in range(span.first, span.first + span.rows):
        for turn, (section, segment) in enumerate(program.runs):
            for place, leaf in enumerate(plan.leaves):
                if leaf.node in section.fills:
                    at = address_of(images[leaf.name], span.copy) + leaf.row(row) * leaf.words * WORD
                    single = leaf.node in plan.single_leaves
                    core.line(plan.first_descriptor + place, WORD, 1 if single else segment.words)
                    core.base(plan.first_descriptor + place, at if single else at + segment.word * WORD)
            if section.drains:
                single = plan.target_columns == 1
                core.line(ad_drain, WORD, 1 if single else segment.words)
                at = address_of(images[stage.target], span.copy) + (plan.target_row + row) * plan.result_words * WORD
                core.base(ad_drain, at if single else at + segment.word * WORD)
            core.run(0 if turn == 0 and row == span.first else section.entry)
    return core.payloads
