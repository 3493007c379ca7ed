"""Parts of buffers that statements name, images seen as planes, and whether there is such a part."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kohakutpu.wording import counted

from .extents import BORDER, KBLOCK, LANES, TAPS, Axis, Expr, Extents, Index, Tap, ceildiv, plane_rows, resolve
from .source import KernelError, Source, located

if TYPE_CHECKING:
    from .trace import Buffer


@dataclass(frozen=True)
class Plane:
    """An image [height][width][channels] as an operand of convolutions (`L.plane`).

    Its positions, inside a border of zeros and read line by line, are `lanes` of 32 channels (a few of zeros make them whole
    entries), once for each of `blocks` blocks of channels, the last one padded with zeros. Row r of a result's tile meets
    lane r + s for a slice that is moved by s lanes. All extents, or (`at`) all numbers.
    """

    height: Expr | int
    width: Expr | int
    channels: Expr | int
    gm: int

    @property
    def across(self) -> Expr | int:
        return self.width + 2 * BORDER

    @property
    def lanes(self) -> Expr | int:
        return ceildiv((self.height + 2 * BORDER) * self.across, LANES) * LANES

    @property
    def blocks(self) -> Expr | int:
        return ceildiv(self.channels, KBLOCK)

    @property
    def steps(self) -> Expr | int:
        """Taps of every block."""
        return TAPS * TAPS * self.blocks

    @property
    def rows(self) -> Expr | int:
        """Of the result."""
        return plane_rows(self.height, self.width)

    @property
    def reach(self) -> Expr | int:
        """The last tap: by how many lanes a slice is moved at most."""
        return (TAPS - 1) * (self.across + 1)

    @property
    def axes(self) -> tuple[Axis, Axis]:
        """Of a slice: the result's rows in tiles, and one block of all that a window sums."""
        tiles = Axis("tiles", self.gm, self.rows, ceildiv(ceildiv(self.rows, LANES), self.gm))
        return tiles, Axis("chunks32", 1, KBLOCK * self.steps, self.steps)

    def tap(self, step: Expr | int) -> Tap:
        return Tap(step, self.blocks, self.lanes, self.across)

    def at(self, known: Mapping[str, int]) -> Plane:
        """The plane in numbers."""
        return Plane(*(resolve(extent, known) for extent in (self.height, self.width, self.channels)), self.gm)


@dataclass(frozen=True)
class Slice:
    """A part of a buffer, `indices[d]` dividing axis d as the axis of the index it contains says.

    Two indices of a two-axis buffer are a tile ([tiles, tiles]) or an operand ([tiles, chunks32]); one index is
    a part of the flat buffer ('parts'), or the columns of a per-channel vector ('tiles' on a one-axis buffer,
    repeated down every row of the tile it meets). An operand moved down by `shift` rows begins so many rows later. A slice
    of a `plane` is an operand too: its tile, chunk 0, and a `shift` of so many lanes.
    """

    buffer: str
    indices: tuple[Expr | int, ...]
    axes: tuple[Axis, ...]
    shift: Expr | int = 0
    plane: Plane | None = None

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(axis.kind for axis in self.axes)

    @property
    def moved(self) -> bool:
        """It may begin at another row than a tile's first."""
        return self.plane is not None or isinstance(self.shift, Expr) or self.shift > 0

    def text(self) -> str:
        """As it is written."""
        name = f"plane({self.buffer}, {self.plane.gm})" if self.plane else self.buffer
        return f"{name}[{', '.join(map(str, (*self.indices, *([self.shift] if self.moved else []))))}]"


def check_slice(
    part: Slice, buffer: Buffer, extents: Extents, known: Mapping[str, int], source: Source
) -> tuple[int, ...]:
    """The index values of a slice, refused when one starts past the end of the axis it divides.

    A chunk that is computed from an index, such as `s * x.chunks32(1) + k`, needs an axis of whole chunks.
    """
    if part.plane is not None:
        lengths = tuple(resolve(axis.length, known) for axis in part.axes)
    else:
        shape = buffer.element_shape(extents)
        lengths = (math.prod(shape),) if part.kinds == ("parts",) else shape
    values = tuple(resolve(index, known) for index in part.indices)
    for axis, value, length in zip(part.axes, values, lengths, strict=True):
        if value < 0 or value * axis.step >= length:
            raise KernelError(
                f"{part.text()} reaches index {value} of an axis of {length} elements in steps of {axis.step}",
                source,
            )
    for index, axis in zip(part.indices, part.axes, strict=True):
        if axis.kind == "chunks32" and not isinstance(index, Index) and resolve(axis.length, known) % axis.step:
            raise KernelError(
                f"{part.text()} computes a chunk of an axis of {resolve(axis.length, known)} elements, which is no "
                f"multiple of the chunk's {axis.step}",
                source,
            )
    return values


def check_shift(part: Slice, known: Mapping[str, int], source: Source) -> int:
    """By how many rows an operand is moved, or lanes of a plane; refused when a plane has no window that begins there."""
    with located(source):
        shift = resolve(part.shift, known)
    if shift < 0:
        raise KernelError(f"{part.text()}: an operand is moved down by rows, and {shift} is negative", source)
    if part.plane is not None:
        plane = part.plane.at(known)
        block, place = divmod(shift, plane.lanes)
        if block >= plane.blocks or place > plane.reach:
            raise KernelError(
                f"{part.text()} is moved by {shift} lanes; of the {plane.lanes} lanes of each of "
                f"{counted(plane.blocks, 'block')}, a window of {TAPS}x{TAPS} taps begins at 0 to {plane.reach}",
                source,
            )
    return shift


def check_product(a: Slice, b: Slice, known: Mapping[str, int], source: Source) -> None:
    """Refuse weights that do not hold whole taps of the plane they meet: its channels are padded to whole blocks."""
    for part, weights in ((a, b), (b, a)):
        if part.plane is not None and weights.plane is None:
            plane, columns = part.plane.at(known), resolve(weights.axes[1].length, known)
            if columns % (KBLOCK * plane.blocks):
                raise KernelError(
                    f"{weights.buffer} has {columns} columns, and meets {part.buffer}, whose {counted(plane.channels, 'channel')} "
                    f"are {KBLOCK * plane.blocks} columns for each tap, the last of them zeros: expected "
                    f"{KBLOCK * plane.steps} columns for {TAPS}x{TAPS} taps, or a multiple of {KBLOCK * plane.blocks}",
                    source,
                )
