"""Header positions, node bytes and peer lists."""

import pytest

from kohakutpu.isa.fields import EncodingError
from kohakutpu.isa.flit import HEADER, Flit, FlitType, node, pack_peers, unpack_peers, xy


def test_header_positions():
    flit = Flit(node(1, 2), node(3, 4), FlitType.CU_INST, 0xAB, 1, 0b101, 0x77)
    assert flit.to_int() == (0x1234_5AB << 260) | (1 << 259) | (0b101 << 256) | 0x77
    assert Flit.from_int(flit.to_int()) == flit
    assert HEADER.reserved == 0


def test_an_unallocated_type_is_carried_but_not_legal():
    flit = Flit(0, 0, 9, 0, 0, 0, 0)
    assert Flit.from_int(flit.to_int()) == flit
    with pytest.raises(EncodingError, match=r"flit\.type: 9 is none of FlitType"):
        HEADER.check(flit.to_int())


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"dst": 0x100}, r"flit\.dst_y: 16"),
        ({"txn": 256}, r"flit\.txn: 256 does not fit 8 bits"),
        ({"payload": 1 << 256}, r"flit\.payload: .* does not fit 256 bits"),
        ({"rsvd": 8}, r"flit\.rsvd: 8 does not fit 3 bits"),
    ],
)
def test_what_does_not_fit_is_refused(change, complaint):
    with pytest.raises(EncodingError, match=complaint):
        Flit(0, 0, 0, 0, 0, 0, 0)._replace(**change).to_int()


def test_node_bytes():
    assert node(2, 1) == 0x12
    assert xy(0x12) == (2, 1)
    with pytest.raises(EncodingError, match=r"coordinate \(16,0\) does not fit 4 bits"):
        node(16, 0)


def test_peers():
    assert pack_peers([0x12, 0x21]) == {"peers": 0x2112, "npeer": 2}
    assert unpack_peers(0x332112, 2) == (0x12, 0x21)
    assert pack_peers([]) == {"peers": 0, "npeer": 0}
    with pytest.raises(EncodingError, match="4 nodes listed, 3 fit"):
        pack_peers([1, 2, 3, 4])
    with pytest.raises(EncodingError, match="256 is not a packed node byte"):
        pack_peers([256])
