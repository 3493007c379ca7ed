"""The census (spec/xpu.md 5.8): every registered kernel is value-checked where it is declared, or excused by name.

A launch of a back end that conformance compared is a check; that a kernel ran is none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kohakutpu.xpu.kernel import Backend, Kernel, Unlowered

from .replay import Judgement

# Every class, and whether it fails the census.
CLASSES = {
    "CHECKED": False, "RAN-UNCHECKED": True, "TRACKED-UNCHECKED": False, "UNCOVERED": True, "SKIP": False,
    "STALE-SKIP": True, "DECLINED": False,
}  # fmt: skip
COLUMNS = ("backend", "kernel", "class", "launches", "checks", "note")


class CensusError(ValueError):
    """A list of excuses that cannot be read, or that names what does not exist."""


@dataclass(frozen=True)
class Line:
    """A kernel on a back end: how many of its recorded launches, and how many of them were compared and agreed."""

    backend: str
    kernel: str
    word: str
    launches: int
    checks: int
    note: str

    @property
    def fails(self) -> bool:
        """True if the class fails the census."""
        return CLASSES[self.word]


def excuses(text: str, name: str) -> dict[tuple[str, str], str]:
    """{(kernel, back end): plan item} from lines `kernel TAB backend TAB item`; `#` begins a comment."""
    found: dict[tuple[str, str], str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        fields = [field.strip() for field in line.split("\t")]
        if len(fields) != 3 or not all(fields):
            raise CensusError(f"{name}:{number}: kernel, back end and plan item are expected, not {fields!r}")
        if (fields[0], fields[1]) in found:
            raise CensusError(f"{name}:{number}: {fields[0]} on {fields[1]} again")
        found[fields[0], fields[1]] = fields[2]
    return found


def load_excuses(path: Path) -> dict[tuple[str, str], str]:
    """`excuses` of a file."""
    return excuses(path.read_text(encoding="utf-8"), str(path))


def _line(kernel: Kernel, backend: str, launches: int, checks: int, excuse: str | None) -> Line:
    def line(word: str, note: str = "") -> Line:
        return Line(backend, kernel.name, word, launches, checks, note)

    declared = kernel.find(Backend)
    if declared and backend not in declared.names:
        return line("DECLINED", f"declared for {', '.join(declared.names)}")
    lenient = False
    for annotation in kernel.annotations:
        if isinstance(annotation, Unlowered) and annotation.backend == backend:
            excuse, lenient = annotation.tracked, annotation.may_lower
    if checks:
        return line("CHECKED" if excuse is None or lenient else "STALE-SKIP", excuse or "")
    if launches:
        return line("RAN-UNCHECKED" if excuse is None else "TRACKED-UNCHECKED", excuse or "")
    return line("UNCOVERED" if excuse is None else "SKIP", excuse or "")


def census(
    kernels: Iterable[Kernel],
    backends: Sequence[str],
    judged: Iterable[Judgement],
    excused: dict[tuple[str, str], str] = {},
) -> list[Line]:
    """A line for each kernel on each back end. Templates count by their members.

    Raises CensusError for an excuse of a kernel or a back end that the census does not hold.
    """
    kernels = [kernel for kernel in kernels if not kernel.is_template]
    judged = list(judged)
    launches = Counter((one.kernel, one.backend) for one in judged)
    checks = Counter((one.kernel, one.backend) for one in judged if one.outcome == "pass")
    names = {kernel.name for kernel in kernels}
    for name, backend in excused:
        if name not in names or backend not in backends:
            raise CensusError(f"an excuse for {name} on {backend}, and the census holds no such kernel or back end")
    return [
        _line(kernel, backend, launches[kernel.name, backend], checks[kernel.name, backend],
              excused.get((kernel.name, backend)))
        for backend in backends for kernel in sorted(kernels, key=lambda kernel: kernel.name)
    ]  # fmt: skip


def table(lines: Iterable[Line]) -> str:
    """The census as tab-separated text."""
    rows = [(one.backend, one.kernel, one.word, str(one.launches), str(one.checks), one.note) for one in lines]
    return "".join("\t".join(row) + "\n" for row in (COLUMNS, *rows))
