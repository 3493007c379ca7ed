"""The held list: disagreements that are known, and bounds that are stated with their reason (spec/xpu.md 3.3).

A line is `kernel TAB backend TAB what TAB why`; the back end `*` is any. `what` is `held`, or `ulps=N`, `rel=X`, or
both joined by a comma. `#` begins a comment; blank lines and lines of fewer than three fields say nothing.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from .compare import EXACT, Bound


class HeldError(ValueError):
    """A held list that cannot be read: the file, the line and what was expected."""


@dataclass(frozen=True)
class Entry:
    """A line. `bound` is None for `held`."""

    kernel: str
    backend: str
    bound: Bound | None
    why: str
    line: int


@dataclass(frozen=True)
class HeldList:
    """`ignored` holds the lines that say nothing, by number."""

    entries: tuple[Entry, ...] = ()
    ignored: tuple[int, ...] = ()

    def find(self, kernel: str, backend: str) -> Entry | None:
        """The line for a kernel on a back end; one that names the back end wins over `*`."""
        for name in (backend, "*"):
            for entry in self.entries:
                if (entry.kernel, entry.backend) == (kernel, name):
                    return entry
        return None

    def bound(self, kernel: str, backend: str) -> Bound:
        """What is admitted; equality where nothing is stated."""
        entry = self.find(kernel, backend)
        return entry.bound if entry and entry.bound else EXACT


def _bound(text: str, place: str) -> Bound:
    number = r"\d+(?:\.\d*)?(?:[eE][+-]?\d+)?"
    match = re.fullmatch(rf"ulps=(\d{{1,19}})|rel=({number})|ulps=(\d{{1,19}}),rel=({number})", text)
    if not match or not math.isfinite(float(match[2] or match[4] or 0)):
        raise HeldError(f"{place}: {text!r}, where held, ulps=N, rel=X or ulps=N,rel=X is expected")
    return Bound(int(match[1] or match[3] or 0), float(match[2] or match[4] or 0))


def parse(text: str, name: str) -> HeldList:
    """A held list from its text; `name` is the file's, for errors."""
    entries: dict[tuple[str, str], Entry] = {}
    ignored = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        fields = [field.strip() for field in line.split("\t")]
        if len(fields) < 3:
            ignored.append(number)
            continue
        place = f"{name}:{number}"
        kernel, backend, what, why = (*fields, "")[:4]
        if not kernel or not backend or not why:
            raise HeldError(f"{place}: a kernel, a back end, what is held and why are expected, not {fields!r}")
        if (kernel, backend) in entries:
            first = entries[kernel, backend].line
            raise HeldError(f"{place}: {kernel} on {backend} again, after line {first}")
        bound = None if what == "held" else _bound(what, place)
        entries[kernel, backend] = Entry(kernel, backend, bound, why, number)
    return HeldList(tuple(entries.values()), tuple(ignored))


def load(path: Path) -> HeldList:
    """A held list from its file."""
    try:
        return parse(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise HeldError(f"{path}: no UTF-8 ({error})") from None
