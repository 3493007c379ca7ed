"""A statement over rows as vector words: what one row, or a piece of a wide one, computes.

A row of up to 128 elements is one register, and values stay in registers from one reduction to the next. A wider row
is worked on in pieces, once for each reduction that waits for another; what a later pass needs is computed again
from L1, which gives the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field

from kohakutpu.isa.vector import COMPARES, IMMEDIATE, OPERANDS, DType, Mask, Mode, Opcode, RedKind, Source
from kohakutpu.lang.source import Source as Line
from kohakutpu.lang.trace import BufferLeaf, Constant, ElementOp, Expression, Op, Reduce, RowOp

from .core import Image
from .expressions import K_REGISTERS, Constants, folded, steps
from .refusals import CompileError
from .rowcode import Bundle, Reg, Word, in_step, one_by_one, woven
from .stages import Kept

PIECE = 128  # elements of a register
TAIL = 3  # the predicate that is true past the end of a row
KINDS = {RowOp.SUM: RedKind.SUM, RowOp.MAX: RedKind.MAX, RowOp.MIN: RedKind.MIN}
COMBINE = {RowOp.SUM: (Opcode.VADD, "c"), RowOp.MAX: (Opcode.VMAX, "b"), RowOp.MIN: (Opcode.VMIN, "b")}
IDENTITY = {RowOp.SUM: 0x000000, RowOp.MAX: 0xFF8000, RowOp.MIN: 0x7F8000}
ODD, HIGH = 1, 2  # predicates of a word's groups of 4 elements 1 and 3, and 2 and 3; choices use predicate 0
JOINS = ((0, 1, ODD), (2, 3, ODD), (0, 2, HIGH))
LEAST, LEAST_REGISTER = 0x008000, 3  # 2^-126, in the K register that programs may set
QUAD = 4  # rows, and sub-tiles side by side, that are transposed together
AD_WINDOW, AD_SAME, AD_QUAD = range(3)  # L1 from its start; one L1 word for every chunk; every fourth word

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
    quads: Mapping[int, int] = field(default_factory=dict)  # leaves that are tiles: words of four rows
    groups: Mapping[int, tuple[int, int]] = field(default_factory=dict)  # leaves whose rows serve several: group, period

    def word(self, node: int, row: int, piece: Piece) -> int:
        group, period = self.groups.get(node, (1, row + 1))
        return self.first[node] + row // group % period * self.stride[node] + (0 if self.single(node) else piece.word)

    def single(self, node: int) -> bool:
        return node in self.singles


RESULT = -1


class RowWords:
    """Makes the words. `along` tells, by node, whether a value differs within a row, `shared` whether it is every
    row's."""

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
        self.constant: dict[int, int] = {}  # word of each node that is a number, whatever the data
        self.users: list[list[int]] = [[] for _ in self.nodes]
        for position, node in enumerate(self.nodes):
            if isinstance(node, (Op, Reduce, Kept)):
                for operand in node.operands:
                    self.users[operand].append(position)
            if isinstance(node, Kept):
                self._add(position not in single, False, self.level[node.operands[0]])
            elif isinstance(node, Constant):
                self.constant[position] = constants.word(node)
                self._add(False, True, 0)
            elif isinstance(node, BufferLeaf):
                self._add(position not in single, position in repeated, 0)
            elif isinstance(node, Reduce):
                (operand,) = node.operands
                if not self.along[operand]:
                    instead = "multiply by the row's length" if node.op is RowOp.SUM else "use the value itself"
                    raise CompileError(f"{node.op.label} of a value that is one number a row; {instead} instead", line)
                self._add(False, self.shared[operand], self.level[operand] + 1)
            else:
                self._add(
                    any(self.along[i] for i in node.operands), all(self.shared[i] for i in node.operands),
                    max(self.level[i] for i in node.operands),
                )  # fmt: skip

            # The published exp2 is another function in places, so that one is left to the machine.
            if isinstance(node, Op) and self.constant.keys() >= set(node.operands) and node.op is not ElementOp.EXP2:
                self.constant[position] = folded(node, [self.constant[i] for i in node.operands])

    def _add(self, along: bool, shared: bool, level: int) -> None:
        self.along.append(along)
        self.shared.append(shared)
        self.level.append(level)

    def rows(self, storage: Storage, count: int, width: int, sparing: bool = False) -> list[Word]:
        """The words of rows 0 to `count` - 1, `width` rows or pieces in step. Rows of tiles come in fours; `sparing` takes them
        out of their tiles before anything else and goes on row by row, in fewer registers."""
        out: list[Word] = []
        if len(self.pieces) > 1:
            together = QUAD if storage.quads else 1
            for first in range(0, count, together):
                out += self._wide(storage, range(first, first + together), 1 if storage.quads else width, sparing)
            return out
        (piece,) = self.pieces
        reduced = {position for position, node in enumerate(self.nodes) if isinstance(node, Reduce)}
        order = self.order(range(len(self.nodes)), storage, sparing)
        for first in range(0, count, width):
            common: dict = {}
            lanes = []
            for row in range(first, min(first + width, count)):
                stream = Stream(self, storage, row, piece, {}, reduced, common, sparing=sparing)
                for position in order:
                    stream.node(position)
                stream.store()
                lanes.append(stream.words)
            out += one_by_one(lanes) if sparing else in_step(lanes)
        return out

    def order(self, positions: Iterable[int], storage: Storage, sparing: bool) -> list[int]:
        """Nodes as they are computed: `sparing` has tiles first."""
        return sorted(positions, key=lambda position: (sparing and position not in storage.quads, position))

    def _wide(self, storage: Storage, rows: range, width: int, sparing: bool) -> list[Word]:
        """Rows in pieces, `width` pieces of each in step."""
        whole = self.pieces[0]
        numbers = [Stream(self, storage, row, whole, {}) for row in rows]  # what each row is one number of
        out: list[Word] = []

        def taken() -> list[Word]:
            words = in_step([stream.words for stream in numbers])
            for stream in numbers:
                stream.words = []
            return words

        for stream in numbers:
            stream.numbers(0)
        last = len(self.nodes) - 1
        kept: set[int] = set()  # what L1 holds by now
        for level in range(max(self.level) + 1):
            final = level == self.level[last]
            wanted = [p for p, n in enumerate(self.nodes) if isinstance(n, Reduce) and self.level[p] == level + 1]
            keeps = [p for p, n in enumerate(self.nodes) if isinstance(n, Kept) and self.along[p] and self.level[p] == level]
            if not wanted and not keeps and not (final and self.along[last]):
                continue
            roots = [operand for position in wanted for operand in self.nodes[position].operands]
            needed = self.closure([*roots, *keeps, *([last] if final and self.along[last] else [])], kept)
            gathered: list[dict[int, Place]] = [{} for _ in rows]
            full = [piece for piece in self.pieces if piece.elements == PIECE]
            groups = [full[first : first + width] for first in range(0, len(full), width)]
            groups += [[piece] for piece in self.pieces if piece.elements < PIECE]
            out += taken()
            for group in groups:
                common: dict | None = {} if len(rows) > 1 else None
                streams = []
                for piece in group:
                    for number in numbers:
                        stream = Stream(self, storage, number.row, piece, dict(number.where), set(wanted), common, kept)
                        for position in self.order({*needed, *wanted}, storage, sparing):
                            stream.node(position)
                        if final and self.along[last]:
                            stream.store()
                        streams.append(stream)
                # The results of one group are combined while the next one is reduced; four rows have no registers for that.
                words = (one_by_one if sparing else in_step)([stream.words for stream in streams])
                out += [*taken(), *words] if storage.quads else woven(words, taken())
                for position in wanted:
                    for place, stream in enumerate(streams):
                        row = place % len(rows)
                        numbers[row].combine(position, gathered[row], stream.where[position])
            kept |= set(keeps)
            for stream, found in zip(numbers, gathered, strict=True):
                stream.hold(found)
                stream.numbers(level + 1)
        out += taken()
        if not self.along[last]:
            for piece in self.pieces[: 1 if storage.single(RESULT) else None]:
                streams = [Stream(self, storage, number.row, piece, dict(number.where)) for number in numbers]
                for stream in streams:
                    stream.store()
                out += in_step([stream.words for stream in streams])
        return out

    def closure(self, roots: list[int], kept: Set[int] = frozenset()) -> set[int]:
        """The nodes that differ within a row and are needed for `roots`, and leaves of one number a row beside them; what
        L1 has `kept` needs nothing."""
        found: set[int] = set()
        todo = list(roots)
        while todo:
            position = todo.pop()
            if position in found:
                continue
            if self.along[position]:
                found.add(position)
                todo += () if position in kept else getattr(self.nodes[position], "operands", ())
            elif isinstance(self.nodes[position], BufferLeaf):
                found.add(position)
        return found

    def lengths(self) -> dict[int, int]:
        """The scalar register of each VL."""
        found = {self.pieces[0].length: 0}
        if self.pieces[-1].length not in found:
            found[self.pieces[-1].length] = self.constants.scalar(self.pieces[-1].length)
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


