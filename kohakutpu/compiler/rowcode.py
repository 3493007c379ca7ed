"""Vector words over virtual registers: put in step, given registers, and told modes and lengths.

A `Reg` is one value. Words of several streams are interleaved first and registers assigned to the straight line that
comes of it, so that a stream needs no block of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from kohakutpu.isa.vector import ALU_OPS, Mode, Opcode, RedKind

from .core import Image
from .expressions import REGISTERS
from .rowpredict import GAP, LANE, LOAD, TREE_WIDE



@dataclass(frozen=True, eq=False)
class Reg:
    """A value in a vector register ('V') or a scalar register ('S')."""

    bank: str


@dataclass(frozen=True)
class Word:
    """One instruction: settled `fields`, and the fields that name the registers it reads and writes.

    `length` is the VL it is meant for. A `shared` word serves all streams that are put in step with its own.
    """

    op: Opcode
    fields: Mapping[str, int]
    uses: tuple[tuple[str, Reg], ...] = ()
    makes: tuple[tuple[str, Reg], ...] = ()
    length: int | None = None
    shared: bool = False

    @property
    def mode(self) -> Mode | None:
        if self.op == Opcode.VRED:
            return Mode.TREE
        return Mode.FLAT if self.op in ALU_OPS else None

    @property
    def beats(self) -> int:
        chunks = math.ceil((self.length or 16) / 16)
        return 2 * chunks if self.op == Opcode.VRED and self.fields["kind"] >= RedKind.SUMSQ else chunks


class NoRegister(Exception):
    """More values live at once than registers."""


Bundle = tuple[Word, ...]  # words that stay together


def in_step(streams: Sequence[Sequence[Bundle]]) -> list[Word]:
    """The words of equally built streams side by side, so that none waits for the one before it."""
    out: list[Word] = []
    for bundles in zip(*streams, strict=True):
        for bundle in bundles[:1] if bundles[0][0].shared else bundles:
            out += bundle
    return out


def one_by_one(streams: Sequence[Sequence[Bundle]]) -> list[Word]:
    """The words of streams one after another, in fewer registers; shared ones where the first stream has them."""
    return [word for place, bundles in enumerate(streams) for bundle in bundles if place == 0 or not bundle[0].shared
            for word in bundle]  # fmt: skip


def woven(words: Sequence[Word], others: Sequence[Word]) -> list[Word]:
    """`words` with one of `others` behind each reduction, where the next reduction waits anyway; the rest at the end."""
    left = list(others)
    out: list[Word] = []
    for word in words:
        out.append(word)
        if word.op == Opcode.VRED and left:
            out.append(left.pop(0))
    return out + left


Settled = list[tuple[Word, dict[str, int]]]  # words with all their fields


def assign_registers(words: Sequence[Word], scalars: Iterable[int]) -> Settled:
    """Each word with all its fields. `scalars` are the S registers that may be used. Raises NoRegister."""
    return _assign(words, list(scalars), {}, frozenset())[0]


def assign_sections(sections: Sequence[Sequence[Word]], scalars: Iterable[int]) -> list[Settled]:
    """The same for sections that run in this order, each some times over, and know each other's values. Raises NoRegister."""
    scalars = list(scalars)
    spans: dict[Reg, tuple[int, int]] = {}  # the first and the last section that knows a value
    for number, words in enumerate(sections):
        for word in words:
            for _, reg in (*word.uses, *word.makes):
                spans[reg] = spans.get(reg, (number, number))[0], number
    out: list[Settled] = []
    where: dict[Reg, int] = {}
    for number, words in enumerate(sections):
        held = {reg: place for reg, place in where.items() if spans[reg][1] >= number}
        leaving = {reg for reg, (first, last) in spans.items() if first == number < last}
        settled, found = _assign(words, scalars, held, leaving)
        where |= {reg: found[reg] for reg in leaving}
        out.append(settled)
    return out


def _assign(
    words: Sequence[Word], scalars: Sequence[int], pinned: Mapping[Reg, int], leaving: Set[Reg]
) -> tuple[Settled, dict[Reg, int]]:
    """`pinned` has the registers of values that are there already and stay, `leaving` are new ones that stay.

    Registers are taken up again in turn, the longest free first.
    """
    last: dict[Reg, int] = {}
    for position, word in enumerate(words):
        for _, reg in (*word.uses, *word.makes):
            last[reg] = position
    last |= dict.fromkeys((*pinned, *leaving), len(words))
    taken = {(reg.bank, number) for reg, number in pinned.items()}
    free = {
        bank: [number for number in numbers if (bank, number) not in taken]
        for bank, numbers in (("V", range(REGISTERS)), ("S", scalars))
    }
    held: dict[Reg, int] = dict(pinned)
    out = []
    for position, word in enumerate(words):
        fields = dict(word.fields)
        for name, reg in word.uses:
            fields[name] = held[reg]
        dead = {reg for _, reg in word.uses if last[reg] == position}
        for reg in dead:
            free[reg.bank].append(held[reg])
        for name, reg in word.makes:
            if reg not in held:
                if not free[reg.bank]:
                    raise NoRegister
                held[reg] = free[reg.bank].pop(0)
            fields[name] = held[reg]
        for _, reg in word.makes:
            if last[reg] == position and reg not in dead:
                free[reg.bank].append(held[reg])
        out.append((word, fields))
    return out, held


def emit(image: Image, words: Settled, lengths: Mapping[int, int], length: int) -> None:
    """Append words to an image that is in FLAT mode at `length`; `lengths` has the S register of each VL."""
    mode = Mode.FLAT
    for word, fields in words:
        if word.length is not None and word.length != length:
            length = word.length
            image.put(Opcode.VSETVL, va=lengths[length])
        if word.mode is not None and word.mode != mode:
            mode = word.mode
            image.put(Opcode.VSETMODE, mode=mode)
        image.put(word.op, **fields)


@dataclass
class _Clock:
    now: int = 0
    reduced: int = -GAP
    ready: dict[Reg, int] = field(default_factory=dict)


def estimated_cycles(words: Sequence[Word]) -> int:
    """About how long the words take, to choose between programs that compute the same."""
    clock = _Clock()
    for word in words:
        start = max([clock.now, *(clock.ready.get(reg, 0) for _, reg in word.uses)])
        if word.op == Opcode.VRED:
            start = max(start, clock.reduced + GAP)
            clock.reduced = start + word.beats
        clock.now = start + word.beats
        for _, reg in word.makes:
            after = LOAD if word.op in (Opcode.VLD, Opcode.VBCAST) else LANE
            reduced = reg.bank == "S" and word.op == Opcode.VRED
            clock.ready[reg] = clock.now + TREE_WIDE if reduced else start + after
    return clock.now
