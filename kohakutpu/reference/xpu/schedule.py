"""Workgroups and their rendezvous (spec/xpu.md 2.2): deterministic, one work-item at a time.

Each work-item runs to a rendezvous or to its end, in linear order; then what can move is settled: first every wave
whose live lanes have all arrived, else the workgroup's barrier. Nothing that can move is undefined behaviour.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from types import ModuleType

import numpy as np

from kohakutpu.xpu.errors import OverBudget, Undefined
from kohakutpu.xpu.tree import Program
from kohakutpu.xpu.types import SliceType, TileType, WaveVectorType

from . import waves
from .arithmetic import Fault
from .walker import Arrival, Formats, Place, Walker

STATEMENTS_PER_LOOK = 4096


class Budget:
    """Seconds of the host's clock; 0 is no limit. Looked at every 4096 statements and each round."""

    def __init__(self, seconds: float, name: str):
        self.seconds, self.name, self.count = seconds, name, 0
        self.end = time.monotonic() + seconds

    def look(self) -> None:
        """Raise OverBudget once the time is gone."""
        if self.seconds and time.monotonic() > self.end:
            raise OverBudget(f"XPU-REF03: {self.name}: the run took more than its {self.seconds} seconds")

    def tick(self) -> None:
        """Count one statement."""
        self.count += 1
        if self.count % STATEMENTS_PER_LOOK == 0:
            self.look()


class Item:
    """A work-item of a workgroup with rendezvous: its walker's generator, and where it waits."""

    def __init__(self, place: Place, steps: Iterator):
        self.place, self.steps = place, steps
        self.waiting: Arrival | None = None
        self.done = False
        self.answer = None

    def advance(self) -> None:
        """Run to the next rendezvous or the end."""
        try:
            self.waiting = self.steps.send(self.answer)
        except StopIteration:
            self.done, self.waiting = True, None
        self.answer = None


