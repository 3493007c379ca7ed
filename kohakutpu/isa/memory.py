"""Memory agent payloads and 40-bit addresses (spec: payload layouts, reads, writes, staging store)."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping
from enum import IntEnum
from functools import lru_cache

from .fields import Layout, field
from .flit import PAYLOAD_WIDTH

ADDRESS_WIDTH = 40
WORD_BYTES = 32
WRITE_BEATS = 8  # the longest write burst
ENTRY_WORDS = 4  # what entry_words 0 and values past 4 mean

_ADDR = field("addr", 255, 216, "byte address", hex=True)
_LEN = field("len", 215, 208, "beats - 1; writes and plain reads")

MEM_REQ = Layout(
    "MEM_RD_REQ",
    PAYLOAD_WIDTH,
    [
        _ADDR,
        _LEN,
        field("stream", 206, 206, "fetch `count` consecutive entries"),
        field("blayout", 205, 205, "pack the converted entry in B layout"),
        field("quant", 204, 204, "the source is FP16: convert it to MXFP7"),
        field("flush", 202, 202, "declared, read by nothing"),
        field("invalidate", 201, 201, "declared, read by nothing"),
        field("cacheable", 200, 200, "declared, read by nothing"),
        field("count", 199, 192, "entries of a stream; 0 acts as 1"),
        field("peers", 191, 168, "up to three further {y,x} destinations, the first lowest", hex=True),
        field("npeer", 167, 166, "destinations listed"),
        field("entry_words", 165, 158, "words of an entry that is not converted; 0 and values past 4 act as 4"),
    ],
    "read request; a write descriptor is the same word with only addr and len",
)


def _write_length(v: Mapping[str, int]) -> str | None:
    """len is at most 7: a write has at most 8 beats."""
    if v["len"] >= WRITE_BEATS:
        return f"len = {v['len']}: a write has at most {WRITE_BEATS} beats (len {WRITE_BEATS - 1})"
    return None


MEM_WR = Layout(
    "MEM_WR_REQ", PAYLOAD_WIDTH, [_ADDR, _LEN], "write descriptor; len + 1 MEM_WR_DATA flits follow", [_write_length]
)
MEM_DATA = Layout(
    "MEM_RD_RESP, MEM_WR_DATA", PAYLOAD_WIDTH, [field("data", 255, 0, "one 256-bit memory word", hex=True)]
)
MEM_ACK = Layout("MEM_WR_ACK", PAYLOAD_WIDTH, [], "no payload and no status")

Request = namedtuple("Request", MEM_REQ.fields)
Request.__doc__ = "A decoded memory request: every field of `MEM_REQ`."


@lru_cache(maxsize=1 << 14)
def decode_request(payload: int) -> Request:
    """Every field of a MEM_RD_REQ or MEM_WR_REQ payload; total."""
    return Request(**MEM_REQ.decode(payload))


class Aperture(IntEnum):
    """What a special address names (bits 35:32); others are reserved or unspecified."""

    STAGING = 0
    UPLOAD_A = 4
    UPLOAD_B = 5


DRAM_ADDRESS = Layout(
    "DRAM address",
    ADDRESS_WIDTH,
    [
        field("special", 39, 39, "0 for memory", fixed=True),
        field("mesh", 37, 36, "mesh id"),
        field("local", 35, 0, "byte address in that mesh's memory", hex=True),
    ],
    "an address of plain memory",
)
APERTURE_ADDRESS = Layout(
    "aperture address",
    ADDRESS_WIDTH,
    [
        field("special", 39, 39, "1 for an aperture", default=1, fixed=True),
        field("mesh", 37, 36, "mesh id"),
        field("aperture", 35, 32, "aperture index", enum=Aperture, open=True),
        field("local", 31, 0, "byte address inside the aperture", hex=True),
    ],
    "an address of the staging store or of the quantising upload",
)
