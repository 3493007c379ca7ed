"""Vector words, descriptors and the envelope, against words that the published bench and compiler wrote."""

import pytest

from kohakutpu.isa import vector
from kohakutpu.isa.fields import EncodingError
from kohakutpu.isa.vector import (
    DESC, DESC_BASE, DESC_DIM, IMEM, IMMEDIATE, PEER_RECORD, RUN,
    DescField, DType, Mask, Mode, Opcode, RedKind, Source,
)  # fmt: skip

OP, S = Opcode, Source

# Words of the peer bench (spec: reference scenario) and of golden/flits, and a few laid out by hand.
WORDS = [
    (0xF0000000, OP.VDRAIN, {"ad": 0, "l1": 0}),
    (0xF0600040, OP.VDRAIN, {"ad": 3, "l1": 64}),
    (0xF8000000, OP.VHALT, {}),
    (0xE0000000, OP.VBAR, {}),
    (0xE8000000, OP.VFILL, {"ad": 0, "l1": 0}),
    (0xD0000000, OP.VSETI, {"vd": 0}),
    (0xD0080000, OP.VSETI, {"vd": 4}),
    (0xD6000000, OP.VSETI, {"sa": S.K}),
    (0xC0000000, OP.VSETVL, {"va": 0}),
    (0xC8000000, OP.VSETMODE, {"mode": Mode.FLAT}),
    (0xC8006000, OP.VSETMODE, {"mode": Mode.TREE}),
    (0xA1200005, OP.VLD, {"dtype": DType.FP16, "ad": 1, "vd": 0, "offset": 5}),
    (0x18020000, OP.VADD, {"vd": 1, "va": 0, "vc": 0}),
    (0xA9420007, OP.VST, {"ad": 2, "vd": 1, "offset": 7}),
    (0xA2203FFF, OP.VLD, {"dtype": DType.FP32, "ad": 1, "offset": -1}),
    (0x288E0800, OP.VMUL, {"vd": 7, "va": 0, "sb": S.S, "vb": 4}),
    (0x186EE020, OP.VADD, {"vd": 7, "va": 7, "sc": S.K, "vc": 1}),
    (0x800EE000, OP.VINV, {"vd": 7, "va": 7}),
    (0x0002400A, OP.VMOV, {"vd": 1, "va": 2, "pr": 1, "pm": Mask.WHERE}),
    (0x58006A18, OP.VCMPLT, {"va": 3, "vb": 5, "pr": 3}),
    (0x980224A8, OP.VRED, {"vd": 1, "va": 1, "vb": 2, "kind": RedKind.EXPSUM, "pr": 1}),
    (0xB20E8000, OP.VBCAST, {"sa": S.S, "vd": 7, "va": 4}),
    (0xB80C2600, OP.VSHUF, {"vd": 6, "va": 1, "vb": 3}),
    (0xD800A400, OP.VLOOP, {"va": 5, "vb": 2}),
    (0x920E2000, OP.VCVT, {"dtype": DType.FP32, "vd": 7, "va": 1}),
    (0xF3224E08, OP.VDRAIN, {"peer": 1, "signal": 1, "ad": 1, "x": 1, "y": 2, "buf": 7, "l1": 8}),
]


@pytest.mark.parametrize(("word", "op", "values"), WORDS)
def test_words(word, op, values):
    assert vector.encode(op, **values) == word
    decoded = vector.decode_word(word)
    assert decoded.op is op
    assert {name: getattr(decoded, name) for name in values} == values
    vector.check_word(word)


def test_numbers():
    """Spec: the instruction word's opcode table, selectors, modes, reduction kinds, faults."""
    assert [op.name for op in Opcode] == (
        "VMOV VNEG VABS VADD VSUB VMUL VFMA VFNMA VMAX VMIN VSEL VCMPLT VCMPGT VCMPEQ VEXP2 VLOG2 VINV VRSQRT "
        "VCVT VRED VLD VST VBCAST VSHUF VSETVL VSETMODE VSETI VLOOP VBAR VFILL VDRAIN VHALT"
    ).split()
    assert [int(op) for op in Opcode] == list(range(32))
    assert [(s.name, int(s)) for s in Source] == [("V", 0), ("S", 1), ("C", 2), ("K", 3)]
    assert [(m.name, int(m)) for m in Mode] == [("FLAT", 0), ("D2", 1), ("D4", 2), ("TREE", 3)]
    assert [k.name for k in RedKind] == ["SUM", "MAX", "MIN", "SUMSQ", "DOT", "EXPSUM", "ANY", "ALL"]
    assert [int(k) for k in RedKind] == list(range(8))
    assert [f.name[2:] for f in vector.Fault] == "DTYPE VSRC CHAIN OPCODE LEN LOOP VL REDVL CUDATA".split()
    assert [int(f) for f in vector.Fault] == list(range(1, 10))


def test_all_opcodes_have_one_layout():
    assert sorted(vector.LAYOUTS) == list(range(32))
    assert all(layout.fields["op"].default == op for op, layout in vector.LAYOUTS.items())


def test_decoded_words_keep_the_raw_alu_positions():
    """The hazard set and the chain gather look at va, vb, vc and vd of a word whatever its opcode."""
    w = vector.decode_word(0xA9420007)
    assert (w.op, w.vd, w.va, w.vb, w.vc) == (OP.VST, 1, 0, 0, 0)
    assert vector.decode_word(0xFFFFFFFF).sa == 3
    assert vector.decode_word(0xFFFFFFFF).vc == 15


