"""The flits that a page carries: decoded, by link, as many whole cycles from the start of a window as fit."""

from __future__ import annotations

from dataclasses import dataclass, field

from kohakutpu.isa.assembler import Disassembler
from kohakutpu.isa.flit import xy
from kohakutpu.isa.signals import UnitType
from kohakutpu.noc.trace import Transfer

from .survey import Survey

Row = tuple[int, int, str, str, int, int, int]  # cycle, type, source, destination, txn, last, index of the text


class Texts:
    """Texts by index, each kept once."""

    def __init__(self):
        self.all: list[str] = []
        self.bytes = 0
        self._index: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        found = self._index.get(text)
        if found is None:
            found = self._index[text] = len(self.all)
            self.all.append(text)
            self.bytes += len(text) + 3
        return found


@dataclass
class Excerpt:
    """The flits of the cycles from `start` up to `end`, by link; `total` flits lie in the window that was asked for."""

    start: int
    end: int
    total: int
    kept: int = 0
    rows: dict[int, list[Row]] = field(default_factory=dict)


def excerpt(
    survey: Survey, texts: Texts, *, start: int, end: int, total: int, most_flits: int, most_bytes: int
) -> Excerpt:
    """Decode flits of the cycles from `start` to `end`, until there are `most_flits` or `texts` holds `most_bytes`."""
    kinds = {unit.node: UnitType.CLUSTER if unit.kind == "cluster" else UnitType.VECTOR for unit in survey.units}
    decoders = [Disassembler(units=kinds) for _ in survey.trace.links]
    found = Excerpt(start, end, total)
    cycle = start
    for record in survey.trace.window(0, end):
        if type(record) is not Transfer:
            continue
        if record.cycle != cycle and record.cycle >= start:
            if found.kept >= most_flits or texts.bytes >= most_bytes:
                found.end = record.cycle
                break
            cycle = record.cycle
        body = decoders[record.link].body(record.flit)  # also before the window: bursts may have begun there
        if record.cycle < start:
            continue
        flit = record.flit
        row = (record.cycle, flit.type, _node(flit.src), _node(flit.dst), flit.txn, flit.last, texts(body))
        found.rows.setdefault(record.link, []).append(row)
        found.kept += 1
    return found


def _node(packed: int) -> str:
    x, y = xy(packed)
    return f"({x},{y})"
