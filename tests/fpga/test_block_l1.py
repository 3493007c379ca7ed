"""The L1 for small boards does in every cycle what the usual one does."""

import random

import pytest
from amaranth import Module
from amaranth.lib import wiring
from amaranth.sim import Simulator

from fpga.block_l1 import BlockL1
from rtl.vector_memory import L1

WORDS = 64


class Both(wiring.Component):
    def __init__(self, kind):
        self.ones = [L1(words=WORDS), kind(words=WORDS)]
        super().__init__({})

    def elaborate(self, platform):
        m = Module()
        m.submodules += self.ones
        return m


class NoPassing(BlockL1):
    """Port A does not look at what is on the way."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        m.d.comb += self.a_data.eq(m.submodules.store.read_ports[0].data)
        return m


class BothWrite(BlockL1):
    """Port B's late write goes over port A's younger one."""

    def elaborate(self, platform):
        m = super().elaborate(platform)
        late = m.submodules.store.write_ports[1]
        m.d.comb += late.en.eq(1)
        return m


def differences(kind, seed, cycles=1200, places=5):
    """Cycles in which the two give different data, with few words so that ports meet often."""
    rig, found = Both(kind), []
    rng = random.Random(seed)

    async def bench(ctx):
        for cycle in range(cycles):
            a_write = rng.random() < 0.4
            values = {
                "a_at": rng.randrange(places), "a_write": a_write, "a_word": rng.getrandbits(256),
                "b_at": rng.randrange(places), "b_write": rng.random() < 0.6, "b_word": rng.getrandbits(256),
            }  # fmt: skip
            for one in rig.ones:
                for name, value in values.items():
                    ctx.set(getattr(one, name), value)
            await ctx.tick()
            # what port A reads while it writes is nobody's
            if not a_write and ctx.get(rig.ones[0].a_data) != ctx.get(rig.ones[1].a_data):
                found.append(cycle)

    simulator = Simulator(rig)
    simulator.add_clock(1e-6)
    simulator.add_testbench(bench)
    simulator.run()
    return found


@pytest.mark.parametrize("seed", [1, 2])
def test_both_give_the_same_words(seed):
    assert differences(BlockL1, seed) == []


@pytest.mark.parametrize("kind", [NoPassing, BothWrite])
def test_a_difference_is_seen(kind):
    assert differences(kind, 1)


def test_it_plants_no_faults():
    with pytest.raises(TypeError, match="BlockL1 plants no faults, and not a_wins"):
        BlockL1(words=64, a_wins=1)