def prologue(image: Image, code: RowWords, lengths: Mapping[int, int]) -> None:
    """Length, constants and mode, then the predicate of what lies past the end of a row; leaves VL at 1 or the first
    piece's."""
    image.set_scalar(0, code.pieces[0].length)
    code.constants.load(image)
    image.put(Opcode.VSETMODE, mode=Mode.FLAT)
    tail = code.pieces[-1]
    if tail.ragged:
        image.put(Opcode.VSETVL, va=lengths[tail.length])
        image.put(Opcode.VCMPEQ, sa=Source.K, sb=Source.K, pr=TAIL)
        image.set_scalar(1, tail.elements)
        image.put(Opcode.VSETVL, va=1)
        image.put(Opcode.VCMPLT, sa=Source.K, sb=Source.K, pr=TAIL)


def group_predicates(image: Image, lanes: list[int], spare: int) -> None:
    """Set K3, and the predicates of a word's groups of 4 elements, in every chunk; `lanes` hold 4, 8 and 12, L1 word
    `spare` is free."""
    four, eight, twelve = lanes
    image.put(Opcode.VSETI, sa=Source.K)
    image.words.append(IMMEDIATE.encode(value=LEAST))
    for length, register in ((eight, 0), (four, 1)):  # a word of ones in its first elements, in every chunk
        image.put(Opcode.VSETVL, va=0)
        image.put(Opcode.VMOV, vd=2, va=K_REGISTERS[0], sa=Source.K)
        image.put(Opcode.VSETVL, va=length)
        image.put(Opcode.VMOV, vd=2, va=K_REGISTERS[0x3F8000], sa=Source.K)
        image.put(Opcode.VST, ad=AD_SAME, vd=2, offset=spare)
        image.put(Opcode.VSETVL, va=0)
        image.put(Opcode.VLD, ad=AD_SAME, vd=register, offset=spare)
    image.put(Opcode.VCMPEQ, va=0, vb=K_REGISTERS[0], sb=Source.K, pr=HIGH)
    image.put(Opcode.VSHUF, vd=3, va=1, vb=twelve)
    image.put(Opcode.VSHUF, vd=4, va=1, vb=four)
    image.put(Opcode.VADD, vd=3, va=3, vc=4)
    image.put(Opcode.VCMPGT, va=3, vb=K_REGISTERS[0], sb=Source.K, pr=ODD)


