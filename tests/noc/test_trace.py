"""Traces: what was written comes back, equal runs write equal files, damaged files are refused."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from kohakutpu.isa.flit import Flit, FlitType, node
from kohakutpu.noc.engine import Component, Engine, Link
from kohakutpu.machine import from_yaml
from kohakutpu.noc.trace import CHUNK_RECORDS, Event, Level, Trace, TraceError, TraceWriter, Transfer, machine_digest
from kohakutpu.noc.trace_tracks import BEGIN, RETIRE, Track, tracks, value_text

ROOT = Path(__file__).resolve().parents[2]
TRACKS = [Track("a", "level", "u"), Track("b", "span", "u"), Track("c", "event", "u")]


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
    assert trace.tracks == [] and trace.cycles == (events[-1][0] + 1 if events else 0)
    trace.require(machine)


def mixed(count, seed=1):
    """(horizon, record) in an order in which a run might find them, levels ahead of their time."""
    chance = random.Random(seed)
    found, taken, cycle = [], set(), 0
    while len(found) < count:
        cycle += chance.choice([0, 1, 1, 5])
        for index in range(3):
            if chance.random() < 0.5:
                record = Level(cycle + chance.randrange(60), index, chance.getrandbits(64))
            else:
                record = Event(cycle, index, chance.getrandbits(64))
            if (type(record), *record[:2]) not in taken:
                taken.add((type(record), *record[:2]))
                found.append((cycle, record))
    return found


def test_levels_and_events_come_back_in_order(tmp_path, machine):
    found = mixed(2 * CHUNK_RECORDS)
    with TraceWriter(tmp_path / "t", machine, some_links(), TRACKS) as writer:
        for horizon, record in found:
            writer.advance(horizon)
            writer.add(record)
    rank = {Transfer: 0, Level: 1, Event: 2}
    expected = [record for _, record in found]
    expected.sort(key=lambda record: (record.cycle, rank[type(record)], record.track))
    trace = Trace(tmp_path / "t")
    assert list(trace) == expected
    assert {type(record) for record in trace} == {Level, Event}
    assert trace.tracks == TRACKS and trace.levels + trace.events == trace.count == len(found)


def test_when_a_record_is_found_does_not_show(tmp_path, machine):
    """Chunks end where their records say, not where the writer happened to be."""
    found = mixed(3 * CHUNK_RECORDS)
    for name, records in (("early", found), ("late", sorted((record.cycle, record) for _, record in found))):
        with TraceWriter(tmp_path / name, machine, some_links(), TRACKS) as writer:
            for horizon, record in records:
                writer.advance(horizon)
                writer.add(record)
    assert (tmp_path / "early").read_bytes() == (tmp_path / "late").read_bytes()


def test_what_lies_behind_the_end_of_the_run_is_dropped(tmp_path, machine):
    with TraceWriter(tmp_path / "t", machine, some_links(), TRACKS) as writer:
        for cycle in (3, 9, 10):
            writer.add(Level(cycle, 0, cycle))
        writer.cycles = 10
    trace = Trace(tmp_path / "t")
    assert [record.cycle for record in trace] == [3, 9] and trace.cycles == 10


def test_a_window_reads_its_chunks_only(tmp_path, machine):
    links = some_links()
    with TraceWriter(tmp_path / "t", machine, links, TRACKS) as writer:
        for cycle in range(20 * CHUNK_RECORDS):
            writer.advance(cycle)
            writer.add(Event(cycle, 0, cycle))
    trace = Trace(tmp_path / "t")
    first, end = 7 * CHUNK_RECORDS + 5, 8 * CHUNK_RECORDS + 5
    assert [record.cycle for record in trace.window(first, end)] == list(range(first, end))
    assert len(list(trace.chunks(first, end))) == 2 and len(list(trace.chunks())) == 20
    assert not list(trace.window(20 * CHUNK_RECORDS, None)) and not list(trace.window(0, 0))


def test_a_viewer_needs_nothing_but_the_trace(tmp_path, machine):
    write(tmp_path / "t", machine, some_links(), [])
    assert from_yaml(Trace(tmp_path / "t").machine_yaml) == machine


def test_the_first_version_is_refused_by_its_number(tmp_path):
    (tmp_path / "t").write_bytes(b"KTPUFLIT" + bytes(100))
    with pytest.raises(TraceError, match="a trace of version 1; this reader knows version 2"):
        Trace(tmp_path / "t")


def test_names_of_tracks_are_unique_and_owned(make_grid):
    for agent in ("orchestrator", "bench"):
        found = tracks(make_grid(3, 2), agent=agent)
        assert len({track.name for track in found}) == len(found) > 20
        assert all(track.name.startswith(f"{track.unit}.") for track in found)
        assert {track.kind for track in found} == {"level", "span", "event"}
    with pytest.raises(ValueError, match="'nobody': 'orchestrator' or 'bench'"):
        tracks(make_grid(3, 2), agent="nobody")


@pytest.mark.parametrize(
    "track, value, text",
    [
        (Track("cluster0.begin", "event", "cluster0"), BEGIN.pack(op=2, last=1, txn=5), "GEMM txn 0x05 last"),
        (Track("vector0.begin", "event", "vector0"), BEGIN.pack(op=3, last=0, txn=5), "RUN txn 0x05"),
        (Track("vector0.begin", "event", "vector0"), BEGIN.pack(op=9, last=0, txn=5), "0x9 txn 0x05"),
        (
            Track("vector0.retire", "event", "vector0"), RETIRE.pack(result=1, fault=1, last=0, txn=5),
            "result 0x1 txn 0x05 fault",
        ),
        (Track("vector0.decode", "span", "vector0"), 4, "= FILL (4)"),
        (Track("cluster1.receive", "span", "cluster1"), 2, "= PEER_WAIT (2)"),
        (Track("vector0.receive", "span", "vector0"), 1, "= 1"),
    ],
)
def test_values_for_people(track, value, text):
    assert value_text(track, value) == text


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


LONG = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
from kohakutpu.isa.flit import Flit
from kohakutpu.machine import load
from kohakutpu.noc.trace import Event, Level, Trace, TraceWriter, Transfer
from kohakutpu.noc.trace_tracks import tracks
from collections import namedtuple
machine, path, cycles = load("mm_mesh"), sys.argv[1], 1_000_000
links = [namedtuple("Link", "index name")(i, f"l{i}") for i in range(3)]
with TraceWriter(path, machine, links, tracks(machine)) as writer:
    for cycle in range(cycles):
        writer(cycle, links[cycle % 3], Flit(cycle & 255, 1, 2, 3, 1, 0, cycle * 0x9E3779B97F4A7C15 << 100))
        writer.add(Level(cycle + cycle % 40, cycle % 30, cycle))
        writer.add(Event(cycle, 21, cycle))
    writer.cycles = cycles
trace = Trace(path)
counts = dict.fromkeys((Transfer, Level, Event), 0)
last = 0
for record in trace:
    counts[type(record)] += 1
    assert last <= record.cycle < cycles
    last = record.cycle
print(trace.cycles, counts[Transfer], counts[Level] == trace.levels, counts[Event], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_a_million_cycles_are_written_and_read_in_little_memory(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", LONG, str(tmp_path / "t")], capture_output=True, text=True, check=True, cwd=ROOT
    )
    cycles, flits, whole, events, peak = done.stdout.split()
    assert (cycles, flits, whole, events) == ("1000000", "1000000", "True", "1000000")
    assert int(peak) < 256 << 10, f"{peak} KiB at its peak"
