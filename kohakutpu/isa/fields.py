"""Declarative bit layouts: the one mechanism every encoding table is built on.

A `Layout` is a named word of fixed width made of `Field`s. Encoding refuses a value that does not fit,
decoding is total, and `check` refuses a word with a bit set that no field owns. Tables live beside
this module (`flit`, `cluster`, `vector`, `memory`, `signals`, `registers`); nothing else shifts a bit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class EncodingError(ValueError):
    """A value, field name or word that the table does not allow."""


@dataclass(frozen=True)
class Field:
    """One field of a layout.

    `bits` is a tuple of inclusive (high, low) ranges, most significant piece first; nearly every field
    has one. `signed` fields are two's complement. `enum` names the legal values where they are named.
    """

    name: str
    bits: tuple[tuple[int, int], ...]
    meaning: str
    default: int = 0
    signed: bool = False
    enum: type[IntEnum] | None = None

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

    Raises `EncodingError` when the table itself is wrong: overlapping fields, a field past the word, a
    repeated name, a default that does not fit.
    """

    def __init__(self, name: str, width: int, fields: Iterable[Field], meaning: str = ""):
        self.name = name
        self.width = width
        self.meaning = meaning
        self.fields = {}
        owned = 0
        for item in fields:
            if item.name in self.fields:
                raise EncodingError(f"{name}: field {item.name!r} is declared twice")
            if item.mask >> width:
                raise EncodingError(f"{name}.{item.name}: bits {item.bits} lie outside a {width}-bit word")
            if item.mask & owned:
                raise EncodingError(f"{name}.{item.name}: bits {item.bits} overlap another field")
            if not item.least <= item.default <= item.greatest:
                raise EncodingError(f"{name}.{item.name}: default {item.default} does not fit {item.width} bits")
            owned |= item.mask
            self.fields[item.name] = item
        self.reserved = ((1 << width) - 1) & ~owned
        # (name, signed, sign bit, ((word shift, piece mask, value shift), ...)), computed once for speed
        self._plan = {}
        for item in self.fields.values():
            left, pieces = item.width, []
            for high, low in item.bits:
                left -= high - low + 1
                pieces.append((low, (1 << (high - low + 1)) - 1, left))
            self._plan[item.name] = (item.signed, 1 << (item.width - 1), tuple(pieces))

    def encode(self, **values: int) -> int:
        """The word with the given fields set and every other at its default.

        Raises `EncodingError` naming layout, field, width and value for an unknown field, a value that is
        not an integer, or one that does not fit.
        """
        word = 0
        for name in values:
            if name not in self.fields:
                raise EncodingError(f"{self.name} has no field {name!r}; it has {', '.join(self.fields)}")
        for name, item in self.fields.items():
            value = values.get(name, item.default)
            try:
                value = value.__index__()
            except AttributeError:
                raise EncodingError(f"{self.name}.{name}: expected an integer, got {value!r}") from None
            if not item.least <= value <= item.greatest:
                raise EncodingError(
                    f"{self.name}.{name}: {value} does not fit {item.width} "
                    f"{'signed ' if item.signed else ''}bits ({item.least}..{item.greatest})"
                )
            for low, mask, shift in self._plan[name][2]:
                word |= ((value >> shift) & mask) << low
        return word

    def get(self, word: int, name: str) -> int:
        """One field of `word`."""
        signed, sign, pieces = self._plan[name]
        value = 0
        for low, mask, shift in pieces:
            value |= ((word >> low) & mask) << shift
        return value - (sign << 1) if signed and value & sign else value

    def decode(self, word: int) -> dict[str, int]:
        """Every field of `word` by name; reserved bits are not looked at (see `check`)."""
        out = {}
        for name, (signed, sign, pieces) in self._plan.items():
            value = 0
            for low, mask, shift in pieces:
                value |= ((word >> low) & mask) << shift
            out[name] = value - (sign << 1) if signed and value & sign else value
        return out

    def check(self, word: int) -> None:
        """Refuse a word wider than the layout or with a reserved bit set."""
        if word >> self.width or word < 0:
            raise EncodingError(f"{self.name}: {word:#x} is wider than {self.width} bits")
        if word & self.reserved:
            raise EncodingError(f"{self.name}: reserved bits are set: {word & self.reserved:#x}")
        for name, item in self.fields.items():
            if item.enum is not None and self.get(word, name) not in list(item.enum):
                raise EncodingError(f"{self.name}.{name}: {self.get(word, name)} names nothing in {item.enum.__name__}")
