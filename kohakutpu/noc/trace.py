"""Traces of a machine: what moved on every link, and what its units did, streamed to a compact file and back.

A trace holds three classes of records (`docs/trace.md`): `Transfer`, an accepted flit; `Level`, the value that a track
takes from a cycle on; `Event`, a pulse of a track in one cycle. They are in order of cycle, class and index, at most
one for each link or track in a cycle, so two runs that agree write equal files. A track is 0 until its first `Level`.

File layout, integers little-endian:

    magic     8 bytes  b"KTPUTRAC"
    header    u32 length, then JSON: version, machine (name), digest (of the machine), yaml (the machine),
              links (names, by index), tracks ([name, kind, unit], by index)
    chunks    u32 length > 0, then that many bytes of zlib data: three u32 counts, then as many records of `FLITS`,
              levels of `POINTS`, events of `POINTS`. No cycle is split; a chunk ends with the cycle that fills it.
    end       u32 0
    index     for each chunk `INDEX`: first cycle, last cycle, offset of its length, the three counts
    trailer   `TRAILER`: offset of the index, chunks, cycles, flits, levels, events; then the 32-byte BLAKE2b digest of
              everything before it

A file is written under a temporary name and renamed when it is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import reprlib
import struct
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kohakutpu.isa.flit import Flit
from kohakutpu.machine import Machine, to_yaml
from kohakutpu.noc.engine import Link
from kohakutpu.noc.trace_tracks import Track
from kohakutpu.wording import counted

MAGIC = b"KTPUTRAC"
OLD_MAGIC = b"KTPUFLIT"  # version 1: flits only
VERSION = 2
LENGTH = struct.Struct("<I")
COUNTS = struct.Struct("<3I")
FLIT = struct.Struct("<QHBBBBBB32s")
POINT = struct.Struct("<QHQ")
INDEX = struct.Struct("<QQQ3I")
TRAILER = struct.Struct("<6Q")
FLITS = np.dtype(
    [("cycle", "<u8"), ("link", "<u2"), ("dst", "u1"), ("src", "u1"), ("type", "u1"), ("txn", "u1"), ("last", "u1"),
     ("rsvd", "u1"), ("payload", "V32")]
)  # fmt: skip
POINTS = np.dtype([("cycle", "<u8"), ("track", "<u2"), ("value", "<u8")])
DIGEST_SIZE = 32
CHUNK_RECORDS = 4096
HEADER_LIMIT = 1 << 24
CHUNK_LIMIT = 1 << 24
CYCLE_LIMIT = 1 << 62  # no run is as long, and sums of cycles stay in 64 bits
INDEX_LIMIT = 1 << 16  # links, or tracks
KINDS = ("level", "span", "event")  # of tracks


class TraceError(ValueError):
    """A file that is not a complete, intact trace, or not one of the expected machine."""


def _is_text(value: object) -> bool:
    """Whether a value of JSON is a text that can be printed; JSON can write halves of surrogate pairs."""
    return isinstance(value, str) and not any("\ud800" <= letter <= "\udfff" for letter in value)


def machine_digest(machine: Machine) -> str:
    """What identifies a machine in a trace: a hash of its description."""
    return hashlib.blake2b(to_yaml(machine).encode(), digest_size=DIGEST_SIZE).hexdigest()


class Transfer(NamedTuple):
    """One accepted flit: the cycle of the transfer and the index of the link in the header."""

    cycle: int
    link: int
    flit: Flit


class Level(NamedTuple):
    """From `cycle` on the track with this index has `value`."""

    cycle: int
    track: int
    value: int


class Event(NamedTuple):
    """A pulse of the track with this index in `cycle`."""

    cycle: int
    track: int
    value: int


Record = Transfer | Level | Event
_CLASS = {Transfer: 0, Level: 1, Event: 2}


def order(record: Record) -> tuple[int, int, int]:
    """The place of a record in a trace: cycle, class, index."""
    return record[0], _CLASS[type(record)], record[1]


class Orderer:
    """Puts records into the order of a trace, whatever the order in which a run finds them.

    `emit(records)` is called with all records of a cycle once it is known that no more can come: `advance(cycle)` says
    so of every cycle before `cycle`. Records may lie ahead of it, as far as they like, and never behind.
    """

    def __init__(self, emit: Callable[[list[Record]], None]):
        self.horizon = 0
        self.cycles: int | None = None  # of the run, once it is over
        self._emit = emit
        self._open: dict[int, list[Record]] = {}
        self._cycles: list[int] = []  # heap of the keys of `_open`

    def __call__(self, cycle: int, link: Link, flit: Flit) -> None:
        """An accepted flit, as `Engine.on_transfer` tells it: every cycle before it is complete."""
        self.advance(cycle)
        self.add(Transfer(cycle, link.index, flit))

    def add(self, record: Record) -> None:
        """One record; at most one for each link or track in a cycle."""
        cycle = record[0]
        if cycle < self.horizon:
            raise TraceError(f"cycle {cycle} after cycle {self.horizon}")
        records = self._open.get(cycle)
        if records is None:
            self._open[cycle] = [record]
            heappush(self._cycles, cycle)
        else:
            records.append(record)

    def advance(self, cycle: int) -> None:
        """Nothing more comes before `cycle`."""
        if cycle <= self.horizon:
            if cycle < self.horizon:
                raise TraceError(f"cycle {cycle} after cycle {self.horizon}")
            return
        self.horizon = cycle
        cycles = self._cycles
        while cycles and cycles[0] < cycle:
            records = self._open.pop(heappop(cycles))
            records.sort(key=order)
            self._emit(records)

    def finish(self) -> int:
        """The run is over, after `cycles` cycles (or else those that have records): what lies ahead is dropped."""
        if self.cycles is None:
            self.cycles = max([self.horizon, *(cycle + 1 for cycle in self._cycles)])
        self.advance(self.cycles)
        return self.cycles


class TraceWriter(Orderer):
    """Writes a trace to `path`; use as a context manager, and as an engine's `on_transfer`.

    `links` are what has the `name` of each link, by index, `tracks` the tracks that `Level`s and `Event`s name. Leaving
    the context with an exception still completes the file: the trace of a run that failed is the one that is wanted.
    `count` is the number of records written.
    """

    def __init__(self, path: str | Path, machine: Machine, links: Sequence, tracks: Sequence[Track] = ()):
        super().__init__(self._take)
        self.path = Path(path)
        self._partial = self.path.with_name(self.path.name + ".partial")
        self._file = open(self._partial, "wb")
        self._hash = hashlib.blake2b(digest_size=DIGEST_SIZE)
        self._offset = 0
        self._pending: list[Record] = []
        self._index: list[bytes] = []
        self._totals = [0, 0, 0]
        header = {
            "version": VERSION, "machine": machine.name, "digest": machine_digest(machine), "yaml": to_yaml(machine),
            "links": [link.name for link in links], "tracks": [list(track) for track in tracks],
        }  # fmt: skip
        text = json.dumps(header).encode()
        self._write(MAGIC + LENGTH.pack(len(text)) + text)

    @property
    def count(self) -> int:
        return sum(self._totals)

    def _write(self, data: bytes) -> None:
        self._hash.update(data)
        self._file.write(data)
        self._offset += len(data)

    def _take(self, records: list[Record]) -> None:
        self._pending += records
        if len(self._pending) >= CHUNK_RECORDS:
            self._flush()

    def _flush(self) -> None:
        pending, self._pending = self._pending, []
        if not pending:
            return
        parts: list[list[bytes]] = [[], [], []]
        for record in pending:
            kind = _CLASS[type(record)]
            if kind:
                parts[kind].append(POINT.pack(*record))
            else:
                cycle, link, (*header, payload) = record
                parts[0].append(FLIT.pack(cycle, link, *header, payload.to_bytes(32, "little")))
        counts = [len(part) for part in parts]
        packed = zlib.compress(COUNTS.pack(*counts) + b"".join(b"".join(part) for part in parts), 1)
        self._index.append(INDEX.pack(pending[0][0], pending[-1][0], self._offset, *counts))
        self._totals = [total + count for total, count in zip(self._totals, counts, strict=True)]
        self._write(LENGTH.pack(len(packed)) + packed)

    def close(self) -> None:
        """Complete the file and give it its name."""
        if self._file.closed:
            return
        cycles = self.finish()
        self._flush()
        self._write(LENGTH.pack(0))
        at = self._offset
        self._write(b"".join(self._index))
        self._write(TRAILER.pack(at, len(self._index), cycles, *self._totals))
        self._file.write(self._hash.digest())
        self._file.close()
        os.replace(self._partial, self.path)

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, *_) -> None:
        self.close()


class Chunk(NamedTuple):
    """The records of some consecutive cycles as arrays: `flits` of dtype `FLITS`, `levels` and `events` of `POINTS`."""

    flits: np.ndarray
    levels: np.ndarray
    events: np.ndarray

    def records(self) -> list[Record]:
        """All records in order."""
        found: list[Record] = [
            Transfer(cycle, link, Flit(*header, int.from_bytes(payload, "little")))
            for cycle, link, *header, payload in self.flits.tolist()
        ]
        found += map(Level._make, self.levels.tolist())
        found += map(Event._make, self.events.tolist())
        found.sort(key=order)
        return found


class Trace:
    """A trace file, checked as a whole when opened; iterate it for its records, which are read chunk by chunk.

    Members: `machine` (its name), `machine_yaml`, `digest`, `links` (names by index), `tracks` (by index), `cycles` (of
    the run), `count` (records), `flits`, `levels`, `events` (records of each class). Raises `TraceError` naming the
    file, the byte offset and what was expected for a file that is truncated, corrupt, of another version or no trace.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        with open(self.path, "rb") as file:
            self._check(file)

    def _fail(self, offset: int, message: str) -> TraceError:
        return TraceError(f"{self.path}: byte {offset}: {message}")

    def _check(self, file) -> None:
        size = os.fstat(file.fileno()).st_size
        hashed = hashlib.blake2b(digest_size=DIGEST_SIZE)

        def take(length: int, what: str) -> bytes:
            at = file.tell()
            data = file.read(length)
            if len(data) != length:
                raise self._fail(at, f"the file ends inside {what}: {length} bytes expected, {len(data)} found")
            hashed.update(data)
            return data

        magic = file.read(len(MAGIC))
        if magic == OLD_MAGIC:
            raise self._fail(0, f"a trace of version 1; this reader knows version {VERSION}")
        if magic != MAGIC:
            raise self._fail(0, "this is no trace: the magic number is missing")
        hashed.update(MAGIC)
        (length,) = LENGTH.unpack(take(LENGTH.size, "the header's length"))
        if length > HEADER_LIMIT:
            raise self._fail(len(MAGIC), f"a header of {length} bytes; at most {HEADER_LIMIT} are possible")
        text = take(length, "the header")
        places = []
        while True:
            at = file.tell()
            (length,) = LENGTH.unpack(take(LENGTH.size, "a chunk's length"))
            if length == 0:
                break
            if length > CHUNK_LIMIT:
                raise self._fail(at, f"a chunk of {length} bytes; at most {CHUNK_LIMIT} are possible")
            take(length, "a chunk")
            places.append(at)
        start = file.tell()
        self._index = list(INDEX.iter_unpack(take(INDEX.size * len(places), "the index")))
        tail = file.tell()
        indexed, named, self.cycles, *counts = TRAILER.unpack(take(TRAILER.size, "the trailer"))
        at = file.tell()
        if file.read(DIGEST_SIZE) != hashed.digest():
            raise self._fail(at, "the digest does not match: the file is corrupt or cut short")
        if file.tell() != size:
            raise self._fail(file.tell(), f"{size - file.tell()} bytes follow the trailer")
        if (indexed, named) != (start, len(places)):
            raise self._fail(
                tail,
                f"the trailer names {counted(named, 'chunk')} and an index at {indexed}, the file has {len(places)} "
                f"and {start}",
            )
        if self.cycles > CYCLE_LIMIT:
            raise self._fail(tail, f"a run of {self.cycles} cycles; at most {CYCLE_LIMIT} are possible")
        before = -1
        for number, (low, high, offset, *_) in enumerate(self._index):
            if offset != places[number] or not before < low <= high < self.cycles:
                raise self._fail(
                    start + INDEX.size * number,
                    f"the index has cycles {low} to {high} at byte {offset} for chunk {number}, which is at byte "
                    f"{places[number]} after cycle {before} in a run of {self.cycles} cycles",
                )
            before = high
        found = [sum(entry[3 + kind] for entry in self._index) for kind in range(3)]
        if found != counts:
            raise self._fail(tail, f"the trailer counts {counts} flits, levels and events, the index {found}")
        self._take_header(text)
        self.flits, self.levels, self.events = counts
        self.count = sum(counts)

    def _take_header(self, text: bytes) -> None:
        """The header's fields, each checked."""
        at = len(MAGIC) + LENGTH.size

        def expect(good: bool, what: str, value, expected: str) -> None:
            if not good:
                raise self._fail(at, f"{what} is {reprlib.repr(value)}, expected {expected}")

        try:
            header = json.loads(text)
        except (ValueError, RecursionError) as error:
            why = "nested too deep" if isinstance(error, RecursionError) else error
            raise self._fail(at, f"the header is no JSON ({why})") from None
        fields = ("version", "machine", "digest", "yaml", "links", "tracks")
        expect(isinstance(header, dict), "the header", header, f"an object with {', '.join(fields)}")
        if (version := header.get("version")) != VERSION or type(version) is not int:
            raise self._fail(at, f"trace version {reprlib.repr(version)}; this reader knows version {VERSION}")
        for name in fields[1:]:
            expect(name in header, "the header", header, f"an object with {', '.join(fields)}; {name} is missing")
        for name in ("machine", "digest", "yaml"):
            expect(_is_text(header[name]), name, header[name], "a text")
        links, tracks = header["links"], header["tracks"]
        for name, value in (("links", links), ("tracks", tracks)):
            expect(
                isinstance(value, list) and len(value) <= INDEX_LIMIT, name, value, f"a list of at most {INDEX_LIMIT}"
            )
        for link in links:
            expect(_is_text(link), "a link", link, "a text")
        expect(len(set(links)) == len(links), "the list of links", links, "each once")
        for track in tracks:
            good = isinstance(track, list) and len(track) == len(Track._fields) and all(map(_is_text, track))
            expect(good and track[1] in KINDS, "a track", track, f"[name, {' or '.join(KINDS)}, unit]")
        self.machine: str = header["machine"]
        self.machine_yaml: str = header["yaml"]
        self.digest: str = header["digest"]
        self.links: list[str] = links
        self.tracks = [Track(*track) for track in tracks]
        names = [track.name for track in self.tracks]
        expect(len(set(names)) == len(names), "the list of tracks", names, "each once")

    def require(self, machine: Machine) -> None:
        """Refuse a trace of another machine."""
        expected = machine_digest(machine)
        if expected != self.digest:
            raise TraceError(
                f"{self.path}: a trace of machine {self.machine} ({self.digest[:12]}), "
                f"expected {machine.name} ({expected[:12]})"
            )

    def chunks(self, first: int = 0, end: int | None = None) -> Iterator[Chunk]:
        """The chunks that hold cycles from `first` up to, not including, `end`; they may hold others too.

        Raises `TraceError` for a chunk that is not what the index says.
        """
        with open(self.path, "rb") as file:
            for entry in self._index[bisect_left(self._index, first, key=lambda entry: entry[1]) :]:
                if end is not None and entry[0] >= end:
                    return
                file.seek(entry[2])
                yield self._chunk(file.read(LENGTH.unpack(file.read(LENGTH.size))[0]), *entry)

    def _chunk(self, packed: bytes, low: int, high: int, offset: int, *counts: int) -> Chunk:
        flits, levels, events = counts
        most = CHUNK_RECORDS + len(self.links) + 2 * len(self.tracks)  # the cycle that fills it is in it whole
        if sum(counts) > most:
            raise self._fail(offset, f"a chunk of {counted(sum(counts), 'record')}; at most {most} are possible")
        at = [COUNTS.size, COUNTS.size + flits * FLIT.size]
        at.append(at[1] + levels * POINT.size)
        size = at[2] + events * POINT.size
        unpacker = zlib.decompressobj()
        try:
            data = unpacker.decompress(packed, size + 1)  # no more than that, whatever there is
        except zlib.error as error:
            raise self._fail(offset, f"a chunk that cannot be unpacked: {error}") from None
        if len(data) != size or not unpacker.eof or unpacker.unused_data or COUNTS.unpack_from(data) != counts:
            raise self._fail(
                offset, f"a chunk that does not hold the {counted(sum(counts), 'record')} that the index names"
            )
        chunk = Chunk(
            np.frombuffer(data, FLITS, flits, at[0]), np.frombuffer(data, POINTS, levels, at[1]),
            np.frombuffer(data, POINTS, events, at[2]),
        )  # fmt: skip
        headers = chunk.flits
        good = all((headers[name] < 1 << width).all() for name, width in (("type", 4), ("last", 1), ("rsvd", 3)))
        for records, name, limit in zip(
            chunk, ("link", "track", "track"), map(len, (self.links, self.tracks, self.tracks))
        ):
            cycles, index = records["cycle"], records[name]
            later, same = cycles[1:] > cycles[:-1], cycles[1:] == cycles[:-1]
            good &= bool((index < limit).all() and (later | same & (index[1:] > index[:-1])).all())
            good &= not len(records) or low <= int(cycles[0]) <= int(cycles[-1]) <= high
        if not good:
            raise self._fail(offset, f"a chunk with records out of order, or that cannot be, in cycles {low} to {high}")
        return chunk

    def window(self, first: int = 0, end: int | None = None) -> Iterator[Record]:
        """The records of the cycles from `first` up to, not including, `end`, in order."""
        for chunk in self.chunks(first, end):
            for record in chunk.records():
                if record[0] >= first and (end is None or record[0] < end):
                    yield record

    def __iter__(self) -> Iterator[Record]:
        return self.window()
