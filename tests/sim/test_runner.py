"""The runner against designs and benches that go wrong in every way that stock cocotb lets pass."""

import textwrap

import pytest
from pywellen import Waveform

from sim import runner, toolchain
from sim.runner import BenchError
from sim.toolchain import ToolchainError

COUNTER = """
module counter(input clk, input rst, output reg [7:0] count);
  always @(posedge clk) count <= rst ? 8'd0 : count + 8'd1;
endmodule
"""
HEADER = """
import cocotb
from cocotb.clock import Clock
from cocotb.triggers import RisingEdge

async def counted(dut, cycles):
    dut.rst.value = 1
    cocotb.start_soon(Clock(dut.clk, 2, "ns").start())
    for _ in range(2):
        await RisingEdge(dut.clk)
    dut.rst.value = 0
    for _ in range(cycles + 1):
        await RisingEdge(dut.clk)
    return int(dut.count.value)
"""


@pytest.fixture(params=runner.SIMULATORS, scope="module")
def counter(request, tmp_path_factory):
    """(folder, simulator) of the built counter, in a build folder of its own."""
    before = runner.BUILD
    runner.BUILD = tmp_path_factory.mktemp("build")
    yield runner.build(COUNTER, top="counter", simulator=request.param), request.param
    runner.BUILD = before


@pytest.fixture
def bench(counter, tmp_path):
    """run(source, **options): the verdict of a bench module given as text."""
    folder, simulator = counter

    def run(source, **options):
        name = f"bench_{abs(hash((source, str(tmp_path))))}"
        (tmp_path / f"{name}.py").write_text(HEADER + textwrap.dedent(source))
        return runner.run(folder, top="counter", simulator=simulator, module=name, search=[tmp_path], **options)

    return run


GOOD = """
@cocotb.test()
async def counts(dut):
    assert await counted(dut, 10) == 10
"""


def test_a_right_bench_passes(bench):
    assert bench(GOOD, expected=["counts"], seed=1).passed == ["counts"]


@pytest.mark.parametrize(
    "source, options, reason",
    [
        ("@cocotb.test()\nasync def counts(dut):\n    assert await counted(dut, 10) == 11\n", {}, "failed: counts"),
        ("", {}, "no test|no result|ended badly"),
        ("@cocotb.test(skip=True)\nasync def counts(dut):\n    pass\n", {}, "no test"),
        (GOOD, {"expected": ["misspelt"]}, "no result|no test|ended badly|did not run"),
        ("import os\n@cocotb.test()\nasync def counts(dut):\n    os._exit(0)\n", {}, "no result file"),
        ("raise ImportError('gone')\n", {}, "no result|ended badly|no test"),
    ],
    ids=["wrong", "empty", "all-skipped", "filter-matches-nothing", "killed", "does-not-import"],
)
def test_a_bench_without_a_good_verdict_fails(bench, source, options, reason):
    with pytest.raises(BenchError, match=reason):
        bench(source, seed=1, **options)


def test_a_seed_repeats_a_run(bench, counter):
    source = """
    import random
    @cocotb.test()
    async def counts(dut):
        print("drew", random.getrandbits(64), flush=True)
        await counted(dut, 1)
    """
    drawn = []
    for seed in (7, 7, 8):
        bench(source, seed=seed, name="seeded")
        log = (counter[0] / "seeded.log").read_text()
        drawn.append([line for line in log.splitlines() if "drew" in line])
    assert drawn[0] and drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize("window", [(), (21_000, 25_999)], ids=["all", "window"])
def test_waves_are_of_the_whole_run_or_of_a_window(counter, tmp_path, window):
    """The counter's clock ticks every 2,000 ps; Icarus notes values of time 0, too, and X outside of the window."""
    (tmp_path / "bench_waves.py").write_text(HEADER + GOOD.replace("10", "100"))
    folder = runner.build(COUNTER, top="counter", simulator=counter[1], waves=True)
    path = tmp_path / "waves.fst"
    runner.run(
        folder, top="counter", simulator=counter[1], module="bench_waves", search=[tmp_path], seed=1, waves=True,
        wave_file=path,
        plusargs=[f"+{name}={time}" for name, time in zip(("waves_from", "waves_to"), window)],
    )  # fmt: skip
    (clk,) = [var for var in Waveform(str(path)).all_vars() if var.full_name == "counter.clk"]
    times = [time for time, value in clk.signal if isinstance(value, int) and time]
    first, last = window or (1_000, 204_000)
    assert times[0] in range(first, first + 1001) and times[-1] in range(last - 1001, last + 1001)
    assert len(times) == pytest.approx((last - first) / 1000, abs=2)


def test_verilog_that_does_not_compile_is_reported(counter):
    with pytest.raises(BenchError, match="could not compile broken"):
        runner.build("module broken(input clk); wire x = ; endmodule", top="broken", simulator=counter[1])


def test_a_build_is_taken_from_the_cache_and_a_change_is_not(counter):
    folder, simulator = counter
    assert runner.build(COUNTER, top="counter", simulator=simulator) == folder
    changed = runner.build(COUNTER.replace("8'd1", "8'd2"), top="counter", simulator=simulator)
    assert changed != folder


def test_an_unknown_simulator_is_refused():
    with pytest.raises(ToolchainError, match="expected one of verilator, icarus"):
        runner.build(COUNTER, top="counter", simulator="questa")


def test_a_result_file_cut_short_is_refused(tmp_path):
    (tmp_path / "r.xml").write_text("<testsuites><testsuite><testcase name='a'")
    with pytest.raises(BenchError, match="not complete XML"):
        runner.read_results(tmp_path / "r.xml")
    with pytest.raises(BenchError, match="no result file"):
        runner.read_results(tmp_path / "absent.xml")


@pytest.mark.gates
def test_waves_without_the_headers_are_refused(tmp_path, monkeypatch):
    """Verilator's FST writer includes headers that a machine may lack: it is said before anything is compiled."""
    monkeypatch.setattr(runner, "BUILD", tmp_path)
    monkeypatch.setattr(toolchain, "WAVE_HEADERS", ("stddef.h", "no_such_header.h"))
    with pytest.raises(ToolchainError, match="the compiler does not find no_such_header.h: `apt-get install"):
        runner.build(COUNTER, top="counter", simulator="verilator", waves=True)
    monkeypatch.setattr(toolchain, "WAVE_HEADERS", ("stddef.h",))
    toolchain.require_wave_headers()
