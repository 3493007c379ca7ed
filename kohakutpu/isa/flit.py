"""The 288-bit flit: 32-bit header above a 256-bit payload (spec: flit geometry, types, txn, last, rsvd)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

from kohakutpu.wording import counted

from .fields import EncodingError, Layout, field

FLIT_WIDTH = 288
PAYLOAD_WIDTH = 256
POS_WIDTH = 4
PAYLOAD_MASK = (1 << PAYLOAD_WIDTH) - 1


class FlitType(IntEnum):
    MEM_RD_REQ = 0x0
    MEM_WR_REQ = 0x1
    MEM_RD_RESP = 0x2
    MEM_WR_ACK = 0x3
    MEM_WR_DATA = 0x4
    CU_INST = 0x5
    CU_SIGNAL = 0x6
    CU_CTRL = 0x7
    CU_DATA = 0x8
    ERROR = 0xF


def type_name(kind: int) -> str:
    """A flit type for people; unallocated codes too."""
    return FlitType(kind).name if kind in FlitType.__members__.values() else f"type {kind:#x}"


HEADER = Layout(
    "flit",
    FLIT_WIDTH,
    [
        field("dst_x", 287, 284, "destination column"),
        field("dst_y", 283, 280, "destination row"),
        field("src_x", 279, 276, "true sender's column"),
        field("src_y", 275, 272, "true sender's row"),
        field("type", 271, 268, "flit type", enum=FlitType),
        field("txn", 267, 260, "transaction tag; its meaning depends on the type", hex=True),
        field("last", 259, 259, "last flit of a burst, an entry or a program"),
        field("rsvd", 258, 256, "[2] remote mesh, [1:0] mesh id; word index in an entry on MEM_RD_RESP"),
        field("payload", 255, 0, "defined by the type", hex=True),
    ],
    "header and payload of one flit",
)


def node(x: int, y: int) -> int:
    """A coordinate packed as the byte {y[3:0], x[3:0]} that headers, peers and mirrors use."""
    if not (0 <= x < 16 and 0 <= y < 16):
        raise EncodingError(f"coordinate ({x},{y}) does not fit {POS_WIDTH} bits per axis")
    return (y << 4) | x


def xy(packed: int) -> tuple[int, int]:
    """(x, y) of a packed node byte."""
    return packed & 15, packed >> 4


def pack_peers(nodes: Sequence[int]) -> dict[str, int]:
    """The `peers` and `npeer` fields that list up to three packed node bytes, first one lowest.

    FILL instructions and memory reads share the form (spec: shared fetch). Raises `EncodingError` for more
    than three nodes or one that is not a byte.
    """
    if len(nodes) > 3:
        raise EncodingError(f"peers: {counted(len(nodes), 'node')} listed, 3 fit: {[xy(n) for n in nodes]}")
    if bad := [n for n in nodes if not 0 <= n < 256]:
        raise EncodingError(f"peers: {bad[0]} is not a packed node byte")
    return {"peers": int.from_bytes(bytes(nodes), "little"), "npeer": len(nodes)}


def unpack_peers(peers: int, npeer: int) -> tuple[int, ...]:
    """The `npeer` packed node bytes that a 24-bit `peers` field lists, in order."""
    return tuple(peers.to_bytes(3, "little")[:npeer])


class Flit(NamedTuple):
    """One flit as the models carry it: `dst` and `src` are packed node bytes, `payload` a 256-bit integer."""

    dst: int
    src: int
    type: int
    txn: int
    last: int
    rsvd: int
    payload: int

    def to_int(self) -> int:
        """The 288-bit word; an unallocated type is carried as it is."""
        return HEADER.pack(
            dst_x=self.dst & 15, dst_y=self.dst >> 4, src_x=self.src & 15, src_y=self.src >> 4,
            type=self.type, txn=self.txn, last=self.last, rsvd=self.rsvd, payload=self.payload,
        )  # fmt: skip

    @classmethod
    def from_int(cls, word: int) -> Flit:
        """The flit that a 288-bit word spells; total over 288-bit words."""
        f = HEADER.decode(word)
        return cls(
            f["dst_y"] << 4 | f["dst_x"], f["src_y"] << 4 | f["src_x"],
            f["type"], f["txn"], f["last"], f["rsvd"], f["payload"],
        )  # fmt: skip
