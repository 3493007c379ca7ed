"""FP16 and FP32 patterns against Python's own binary16 and binary32."""

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kohakutpu.formats import fp16, fp32


@given(st.floats(-65504, 65504))
def test_fp16_rounds_as_struct_does(value):
    assert int(fp16.from_float(value)) == int.from_bytes(struct.pack("<e", value), "little")


@given(st.floats(width=32))
def test_fp32_keeps_a_binary32(value):
    if not math.isnan(value):
        assert int(fp32.from_float(value)) == int.from_bytes(struct.pack("<f", value), "little")


def test_fp16_round_trip_of_every_number():
    bits = np.arange(1 << 16).astype(np.uint16)
    numbers = bits[(bits & 0x7FFF) <= 0x7C00]
    assert (fp16.from_float(fp16.to_float(numbers)) == numbers).all()


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1))
def test_fp32_round_trip(patterns):
    bits = np.array([p for p in patterns if p & 0x7FFFFFFF <= 0x7F800000], dtype=np.uint32)
    assert (fp32.from_float(fp32.to_float(bits)) == bits).all()


def test_rounding_and_overflow():
    assert int(fp16.from_float(1 + 2**-11)) == 0x3C00  # a tie to even
    assert int(fp16.from_float(1 + 3 * 2**-11)) == 0x3C02
    assert int(fp16.from_float(65519.99)) == 0x7BFF
    assert int(fp16.from_float(65520)) == 0x7C00
    assert int(fp16.from_float(-(2**-25))) == 0x8000
    assert int(fp16.from_float(2**-24)) == 0x0001
    assert int(fp32.from_float(2.0**128)) == 0x7F800000
    assert int(fp32.from_float(-(2.0**-150))) == 0x80000000
    # one rounding: through binary32 this would be a tie and become 0x3C00
    assert int(fp16.from_float(1 + 2**-11 + 2**-40)) == 0x3C01


def test_the_wrong_type_is_refused():
    with pytest.raises(ValueError, match="FP16 patterns are uint16, got uint32"):
        fp16.to_float(np.zeros(2, np.uint32))
    with pytest.raises(ValueError, match="FP32 patterns are uint32, got uint16"):
        fp32.to_float(np.zeros(2, np.uint16))
