"""Random programs under random backpressure: results against the reference, cycles with skipping on and off."""

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kohakutpu.conformance.cluster import AGENT, CLUSTER, PORT, ClusterBench
from kohakutpu.formats import words
from kohakutpu.fuzz.cluster_reference import Reference, entry
from kohakutpu.isa.cluster import DRAIN, FILL, GEMM, Side
from kohakutpu.isa.flit import Flit, FlitType, node
from kohakutpu.isa.signals import CU_CTRL_REQUEST, CU_DATA, SignalCode
from kohakutpu.machine import ClusterUnit

TILES = 64
OPERANDS, RESULTS, RESULT_STEP = 0x40000, 0x1000, 0x1000
SINK = node(1, 0)
TO_SINK = {"dnode": 1, "dst_x": 1, "dst_y": 0, "dflags": 1, "dack_x": 1, "dack_y": 1}
SHAPES = [(1, 1, 3), (1, 2, 2), (3, 1, 2), (2, 2, 2), (5, 1, 1), (3, 4, 2), (2, 6, 1), (7, 9, 1)]
DRAINS = ["keep", "explicit", "fused", "fused late", "send", "node"]


def random_entries(rng, count, layout):
    return [
        entry([[rng.randrange(-64, 64) for _ in range(32)] for _ in range(4)],
              [rng.randrange(8 * 10, 8 * 22) for _ in range(4)], layout)
        for _ in range(count)
    ]  # fmt: skip


class Program:
    """Chunks of FILL, FILL, GEMM on alternating banks and every kind of drain, with what they must produce."""

    def __init__(self, rng, chunks):
        self.reference = Reference(TILES)
        self.payloads, self.images, self.results, self.sent = [], [], [], []
        address, bank = OPERANDS, 0
        for index in range(chunks):
            # a chunk of another shape would accumulate onto tiles of the last; that is legal too
            gm, gn, nk = rng.choice(SHAPES)
            offset = rng.choice([0, 0, 250])
            shape = {"aoff": offset, "boff": offset, "abank": bank, "bbank": bank}
            for side, count in ((Side.A, gm * nk), (Side.B, gn * nk)):
                blocks = random_entries(rng, count, side.name)
                self.images.append((address, [word for block in blocks for word in block]))
                self.reference.fill(side.name, bank, offset, blocks)
                self.payloads.append(FILL.encode(addr=address, n=count, sel=side, preq=1, eoff=offset, fbank=bank))
                address += 128 * count
            acc = rng.randrange(2) if index else 0
            anchor = rng.choice([40, 40, 44])
            target = RESULTS + RESULT_STEP * index
            kind = "explicit" if index == chunks - 1 else rng.choice(DRAINS)
            emit = int(kind.startswith("fused"))
            own = {"addr": target if rng.randrange(2) else 0xF0000} if emit else {}  # the DRAIN's destination rules
            self.payloads.append(GEMM.encode(gm=gm, gn=gn, nk=nk, acc=acc, anchor=anchor, emit=emit, **shape, **own))
            emitted = self.reference.gemm(gm, gn, nk, acc=acc, anchor=anchor, **shape)
            subtiles = gm * gn
            if emit:
                if kind == "fused late":
                    self.payloads.append(FILL.encode(addr=OPERANDS, n=3, preq=1, eoff=100, fbank=1 - bank))
                self.payloads.append(DRAIN.encode(addr=target, n=subtiles, fuse=1))
                self.results.append((target, emitted))
            elif kind == "explicit":
                n = rng.randrange(1, subtiles + 1)
                self.payloads.append(DRAIN.encode(addr=target, n=n))
                self.results.append((target, self.reference.emit(n)))
            elif kind in ("send", "node"):
                buf = 2 if kind == "send" else 0
                self.payloads.append(DRAIN.encode(addr=32 * index, n=subtiles, dbuf=buf, **TO_SINK))
                self.sent += self.reference.send(subtiles) if buf else emitted
            bank = 1 - bank

    def run(self, *, seed=0, skip=True, refuse=None, faults=frozenset(), also=lambda bench: None):
        """Run with small FIFOs; `also(bench)` may put more flits in beforehand."""
        unit = ClusterUnit(2, 1, tiles=TILES, a_entries=512, b_entries=512, inst_depth=4, recv_depth=4)
        rng = random.Random(seed)
        bench = ClusterBench(unit, latency=rng.choice([2, 7, 30]), skip=skip, refuse=refuse, faults=faults)
        for address, block in self.images:
            bench.write(address, words.from_ints(block))
        also(bench)
        for count, payload in enumerate(self.payloads):
            bench.run(count + 1 - unit.inst_depth)  # credit: more in flight would block the unit's own fill data
            bench.instruct(payload)
        bench.run(len(self.payloads))
        return bench

    def check(self, bench):
        for address, expected in self.results:
            raw = bench.memory[address : address + 32 * len(expected)]
            assert words.to_ints(raw.view("<u4").reshape(-1, 8)) == expected, hex(address)
        written = sum(len(expected) for _, expected in self.results)
        assert sum(flit.type == FlitType.MEM_WR_DATA for _, flit in bench.received) == written
        assert bench.node_words(SINK) == self.sent
        assert {signal.code for signal in bench.signals} == {SignalCode.INST_COMPLETE}


