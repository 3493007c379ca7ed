"""Signals, control registers and CU_DATA descriptors (spec: payload layouts, endpoint base)."""

import pytest

from kohakutpu.isa.fields import EncodingError
from kohakutpu.isa.signals import (
    CLUSTER_DEBUG, CU_CAPS, CU_COUNTERS, CU_CTRL_REPLY, CU_CTRL_REQUEST, CU_DATA, CU_SIGNAL, CU_STATUS, VECTOR_DEBUG,
    ControlIndex, ControlOp, SignalCode, UnitType,
)  # fmt: skip


def test_positions():
    assert CU_SIGNAL.encode(code=SignalCode.DATA_RECEIVED, arg=0x89ABCDEF) == 0x03_89ABCDEF << 216
    assert CU_CTRL_REQUEST.encode(op=ControlOp.WRITE, index=0xE1, value=0x55) == 0x01_E1 << 240 | 0x55 << 176
    assert CU_CTRL_REPLY.encode(index=ControlIndex.COUNTERS, value=1) == 0x02_02 << 240 | 1 << 176
    assert CU_CAPS.encode(type=UnitType.VECTOR, version=4, buffers=1, inst_depth=512) == 0x5643_04_1_0200_00000
    assert CU_STATUS.encode(busy=1, inst_space=32) == 1 << 63 | 32 << 32
    assert CU_COUNTERS.encode(retired=2, busy_cycles=3) == 2 << 32 | 3
    assert CLUSTER_DEBUG.encode(array_cycles=7, fill_cycles=9) == 7 << 32 | 9
    assert VECTOR_DEBUG.encode(kernel_cycles=5) == 5
    descriptor = CU_DATA.encode(buf=2, offset=0x1234, len=7, flags=1, ack_y=4, ack_x=1)
    assert descriptor == 0x02_1234_07_01_41 << 208


def test_unit_codes_are_two_characters():
    assert UnitType.CLUSTER.to_bytes(2) == b"MG"
    assert UnitType.VECTOR.to_bytes(2) == b"VC"


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: CU_SIGNAL.encode(code=5), "code 0x05 is reserved"),
        (lambda: CU_SIGNAL.encode(code=0x3F), "code 0x3f is reserved"),
        (lambda: CU_SIGNAL.encode(arg=1 << 32), r"CU_SIGNAL\.arg: 4294967296 does not fit 32 bits"),
        (lambda: CU_SIGNAL.check(1), "reserved bits are set"),
        (lambda: CU_CTRL_REQUEST.encode(op=3), r"op: 3 is none of ControlOp"),
        (lambda: CU_CTRL_REPLY.encode(op=0), "op: must be 2, not 0"),
        (lambda: CU_DATA.encode(len=256), r"CU_DATA descriptor\.len: 256 does not fit 8 bits"),
        (lambda: CU_DATA.check(1 << 207), "reserved bits are set"),
    ],
)
def test_refusals(make, complaint):
    with pytest.raises(EncodingError, match=complaint):
        make()


def test_unit_defined_codes_are_legal():
    assert CU_SIGNAL.get(CU_SIGNAL.encode(code=0x40), "code") == 0x40
