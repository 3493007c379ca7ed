"""The validator: flits, streams of flits, chains, kernels and programs."""

import pytest

from kohakutpu.isa import cluster, validate, vector
from kohakutpu.isa.assembler import assemble, assemble_words
from kohakutpu.isa.fields import EncodingError
from kohakutpu.isa.signals import UnitType
from kohakutpu.isa.vector import Mode

LEGAL = """
CU_INST (1,1)->(2,1) txn=0x40 last | FILL addr=0x1000 n=8 sel=B
CU_INST (1,1)->(1,0) | RUN pc=4
MEM_RD_REQ (2,1)->(0,1) last | addr=0x1000 len=3 stream quant count=8
MEM_RD_RESP (0,1)->(2,1) rsvd=3 last | 0x77
MEM_WR_REQ (2,1)->(0,1) txn=2 | addr=0x1000 len=1
MEM_WR_DATA (2,1)->(0,1) txn=2 | 0x5
MEM_WR_DATA (2,1)->(0,1) txn=2 last | 0x6
MEM_WR_ACK (0,1)->(2,1) txn=2 last
CU_SIGNAL (2,1)->(1,1) last | FAULT arg=9
CU_CTRL (0,0)->(2,1) txn=1 last | READ index=CAPS
CU_CTRL (2,1)->(0,0) txn=1 last | REPLY index=CAPS value=0x4d47042020000000
CU_DATA (2,1)->(0,1) txn=0x31 rsvd=6 | len=0 flags=1 ack_x=1
CU_DATA (2,1)->(0,1) txn=0x31 rsvd=6 last | 0x8
"""
UNITS = {0x12: UnitType.CLUSTER, 0x01: UnitType.VECTOR}


def test_a_legal_stream():
    validate.stream(assemble(LEGAL), units=UNITS)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("TYPE_9 (1,1)->(2,1) | 0x0", "flit type 9 is not allocated"),
        ("CU_INST (1,1)->(2,1) | DESC A0.dim0 bound=1", "GEMM: reserved bits are set"),
        ("CU_INST (1,1)->(1,0) | FILL n=1", "IMEM: reserved bits are set"),
        ("CU_INST (1,1)->(2,1) rsvd=1 | FILL n=1", "CU_INST: rsvd must be 0, not 0b001"),
        ("CU_INST (1,1)->(2,1) rsvd=5 | FILL n=1", "CU_INST: rsvd 0b101 marks a remote flit"),
        ("MEM_WR_REQ (2,1)->(0,1) rsvd=5 | addr=0", "a remote flit carries its final node in txn, which is 0"),
        ("MEM_WR_REQ (2,1)->(0,1) last | addr=0", "MEM_WR_REQ descriptor: last must be 0"),
        ("MEM_WR_REQ (2,1)->(0,1) | 0x1", "MEM_WR_REQ: reserved bits are set"),
        ("MEM_WR_REQ (2,1)->(0,1) | addr=0 len=1\nMEM_WR_REQ (2,1)->(0,1) | addr=0", "still lacks 2 data flits"),
        ("MEM_WR_REQ (2,1)->(0,1) | addr=0 len=1", r"\(2, 1\) -> \(0, 1\): a burst still lacks 2 data flits"),
        ("MEM_WR_REQ (2,1)->(0,1) | addr=0 len=1\nMEM_WR_DATA (2,1)->(0,1) last | 0x0", "last is 1 with 1 data flit"),
        ("MEM_WR_REQ (2,1)->(0,1) | addr=0 len=0\nMEM_WR_DATA (2,1)->(0,1) | 0x0", "last is 0 with 0 data flits"),
        ("MEM_WR_DATA (2,1)->(0,1) last | 0x0", "no write of this source is open"),
        ("MEM_WR_ACK (0,1)->(2,1)", "MEM_WR_ACK: last must be 1"),
        ("MEM_WR_ACK (0,1)->(2,1) last | 0x1", "MEM_WR_ACK: reserved bits are set"),
        ("CU_SIGNAL (2,1)->(1,1) last | 0x1", "CU_SIGNAL: reserved bits are set"),
        ("CU_CTRL (2,1)->(1,1) last | 0x1", "CU_CTRL request: reserved bits are set"),
        ("CU_DATA (2,1)->(1,0) | len=1\nCU_DATA (2,1)->(1,0) last | 0x0", "last is 1 with 1 data flit to come"),
        ("CU_DATA (2,1)->(1,0) last | len=0", "CU_DATA descriptor: last must be 0"),
        ("CU_DATA (2,1)->(1,0) | len=0 flags=2", "flags 0x02, only bit 0 is defined"),
        ("CU_DATA (2,1)->(1,0) | len=1", r"\(2, 1\) -> \(1, 0\): a burst still lacks 2 data flits"),
    ],
)
def test_an_illegal_stream_is_refused(text, complaint):
    with pytest.raises(EncodingError, match=complaint):
        validate.stream(assemble(text), units=UNITS)


def test_the_offending_flit_is_named():
    with pytest.raises(EncodingError, match=r"flit 1, \(1, 1\) -> \(2, 1\): flit type 9"):
        validate.stream(assemble("CU_INST (1,1)->(2,1) | FILL\nTYPE_9 (1,1)->(2,1) | 0x0"))


