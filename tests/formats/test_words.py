"""Words as ints, arrays, bytes and lanes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohakutpu.formats import words

word = st.integers(0, 2**256 - 1)


@given(word)
def test_int_round_trip(value):
    array = words.from_int(value)
    assert array.dtype == np.uint32 and array.shape == (8,)
    assert words.to_int(array) == value
    assert words.to_bytes(array) == value.to_bytes(32, "little")


@given(st.lists(word, max_size=6))
def test_list_and_bytes_round_trip(values):
    array = words.from_ints(values)
    assert array.shape == (len(values), 8)
    assert words.to_ints(array) == values
    assert (words.from_bytes(words.to_bytes(array)) == array).all()


@given(st.lists(st.integers(0, 2**288 - 1), min_size=1, max_size=4))
def test_flits_are_nine_words(values):
    array = words.from_ints(values, 9)
    assert array.shape == (len(values), 9)
    assert words.to_ints(array) == values
    assert words.to_int(array[0]) == values[0]


def test_every_shape_is_little_endian():
    value = sum(byte << 8 * byte for byte in range(32))
    assert words.from_int(value)[1] == 0x07060504
    assert words.to_halves(words.from_int(value))[15] == 0x1F1E


@given(st.lists(word, min_size=1, max_size=4))
def test_halves_round_trip(values):
    array = words.from_ints(values)
    halves = words.to_halves(array)
    assert halves.shape == (len(values), 16)
    assert [int(h) for h in halves[0]] == [(values[0] >> 16 * i) & 0xFFFF for i in range(16)]
    assert (words.from_halves(halves) == array).all()


def test_a_strided_view_is_read_in_its_own_order():
    array = words.from_ints(range(6))
    assert words.to_ints(array[::2]) == [0, 2, 4]


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: words.from_int(2**256), "does not fit 256 bits"),
        (lambda: words.from_int(-1), "does not fit 256 bits"),
        (lambda: words.from_ints([0, 2**288], 9), "does not fit 288 bits"),
        (lambda: words.from_bytes(b"x" * 33), "33 bytes are not whole words of 32 bytes"),
        (lambda: words.to_bytes(np.zeros(8, np.int64)), r"expected uint32\[...,8\], got int64\[8\]"),
        (lambda: words.to_bytes(np.zeros((2, 9), np.uint32)), r"got uint32\[2, 9\]"),
        (lambda: words.to_halves(np.zeros(4, np.uint32)), r"got uint32\[4\]"),
        (lambda: words.to_int(np.uint32(3)), r"expected uint32\[...,k\]"),
        (lambda: words.from_halves(np.zeros(8, np.uint16)), r"expected uint16\[...,16\], got uint16\[8\]"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()
