"""Cluster stages to FILL, GEMM and DRAIN, for clusters that stay busy (docs/planning.md; spec: cluster).

* The FILLs of a sweep stand behind the GEMM before it, so that they run beside its sweep.
* Where sweeps are shorter than their FILLs, one FILL fetches the chunks of several.
* What L1 holds is not fetched again (`l1`), and instances are dealt so that operands that are needed again stay.
* The GEMM that completes a tile emits it, and a fused DRAIN, which waits for the last of it, stands as late as it
  can: a tile leaves beside the sweeps of the next one.
* Where K is in parts (`ksplit`), no GEMM completes a tile: sums go to other clusters, and tiles leave, by explicit DRAINs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kohakutpu.isa import cluster as isa
from kohakutpu.isa.cluster import Side
from kohakutpu.isa.flit import xy
from kohakutpu.isa.signals import SIGNAL_ON_COMPLETE, Buffer
from kohakutpu.lang.source import Source
from kohakutpu.machine import ClusterUnit

from .artifact import BufferImage
from .ksplit import Phase, Work
from .l1 import OperandMemory
from .layouts import ENTRY, LANE, WORD, Entry
from .refusals import check_fill, check_tile
from .rounds import Item
from .stages import ClusterStage, Drain, Key, Operand, Peer, Send, Sweep

FILL_LATENCY = 45  # cycles of a FILL beyond those of its entries: the way to memory, its latency, the way back


def arrange(stage: ClusterStage, units: Mapping[int, ClusterUnit]) -> list[Key]:
    """The instances in an order in which neighbours share the operands that fit a cluster's L1 as a whole."""
    keys = sorted(stage.programs)
    best: tuple[int, list[Key]] = (0, keys)
    for side in (Side.B, Side.A):
        room = min(unit.b_entries if side == Side.B else unit.a_entries for unit in units.values())
        sets: dict[frozenset, int] = {}  # the operands of an instance on this side -> order of first appearance
        members: dict[Key, int] = {}
        entries = 0
        for key in keys:
            operands = {_operand(op, side): _entries(op, side) for op in stage.programs[key] if isinstance(op, Sweep)}
            entries = max(entries, sum(operands.values()))
            members[key] = sets.setdefault(frozenset(operands), len(sets))
        if entries <= room and len(sets) < len(keys) and entries > best[0]:
            best = (entries, sorted(keys, key=lambda key: (members[key], key)))
    return best[1]


def _operand(op: Sweep, side: Side) -> Operand:
    return op.a if side == Side.A else op.b


def _entries(op: Sweep, side: Side) -> int:
    return (op.gm if side == Side.A else op.gn) * op.nk


@dataclass(frozen=True)
class Places:
    """What addresses need: where buffers are, which vector core an instance sends to, and the node that is told."""

    images: Mapping[str, BufferImage]
    receivers: Mapping[Key, int]
    agent: int
    span: int  # L1 words of a vector core's slot


def lower(
    stage: ClusterStage,
    order: Mapping[int, Iterable[Key]],
    units: Mapping[int, ClusterUnit],
    places: Places,
    sources: Mapping[int, Source],
) -> dict[int, list[Item]]:
    """What each node is sent: its instances in the order given, every payload with the instance it belongs to."""
    queues = {}
    for node, keys in order.items():
        work = [(key, op) for key in keys for op in stage.programs[key]]
        (queues[node],) = _Stream(units[node], places, sources).run([work])
    return queues


def lower_phases(
    phases: Sequence[Phase], units: Mapping[int, ClusterUnit], places: Places, sources: Mapping[int, Source]
) -> list[dict[int, list[Item]]]:
    """What each node is sent in each phase of a stage whose K is in parts."""
    queues: list[dict[int, list[Item]]] = [{} for _ in phases]
    for node in dict.fromkeys(node for phase in phases for node in phase):
        works = [phase.get(node, []) for phase in phases]
        for phase, items in zip(queues, _Stream(units[node], places, sources).run(works, emits=False), strict=True):
            if items:
                phase[node] = items
    return queues


