"""The assembler's syntax, its refusals with line and column, and the text the disassembler writes."""

import pytest

from kohakutpu.isa import cluster, vector
from kohakutpu.isa.assembler import AssemblyError, assemble, assemble_words, disassemble, disassemble_words
from kohakutpu.isa.fields import EncodingError
from kohakutpu.isa.flit import Flit, FlitType, node
from kohakutpu.isa.signals import CU_DATA, CU_SIGNAL, UnitType
from kohakutpu.isa.vector import DESC_BASE, DESC_DIM, IMEM, PEER_RECORD, Mask, Opcode, Source

WORD_TEXT = [
    "VMOV v7, v1",
    "VFMA v3, v1, s4, k1 if p0",
    "VMAX v0, v1, v2 if !p3",
    "VADD v7, c, s4 vb=s0",
    "VMOV v7, c3",
    "VMOV v1, c vb=s0 vc=k3",
    "VADD v0, v1, v2 pm=UNLESS_ALSO pr=2",
    "VMOV v0, v1 pr=3",
    "VCMPLT p1, v0, k0",
    "VCMPEQ p0, s15, v1 vd=3 pm=WHERE",
    "VSEL v0, v1, v2, v3",
    "VLD v0, A2+8, FP16",
    "VST v15, A7-8192, FP32",
    "VCVT v1, v0, FP16",
    "VRED s1, v0, v2, EXPSUM pr=1",
    "VBCAST v2, s4",
    "VBCAST s1, v0",
    "VBCAST s1, v0 sa=K",
    "VSHUF v1, v0, s3",
    "VSETVL s0",
    "VSETMODE TREE",
    "VSETI s4, 0xbfb8aa",
    "VSETI k3, 0x000010",
    "VLOOP s5, 12",
    "VBAR",
    "VFILL A0, 64",
    "VDRAIN A1, 32",
    "VDRAIN A1, 32 -> (1,0) signal buf=2",
    "VHALT",
    ".word 0xf8000001",
]


def test_words_come_out_as_they_went_in():
    text = "".join(f"{line}\n" for line in WORD_TEXT)
    assert disassemble_words(assemble_words(text)) == text


def test_word_text_means_what_it_says():
    encode, op = vector.encode, Opcode
    assert assemble_words("VFMA v3, v1, s4, k1 if !p2") == [
        encode(op.VFMA, vd=3, va=1, sb=Source.S, vb=4, sc=Source.K, vc=1, pr=2, pm=Mask.UNLESS)
    ]
    assert assemble_words("VSUB v1, v2, v3") == [encode(op.VSUB, vd=1, va=2, vc=3)]
    assert assemble_words("VCMPGT p1, v2, v3") == [encode(op.VCMPGT, pr=1, va=2, vb=3)]
    assert assemble_words("VSETI k3, 5 # comment") == [encode(op.VSETI, sa=Source.K), 5]
    assert assemble_words("VDRAIN A1, 32 -> (3,2) buf=1") == [encode(op.VDRAIN, peer=1, ad=1, l1=32, x=3, y=2, buf=1)]


FLIT_TEXT = """\
CU_INST (1,1)->(2,1) txn=0x40 last | FILL addr=0x1000 n=8 sel=B
CU_INST (1,1)->(2,1) | GEMM gm=4 gn=8 nk=2
CU_INST (1,1)->(2,1) | DRAIN n=32 dnode dst_x=1 dflags=0x1 dack_y=1 dack_x=1
CU_INST (1,1)->(1,0) | IMEM 3: VSETI s4
CU_INST (1,1)->(1,0) | IMEM 4: .imm 0xbfb8aa
CU_INST (1,1)->(1,0) | IMEM 5: VMUL v7, v0, s4
CU_INST (1,1)->(1,0) | DESC A1.base = 0x8000
CU_INST (1,1)->(1,0) | DESC A1.dim0 stride=-32 bound=9
CU_INST (1,1)->(1,0) | RUN pc=3
MEM_RD_REQ (2,1)->(0,1) last | addr=0x1000 len=3 stream quant count=8
MEM_WR_REQ (2,1)->(0,1) txn=0x02 | addr=0x80 len=7
MEM_WR_ACK (0,1)->(2,1) txn=0x02 last
CU_SIGNAL (2,1)->(1,1) last | INST_COMPLETE arg=0x3
CU_SIGNAL (2,1)->(1,1) last | code=0x45
CU_CTRL (0,0)->(2,1) txn=0x01 last | READ index=CAPS
CU_CTRL (0,0)->(2,1) last | WRITE index=L2_BASE value=0x55
CU_CTRL (2,1)->(0,0) txn=0x01 last | REPLY index=0x9 value=0x4d47
CU_DATA (2,1)->(1,0) txn=0x02 | buf=2 offset=64 flags=0x1 ack_y=1 ack_x=1
CU_DATA (2,1)->(1,0) txn=0x02 last | 0x0200400001110000000000000000000000000000000000000000000000000000
MEM_WR_DATA (2,1)->(0,1) rsvd=5 last | 0x0000000000000000000000000000000000000000000000000000000000000123
TYPE_9 (2,1)->(0,1) | 0x0000000000000000000000000000000000000000000000000000000000000000
GEMM gm=2
IMEM 0: VHALT
"""


