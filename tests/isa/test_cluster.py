"""Cluster instructions against the payloads of the published encoder (spec: CU_INST payload)."""

import pytest

from kohakutpu.isa import cluster
from kohakutpu.isa.cluster import DRAIN, FILL, GEMM, WORD, Op, Side
from kohakutpu.isa.fields import EncodingError, Field, Layout
from kohakutpu.isa.flit import node, pack_peers

GOLDEN = [
    (FILL, {"addr": 0x2000, "n": 32, "sel": Side.B, "preq": 1, "eoff": 3, "fbank": 1},
     0x1000008000008200000128000000206000010000000000000000000000000000),
    (FILL, {"addr": 0x98_1234_5600, "n": 1},
     0x1048D15800000400000128000000000000000000000000130000000000000000),
    (GEMM, {"gm": 8, "gn": 8, "nk": 4, "acc": 1, "aoff": 1, "boff": 2, "abank": 1, "bbank": 1},
     0x2000000000000108080428000000000020460000000000000000000000000000),
    (GEMM, {"gm": 16, "gn": 32, "nk": 2, "emit": 1, "addr": 0x4000},
     0x2000010000000010200228000000000000100000000000000000000000000000),
    (DRAIN, {"addr": 0x4000, "n": 64},
     0x3000010000010000000128000000000000000000000000000000000000000000),
    (DRAIN, {"addr": 0x4000, "n": 512, "fuse": 1},
     0x3000010000080000000128000000000000080000000000000000000000000000),
    (DRAIN, {"addr": 0x40, "n": 9, "dnode": 1, "dst_x": 3, "dst_y": 2, "dbuf": 2, "dflags": 1, "dack_x": 1,
             "dack_y": 4},
     0x300000010000240000012800000000000000990100A080000000000000000000),
    (DRAIN, {"addr": 0x40, "n": 9, "dnode": 1, "dst_x": 0, "dst_y": 1, "dflags": 1, "dack_x": 1, "dack_y": 4,
             "dmesh": 2, "dfin": node(1, 3)},
     0x300000010000240000012800000000000000808000A0C6200000000000000000),
]  # fmt: skip


@pytest.mark.parametrize(("layout", "values", "payload"), GOLDEN)
def test_golden_payloads(layout, values, payload):
    assert layout.encode(**values) == payload
    assert WORD.encode(op=Op[layout.name], **values) == payload
    decoded = cluster.decode(payload)
    assert {name: getattr(decoded, name) for name in values} == values
    assert decoded.op == Op[layout.name] and decoded.anchor == 40
    cluster.check(payload)


def _swapped(layout: Layout, one: str, other: str) -> Layout:
    """`layout` with the positions of two fields exchanged."""
    at = {one: layout.fields[other].bits, other: layout.fields[one].bits}
    fields = [Field(f.name, at.get(f.name, f.bits), f.meaning, f.default) for f in layout.fields.values()]
    return Layout(layout.name, layout.width, fields)


@pytest.mark.parametrize(
    ("one", "other"),
    [("dst_x", "dst_y"), ("dack_y", "dack_x"), ("dbuf", "dflags"), ("nk", "anchor"), ("dfin", "dflags")],
)
def test_a_misplaced_field_is_noticed(one, other):
    wrong = _swapped(DRAIN, one, other)
    assert any(wrong.encode(**values) != payload for layout, values, payload in GOLDEN if layout is DRAIN)


def test_peers_sit_lowest_first():
    payload = FILL.encode(**pack_peers([0x12, 0x21, 0x22]))
    assert (payload >> 144) & 0xFF == 0x12
    assert (payload >> 142) & 3 == 3


def test_opcode_layouts_agree_with_the_common_map():
    for layout in cluster.LAYOUTS.values():
        for name, item in layout.fields.items():
            if name != "op":
                assert item == WORD.fields[name]
        assert layout.encode() == WORD.encode(op=Op[layout.name])


@pytest.mark.parametrize(
    ("layout", "values", "complaint"),
    [
        (FILL, {"n": 256}, "n = 256: a FILL counts at most 255"),
        (FILL, {"addr": 1 << 40}, r"FILL\.addr: 1099511627776 does not fit 40 bits"),
        (FILL, {"npeer": 4}, r"FILL\.npeer: 4 does not fit 2 bits"),
        (FILL, {"gm": 4}, "FILL has no field 'gm'"),
        (FILL, {"dnode": 1}, "FILL has no field 'dnode'"),
        (GEMM, {"gm": 256}, r"GEMM\.gm: 256 does not fit 8 bits"),
        (GEMM, {"n": 1}, "GEMM has no field 'n'"),
        (GEMM, {"op": Op.FILL}, r"GEMM\.op: must be 2, not 1"),
        (DRAIN, {"n": 65536}, r"DRAIN\.n: 65536 does not fit 16 bits"),
        (DRAIN, {"dfin": 0x31, "dack_x": 1}, "a remote drain addresses a node, set dnode = 1"),
        (DRAIN, {"dfin": 0x31, "dnode": 1}, "a remote drain must name an acknowledgement node"),
        (DRAIN, {"dmesh": 1, "dnode": 1}, "dmesh = 1 with dfin = 0"),
        (GEMM, {"emit": 1, "dfin": 0x31, "dnode": 1}, "a remote drain must name an acknowledgement node"),
    ],
)
def test_the_encoder_refuses(layout, values, complaint):
    with pytest.raises(EncodingError, match=complaint):
        layout.encode(**values)


@pytest.mark.parametrize(
    ("payload", "complaint"),
    [
        (0, "opcode 0 is none of FILL 1, GEMM 2, DRAIN 3"),
        (4 << 252, "opcode 4 is none"),
        (FILL.encode() | 1, "FILL: reserved bits are set: 0x1"),
        (FILL.encode() | 1 << 111, "FILL: reserved bits are set"),  # dnode means nothing there
        (WORD.pack(op=1, n=256), "n = 256"),
    ],
)
def test_the_validator_refuses(payload, complaint):
    with pytest.raises(EncodingError, match=complaint):
        cluster.check(payload)
