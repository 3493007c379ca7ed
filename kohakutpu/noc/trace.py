"""Flit traces: every accepted flit as (cycle, link, flit), streamed to a compact binary file and back.

File layout, integers little-endian:

    magic     8 bytes  b"KTPUFLIT"
    header    u32 length, then JSON: version, machine (name), digest (of the machine), links (names, by index)
    chunks    u32 length > 0, then that many bytes of zlib data: records of `RECORD`
    end       u32 0
    trailer   u64 record count, then the 32-byte BLAKE2b digest of everything before it

Records are in ascending cycles, and within a cycle in ascending links, so two runs that agree write equal
files. A file is written under a temporary name and renamed when it is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kohakutpu.isa.flit import Flit
from kohakutpu.machine import Machine, to_yaml
from kohakutpu.noc.engine import Link

MAGIC = b"KTPUFLIT"
VERSION = 1
LENGTH = struct.Struct("<I")
COUNT = struct.Struct("<Q")
RECORD = struct.Struct("<QHBBBBBB32s")  # cycle, link, dst, src, type, txn, last, rsvd, payload
DIGEST_SIZE = 32
CHUNK_RECORDS = 4096
HEADER_LIMIT = 1 << 24
CHUNK_LIMIT = 2 * CHUNK_RECORDS * RECORD.size


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


class TraceWriter:
    """Writes a trace to `path`; use as a context manager and as an engine's `on_transfer`.

    `links` are the links by index. Leaving the context with an exception still completes the file: the trace
    of a run that failed is the one that is wanted.
    """

    def __init__(self, path: str | Path, machine: Machine, links: list[Link]):
        self.path = Path(path)
        self.count = 0
        self._partial = self.path.with_name(self.path.name + ".partial")
        self._file = open(self._partial, "wb")
        self._hash = hashlib.blake2b(digest_size=DIGEST_SIZE)
        self._pending: list[tuple[int, int, Flit]] = []
        self._cycle = -1
        header = {"version": VERSION, "machine": machine.name, "digest": machine_digest(machine)}
        text = json.dumps({**header, "links": [link.name for link in links]}).encode()
        self._write(MAGIC + LENGTH.pack(len(text)) + text)

    def _write(self, data: bytes) -> None:
        self._hash.update(data)
        self._file.write(data)

    def __call__(self, cycle: int, link: Link, flit: Flit) -> None:
        """Record one transfer; cycles must not go back."""
        if cycle != self._cycle:
            if cycle < self._cycle:
                raise TraceError(f"{self.path}: cycle {cycle} after cycle {self._cycle}")
            self._cycle = cycle
            if len(self._pending) >= CHUNK_RECORDS:
                self._flush()
        self._pending.append((cycle, link.index, flit))

    def _flush(self) -> None:
        pending, self._pending = self._pending, []
        if not pending:
            return
        pending.sort(key=lambda item: item[:2])
        pack = RECORD.pack
        data = b"".join(
            pack(cycle, link, dst, src, kind, txn, last, rsvd, payload.to_bytes(32, "little"))
            for cycle, link, (dst, src, kind, txn, last, rsvd, payload) in pending
        )
        self.count += len(pending)
        packed = zlib.compress(data, 1)
        self._write(LENGTH.pack(len(packed)) + packed)

    def close(self) -> None:
        """Complete the file and give it its name."""
        if self._file.closed:
            return
        self._flush()
        self._write(LENGTH.pack(0))
        self._write(COUNT.pack(self.count))
        self._file.write(self._hash.digest())
        self._file.close()
        os.replace(self._partial, self.path)

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(self, *_) -> None:
        self.close()


class Trace:
    """A trace file, checked as a whole when opened; iterate it for `Transfer`s.

    Members: `machine`, `digest`, `links` (names by index), `count`. Raises `TraceError` naming the file, the
    byte offset and what was expected for a file that is truncated, corrupt, of another version or no trace.
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

        if file.read(len(MAGIC)) != MAGIC:
            raise self._fail(0, "this is no flit trace: the magic number is missing")
        hashed.update(MAGIC)
        (length,) = LENGTH.unpack(take(LENGTH.size, "the header's length"))
        if length > HEADER_LIMIT:
            raise self._fail(len(MAGIC), f"a header of {length} bytes; at most {HEADER_LIMIT} are possible")
        text = take(length, "the header")
        self._first = file.tell()
        while True:
            at = file.tell()
            (length,) = LENGTH.unpack(take(LENGTH.size, "a chunk's length"))
            if length == 0:
                break
            if length > CHUNK_LIMIT:
                raise self._fail(at, f"a chunk of {length} bytes; at most {CHUNK_LIMIT} are possible")
            take(length, "a chunk")
        (self.count,) = COUNT.unpack(take(COUNT.size, "the trailer"))
        at = file.tell()
        if file.read(DIGEST_SIZE) != hashed.digest():
            raise self._fail(at, "the digest does not match: the file is corrupt or cut short")
        if file.tell() != size:
            raise self._fail(file.tell(), f"{size - file.tell()} bytes follow the trailer")
        header = json.loads(text)
        if header["version"] != VERSION:
            raise self._fail(len(MAGIC), f"trace version {header['version']}; this reader knows version {VERSION}")
        self.machine: str = header["machine"]
        self.digest: str = header["digest"]
        self.links: list[str] = header["links"]

    def require(self, machine: Machine) -> None:
        """Refuse a trace of another machine."""
        expected = machine_digest(machine)
        if expected != self.digest:
            raise TraceError(
                f"{self.path}: a trace of machine {self.machine} ({self.digest[:12]}), "
                f"expected {machine.name} ({expected[:12]})"
            )

    def __iter__(self) -> Iterator[Transfer]:
        with open(self.path, "rb") as file:
            file.seek(self._first)
            while length := LENGTH.unpack(file.read(LENGTH.size))[0]:
                for cycle, link, *header, payload in RECORD.iter_unpack(zlib.decompress(file.read(length))):
                    yield Transfer(cycle, link, Flit(*header, int.from_bytes(payload, "little")))
