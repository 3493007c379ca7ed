"""Where buffers stand in memory: an arena of 2048-byte pages, around what the caller placed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from .artifact import BufferImage
from .layouts import WORD, Entry
from .refusals import FILL_ALIGN, PAGE, CompileError


def _pages(size: int) -> int:
    return -(-size // PAGE) * PAGE


def place(
    images: Mapping[str, BufferImage], memory: int, addresses: Mapping[str, int], allow_overlap: bool
) -> dict[str, BufferImage]:
    """The buffers with their addresses, in the order given; `memory` is the machine's size in bytes.

    Raises CompileError for an address of an unknown buffer, one that is not aligned or outside the memory, an overlap
    (unless `allow_overlap`), and for buffers that do not fit.
    """
    for name in addresses:
        if name not in images:
            raise CompileError(f"addresses: there is no buffer {name!r}; there are {', '.join(images)}")
    taken: list[tuple[int, int, str]] = []
    placed: dict[str, BufferImage] = {}
    for name, address in addresses.items():
        image = images[name]
        grain = FILL_ALIGN if isinstance(image.layout, Entry) else WORD
        if isinstance(address, bool) or not isinstance(address, int) or address < 0 or address % grain:
            raise CompileError(f"addresses: {name} at {address!r}; a multiple of {grain} is expected")
        if address + image.bytes > memory:
            raise CompileError(f"addresses: {name} at {address:#x} ends past the memory of {memory} bytes")
        for first, end, other in taken:
            if first < address + image.bytes and address < end and not allow_overlap:
                raise CompileError(f"addresses: {name} at {address:#x} overlaps {other} at {first:#x}..{end:#x}")
        taken.append((address, address + _pages(image.bytes), name))
        placed[name] = replace(image, address=address)
    cursor = 0
    for name, image in images.items():
        if name in placed:
            continue
        size = _pages(image.bytes)
        while True:
            clash = [end for first, end, _ in taken if first < cursor + size and cursor < end]
            if not clash:
                break
            cursor = _pages(max(clash))
        if cursor + size > memory:
            total = sum(_pages(other.bytes) for other in images.values())
            raise CompileError(
                f"{name} ({image.bytes} bytes) does not fit: the kernel's buffers take {total} bytes of pages and the "
                f"memory has {memory}"
            )
        placed[name] = replace(image, address=cursor)
        taken.append((cursor, cursor + size, name))
        cursor += size
    return {name: placed[name] for name in images}