def test_flits_come_out_as_they_went_in():
    assert disassemble(assemble(FLIT_TEXT)) == FLIT_TEXT


def test_flit_text_means_what_it_says():
    fill, gemm, drain, *_ = items = assemble(FLIT_TEXT)
    assert fill == Flit(
        node(2, 1), node(1, 1), FlitType.CU_INST, 0x40, 1, 0, cluster.FILL.encode(addr=4096, n=8, sel=1)
    )
    assert items[3].payload == IMEM.encode(addr=3, word=0xD0080000)
    assert items[7].payload == DESC_DIM.encode(ad=1, stride=-32, bound=9)
    assert items[13].payload == CU_SIGNAL.encode(code=0x45)
    assert items[17].payload == CU_DATA.encode(buf=2, offset=64, flags=1, ack_y=1, ack_x=1)
    assert items[-2] == cluster.GEMM.encode(gm=2)


def test_peer_records_are_readable():
    record = PEER_RECORD.encode(offset=64, ack_x=1, ack_y=1)
    assert assemble("DESC A1.peer offset=64 ack_x=1 ack_y=1") == [DESC_BASE.encode(ad=1, base=record)]


def test_comments_and_blank_lines():
    assert assemble("# nothing\n\n  RUN pc=1 ; start\n") == [vector.RUN.encode(pc=1)]


def test_the_receivers_type_decides_where_it_is_known():
    halt = IMEM.encode(addr=0, word=0)
    assert disassemble([halt]) == "IMEM 0: VMOV v0, v0\n"
    assert disassemble([halt], unit=UnitType.CLUSTER) == "FILL nk=0 anchor=0\n"
    flit = Flit(0x12, 0x11, FlitType.CU_INST, 0, 0, 0, halt)
    assert disassemble([flit], units={0x12: UnitType.CLUSTER}).endswith("| FILL nk=0 anchor=0\n")
    assert disassemble([flit], units={0x12: UnitType.VECTOR}).endswith("| IMEM 0: VMOV v0, v0\n")


def test_what_is_not_legal_comes_out_as_a_number_with_the_reason():
    broken = cluster.WORD.pack(op=1, n=256)
    text = disassemble([broken])
    assert text == f"0x{broken:064x}  # FILL: n = 256: a FILL counts at most 255 entries\n"
    assert assemble(text) == [broken]


