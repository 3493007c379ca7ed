"""Instruction streams to rounds: what is staged at once, kicked, and awaited (spec: rounds; placement and sequencing).

A round's flits fit the staging area, its commands the command list, and its kicks stay below the credit it seeds, which
is the machine's limit: what the smallest of its instruction FIFOs holds. Each node that a round makes signal is awaited in that
round, for everything it will send: completions of its own flits, and acknowledgements of its own drains.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from kohakutpu.isa import cluster as isa
from kohakutpu.isa.flit import Flit, FlitType, node

from .artifact import Await, Kick, Round, Seed, Step
from .refusals import COMMANDS, WBURST
from .stages import Key

TXN = {"cluster": 0x00, "vector": 0x40}
KICK_COMMANDS, AWAIT_COMMANDS, ROUND_COMMANDS = 5, 1, 2

Item = tuple[Key, int]  # an instance and one payload
Window = tuple[int, Sequence[Item]]  # a node and what is kicked to it at once


def _acknowledged(unit: str, payload: int) -> tuple[int, int] | None:
    """(receiver, DATA_RECEIVED it will send) of a cluster's drain into a node, if it asks for any."""
    i = isa.decode(payload)
    if unit != "cluster" or i.op != isa.Op.DRAIN or not i.dnode or not i.dflags & 1:
        return None
    return node(i.dst_x, i.dst_y), math.ceil(i.n / WBURST)


def schedule(
    number: int,
    unit: str,
    streams: Mapping[Key, Sequence[int]],
    nodes: Mapping[Key, int],
    credit: int,
    staging: int,
    published: bool,
) -> list[Round]:
    """The rounds of stage `number`, each of which seeds `credit`."""
    if published:
        packed = _pack_instances(streams, unit, nodes, credit, staging)
    else:
        packed = _pack_nodes(streams, nodes, credit, staging)
    return [_round(number, unit, windows, credit, last=windows is packed[-1]) for windows in packed]


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


def _pack_nodes(streams, nodes, credit: int, staging: int) -> list[list[Window]]:
    """One window a node and round, so that every node works in every round."""
    queues: dict[int, list[Item]] = {}
    for key in sorted(streams):
        queues.setdefault(nodes[key], []).extend((key, payload) for payload in streams[key])
    rounds = []
    for group in _groups(queues, credit, staging):
        count = math.ceil(sum(len(queues[n]) for n in group) / staging)
        while sum(math.ceil(len(queues[n]) / count) for n in group) > staging:
            count += 1
        for turn in range(count):
            windows = []
            for n in group:
                first, end = (len(queues[n]) * t // count for t in (turn, turn + 1))
                if first < end:
                    windows.append((n, queues[n][first:end]))
            if windows:
                rounds.append(windows)
    return rounds


def _groups(queues: Mapping[int, list[Item]], credit: int, staging: int) -> list[list[int]]:
    """Nodes that can share a round: by commands (an await for the node and one for its receiver), credit, staging."""
    most = (COMMANDS - ROUND_COMMANDS) // (KICK_COMMANDS + 2 * AWAIT_COMMANDS)
    most = min(most, credit - 1, staging)
    return _cut(list(queues), most)


def _round(number: int, unit: str, windows: Sequence[Window], credit: int, *, last: bool) -> Round:
    steps: list[Step] = [Seed(credit)]
    flits: list[Flit] = []
    owners: list[Key] = []
    signals: Counter[int] = Counter()
    acks: Counter[int] = Counter()
    for n, items in windows:
        steps.append(Kick(n, len(flits), len(items)))
        signals[n] += len(items)
        for position, (key, payload) in enumerate(items, 1):
            flits.append(Flit(0, 0, FlitType.CU_INST, TXN[unit], int(position == len(items)), 0, payload))
            owners.append(key)
            found = _acknowledged(unit, payload)
            if found:
                signals[found[0]] += found[1]
                acks[found[0]] += found[1]
    steps += [Await(n, count, acks[n]) for n, count in signals.items()]
    return Round(number, tuple(flits), tuple(owners), tuple(steps), last)
