"""Bursts are framed by their descriptor's count, per sender and receiver."""

from kohakutpu.isa.flit import Flit, FlitType
from kohakutpu.isa.framing import Framing
from kohakutpu.isa.signals import CU_DATA


def _data(src, dst, payload=0, last=0):
    return Flit(dst, src, FlitType.CU_DATA, 0, last, 0, payload)


def test_interleaved_senders():
    framing = Framing()
    two, one = CU_DATA.encode(len=1), CU_DATA.encode(len=0)
    steps = [
        (_data(1, 9, two), True), (_data(2, 9, one), True), (_data(1, 9, two), False), (_data(2, 9), False),
        (_data(1, 8, one), True), (_data(1, 9), False), (_data(1, 9, one), True),
        (Flit(9, 1, FlitType.MEM_WR_DATA, 0, 0, 0, two), False),
    ]  # fmt: skip
    assert [framing.is_descriptor(flit) for flit, _ in steps] == [expected for _, expected in steps]
    assert framing.open_bursts() == {(1, 8): 1, (1, 9): 1}
