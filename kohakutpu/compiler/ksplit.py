"""K in parts: the contractions of a tile on several clusters, whose sums are added up (`ksplit`; docs/planning.md).

A cluster adds whatever arrives for buffer 2 to its accumulator. Nothing tells the sender whether that is open yet, bursts
of two senders would mix, and a sum depends on its order. So a stage is a list of phases, and the host awaits each before
it begins the next: every part is accumulated; then, level by level, each sum goes to a cluster that sends to nobody
meanwhile and hears from nobody else; then tiles leave.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kohakutpu.lang.source import Source
from kohakutpu.machine import Machine
from kohakutpu.wording import counted

from .refusals import CompileError
from .stages import ClusterStage, Drain, Key, Peer, Send, Sweep

Work = list[tuple[Key, Sweep | Drain | Send | Peer]]  # of one cluster, in order
Phase = dict[int, Work]  # by node


@dataclass
class Sum:
    """One accumulator from its opening to its end: sweeps, and what it leaves as."""

    sweeps: list[Sweep]
    leaves: list[Drain | Send]


def sums(program: Sequence[Sweep | Drain | Send], sources: Mapping[int, Source]) -> list[Sum]:
    """The accumulators of one instance, one after another. Raises CompileError for one that is accumulated on after it
    has left: its parts have been added up by then."""
    found: list[Sum] = []
    for op in program:
        if not isinstance(op, Sweep):
            found[-1].leaves.append(op)
        elif not op.step:
            found.append(Sum([op], []))
        elif found[-1].leaves:
            raise CompileError(
                "this accumulator is stored before and accumulated on here, and ksplit adds its parts up once; store it "
                "at its end only, or use ksplit=1",
                sources[op.statement],
            )
        else:
            found[-1].sweeps.append(op)
    return found


def parts_of(stage: ClusterStage, ksplit: int, sources: Mapping[int, Source]) -> int:
    """The parts that the sums of a stage are cut into: `ksplit`, or as many sweeps as the longest of them has."""
    if ksplit == 1:
        return 1
    return min(ksplit, max(len(one.sweeps) for program in stage.programs.values() for one in sums(program, sources)))


def check(stage: ClusterStage, ksplit: int, machine: Machine, sources: Mapping[int, Source], published: bool) -> None:
    """Refuse parts of K that the clusters of a machine cannot add up."""
    source = sources[stage.statements[0]]
    if ksplit > 1 and published:
        raise CompileError(f"ksplit={ksplit}: the published programs leave K in one part", source)
    parts, clusters = parts_of(stage, ksplit, sources), len(machine.clusters)
    if parts > clusters:
        raise CompileError(
            f"ksplit={ksplit} cuts K into {parts} parts here, each on a cluster of its own, and {machine.name} has "
            f"{counted(clusters, 'cluster')}",
            source,
        )
    if parts > 1 and (machine.agent is None or machine.agent.xy == (0, 0)):
        raise CompileError(f"ksplit={ksplit}: {machine.name} names no agent, which is told when a part has arrived", source)


def teams(instances: int, clusters: Sequence[int], parts: int) -> list[tuple[int, ...]]:
    """The clusters that work on one tile together, the one that it leaves from first; no more teams than tiles."""
    count = min(instances, len(clusters) // parts)
    return [tuple(clusters[first : first + parts]) for first in range(0, count * parts, parts)]


def cut(sweeps: Sequence[Sweep], parts: int) -> Iterator[list[Sweep]]:
    """Runs of neighbours, as many as `parts` or as there are sweeps, the first ones one longer where they do not come out
    even (`docs/kernels.md`, "Parts of K"). Each opens an accumulator."""
    parts = min(parts, len(sweeps))
    size, longer = divmod(len(sweeps), parts)
    first = 0
    for part in range(parts):
        end = first + size + (part < longer)
        yield [replace(sweep, step=step) for step, sweep in enumerate(sweeps[first:end])]
        first = end


def divide(stage: ClusterStage, work: Sequence[tuple[Sequence[int], Sequence[Key]]], sources: Mapping[int, Source]) -> list[Phase]:
    """The phases of a stage; `work` has the clusters of each team, and its instances in order."""
    queues = [
        (team, [(key, one) for key in keys for one in sums(stage.programs[key], sources)]) for team, keys in work
    ]
    phases: list[Phase] = []
    leaving: Phase = {}
    for turn in range(max(len(queue) for _, queue in queues)):
        now = [(team, *queue[turn]) for team, queue in queues if turn < len(queue)]
        phase = leaving
        for team, key, one in now:
            for node, run in zip(team, cut(one.sweeps, len(team)), strict=False):
                phase.setdefault(node, []).extend((key, sweep) for sweep in run)
        phases += [phase, *_joined(now)]
        leaving = {team[0]: [(key, leave) for leave in one.leaves] for team, key, one in now}
    return [*phases, leaving]


def _joined(now: Sequence[tuple[Sequence[int], Key, Sum]]) -> Iterator[Phase]:
    """One level after another: the second of each two neighbours sends its sum to the first."""
    step = 1
    while True:
        phase: Phase = {}
        for team, key, one in now:
            parts, first = min(len(team), len(one.sweeps)), one.sweeps[0]
            for place in range(0, parts - step, 2 * step):
                sent = Peer(team[place], first.gm, first.gn, first.statement)
                phase[team[place + step]] = [(key, sent)]
        if not phase:
            return
        yield phase
        step *= 2