@pytest.mark.parametrize(
    ("text", "line", "column", "complaint"),
    [
        ("FILL addr=0x1000 m=8", 1, 18, "FILL has no field 'm'; it has addr, n"),
        ("RUN pc=0\nFILL n=70000", 2, 8, r"FILL\.n \(16 bits\): 70000 does not fit 0\.\.65535"),
        ("FILL n=256", 1, 1, "FILL: n = 256: a FILL counts at most 255"),
        ("FILL addr=0x10000000000", 1, 11, r"FILL\.addr \(40 bits\)"),
        ("FILL n=1 n=2", 1, 10, r"FILL\.n is given twice"),
        ("FILL n", 1, 7, r"FILL\.n needs a value: n=\.\.\."),
        ("FILL sel=Z", 1, 10, "FILL.sel: 'Z' is none of A, B"),
        ("FILL op=2", 1, 6, "FILL has no field 'op'"),
        ("FILL n=010", 1, 8, "'010' is not a number"),
        ("FILL n=1e5", 1, 8, "unexpected '1e5'"),
        ("FILL n=", 1, 8, "got 'end of line'"),
        ("FLIL n=1", 1, 1, "'FLIL' is none of FILL, GEMM, DRAIN, IMEM, DESC, RUN"),
        ("DRAIN dfin=0x31", 1, 1, "a remote drain addresses a node"),
        ("FILL @", 1, 6, "unexpected '@'"),
        ("IMEM 512: VHALT", 1, 6, "512 does not fit 0..511"),
        ("IMEM 0 VHALT", 1, 8, "expected ':', got 'VHALT'"),
        ("IMEM 0: VSETI s4, 5", 1, 17, "an IMEM flit holds one word"),
        ("IMEM 0: VMUL v7, v0", 1, 20, "expected ',', got 'end of line'"),
        ("IMEM 0: VMUL v16, v0, v1", 1, 14, "v16: there are 16 such registers"),
        ("IMEM 0: VMUL s1, v0, v1", 1, 14, "expected a vector register, got 's1'"),
        ("IMEM 0: VMUL v1, v0, v", 1, 22, r"expected a source \(v, s, k or c\), got 'v'"),
        ("IMEM 0: VMUL v1, v0, v1 sa=S", 1, 25, "VMUL has no field 'sa'"),
        ("IMEM 0: VLD v0, A8, FP16", 1, 17, "A8: there are 8 such registers"),
        ("IMEM 0: VLD v0, A0+8192, FP16", 1, 20, r"8192 does not fit -8192\.\.8191"),
        ("IMEM 0: VLD v0, A0, FP8", 1, 21, "dtype: 'FP8' is none of FP16, FP32"),
        ("IMEM 0: VLD v0, A0, 3", 1, 9, r"VLD\.dtype: 3 is none of DType"),
        ("IMEM 0: VSETI k1", 1, 15, "k1: only k3 can be written"),
        ("IMEM 0: VADD v0, v1, v2 if p4", 1, 28, "p4: there are 4 such registers"),
        ("IMEM 0: VHALT v0", 1, 15, "VHALT has no field 'v0'"),
        ("IMEM 0: VFLY", 1, 9, "'VFLY' is no vector instruction"),
        ("IMEM 0: .imm 0x1000000", 1, 14, r"\.imm \(24 bits\): 16777216 does not fit"),
        ("DESC A0.dim4 bound=1", 1, 6, "expected A0..A7 and .base, .peer or .dim0...dim3, got 'A0.dim4'"),
        ("DESC A0.base 5", 1, 14, "expected '=', got '5'"),
        ("DESC A0.dim0 stride=131072", 1, 21, r"131072 does not fit -131072\.\.131071"),
        ("CU_INST (1,1)->(16,1) | FILL", 1, 17, "column: 16 does not fit 0..15"),
        ("CU_INST (1,1):(2,1) | FILL", 1, 14, "expected '->', got ':'"),
        ("CU_INST (1,1)->(2,1) txn=256 | FILL", 1, 26, r"txn \(8 bits\): 256 does not fit"),
        ("CU_INST (1,1)->(2,1) lost | FILL", 1, 22, "a flit header has no 'lost'; it has txn, rsvd, last"),
        ("CU_INST (1,1)->(2,1) last last | FILL", 1, 27, "last is given twice"),
        ("CU_INST (1,1)->(2,1)", 1, 21, r"expected '\|' and a payload"),
        ("CU_INST (1,1)->(2,1) | ", 1, 23, "expected a payload"),
        ("MEM_WR_DATA (2,1)->(0,1) | buf=0", 1, 28, "expected the 256-bit payload as a number, got 'buf'"),
        ("MEM_WR_DATA (2,1)->(0,1) | 0x1 2", 1, 32, "unexpected '2'"),
        ("MEM_WR_REQ (2,1)->(0,1) | addr=0 len=8", 1, 27, "len = 8: a write has at most 8 beats"),
        ("MEM_WR_ACK (2,1)->(0,1) | addr=0", 1, 27, "MEM_WR_ACK has no field 'addr'"),
        ("CU_SIGNAL (2,1)->(1,1) | code=5", 1, 26, "code 0x05 is reserved"),
        ("CU_CTRL (2,1)->(1,1) | PEEK index=0", 1, 24, "expected READ, WRITE or REPLY, got 'PEEK'"),
        ("TYPE_16 (2,1)->(1,1) | 0x0", 1, 1, "'TYPE_16' is none of"),
        ("0x1" + "0" * 64, 1, 1, "does not fit"),
    ],
)  # fmt: skip
def test_errors_name_line_and_column(text, line, column, complaint):
    with pytest.raises(AssemblyError, match=complaint) as caught:
        assemble(text)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert str(caught.value).startswith(f"line {line}, column {column}: ")


@pytest.mark.parametrize(
    ("text", "column"), [("VSETI s4, 0x1000000", 11), ("VSETI s4, ", 10), ("VSETI s4, 5 6", 13), ("VHALT, 5", 6)]
)
def test_word_errors_name_the_column(text, column):
    with pytest.raises(AssemblyError) as caught:
        assemble_words(f"VBAR\n{text}")
    assert (caught.value.line, caught.value.column) == (2, column)


def test_what_is_no_flit_is_refused():
    with pytest.raises(EncodingError, match="expected a Flit or a 256-bit payload"):
        disassemble([1 << 256])
    with pytest.raises(EncodingError, match="wider than 32 bits"):
        disassemble_words([1 << 32])
    with pytest.raises(EncodingError, match=r"flit\.txn: 256"):
        disassemble([Flit(0, 0, 5, 256, 0, 0, 0)])
