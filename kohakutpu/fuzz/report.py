"""Coverage and outcomes as text."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from kohakutpu.fuzz.coverage import Coverage


def print_coverage(coverage: Coverage, console: Console) -> None:
    """A row for each group, then what was not hit and what is left out, with the reason."""
    table = Table("functional coverage", box=None)
    for title in ("hit", "of", "%", "left out"):
        table.add_column(title, justify="right")
    for group, (hit, of) in coverage.totals().items():
        left_out = sum(bool(why) for why in coverage.universe[group].values())
        table.add_row(group, str(hit), str(of), f"{100 * hit / max(of, 1):.1f}", str(left_out))
    console.print(table)
    for group, name in coverage.missing():
        console.print(f"not hit: {group}: {name}", markup=False, highlight=False)
    for group, bins in coverage.universe.items():
        for name, why in bins.items():
            if why:
                hit = coverage.hits[group][name]
                text = f"hit {hit} times although left out" if hit else "left out"
                console.print(f"{text}: {group}: {name}: {why}", markup=False, highlight=False, soft_wrap=True)
    hit, of = map(sum, zip(*coverage.totals().values(), strict=True))
    console.print(
        f"{coverage.programs:,} programs on {coverage.machine.name}: {hit} of {of} reachable bins, "
        f"{100 * coverage.share:.1f} %"
    )
