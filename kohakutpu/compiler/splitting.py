"""Tilings whose statements depend on each other, split between clusters and vector cores (spec: "Split by unit").

The statements of an instance are cut into runs of one unit's work, and no instance begins a run before all have finished
the one before (docs/kernels.md, "Order"). Inside a run instances do not wait for each other, so what one of them writes
no other may read or write there. Runs are gathered into as few `Segment`s as keep every dependency: the clusters' work
of a segment comes first, then the epilogues that it feeds, then stores that read no accumulator.

Batch elements do the same, each with buffers of its own, so that only the first of them is looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kohakutpu.lang.extents import resolve
from kohakutpu.lang.source import Source
from kohakutpu.lang.trace import Contract, Open, Slice, SliceLeaf, Store, unit_of

from .events import Event, Place, accumulators, flatten, reads, writes
from .refusals import CompileError
from .stages import Key

CLUSTER, VECTOR = "cluster", "vector"
Division = tuple  # of a buffer: the kind and the step of each axis that is cut
At = tuple[Division, Place] | None  # a part of a buffer; None: any of it


@dataclass(frozen=True)
class VectorStore:
    """A store of vector cores and all the places that it writes in a segment, in turns that nothing has to come between."""

    statement: Store
    places: tuple[Place, ...]


@dataclass
class Segment:
    """What is computed without a barrier inside the clusters' part: their events and those of fused stores by instance (of
    one batch element), then stores that need neither."""

    events: dict[Key, list[Event]] = field(default_factory=dict)
    stores: list[VectorStore] = field(default_factory=list)


@dataclass
class _Run:
    """One run of all instances. In one of the vector cores, `events` are fused stores, `landed` those that go through a temp
    instead, and `stores` all but the fused ones."""

    unit: str
    events: dict[Key, list[Event]] = field(default_factory=dict)
    landed: dict[Key, list[Event]] = field(default_factory=dict)
    stores: list[tuple[Key, Event]] = field(default_factory=list)

    def all(self) -> Iterator[tuple[Key, Event]]:
        yield from ((key, event) for key, events in self.events.items() for event in events)
        yield from self.stores

    def touched(self) -> _Touched:
        return _touched(event for _, event in self.all())


class _Touched:
    """Parts of buffers that some events read and write."""

    def __init__(self):
        self.read: dict[str, set[At]] = {}
        self.written: dict[str, set[At]] = {}

    def add(self, event: Event) -> None:
        for name, at in _read(event):
            self.read.setdefault(name, set()).add(at)
        for name, at in _written(event):
            self.written.setdefault(name, set()).add(at)

    def update(self, other: _Touched) -> None:
        for mine, theirs in ((self.read, other.read), (self.written, other.written)):
            for name, found in theirs.items():
                mine.setdefault(name, set()).update(found)

    def meets(self, later: _Touched) -> bool:
        """Whether `later` has to wait for these."""
        return (
            _meet(self.written, later.read) or _meet(self.written, later.written) or _meet(self.read, later.written)
        )


def _meet(a: Mapping[str, set[At]], b: Mapping[str, set[At]]) -> bool:
    for name in a.keys() & b.keys():
        if None in a[name] or None in b[name] or a[name] & b[name]:
            return True
        if len({division for division, _ in a[name] | b[name]}) > 1:
            return True
    return False


def _division(part: Slice) -> Division:
    return tuple((axis.kind, axis.step) for axis in part.axes)


def _at(event: Event, part: Slice) -> At:
    return _division(part), tuple(resolve(index, event.known) for index in part.indices)


def _read(event: Event) -> Iterator[tuple[str, At]]:
    statement = event.statement
    if isinstance(statement, Contract):
        yield from ((part.buffer, None) for part in (statement.a, statement.b))
    elif isinstance(statement, Store):
        for leaf in statement.expression.leaves:
            if isinstance(leaf, SliceLeaf):
                along = len(leaf.slice.indices) == len(statement.target.indices)
                yield leaf.slice.buffer, _at(event, leaf.slice) if along else None


def _written(event: Event) -> Iterator[tuple[str, At]]:
    if isinstance(event.statement, Store):
        yield event.statement.target.buffer, _at(event, event.statement.target)


def depends(body, fuse: bool) -> bool:
    """Whether a tiling is one of this module: a store reads no accumulator, or a statement reads what another writes; or,
    without fusing, two write one buffer, since what goes through a temp is stored later than what clusters store."""
    statements = list(flatten(body))
    stores = [statement for statement in statements if isinstance(statement, Store)]
    written = {writes(store) for store in stores}
    if len(written) < len(stores) and not fuse:
        return True
    return any(not accumulators(store) for store in stores) or any(
        name in written for statement in statements for name in reads(statement)
    )


def split(instances: Mapping[Key, Sequence[Event]], fuse: bool, source: Source) -> list[Segment]:
    """The segments of a tiling, of whose first batch element `instances` has the events; `source` is the tiling's line.

    Raises CompileError, with the line, for what instances would have to wait for inside a run, and for an accumulator
    that would have to outlast a segment.
    """
    runs: list[_Run] = []
    for key, found in instances.items():
        _cut(runs, key, found, fuse, source)
    segments: list[list[_Run]] = []
    held = _Held()
    for run, after in zip(runs, [*runs[1:], None], strict=True):
        _check_run(run)
        if not segments or (run.unit == CLUSTER and held.blocks(run, after)):
            segments.append([])
            held = _Held()
        segments[-1].append(run)
        held.add(run)
    opens = {
        (key, event.accumulator(event.statement.accumulator)): event
        for key, found in instances.items() for event in found if isinstance(event.statement, Open)
    }  # fmt: skip
    _check_accumulators(segments)
    return [_segment(made, opens) for made in segments]


def _cut(runs: list[_Run], key: Key, found: Sequence[Event], fuse: bool, source: Source) -> None:
    """Deal the events of an instance out to its runs, but for the openings of accumulators."""
    number, unit = -1, None
    for event in found:
        own = unit_of(event.statement)
        if own is None:
            continue
        if own != unit:
            number, unit = number + 1, own
            if number == len(runs):
                runs.append(_Run(own))
            if runs[number].unit != own:
                raise CompileError(
                    "some instances of this tiling begin with products and others with elementwise work, so that they take "
                    "turns at different places; use a tiling for each",
                    source,
                )
        run = runs[number]
        if own == CLUSTER or (fuse and accumulators(event.statement)):
            run.events.setdefault(key, []).append(event)
            continue
        run.stores.append((key, event))
        if accumulators(event.statement):
            run.landed.setdefault(key, []).append(event)


def _check_run(run: _Run) -> None:
    """Refuse what one instance writes in a run and another touches there, and what a cluster would read back."""
    writers: dict[str, dict[At, tuple[Key, Event]]] = {}
    for key, event in run.all():
        for name, at in _written(event):
            places = writers.setdefault(name, {})
            other = next(iter(places), at)
            if other[0] != at[0]:
                raise CompileError(
                    f"{name} is written by {_by(at[0])} here and by {_by(other[0])} in the same run of this tiling "
                    f"({places[other][1].statement.source})",
                    event.statement.source,
                )
            first = places.setdefault(at, (key, event))
            again = event.statement.id != first[1].statement.id or event.path != first[1].path
            if first[0] != key or (again and run.unit == CLUSTER):
                place = at[1] if len(at[1]) > 1 else at[1][0]
                raise CompileError(
                    f"the {_by(at[0])[:-1]} {place} of {name} is written twice in one tiling, by instances {first[0]} and {key}",
                    event.statement.source,
                )
    for key, event in run.all():
        for name, at in _read(event):
            places = writers.get(name, {})
            if not places:
                continue
            other = next(iter(places))
            met = places.get(at) if at is not None and at[0] == other[0] else places[other]
            if met is not None and (run.unit == CLUSTER or met[0] != key or at is None or at[0] != other[0]):
                what = "products" if run.unit == CLUSTER else "elementwise work"
                raise CompileError(
                    f"{name} is read here and written in the same tiling ({met[1].statement.source}), with only {what} in "
                    "between, whose instances do not wait for each other; use a second tiling",
                    event.statement.source,
                )


def _by(division: Division) -> str:
    return division[0][0]


class _Held:
    """What a segment touches so far: in all, its stores that are not fused, and the tiles that land in temps."""

    def __init__(self):
        self.all = _Touched()
        self.stores = _Touched()
        self.landed: set[tuple[int, At]] = set()

    def blocks(self, run: _Run, after: _Run | None) -> bool:
        """Whether a run of the clusters, or what it feeds in the run after, has to wait for what it would come before."""
        if self.all.meets(run.touched()):
            return True
        fed = [] if after is None else [event for events in after.events.values() for event in events]
        return after is not None and (self.stores.meets(_touched(fed)) or bool(self.landed & _landed(after)))

    def add(self, run: _Run) -> None:
        if run.unit == VECTOR:
            self._check_order(run)
            self.stores.update(_touched(event for _, event in run.stores))
            self.landed |= _landed(run)
        self.all.update(run.touched())

    def _check_order(self, run: _Run) -> None:
        """Refuse a fused store that depends on elementwise work: it comes first, straight from the cluster."""
        before: dict[Key, list[Event]] = {}
        for key, event in run.stores:
            before.setdefault(key, []).append(event)
        for key, fused in run.events.items():
            for event in fused:
                own = _touched([event])
                if self.stores.meets(own) or _touched(e for e in before.get(key, []) if e.path < event.path).meets(own):
                    raise CompileError(
                        f"{event.statement.target.buffer} is computed here from an accumulator, straight from the cluster, and "
                        "depends on elementwise work of this tiling that comes before it; store the accumulator to a temp "
                        "(t[i, j] <<= acc) and compute with that",
                        event.statement.source,
                    )


def _landed(run: _Run) -> set[tuple[int, At]]:
    return {(event.statement.id, at) for events in run.landed.values() for event in events for _, at in _written(event)}


def _touched(events: Iterable[Event]) -> _Touched:
    found = _Touched()
    for event in events:
        found.add(event)
    return found


def _used(event: Event) -> list[tuple[str, int]]:
    """The accumulators of an event."""
    statement = event.statement
    names = [statement.accumulator] if isinstance(statement, Contract) else accumulators(statement)
    return [event.accumulator(name) for name in names if name in event.opened]


def _check_accumulators(segments: Sequence[Sequence[_Run]]) -> None:
    """Refuse an accumulator that is used in two segments: a cluster holds one, and other instances come in between."""
    first: dict[tuple[Key, tuple[str, int]], tuple[int, Event]] = {}
    for number, runs in enumerate(segments):
        for run in runs:
            for key, event in run.all():
                for accumulator in _used(event):
                    began, other = first.setdefault((key, accumulator), (number, event))
                    if began != number:
                        raise CompileError(
                            f"{accumulator[0]} is used here and before ({other.statement.source}), and in between clusters wait "
                            "for what this tiling computes; a cluster does not keep an accumulator for that long: store it "
                            "before, or begin another one after",
                            event.statement.source,
                        )


def _segment(runs: Sequence[_Run], opens: Mapping[tuple[Key, tuple[str, int]], Event]) -> Segment:
    made = Segment()
    for run in runs:
        for found in (run.events, run.landed):
            for key, events in found.items():
                made.events.setdefault(key, []).extend(events)
    for key, events in made.events.items():
        used = dict.fromkeys(accumulator for event in events for accumulator in _used(event))
        events[:0] = [opens[key, accumulator] for accumulator in used]
    turns: dict[tuple[int, Place], list[Event]] = {}
    for number, run in enumerate(runs):
        for _, event in run.stores:
            turns.setdefault((number, event.path), []).append(event)
    stores = [
        VectorStore(events[0].statement, tuple(dict.fromkeys(at[1] for event in events for _, at in _written(event))))
        for _, events in sorted(turns.items(), key=lambda turn: turn[0])
    ]
    made.stores = _gathered(stores)
    return made


def _gathered(stores: Sequence[VectorStore]) -> list[VectorStore]:
    """One store for all turns of a statement, where every place is still written and read in the same order."""
    divisions = {_division(store.statement.target) for store in stores}
    last: dict[Place, int] = {}
    for store in stores:
        for place in store.places if len(divisions) == 1 else [()]:
            if last.get(place, -1) >= store.statement.id:
                return list(stores)
            last[place] = store.statement.id
    places: dict[int, dict[Place, None]] = {}
    statements = {}
    for store in stores:
        statements[store.statement.id] = store.statement
        places.setdefault(store.statement.id, {}).update(dict.fromkeys(store.places))
    return [VectorStore(statements[number], tuple(places[number])) for number in sorted(places)]