class Stream:
    """Words of one row or piece in the making; `where` has the place of every value so far, `reduced` the reductions
    that it is to make."""

    def __init__(self, rows: RowWords, storage: Storage, row: int, piece: Piece, where: dict[int, Place],
                 reduced: Set[int] = frozenset(), common: dict | None = None, kept: Set[int] = frozenset(),
                 sparing: bool = False):  # fmt: skip
        """`common` is what the first of several rows in step leaves for the others, `kept` what L1 has of a band."""
        self.rows = rows
        self.storage = storage
        self.row = row
        self.piece = piece
        self.where = where
        self.reduced = reduced
        self.common = common
        self.kept = kept
        # Other values wait beside the four words of a quad, so these are joined as soon as they can be.
        self.sparing = sparing or len(rows.pieces) > 1
        self.words: list[Bundle] = []
        self.share = False  # the words being made serve all rows in step

    def word(self, op: Opcode, uses=(), makes=(), **fields: int) -> Word:
        return Word(op, fields, tuple(uses), tuple(makes), self.piece.length, self.share)

    def put(self, op: Opcode, uses=(), makes=(), **fields: int) -> None:
        self.words.append((self.word(op, uses, makes, **fields),))

    def numbers(self, level: int) -> None:
        """The values of that level which are one number a row; leaves are loaded where they are used."""
        for position, node in enumerate(self.rows.nodes):
            if self.rows.level[position] == level and not self.rows.along[position] and isinstance(node, (Op, Kept)):
                for operand in node.operands:
                    if not isinstance(self.rows.nodes[operand], Reduce):
                        self.node(operand)
                self.node(position)
        last = len(self.rows.nodes) - 1
        if level == 0 and isinstance(self.rows.nodes[last], BufferLeaf) and not self.rows.along[last]:
            self.node(last)

    def hold(self, gathered: dict[int, Place]) -> None:
        """Keep the results of reductions, in scalar registers."""
        for position, place in gathered.items():
            if place.bank == "V":
                scalar = Reg("S")
                self.put(Opcode.VBCAST, [("va", place)], [("vd", scalar)], sa=Source.V)
                place = scalar
            self.where[position] = place

    def node(self, position: int) -> None:
        rows, node = self.rows, self.rows.nodes[position]
        if position in self.where or position in rows.constant or rows.taken_in(position, self.piece, self.reduced):
            return
        self.share = self.common is not None and rows.shared[position]
        # Rows in step have equal words, of which only the first's are kept; all read what those make.
        made = self.common.get(position) if self.share else None
        if position in self.storage.quads:
            self._load_quad(position)
        elif isinstance(node, Kept):
            self._keep(position, node)
        elif isinstance(node, BufferLeaf):
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

    def _keep(self, position: int, node: Kept) -> None:
        """Store what a band keeps, unless a pass before has, and load it where it is read."""
        if position not in self.kept:
            self.store(node.operands[0], position)
        if self.rows.users[position]:
            self._load(position, None)

    def _load_quad(self, position: int) -> None:
        """Four rows at once from the sub-tiles that hold them: 4x4 groups of 4 elements, transposed.

        A word of sub-tile p has row l's elements 4p.. in its group l. Rotated to group p, the four are joined under
        predicates; `x * 2^-126 + x` moves x with its sign when it is zero.
        """
        if self.row % QUAD == 0:
            self.common[QUAD, position] = self._transposed(position)
        bundle, rows = self.common[QUAD, position]
        self.words.append(bundle)
        self.where[position] = rows[self.row % QUAD]

    def _transposed(self, position: int) -> tuple[Bundle, list[Reg]]:
        storage, constants = self.storage, self.rows.constants
        first = storage.first[position] + self.row // QUAD * storage.quads[position] + QUAD * self.piece.word
        self.share = True
        words, rows = [], []
        loaded = [Reg("V") for _ in range(QUAD)]
        for place, reg in enumerate(loaded):
            words.append(self.word(Opcode.VLD, [], [("vd", reg)], ad=AD_QUAD, offset=first + place))
        for row in range(QUAD):
            parts = []
            for place, reg in enumerate(loaded):
                turn = 4 * (row - place) % 16
                moved = Reg("V") if turn or place in (0, 2) else reg
                if turn:
                    words.append(self.word(Opcode.VSHUF, [("va", reg)], [("vd", moved)], vb=constants.scalar(turn)))
                elif moved is not reg:
                    words.append(self.word(Opcode.VCVT, [("va", reg)], [("vd", moved)], dtype=DType.FP32))
                parts.append(moved)
                if self.sparing and place == 1:
                    words.append(self._joined(parts, 0, 1, ODD))
            words += [self._joined(parts, *pair) for pair in JOINS[int(self.sparing) :]]
            rows.append(parts[0])
        return tuple(words), rows

    def _joined(self, parts: list[Reg], into: int, other: int, predicate: int) -> Word:
        """Elements of one register over those of another."""
        uses = [("va", parts[other]), ("vc", parts[other]), ("vd", parts[into])]
        made = [("vd", parts[into])]
        return self.word(Opcode.VFMA, uses, made, sb=Source.K, vb=LEAST_REGISTER, pr=predicate, pm=Mask.WHERE)

    def _place(self, position: int) -> Place:
        """Where a value is; constants get their registers when they are first used."""
        constant = self.rows.constant.get(position)
        return self.where[position] if constant is None else self.rows.constants.at(constant)

    def fields(self, opcode: Opcode, operands: list[Place]) -> tuple[dict[str, int], list[tuple[str, Reg]]]:
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
        bundle = []
        for opcode, places, mask in steps(node):
            fields, uses = self.fields(opcode, [self._place(node.operands[place]) for place in places])
            compares = opcode in COMPARES
            bundle.append(
                self.word(opcode, uses, [] if compares else [("vd", reg)], **fields, **({"pm": mask} if mask else {}))
            )
        # A choice stays together: all rows in step use one predicate.
        self.words.append(tuple(bundle))
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
            if self.storage.quads:  # four rows' results at once: there are more vector registers than scalar ones
                gathered[position] = Reg("V")
                self.put(Opcode.VBCAST, [("va", scalar)], [("vd", gathered[position])], sa=Source.S)
            return
        opcode, _ = COMBINE[node.op]
        fields, uses = self.fields(opcode, [gathered[position], scalar])
        reg = Reg("V")
        self.put(opcode, uses, [("vd", reg)], **fields)
        gathered[position] = reg

    def store(self, position: int = -1, target: int = RESULT) -> None:
        """A value, the last one by default, into what L1 has for `target`."""
        position %= len(self.rows.nodes)
        place = self._place(position)
        if isinstance(place, Reg) and place.bank == "V":
            reg = place
        else:
            reg = Reg("V")
            uses = [("va", place)] if isinstance(place, Reg) else []
            fields = {} if isinstance(place, Reg) else {"va": self.rows.constants.scalar(self.rows.constant[position])}
            self.put(Opcode.VBCAST, uses, [("vd", reg)], sa=Source.S, **fields)
        single = self.storage.single(target)
        offset = self.storage.word(target, self.row, self.piece)
        self.put(Opcode.VST, [("vd", reg)], ad=AD_SAME if single else AD_WINDOW, offset=offset)
