"""What lies beside the elements of a buffer's image: zeros, unless something computed or copied it.

An operand's padding joins in its blocks' scales, so a copy into an operand's order must know. The rows that pad a product's
first operand become rows that pad the result, those of the second become columns; what elementwise work leaves is anybody's
guess. Everything that the host packs is padded with zeros.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from . import relayout
from .layouts import ConvEntry, Layout
from .stages import ClusterStage, Program, RelayoutStage, Sweep, accessed

COMPUTED = "elementwise work computed"


@dataclass
class Dirt:
    """Buffers whose padding may be other than zero: `rows` past the last row; past the last column, with the words
    that say who computed it."""

    rows: set[str] = field(default_factory=set)
    columns: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.rows) + len(self.columns)

    def add(self, name: str, rows: bool, columns: str | None) -> None:
        if rows:
            self.rows.add(name)
        if columns:
            self.columns.setdefault(name, columns)


def dirt(program: Program, layouts: Mapping[str, Layout], given: Dirt, clean: bool) -> Dirt:
    """Every buffer that may have dirt in its padding, in whatever order its writers run. `given` is that of the ports;
    `clean` says that copies keep their padding rows zero where they can."""
    found = Dirt(set(given.rows), dict(given.columns))
    # The window of a plane's last tile reads on past the result's last row.
    planes = {name for name, layout in layouts.items() if isinstance(layout, ConvEntry)}
    before = -1
    while len(found) != before:
        before = len(found)
        for stage in program.stages:
            if isinstance(stage, ClusterStage):
                # Of the stage as a whole: accumulators may be summed over several programs.
                sweeps = [op for ops in stage.programs.values() for op in ops if isinstance(op, Sweep)]
                past = found.rows | planes
                rows = any(op.a.buffer in past for op in sweeps)
                second = next((op.b.buffer for op in sweeps if op.b.buffer in past), None)
                columns = f"a product with {second}, whose rows past the last are not zero, left something in" if second else None
                for name in accessed(stage).writes:
                    found.add(name, rows, columns)
            elif isinstance(stage, RelayoutStage):
                source, target = layouts[stage.source], layouts[stage.target]
                kept = clean and relayout.keeps_zeros(source, target, stage.source in found.rows)
                found.add(stage.target, bool(relayout.padding_rows(target)) and not kept, None)
            else:
                for name in accessed(stage).writes:
                    found.add(name, True, COMPUTED)
    return found