def backpressure(seed, share):
    """Refuse about `share` of the cycles, in runs; a function of the cycle alone, the same each time it is asked."""

    def refuse(now):
        run, cycle = random.Random(seed * 1_000_003 + now // 5), random.Random(seed + 7 * now)
        return run.random() < share or cycle.random() < share / 2

    return refuse


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("share", [0, 0.3, 0.8])
def test_random_programs(seed, share):
    program = Program(random.Random(seed), 6)
    refuse = backpressure(seed, share) if share else None
    runs = [program.run(seed=seed, skip=skip, refuse=refuse) for skip in (True, False)]
    program.check(runs[0])
    assert runs[0].received == runs[1].received
    assert runs[0].engine.now == runs[1].engine.now


@pytest.mark.parametrize("seed", range(12))
def test_everything_at_once_is_the_same_with_skipping_off(seed):
    """A program with bursts into every buffer, foreign types and counter reads in between: no result to compare,
    as the bursts race with the program, but every flit, counter value and cycle."""
    program = Program(random.Random(seed), 5)

    def disturb(bench):
        rng = random.Random(seed + 1000)
        at = 5
        for _ in range(30):
            at += rng.randrange(1, 120)
            kind = rng.randrange(4)
            if kind == 0:
                request = CU_CTRL_REQUEST.pack(index=rng.randrange(5))
                bench.put(Flit(CLUSTER, AGENT, FlitType.CU_CTRL, 1, 1, 0, request), at)
            elif kind == 1:
                bench.put(Flit(CLUSTER, AGENT, rng.choice([FlitType.MEM_WR_ACK, 0xB]), 1, 1, 0, 0), at)
            else:
                buf, offset = rng.choice([(0, 500), (1, 2047), (2, 6), (2, 100), (3, 0)])
                count = rng.randrange(1, 6)
                bench.burst(buf, offset, range(count), flags=rng.randrange(2), ack=SINK, cycle=at)
                at += count

    runs = [
        program.run(seed=seed, skip=skip, refuse=backpressure(seed, 0.2 * (seed % 3)), also=disturb)
        for skip in (True, False)
    ]
    for bench in runs:
        bench.engine.advance(5000)  # what was put in late
    assert runs[0].received == runs[1].received
    assert {flit.type for _, flit in runs[0].received} >= {FlitType.CU_CTRL, FlitType.CU_SIGNAL}


def test_backpressure_changes_cycles_and_no_flit():
    program = Program(random.Random(3), 6)
    free, held = program.run(), program.run(refuse=backpressure(1, 0.6))

    def by_target(bench):
        return {dst: [f for _, f in bench.received if f.dst == dst] for dst in (AGENT, PORT, SINK)}

    assert by_target(free) == by_target(held)
    assert held.engine.now > free.engine.now


def test_a_wrong_result_would_be_seen():
    program = Program(random.Random(0), 6)
    with pytest.raises(AssertionError):
        program.check(program.run(faults=frozenset({"cluster-tile-bit"})))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    gm=st.integers(0, 6), gn=st.integers(0, 6), nk=st.integers(0, 3), acc=st.integers(0, 1), emit=st.integers(0, 1),
    anchor=st.integers(0, 255), aoff=st.integers(0, 255), boff=st.integers(0, 255), banks=st.integers(0, 3),
    tiles=st.sampled_from([8, 16, 64]), entries=st.sampled_from([16, 64, 256, 512]), seed=st.integers(0, 999),
)  # fmt: skip
def test_any_sweep_equals_the_reference(gm, gn, nk, acc, emit, anchor, aoff, boff, banks, tiles, entries, seed):
    """Every field of a GEMM at any value, on any size of L1 and tile store: wraps, zeros and odd anchors included."""
    rng = random.Random(seed)
    reference = Reference(tiles, entries)
    bench = ClusterBench(ClusterUnit(2, 1, tiles=tiles, a_entries=entries, b_entries=entries))
    count = min(entries, 40)
    for side in ("A", "B"):
        blocks = random_entries(rng, count, side)
        reference.fill(side, 0, 0, blocks)
        bench.load(Side[side], 0, words.from_ints([w for b in blocks for w in b]).reshape(-1, 4, 8))
    bench.run(0, 2)
    fields = dict(acc=acc, anchor=anchor, aoff=aoff, boff=boff, abank=banks & 1, bbank=banks >> 1)
    opened = dict(fields, acc=0, anchor=41)
    subtiles = max(gm, 1) * max(gn, 1)
    bench.instruct(
        GEMM.encode(gm=gm, gn=gn, nk=nk, **opened), GEMM.encode(gm=gm, gn=gn, nk=nk, emit=emit, addr=0x1000, **fields)
    )
    bench.instruct(DRAIN.encode(addr=0x1000, n=subtiles, fuse=emit), DRAIN.encode(n=subtiles, dbuf=2, **TO_SINK))
    bench.run(4, 2)
    reference.gemm(gm, gn, nk, **opened)
    emitted = reference.gemm(gm, gn, nk, **fields)
    assert bench.node_words(SINK) == reference.send(subtiles)
    raw = bench.memory[0x1000 : 0x1000 + 32 * subtiles]
    assert words.to_ints(raw.view("<u4").reshape(-1, 8)) == (emitted if emit else reference.emit(subtiles))


