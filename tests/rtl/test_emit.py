# amaranth: UnusedElaboratable=no
"""Verilog emission: one module for each distinct block, zeros as loops, equal text for equal components."""

from pathlib import Path

import pytest
from amaranth import Module, Signal
from amaranth.back import verilog as backend
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from rtl import emit
from rtl.emit import shared, verilog
from rtl.fifo import Fifo
from sim import runner


class Adder(wiring.Component):
    """No clock: a shared block without one."""

    def __init__(self, *, by: int):
        self.by = by
        super().__init__({"a": In(8), "b": Out(8)})

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.b.eq(self.a + self.by)
        return m


class Pair(wiring.Component):
    """Two FIFOs in a row with an adder behind each."""

    def __init__(self, *, depths: tuple[int, int] = (4, 4), by: tuple[int, int] = (1, 1)):
        self.depths, self.by = depths, by
        super().__init__({"push": In(1), "data": In(8), "result": Out(8), "valid": Out(1)})

    def elaborate(self, platform):
        m = Module()
        value, valid = self.data, self.push
        for index, (depth, by) in enumerate(zip(self.depths, self.by)):
            m.submodules[f"fifo{index}"] = fifo = shared(Fifo, width=8, depth=depth)
            m.submodules[f"adder{index}"] = adder = shared(Adder, by=by)
            m.d.comb += [fifo.push.eq(valid), fifo.push_data.eq(value), fifo.pop.eq(1), adder.a.eq(fifo.head)]
            value, valid = adder.b, fifo.valid
        m.d.comb += [self.result.eq(value), self.valid.eq(valid)]
        return m


class Deep(wiring.Component):
    """A shared block inside a shared block."""

    def __init__(self):
        super().__init__({"push": In(1), "data": In(8), "result": Out(8)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.pair = pair = shared(Pair)
        m.d.comb += [pair.push.eq(self.push), pair.data.eq(self.data), self.result.eq(pair.result)]
        return m


def modules(text):
    return [line.split("(")[0].split()[1] for line in text.splitlines() if line.startswith("module ")]


def test_a_block_is_emitted_once():
    assert modules(verilog(Pair(), name="pair")) == ["Fifo_depth_4_width_8", "Adder_by_1", "pair"]


def test_each_set_of_parameters_is_a_module():
    names = modules(verilog(Pair(depths=(4, 5), by=(1, 2)), name="pair"))
    assert sorted(names) == ["Adder_by_1", "Adder_by_2", "Fifo_depth_4_width_8", "Fifo_depth_5_width_8", "pair"]


def test_shared_blocks_nest():
    names = modules(verilog(Deep(), name="deep"))
    assert names.count("Fifo_depth_4_width_8") == 1 and names[-1] == "deep" and len(names) == 4


def test_equal_components_give_equal_text():
    assert verilog(Deep(), name="deep") == verilog(Deep(), name="deep")
    assert verilog(Deep(), name="deep") != verilog(Deep(), name="other")


def test_a_shared_block_shows_the_component_s_attributes():
    block = shared(Fifo, width=8, depth=4)
    assert (block.width, block.depth) == (8, 4)
    with pytest.raises(AttributeError, match="Fifo has no attribute '_depth'"):
        block._depth


def test_bad_parameters_of_a_shared_block_are_refused_at_once():
    with pytest.raises(TypeError, match="Fifo depth must be a positive integer, not 0"):
        shared(Fifo, width=8, depth=0)


def test_another_back_end_is_refused_by_name():
    with pytest.raises(RuntimeError, match="is a shared block: emit its parent with rtl.emit.verilog"):
        backend.convert(Pair(), name="pair")


def test_a_top_named_like_a_shared_block_is_refused():
    with pytest.raises(ValueError, match="the top module Adder_by_1 has the name of a shared block"):
        verilog(Pair(), name="Adder_by_1")


def test_two_blocks_of_one_name_are_refused(monkeypatch):
    block = emit._block(Adder, (("by", 1),))
    other = block._replace(text="module Adder_by_1(); endmodule")
    original = emit._block

    def confused(kind, parameters):
        return other if parameters == (("by", 2),) else original(kind, parameters)

    monkeypatch.setattr(emit, "_block", confused)
    with pytest.raises(ValueError, match="two shared blocks are named Adder_by_1"):
        verilog(Pair(by=(1, 2)), name="pair")


def test_zeros_of_a_memory_are_a_loop():
    text = verilog(Fifo(width=288, depth=512), name="fifo")
    assert "for (i = 0; i < 512; i = i + 1) store[i] = 288'h" in text and len(text) < 10_000


BENCH = """
import cocotb
from cocotb.clock import Clock
from cocotb.triggers import FallingEdge

@cocotb.test()
async def passes_through(dut):
    cocotb.start_soon(Clock(dut.clk, 2, "ns").start())
    dut.rst.value, dut.push.value = 1, 0
    for _ in range(3):
        await FallingEdge(dut.clk)
    dut.rst.value, dut.push.value, dut.data.value = 0, 1, 40
    await FallingEdge(dut.clk)
    dut.push.value = 0
    await FallingEdge(dut.clk)
    assert int(dut.valid.value) == 1 and int(dut.result.value) == 43
"""


@pytest.mark.parametrize("simulator", runner.SIMULATORS)
def test_shared_blocks_work_in_a_simulator(simulator, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "BUILD", tmp_path)
    (tmp_path / "bench_emit.py").write_text(BENCH)
    folder = runner.build(verilog(Pair(by=(1, 2)), name="pair"), top="pair", simulator=simulator)
    runner.run(folder, top="pair", simulator=simulator, module="bench_emit", search=[Path(tmp_path)])


class Still(wiring.Component):
    """Combinational logic that no change of an input or register ever triggers."""

    def __init__(self):
        super().__init__({"result": Out(4)})

    def elaborate(self, platform):
        m = Module()
        state = Signal(2)
        with m.If(state == 0):
            m.d.comb += self.result.eq(9)
        m.d.sync += state.eq(state)
        return m


STILL = """
import cocotb
from cocotb.triggers import Timer

@cocotb.test()
async def is_defined(dut):
    dut.clk.value = dut.rst.value = 0
    await Timer(3, "ns")
    assert int(dut.result.value) == 9
"""


@pytest.mark.parametrize("simulator", runner.SIMULATORS)
def test_logic_is_evaluated_at_time_0(simulator, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "BUILD", tmp_path)
    (tmp_path / "bench_still.py").write_text(STILL)
    folder = runner.build(verilog(Still(), name="still"), top="still", simulator=simulator)
    runner.run(folder, top="still", simulator=simulator, module="bench_still", search=[Path(tmp_path)])


def test_time_0_needs_its_trigger(tmp_path, monkeypatch):
    """Without it Icarus never runs the block, and the bench above fails."""
    monkeypatch.setattr(runner, "BUILD", tmp_path)
    monkeypatch.setattr(emit, "_AFTER_ALL", r"  reg \1 = 0;")
    (tmp_path / "bench_still.py").write_text(STILL)
    folder = runner.build(verilog(Still(), name="still"), top="still", simulator="icarus")
    with pytest.raises(runner.BenchError, match="failed: is_defined"):
        runner.run(folder, top="still", simulator="icarus", module="bench_still", search=[Path(tmp_path)])
