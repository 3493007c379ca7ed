"""The layout mechanism itself: what a table, a value and a word are refused for."""

from enum import IntEnum

import numpy as np
import pytest

from kohakutpu.isa.fields import EncodingError, Field, Layout, field


class Colour(IntEnum):
    RED = 1
    BLUE = 3


def _even(values):
    """value is even."""
    return "value is odd" if values["value"] & 1 else None


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ([field("a", 7, 4, ""), field("b", 4, 0, "")], r"t\.b: bits \[4:0\] overlap"),
        ([Field("a", ((7, 4), (5, 2)), "")], r"t\.a: bits \[5:2\] overlap"),
        ([field("a", 8, 4, "")], r"t\.a: .* outside a 8-bit word"),
        ([field("a", 3, 4, "")], r"t\.a: bits \[3:4\] are not a range"),
        ([field("a", 0, -1, "")], r"t\.a: bits \[0:-1\] are not a range"),
        ([field("a", 1, 1, ""), field("a", 0, 0, "")], r"t: field 'a' is declared twice"),
        ([field("a", 1, 0, "", default=4)], r"t\.a: default 4 does not fit 2 bits"),
        ([field("a", 1, 0, "", default=2, signed=True)], r"t\.a: default 2 does not fit 2 bits"),
    ],
)
def test_a_wrong_table_is_refused(fields, complaint):
    with pytest.raises(EncodingError, match=complaint):
        Layout("t", 8, fields)


TABLE = Layout(
    "t",
    16,
    [
        field("op", 15, 14, "", default=2, fixed=True),
        field("colour", 13, 12, "", default=1, enum=Colour),
        field("shade", 11, 10, "", enum=Colour, open=True),
        field("step", 9, 7, "", signed=True),
        Field("value", ((1, 0), (6, 5)), "high piece at the bottom"),
    ],
    rules=[_even],
)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"value": 16}, r"t\.value: 16 does not fit 4 bits \(0\.\.15\)"),
        ({"value": -1}, r"t\.value: -1 does not fit 4 bits"),
        ({"step": 4}, r"t\.step: 4 does not fit 3 signed bits \(-4\.\.3\)"),
        ({"step": -5}, r"t\.step: -5 does not fit"),
        ({"value": 2.0}, r"t\.value: expected an integer, got 2\.0"),
        ({"value": None}, r"t\.value: expected an integer, got None"),
        ({"volume": 1}, r"t has no field 'volume'; it has op, colour, shade, step, value"),
        ({"op": 1}, r"t\.op: must be 2, not 1"),
        ({"colour": 2}, r"t\.colour: 2 is none of Colour \(1 RED, 3 BLUE\)"),
        ({"value": 3}, r"t: value is odd"),
    ],
)
def test_a_wrong_value_is_refused(values, complaint):
    with pytest.raises(EncodingError, match=complaint):
        TABLE.encode(**values)


def test_a_required_field_has_no_legal_default():
    table = Layout("t", 4, [field("colour", 3, 0, "", enum=Colour)])
    with pytest.raises(EncodingError, match=r"t\.colour: 0 is none of"):
        table.encode()
    assert table.encode(colour=Colour.BLUE) == 3


def test_pack_checks_widths_only():
    assert TABLE.pack(op=1, colour=2, value=3) == 0b01_10_00_000_11_000_00
    with pytest.raises(EncodingError, match=r"t\.value: 16"):
        TABLE.pack(value=16)


def test_pieces_defaults_and_signs_land_where_declared():
    assert TABLE.encode() == 0b10_01_00_000_00_000_00
    word = TABLE.encode(step=-2, value=0b1100, shade=2)
    assert word == 0b10_01_10_110_00_000_11
    assert TABLE.decode(word) == {"op": 2, "colour": 1, "shade": 2, "step": -2, "value": 12}
    assert TABLE.get(word, "step") == -2
    assert TABLE.reserved == 0b0000000_00_111_00
    assert TABLE.encode(value=np.int64(4), step=np.int8(-1)) == TABLE.encode(value=4, step=-1)


@pytest.mark.parametrize(
    ("word", "complaint"),
    [
        (1 << 16, "wider than 16 bits"),
        (-1, "wider than 16 bits"),
        (0b10_01_00_000_00_100_00, "reserved bits are set: 0x10"),
        (0b11_01_00_000_00_000_00, r"t\.op: must be 2, not 3"),
        (0b10_00_00_000_00_000_00, r"t\.colour: 0 is none of Colour"),
        (0b10_01_00_000_01_000_00, "value is odd"),
    ],
)
def test_check_refuses_what_encode_cannot_produce(word, complaint):
    with pytest.raises(EncodingError, match=complaint):
        TABLE.check(word)
    assert not TABLE.accepts(word)


def test_every_word_of_a_small_table_is_accepted_exactly_if_it_can_be_encoded():
    made = {
        TABLE.encode(colour=colour, shade=shade, step=step, value=value)
        for colour in Colour for shade in range(4) for step in range(-4, 4) for value in range(0, 16, 2)
    }  # fmt: skip
    assert {word for word in range(1 << 16) if TABLE.accepts(word)} == made
