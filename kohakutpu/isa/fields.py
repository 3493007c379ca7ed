"""Declarative bit layouts: the one mechanism every encoding table is built on.

A `Layout` is a named word of fixed width made of `Field`s. `encode` refuses whatever the table or one of
its rules does not allow, `pack` refuses only what does not fit (hardware forwards such words, and tests
need them), decoding is total, and `check` refuses a word that `encode` could not have produced. Tables
live beside this module (`flit`, `cluster`, `vector`, `memory`, `signals`, `registers`); nothing else
shifts a bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum

Rule = Callable[[Mapping[str, int]], "str | None"]


class EncodingError(ValueError):
    """A value, field name or word that the table does not allow."""


@dataclass(frozen=True)
class Field:
    """One field of a layout.

    `bits` is a tuple of inclusive (high, low) ranges, most significant piece first; nearly every field
    has one. `signed` fields are two's complement. `enum` names the legal values, or with `open` merely
    some of them. A `fixed` field (an opcode) must hold its default. `hex` says how people read it.
    """

    name: str
    bits: tuple[tuple[int, int], ...]
    meaning: str
    default: int = 0
    signed: bool = False
    enum: type[IntEnum] | None = None
    open: bool = False
    fixed: bool = False
    hex: bool = False

    @property
    def width(self) -> int:
        return sum(high - low + 1 for high, low in self.bits)

    @property
    def mask(self) -> int:
        """The bits of the word that this field owns."""
        return sum(((1 << (high - low + 1)) - 1) << low for high, low in self.bits)

    @property
    def least(self) -> int:
        return -(1 << (self.width - 1)) if self.signed else 0

    @property
    def greatest(self) -> int:
        return (1 << (self.width - 1 if self.signed else self.width)) - 1


def field(name: str, high: int, low: int, meaning: str, **options) -> Field:
    """A `Field` that occupies one contiguous range, `high` and `low` inclusive."""
    return Field(name, ((high, low),), meaning, **options)


class Layout:
    """A word of `width` bits made of non-overlapping fields.

    `rules` are conditions across fields: each takes the values by name and returns what is wrong, or None;
    its docstring states it for the documentation.
    Raises `EncodingError` when the table itself is wrong: an empty range, overlapping fields, a field past
    the word, a repeated name, a default that does not fit.
    """

    def __init__(self, name: str, width: int, fields: Iterable[Field], meaning: str = "", rules: Iterable[Rule] = ()):
        self.name = name
        self.width = width
        self.meaning = meaning
        self.rules = tuple(rules)
        self.fields: dict[str, Field] = {}
        owned = 0
        for item in fields:
            pieces = 0
            for high, low in item.bits:
                if not 0 <= low <= high:
                    raise EncodingError(f"{name}.{item.name}: bits [{high}:{low}] are not a range")
                piece = ((1 << (high - low + 1)) - 1) << low
                if piece & (owned | pieces):
                    raise EncodingError(f"{name}.{item.name}: bits [{high}:{low}] overlap another field")
                pieces |= piece
            if item.name in self.fields:
                raise EncodingError(f"{name}: field {item.name!r} is declared twice")
            if pieces >> width:
                raise EncodingError(f"{name}.{item.name}: bits {item.bits} lie outside a {width}-bit word")
            if not item.least <= item.default <= item.greatest:
                raise EncodingError(f"{name}.{item.name}: default {item.default} does not fit {item.width} bits")
            owned |= pieces
            self.fields[item.name] = item
        self.reserved = ((1 << width) - 1) & ~owned
        # (signed, sign bit, least, greatest, field mask, ((word shift, piece mask, value shift), ...)), for speed
        self._plan = {}
        for item in self.fields.values():
            left, steps = item.width, []
            for high, low in item.bits:
                left -= high - low + 1
                steps.append((low, (1 << (high - low + 1)) - 1, left))
            self._plan[item.name] = (
                item.signed, 1 << (item.width - 1), item.least, item.greatest, item.mask, tuple(steps)
            )  # fmt: skip
        self._defaults = {item.name: item.default for item in self.fields.values()}
        self._legal = {
            item.name: frozenset([item.default]) if item.fixed else frozenset(int(member) for member in item.enum)
            for item in self.fields.values() if item.fixed or (item.enum is not None and not item.open)
        }  # fmt: skip
        self._blank = 0
        self._blank = self.pack(**self._defaults)

    def __repr__(self) -> str:
        return f"<Layout {self.name}, {self.width} bits: {', '.join(self.fields)}>"

    def pack(self, **values: int) -> int:
        """The word with the given fields set and every other at its default; only widths are checked.

        Raises `EncodingError` naming layout, field, width and value for an unknown field, a value that is
        not an integer, or one that does not fit.
        """
        word = self._blank
        for name, value in values.items():
            plan = self._plan.get(name)
            if plan is None:
                raise EncodingError(f"{self.name} has no field {name!r}; it has {', '.join(self.fields)}")
            _, _, least, greatest, mask, steps = plan
            try:
                value = value.__index__()
            except AttributeError:
                raise EncodingError(f"{self.name}.{name}: expected an integer, got {value!r}") from None
            if not least <= value <= greatest:
                item = self.fields[name]
                raise EncodingError(
                    f"{self.name}.{name}: {value} does not fit {item.width} "
                    f"{'signed ' if item.signed else ''}bits ({least}..{greatest})"
                )
            word &= ~mask
            for low, piece, shift in steps:
                word |= ((value >> shift) & piece) << low
        return word

    def encode(self, **values: int) -> int:
        """`pack`, and also refuse values that an enumeration, a fixed field or a rule forbids."""
        word = self.pack(**values)
        self._judge(self._defaults | values if values else self._defaults)
        return word

    def get(self, word: int, name: str) -> int:
        """One field of `word`."""
        signed, sign, _, _, _, steps = self._plan[name]
        value = 0
        for low, mask, shift in steps:
            value |= ((word >> low) & mask) << shift
        return value - (sign << 1) if signed and value & sign else value

    def decode(self, word: int) -> dict[str, int]:
        """Every field of `word` by name; reserved bits are not looked at (see `check`)."""
        out = {}
        for name, (signed, sign, _, _, _, steps) in self._plan.items():
            value = 0
            for low, mask, shift in steps:
                value |= ((word >> low) & mask) << shift
            out[name] = value - (sign << 1) if signed and value & sign else value
        return out

    def check(self, word: int) -> None:
        """Refuse a word that `encode` cannot produce.

        That is one wider than the layout, with a reserved bit set, or with a value that an enumeration, a
        fixed field or a rule forbids; the error names layout, field and value.
        """
        if word < 0 or word >> self.width:
            raise EncodingError(f"{self.name}: {word:#x} is wider than {self.width} bits")
        if word & self.reserved:
            raise EncodingError(f"{self.name}: reserved bits are set: {word & self.reserved:#x}")
        self._judge(self.decode(word))

    def accepts(self, word: int) -> bool:
        """`check` as a question."""
        try:
            self.check(word)
        except EncodingError:
            return False
        return True

    def _judge(self, values: Mapping[str, int]) -> None:
        for name, legal in self._legal.items():
            if values[name] not in legal:
                item, value = self.fields[name], values[name]
                if item.fixed:
                    raise EncodingError(f"{self.name}.{name}: must be {item.default}, not {value}")
                names = ", ".join(f"{member.value} {member.name}" for member in item.enum)
                raise EncodingError(f"{self.name}.{name}: {value} is none of {item.enum.__name__} ({names})")
        for rule in self.rules:
            wrong = rule(values)
            if wrong:
                raise EncodingError(f"{self.name}: {wrong}")
