"""FIFOs of several depths that are pushed and popped together."""

from __future__ import annotations

from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from rtl.fifo import Fifo

DEPTHS = (1, 2, 3, 4, 7, 16, 32, 33)
WIDTH = 24


class FifoBank(wiring.Component):
    """Members: `push`, `push_data`, `pop`; for each depth D `head_D`, `valid_D`, `full_D`, `level_D`."""

    def __init__(self, *, fault: str | None = None):
        self.fault = fault
        members = {"push": In(1), "push_data": In(WIDTH), "pop": In(1)}
        for depth in DEPTHS:
            members |= {
                f"head_{depth}": Out(WIDTH), f"valid_{depth}": Out(1), f"full_{depth}": Out(1),
                f"level_{depth}": Out(range(depth + 1)),
            }  # fmt: skip
        super().__init__(members)

    def elaborate(self, platform):
        m = Module()
        for depth in DEPTHS:
            m.submodules[f"fifo_{depth}"] = fifo = Fifo(width=WIDTH, depth=depth, fault=self.fault)
            m.d.comb += [fifo.push.eq(self.push), fifo.push_data.eq(self.push_data), fifo.pop.eq(self.pop)]
            for name in ("head", "valid", "full", "level"):
                m.d.comb += getattr(self, f"{name}_{depth}").eq(getattr(fifo, name))
        return m
