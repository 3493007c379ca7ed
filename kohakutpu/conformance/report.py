"""What a golden check compared: counts, and the first difference in full."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Tally:
    """One row of a golden report.

    `compared` counts the things of kind `unit` that were compared, `mismatched` those that differ,
    `left_out` those that were not compared, by erratum identifier. `first` describes the first difference.
    `cycles` holds (name, published, ours) rows where both are known.
    """

    file: str
    what: str
    unit: str
    compared: int = 0
    mismatched: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    first: str = ""
    cycles: list[tuple[str, int, int]] = field(default_factory=list)

    def differ(self, count: int, description: str) -> None:
        """Record `count` more mismatches; the first description is kept."""
        if count:
            if not self.mismatched:
                self.first = description
            self.mismatched += count

    @property
    def ok(self) -> bool:
        return self.mismatched == 0 and self.compared > 0
