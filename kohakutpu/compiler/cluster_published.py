"""Cluster stages to FILL, GEMM and DRAIN as published (spec: lowering of cluster statements).

An operand has a region of its own in each side's L1, and successive sweeps of an accumulator use the two banks in turn:
a FILL may run beside a sweep and nothing interlocks them, but the sweep after next cannot start before the last one
ends. A cluster whose side has at most 256 entries has no banks; its halves serve as such.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kohakutpu.isa import cluster as isa
from kohakutpu.isa.flit import xy
from kohakutpu.lang.source import Source
from kohakutpu.machine import ClusterUnit

from .artifact import BufferImage
from .layouts import LANE
from .refusals import CompileError, check_fill, check_tile
from .stages import ClusterStage, Drain, Key, Operand, Send, Sweep

BANK = 256
SIGNAL_ON_COMPLETE = 1
VECTOR_BUFFER = 0


@dataclass
class _L1:
    """What one cluster's operand memories hold: regions by operand, and the operand in each (side, bank, region)."""

    unit: ClusterUnit
    banked: bool = True  # successive sweeps need two places
    regions: tuple[dict[str, tuple[int, int]], dict[str, tuple[int, int]]] = field(default_factory=lambda: ({}, {}))
    holds: dict[tuple[int, int, int], Operand] = field(default_factory=dict)

    def entries(self, side: int) -> int:
        return (self.unit.a_entries, self.unit.b_entries)[side]

    def capacity(self, side: int) -> int:
        """Entries of one bank."""
        entries = self.entries(side)
        if entries > BANK:
            return BANK
        return entries // 2 if self.banked else entries

    def place(self, side: int, operand: Operand, step: int, entries: int, source: Source) -> tuple[int, int]:
        """(bank, first entry) of an operand's region for a sweep."""
        regions = self.regions[side]
        if operand.buffer not in regions:
            first = sum(size for _, size in regions.values())
            if first + entries > self.capacity(side):
                taken = ", ".join(f"{name} {size}" for name, (_, size) in regions.items())
                raise CompileError(
                    f"{operand.buffer} needs {entries} entries on side {isa.Side(side).name} of the cluster at "
                    f"{self.unit.xy}, where a bank holds "
                    f"{self.capacity(side)}{f' and {taken} are taken' if taken else ''}; use a smaller "
                    f"{('gm', 'gn')[side]} or nk",
                    source,
                )
            regions[operand.buffer] = (first, entries)
        first = regions[operand.buffer][0]
        bank = step % 2
        if self.entries(side) > BANK:
            return bank, first
        return 0, first + (bank * self.capacity(side) if self.banked else 0)


def lower(
    stage: ClusterStage,
    nodes: Mapping[Key, int],
    units: Mapping[int, ClusterUnit],
    images: Mapping[str, BufferImage],
    receivers: Mapping[Key, int],
    agent: int,
    span: int,
    sources: Mapping[int, Source],
) -> dict[Key, list[int]]:
    """The payloads of each instance.

    `receivers` pairs instances with vector cores, `span` is the L1 words of one slot there, `agent` the node that is
    acknowledged to.
    """
    longest = max(op.step for program in stage.programs.values() for op in program if isinstance(op, Sweep))
    out = {}
    for key in sorted(stage.programs):
        l1 = _L1(units[nodes[key]], banked=longest > 0)
        payloads: list[int] = []
        for op in stage.programs[key]:
            source = sources[op.statement]
            if isinstance(op, Sweep):
                payloads += _sweep(op, l1, images, source)
            elif isinstance(op, Drain):
                image = images[op.buffer]
                address = image.address + op.copy * image.stride + image.layout.offset(op.i, op.j)
                payloads.append(isa.DRAIN.encode(addr=address, n=image.layout.words))
            else:
                payloads.append(_send(op, receivers[key], agent, span))
        out[key] = payloads
    return out


def _sweep(op: Sweep, l1: _L1, images: Mapping[str, BufferImage], source: Source) -> list[int]:
    check_tile(op.gm, op.gn, l1.unit, source)
    payloads = []
    places = []
    for side, (operand, groups) in enumerate(((op.a, op.gm), (op.b, op.gn))):
        entries = groups * op.nk
        check_fill(operand.buffer, groups, op.nk, side, source)
        bank, first = l1.place(side, operand, op.step, entries, source)
        places.append((bank, first))
        if l1.holds.get((side, bank, first)) == operand:
            continue
        l1.holds[side, bank, first] = operand
        image = images[operand.buffer]
        address = image.address + operand.copy * image.stride + image.layout.offset(operand.tile, operand.chunk)
        address += operand.shift * LANE
        payloads.append(isa.FILL.encode(addr=address, n=entries, sel=side, eoff=first, fbank=bank))
    (abank, aoff), (bbank, boff) = places
    payloads.append(
        isa.GEMM.encode(
            acc=int(op.step > 0), gm=op.gm, gn=op.gn, nk=op.nk, aoff=aoff, boff=boff, abank=abank, bbank=bbank
        )
    )  # fmt: skip
    return payloads


def _send(op: Send, receiver: int, agent: int, span: int) -> int:
    dst_x, dst_y = xy(receiver)
    ack_x, ack_y = xy(agent)
    return isa.DRAIN.encode(
        addr=op.slot * span * 32, n=op.gm * op.gn, dnode=1, dst_x=dst_x, dst_y=dst_y, dbuf=VECTOR_BUFFER,
        dflags=SIGNAL_ON_COMPLETE, dack_x=ack_x, dack_y=ack_y,
    )  # fmt: skip
