"""Traces: what was written comes back, equal runs write equal files, damaged files are refused."""

from __future__ import annotations

import random

import pytest

from kohakutpu.isa.flit import Flit, FlitType, node
from kohakutpu.noc.engine import Component, Engine, Link
from kohakutpu.noc.trace import CHUNK_RECORDS, Trace, TraceError, TraceWriter, machine_digest


@pytest.fixture(scope="session")
def machine(make_grid):
    return make_grid(2, 2)


def some_links(count=5):
    engine = Engine()
    source = Component(engine, "source")
    return [Link(engine, f"l{i}", source) for i in range(count)]


def transfers(count, links, seed=1):
    chance = random.Random(seed)
    cycle, out = 0, []
    while len(out) < count:
        cycle += chance.choice([1, 1, 1, 2, 1000, 1 << 33])
        for link in chance.sample(links, chance.randrange(1, len(links) + 1)):
            flit = Flit(chance.randrange(256), chance.randrange(256), chance.randrange(16), chance.randrange(256),
                        chance.randrange(2), chance.randrange(8), chance.getrandbits(256))  # fmt: skip
            out.append((cycle, link, flit))
    return out


def write(path, machine, links, events):
    with TraceWriter(path, machine, links) as writer:
        for event in events:
            writer(*event)
    return writer


@pytest.mark.parametrize("count", [0, 1, 100, 3 * CHUNK_RECORDS])
def test_what_is_written_comes_back(tmp_path, machine, count):
    links = some_links()
    events = transfers(count, links)
    path = tmp_path / "t.flits"
    assert write(path, machine, links, events).count == len(events)
    trace = Trace(path)
    assert (trace.machine, trace.digest, trace.count) == (machine.name, machine_digest(machine), len(events))
    assert trace.links == [link.name for link in links]
    assert list(trace) == sorted((cycle, link.index, flit) for cycle, link, flit in events)
    assert list(trace) == list(trace), "a trace can be read twice"
    trace.require(machine)


def test_the_order_of_calls_within_a_cycle_does_not_show(tmp_path, machine):
    links = some_links()
    events = transfers(500, links)
    write(tmp_path / "a", machine, links, events)
    random.Random(3).shuffle(events)
    write(tmp_path / "b", machine, links, sorted(events, key=lambda event: event[0]))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_cycles_may_not_go_back(tmp_path, machine):
    links = some_links()
    with TraceWriter(tmp_path / "t", machine, links) as writer:
        writer(5, links[0], Flit(0, 0, 0, 0, 0, 0, 0))
        with pytest.raises(TraceError, match="cycle 4 after cycle 5"):
            writer(4, links[0], Flit(0, 0, 0, 0, 0, 0, 0))


def test_nothing_has_the_final_name_before_it_is_complete(tmp_path, machine):
    writer = TraceWriter(tmp_path / "t", machine, some_links())
    assert not (tmp_path / "t").exists()
    writer.close()
    assert (tmp_path / "t").exists() and list(tmp_path.iterdir()) == [tmp_path / "t"]


def test_a_run_that_fails_still_leaves_its_trace(tmp_path, machine):
    links = some_links()
    with pytest.raises(KeyError):
        with TraceWriter(tmp_path / "t", machine, links) as writer:
            writer(5, links[0], Flit(0, 0, 0, 0, 0, 0, 0))
            raise KeyError
    assert Trace(tmp_path / "t").count == 1


@pytest.fixture(scope="module")
def good(tmp_path_factory, machine):
    path = tmp_path_factory.mktemp("trace") / "good"
    links = some_links()
    write(path, machine, links, transfers(200, links))
    return path.read_bytes()


def test_every_truncation_is_refused(tmp_path, good):
    path = tmp_path / "t"
    for length in range(0, len(good), len(good) // 60):
        path.write_bytes(good[:length])
        with pytest.raises(TraceError, match="byte"):
            Trace(path)


def test_every_flipped_byte_is_refused(tmp_path, good):
    path = tmp_path / "t"
    for at in range(5, len(good), len(good) // 60):
        path.write_bytes(good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :])
        with pytest.raises(TraceError, match="byte"):
            Trace(path)


@pytest.mark.parametrize(
    "change, reason",
    [
        (lambda data: data + b"x", "1 bytes follow the trailer"),
        (lambda data: b"PK" + data, "magic number is missing"),
        (lambda data: b"", "magic number is missing"),
        (lambda data: data[:-40], "inside|digest"),
    ],
)
def test_what_is_wrong_is_named(tmp_path, good, change, reason):
    (tmp_path / "t").write_bytes(change(good))
    with pytest.raises(TraceError, match=reason):
        Trace(tmp_path / "t")


def test_a_trace_of_another_machine_is_refused(tmp_path, machine, make_grid):
    write(tmp_path / "t", machine, some_links(), [])
    with pytest.raises(TraceError, match="a trace of machine grid2x2 .* expected grid3x2"):
        Trace(tmp_path / "t").require(make_grid(3, 2))


def test_skipping_on_and_off_write_the_same_file(tmp_path, make_bench, machine):
    chance = random.Random(5)
    for skip in (True, False):
        bench = make_bench(2, 2, skip=skip)
        with TraceWriter(tmp_path / str(skip), bench.machine, bench.engine.links) as writer:
            bench.engine.on_transfer = writer
            chance.seed(5)
            places = sorted(bench.probes)
            for _ in range(300):
                a, b = chance.sample(places, 2)
                bench.send(a, b, at=chance.randrange(2000), kind=FlitType.CU_DATA)
            assert bench.run(300)
    assert (tmp_path / "True").read_bytes() == (tmp_path / "False").read_bytes()
    assert Trace(tmp_path / "True").count > 600
    assert node(1, 1) in {transfer.flit.dst for transfer in Trace(tmp_path / "True")}
