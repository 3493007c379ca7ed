"""Symbolic extents: dims, loop and grid indices, and what divides an axis.

A kernel is traced once for every shape, so an extent stays an expression until `resolve` is given numbers.
"""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Mapping
from dataclasses import dataclass

from kohakutpu.wording import counted

from .source import KernelError, here

LANES = 4  # rows of a sub-tile, and lanes of an entry
KBLOCK = 32  # K elements of one MXFP7 block


class Expr:
    """An integer known once the shapes (and, for an index, the instance) are: + - * // and `ceildiv`."""

    __slots__ = ()
    __array_ufunc__ = None  # numpy scalars leave the operator to us

    def __add__(self, other):
        return _binary("+", self, other)

    def __radd__(self, other):
        return _binary("+", other, self)

    def __sub__(self, other):
        return _binary("-", self, other)

    def __rsub__(self, other):
        return _binary("-", other, self)

    def __mul__(self, other):
        return _binary("*", self, other)

    def __rmul__(self, other):
        return _binary("*", other, self)

    def __floordiv__(self, other):
        return _binary("//", self, other)

    def __rfloordiv__(self, other):
        return _binary("//", other, self)

    def _key(self) -> tuple:
        raise NotImplementedError

    def __eq__(self, other):
        if isinstance(other, Expr):
            return self._key() == other._key()
        return self._unknown() if isinstance(other, numbers.Number) else NotImplemented

    def __hash__(self):
        return hash(self._key())

    def _unknown(self, *_):
        raise KernelError(
            f"{self} is not a number while the kernel is traced: one trace serves every shape, so nothing in the body "
            "may depend on it; use a knob",
            here(),
        )

    __lt__ = __le__ = __gt__ = __ge__ = __bool__ = __int__ = __index__ = __float__ = __iter__ = _unknown


@dataclass(frozen=True, eq=False, repr=False)
class Name(Expr):
    """A dim: an extent named by the author and solved from the operands' shapes."""

    name: str

    def _key(self):
        return ("name", self.name)

    def __repr__(self):
        return self.name


@dataclass(frozen=True, eq=False)
class Axis:
    """How a tiling or loop divides an axis of a buffer.

    `kind` is 'tiles' (4*per rows), 'chunks32' (32*per columns), 'parts' (per elements) or 'count' (a bare
    number of repetitions, which slices nothing). `length` is the extent that is divided, `count` how many steps
    there are.
    """

    kind: str
    per: int
    length: Expr | int
    count: Expr | int

    @property
    def step(self) -> int:
        """Elements along the divided axis that one index covers."""
        return {"tiles": LANES * self.per, "chunks32": KBLOCK * self.per, "parts": self.per}[self.kind]

    def at(self, index: Expr | int) -> Placed:
        """The step number `index` of this division, for an index that another tiling or loop opened:
        `x[x.tiles(4).at(b)]`."""
        if isinstance(index, bool) or not isinstance(index, (int, Expr)):
            raise KernelError(f"at: expected an index or an integer, got {index!r}", here())
        return Placed(index, self)

    def span(self, index: int, length: int) -> tuple[int, int]:
        """Elements [first, last) of an axis of `length` that `index` covers, the padding of the last step cut off."""
        return index * self.step, min((index + 1) * self.step, length)


@dataclass(frozen=True)
class Placed:
    """An index used as a step of `axis`, whatever opened it."""

    index: Expr | int
    axis: Axis


@dataclass(frozen=True, eq=False, repr=False)
class Index(Expr):
    """The index of a tiling or loop; `name` is unique among those open at the same time."""

    name: str
    axis: Axis

    def _key(self):
        return ("index", id(self))

    def __repr__(self):
        return self.name


@dataclass(frozen=True, eq=False, repr=False)
class Binary(Expr):
    op: str  # + - * // ceildiv
    left: Expr | int
    right: Expr | int

    def _key(self):
        return (self.op, _key_of(self.left), _key_of(self.right))

    def __repr__(self):
        if self.op == "ceildiv":
            return f"ceildiv({self.left}, {self.right})"
        return f"({self.left} {self.op} {self.right})"


TAPS = 3  # of a window over a plane, along each of its axes
BORDER = 1  # positions of zeros that a plane has around its image


