"""The tile chooser: `gm`, `gn`, `nk` and `ksplit` of a kernel whose knobs say "auto" (docs/planning.md).

Every tile that the machine can hold is given the cycles that it would take by a closed formula: sweeps, or the fetching of
their operands where that takes longer, shared ports, what a tile takes to leave, and what it takes to begin. The least
wins; among equals the one that does most work for an operand fetched, then powers of two. Of small products the best few
are compiled, and predicted instruction by instruction (`compile.settle`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from kohakutpu.isa import vector
from kohakutpu.isa.cluster import FILL_LIMIT
from kohakutpu.lang.extents import Extents
from kohakutpu.lang.extents import resolve as resolve_extent
from kohakutpu.lang.kernel import Kernel
from kohakutpu.lang.source import Source
from kohakutpu.lang.trace import Contract, Loop, SliceLeaf, Store, TileLeaf, Trace, Units
from kohakutpu.machine import Machine
from kohakutpu.wording import counted

from .events import accumulators
from .fusion import span_words
from .l1 import BANK
from .layouts import KBLOCK, LANES
from .programs import l1_room
from .refusals import CompileError

AUTO = "auto"
KNOBS = ("gm", "gn", "nk")
KSPLIT = "ksplit"
# Cycles, from docs/microarchitecture: an entry that is converted and one that is not, a FILL beyond its entries, one
# flit through staging and dispatch, a kick's registers and polls, a short sweep's K block, bursts of 8 words in 9 flits.
CONVERTED, STORED, FILL_EXTRA, FLIT, KICK, SHORTEST, BURST = 8, 4, 25, 10, 55, 5, 9 / 8
JOIN = 200  # a phase of its own for a level of sums, or for tiles that leave: polls, staging, kicks
STAGE = 15  # three flits that set a cluster going
RESULT_QUEUE = 128
COMPARED, FEW_SWEEPS = 8, 600  # how many tiles are compiled to be compared, and of how many sweeps at most
MOST_CHUNK = 8  # K blocks of a chunk that are tried
FEWEST_PARTS = 48  # an axis is cut into at most so many tiles, unless a power of two cuts it further


@dataclass(frozen=True)
class Product:
    """One tiling: `products` contractions of M x K with N x K a tile, `batch` times.

    `slots` is how many tiles an instance sends to a vector core (0: none), `channels` whether it reads a per-channel
    operand there. `entry` is the cycles a port needs for an entry of each side; `moved`: an operand is read from rows
    other than a tile's first, which needs chunks of one block.
    """

    m: int
    n: int
    k: int
    batch: int
    products: int
    slots: int
    channels: bool
    entry: tuple[int, int]
    moved: bool
    source: Source


@dataclass(frozen=True)
class Choice:
    """A tile, the cycles that it is expected to take, how many sweeps it makes in all, and the parts that K is cut into."""

    gm: int
    gn: int
    nk: int
    cycles: float
    sweeps: int
    ksplit: int = 1

    @property
    def knobs(self) -> dict[str, int]:
        """As a trace shows them: `ksplit` only where it cuts."""
        tile = {"gm": self.gm, "gn": self.gn, "nk": self.nk}
        return tile | {KSPLIT: self.ksplit} if self.ksplit > 1 else tile

    @property
    def intensity(self) -> float:
        """Sub-tiles swept for each group of 4 lanes that is fetched (spec: tile choice)."""
        return 2 * self.gm * self.gn / (self.gm + self.gn)

    @property
    def rank(self) -> tuple:
        powers = sum(value & (value - 1) != 0 for value in (self.gm, self.gn, self.nk))
        return (round(self.cycles), self.ksplit, -round(self.intensity * 4096), powers, abs(self.gm - self.gn), self.nk)


def shortlist(
    kernel: Kernel,
    machine: Machine,
    shapes: Mapping[str, tuple[int, ...]],
    knobs: Mapping[str, object],
    preq: Collection[str] = (),
) -> list[dict[str, object]]:
    """The knobs with numbers for those of gm, gn, nk and ksplit that are "auto", the best first; one where the product is
    large. Where ksplit is to be chosen, these are first for K whole, then for K in parts.

    Raises CompileError when no tile fits, and for a knob that is "auto" and none of these.
    """
    wanted = {name for name, value in kernel.settings(knobs).items() if value == AUTO}
    if not wanted:
        return [dict(knobs)]
    other = sorted(wanted - {*KNOBS, KSPLIT})
    if other:
        raise CompileError(
            f"the knob {other[0]} cannot be chosen: only {', '.join((*KNOBS, KSPLIT))} may be {AUTO!r}", kernel.source
        )
    found = list(candidates(kernel, machine, shapes, knobs, preq))
    if not found:
        if wanted == {KSPLIT}:  # its tiles are no knobs, or do not fit, which compiling says by name
            return [dict(knobs) | {KSPLIT: parts} for parts in _splits(kernel, knobs, machine)[:COMPARED]]
        trace = kernel.trace(**(dict(knobs) | dict.fromkeys(wanted, 1)))
        tilings = list(products(trace, kernel.solve(shapes), preq))
        if not tilings:
            raise CompileError("there is no product here whose tile could be chosen", kernel.source)
        held = ", ".join(f"{name}={value}" for name, value in _fixed(kernel, knobs).items())
        raise CompileError(
            f"no tile{f' with {held}' if held else ''} fits {machine.name}: the accumulator, a bank"
            + (
                f", or {counted(len(machine.vectors), 'vector core')} with an instance each (the epilogue is fused; fuse=False needs "
                "none of that)" if any(t.slots for t in tilings) else ""
            ),
            tilings[0].source,
        )  # fmt: skip
    few = []
    for cut in (False, True) if KSPLIT in wanted else (None,):
        ranked = [choice for choice in found if cut in (None, choice.ksplit > 1)]
        few += [choice for choice in ranked[:COMPARED] if choice.sweeps <= FEW_SWEEPS] or ranked[:1]
    return [dict(knobs) | {name: (choice.knobs | {KSPLIT: choice.ksplit})[name] for name in wanted} for choice in few]


def _fixed(kernel: Kernel, knobs: Mapping[str, object]) -> dict[str, int]:
    return {name: value for name, value in knobs.items() if name in KNOBS and value != AUTO and name in kernel.knobs}


def _splits(kernel: Kernel, knobs: Mapping[str, object], machine: Machine) -> list[int]:
    """The parts of K that may be tried: the given ones, or up to one a cluster."""
    given = kernel.settings(knobs)[KSPLIT]
    return list(range(1, max(len(machine.clusters), 1) + 1)) if given == AUTO else [given]


def candidates(
    kernel: Kernel,
    machine: Machine,
    shapes: Mapping[str, tuple[int, ...]],
    knobs: Mapping[str, object],
    preq: Collection[str] = (),
) -> Iterator[Choice]:
    """Tiles for a kernel, the best first, with the given ones of gm, gn, nk and ksplit (not those that are "auto") kept."""
    tile_knobs = [name for name in KNOBS if name in kernel.knobs]
    fixed = _fixed(kernel, knobs)
    ones = {name: fixed.get(name, 1) for name in tile_knobs} | {KSPLIT: 1}
    trace = kernel.trace(**(dict(knobs) | ones))
    tilings = list(products(trace, kernel.solve(shapes), preq))
    if tilings and tile_knobs:
        yield from sorted(choices(tilings, machine, fixed, _splits(kernel, knobs, machine)), key=lambda choice: choice.rank)


def products(trace: Trace, extents: Extents, preq: Collection[str] = ()) -> Iterator[Product]:
    """The tilings of a trace that multiply."""
    for node in _units(trace.body):
        contracts = [s for s in _statements(node.body) if isinstance(s, Contract)]
        if not contracts:
            continue
        stores = [s for s in _statements(node.body) if isinstance(s, Store)]
        fused = [s for s in stores if trace.fuse and not s.expression.is_copy and accumulators(s)]
        tiles = {leaf.accumulator for s in fused for leaf in s.expression.leaves if isinstance(leaf, TileLeaf)}
        channels = any(isinstance(leaf, SliceLeaf) for s in fused for leaf in s.expression.leaves)
        moved = any(part.moved for s in contracts for part in (s.a, s.b))
        sides = contracts[0].a, contracts[0].b
        a, b = (trace.buffers[part.buffer] for part in sides)
        m, n = (resolve_extent(part.plane.rows if part.plane else trace.buffers[part.buffer].shape[0], extents.dims) for part in sides)
        k = resolve_extent(contracts[0].a.axes[1].length, extents.dims)
        entry = tuple(STORED if buffer.name in preq else CONVERTED for buffer in (a, b))
        yield Product(m, n, k, extents.batch, len(contracts), len(tiles), channels, entry, moved, contracts[0].source)


def _units(body) -> Iterator[Units]:
    for node in body:
        if isinstance(node, Units):
            yield node
        elif isinstance(node, Loop):
            yield from _units(node.body)


def _statements(body) -> Iterator:
    for node in body:
        if isinstance(node, (Loop, Units)):
            yield from _statements(node.body)
        else:
            yield node


def _groups(groups: int, most: int) -> list[int]:
    """Tile sizes worth trying for an axis of `groups` groups: even cuts, and powers of two."""
    cuts = {math.ceil(groups / parts) for parts in range(1, min(groups, FEWEST_PARTS) + 1)}
    powers = {1 << n for n in range(min(groups, most).bit_length())}
    return sorted(size for size in cuts | powers if size <= most)


def choices(
    tilings: list[Product], machine: Machine, fixed: Mapping[str, int] = {}, splits: Collection[int] = (1,)  # noqa: B006
) -> Iterator[Choice]:
    """Every tile that fits the machine, with its cycles, in each of `splits` parts of K; `fixed` knobs are taken as they
    are. No more parts than chunks are tried."""
    if not machine.clusters:
        return
    blocks = max(math.ceil(t.k / KBLOCK) for t in tilings)
    rows = max(math.ceil(t.m / LANES) for t in tilings)
    columns = max(math.ceil(t.n / LANES) for t in tilings)
    a, b = (min(getattr(unit, side) for unit in machine.clusters) for side in ("a_entries", "b_entries"))
    store = min(unit.tiles for unit in machine.clusters)
    for nk in [fixed["nk"]] if "nk" in fixed else range(1, min(blocks, 1 if any(t.moved for t in tilings) else MOST_CHUNK) + 1):
        chunks = math.ceil(blocks / nk)
        room = [_room(entries, chunks) // nk for entries in (a, b)]
        for gm in [fixed["gm"]] if "gm" in fixed else _groups(rows, room[0]):
            for gn in [fixed["gn"]] if "gn" in fixed else _groups(columns, room[1]):
                if gm * gn > store or gm > room[0] or gn > room[1]:
                    continue
                if not all(_fits(t, machine, gm, gn) for t in tilings):
                    continue
                sweeps = chunks * sum(_instances(t, gm, gn) * t.products for t in tilings)
                for parts in dict.fromkeys(min(split, chunks) for split in splits):
                    if parts <= len(machine.clusters):
                        expected = sum(cycles(t, machine, gm, gn, nk, parts) for t in tilings)
                        yield Choice(gm, gn, nk, expected, sweeps, parts)


def _room(entries: int, chunks: int) -> int:
    """Entries of one side that a chunk may take: a bank, or half of a side without banks that other chunks need too."""
    if entries <= BANK and chunks > 1:
        return entries // 2
    return min(entries, BANK, FILL_LIMIT)


def _fits(tiling: Product, machine: Machine, gm: int, gn: int) -> bool:
    """Whether a fused epilogue of this tile fits the vector cores (spec: the fused epilogue)."""
    if not tiling.slots:
        return True
    span = span_words(gm, gn)
    return (
        _instances(tiling, gm, gn) <= len(machine.vectors)
        and gm * gn <= vector.WALK_LIMIT
        and (tiling.slots + 1) * span + (gn if tiling.channels else 0) <= l1_room(machine)
    )


def _instances(tiling: Product, gm: int, gn: int) -> int:
    return tiling.batch * math.ceil(tiling.m / (LANES * gm)) * math.ceil(tiling.n / (LANES * gn))


def cycles(tiling: Product, machine: Machine, gm: int, gn: int, nk: int, parts: int = 1) -> float:
    """Cycles of a tiling, in closed form: the busiest cluster's sweeps, fetches that they do not hide, begin and end; with K
    in parts, what it takes to add them up too."""
    clusters = len(machine.clusters)
    ports = Counter(machine.port_of(unit).node for unit in machine.clusters)
    instances = _instances(tiling, gm, gn)
    chunks = math.ceil(math.ceil(tiling.k / KBLOCK) / nk)
    parts = min(parts, chunks)
    teams = clusters // parts
    busy = min(instances, teams) * parts
    shared = math.ceil(busy / len(ports)) if busy < clusters else max(ports.values())
    each = math.ceil(instances / teams)
    rows = math.ceil(tiling.m / (LANES * gm))
    chunks = math.ceil(chunks / parts)
    subtiles = gm * gn
    sweep = max(subtiles, SHORTEST) * nk
    sweeps = each * tiling.products * chunks
    # What stays in L1 is fetched once for every run of instances that share it.
    room = min(unit.b_entries for unit in machine.clusters)
    resident = tiling.products * chunks * gn * nk <= room
    columns = math.ceil(each / rows) if resident else each
    both = tiling.products * chunks * columns  # sweeps that fetch both operands
    latency = machine.memory.latency + FILL_EXTRA
    fill_a, fill_b = (groups * nk * entry for groups, entry in zip((gm, gn), tiling.entry, strict=True))
    waiting = both * max(sweep, fill_a + fill_b + 2 * latency) + (sweeps - both) * max(sweep, fill_a + latency)
    port = shared * (sweeps * fill_a + both * fill_b)
    flits = busy * (2 * sweeps + both + each * tiling.products)
    handing = flits * (FLIT + KICK * busy / machine.staging_flits)
    held = max(0.0, subtiles * BURST - subtiles - RESULT_QUEUE)
    first = shared * (fill_a + fill_b) + 2 * latency
    steady = max(waiting + each * tiling.products * held, port, handing) + handing / 16
    leaving = max(subtiles * BURST * shared - subtiles, 0)
    joining = 0.0
    if parts > 1:
        levels = math.ceil(math.log2(parts))
        joining = each * tiling.products * (levels * (2 * subtiles * BURST + JOIN) + subtiles * BURST + JOIN)
    return (STAGE + KICK) * busy + first + steady + joining + leaving + latency
