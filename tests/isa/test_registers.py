"""The register map: offsets, overlaps, look-up and the words of a flit (spec: register map)."""

import pytest

from kohakutpu.isa import registers
from kohakutpu.isa.fields import EncodingError
from kohakutpu.isa.flit import node
from kohakutpu.isa.registers import REGISTER_BYTES, REGISTERS, STAGE, WINDOW, Access, find, from_words, to_words

OFFSETS = {
    "CTRL": 0x0, "STATUS": 0x8, "CAPS": 0x10, "IRQ_STAT": 0x18, "IRQ_EN": 0x20, "PROG_DST": 0x40, "PROG_LEN": 0x48,
    "PROG_KICK": 0x50, "PROG_STAT": 0x58, "PROG_CRED": 0x60, "PROG_BASE": 0x68, "SIG_DONE": 0x70, "AUX_STAT": 0x78,
    "AUX_STATW": 0x80, "TX_FLIT": 0x100, "TX_KICK": 0x140, "TX_STATUS": 0x148, "RX_FLIT": 0x180, "RX_POP": 0x1C0,
    "RX_STATUS": 0x1C8, "AUX_CFG": 0x800, "NODE_STATUS": 0x1000, "STAGE": 0x2000,
}  # fmt: skip


def test_offsets():
    assert {item.name: item.offset for item in REGISTERS} == OFFSETS


def test_no_two_registers_share_an_offset():
    used = [item.at(i) for item in REGISTERS for i in range(item.count)]
    assert len(set(used)) == len(used)
    assert max(used) < WINDOW
    assert all(offset % REGISTER_BYTES == 0 for offset in used)


def test_find_inverts_at():
    slots = STAGE.count // registers.FLIT_WORDS
    for item in REGISTERS:
        for i in range(item.count):
            assert find(item.at(i), slots) == (item, i)
            assert find(item.at(i) + 7 + WINDOW, slots) == (item, i)


def test_staging_ends_after_its_slots():
    assert registers.stage_offset(127, 4) == 0x33F8
    assert find(0x33F8) == (STAGE, 639)
    assert find(0x3400) is None
    assert find(0x3400, staging_flits=129) == (STAGE, 640)


@pytest.mark.parametrize("offset", [0x28, 0x128, 0x1A8, 0x900, 0x1800])
def test_holes(offset):
    assert find(offset) is None


@pytest.mark.parametrize(
    ("register", "name", "high", "low"),
    [
        ("STATUS", "busy", 0, 0), ("STATUS", "error", 1, 1), ("STATUS", "mesh_ready", 2, 2),
        ("PROG_DST", "x", 3, 0), ("PROG_DST", "y", 7, 4), ("PROG_LEN", "flits", 15, 0), ("PROG_CRED", "credit", 15, 0),
        ("PROG_STAT", "run", 0, 0), ("PROG_STAT", "left", 16, 1), ("PROG_STAT", "credit", 32, 17),
        ("PROG_BASE", "slot", 15, 0), ("SIG_DONE", "count", 15, 0),
        ("AUX_STAT", "moves", 63, 40), ("AUX_STAT", "reads", 39, 24), ("AUX_STAT", "writes", 23, 8),
        ("AUX_STAT", "fault", 7, 4), ("AUX_STAT", "busy", 0, 0), ("TX_STATUS", "full", 16, 16),
        ("RX_STATUS", "empty", 16, 16), ("RX_STATUS", "overflow", 17, 17),
        ("NODE_STATUS", "code", 63, 56), ("NODE_STATUS", "arg", 55, 24), ("NODE_STATUS", "count", 23, 8),
        ("NODE_STATUS", "valid", 0, 0),
    ],
)  # fmt: skip
def test_positions(register, name, high, low):
    assert registers.BY_NAME[register].layout.fields[name].mask == (2 << high) - (1 << low)


