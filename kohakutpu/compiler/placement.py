"""Where buffers stand in memory: an arena of 2048-byte pages, around what the caller placed.

Temporaries whose lives do not meet may share pages. `guard` checks that without looking at lives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from .artifact import BufferImage
from .layouts import WORD, Entry
from .refusals import FILL_ALIGN, PAGE, CompileError


def _pages(size: int) -> int:
    return -(-size // PAGE) * PAGE


class NoRoom(CompileError):
    """Buffers that do not fit: `image` is the first without a place, of `size` bytes of pages."""

    image: BufferImage
    size: int


@dataclass(frozen=True)
class Life:
    """The first stage that touches a buffer, which writes all of it, and the last one."""

    first: int
    last: int

    def meets(self, other: Life | None) -> bool:
        return other is None or (self.first <= other.last and other.first <= self.last)


@dataclass(frozen=True)
class Reach:
    """Bytes from a buffer's address that instructions touch, where whole runs go past its end: read, and written."""

    read: int = 0
    written: int = 0


def place(
    images: Mapping[str, BufferImage],
    memory: int,
    addresses: Mapping[str, int],
    allow_overlap: bool,
    reach: Mapping[str, Reach],
    lives: Mapping[str, Life] = MappingProxyType({}),
    held: Sequence[tuple[int, int]] = (),
) -> dict[str, BufferImage]:
    """The buffers with their addresses, in the order given; `memory` is the machine's size in bytes.

    Buffers that have a life share pages with others whose lives they do not meet; those that have none live always, and
    so do those with a given address. What is written past the end of a buffer must hit no other one, and what is read there must be memory.
    `held` are pages, as (first byte, end), that somebody else uses.

    Raises CompileError for an address of an unknown buffer, one that is not aligned or outside the memory, an overlap
    (unless `allow_overlap`), and NoRoom for buffers that do not fit.
    """
    for name in addresses:
        if name not in images:
            raise CompileError(f"addresses: there is no buffer {name!r}; there are {', '.join(images)}")
    taken = [(first, end, "") for first, end in held]  # pages that no other buffer is placed in
    spans: list[tuple[int, int, str]] = []  # what the placed buffers hold or are written to
    placed: dict[str, BufferImage] = {}
    for name, address in addresses.items():
        image = images[name]
        grain = FILL_ALIGN if isinstance(image.layout, Entry) else WORD
        if isinstance(address, bool) or not isinstance(address, int) or address < 0 or address % grain:
            raise CompileError(f"addresses: {name} at {address!r}; a multiple of {grain} is expected")
        past = reach.get(name, Reach())
        size = max(image.bytes, past.written)
        touched = max(size, past.read)
        if address + touched > memory:
            raise CompileError(
                f"addresses: {name} at {address:#x} ends past the memory of {memory} bytes"
                + (f": its {image.bytes} bytes are worked on in whole runs, {touched} bytes" * (touched > image.bytes))
            )
        for first, end, other in spans:
            if first < address + size and address < end and not allow_overlap:
                raise CompileError(f"addresses: {name} at {address:#x} overlaps {other} at {first:#x}..{end:#x}")
        spans.append((address, address + size, name))
        taken.append((address, address + _pages(touched), name))
        placed[name] = replace(image, address=address)
    bump = 0  # buffers without a life follow each other
    for name, image in images.items():
        if name in placed:
            continue
        past = reach.get(name, Reach())
        size = _pages(max(image.bytes, past.read, past.written))
        life = lives.get(name)
        cursor = 0 if life else bump
        while True:
            clash = [end for first, end, other in taken if first < cursor + size and cursor < end
                     and (life is None or life.meets(lives.get(other) if other not in addresses else None))]  # fmt: skip
            if not clash:
                break
            cursor = _pages(min(clash) if life else max(clash))
        if cursor + size > memory:
            total = sum(_pages(other.bytes) for other in images.values())
            error = NoRoom(
                f"{name} ({image.bytes} bytes) does not fit: the kernel's buffers take {total} bytes of pages and the "
                f"memory has {memory}"
            )
            error.image, error.size = image, size
            raise error
        placed[name] = replace(image, address=cursor)
        taken.append((cursor, cursor + size, name))
        if life is None:
            bump = cursor + size
    return {name: placed[name] for name in images}


@dataclass(frozen=True)
class Access:
    """What one stage reads and writes: names of buffers."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]


def guard(images: Mapping[str, BufferImage], accesses: Sequence[Access]) -> None:
    """Walk the stages and refuse a read of a buffer whose bytes another one was written to since it was.

    The host writes all that is no temp before the first stage. Raises CompileError: an error of the compiler's own,
    before it can become a wrong result.
    """
    written = {name: -1 for name, image in images.items() if image.role != "temp"}
    for number, access in enumerate(accesses):
        for name in access.reads:
            for other, image in images.items():
                if other != name and _overlap(images[name], image) and written.get(other, -2) > written.get(name, -2):
                    raise CompileError(f"stage {number} reads {name}, whose bytes {other} has overwritten: an alias")
        written.update(dict.fromkeys(access.writes, number))


def _overlap(a: BufferImage, b: BufferImage) -> bool:
    return a.address < b.address + b.bytes and b.address < a.address + a.bytes
