# amaranth: UnusedElaboratable=no
"""The memory mover in gates: equal to the model in every cycle, AXI that pauses and fails, planted faults found."""

import sys
from pathlib import Path

import pytest

from rtl import mover_generate
from rtl.mover import FAULTS, MemoryMover
from rtl.mover_generate import Generator
from sim.runner import BenchError

sys.path.insert(0, str(Path(__file__).parent))
from mover_rig import MoverRig  # noqa: E402
from mover_scenario import BYTES  # noqa: E402
from support.harness import run_bench  # noqa: E402


def live(simulator="icarus", *, latency=20, pace=1, fault=None, **environment):
    rig = MoverRig(memory_bytes=BYTES, dram={"latency": latency, "cycles_per_word": pace}, fault=fault)
    environment |= {"latency": latency, "pace": pace}
    return run_bench(rig, "bench_mover", name="mover_rig", simulator=simulator, **environment)


def hostile(simulator="icarus", *, fault=None, **environment):
    rig = MoverRig(memory_bytes=BYTES, fault=fault)
    return run_bench(rig, "bench_mover_axi", name="mover_axi", simulator=simulator, **environment)


def generate(fault=None):
    return run_bench(Generator(fault=fault), "bench_mover_generate", name="mover_generate", simulator="icarus")


def test_generated_words():
    generate()


@pytest.mark.parametrize("latency, pace", [(90, 1), (5, 3)])
def test_it_lives_like_the_model(latency, pace):
    live(latency=latency, pace=pace, moves=16, seeds="1,2")


@pytest.mark.slow
@pytest.mark.parametrize("latency, pace", [(1, 1), (20, 1), (90, 1), (2, 7)])
def test_many_lives(latency, pace):
    live("verilator", latency=latency, pace=pace, moves=60, seeds=",".join(map(str, range(100, 140))))


def test_bytes_and_rules_behind_a_hostile_memory():
    assert len(hostile().passed) == 4


# Those of the generator are found beside it, the others by a life.
HOSTILE = {"mover-error-ignored": "failed: .*errors_of_the_memory", "mover-withdraws": "ar_moved"}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_planted_fault_is_found(fault):
    with pytest.raises(BenchError, match=HOSTILE.get(fault, "failed: ")):
        if fault in mover_generate.FAULTS:
            generate(fault)
        elif fault in HOSTILE:
            hostile(fault=fault, moves=5)
        else:
            live(latency=90, fault=fault, moves=4, seeds="1,2")


@pytest.mark.parametrize(
    "parameters, message",
    [
        ({"memory_bytes": 0}, "memory_bytes must be a positive integer, not 0"),
        ({"memory_bytes": 100}, "memory_bytes must be a multiple of 32, not 100"),
        ({"fault": "x"}, "MemoryMover has no fault 'x'; there are: walker-stride-unsigned"),
    ],
)
def test_wrong_parameters_are_refused(parameters, message):
    with pytest.raises(TypeError, match=message):
        MemoryMover(**{"memory_bytes": BYTES} | parameters)