bursts = st.lists(
    st.tuples(
        st.sampled_from([0, 1, 2, 2, 3, 200]), st.integers(0, 140) | st.sampled_from([0xFFFF, 124, 126, 127, 128]),
        st.integers(1, 9), st.integers(0, 1), st.booleans(),
    ),
    min_size=1, max_size=8,
)  # fmt: skip


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(bursts, st.integers(0, 99))
def test_any_bursts_are_framed_by_count(bursts, seed):
    """Rejected or not, each is counted out, answered if it asks, and changes what it may and nothing else."""
    rng = random.Random(seed)
    reference = Reference(TILES, 32)
    unit = ClusterUnit(2, 1, tiles=TILES, a_entries=32, b_entries=32)
    runs = [ClusterBench(unit, skip=skip, refuse=backpressure(seed, 0.4)) for skip in (True, False)]
    limits = {0: 128, 1: 128, 2: 2 * TILES}
    assembly, expected, fault = [0] * 4, [], False
    for buf, offset, count, flags, named in bursts:
        data = [rng.getrandbits(256) for _ in range(count)]
        for bench in runs:
            bench.burst(buf, offset, data, flags=flags, ack=AGENT if named else 0, source=SINK, txn=offset & 0xFF)
        if flags:
            expected.append((SignalCode.DATA_RECEIVED, buf, offset & 0xFF, AGENT if named else SINK))
        if offset + count > limits.get(buf, 0) or (buf == 2 and offset % 2):
            fault = True
        elif buf == 2:
            reference.peer(offset, data)
        else:
            for at, word in enumerate(data, offset):
                assembly[at % 4] = word
                if at % 4 == 3:
                    reference.l1["AB"[buf]][at // 4] = list(assembly)
    for bench in runs:
        bench.run(0, len(expected))
        bench.engine.advance(400)
        bench.instruct(0, DRAIN.encode(n=TILES, dbuf=2, **TO_SINK))
        bench.run(2, len(expected))
    assert runs[0].received == runs[1].received
    signals = runs[0].signals
    assert [tuple(s)[1:] for s in signals[: len(expected)]] == expected
    assert [s.code for s in signals[len(expected) :]] == [SignalCode.FAULT if fault else 0, 0]
    assert runs[0].node_words(SINK) == reference.send(TILES)
    # operands: every entry of A against one of B, then the other way round
    done = 2
    for gm, gn in ((32, 1), (1, 32)):
        for bench in runs:
            bench.instruct(GEMM.encode(gm=gm, gn=gn), DRAIN.encode(n=32, dbuf=2, **TO_SINK))
            bench.run(done + 2, len(expected))
        done += 2
        reference.gemm(gm, gn, 1)
        assert runs[0].node_words(SINK)[-64:] == reference.send(32)


def test_bursts_of_our_own_drains_are_framed_by_last_too():
    program = Program(random.Random(5), 6)
    bench = program.run()
    left = None
    for _, flit in bench.received:
        if flit.type != FlitType.CU_DATA:
            continue
        if not left:
            left = CU_DATA.get(flit.payload, "len") + 1
            assert not flit.last
        else:
            left -= 1
            assert flit.last == (left == 0)
    assert left == 0
