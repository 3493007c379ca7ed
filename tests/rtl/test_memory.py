# amaranth: UnusedElaboratable=no
"""Memory ports and host window in gates: equal to the model in every cycle, AXI that pauses, planted faults found."""

import sys
from pathlib import Path

import pytest

from rtl import memory_port, memory_window, quantiser
from rtl.memory_issue import WriteIssue
from rtl.memory_port import MemoryPort
from rtl.memory_window import MemoryWindow
from sim import dram
from sim.runner import BenchError

sys.path.insert(0, str(Path(__file__).parent))
from memory_rig import MemoryRig  # noqa: E402
from memory_scenario import BYTES, NODES  # noqa: E402
from support.harness import run_bench  # noqa: E402
from support.top import LinkTop  # noqa: E402


def live(simulator="verilator", *, latency=20, pace=1, fault=None, sizes=None, **environment):
    sizes = sizes or {}
    rig = MemoryRig(
        nodes=NODES, memory_bytes=BYTES, dram={"latency": latency, "cycles_per_word": pace}, fault=fault, **sizes
    )
    return run_bench(LinkTop(rig), "bench_memory", name="memory_rig", simulator=simulator, latency=latency, pace=pace,
                     **sizes, **environment)  # fmt: skip


def hostile(simulator="verilator", *, fault=None, **environment):
    rig = MemoryRig(nodes=NODES, memory_bytes=BYTES, fault=fault)
    return run_bench(LinkTop(rig), "bench_memory_axi", name="memory_axi", simulator=simulator, **environment)


@pytest.mark.parametrize("latency, pace", [(1, 1), (20, 1)])
def test_ports_and_window_live_like_the_model(latency, pace):
    live(latency=latency, pace=pace, seeds="1,2,3,4,5,6,7,8")


def test_smallest_sizes_and_a_slow_memory():
    live(latency=5, pace=3, sizes={"queue_depth": 8, "write_slots": 8}, seeds="11,12,13,14")


def test_icarus_agrees():
    live("icarus", cycles=1500, length=30, host=6, seeds="1,2")


def test_bytes_and_rules_behind_hostile_memories():
    assert len(hostile().passed) == 6


@pytest.mark.parametrize("fault, rule", [("issue-crosses-page", "aw_page"), ("issue-early-last", "w_last")])
def test_the_rules_of_axi_are_watched(fault, rule):
    with pytest.raises(BenchError, match=rule):
        hostile("icarus", fault=fault, requests=1, tests=["bursts_at_the_end_of_a_page"])


@pytest.mark.slow
@pytest.mark.parametrize("latency, pace", [(1, 1), (20, 1), (64, 1), (2, 7)])
def test_many_lives(latency, pace):
    live(latency=latency, pace=pace, seeds=",".join(map(str, range(100, 180))))


FAULTS = [name for name in (*memory_port.FAULTS, *memory_window.FAULTS) if name not in quantiser.FAULTS]


@pytest.mark.parametrize("fault", [*FAULTS, "quantiser-layout-stuck"])
def test_every_planted_fault_is_found(fault):
    with pytest.raises(BenchError, match="failed: |not complete XML|no result file"):
        live("icarus", fault=fault, cycles=1600, length=50, host=10, seeds="2,1")


@pytest.mark.parametrize(
    "component, parameters, message",
    [
        (MemoryPort, {"memory_bytes": 0}, "memory_bytes must be a positive integer, not 0"),
        (MemoryPort, {"memory_bytes": 100}, "memory_bytes must be a multiple of 32, not 100"),
        (MemoryPort, {"write_slots": 1.5}, "write_slots must be a positive integer, not 1.5"),
        (
            MemoryPort,
            {"fault": "window-impatient"},
            "MemoryPort has no fault 'window-impatient'; there are: quantiser-",
        ),
        (MemoryWindow, {"memory_bytes": 33}, "memory_bytes must be a multiple of 32, not 33"),
        (MemoryWindow, {"fault": "x"}, "MemoryWindow has no fault 'x'"),
        (WriteIssue, {"fault": "x"}, "WriteIssue has no fault 'x'"),
    ],
)
def test_wrong_parameters_are_refused(component, parameters, message):
    sizes = {
        MemoryPort: {"memory_bytes": BYTES, "queue_depth": 64, "write_slots": 16},
        MemoryWindow: {"memory_bytes": BYTES},
    }
    with pytest.raises(TypeError, match=message):
        component(**sizes.get(component, {}) | parameters)


def test_an_image_for_the_simulated_memory_has_whole_words():
    assert dram.image([(64, bytes(range(32)))]) == "@2\n" + bytes(range(32))[::-1].hex() + "\n"
    for piece in ((8, bytes(32)), (32, bytes(31))):
        with pytest.raises(ValueError, match="whole words of 32 bytes"):
            dram.image([piece])
