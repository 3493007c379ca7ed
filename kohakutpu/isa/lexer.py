"""The assembler's lines: tokens with columns, and the `name=value` form that every layout shares."""

from __future__ import annotations

import re
from collections.abc import Container
from typing import NamedTuple

from .fields import EncodingError, Field, Layout
from .flit import node

_TOKEN = re.compile(
    r"(?P<space>\s+)|(?P<comment>[#;].*)|(?P<number>0[xX][0-9A-Fa-f_]+|0[bB][01_]+|[0-9][0-9_]*(?![0-9A-Za-z_]))"
    r"|(?P<name>\.?[A-Za-z_][A-Za-z0-9_.]*)|(?P<mark>->|[-+,=()|:!])"
)


class AssemblyError(EncodingError):
    """Text that does not assemble; the message starts with line and column, both counted from 1."""

    def __init__(self, line: int, column: int, what: str):
        super().__init__(f"line {line}, column {column}: {what}")
        self.line = line
        self.column = column


class Token(NamedTuple):
    kind: str  # "number", "name", "mark" or "end"
    text: str
    column: int


class Cursor:
    """A line of assembly and how far it has been read."""

    def __init__(self, text: str, line: int):
        self.line = line
        self.tokens: list[Token] = []
        self.position = 0
        at = 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise AssemblyError(line, at + 1, f"unexpected {text[at:].split()[0]!r}")
            if found.lastgroup not in ("space", "comment"):
                self.tokens.append(Token(found.lastgroup, found.group(), at + 1))
            at = found.end()
        self.tokens.append(Token("end", "end of line", len(text.rstrip()) + 1))

    @property
    def next(self) -> Token:
        return self.tokens[self.position]

    @property
    def done(self) -> bool:
        return self.next.kind == "end"

    def error(self, what: str, token: Token | None = None) -> AssemblyError:
        return AssemblyError(self.line, (token or self.next).column, what)

    def take(self) -> Token:
        token = self.next
        if token.kind != "end":
            self.position += 1
        return token

    def accept(self, text: str) -> bool:
        """Take the next token if it is `text`."""
        if self.next.text == text and not self.done:
            self.position += 1
            return True
        return False

    def expect(self, text: str) -> None:
        if not self.accept(text):
            raise self.error(f"expected {text!r}, got {self.next.text!r}")

    def name(self, what: str) -> Token:
        if self.next.kind != "name":
            raise self.error(f"expected {what}, got {self.next.text!r}")
        return self.take()

    def number(self, what: str, least: int, greatest: int) -> int:
        """A number in `least`..`greatest`, with a sign where it may have one."""
        token = self.next
        negative = self.accept("-")
        if self.next.kind != "number":
            raise self.error(f"expected {what}, got {self.next.text!r}")
        try:
            value = int(self.take().text, 0)
        except ValueError:
            raise self.error(f"{what}: {token.text!r} is not a number (decimal, 0x or 0b)", token) from None
        value = -value if negative else value
        if not least <= value <= greatest:
            raise self.error(f"{what}: {value} does not fit {least}..{greatest}", token)
        return value

    def node(self) -> int:
        """A coordinate `(x,y)`, packed."""
        self.expect("(")
        x = self.number("column", 0, 15)
        self.expect(",")
        y = self.number("row", 0, 15)
        self.expect(")")
        return node(x, y)

    def finish(self) -> None:
        if not self.done:
            raise self.error(f"unexpected {self.next.text!r}")


def value_text(item: Field, value: int) -> str:
    """A field's value as people write it: an enumeration's name, hexadecimal or decimal."""
    if item.enum is not None and value in list(item.enum):
        return item.enum(value).name
    return hex(value) if item.hex else str(value)


def fields_text(layout: Layout, word: int, skip: Container[str] = ()) -> str:
    """` name=value` for every field that does not hold its default; a lone 1-bit flag is just its name."""
    parts = []
    for name, item in layout.fields.items():
        value = layout.get(word, name)
        if value != item.default and name not in skip:
            flag = item.width == 1 and item.enum is None and value == 1
            parts.append(f" {name}" if flag else f" {name}={value_text(item, value)}")
    return "".join(parts)


def parse_value(cursor: Cursor, item: Field, what: str) -> int:
    """The value of a field: one of its enumeration's names, or a number that fits."""
    token = cursor.next
    if item.enum is not None and token.kind == "name":
        try:
            return item.enum[cursor.take().text]
        except KeyError:
            names = ", ".join(item.enum.__members__)
            raise cursor.error(f"{what}: {token.text!r} is none of {names}", token) from None
    return cursor.number(f"{what} ({item.width} bits)", item.least, item.greatest)


def parse_field(cursor: Cursor, layout: Layout, values: dict[str, int], skip: Container[str] = ()) -> None:
    """One `name=value` or `flag` of `layout` into `values`."""
    token = cursor.name(f"a field of {layout.name}")
    item = layout.fields.get(token.text)
    if item is None or item.fixed or token.text in skip:
        known = ", ".join(name for name, f in layout.fields.items() if not f.fixed and name not in skip)
        raise cursor.error(f"{layout.name} has no field {token.text!r}" + (f"; it has {known}" if known else ""), token)
    if token.text in values:
        raise cursor.error(f"{layout.name}.{token.text} is given twice", token)
    if cursor.accept("="):
        values[token.text] = parse_value(cursor, item, f"{layout.name}.{token.text}")
    elif item.width == 1 and item.enum is None:
        values[token.text] = 1
    else:
        raise cursor.error(f"{layout.name}.{token.text} needs a value: {token.text}=...")


def parse_fields(cursor: Cursor, layout: Layout, start: Token, **values: int) -> int:
    """The rest of the line as fields of `layout`; the encoded word. Rule errors point at `start`."""
    given = set(values)
    while not cursor.done:
        parse_field(cursor, layout, values, given)
    return encoded(cursor, layout, start, values)


def encoded(cursor: Cursor, layout: Layout, start: Token, values: dict[str, int]) -> int:
    """`layout.encode(**values)` with its refusal placed at `start`."""
    try:
        return layout.encode(**values)
    except EncodingError as wrong:
        raise cursor.error(str(wrong), start) from None
