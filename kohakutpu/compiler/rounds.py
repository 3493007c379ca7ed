"""Instruction streams to rounds: what is staged at once, kicked, and awaited (spec: rounds; placement and sequencing).

A round's flits fit the staging area and its commands the command list. Rounds form chains: the first seeds the credit,
which is the machine's limit, what the smallest of its instruction FIFOs holds; the last awaits every node that the
chain made signal, for everything it sends: completions of its own flits, and acknowledgements of its own drains. In between
nothing is awaited, so that nodes work while the next round is staged. The last flit of a kick returns no credit, so a
chain has fewer kicks than the credit; of vector cores half as many, so that credit is left to keep all of them at work. As
published, every round is a chain of its own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from kohakutpu.isa import cluster as isa
from kohakutpu.isa import vector
from kohakutpu.isa.flit import Flit, FlitType, node
from kohakutpu.isa.signals import Buffer

from .artifact import Await, Kick, Round, Seed, Step
from .refusals import COMMANDS, WBURST
from .stages import Key

TXN = {"cluster": 0x00, "vector": 0x40}
GROWTH = 3  # a round to the one before it, while clusters are set going
KICK_COMMANDS, AWAIT_COMMANDS, ROUND_COMMANDS = 5, 1, 2

Item = tuple[Key, int]  # an instance and one payload
Window = tuple[int, Sequence[Item]]  # a node and what is kicked to it at once


def _acknowledged(unit: str, payload: int) -> tuple[int, int] | None:
    """(receiver, DATA_RECEIVED it will send) of a cluster's drain into a node, if it asks for any."""
    i = isa.decode(payload)
    if unit != "cluster" or i.op != isa.Op.DRAIN or not i.dnode or not i.dflags & 1:
        return None
    granules = 2 * i.n if i.dbuf == Buffer.ACCUMULATOR else i.n
    return node(i.dst_x, i.dst_y), math.ceil(granules / WBURST)


def schedule_published(
    number: int,
    unit: str,
    streams: Mapping[Key, Sequence[int]],
    nodes: Mapping[Key, int],
    credit: int,
    staging: int,
) -> list[Round]:
    """The rounds of stage `number` as published, each of which seeds `credit` and awaits what it kicked."""
    packed = _pack_instances(streams, unit, nodes, credit, staging)
    chains = [[windows] for windows in packed]
    return _rounds(number, unit, chains, credit)


