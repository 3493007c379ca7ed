"""Coverage and outcomes as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from kohakutpu.fuzz.coverage import Coverage
from kohakutpu.wording import counted


def print_coverage(coverage: Coverage, console: Console, *, every_bin: bool = False) -> None:
    """A row for each group and why bins are left out; with `every_bin` each one that was not hit or is left out."""
    table = Table("functional coverage", box=None)
    for title in ("hit", "of", "%", "left out"):
        table.add_column(title, justify="right")
    for group, (hit, of) in coverage.totals().items():
        left_out = sum(bool(why) for why in coverage.universe[group].values())
        table.add_row(group, str(hit), str(of), f"{100 * hit / max(of, 1):.1f}", str(left_out))
    console.print(table)
    for line in _bins(coverage, every_bin):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    hit, of = map(sum, zip(*coverage.totals().values(), strict=True))
    more = "" if every_bin or hit == of else f"; --bins names the other {of - hit}"
    console.print(
        f"{counted(coverage.programs, 'program', form=',')} on {coverage.machine.name}: {hit} of {of} reachable bins, "
        f"{100 * coverage.share:.1f} %{more}", soft_wrap=True,
    )  # fmt: skip


def _bins(coverage: Coverage, every_bin: bool) -> Iterator[str]:
    """Lines about bins that were not hit: all of them, or how many are left out for which reason."""
    if every_bin:
        for group, name in coverage.missing():
            yield f"not hit: {group}: {name}"
    for group, bins in coverage.universe.items():
        reasons: Counter[str] = Counter()
        for name, why in bins.items():
            if why and (count := coverage.hits[group][name]):
                yield f"hit {count} times although left out: {group}: {name}: {why}"
            elif why and every_bin:
                yield f"left out: {group}: {name}: {why}"
            elif why:
                reasons[why] += 1
        for why, count in reasons.items():
            yield f"left out: {group}: {count}: {why}"
