"""Rounds: staging, commands, credit, and what is awaited."""

import itertools

import pytest

from kohakutpu.compiler import Seed, deal
from kohakutpu.compiler.deal import DealError, deal_runs
from kohakutpu.compiler.rounds import by_node, schedule, schedule_published
from kohakutpu.isa import cluster, vector
from kohakutpu.isa.flit import node

RUN = vector.RUN.encode()
SEND = cluster.DRAIN.encode(n=20, dnode=1, dst_x=3, dst_y=0, dflags=1, dack_x=1, dack_y=1)
QUIET = cluster.DRAIN.encode(n=20, dnode=1, dst_x=3, dst_y=0)
GEMM = cluster.GEMM.encode(gm=1, gn=1)
RECEIVER = node(3, 0)


def made(lengths, nodes=4, depth=512, staging=128, published=False, unit="vector", payload=RUN):
    """Rounds of instances with these stream lengths, dealt over `nodes` nodes."""
    streams = {(n,): [payload] * length for n, length in enumerate(lengths)}
    places = deal(streams, [node(1 + n % 14, 1 + n // 14) for n in range(nodes)])
    return streams, places, rounds_of(unit, streams, places, depth, staging, published)


def rounds_of(unit, streams, places, credit, staging, published):
    if published:
        return schedule_published(0, unit, streams, places, credit, staging)
    return schedule(0, unit, by_node(streams, places), credit, staging)


def chains(rounds):
    """Runs of rounds that begin with a Seed and end with Awaits."""
    found = []
    for round_ in rounds:
        if isinstance(round_.steps[0], Seed):
            found.append([])
        found[-1].append(round_)
    assert all(chain[-1].awaits and not any(r.awaits for r in chain[:-1]) for chain in found)
    return found


CASES = [
    dict(lengths=[5]), dict(lengths=[128]), dict(lengths=[129]), dict(lengths=[1] * 300), dict(lengths=[100] * 9),
    dict(lengths=[300, 1, 1, 1]), dict(lengths=[40] * 40, nodes=40), dict(lengths=[7] * 20, depth=2),
    dict(lengths=[40] * 16, nodes=16, depth=20), dict(lengths=[90] * 3, nodes=3, depth=64), dict(lengths=[30] * 18, nodes=18, depth=64),
    dict(lengths=[9] * 6, staging=3), dict(lengths=[3] * 5, staging=1), dict(lengths=[10] * 30, nodes=30, depth=8),
]  # fmt: skip


@pytest.mark.parametrize("published", [False, True])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_flit_once_in_order_within_the_limits(case, published):
    streams, places, rounds = made(**case, published=published)
    depth, staging = case.get("depth", 512), case.get("staging", 128)
    ran = dict.fromkeys(streams, 0)
    for round_ in rounds:
        kicks = round_.kicks
        assert 0 < len(round_.flits) <= staging and len(round_.flits) == sum(k.count for k in kicks)
        assert [k.base for k in kicks] == [0, *itertools.accumulate(k.count for k in kicks)][:-1]
        assert 5 * len(kicks) + len(round_.awaits) + 2 <= 128
        for kick in kicks:
            window = round_.instances[kick.base : kick.base + kick.count]
            assert {places[key] for key in window} == {kick.node}
            for key in window:
                ran[key] += 1
            assert [f.last for f in round_.flits[kick.base : kick.base + kick.count]] == [0] * (kick.count - 1) + [1]
            assert {f.txn for f in round_.flits} == {0x40} and {(f.dst, f.src) for f in round_.flits} == {(0, 0)}
    for chain in chains(rounds):
        kicks = [kick for round_ in chain for kick in round_.kicks]
        assert chain[0].steps[0].credits == depth > len(kicks)
        assert {a.node: a.count for a in chain[-1].awaits} == {
            n: sum(k.count for k in kicks if k.node == n) for n in {k.node for k in kicks}
        }
        assert not published or len(chain) == 1
    assert ran == {key: len(stream) for key, stream in streams.items()}
    assert [r.ends_stage for r in rounds] == [False] * (len(rounds) - 1) + [True]


def test_an_instances_flits_keep_their_order():
    payloads = [vector.RUN.encode(pc=n) for n in range(300)]
    streams = {(0,): payloads, (1,): payloads[:50]}
    for published in (False, True):
        rounds = rounds_of("vector", streams, {(0,): 0x11, (1,): 0x12}, 64, 128, published)
        for key, stream in streams.items():
            sent = [f.payload for r in rounds for f, k in zip(r.flits, r.instances, strict=True) if k == key]
            assert sent == stream


def test_the_default_keeps_every_node_busy():
    """Four cores with 60 flits each: two rounds of all four, where the published packing runs two and two."""
    for published, busy in ((False, [4, 4]), (True, [2, 2])):
        _, _, rounds = made([60] * 4, published=published)
        assert [len({k.node for k in r.kicks}) for r in rounds] == busy


def test_cores_take_turns_where_credit_is_short():
    """Sent at once, 32 flits each would keep two of four cores waiting for 64 credits to come back; what only loads an image
    comes back at once. Half of the credit is kept for that."""
    _, _, rounds = made([32] * 4, depth=64)
    kicks = [(kick.node, kick.count) for kick in rounds[0].kicks]
    nodes = list(dict.fromkeys(node for node, _ in kicks))
    assert len(rounds) == 1 and kicks == [(node, 16) for node in nodes * 2] and len(nodes) == 4
    assert [k.count for k in made([32] * 4, depth=64, payload=vector.IMEM.encode(addr=0, word=0))[2][0].kicks] == [32] * 4
    assert [k.count for k in made([32] * 4, depth=512)[2][0].kicks] == [32] * 4
    for chain in chains(made([400] * 4, depth=64)[2]):
        assert sum(len(round_.kicks) for round_ in chain) < 32


@pytest.mark.parametrize("published, expected", [(False, [[6]]), (True, [[3], [3]])])
def test_acknowledgements_are_awaited_with_their_drain(published, expected):
    """As published in the round of the drain, by default at the end of the chain."""
    stream = [GEMM] * 100 + [SEND] + [GEMM] * 100 + [SEND]
    rounds = rounds_of("cluster", {(0,): stream}, {(0,): 0x11}, 64, 128, published)
    acks = [[a.count for a in chain[-1].awaits if a.node == RECEIVER] for chain in chains(rounds)]
    assert acks == expected
    assert all(a.acks == (a.count if a.node == RECEIVER else 0) for r in rounds for a in r.awaits)
    assert {f.txn for r in rounds for f in r.flits} == {0}


def test_a_quiet_drain_owes_nothing():
    rounds = rounds_of("cluster", {(0,): [QUIET]}, {(0,): 0x11}, 64, 128, False)
    assert [a.node for a in rounds[0].awaits] == [0x11]


def test_two_senders_to_one_receiver_are_awaited_once():
    rounds = rounds_of("cluster", {(0,): [SEND], (1,): [SEND]}, {(0,): 0x11, (1,): 0x12}, 8, 128, True)
    assert [(a.node, a.count, a.acks) for a in rounds[0].awaits] == [(0x11, 1, 0), (RECEIVER, 6, 6), (0x12, 1, 0)]


def test_every_cluster_is_set_going_first():
    """The first round holds each cluster's instructions up to its first GEMM, later ones at most three times as much as
    the one before; a lone node needs none of that."""
    fill = cluster.FILL.encode(n=1)
    stream = [fill, fill, GEMM] * 9
    rounds = rounds_of("cluster", {(n,): stream for n in range(4)}, {(n,): 0x11 + n for n in range(4)}, 64, 128, False)
    assert [[k.count for k in r.kicks] for r in rounds] == [[3] * 4, [8] * 4, [16] * 4]
    assert len(rounds_of("cluster", {(0,): stream}, {(0,): 0x11}, 64, 128, False)) == 1


def test_a_chain_ends_before_its_credit_does():
    """The last flit of a kick returns no credit: with credit for 3 flits, at most two kicks until everything is awaited."""
    rounds = rounds_of("vector", {(0,): [RUN] * 50}, {(0,): 0x11}, 3, 10, False)
    assert [len(chain) for chain in chains(rounds)] == [2, 2, 1]


# ---- deal ------------------------------------------------------------------------------------------------


def test_runs_of_neighbours():
    assert deal_runs([(n,) for n in range(5)], [7, 8]) == {7: [(0,), (1,), (2,)], 8: [(3,), (4,)]}
    assert deal_runs([(0,)], [7, 8, 9]) == {7: [(0,)]}
    with pytest.raises(DealError, match="1 instance and no unit"):
        deal_runs([(0,)], [])


def test_deal_is_round_robin_over_sorted_keys():
    keys = [(1, 0), (0, 1), (0, 0), (1, 1), (2, 0)]
    assert deal(keys, [7, 8, 9]) == {(0, 0): 7, (0, 1): 8, (1, 0): 9, (1, 1): 7, (2, 0): 8}
    assert deal([], [1]) == {}
    with pytest.raises(DealError, match="5 instances and no unit"):
        deal(keys, [])
