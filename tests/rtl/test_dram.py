# amaranth: UnusedElaboratable=no
"""The memory of simulations keeps the contract's times, and a burst that AXI forbids does not go unnoticed."""

import sys
from pathlib import Path

import pytest
from amaranth import Module
from amaranth.lib import wiring

from rtl.emit import verilog
from sim.dram import Dram
from sim.runner import BenchError

sys.path.insert(0, str(Path(__file__).parent))
from support.harness import run_bench  # noqa: E402


class Top(wiring.Component):
    def __init__(self, **parameters):
        self.dram = Dram(ports=1, memory_bytes=1 << 20, **parameters)
        super().__init__(dict(self.dram.signature.members.items()))

    def elaborate(self, platform):
        m = Module()
        m.submodules.dram = self.dram
        wiring.connect(m, wiring.flipped(self.axi[0]), self.dram.axi[0])
        wiring.connect(m, wiring.flipped(self.backdoor), self.dram.backdoor)
        return m


def run(simulator, latency=20, pace=1, **environment):
    top = Top(latency=latency, cycles_per_word=pace)
    return run_bench(top, "bench_dram", name="dram", simulator=simulator, latency=latency, pace=pace, **environment)


@pytest.mark.parametrize("simulator, latency, pace", [("verilator", 20, 1), ("icarus", 1, 1), ("icarus", 7, 3)])
def test_contents_and_times(simulator, latency, pace):
    assert len(run(simulator, latency, pace).passed) == 2


@pytest.mark.parametrize("address", ["0x0FE0", "0x100000"])
def test_a_wrong_burst_stops_the_simulation(address):
    with pytest.raises(BenchError, match="reads 2 words at 0*" + address[2:].lower()):
        run("icarus", bad=address, tests=["a_wrong_burst_stops_the_simulation"])


def test_equal_parameters_give_equal_text():
    texts = {verilog(Top(latency=20, cycles_per_word=1), name="dram") for _ in range(2)}
    assert len(texts) == 1 and "module Dram_1_32768_20_1(" in texts.pop()


@pytest.mark.parametrize("name", ["ports", "memory_bytes", "latency", "cycles_per_word"])
def test_wrong_parameters_are_refused(name):
    sizes = {"ports": 1, "memory_bytes": 64, "latency": 1, "cycles_per_word": 1}
    with pytest.raises(TypeError, match=f"Dram {name} must be a positive integer, not 0"):
        Dram(**sizes | {name: 0})