def test_unknown_units_have_no_instructions():
    with pytest.raises(EncodingError, match="no instructions are known for CU_TYPE 0x5256"):
        validate.instruction(0, UnitType.RV32)


KERNEL = """
VSETI s0, 128
VSETVL s0
VSETMODE D2
VLOOP s0, 4
VMUL v1, v0, s4 vc=s0
VADD v2, c, k1 vb=s0
VMOV v1, v2
VMOV v2, c vb=s0 vc=k0
VSETMODE TREE
VRED s1, v2, v2, SUM
VRED s1, v2, v2, ANY
VSETMODE FLAT
VADD v1, v2, v3 if !p1
VHALT
"""


def test_a_legal_kernel():
    assert validate.kernel(assemble_words(KERNEL)) is Mode.FLAT
    assert validate.kernel(assemble_words("VSETMODE TREE\nVHALT")) is Mode.TREE


def _edited(line: str, replacement: str) -> str:
    assert f"\n{line}\n" in KERNEL
    return KERNEL.replace(f"\n{line}\n", f"\n{replacement}\n", 1)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (_edited("VADD v2, c, k1 vb=s0", "VADD v2, c, k1"), r"IMEM\[5\]: stage 1: VADD selects V in sb.*F_VSRC"),
        (_edited("VMOV v1, v2", "VMOV v1, c"), r"IMEM\[7\]: stage 0: VMOV selects C in sa.*F_CHAIN"),
        (_edited("VADD v2, c, k1 vb=s0", "VBAR"), r"IMEM\[5\]: stage 1: VBAR is no ALU word \(F_OPCODE\)"),
        (_edited("VLOOP s0, 4", "VLOOP s0, 3"), r"IMEM\[7\]: a D2 chain straddles the end of a loop"),
        (_edited("VSETMODE TREE", "VBAR"), r"IMEM\[10\]: VRED SUM in mode D2: needs TREE"),
        (_edited("VSETMODE FLAT", "VBAR"), r"IMEM\[13\]: an ALU word in mode TREE"),
        (_edited("VMOV v1, v2", "VLOOP s1, 1\nVMOV v1, v2"), r"IMEM\[7\]: VLOOP inside a loop \(F_LOOP\)"),
        (_edited("VHALT", "VBAR"), r"IMEM\[15\]: nothing was written here"),
        (_edited("VHALT", ".word 0xa3000000"), r"IMEM\[14\]: VLD\.dtype: 3 is none of DType"),
        ("VSETI s0\n.word 0x1000000\nVHALT", r"IMEM\[1\]: immediate: reserved bits are set"),
        ("VSETI s0", r"IMEM\[1\]: nothing was written here"),
        (
            "VLOOP s0, 3\nVSETMODE TREE\nVRED s0, v0, v0, MAX\nVMOV v0, v1\nVHALT",
            r"IMEM\[3\]: an ALU word in mode TREE",
        ),
        # Only the second pass of the loop meets the wrong mode.
        ("VLOOP s0, 2\nVMOV v0, v1\nVSETMODE TREE\nVSETMODE FLAT\nVHALT", r"IMEM\[1\]: an ALU word in mode TREE"),
        ("VBAR\n" * 512, "the kernel never reaches a VHALT"),
    ],
)
def test_an_illegal_kernel_is_refused(text, complaint):
    with pytest.raises(EncodingError, match=complaint):
        validate.kernel(assemble_words(text))


def test_the_mode_of_a_run_is_the_one_the_last_left():
    with pytest.raises(EncodingError, match="an ALU word in mode TREE"):
        validate.kernel(assemble_words("VMOV v0, v1\nVHALT"), mode=Mode.TREE)


def test_programs():
    image = {}
    validate.program(
        assemble("IMEM 3: VBAR\nIMEM 4: VHALT\nDESC A0.base = 0x10\nRUN pc=3"), UnitType.VECTOR, image=image
    )
    assert sorted(image) == [3, 4]
    validate.program(assemble("RUN pc=4"), UnitType.VECTOR, image=image)
    validate.program(assemble("FILL n=4\nGEMM gm=2 gn=2\nDRAIN n=4"), UnitType.CLUSTER)
    tree = assemble(
        "IMEM 0: VSETMODE TREE\nIMEM 1: VHALT\nIMEM 2: VMOV v0, v1\nIMEM 3: VHALT\nRUN pc=2\nRUN pc=0\nRUN pc=2"
    )
    with pytest.raises(EncodingError, match=r"instruction 6: IMEM\[2\]: an ALU word in mode TREE"):
        validate.program(tree, UnitType.VECTOR)
    with pytest.raises(EncodingError, match=r"instruction 0: IMEM\[0\]: nothing was written here"):
        validate.program(assemble("RUN pc=0"), UnitType.VECTOR)
    with pytest.raises(EncodingError, match="instruction 1: FILL: n = 256"):
        validate.program([cluster.GEMM.encode(), cluster.WORD.pack(op=1, n=256)], UnitType.CLUSTER)


def test_a_chain_of_words_or_decoded_words():
    words = assemble_words("VMOV v0, v1\nVMOV v1, c vb=s0 vc=s0")
    validate.chain(words)
    validate.chain([vector.decode_word(word) for word in words])
    with pytest.raises(EncodingError, match="stage 1: VMOV selects V in sa"):
        validate.chain([words[0], words[0]])
