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


class TraceError(ValueError):
    """A file that is not a complete, intact trace, or not one of the expected machine."""


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
        chunks = 0
        while True:
            at = file.tell()
            (length,) = LENGTH.unpack(take(LENGTH.size, "a chunk's length"))
            if length == 0:
                break
            if length > CHUNK_LIMIT:
                raise self._fail(at, f"a chunk of {length} bytes; at most {CHUNK_LIMIT} are possible")
            take(length, "a chunk")
            chunks += 1
        self._index = list(INDEX.iter_unpack(take(INDEX.size * chunks, "the index")))
        _, counted, self.cycles, *counts = TRAILER.unpack(take(TRAILER.size, "the trailer"))
        at = file.tell()
        if file.read(DIGEST_SIZE) != hashed.digest():
            raise self._fail(at, "the digest does not match: the file is corrupt or cut short")
        if file.tell() != size:
            raise self._fail(file.tell(), f"{size - file.tell()} bytes follow the trailer")
        if counted != chunks:
            raise self._fail(at, f"the trailer names {counted} chunks, the file has {chunks}")
        header = json.loads(text)
        if header["version"] != VERSION:
            raise self._fail(len(MAGIC), f"trace version {header['version']}; this reader knows version {VERSION}")
        self.machine: str = header["machine"]
        self.machine_yaml: str = header["yaml"]
        self.digest: str = header["digest"]
        self.links: list[str] = header["links"]
        self.tracks = [Track(*track) for track in header["tracks"]]
        self.flits, self.levels, self.events = counts
        self.count = sum(counts)

    def require(self, machine: Machine) -> None:
        """Refuse a trace of another machine."""
        expected = machine_digest(machine)
        if expected != self.digest:
            raise TraceError(
                f"{self.path}: a trace of machine {self.machine} ({self.digest[:12]}), "
                f"expected {machine.name} ({expected[:12]})"
            )

    def chunks(self, first: int = 0, end: int | None = None) -> Iterator[Chunk]:
        """The chunks that hold cycles from `first` up to, not including, `end`; they may hold others too."""
        with open(self.path, "rb") as file:
            for low, _, offset, *_ in self._index[bisect_left(self._index, first, key=lambda entry: entry[1]) :]:
                if end is not None and low >= end:
                    return
                file.seek(offset)
                data = zlib.decompress(file.read(LENGTH.unpack(file.read(LENGTH.size))[0]))
                flits, levels, events = COUNTS.unpack_from(data)
                at = [COUNTS.size, COUNTS.size + flits * FLIT.size]
                at.append(at[1] + levels * POINT.size)
                yield Chunk(
                    np.frombuffer(data, FLITS, flits, at[0]),
                    np.frombuffer(data, POINTS, levels, at[1]),
                    np.frombuffer(data, POINTS, events, at[2]),
                )

    def window(self, first: int = 0, end: int | None = None) -> Iterator[Record]:
        """The records of the cycles from `first` up to, not including, `end`, in order."""
        for chunk in self.chunks(first, end):
            for record in chunk.records():
                if record[0] >= first and (end is None or record[0] < end):
                    yield record

    def __iter__(self) -> Iterator[Record]:
        return self.window()
