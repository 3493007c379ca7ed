"""The vector core's word stream: where instructions come from, and from which cycle on.

Timing is `docs/microarchitecture/vector-core.md`, section "Fetch".
"""

from __future__ import annotations

from kohakutpu.isa.vector import IMEM_WORDS

REFETCH = 2  # from a redirect to the decode of the word it names


class Loop:
    """The loop registers as decode sees them."""

    def __init__(self):
        self.active = False
        self.count = self.top = self.end = 0

    def next(self, pc: int) -> int:
        """The instruction after one that ends just before `pc`."""
        pc %= IMEM_WORDS
        if self.active and pc == self.end:
            if self.count > 1:
                self.count -= 1
                return self.top
            self.active = False
        return pc


class Fetch:
    """Reads one word a cycle into a queue, ahead of decode, following its own copy of the loop.

    Decode asks for words by address; where it disagrees with the copy it redirects.
    """

    def __init__(self):
        self.pc = 0  # of the word at the queue's head
        self.at = 0  # first cycle in which that word can be decoded
        self._loop = Loop()

    def redirect(self, pc: int, now: int, loop: Loop) -> None:
        """Empty the queue in cycle `now` and start again at `pc` with decode's loop registers."""
        self.pc = pc
        self.at = now + REFETCH
        own = self._loop
        own.active, own.count, own.top, own.end = loop.active, loop.count, loop.top, loop.end

    def consume(self) -> None:
        """Decode took the head; the next word can be decoded a cycle later at the earliest."""
        self.at += 1
        self.pc = self._loop.next(self.pc + 1)