class Workgroup:
    """The work-items of one workgroup."""

    def __init__(self, program: Program, group: tuple, grid: tuple, block: tuple, width: int | None, arguments: list,
                 budget: Budget, formats: Formats, shared_bytes: int | None = None):  # fmt: skip
        self.program, self.width, self.budget, self.formats = program, width, budget, formats
        arrays: dict = {}
        fragments = "fragment" in program.uses
        self.items = []
        for z, y, x in itertools.product(*map(range, reversed(block))):
            place = Place(group, (x, y, z), grid, block, width)
            walker = Walker(place, arrays, fragments, budget.tick, formats, shared_bytes)
            self.items.append(Item(place, walker.run(program.kernel, arguments)))

    def run(self) -> None:
        """All work-items to their ends."""
        while True:
            for item in self.items:
                if not item.done and item.waiting is None:
                    item.advance()
            if all(item.done for item in self.items):
                return
            self.budget.look()
            if not self.settle_waves():
                self.settle_barrier()

    def settle_waves(self) -> bool:
        """Release every wave whose live lanes all wait at wave operations. True if one was."""
        moved = False
        for _, members in itertools.groupby(self.items, lambda item: item.place.linear // (self.width or 1)):
            live = [item for item in members if not item.done]
            if not live or any(item.waiting.scope != "wave" for item in live):
                continue
            first = live[0].waiting.node
            for item in live:
                if item.waiting.node is not first:
                    text = f"lanes of one wave at different wave operations: {first.verb} ({first.at}) and {{}}"
                    raise self.undefined(text, item)
            self.release(live, self.wave_results(live))
            moved = True
        return moved

    def wave_results(self, live: list[Item]) -> list:
        """The answers of one wave's arrival."""
        node = live[0].waiting.node
        lanes = {item.place.lane: item.waiting.arguments for item in live}
        try:
            if node.verb.startswith("tile."):
                found = tile_verb(node, lanes, self.width, "fragment" in self.program.uses, self.formats.tiles)
            else:
                found = waves.wave(node.verb, self.width, lanes, node.options, self.formats.values)
        except Fault as fault:
            raise Undefined(str(fault), node.at, str(live[0].place)) from None
        return [found[item.place.lane] for item in live]

    def settle_barrier(self) -> None:
        """Release the workgroup, if every work-item waits at one barrier; else nothing can move."""
        live = [item for item in self.items if not item.done]
        first = live[0].waiting
        for item in live:
            if item.waiting.scope != "workgroup":
                raise self.undefined("the workgroup cannot proceed: some work-items wait at {}, others elsewhere", item)
            if item.waiting.node is not first.node:
                text = f"work-items at different barriers: {first.node.verb} ({first.node.at}) and {{}}"
                raise self.undefined(text, item)
        gone = next((item for item in self.items if item.done), None)
        if gone is not None:
            raise self.undefined(f"{{}}, which work-item {gone.place.local} returned without reaching", live[0])
        results = [None] * len(live)
        if first.arguments:
            values = [item.waiting.arguments[0] for item in live]
            op = first.node.options[0]
            results = waves.workgroup(first.node.verb, first.node.type, self.width, values, op, self.formats.values)
        self.release(live, results)

    @staticmethod
    def release(items: list[Item], results: list) -> None:
        """Let them go on."""
        for item, result in zip(items, results, strict=True):
            item.waiting, item.answer = None, result

    @staticmethod
    def undefined(text: str, item: Item) -> Undefined:
        """Undefined behaviour at an item's rendezvous, which `{}` in the text names."""
        node = item.waiting.node
        return Undefined(text.format(f"{node.verb}"), node.at, str(item.place))


def tile_verb(node, lanes: dict[int, tuple], width: int, fragments: bool, tiles: ModuleType) -> dict:
    """A tile verb that reads memory, or that first gathers the copies that lanes changed. Equal lanes compute once."""
    word, kinds = node.verb.partition(".")[2], [argument.type for argument in node.arguments]
    if word == "from_words":
        return dict.fromkeys(lanes, tiles.from_words(kinds[0], {lane: values[1:] for lane, values in lanes.items()}))
    if fragments:
        lanes = _gathered(lanes, kinds, width, tiles)
    results: dict = {}
    known: list[tuple[tuple, object]] = []
    for lane, values in lanes.items():
        factors = _factors(kinds, lanes, lane, tiles)
        values = tuple(factors.get(place, value) for place, value in enumerate(values))
        same = next((result for other, result in known if _equal(other, values)), None)
        if same is None:
            same = _compute(word, kinds, values, tiles)
            known.append((values, same))
        results[lane] = same
    return results


def _gathered(lanes: dict[int, tuple], kinds: list, width: int, tiles: ModuleType) -> dict[int, tuple]:
    """The lanes' arguments with every tile as the wave's."""
    whole = {
        place: tiles.gather({lane: values[place] for lane, values in lanes.items()}, width)
        for place, kind in enumerate(kinds)
        if isinstance(kind, TileType)
    }
    return {
        lane: tuple(whole.get(place, value) for place, value in enumerate(values)) for lane, values in lanes.items()
    }


def _factors(kinds: list, lanes: dict[int, tuple], lane: int, tiles: ModuleType) -> dict[int, tuple]:
    """The row and column factors among a lane's arguments, as numbers."""
    rows, found = kinds[0].rows, {}
    for place, kind in enumerate(kinds):
        if isinstance(kind, SliceType):
            found[place] = tuple(tiles.rows(rows, *lanes[lane][place]))
        if isinstance(kind, WaveVectorType):
            form = lanes[lane][place][0]
            given = {held: values[place][1:] for held, values in lanes.items()}
            found[place] = tuple(tiles.columns(kind.count, form, given, lane))
    return found


def _bits(value) -> bytes:
    return value.tobytes() if hasattr(value, "tobytes") else np.asarray(value).tobytes()


def _equal(left: tuple, right: tuple) -> bool:
    """True if two lanes' arguments are the same bits."""
    return all(a is b or (type(a) is type(b) and _bits(a) == _bits(b)) for a, b in zip(left, right, strict=True))


def _compute(word: str, kinds: list, values: tuple, tiles: ModuleType):
    tile, *rest = values
    if word == "load":
        return tiles.load(kinds[0], *rest)
    if word == "store":
        return tiles.store(kinds[0], tile, *rest)
    if word == "mma":
        return tiles.mma(tuple(kinds), tile, *rest)
    if word == "rank1_accum":
        return tiles.rank1(tile, *rest)
    if word == "scaled_accum_i32":
        return tiles.scaled_i32(tile, *rest)
    into, *factors = rest
    return tiles.scaled(tile, into, list(zip(factors[::2], factors[1::2], strict=True)))


def groups(grid: tuple) -> Iterator[tuple[int, int, int]]:
    """Workgroups in order, x fastest."""
    for z, y, x in itertools.product(*map(range, reversed(grid))):
        yield x, y, z
