"""A statement over rows as vector words: what one row, or a piece of a wide one, computes.

A row of up to 128 elements is one register, and values stay in registers from one reduction to the next. A wider row is worked
on in pieces, once for each reduction that waits for another; what a later pass needs is computed again from L1, which
gives the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import cached_property

from kohakutpu.isa.vector import OPERANDS, Mask, Opcode, RedKind, Source
from kohakutpu.lang.source import Source as Line
from kohakutpu.lang.trace import BufferLeaf, Constant, ElementOp, Expression, Op, Reduce, RowOp

from .expressions import K_REGISTERS, Constants, steps
from .refusals import CompileError
from .rowcode import Reg, Word, in_step

PIECE = 128  # elements of a register
TAIL = 3  # the predicate that is true past the end of a row
KINDS = {RowOp.SUM: RedKind.SUM, RowOp.MAX: RedKind.MAX, RowOp.MIN: RedKind.MIN}
COMBINE = {RowOp.SUM: (Opcode.VADD, "c"), RowOp.MAX: (Opcode.VMAX, "b"), RowOp.MIN: (Opcode.VMIN, "b")}
IDENTITY = {RowOp.SUM: 0x000000, RowOp.MAX: 0xFF8000, RowOp.MIN: 0x7F8000}
AD_WINDOW, AD_SAME = 0, 1  # L1 from its start; one L1 word for every chunk

Place = Reg | tuple[Source, int]


@dataclass(frozen=True)
class Piece:
    """Part of a row: its first L1 word in the row, its elements."""

    word: int
    elements: int

    @property
    def length(self) -> int:
        """VL: the elements in whole chunks."""
        return -(-self.elements // 16) * 16

    @property
    def ragged(self) -> bool:
        return self.elements % 16 > 0


def pieces_of(columns: int) -> list[Piece]:
    return [Piece(first // 16, min(PIECE, columns - first)) for first in range(0, columns, PIECE)]


@dataclass(frozen=True)
class Storage:
    """Where rows stand in L1: `first` word of each leaf's node and of the result (-1), words from row to row.

    Those in `singles` have one word a row, its first element the row's: a leaf or result with a last axis of 1.
    """

    first: Mapping[int, int]
    stride: Mapping[int, int]
    singles: frozenset[int]

    def word(self, node: int, row: int, piece: Piece) -> int:
        return self.first[node] + row * self.stride[node] + (0 if self.single(node) else piece.word)

    def single(self, node: int) -> bool:
        return node in self.singles


RESULT = -1


class RowWords:
    """Makes the words. `along` tells, by node, whether a value differs within a row, `shared` whether it is every row's."""

    def __init__(self, expression: Expression, columns: int, single: Set[int], repeated: Set[int], constants: Constants,
                 line: Line):  # fmt: skip
        """`single` and `repeated` are the leaves with a last axis of 1, and those that are the same for every row."""
        self.nodes = expression.nodes
        self.columns = columns
        self.pieces = pieces_of(columns)
        self.constants = constants
        self.line = line
        self.along: list[bool] = []
        self.shared: list[bool] = []
        self.level: list[int] = []  # reductions between the leaves and the value
        self.users: list[list[int]] = [[] for _ in self.nodes]
        for position, node in enumerate(self.nodes):
            if isinstance(node, (Op, Reduce)):
                for operand in node.operands:
                    self.users[operand].append(position)
            if isinstance(node, Constant):
                self._add(False, True, 0)
            elif isinstance(node, BufferLeaf):
                self._add(position not in single, position in repeated, 0)
            elif isinstance(node, Reduce):
                (operand,) = node.operands
                if not self.along[operand]:
                    raise CompileError(
                        f"{node.op.label} of a value that is one number a row; multiply by the row's length instead", line
                    )
                self._add(False, self.shared[operand], self.level[operand] + 1)
            else:
                self._add(
                    any(self.along[i] for i in node.operands), all(self.shared[i] for i in node.operands),
                    max(self.level[i] for i in node.operands),
                )  # fmt: skip

    def _add(self, along: bool, shared: bool, level: int) -> None:
        self.along.append(along)
        self.shared.append(shared)
        self.level.append(level)

    @cached_property
    def chooses(self) -> bool:
        """The statement compares: streams in step need a predicate each."""
        return any(isinstance(node, Op) and node.op.arity == 4 for node in self.nodes)

    def rows(self, storage: Storage, count: int, width: int) -> list[Word]:
        """The words of rows 0 to `count` - 1, `width` rows or pieces in step."""
        out: list[Word] = []
        if len(self.pieces) > 1:
            for row in range(count):
                out += self._wide(storage, row, width)
            return out
        for first in range(0, count, width):
            common: dict[int, Place] = {}
            lanes = [
                self._narrow(storage, row, lane, common) for lane, row in enumerate(range(first, min(first + width, count)))
            ]  # fmt: skip
            out += in_step(lanes)
        return out

    # ---- one register a row ----

    def _narrow(self, storage: Storage, row: int, lane: int, common: dict[int, Place]) -> list[Word]:
        """A row; `common` collects what the first of several rows in step leaves for the others."""
        (piece,) = self.pieces
        reduced = {position for position, node in enumerate(self.nodes) if isinstance(node, Reduce)}
        stream = _Stream(self, storage, row, piece, lane % TAIL, {}, reduced, common)
        for position in range(len(self.nodes)):
            stream.node(position)
        stream.store()
        return stream.words

    # ---- pieces of a wide row ----

    def _wide(self, storage: Storage, row: int, width: int) -> list[Word]:
        whole = self.pieces[0]
        held: dict[int, Place] = {}  # numbers of the row
        out = _Stream(self, storage, row, whole, 0, held)
        out.numbers(0)
        last = len(self.nodes) - 1
        for level in range(self.level[last] + 1):
            final = level == self.level[last]
            wanted = [p for p, n in enumerate(self.nodes) if isinstance(n, Reduce) and self.level[p] == level + 1]
            if not wanted and not (final and self.along[last]):
                continue
            roots = [operand for position in wanted for operand in self.nodes[position].operands]
            needed = self._closure([*roots, *([last] if final and self.along[last] else [])])
            gathered: dict[int, Place] = {}
            full = [piece for piece in self.pieces if piece.elements == PIECE]
            groups = [full[first : first + width] for first in range(0, len(full), width)]
            groups += [[piece] for piece in self.pieces if piece.elements < PIECE]
            for group in groups:
                streams = []
                for lane, piece in enumerate(group):
                    stream = _Stream(self, storage, row, piece, lane % TAIL, dict(held), set(wanted))
                    for position in sorted({*needed, *wanted}):
                        stream.node(position)
                    if final and self.along[last]:
                        stream.store()
                    streams.append(stream)
                out.words += in_step([stream.words for stream in streams])
                for position in wanted:
                    for stream in streams:
                        out.combine(position, gathered, stream.where[position])
            held |= gathered
            out.numbers(level + 1)
        if not self.along[last]:
            for piece in self.pieces[: 1 if storage.single(RESULT) else None]:
                stream = _Stream(self, storage, row, piece, 0, dict(held))
                stream.store()
                out.words += stream.words
        return out.words

    def _closure(self, roots: list[int]) -> set[int]:
        """The nodes that differ within a row and are needed for `roots`."""
        found: set[int] = set()
        todo = list(roots)
        while todo:
            position = todo.pop()
            if self.along[position] and position not in found:
                found.add(position)
                todo += getattr(self.nodes[position], "operands", ())
        return found

    # ---- reductions that take an operation in ----

    def taken_in(self, position: int, piece: Piece, reduced: Set[int]) -> RedKind | None:
        """The kind of reduction, one of those in `reduced`, that computes the operation at `position` on the way.

        An exp2 or a product goes into a sum.

        The tree rounds as the ALU does and adds in the same order, so the bits are the same.
        """
        node = self.nodes[position]
        if not isinstance(node, Op) or not self.users[position] or self.users[position][0] not in reduced:
            return None
        user = self.nodes[self.users[position][0]]
        if not isinstance(user, Reduce) or user.op is not RowOp.SUM or not all(self.along[i] for i in node.operands):
            return None
        if node.op is ElementOp.EXP2:
            return RedKind.EXPSUM
        # Past the end of a row either factor may be anything, infinity too.
        alone = len(self.users[position]) == 1 and not piece.ragged
        return RedKind.DOT if node.op is ElementOp.MUL and alone else None


