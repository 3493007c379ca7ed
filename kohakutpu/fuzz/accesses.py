"""What the streams of a phase touch: where two of them meet, the outcome depends on time."""

from __future__ import annotations

from collections import defaultdict


class Unjudged(Exception):
    """The outcome depends on time, or on what the oracle does not know: says on what."""


class Accesses:
    """Who has touched what since the last barrier."""

    def __init__(self):
        self.stream = ""
        self._readers: dict[tuple, set[str]] = defaultdict(set)
        self._writers: dict[tuple, set[str]] = defaultdict(set)

    def note(self, *key, write: bool) -> None:
        """`stream` reads or writes what `key` names."""
        (self._writers if write else self._readers)[key].add(self.stream)
        writers = self._writers.get(key, ())
        if writers and len(writers | self._readers.get(key, set())) > 1:
            raise Unjudged(f"{' and '.join(sorted(writers | self._readers[key]))} meet at {key}")

    def written(self, *key) -> bool:
        return key in self._writers

    def read(self, *key) -> bool:
        return key in self._readers

    def clear(self) -> None:
        self._readers.clear()
        self._writers.clear()
