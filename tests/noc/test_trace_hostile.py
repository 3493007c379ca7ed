"""Traces that somebody made on purpose, with a digest that is right: refused by name, and no command ends otherwise."""

import hashlib
import json
import struct
import zlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kohakutpu.cli.main import main
from kohakutpu.isa.flit import Flit, FlitType
from kohakutpu.machine import load
from kohakutpu.model.system import System
from kohakutpu.noc import trace
from kohakutpu.noc.trace import COUNTS, DIGEST_SIZE, FLIT, INDEX, LENGTH, MAGIC, POINT, TRAILER, Trace, TraceError
from kohakutpu.noc.trace_tracks import BEGIN, RETIRE
from kohakutpu.view.survey import Survey
from kohakutpu.view.topology import Topology

MACHINE = load("mm_mesh")


@pytest.fixture(scope="module")
def genuine(tmp_path_factory):
    """(header, chunk, cycles, [flits, levels, events]) of a trace with a little of everything: one instruction a
    unit."""
    path = tmp_path_factory.mktemp("trace") / "genuine"
    system = System(MACHINE)
    topology = Topology(MACHINE, [link.name for link in system.engine.links])
    track = {item.name: index for index, item in enumerate(system.tracks)}
    with trace.TraceWriter(path, MACHINE, system.engine.links, system.tracks) as writer:
        for at, (name, unit) in enumerate((("cluster0", MACHINE.clusters[0]), ("vector0", MACHINE.vectors[0]))):
            flit = Flit(unit.node, MACHINE.agent.node, FlitType.CU_INST, at, 1, 0, (2 + at) << 252 | 0x1234_5678 << 180)
            writer.add(trace.Transfer(3 + at, topology.out_of("agent"), flit))
            writer.add(trace.Transfer(5 + at, topology.into(name), flit))
            writer.add(trace.Event(6 + at, track[f"{name}.begin"], BEGIN.pack(op=2, last=1, txn=at)))
            writer.add(trace.Event(8 + at, track[f"{name}.retire"], RETIRE.pack(result=0, fault=0, last=1, txn=at)))
        writer.add(trace.Level(4, track["vector0.decode"], 3))
        writer.add(trace.Level(9, track["cluster0.receive"], 1))
    read = Trace(path)
    data = path.read_bytes()
    (length,) = LENGTH.unpack_from(data, len(MAGIC))
    at = len(MAGIC) + LENGTH.size
    header = json.loads(data[at : at + length])
    (packed,) = LENGTH.unpack_from(data, at + length)
    chunk = zlib.decompress(data[at + length + LENGTH.size :][:packed])
    return header, chunk, read.cycles, [read.flits, read.levels, read.events]