@dataclass(frozen=True, eq=False, repr=False)
class Tap(Expr):
    """The lane at which a window over a plane reads tap number `step`: taps row by row, and within a tap each of `blocks`
    blocks of 32 channels, which have `lanes` lanes each; `across` is the plane's width with its border."""

    step: Expr | int
    blocks: Expr | int
    lanes: Expr | int
    across: Expr | int

    def _key(self):
        return ("tap", *map(_key_of, (self.step, self.blocks, self.lanes, self.across)))

    def __repr__(self):
        return f"tap({self.step})"

    def lane(self, known: Mapping[str, int]) -> int:
        """The number. Raises KernelError for a step past the last tap."""
        step, blocks, lanes, across = (resolve(part, known) for part in (self.step, self.blocks, self.lanes, self.across))
        tap, block = divmod(step, blocks)
        if not 0 <= tap < TAPS * TAPS:
            raise KernelError(
                f"{self} is step {step} of a window of {TAPS}x{TAPS} taps by {counted(blocks, 'block')} of {KBLOCK} channels, which "
                f"has steps 0 to {TAPS * TAPS * blocks - 1}"
            )
        return block * lanes + tap // TAPS * across + tap % TAPS


def plane_rows(height: Expr | int, width: Expr | int) -> Expr | int:
    """Rows of a result over a plane of `height` x `width` positions (`L.plane`): position (h, w) is row h * (width + 2) + w,
    and the rows between the last of a line and the first of the next are the border's."""
    return (height - 1) * (width + 2 * BORDER) + width


def _key_of(value: Expr | int) -> tuple:
    return value._key() if isinstance(value, Expr) else ("integer", value)


def same(a: Expr | int, b: Expr | int) -> bool:
    """The two extents are written alike, and so are equal for every shape."""
    return _key_of(a) == _key_of(b)


def _binary(op: str, left, right):
    for side in (left, right):
        if isinstance(side, bool) or not isinstance(side, (int, Expr)):
            return NotImplemented
    return Binary(op, left, right)


def ceildiv(a: Expr | int, b: Expr | int) -> Expr | int:
    """The least integer not below a / b."""
    if isinstance(a, int) and isinstance(b, int):
        return -(-a // b)
    return Binary("ceildiv", a, b)


def dims(names: str) -> Name | tuple[Name, ...]:
    """Names for extents, separated by commas or spaces: `M, K, N = dims("M, K, N")`."""
    found = [part for part in re.split(r"[,\s]+", names) if part]
    for name in found:
        if not name.isidentifier():
            raise KernelError(f"dims: {name!r} is not an identifier", here())
    if not found or len(set(found)) != len(found):
        raise KernelError(f"dims: expected distinct names, got {names!r}", here())
    made = tuple(Name(name) for name in found)
    return made[0] if len(made) == 1 else made


def resolve(value: Expr | int, known: Mapping[str, int]) -> int:
    """The number behind an extent; `known` maps dim and index names to integers.

    Raises KernelError for a name that is not known and for a division by zero.
    """
    if isinstance(value, int):
        return value
    if isinstance(value, (Name, Index)):
        if value.name not in known:
            raise KernelError(f"the extent {value} is not known; known are {', '.join(map(str, known)) or 'none'}")
        return known[value.name]
    if isinstance(value, Tap):
        return value.lane(known)
    left, right = resolve(value.left, known), resolve(value.right, known)
    if value.op == "+":
        return left + right
    if value.op == "-":
        return left - right
    if value.op == "*":
        return left * right
    if right == 0:
        raise KernelError(f"{value} divides by zero")
    return left // right if value.op == "//" else -(-left // right)


def names_in(value: Expr | int) -> set[str]:
    """The dim names an extent depends on."""
    if isinstance(value, Name):
        return {value.name}
    if isinstance(value, Binary):
        return names_in(value.left) | names_in(value.right)
    if isinstance(value, Tap):
        return set().union(*map(names_in, (value.step, value.blocks, value.lanes, value.across)))
    return set()


def indices_in(value: Expr | int) -> list[Index]:
    """The indices an expression depends on, each once, in the order they are written."""
    if isinstance(value, Index):
        return [value]
    if isinstance(value, Binary):
        return list(dict.fromkeys(indices_in(value.left) + indices_in(value.right)))
    return indices_in(value.step) if isinstance(value, Tap) else []


@dataclass(frozen=True)
class Extents:
    """Every number a call fixes: `dims` by name; `lead`, the batch axes in front of every `...` port."""

    dims: Mapping[str, int]
    lead: tuple[int, ...] = ()

    @property
    def batch(self) -> int:
        """Batch elements; 1 without leading axes."""
        return math.prod(self.lead)