class _Stream:
    """Words of one row or piece in the making; `where` has the place of every value so far, `reduced` the reductions
    that it is to make."""

    def __init__(self, rows: RowWords, storage: Storage, row: int, piece: Piece, predicate: int, where: dict[int, Place],
                 reduced: Set[int] = frozenset(), common: dict[int, Place] | None = None):  # fmt: skip
        self.rows = rows
        self.storage = storage
        self.row = row
        self.piece = piece
        self.predicate = predicate
        self.where = where
        self.reduced = reduced
        self.common = common
        self.words: list[Word] = []
        self.share = False  # the words being made serve all rows in step

    def put(self, op: Opcode, uses=(), makes=(), **fields: int) -> None:
        self.words.append(Word(op, fields, tuple(uses), tuple(makes), self.piece.length, self.share))

    def numbers(self, level: int) -> None:
        """The values of that level which are one number a row, reductions apart."""
        for position, node in enumerate(self.rows.nodes):
            if self.rows.level[position] == level and not self.rows.along[position] and not isinstance(node, Reduce):
                self.node(position)

    def node(self, position: int) -> None:
        rows, node = self.rows, self.rows.nodes[position]
        if position in self.where or rows.taken_in(position, self.piece, self.reduced):
            return
        if isinstance(node, Constant):
            self.where[position] = rows.constants.operand(node)
            return
        self.share = self.common is not None and rows.shared[position]
        # Rows in step have equal words, of which only the first's are kept; all read what those make.
        made = self.common.get(position) if self.share else None
        if isinstance(node, BufferLeaf):
            self._load(position, made)
        elif isinstance(node, Reduce):
            self._reduce(position, node, made)
        else:
            self._operation(position, node, made)
        if self.share:
            self.common.setdefault(position, self.where[position])
        self.share = False

    def _load(self, position: int, made: Place | None) -> None:
        single = self.storage.single(position)
        offset = self.storage.word(position, self.row, self.piece)
        if single:
            reg, scalar = Reg("V"), made or Reg("S")
            self.put(Opcode.VLD, makes=[("vd", reg)], ad=AD_SAME, offset=offset)
            self.put(Opcode.VBCAST, [("va", reg)], [("vd", scalar)], sa=Source.V)
            self.where[position] = scalar
        else:
            self.where[position] = made or Reg("V")
            self.put(Opcode.VLD, makes=[("vd", self.where[position])], ad=AD_WINDOW, offset=offset)

    def _fields(self, opcode: Opcode, operands: list[Place]) -> tuple[dict[str, int], list[tuple[str, Reg]]]:
        fields, uses = {}, []
        for letter, place in zip(OPERANDS[opcode], operands, strict=True):
            if isinstance(place, Reg):
                fields["s" + letter] = Source.V if place.bank == "V" else Source.S
                uses.append(("v" + letter, place))
            else:
                fields["s" + letter], fields["v" + letter] = place
        return fields, uses

    def _operation(self, position: int, node: Op, made: Place | None) -> None:
        reg = made or Reg("V")
        for opcode, places, mask in steps(node):
            fields, uses = self._fields(opcode, [self.where[node.operands[place]] for place in places])
            if mask is Mask.ALWAYS and node.op.arity < 4:
                self.put(opcode, uses, [("vd", reg)], **fields)
            elif mask is Mask.ALWAYS:
                self.put(opcode, uses, pr=self.predicate, **fields)
            else:
                self.put(opcode, uses, [("vd", reg)], pr=self.predicate, pm=mask, **fields)
        self.where[position] = reg

    def _reduce(self, position: int, node: Reduce, made: Place | None) -> None:
        (operand,) = node.operands
        scalar = made or Reg("S")
        kind = self.rows.taken_in(operand, self.piece, self.reduced)
        if kind is RedKind.EXPSUM and self._first_use(operand, position):
            (source,) = self.rows.nodes[operand].operands
            argument = self.where[source]
            if self.piece.ragged:
                self._mask(argument, IDENTITY[RowOp.MAX])  # exp2 of minus infinity is 0
            leaves = (self.common.get(operand) if self.share else None) or Reg("V")
            self.where[operand] = leaves
            if self.share:
                self.common.setdefault(operand, leaves)
            self.put(Opcode.VRED, [("va", argument)], [("vb", leaves), ("vd", scalar)], kind=kind)
        elif kind is RedKind.DOT:
            a, b = (self.where[i] for i in self.rows.nodes[operand].operands)
            self.put(Opcode.VRED, [("va", a), ("vb", b)], [("vd", scalar)], kind=kind)
        else:
            value = self.where[operand]
            if self.piece.ragged:
                self._mask(value, IDENTITY[node.op])
            self.put(Opcode.VRED, [("va", value), ("vb", value)], [("vd", scalar)], kind=KINDS[node.op])
        self.where[position] = scalar

    def _first_use(self, operand: int, position: int) -> bool:
        return operand not in self.where and position == self.rows.users[operand][0]

    def _mask(self, reg: Place, word: int) -> None:
        """What lies past the end of the row becomes `word`."""
        place = (Source.K, K_REGISTERS[word]) if word in K_REGISTERS else (Source.S, self.rows.constants.scalar(word))
        self.put(Opcode.VMOV, [("vd", reg)], [("vd", reg)], sa=place[0], va=place[1], pr=TAIL, pm=Mask.WHERE)

    def combine(self, position: int, gathered: dict[int, Place], scalar: Place) -> None:
        """Add the result of one more piece, in order."""
        node = self.rows.nodes[position]
        if position not in gathered:
            gathered[position] = scalar
            return
        opcode, _ = COMBINE[node.op]
        fields, uses = self._fields(opcode, [gathered[position], scalar])
        reg = Reg("V")
        self.put(opcode, uses, [("vd", reg)], **fields)
        gathered[position] = reg

    def store(self) -> None:
        """The value into the result."""
        place = self.where[len(self.rows.nodes) - 1]
        if isinstance(place, Reg) and place.bank == "V":
            reg = place
        else:
            reg = Reg("V")
            uses = [("va", place)] if isinstance(place, Reg) else []
            fields = {} if isinstance(place, Reg) else {"va": self.rows.constants.scalar(self._word())}
            self.put(Opcode.VBCAST, uses, [("vd", reg)], sa=Source.S, **fields)
        single = self.storage.single(RESULT)
        offset = self.storage.word(RESULT, self.row, self.piece)
        self.put(Opcode.VST, [("vd", reg)], ad=AD_SAME if single else AD_WINDOW, offset=offset)

    def _word(self) -> int:
        return self.rows.constants.word(self.rows.nodes[-1])