def forged(path, header, chunk, cycles, counts, *, bounds=(3, 9), packed=None, offset=0, indexed=0, chunks=1):
    """A trace of one chunk whose digest is right, whatever its parts are."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    packed = zlib.compress(chunk) if packed is None else packed
    data = MAGIC + LENGTH.pack(len(text)) + text
    at = len(data)
    data += LENGTH.pack(len(packed)) + packed + LENGTH.pack(0)
    index = len(data)
    data += INDEX.pack(*bounds, at + offset, *counts) + TRAILER.pack(index + indexed, chunks, cycles, *counts)
    path.write_bytes(data + hashlib.blake2b(data, digest_size=DIGEST_SIZE).digest())
    return path


def test_the_forger_can_write_a_good_one(genuine, tmp_path):
    read = Trace(forged(tmp_path / "t", *genuine))
    assert [type(record).__name__ for record in read] == [
        "Transfer", "Transfer", "Level", "Transfer", "Transfer", "Event", "Event", "Event", "Level", "Event",
    ]  # fmt: skip
    assert [item.unit for item in Survey(read).instructions] == ["cluster0", "vector0"]


def everything(path, folder, capsys):
    """{command: (status, what it said)} of every command that reads a trace."""
    seen = {}
    for command in (
        ["report", path], ["disasm", "--levels", path],
        ["view", path, "--perfetto", folder / "p.json", "--html", folder / "h.html"],
    ):  # fmt: skip
        status = main([str(item) for item in command])
        seen[command[0]] = status, capsys.readouterr().err
    return seen


WRONG = {
    "no JSON": (lambda h: b"{", "the header is no JSON"),
    "not a text": (lambda h: b"\xff\xfe\xfa", "the header is no JSON"),
    "endless": (lambda h: b"[" * 100_000, "the header is no JSON (nested too deep)"),
    "a number": (lambda h: b"7", "the header is 7, expected an object with version, machine"),
    "no version": (lambda h: {}, "trace version None; this reader knows version 2"),
    "version true": (lambda h: h | {"version": True}, "trace version True; this reader"),
    "of another version": (lambda h: h | {"version": 3}, "trace version 3; this reader"),
    "no links": (lambda h: {k: v for k, v in h.items() if k != "links"}, "links is missing"),
    "a machine of a number": (lambda h: h | {"machine": 4}, "machine is 4, expected a text"),
    "half a letter": (lambda h: h | {"machine": "\udc00"}, "machine is '\\udc00', expected a text"),
    "links of another kind": (lambda h: h | {"links": {"a": 1}}, "links is {'a': 1}, expected a list"),
    "a link of a list": (lambda h: h | {"links": [[]]}, "a link is [], expected a text"),
    "a link twice": (lambda h: h | {"links": [*h["links"], h["links"][0]]}, "expected each once"),
    "a track of two": (lambda h: h | {"tracks": [["a", "level"]]}, "a track is ['a', 'level'], expected [name, level or span"),
    "a track of an odd kind": (lambda h: h | {"tracks": [["a", "wave", "u"]]}, "a track is ['a', 'wave', 'u']"),
    "a track of lists": (lambda h: h | {"tracks": [[[], "level", {}]]}, "a track is [[], 'level', {}]"),
    "a track twice": (lambda h: h | {"tracks": [h["tracks"][0]] * 2}, "expected each once"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_header_is_refused_by_name(genuine, tmp_path, capsys, name):
    change, said = WRONG[name]
    header, *rest = genuine
    path = forged(tmp_path / "t", change(header), *rest)
    for command, (status, error) in everything(path, tmp_path, capsys).items():
        assert status == 2 and f"kohakutpu {command}: {path}: byte " in error and said in error
    assert [item.name for item in tmp_path.iterdir()] == ["t"]


def flit(cycle=3, link=0, kind=5, last=1, rsvd=0):
    return COUNTS.pack(1, 0, 0) + FLIT.pack(cycle, link, 0x21, 0x11, kind, 1, last, rsvd, bytes(32))


def levels(*points):
    return COUNTS.pack(0, len(points), 0) + b"".join(POINT.pack(*point) for point in points)


@pytest.mark.parametrize(
    "chunk, counts, options, said",
    [
        (flit(), [1, 0, 0], {"packed": b"no zlib"}, "a chunk that cannot be unpacked"),
        (flit(), [1, 0, 0], {"packed": zlib.compress(bytes(1 << 24))}, "a chunk that does not hold the 1 record"),
        (flit(), [1, 0, 0], {"packed": zlib.compress(flit())[:-3]}, "a chunk that does not hold the 1 record"),
        (flit(), [1, 0, 0], {"packed": zlib.compress(flit()) + b"more"}, "a chunk that does not hold the 1 record"),
        (flit()[:-1], [1, 0, 0], {}, "a chunk that does not hold the 1 record"),
        (flit(), [0, 1, 0], {}, "a chunk that does not hold the 1 record"),
        (flit(), [1 << 31, 0, 0], {}, "a chunk of 2147483648 records; at most"),
        (flit(link=999), [1, 0, 0], {}, "records out of order, or that cannot be, in cycles 3 to 9"),
        (flit(kind=16), [1, 0, 0], {}, "records out of order, or that cannot be"),
        (flit(last=2), [1, 0, 0], {}, "records out of order, or that cannot be"),
        (flit(rsvd=8), [1, 0, 0], {}, "records out of order, or that cannot be"),
        (flit(cycle=2), [1, 0, 0], {}, "records out of order, or that cannot be"),
        (flit(cycle=10), [1, 0, 0], {}, "records out of order, or that cannot be"),
        (levels((5, 0, 1), (4, 0, 1)), [0, 2, 0], {}, "records out of order, or that cannot be"),
        (levels((5, 0, 1), (5, 0, 1)), [0, 2, 0], {}, "records out of order, or that cannot be"),
        (levels((5, 9999, 1)), [0, 1, 0], {}, "records out of order, or that cannot be"),
        (flit(), [1, 0, 0], {"bounds": (9, 3)}, "the index has cycles 9 to 3"),
        (flit(), [1, 0, 0], {"bounds": (3, 1 << 40)}, "in a run of 10 cycles"),
        (flit(), [1, 0, 0], {"offset": 1}, "for chunk 0, which is at byte"),
        (flit(), [1, 0, 0], {"indexed": 7}, "the trailer names 1 chunk and an index at"),
        (flit(), [1, 0, 0], {"chunks": 2}, "the trailer names 2 chunks and an index at"),
        (flit(), [1, 0, 0], {"cycles": 1 << 63}, "a run of 9223372036854775808 cycles; at most"),
    ],
    ids=range(22),
)  # fmt: skip
def test_records_are_refused_by_name(genuine, tmp_path, capsys, chunk, counts, options, said):
    path = forged(tmp_path / "t", genuine[0], chunk, options.pop("cycles", 10), counts, **options)
    for command, (status, error) in everything(path, tmp_path, capsys).items():
        assert status == 2 and f"kohakutpu {command}: {path}: byte " in error and said in error
    assert [item.name for item in tmp_path.iterdir()] == ["t"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["mm_mesh", "r11.north", "level"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3), max_leaves=8,
)  # fmt: skip


@st.composite
def headers(draw, header):
    """A header with one to three things changed, somewhere."""
    value = json.loads(json.dumps(header))
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(sorted(value)))
        match draw(st.integers(0, 3)):
            case 0:
                value[name] = draw(JSON)
            case 1 if isinstance(value[name], list) and value[name]:
                value[name][draw(st.integers(0, len(value[name]) - 1))] = draw(JSON)
            case 2 if isinstance(value[name], list) and value[name]:
                del value[name][draw(st.integers(0, len(value[name]) - 1))]
            case _ if isinstance(value[name], str) and value[name]:
                at = draw(st.integers(0, len(value[name]) - 1))
                value[name] = (
                    value[name][:at] + draw(st.text(max_size=3)) + value[name][at + draw(st.integers(0, 40)) :]
                )
    return value


quick = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


@quick
@given(st.data())
def test_no_header_ends_in_a_traceback(genuine, tmp_path, capsys, data):
    header, *rest = genuine
    path = forged(tmp_path / "t", data.draw(headers(header)), *rest)
    for command, (status, error) in everything(path, tmp_path, capsys).items():
        assert status == 0 or status == 2 and error.startswith(f"kohakutpu {command}: {path}"), error


@quick
@given(st.data())
def test_no_records_end_in_a_traceback(genuine, tmp_path, capsys, data):
    """Changed bytes of a chunk, its cycles and its counts, under a digest that fits."""
    header, chunk, cycles, counts = genuine
    chunk, numbers = bytearray(chunk), [*struct.unpack("<3I", chunk[:12])]
    for _ in range(data.draw(st.integers(1, 4))):
        chunk[data.draw(st.integers(0, len(chunk) - 1))] = data.draw(st.integers(0, 255))
    bounds = data.draw(st.sampled_from([(3, 9), (0, 9), (3, (1 << 61) - 1)]))
    cycles = data.draw(st.sampled_from([cycles, 1 << 61, 10]))
    path = forged(
        tmp_path / "t", header, bytes(chunk), cycles, numbers if data.draw(st.booleans()) else counts, bounds=bounds
    )
    for command, (status, error) in everything(path, tmp_path, capsys).items():
        assert status == 0 or status == 2 and error.startswith(f"kohakutpu {command}: {path}"), error


@quick
@given(st.data())
def test_cut_off_anywhere(genuine, tmp_path, data):
    path = forged(tmp_path / "t", *genuine)
    whole = path.read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(TraceError, match=f"{path}: byte "):
        Trace(path)
