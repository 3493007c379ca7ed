"""`Transport` through the device files of the Linux XDMA driver. docs/transports.md, xdma.

Registers go one 64-bit word at a time through `NAME_user` or the DMA channels, memory in whole granules through
`NAME_h2c_0` and `NAME_c2h_0`.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from typing import Any

from kohakutpu.wording import counted

from ..transport import MEMORY_BASE, WORD, NoTransport, Transport, TransportError, Unanswered, locate

GRANULE = 64  # bytes: the smallest transfer, and what its address and length are multiples of
LONGEST = 1 << 20  # bytes of one transfer; the driver's limit is 8 MiB
ATTEMPTS = 5  # times that a transfer is asked of a device that fails
REGISTERS = {"user": ("user", "user"), "dma": ("c2h_0", "h2c_0")}  # devices to read and to write registers through
MODES = {"h2c_0": os.O_WRONLY, "c2h_0": os.O_RDONLY, "user": os.O_RDWR}


def check_windows(memory: int, registers: str) -> None:
    """Refuse a place of the memory window, or a way to the registers, that no card has."""
    if memory % GRANULE:
        raise TransportError(f"a memory window at {memory:#x}: expected a multiple of {GRANULE}")
    if registers not in REGISTERS:
        raise TransportError(f"registers={registers}: expected one of {', '.join(REGISTERS)}")


class XdmaTransport(Transport):
    """The device files `NAME_h2c_0`, `NAME_c2h_0` and `NAME_user` of one card.

    `control` is where the register window is, in the user device or, with `registers="dma"`, for the DMA channels,
    which then move single words there; `memory` is where those have the memory window. `files` has `open`, `close`,
    `preadv` and `pwritev` as `os` has them. A memory write that is not of whole granules reads the granules at its ends
    first. Raises `NoTransport` for a device that is not there or does not come back, and for a register write that
    failed: whether it was done is not known, and it is not repeated.
    """

    bulk = True
    unit = "s"

    def __init__(self, name: str, *, control: int = 0, memory: int = MEMORY_BASE, registers: str = "user",
                 files: Any = os):  # fmt: skip
        check_windows(memory, registers)
        self.name = name
        self.resumed = 0  # transfers that went on after a short count or a failure
        self._bases = {"control": control, "memory": memory}
        self._files = files
        self._open: dict[str, int] = {}
        self._failed = ""
        self._words_in, self._words_out = REGISTERS[registers]
        # The driver maps whole pages: a buffer of its own keeps every transfer at their start.
        self._buffer = mmap.mmap(-1, LONGEST)
        try:
            for channel in ("h2c_0", "c2h_0", *REGISTERS[registers]):
                self._device(channel)
        except OSError as error:
            self.close()
            raise NoTransport(f"{error.filename or name}: {(error.strerror or str(error)).lower()}") from error

    # ---- devices -------------------------------------------------------------------------------------------

    def _device(self, channel: str) -> int:
        if channel not in self._open:
            path = f"{self.name}_{channel}"
            self._open[channel] = self._files.open(path, MODES[channel] | os.O_CLOEXEC)
        return self._open[channel]

    def _release(self, channel: str) -> None:
        if channel in self._open:
            try:
                self._files.close(self._open.pop(channel))
            except OSError:
                pass  # it failed before this, and that has been seen

    def _transfer(
        self, channel: str, call: Callable[[int, memoryview, int], int], at: int, size: int, what: str
    ) -> None:
        """Move the first `size` bytes of the buffer to or from `at`, however often the device stops before the end."""
        done = attempt = 0
        with memoryview(self._buffer) as view:
            while done < size:
                try:
                    with view[done:size] as rest:
                        count = call(self._device(channel), rest, at + done)
                    if count <= 0 or count > size - done:
                        raise OSError(f"moved {count} bytes of {size - done}")
                except TimeoutError as error:
                    failure: TransportError = Unanswered(f"{what}: {self.name}_{channel} timed out at {at + done:#x}")
                    failure.__cause__ = error
                except OSError as error:
                    failure = NoTransport(
                        f"{what}: {self.name}_{channel} failed at {at + done:#x}: {error.strerror or error}"
                    )
                    failure.__cause__ = error
                else:
                    # What does not end a granule is moved again: the engine takes no other address.
                    done += count if done + count == size else count // GRANULE * GRANULE
                    self.resumed += done < size
                    attempt = 0 if count >= GRANULE else attempt + 1
                    failure = NoTransport(
                        f"{what}: {self.name}_{channel} moves less than {GRANULE} bytes at {at + done:#x}"
                    )
                    if attempt < ATTEMPTS:
                        continue
                self._release(channel)
                self.resumed += 1
                attempt += 1
                if attempt >= ATTEMPTS:
                    raise failure
                time.sleep(0.01 * attempt)

    def _check(self) -> None:
        if self._failed:
            raise NoTransport(f"{self.name} was given up in a {self._failed}")

    # ---- registers -----------------------------------------------------------------------------------------

    def _read_register(self, at: int, what: str) -> bytes:
        for attempt in range(ATTEMPTS):
            try:
                with memoryview(self._buffer) as view, view[:WORD] as word:
                    count = self._files.preadv(self._device(self._words_in), [word], at)
            except OSError as error:
                failure = error
                self._release(self._words_in)
            else:
                if count == WORD:
                    return self._buffer[:WORD]
                failure = OSError(
                    f"gave {count} bytes of {WORD}, {counted(attempt + 1, 'time')}: a device of 32 bits tears registers"
                )
            self.resumed += 1
            time.sleep(0.01 * attempt)
        kind = Unanswered if isinstance(failure, TimeoutError) else NoTransport
        raise kind(f"{what}: {self.name}_{self._words_in} at {at:#x}: {failure.strerror or failure}") from failure

    def _write_register(self, at: int, word: bytes, what: str) -> None:
        device = f"{self.name}_{self._words_out} at {at:#x}"
        self._buffer[:WORD] = word
        try:
            with memoryview(self._buffer) as view, view[:WORD] as buffer:
                count = self._files.pwritev(self._device(self._words_out), [buffer], at)
        except OSError as error:
            self._failed = what
            self._release(self._words_out)
            raise NoTransport(
                f"{what}: {device}: {error.strerror or error}; whether it was done is not known"
            ) from error
        if count != WORD:
            self._failed = what
            raise NoTransport(
                f"{what}: {device} took {count} bytes of {WORD}: registers are written whole or not at all, and this "
                "device is too narrow (option registers=dma writes them through the DMA channels)"
            )

    # ---- accesses ------------------------------------------------------------------------------------------

    def write64(self, address: int, value: int) -> None:
        self.write_block(address, value.to_bytes(WORD, "little"))

    def read64(self, address: int) -> int:
        return int.from_bytes(self.read_block(address, WORD), "little")

    def write_block(self, address: int, data: bytes) -> None:
        self._check()
        window, offset = locate(address, len(data), "write")
        start, what = self._bases[window] + offset, f"write of {len(data)} bytes at {address:#x}"
        if window == "control":
            for at in range(0, len(data), WORD):
                self._write_register(start + at, data[at : at + WORD], f"write of a register at {address + at:#x}")
            return
        end = start + len(data)
        low, high = start // GRANULE * GRANULE, -(-end // GRANULE) * GRANULE
        # The granules at the ends keep what this write is not about.
        cut = {at for at, inside in ((low, start > low), (high - GRANULE, end < high)) if inside}
        ends = {at: self._read(at, GRANULE, what) for at in cut}
        front = ends[low][: start - low] if start > low else b""
        back = ends[high - GRANULE][end - high :] if end < high else b""
        whole = front + data + back
        for at in range(0, len(whole), LONGEST):
            piece = whole[at : at + LONGEST]
            self._buffer[: len(piece)] = piece
            self._transfer(
                "h2c_0", lambda file, view, place: self._files.pwritev(file, [view], place), low + at, len(piece), what
            )

    def read_block(self, address: int, length: int) -> bytes:
        self._check()
        window, offset = locate(address, length, "read")
        start = self._bases[window] + offset
        if window == "control":
            words = [
                self._read_register(start + at, f"read of a register at {address + at:#x}")
                for at in range(0, length, WORD)
            ]
            return b"".join(words)
        low, high = start // GRANULE * GRANULE, -(-(start + length) // GRANULE) * GRANULE
        return self._read(low, high - low, f"read of {length} bytes at {address:#x}")[start - low :][:length]

    def _read(self, start: int, length: int, what: str) -> bytes:
        """Whole granules."""
        pieces = []
        for at in range(0, length, LONGEST):
            size = min(LONGEST, length - at)
            self._transfer(
                "c2h_0", lambda file, view, place: self._files.preadv(file, [view], place), start + at, size, what
            )
            pieces.append(self._buffer[:size])
        return b"".join(pieces)

    @property
    def now(self) -> float:
        return time.monotonic()

    def close(self) -> None:
        for channel in list(self._open):
            self._release(channel)
