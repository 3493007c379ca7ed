"""The device files of a card in front of any transport, as `XdmaTransport` opens them: `open`, `close`, `preadv`,
`pwritev`.
"""

from __future__ import annotations

import errno
import os
import random
import time
from collections import Counter
from dataclasses import dataclass

from kohakutpu.host.transport import CONTROL_BASE, MEMORY_BASE, Transport, TransportError
from kohakutpu.host.transports.xdma import GRANULE, LONGEST

from chaos import Harm


@dataclass
class Card:
    """What is wrong with it: `width` in bytes of the user device; `dead` channels fail; `late` channels time out;
    `fragile` lets register writes fail like everything else, before or after they are done; `missing` channels are not
    there.
    """

    width: int = 8
    dead: frozenset[str] = frozenset()
    late: frozenset[str] = frozenset()
    fragile: bool = False
    missing: frozenset[str] = frozenset()


class FakeFiles:
    """`done` counts harm; `counts` transfers by channel."""

    def __init__(self, inner: Transport, name: str, *, card: Card | None = None, harm: Harm | None = None,
                 seed: int = 1, control: int = 0, idle: int = 0):  # fmt: skip
        self.inner = inner
        self.name = name
        self.card = card or Card()
        self.harm = harm or Harm()
        self.control = control
        self.idle = idle
        self.done = {"short": 0, "delay": 0, "drop": 0}
        self.counts: Counter[str] = Counter()
        self.files: dict[int, str] = {}
        self._random = random.Random(seed)
        self._next = 100

    def _happens(self, what: str) -> bool:
        if self._random.random() >= getattr(self.harm, what):
            return False
        self.done[what] += 1
        return True

    def open(self, path: str, flags: int) -> int:
        prefix, _, channel = path.rpartition(self.name + "_")
        if prefix or channel in self.card.missing or channel not in ("h2c_0", "c2h_0", "user"):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self._next += 1
        self.files[self._next] = channel
        return self._next

    def close(self, file: int) -> None:
        del self.files[file]

    def _is_register(self, file: int, offset: int) -> bool:
        """Whether an access is one of a register: the DMA channels reach those below the memory window."""
        return self.files[file] == "user" or offset < MEMORY_BASE

    def _start(self, file: int, channel: tuple[str, ...], size: int, offset: int) -> tuple[int, bool]:
        """(bytes to move, fail afterwards) of a call; raises when it fails before it does anything."""
        name = self.files[file]
        if name not in channel:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        self.counts[name] += 1
        for _ in range(self.idle):
            self.inner.pause()
        if self._happens("delay"):
            time.sleep(self._random.uniform(0, self.harm.seconds))
        if name in self.card.dead:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if name in self.card.late:
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        registers = self._is_register(file, offset)
        if registers:
            if size != 8 or offset % 8:
                raise OSError(errno.EINVAL, f"{size} bytes at {offset:#x} of a register device")
        elif size % GRANULE or offset % GRANULE or not 0 < size <= LONGEST:
            raise OSError(errno.EINVAL, f"{size} bytes at {offset:#x}: no aligned transfer")
        writes = channel == ("h2c_0", "user")
        if (not (registers and writes) or self.card.fragile) and self._happens("drop"):
            if self._random.random() < 0.5:
                raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
            return size, True
        if registers:
            if name == "user" and self.card.width < size:
                return self.card.width, False
            return (4, False) if not writes and self._happens("short") else (size, False)
        return (self._random.randrange(8, size + 1, 8), False) if self._happens("short") else (size, False)

    def preadv(self, file: int, buffers, offset: int) -> int:
        (buffer,) = buffers
        size, failed = self._start(file, ("c2h_0", "user"), len(buffer), offset)
        base = CONTROL_BASE + offset - self.control if self._is_register(file, offset) else offset
        try:
            data = self.inner.read_block(base, -(-size // 8) * 8)
        except TransportError as error:
            raise OSError(errno.EIO, str(error)) from error
        buffer[:size] = data[:size]
        if failed:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return size

    def pwritev(self, file: int, buffers, offset: int) -> int:
        (buffer,) = buffers
        size, failed = self._start(file, ("h2c_0", "user"), len(buffer), offset)
        registers = self._is_register(file, offset)
        base = CONTROL_BASE + offset - self.control if registers else offset
        try:
            self.inner.write_block(base, bytes(buffer[: len(buffer) if registers else size]))
        except TransportError as error:
            raise OSError(errno.EIO, str(error)) from error
        if failed:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return size
