"""Cluster instructions: the 256-bit CU_INST payload of FILL, GEMM and DRAIN (spec: CU_INST payload).

`WORD` is the map common to all opcodes, which the hardware decodes. `FILL`, `GEMM` and `DRAIN` name the
fields that each opcode reads and hold the encoder's rules; the bits agree. All three carry nk = 1 and
anchor = 40 by default, as the published encoder writes them, though only GEMM reads them.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping
from enum import IntEnum
from functools import lru_cache

from .fields import EncodingError, Field, Layout, field
from .flit import PAYLOAD_WIDTH

ANCHOR = 40
FILL_LIMIT = 255  # the fill counter and the request's count field have 8 bits


class Op(IntEnum):
    FILL = 1
    GEMM = 2
    DRAIN = 3


class Side(IntEnum):
    A = 0
    B = 1


_FIELDS = {
    item.name: item
    for item in [
        field("op", 255, 252, "opcode", enum=Op),
        Field(
            "addr", ((68, 63), (251, 218)), "byte address: FILL source, DRAIN and emitting GEMM destination", hex=True
        ),
        field("n", 217, 202, "FILL entries, DRAIN sub-tiles; 0 acts as 1"),
        field("sel", 201, 201, "FILL: operand side", enum=Side),
        field("acc", 200, 200, "GEMM: keep the resident tile"),
        field("gm", 199, 192, "GEMM row groups; 0 acts as 1"),
        field("gn", 191, 184, "GEMM column groups; 0 acts as 1"),
        field("nk", 183, 176, "GEMM K blocks; 0 acts as 1", default=1),
        field("anchor", 175, 168, "GEMM scale anchor, 2 * SBIAS", default=ANCHOR),
        field("peers", 167, 144, "FILL: up to three {y,x} node bytes, peer 0 lowest", hex=True),
        field("npeer", 143, 142, "FILL: peers listed"),
        field("preq", 141, 141, "FILL: the operand is MXFP7 in memory already"),
        field("eoff", 140, 133, "FILL: first entry"),
        field("aoff", 132, 125, "GEMM: first A entry"),
        field("boff", 124, 117, "GEMM: first B entry"),
        field("emit", 116, 116, "GEMM: emit sub-tiles on the last K block"),
        field("fuse", 115, 115, "DRAIN: only wait for what an emitting GEMM sends"),
        field("abank", 114, 114, "GEMM: A bank"),
        field("bbank", 113, 113, "GEMM: B bank"),
        field("fbank", 112, 112, "FILL: bank"),
        field("dnode", 111, 111, "destination is a node, not memory"),
        field("dst_x", 110, 107, "destination node column"),
        field("dst_y", 106, 103, "destination node row"),
        field("dbuf", 102, 95, "destination buffer; 2 sends accumulator floats"),
        field("dflags", 94, 87, "CU_DATA flags, copied verbatim; bit 0 asks for DATA_RECEIVED", hex=True),
        field("dack_y", 86, 83, "row that DATA_RECEIVED goes to"),
        field("dack_x", 82, 79, "column that DATA_RECEIVED goes to; (0,0) answers the sender"),
        field("dmesh", 78, 77, "destination mesh of a remote drain"),
        field("dfin", 76, 69, "{fin_y,fin_x} in that mesh; not 0 makes the drain remote", hex=True),
    ]
}

WORD = Layout("cluster instruction", PAYLOAD_WIDTH, _FIELDS.values(), "the map common to FILL, GEMM and DRAIN")


def _fill_count(v: Mapping[str, int]) -> str | None:
    """n is at most 255: the unit and the request count entries in 8 bits."""
    return f"n = {v['n']}: a FILL counts at most {FILL_LIMIT} entries" if v["n"] > FILL_LIMIT else None


def _remote(v: Mapping[str, int]) -> str | None:
    """A remote drain (dfin not 0) needs dnode = 1 and an acknowledgement node; dmesh needs dfin."""
    if v["dfin"]:
        if not v["dnode"]:
            return f"dfin = {v['dfin']:#04x}: a remote drain addresses a node, set dnode = 1"
        if not (v["dack_y"] or v["dack_x"]):
            return "a remote drain must name an acknowledgement node (dack_y, dack_x)"
    elif v["dmesh"]:
        return f"dmesh = {v['dmesh']} with dfin = 0: a drain is remote only when dfin is not 0"
    return None


def _layout(op: Op, names: str, meaning: str, *rules) -> Layout:
    opcode = field("op", 255, 252, "opcode", default=op, enum=Op, fixed=True)
    return Layout(op.name, PAYLOAD_WIDTH, [opcode, *(_FIELDS[name] for name in names.split())], meaning, rules)


_DESTINATION = "dnode dst_x dst_y dbuf dflags dack_y dack_x dmesh dfin"
FILL = _layout(
    Op.FILL, "addr n sel nk anchor peers npeer preq eoff fbank", "fetch n entries into L1; nk and anchor are ignored",
    _fill_count,
)  # fmt: skip
GEMM = _layout(
    Op.GEMM, f"addr acc gm gn nk anchor aoff boff emit abank bbank {_DESTINATION}",
    "sweep gm x gn sub-tiles over nk K blocks; the destination is read when emit = 1", _remote,
)  # fmt: skip
DRAIN = _layout(
    Op.DRAIN, f"addr n nk anchor fuse {_DESTINATION}", "send n sub-tiles to memory or a node; nk, anchor ignored",
    _remote,
)  # fmt: skip
LAYOUTS: dict[int, Layout] = {Op.FILL: FILL, Op.GEMM: GEMM, Op.DRAIN: DRAIN}

Instruction = namedtuple("Instruction", WORD.fields)
Instruction.__doc__ = "A decoded cluster instruction: every field of `WORD`, whatever the opcode."


@lru_cache(maxsize=1 << 16)
def decode(payload: int) -> Instruction:
    """Every field of a CU_INST payload as the cluster reads it; total, unknown opcodes included."""
    return Instruction(**WORD.decode(payload))


def check(payload: int) -> None:
    """Refuse a payload that is no legal FILL, GEMM or DRAIN (opcode, reserved bits, the encoder's rules)."""
    op = WORD.get(payload, "op")
    if op not in LAYOUTS:
        raise EncodingError(f"cluster instruction: opcode {op} is none of FILL 1, GEMM 2, DRAIN 3")
    LAYOUTS[op].check(payload)
