"""Memory request and address layouts (spec: payload layouts)."""

import pytest

from kohakutpu.isa.fields import EncodingError
from kohakutpu.isa.flit import pack_peers
from kohakutpu.isa.memory import APERTURE_ADDRESS, DRAM_ADDRESS, MEM_ACK, MEM_REQ, MEM_WR, Aperture, decode_request


def test_the_request_a_fill_sends():
    """Spec: FILL behaviour. STREAM is bit 6, BLAYOUT bit 5, QUANT bit 4 of the flags at [207:200]."""
    payload = MEM_REQ.encode(
        addr=0x12_3456_7800, len=3, stream=1, blayout=1, quant=1, count=16, **pack_peers([0x11, 0x12])
    )
    assert payload == 0x12_3456_7800 << 216 | 3 << 208 | 0x70 << 200 | 16 << 192 | 0x1211 << 168 | 2 << 166
    request = decode_request(payload)
    assert (request.addr, request.len, request.stream, request.count, request.npeer) == (0x12_3456_7800, 3, 1, 16, 2)
    assert request.entry_words == 0


@pytest.mark.parametrize(
    ("name", "high", "low"),
    [
        ("addr", 255, 216), ("len", 215, 208), ("stream", 206, 206), ("blayout", 205, 205), ("quant", 204, 204),
        ("flush", 202, 202), ("invalidate", 201, 201), ("cacheable", 200, 200), ("count", 199, 192),
        ("peers", 191, 168), ("npeer", 167, 166), ("entry_words", 165, 158),
    ],
)  # fmt: skip
def test_positions(name, high, low):
    assert MEM_REQ.encode(**{name: (2 << high - low) - 1}) == (2 << high) - (1 << low)


def test_a_write_descriptor_is_a_request_with_two_fields():
    assert MEM_WR.encode(addr=0x8000, len=7) == MEM_REQ.encode(addr=0x8000, len=7) == 0x8000 << 216 | 7 << 208


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: MEM_WR.encode(len=8), "len = 8: a write has at most 8 beats"),
        (lambda: MEM_WR.encode(count=1), "MEM_WR_REQ has no field 'count'"),
        (lambda: MEM_REQ.encode(addr=1 << 40), r"MEM_RD_REQ\.addr: .* does not fit 40 bits"),
        (lambda: MEM_REQ.check(1 << 203), "reserved bits are set"),
        (lambda: MEM_ACK.check(1), "MEM_WR_ACK: reserved bits are set: 0x1"),
        (lambda: DRAM_ADDRESS.check(1 << 38), "reserved bits are set"),
        (lambda: DRAM_ADDRESS.check(1 << 39), "special: must be 0, not 1"),
        (lambda: APERTURE_ADDRESS.check(0), "special: must be 1, not 0"),
    ],
)
def test_refusals(make, complaint):
    with pytest.raises(EncodingError, match=complaint):
        make()


def test_addresses():
    assert DRAM_ADDRESS.encode(mesh=2, local=0x40) == 0x20_0000_0040
    assert APERTURE_ADDRESS.encode(mesh=1, aperture=Aperture.STAGING) == 0x90_0000_0000
    assert APERTURE_ADDRESS.encode(aperture=Aperture.UPLOAD_B, local=0x100) == 0x85_0000_0100