@pytest.mark.parametrize(
    ("offset", "name", "high", "low"),
    [
        (0x00, "mode", 2, 0), (0x00, "width", 4, 3), (0x00, "go", 16, 16), (0x00, "coalesce", 11, 11),
        (0x00, "burst", 15, 13), (0x10, "walker", 0, 0), (0x10, "base", 43, 4), (0x10, "dims", 46, 44),
        (0x18, "walker", 0, 0), (0x18, "dim", 3, 1), (0x18, "count", 19, 4), (0x18, "stride", 51, 20),
        (0x20, "axis", 1, 0), (0x20, "step", 17, 2), (0x28, "walker", 0, 0), (0x28, "axis", 1, 1),
        (0x28, "base", 17, 2), (0x28, "extent", 33, 18), (0x30, "addr", 39, 0), (0x30, "count", 55, 40),
        (0x38, "seed", 63, 0), (0x40, "value", 31, 0), (0x50, "pitch", 31, 0), (0x50, "words", 47, 32),
        (0x80, "enable", 0, 0), (0x80, "clear_doorbells", 1, 1), (0x80, "clear_faults", 2, 2), (0x88, "mesh", 1, 0),
        (0x90, "mesh", 1, 0), (0x90, "tag", 15, 8),
    ],
)  # fmt: skip
def test_positions_behind_the_aux_window(offset, name, high, low):
    assert registers.AUX[offset].fields[name].mask == (2 << high) - (1 << low)


def test_fields():
    assert registers.CAPS.layout.encode(grid_lo=1, grid_hi=2) == 0x02_01_04_0120
    assert registers.PROG_STAT.layout.decode(0b101 << 17 | 6 << 1 | 1) == {"credit": 5, "left": 6, "run": 1}
    assert registers.PROG_DST.layout.encode(x=2, y=1) == node(2, 1)
    assert registers.NODE_STATUS.at(node(1, 0)) == 0x1008
    status = registers.NODE_STATUS.layout.encode(code=3, arg=0x11, count=2, valid=1)
    assert status == 3 << 56 | 0x11 << 24 | 2 << 8 | 1
    assert registers.RX_STATUS.layout.encode(empty=1) == 1 << 16
    assert registers.AUX_STAT.layout.encode(moves=1, reads=2, writes=3, fault=6, busy=1) == (
        1 << 40 | 2 << 24 | 3 << 8 | 6 << 4 | 1
    )
    assert registers.SIG_DONE.access is Access.RC


def test_mover():
    assert registers.aux_offset(0x50) == 0x0850
    assert registers.aux_offset(0x90) == 0x0890
    assert registers.MV_CONTROL.encode(go=1, width=1, coalesce=1, burst=3) == 1 << 16 | 0x68 << 8 | 1 << 3
    assert registers.MV_WALKER.encode(walker=1, base=0x2000, dims=2) == 2 << 44 | 0x2000 << 4 | 1
    assert registers.MV_DIM.encode(dim=1, count=4, stride=-128) == (-128 & 0xFFFFFFFF) << 20 | 4 << 4 | 1 << 1
    with pytest.raises(EncodingError, match=r"MV_CONTROL\.mode: 5 is none of MoverMode"):
        registers.MV_CONTROL.encode(mode=5)


def test_flit_words():
    flit = 0x11223344 << 256 | 5 << 192 | 4 << 128 | 3 << 64 | 2
    assert to_words(flit) == (2, 3, 4, 5, 0x11223344)
    assert from_words(to_words(flit)) == flit
    assert from_words([2, 3, 4, 5, 0xFFFFFFFF_11223344]) == flit


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: to_words(1 << 288), "wider than a 288-bit flit"),
        (lambda: from_words([1, 2, 3, 4]), "a flit takes 5 words"),
        (lambda: from_words([1 << 64, 0, 0, 0, 0]), "a flit takes 5 words of 64 bits"),
        (lambda: registers.TX_FLIT.at(5), r"TX_FLIT\[5\]: the array has 5 elements"),
        (lambda: registers.stage_offset(0, 5), "word 5 of a flit"),
    ],
)
def test_refusals(make, complaint):
    with pytest.raises(EncodingError, match=complaint):
        make()