@pytest.mark.parametrize(
    ("op", "values", "complaint"),
    [
        (OP.VLD, {"dtype": 3}, r"VLD\.dtype: 3 is none of DType \(1 FP16, 2 FP32\)"),
        (OP.VST, {"dtype": 0}, r"VST\.dtype: 0 is none"),
        (OP.VCVT, {"dtype": 7}, r"VCVT\.dtype: 7 is none"),
        (OP.VLD, {"offset": 8192}, r"VLD\.offset: 8192 does not fit 14 signed bits"),
        (OP.VLD, {"ad": 8}, r"VLD\.ad: 8 does not fit 3 bits"),
        (OP.VMUL, {"vd": 16}, r"VMUL\.vd: 16 does not fit 4 bits"),
        (OP.VMUL, {"kind": 1}, "VMUL has no field 'kind'"),
        (OP.VFILL, {"l1": 512}, r"VFILL\.l1: 512 does not fit 9 bits"),
        (OP.VDRAIN, {"peer": 0, "x": 1}, r"VDRAIN, peer\.peer: must be 1, not 0"),
        (OP.VDRAIN, {"peer": 1, "buf": 16}, r"VDRAIN, peer\.buf: 16 does not fit 4 bits"),
        (OP.VHALT, {"vd": 1}, "VHALT has no field 'vd'"),
        (32, {}, "opcode 32 does not fit 5 bits"),
    ],
)
def test_the_encoder_refuses(op, values, complaint):
    with pytest.raises(EncodingError, match=complaint):
        vector.encode(op, **values)


@pytest.mark.parametrize(
    ("word", "complaint"),
    [
        (0xF8000001, "VHALT: reserved bits are set: 0x1"),
        (0x00000001, "VMOV: reserved bits are set: 0x1"),
        (0xA3000000, r"VLD\.dtype: 3"),
        (0xA1004000, "VLD: reserved bits are set: 0x4000"),
        (0xF0000200, "VDRAIN: reserved bits are set: 0x200"),
        (1 << 32, "wider than 32 bits"),
    ],
)
def test_the_validator_refuses(word, complaint):
    with pytest.raises(EncodingError, match=complaint):
        vector.check_word(word)


def test_immediates():
    assert IMMEDIATE.encode(value=0xBFB8AA) == 0xBFB8AA
    vector.check_word(0xFFFFFF, immediate=True)
    with pytest.raises(EncodingError, match="immediate: reserved bits are set"):
        vector.check_word(0x1000000, immediate=True)


def test_envelope():
    imem = IMEM.encode(addr=8, word=0xD0000000)
    assert imem == 1 << 252 | 8 << 243 | 0xD0000000
    assert vector.decode(imem)[:3] == (1, 8, 0xD0000000)
    base = DESC_BASE.encode(ad=5, base=0x98_1234_5678)
    assert base == 2 << 252 | 5 << 249 | (0x98_1234_5678 & (1 << 34) - 1) << 212 | (0x98_1234_5678 >> 34) << 63
    assert vector.decode(base).value == 0x98_1234_5678
    assert DESC.encode(ad=5, field=DescField.BASE, value=0x98_1234_5678) == base
    dim = DESC_DIM.encode(ad=0, field=DescField.DIM3, stride=-32, bound=9)
    assert dim == 2 << 252 | 4 << 246 | ((-32 & 0x3FFFF) << 16 | 9) << 212
    assert vector.decode(dim)[-2:] == (-32, 9)
    assert vector.decode(RUN.encode(pc=511)).pc == 511
    for payload in (imem, base, dim, RUN.encode(pc=511)):
        vector.check(payload)


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: IMEM.encode(addr=512), r"IMEM\.addr: 512 does not fit 9 bits"),
        (lambda: IMEM.encode(word=1 << 32), r"IMEM\.word: .* does not fit 32 bits"),
        (lambda: DESC_BASE.encode(base=1 << 40), r"DESC base\.base: .* does not fit 40 bits"),
        (lambda: DESC_DIM.encode(stride=1 << 17), r"stride: 131072 does not fit 18 signed bits"),
        (lambda: DESC_DIM.encode(field=0), "field BASE is not a dimension"),
        (lambda: DESC.encode(field=5), r"DESC\.field: 5 is none of DescField"),
        (lambda: DESC.encode(field=1, value=1 << 34), "does not fit the 34 bits of a dimension"),
        (lambda: PEER_RECORD.encode(fin=0x31), "a remote drain must name an acknowledgement node"),
        (lambda: PEER_RECORD.encode(mesh=1), "mesh = 1 with fin = 0"),
        (lambda: vector.check(4 << 252), "opcode 4 is none of IMEM 1, DESC 2, RUN 3"),
        (lambda: vector.check(IMEM.encode() | 1 << 100), "IMEM: reserved bits are set"),
        (lambda: vector.check(DESC_DIM.encode() | 1 << 63), "does not fit the 34 bits"),
    ],
)
def test_the_envelope_refuses(make, complaint):
    with pytest.raises(EncodingError, match=complaint):
        make()


def test_peer_record():
    record = PEER_RECORD.encode(offset=0x123, ack_x=1, ack_y=2, mesh=3, fin=0x31)
    assert record == 0x31 << 26 | 3 << 24 | 2 << 20 | 1 << 16 | 0x123
