"""`L.plane`: an image as the operand of a convolution, whose taps are slices of it that begin at other lanes."""

from __future__ import annotations

from .elementwise import Elementwise, Value
from .extents import Axis, Expr, Index, Placed, Tap, indices_in, same
from .recorder import active
from .slices import Plane, Slice
from .source import KernelError, here
from .trace import READ_ONLY, Buffer
from .values import Handle, Part, moved_by, positive


class PlaneView(Elementwise):
    """A plane inside the body: `x[i, 0, x.tap(s)]` is an operand slice, and nothing else is done with it."""

    chunks32 = 1  # the blocks of channels are steps of `tap`

    def __init__(self, buffer: Buffer, plane: Plane):
        self.buffer = buffer
        self.plane = plane

    @property
    def tiles(self) -> Axis:
        """The result's rows in steps of `gm` groups of 4."""
        return self.plane.axes[0]

    @property
    def taps(self) -> Expr | int:
        """How many steps `tap` has: 9 for each block of 32 channels."""
        return self.plane.steps

    def tap(self, step: Expr | int) -> Tap:
        """Where step `step` of the 3x3 window is read: taps row by row, and within a tap its blocks of 32 channels, the order
        of the columns of weights [out][tap][channel]."""
        if isinstance(step, bool) or not isinstance(step, (int, Expr)) or (isinstance(step, int) and step < 0):
            raise KernelError(f"{self.buffer.name}.tap: expected an index or an integer of at least 0, got {step!r}", here())
        return self.plane.tap(step)

    def __getitem__(self, key) -> Part:
        active().require_own(self.buffer)
        name, gm = self.buffer.name, self.plane.gm
        indices = key if isinstance(key, tuple) else (key,)
        if len(indices) != 3:
            raise KernelError(
                f"{name} is a plane and has three indices, {name}[i, 0, {name}.tap(s)]: a tile of the result, chunk 0, and the "
                f"lane to begin at; not {len(indices)}",
                here(),
            )
        tile, chunk, lane = indices
        if isinstance(chunk, bool) or not isinstance(chunk, int) or chunk != 0:
            raise KernelError(
                f"{name}[i, {chunk!r}, ...]: a plane has one chunk, 0; its blocks of 32 channels are steps of {name}.tap(s)", here()
            )
        if isinstance(lane, bool) or not isinstance(lane, (int, Expr)):
            raise KernelError(f"{name}[i, 0, {lane!r}]: expected {name}.tap(s) or a number of lanes", here())
        if isinstance(lane, Tap) and lane != self.plane.tap(lane.step):
            raise KernelError(f"{name}[i, 0, {lane}]: a tap of another plane; expected {name}.tap({lane.step})", here())
        axis, tile = self._tile(tile)
        if axis.kind != "tiles" or axis.per != gm or not same(axis.length, self.plane.rows):
            divided = f"{axis.kind} of {axis.length}" + (f", {axis.per} groups each" if axis.kind == "tiles" else "")
            raise KernelError(
                f"{name}: the index {tile} divides {divided}; this plane's own axis, {name}.tiles, divides the {self.plane.rows} "
                f"rows of its result into tiles of {gm} groups",
                here(),
            )
        part = Slice(name, (tile, 0), self.plane.axes, moved_by(name, lane), self.plane)
        return Part(part, self.buffer)

    def _tile(self, tile) -> tuple[Axis, Expr | int]:
        """What the first index divides, and the index."""
        inner = tile.index if isinstance(tile, Placed) else tile
        found: list[Index] = indices_in(inner) if isinstance(inner, Expr) else []
        for opened in found:
            active().require_open(opened)
        if isinstance(tile, Placed):
            return tile.axis, inner
        if len(found) != 1:
            raise KernelError(f"{self.buffer.name}[{tile!r}, ...]: expected an index of an open tiling or loop", here())
        return found[0].axis, inner

    def __setitem__(self, key, value) -> None:
        raise self._only_read()

    def __ilshift__(self, value) -> PlaneView:
        raise self._only_read()

    def _only_read(self) -> KernelError:
        return KernelError(f"{self.buffer.name} is a plane, which products read and nothing writes", here())

    def _value(self) -> Value:
        name = self.buffer.name
        raise KernelError(f"{name} is a plane: its slices stand in a product, acc += {name}[i, 0, {name}.tap(s)] @ w[j, s]", here())


def plane(buf: Handle, gm: int) -> PlaneView:
    """An image of axes (height, width, channels) as the operand of 3x3 convolutions with stride 1 and a border of one zero, in
    tiles of `gm` groups of 4 positions (spec: compiler, 1.5 and 3.4).

    The result has `plane_rows(height, width)` rows. Raises KernelError for a buffer of other axes, and for one that is no
    operand: what is around the image must stay zero.
    """
    source = here()
    if not isinstance(buf, Handle):
        raise KernelError(f"plane: expected a buffer of (height, width, channels), got {type(buf).__name__}", source)
    buffer = buf.buffer
    active().require_own(buffer)
    shape = "..." if buffer.whole else ", ".join(map(str, buffer.shape))
    if buffer.whole or len(buffer.shape) != 3:
        raise KernelError(
            f"{buffer.name}({shape}): a plane is an image of three axes apart from `...`, (height, width, channels)", source
        )
    if buffer.role not in READ_ONLY:
        raise KernelError(
            f"{buffer.name} is written by this kernel, and a plane is read from what the host lays out: the zeros around the "
            "image are no elements of the buffer",
            source,
        )
    return PlaneView(buffer, Plane(*buffer.shape, positive(gm, "plane: gm", source)))