class _Stream:
    """The instructions of one cluster."""

    def __init__(self, unit: ClusterUnit, places: Places, sources: Mapping[int, Source]):
        self.unit = unit
        self.places = places
        self.sources = sources
        self.items: list[Item] = []
        self.pending: Item | None = None  # the DRAIN of the tile that is leaving
        self.sending = False  # it stands before the next GEMM: that tile leaves to a vector core, or by an explicit DRAIN
        self.ends = False  # when it is done, no sweep runs: that tile is the last one's
        self.l1: dict[Side, OperandMemory] = {}

    def run(self, works: Sequence[Work], emits: bool = True) -> list[list[Item]]:
        """The instructions of each of `works`; one is begun when the one before has been awaited. `emits`: GEMMs do."""
        sweeps = [op for work in works for _, op in work if isinstance(op, Sweep)]
        for side in Side:
            self.l1[side] = OperandMemory(self.unit, side, [_operand(op, side) for op in sweeps])
        return [self._work(work, emits) for work in works]

    def _work(self, work: Work, emits: bool) -> list[Item]:
        self.items = []
        following = [op for _, op in work[1:]] + [None]
        emitted = False
        for (key, op), after in zip(work, following, strict=False):
            if isinstance(op, Sweep):
                emitted = emits and isinstance(after, (Drain, Send))
                self._sweep(key, op, after if emitted else None)
            elif emitted:
                emitted = False
                self.pending = (key, self._drain(key, op, fuse=1))
                self.sending = isinstance(op, Send)
            else:
                self._settle()
                self.pending = (key, self._drain(key, op, fuse=0))
                self.sending = self.ends = True
                if emits or isinstance(op, Peer):
                    self._settle()
        self._settle()
        return self.items

    def _settle(self) -> None:
        """Wait for the tile that is leaving."""
        if self.pending is not None:
            self.items.append(self.pending)
            self.pending = None
            self.sending = False
            if self.ends:
                self._rest()

    def _rest(self) -> None:
        for memory in self.l1.values():
            memory.rest()

    def _sweep(self, key: Key, op: Sweep, leaves: Drain | Send | None) -> None:
        source = self.sources[op.statement]
        check_tile(op.gm, op.gn, self.unit, source)
        for side in Side:
            self._fill(key, op, side, source)
        # A batch of granules for a vector core is awaited with its DRAIN, so nothing else may let it go.
        if leaves is not None or self.sending:
            self._settle()
        (abank, aoff), (bbank, boff) = (self.l1[side].find(_operand(op, side)) for side in Side)
        target = {} if leaves is None else self._target(key, leaves) | {"emit": 1}
        self.items.append((
            key,
            isa.GEMM.encode(
                acc=int(op.step > 0), gm=op.gm, gn=op.gn, nk=op.nk, aoff=aoff, boff=boff, abank=abank, bbank=bbank,
                **target,
            ),
        ))  # fmt: skip
        self.ends = leaves is not None
        for side in Side:
            self.l1[side].swept(_operand(op, side))

    def _fill(self, key: Key, op: Sweep, side: Side, source: Source) -> None:
        operand, entries, l1 = _operand(op, side), _entries(op, side), self.l1[side]
        check_fill(operand.buffer, entries // op.nk, op.nk, side, source)
        if l1.find(operand) is not None:
            return
        l1.require(operand, entries, source)
        image = self.places.images[operand.buffer]
        run = [operand]
        if self._waits_for_fills(op) and isinstance(image.layout, Entry):
            run = l1.following(entries)
        while (place := l1.place(run, entries)) is None:
            if len(run) > 1:
                run = run[: len(run) // 2]
            elif self.pending is None:
                l1.refuse(operand, entries, source)
            else:
                self._settle()
        bank, first = place
        address = image.address + operand.copy * image.stride + image.layout.offset(operand.tile, operand.chunk)
        address += operand.shift * LANE
        preq = int(image.layout.entry_bytes != ENTRY)
        fill = isa.FILL.encode(addr=address, n=entries * len(run), sel=side, eoff=first, fbank=bank, preq=preq)
        self.items.append((key, fill))

    def _waits_for_fills(self, op: Sweep) -> bool:
        """Whether a sweep is over before the operands of the next one are there, so that fewer, longer FILLs pay."""
        fill = 0
        for operand, groups in ((op.a, op.gm), (op.b, op.gn)):
            cycles = self.places.images[operand.buffer].layout.entry_bytes // WORD
            fill += groups * op.nk * cycles + FILL_LATENCY
        return op.gm * op.gn * op.nk < fill

    def _target(self, key: Key, op: Drain | Send | Peer) -> dict[str, int]:
        if isinstance(op, Drain):
            image = self.places.images[op.buffer]
            return {"addr": image.address + op.copy * image.stride + image.layout.offset(op.i, op.j)}
        ack_x, ack_y = xy(self.places.agent)
        if isinstance(op, Peer):
            node, buffer, first = op.node, Buffer.ACCUMULATOR, 0
        else:
            node, buffer, first = self.places.receivers[key], Buffer.FIRST, op.slot * self.places.span * WORD
        dst_x, dst_y = xy(node)
        return {
            "addr": first, "dnode": 1, "dst_x": dst_x, "dst_y": dst_y, "dbuf": buffer, "dflags": SIGNAL_ON_COMPLETE,
            "dack_x": ack_x, "dack_y": ack_y,
        }  # fmt: skip

    def _drain(self, key: Key, op: Drain | Send | Peer, fuse: int) -> int:
        words = self.places.images[op.buffer].layout.words if isinstance(op, Drain) else op.gm * op.gn
        return isa.DRAIN.encode(n=words, fuse=fuse, **self._target(key, op))
