"""Functional coverage: how often each bin of `bins.universe` was hit; merged, as JSON, and what is missing."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from kohakutpu.fuzz.bins import universe
from kohakutpu.machine import Machine


class CoverageError(ValueError):
    """A coverage file that cannot be used: names it and says why."""


class Coverage:
    """Counts of `programs` programs on `machine`. `hits` is by group and bin; `watch.Watch` fills it."""

    def __init__(self, machine: Machine):
        self.machine = machine
        self.universe = universe(machine)
        self.programs = 0
        self.hits: dict[str, Counter[str]] = {group: Counter() for group in self.universe}

    def merge(self, other: Coverage) -> None:
        """Add the counts of another run. Raises `CoverageError` when it was of another machine."""
        if other.machine.name != self.machine.name:
            raise CoverageError(f"coverage of {other.machine.name} cannot be added to that of {self.machine.name}")
        self.programs += other.programs
        for group, counts in other.hits.items():
            self.hits[group].update(counts)

    def totals(self) -> dict[str, tuple[int, int]]:
        """(bins hit, bins that can be) of each group."""
        found = {}
        for group, bins in self.universe.items():
            reachable = [name for name, why in bins.items() if not why]
            found[group] = sum(name in self.hits[group] for name in reachable), len(reachable)
        return found

    @property
    def share(self) -> float:
        """Of the reachable bins, how many were hit."""
        totals = self.totals().values()
        return sum(hit for hit, _ in totals) / max(sum(of for _, of in totals), 1)

    def missing(self) -> list[tuple[str, str]]:
        """(group, bin) of what can be reached and was not."""
        return [
            (group, name)
            for group, bins in self.universe.items()
            for name, why in bins.items()
            if not why and name not in self.hits[group]
        ]

    def to_json(self) -> str:
        bins = {
            group: {name: self.hits[group][name] if not why else {"left out": why} for name, why in names.items()}
            for group, names in self.universe.items()
        }
        return json.dumps(
            {"machine": self.machine.name, "programs": self.programs, "share": round(self.share, 4), "bins": bins},
            indent=1,
        )

    @classmethod
    def load(cls, path: Path, machine: Machine) -> Coverage:
        """Read what `to_json` wrote, for `machine`. Raises `CoverageError`."""
        coverage = cls(machine)
        try:
            data = json.loads(path.read_text())
            name, coverage.programs, bins = data["machine"], int(data["programs"]), data["bins"]
            counts = {g: {n: c for n, c in names.items() if not isinstance(c, dict)} for g, names in bins.items()}
        except (ValueError, OverflowError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CoverageError(f"{path}: no coverage file ({error})") from None
        if name != machine.name:
            raise CoverageError(f"{path}: coverage of machine {name!r}, not {machine.name!r}")
        if counts.keys() != coverage.universe.keys():
            raise CoverageError(f"{path}: groups {sorted(counts)}; expected {sorted(coverage.universe)}")
        for group, found in counts.items():
            if unknown := found.keys() - coverage.universe[group].keys():
                raise CoverageError(f"{path}: {group} has no bin {min(unknown)!r}")
            coverage.hits[group].update({bin_: count for bin_, count in found.items() if count})
        return coverage
