"""Pieces of pipelined arithmetic."""

from __future__ import annotations

from amaranth import Cat, Const, Module, Mux, Signal, Value


def register(m: Module, value: Value, name: str, cycles: int = 1) -> Value:
    """`value`, `cycles` cycles later."""
    for step in range(cycles):
        later = Signal(value.shape(), name=name if cycles == 1 else f"{name}_{step + 1}")
        m.d.sync += later.eq(value)
        value = later
    return value


def leading_one(value: Value) -> Value:
    """Index of the highest set bit of `value`, 0 where none is set: a tree, logarithmic in the width of `value`."""
    width = len(value)
    if width == 1:
        return Const(0, 0)
    half = 1 << ((width - 1).bit_length() - 1)
    low, high = value[:half], value[half:]
    return Cat(Mux(high.any(), leading_one(high), leading_one(low))[: half.bit_length() - 1], high.any())
