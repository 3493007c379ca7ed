"""What was made lately, up to a number of things."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Made = TypeVar("Made")


class Recent(Generic[Made]):
    """Up to `limit` things by key; the one that was longest not asked for makes room for a new one."""

    def __init__(self, limit: int):
        self.limit = limit
        self._held: OrderedDict[Hashable, Made] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def get(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """What is held under `key`, or else made now; what `make` raises is passed on, and nothing is held."""
        if key not in self._held:
            made = make()
            while len(self._held) >= self.limit:
                self._held.popitem(last=False)
            self._held[key] = made
        self._held.move_to_end(key)
        return self._held[key]
