"""Byte orders of a buffer in memory (spec: layouts; host layout contract).

A layout orders the elements of one batch element; `BufferImage` in `artifact` repeats it. Data is FP16 bit patterns
(uint16, or float16, which is taken as its bits). Padding is zero.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from functools import cached_property

import numpy as np

from kohakutpu.lang.extents import BORDER, KBLOCK, LANES
from kohakutpu.lang.slices import Plane

WORD = 32  # bytes of a memory word, of a sub-tile and of an L1 word
HALVES = WORD // 2
ENTRY = 256  # bytes of an operand entry: 4 lanes of 32 K
LANE = 64  # of one lane


class LayoutError(ValueError):
    """Data that does not have the layout's shape or size."""


def _ceil(value: int, grain: int) -> int:
    return -(-value // grain) * grain


@dataclass(frozen=True)
class Layout:
    """Common to all: `shape` is the element's logical shape, `bytes` its size in memory, padding included."""

    @property
    def shape(self) -> tuple[int, ...]:
        raise NotImplementedError

    @property
    def key(self) -> str:
        """The order without the shape: buffers of one shape and key have the same bytes."""
        raise NotImplementedError

    def arrange(self, array: np.ndarray, pad) -> np.ndarray:
        """The elements of `array` (of `shape`, any dtype) in memory order, flat, with `pad` where there is none."""
        raise NotImplementedError

    @cached_property
    def order(self) -> np.ndarray:
        """int64: the flat index of the element that each FP16 place of the image holds, -1 for padding."""
        return self.arrange(np.arange(np.prod(self.shape, dtype=np.int64)).reshape(self.shape), -1)

    @property
    def bytes(self) -> int:
        return 2 * self.halves

    @property
    def halves(self) -> int:
        raise NotImplementedError

    def pack(self, array: np.ndarray) -> bytes:
        """The image of an FP16 array of `shape`."""
        if array.dtype not in (np.dtype(np.uint16), np.dtype(np.float16)):
            raise LayoutError(f"{self.key}: expected FP16 (float16 or uint16 bit patterns), got {array.dtype}")
        if array.shape != self.shape:
            raise LayoutError(f"{self.key}: expected shape {self.shape}, got {array.shape}")
        return self.arrange(np.ascontiguousarray(array).view(np.uint16), 0).astype("<u2").tobytes()

    def unpack(self, image: bytes) -> np.ndarray:
        """The uint16 array that an image holds; padding is dropped."""
        if len(image) != self.bytes:
            raise LayoutError(f"{self.key}: expected {self.bytes} bytes, got {len(image)}")
        out = np.empty(int(np.prod(self.shape)), np.uint16)
        real = self.order >= 0
        out[self.order[real]] = np.frombuffer(image, "<u2")[real]
        return out.reshape(self.shape)

    def to_dict(self) -> dict:
        return {"kind": type(self).__name__, **asdict(self)}


@dataclass(frozen=True)
class Flat(Layout):
    """Row-major, `extent` the logical shape."""

    extent: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.extent

    @property
    def key(self) -> str:
        return "flat"

    @property
    def halves(self) -> int:
        return _ceil(int(np.prod(self.extent)), HALVES)

    def arrange(self, array, pad):
        out = np.full(self.halves, pad, array.dtype)
        out[: array.size] = array.reshape(-1)
        return out


@dataclass(frozen=True)
class Rows(Layout):
    """Row-major, each row (along the last axis) padded to whole words."""

    extent: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.extent

    @property
    def key(self) -> str:
        return "rows"

    @property
    def halves(self) -> int:
        return int(np.prod(self.extent[:-1])) * _ceil(self.extent[-1], HALVES)

    def arrange(self, array, pad):
        out = np.full((array.size // self.extent[-1], _ceil(self.extent[-1], HALVES)), pad, array.dtype)
        out[:, : self.extent[-1]] = array.reshape(-1, self.extent[-1])
        return out.reshape(-1)


def in_rows(extent: tuple[int, ...]) -> Layout:
    """Rows that begin on words: `Flat` where they do so anyway."""
    return Flat(extent) if extent[-1] % HALVES == 0 else Rows(extent)


@dataclass(frozen=True)
class Entry(Layout):
    """An operand: [tile][chunk][group][block][lane][k], so that one FILL reads one run."""

    rows: int
    columns: int
    groups: int
    blocks: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows, self.columns)

    @property
    def key(self) -> str:
        return f"entry:{self.groups}x{self.blocks}"

    @property
    def tiles(self) -> int:
        return -(-self.rows // (LANES * self.groups))

    @property
    def chunks(self) -> int:
        return -(-self.columns // (KBLOCK * self.blocks))

    @property
    def entries(self) -> int:
        """Entries of one tile and chunk."""
        return self.groups * self.blocks

    @property
    def halves(self) -> int:
        return self.tiles * self.chunks * self.entries * ENTRY // 2

    @property
    def entry_bytes(self) -> int:
        """Bytes of one entry in memory."""
        return ENTRY

    def offset(self, tile: int, chunk: int) -> int:
        """Byte offset of the run that a FILL of this tile and chunk reads."""
        return (tile * self.chunks + chunk) * self.entries * self.entry_bytes

    def arrange(self, array, pad):
        full = np.full((self.tiles * self.groups * LANES, self.chunks * self.blocks * KBLOCK), pad, array.dtype)
        full[: self.rows, : self.columns] = array
        split = full.reshape(self.tiles, self.groups, LANES, self.chunks, self.blocks, KBLOCK)
        return split.transpose(0, 3, 1, 4, 2, 5).reshape(-1)


@dataclass(frozen=True)
class Quantised(Entry):
    """An operand that is MXFP7 in memory: the same entries in the same order, packed for one side of the clusters.

    `pack` gives the FP16 entries that the host sends to the upload aperture of that side; `bytes` is what the machine
    makes of them.
    """

    side: str  # 'A' or 'B'

    @property
    def key(self) -> str:
        return f"mxfp7-{self.side.lower()}:{self.groups}x{self.blocks}"

    @property
    def entry_bytes(self) -> int:
        return ENTRY // 2

    @property
    def bytes(self) -> int:
        return self.tiles * self.chunks * self.entries * self.entry_bytes

    def unpack(self, image: bytes) -> np.ndarray:
        raise LayoutError(f"{self.key}: what the machine has quantised is no FP16 array any more")


@dataclass(frozen=True)
class Shifted(Layout):
    """An operand whose tiles are read from any row on: [block of 32 K][row][k], so that 4 * groups rows are one run.

    `most` rows of zeros at least follow the last tile.
    """

    rows: int
    columns: int
    groups: int
    most: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows, self.columns)

    @property
    def key(self) -> str:
        return f"shifted:{self.groups}+{self.most}"

    @property
    def entry_bytes(self) -> int:
        return ENTRY

    @property
    def held(self) -> int:
        """Rows in memory."""
        return _ceil(_ceil(self.rows, LANES * self.groups) + self.most, LANES)

    @property
    def chunks(self) -> int:
        return -(-self.columns // KBLOCK)

    @property
    def halves(self) -> int:
        return self.chunks * self.held * KBLOCK

    def offset(self, tile: int, chunk: int) -> int:
        """Byte offset of the run that a FILL of this tile and chunk reads."""
        return 2 * KBLOCK * (chunk * self.held + tile * LANES * self.groups)

    def arrange(self, array, pad):
        full = np.full((self.held, self.chunks * KBLOCK), pad, array.dtype)
        full[: self.rows, : self.columns] = array
        return full.reshape(self.held, self.chunks, KBLOCK).transpose(1, 0, 2).reshape(-1)


@dataclass(frozen=True)
class ConvEntry(Layout):
    """An image [height][width][channels] inside its border of zeros: [block of 32 channels][lane][channel] (spec: layouts).

    What a lane is, `lang.slices.Plane` says. Zeros follow the last block where the last tile's window would leave it; that
    of another block reads on in the next one, for rows past the result's last.
    """

    height: int
    width: int
    channels: int
    groups: int

    @cached_property
    def plane(self) -> Plane:
        return Plane(self.height, self.width, self.channels, self.groups)

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.height, self.width, self.channels)

    @property
    def key(self) -> str:
        return f"conv:{BORDER}:{self.groups}"

    @property
    def entry_bytes(self) -> int:
        return ENTRY

    @property
    def held(self) -> int:
        """Lanes in memory."""
        plane, rows = self.plane, LANES * self.groups
        end = _ceil(plane.rows, rows) + plane.reach  # of the last tile's window, in its block
        return (plane.blocks - 1) * plane.lanes + max(plane.lanes, _ceil(end, LANES))

    @property
    def halves(self) -> int:
        return self.held * KBLOCK

    def offset(self, tile: int, chunk: int) -> int:
        """Byte offset of the run that a FILL of this tile reads, moved by no lane; there is the one chunk 0."""
        return LANE * (chunk * self.plane.lanes + tile * LANES * self.groups)

    def arrange(self, array, pad):
        plane, high = self.plane, self.height + 2 * BORDER
        full = np.full((high, plane.across, plane.blocks * KBLOCK), pad, array.dtype)
        full[BORDER:-BORDER, BORDER:-BORDER, : self.channels] = array
        out = np.full((self.held, KBLOCK), pad, array.dtype)
        blocks = out[: plane.blocks * plane.lanes].reshape(plane.blocks, plane.lanes, KBLOCK)
        blocks[:, : high * plane.across] = full.reshape(-1, plane.blocks, KBLOCK).transpose(1, 0, 2)
        return out.reshape(-1)


@dataclass(frozen=True)
class Tile(Layout):
    """A result: the instances' tiles one after another, each gm x gn sub-tiles of 4x4 row-major."""

    rows: int
    columns: int
    gm: int
    gn: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows, self.columns)

    @property
    def grid(self) -> tuple[int, int]:
        return -(-self.rows // (LANES * self.gm)), -(-self.columns // (LANES * self.gn))

    @property
    def key(self) -> str:
        return "tile:{}x{}:{}x{}".format(*self.grid, self.gm, self.gn)

    @property
    def words(self) -> int:
        """Sub-tiles of one tile."""
        return self.gm * self.gn

    @property
    def halves(self) -> int:
        return self.grid[0] * self.grid[1] * self.words * HALVES

    def offset(self, i: int, j: int) -> int:
        """Byte offset of the tile of instance (i, j)."""
        return (i * self.grid[1] + j) * self.words * WORD

    def arrange(self, array, pad):
        gi, gj = self.grid
        full = np.full((gi * self.gm * LANES, gj * self.gn * LANES), pad, array.dtype)
        full[: self.rows, : self.columns] = array
        split = full.reshape(gi, self.gm, LANES, gj, self.gn, LANES)
        return split.transpose(0, 3, 1, 4, 2, 5).reshape(-1)


@dataclass(frozen=True)
class ChannelBias(Layout):
    """A per-channel vector for tiles of gn column groups: one word a group, its four values down four rows."""

    channels: int
    gn: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.channels,)

    @property
    def key(self) -> str:
        return f"bias:{self.gn}"

    @property
    def halves(self) -> int:
        return _ceil(self.channels, LANES * self.gn) * LANES

    def offset(self, j: int) -> int:
        """Byte offset of the words of tile column j."""
        return j * self.gn * WORD

    def arrange(self, array, pad):
        full = np.full(_ceil(self.channels, LANES * self.gn), pad, array.dtype)
        full[: self.channels] = array
        return np.repeat(full.reshape(-1, 1, LANES), LANES, axis=1).reshape(-1)


_KINDS = {kind.__name__: kind for kind in (Flat, Rows, Entry, Quantised, Shifted, ConvEntry, Tile, ChannelBias)}


def from_dict(record: dict) -> Layout:
    """The layout that `to_dict` wrote."""
    record = dict(record)
    name = record.pop("kind", None)
    if name not in _KINDS:
        raise LayoutError(f"layout kind {name!r} is none of {', '.join(_KINDS)}")
    kind = _KINDS[name]
    if set(record) != {f.name for f in fields(kind)}:
        raise LayoutError(f"layout {name}: fields {sorted(record)} are not {[f.name for f in fields(kind)]}")
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in record.items()})
