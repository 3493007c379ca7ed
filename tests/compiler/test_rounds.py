"""Rounds: staging, commands, credit, and what is awaited."""

import itertools

import pytest

from kohakutpu.compiler import deal
from kohakutpu.compiler.deal import DealError
from kohakutpu.compiler.rounds import schedule
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
    rounds = schedule(0, unit, streams, places, depth, staging, published)
    return streams, places, rounds


CASES = [
    dict(lengths=[5]), dict(lengths=[128]), dict(lengths=[129]), dict(lengths=[1] * 300), dict(lengths=[100] * 9),
    dict(lengths=[300, 1, 1, 1]), dict(lengths=[40] * 40, nodes=40), dict(lengths=[7] * 20, depth=2),
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
        assert round_.steps[0].credits == depth > len(kicks)
        for kick in kicks:
            window = round_.instances[kick.base : kick.base + kick.count]
            assert {places[key] for key in window} == {kick.node}
            for key in window:
                ran[key] += 1
            assert [f.last for f in round_.flits[kick.base : kick.base + kick.count]] == [0] * (kick.count - 1) + [1]
            assert {f.txn for f in round_.flits} == {0x40} and {(f.dst, f.src) for f in round_.flits} == {(0, 0)}
        assert {a.node: a.count for a in round_.awaits} == {
            n: sum(k.count for k in kicks if k.node == n) for n in {k.node for k in kicks}
        }
    assert ran == {key: len(stream) for key, stream in streams.items()}
    assert [r.ends_stage for r in rounds] == [False] * (len(rounds) - 1) + [True]


def test_an_instances_flits_keep_their_order():
    payloads = [vector.RUN.encode(pc=n) for n in range(300)]
    streams = {(0,): payloads, (1,): payloads[:50]}
    for published in (False, True):
        rounds = schedule(0, "vector", streams, {(0,): 0x11, (1,): 0x12}, 64, 128, published)
        for key, stream in streams.items():
            sent = [f.payload for r in rounds for f, k in zip(r.flits, r.instances, strict=True) if k == key]
            assert sent == stream


def test_the_default_keeps_every_node_busy():
    """Four cores with 60 flits each: two rounds of all four, where the published packing runs two and two."""
    for published, busy in ((False, [4, 4]), (True, [2, 2])):
        _, _, rounds = made([60] * 4, published=published)
        assert [len({k.node for k in r.kicks}) for r in rounds] == busy


@pytest.mark.parametrize("published", [False, True])
def test_acknowledgements_belong_to_the_round_of_their_drain(published):
    stream = [GEMM] * 100 + [SEND] + [GEMM] * 100 + [SEND]
    rounds = schedule(0, "cluster", {(0,): stream}, {(0,): 0x11}, 64, 128, published)
    acks = [[a.count for a in r.awaits if a.node == RECEIVER] for r in rounds]
    assert acks == [[3], [3]]
    assert all(a.acks == (3 if a.node == RECEIVER else 0) for r in rounds for a in r.awaits)
    assert {f.txn for r in rounds for f in r.flits} == {0}


def test_a_quiet_drain_owes_nothing():
    rounds = schedule(0, "cluster", {(0,): [QUIET]}, {(0,): 0x11}, 64, 128, False)
    assert [a.node for a in rounds[0].awaits] == [0x11]


def test_two_senders_to_one_receiver_are_awaited_once():
    rounds = schedule(
        0, "cluster", {(0,): [SEND], (1,): [SEND]}, {(0,): 0x11, (1,): 0x12}, 8, 128, True
    )
    assert [(a.node, a.count, a.acks) for a in rounds[0].awaits] == [(0x11, 1, 0), (RECEIVER, 6, 6), (0x12, 1, 0)]


# ---- deal ------------------------------------------------------------------------------------------------


def test_deal_is_round_robin_over_sorted_keys():
    keys = [(1, 0), (0, 1), (0, 0), (1, 1), (2, 0)]
    assert deal(keys, [7, 8, 9]) == {(0, 0): 7, (0, 1): 8, (1, 0): 9, (1, 1): 7, (2, 0): 8}
    assert deal([], [1]) == {}
    with pytest.raises(DealError, match="5 instances and no unit"):
        deal(keys, [])