def schedule(
    number: int, unit: str, queues: Mapping[int, Sequence[Item]], credit: int, staging: int, ends: bool = True
) -> list[Round]:
    """The rounds of stage `number`, whose nodes are sent these items in order; all of it, unless it does not end there."""
    chains: list[list[Sequence[Window]]] = []
    for group in _groups(queues, credit, staging):
        most = max(credit // 2, len(group) + 1) if unit == "vector" and len(group) > 1 else credit
        kicks = most
        for windows in _pack_nodes(unit, {n: queues[n] for n in group}, staging):
            made = _in_turns(unit, windows, credit - kicks, most)
            if kicks + len(made) >= most:
                chains.append([])
                kicks = 0
                made = _in_turns(unit, windows, credit, most)
            chains[-1].append(made)
            kicks += len(made)
    return _rounds(number, unit, chains, credit, ends)


def _in_turns(unit: str, windows: Sequence[Window], credit: int, most: int) -> Sequence[Window]:
    """A round's windows in shorter ones, node by node in turns, fewer than `most`, so that every core can begin within `credit`.

    Sent whole, the first would take all credit, and keep the others waiting until their programs have run.
    """
    if unit != "vector" or len(windows) == 1 or sum(_waiting(items) for _, items in windows) <= credit:
        return windows
    longest = max(len(items) for _, items in windows)
    kicks = min(most - 1, (COMMANDS - ROUND_COMMANDS - AWAIT_COMMANDS * len(windows)) // KICK_COMMANDS)
    turns = max(kicks // len(windows), 1)
    size = max(credit // len(windows), math.ceil(longest / turns))
    return [(n, items[first : first + size]) for first in range(0, longest, size) for n, items in windows if first < len(items)]


def _waiting(items: Sequence[Item]) -> int:
    """How many payloads wait for a program to run, that one's included; a core does the ones before at once."""
    runs = (n for n, (_, payload) in enumerate(items) if vector.decode(payload).op == vector.Envelope.RUN)
    return len(items) - next(runs, len(items))


def by_node(streams: Mapping[Key, Sequence[int]], nodes: Mapping[Key, int]) -> dict[int, list[Item]]:
    """Each node's items: its instances' payloads in the order of the instances."""
    queues: dict[int, list[Item]] = {}
    for key in sorted(streams):
        queues.setdefault(nodes[key], []).extend((key, payload) for payload in streams[key])
    return queues


def _fits(windows: Sequence[Window], unit: str, credit: int, staging: int) -> bool:
    """Whether a round of these windows respects staging, commands and credit."""
    awaited = {n for n, _ in windows}
    for _, items in windows:
        awaited |= {found[0] for _, payload in items if (found := _acknowledged(unit, payload))}
    commands = KICK_COMMANDS * len(windows) + AWAIT_COMMANDS * len(awaited) + ROUND_COMMANDS
    return (
        sum(len(items) for _, items in windows) <= staging
        and commands <= COMMANDS
        and len(windows) < credit
    )


def _pack_instances(streams, unit: str, nodes, credit: int, staging: int) -> list[list[Window]]:
    """As published: windows of one instance each, in the order of the instances, as many as fit."""
    rounds: list[list[Window]] = []
    for key in sorted(streams):
        for window in _cut(streams[key], staging):
            made = (nodes[key], [(key, payload) for payload in window])
            if not rounds or not _fits([*rounds[-1], made], unit, credit, staging):
                rounds.append([])
            rounds[-1].append(made)
    return rounds


def _cut(items: Sequence, size: int) -> list[Sequence]:
    return [items[first : first + size] for first in range(0, len(items), size)]


def _pack_nodes(unit: str, queues: Mapping[int, Sequence[Item]], staging: int) -> list[list[Window]]:
    """One window a node and round, so that every node works in every round; before them what sets clusters going.

    Rounds after that first one grow, so that clusters do not run out of work while the next one is staged.
    """
    rounds: list[list[Window]] = []
    size = staging
    first = _begin(unit, list(queues.values()), staging) if len(queues) > 1 else []
    if first:
        rounds.append([(n, items[:count]) for (n, items), count in zip(queues.items(), first, strict=True)])
        size = sum(first)
    left = dict(queues) if not first else {n: queues[n][count:] for n, count in zip(queues, first, strict=True)}
    while left:
        size = min(size * GROWTH, staging)
        parts = math.ceil(sum(map(len, left.values())) / size)
        while sum(math.ceil(len(items) / parts) for items in left.values()) > staging:
            parts += 1
        taken = {n: math.ceil(len(items) / parts) for n, items in left.items()}
        rounds.append([(n, left[n][:count]) for n, count in taken.items()])
        left = {n: items[taken[n] :] for n, items in left.items() if taken[n] < len(items)}
    return rounds


def _begin(unit: str, queues: Sequence[Sequence[Item]], staging: int) -> list[int]:
    """How many items set each cluster going: up to its first GEMM. Empty where that is everything, or too much."""
    if unit != "cluster":
        return []
    first = []
    for items in queues:
        gemm = (n for n, (_, payload) in enumerate(items, 1) if isa.WORD.get(payload, "op") == isa.Op.GEMM)
        first.append(next(gemm, len(items)))
    enough = sum(first) <= staging and all(count < len(items) for count, items in zip(first, queues, strict=True))
    return first if enough else []


def _groups(queues: Mapping[int, Sequence[Item]], credit: int, staging: int) -> list[list[int]]:
    """Nodes that can share a round: by commands (an await for the node and one for its receiver), credit, staging."""
    most = (COMMANDS - ROUND_COMMANDS) // (KICK_COMMANDS + 2 * AWAIT_COMMANDS)
    most = min(most, credit - 1, staging)
    return _cut(list(queues), most)


def _rounds(number: int, unit: str, chains: Sequence[Sequence[Sequence[Window]]], credit: int, ends: bool = True) -> list[Round]:
    rounds = []
    for chain in chains:
        signals: Counter[int] = Counter()
        acks: Counter[int] = Counter()
        for windows in chain:
            for n, items in windows:
                signals[n] += len(items)
                for _, payload in items:
                    found = _acknowledged(unit, payload)
                    if found:
                        signals[found[0]] += found[1]
                        acks[found[0]] += found[1]
        for windows in chain:
            steps: list[Step] = [Seed(credit)] if windows is chain[0] else []
            flits: list[Flit] = []
            owners: list[Key] = []
            for n, items in windows:
                steps.append(Kick(n, len(flits), len(items)))
                for position, (key, payload) in enumerate(items, 1):
                    flits.append(Flit(0, 0, FlitType.CU_INST, TXN[unit], int(position == len(items)), 0, payload))
                    owners.append(key)
            if windows is chain[-1]:
                steps += [Await(n, count, acks[n]) for n, count in signals.items()]
            last = ends and windows is chain[-1] and chain is chains[-1]
            rounds.append(Round(number, tuple(flits), tuple(owners), tuple(steps), last))
    return rounds
