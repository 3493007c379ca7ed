# amaranth: UnusedElaboratable=no
"""The vector core in gates: equal to the model in every cycle of random lives, and every planted fault found."""

import sys
from pathlib import Path

import pytest
from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from kohakutpu.isa.flit import xy
from rtl.link import LinkSignature
from rtl.vector import ERRATA, FAULTS, VectorCore
from sim.port_checker import Checked
from sim.runner import BenchError

sys.path.insert(0, str(Path(__file__).parent))
from support.harness import run_bench  # noqa: E402
from support.top import LinkTop  # noqa: E402
from vector_scenario import AT, INST_DEPTH, PORT, RECV_DEPTH  # noqa: E402

SAMPLE = Path(__file__).parents[1] / "data" / "golden" / "vector_core.npz"


class Planted(wiring.Component):
    """A core whose planted fault is chosen while it runs: all of them in one build."""

    def __init__(self, **parameters):
        self.parameters = parameters
        super().__init__(
            {"in_link": In(LinkSignature()), "out_link": Out(LinkSignature()), "planted": In(range(len(FAULTS) + 1))}
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.core = core = VectorCore(**self.parameters, fault=self.planted)
        wiring.connect(m, wiring.flipped(self.in_link), core.in_link)
        wiring.connect(m, wiring.flipped(self.out_link), core.out_link)
        return m


def run(bench, test, simulator="verilator", planted=False, l1_words=512, errata=(), model_errata=None, **environment):
    """One test of a bench module; the build with planted faults has the published exp2, the other `errata`, which the
    model has too unless `model_errata` says otherwise."""
    x, y = xy(AT)
    sizes = {"x": x, "y": y, "port": xy(PORT), "l1_words": l1_words, "inst_depth": INST_DEPTH, "recv_depth": RECV_DEPTH}
    errata = ["exp2-wrap"] if planted else errata
    core = Planted(**sizes, errata=errata) if planted else VectorCore(**sizes, errata=errata)
    top = LinkTop(Checked(core, node=AT))
    environment |= {"l1_words": l1_words, "errata": " ".join(sorted(errata if model_errata is None else model_errata))}
    return run_bench(top, bench, name="vector_core", simulator=simulator, tests=[test], **environment)


def test_random_lives():
    run("bench_vector", "lives_like_the_model", seeds="1,2,3,4,5,6,7,8,9,10,11,12")


def test_random_lives_on_icarus():
    run("bench_vector", "lives_like_the_model", simulator="icarus", kernels=2, seeds="3")


def test_every_source_slot():
    """No slot is undemonstrated: the compiler reads constants and sums from any."""
    run("bench_vector", "every_source_slot")


@pytest.mark.parametrize("errata", [(), ERRATA], ids=["ours", "published"])
def test_bursts_that_are_refused(errata):
    run("bench_vector", "bursts_that_are_refused", simulator="icarus", errata=errata)


@pytest.mark.parametrize("erratum", ["reject-silent", "caps-buffers"])
def test_an_erratum_on_one_side_only_is_seen(erratum):
    with pytest.raises(BenchError, match="failed: bursts_that_are_refused"):
        run(
            "bench_vector", "bursts_that_are_refused", simulator="icarus", errata=ERRATA,
            model_errata=ERRATA - {erratum},
        )  # fmt: skip


def test_conforms():
    run("bench_vector", "conforms", simulator="icarus")


@pytest.mark.parametrize(
    "erratum, message",
    [
        ("caps-buffers", r"CU_CAPS says 2 buffers, bursts are taken for buffers \[0\]"),
        ("reject-silent", "an acknowledgement of a burst to buffer 1 was not reached"),
    ],
)
def test_a_published_core_does_not_conform(erratum, message):
    with pytest.raises(BenchError, match=message):
        run("bench_vector", "conforms", simulator="icarus", errata={erratum})


def test_only_what_was_asked_for_is_taken():
    run("bench_vector", "only_what_was_asked_for_is_taken")


def test_every_planted_fault_is_found():
    run("bench_vector", "every_planted_fault_is_found", planted=True, seeds="5,1,2,11,3,4,6,7")


def test_recorded_kernels():
    """A sample; `tests/sysnode/test_rtl_golden.py` has them all."""
    run("bench_vector_golden", "recorded_kernels", planted=True, golden=SAMPLE)


@pytest.mark.slow
@pytest.mark.parametrize("l1_words", [64, 512])
def test_many_random_lives(l1_words):
    seeds = range(1000 + l1_words, 1100 + l1_words)
    run("bench_vector", "lives_like_the_model", l1_words=l1_words, kernels=12, seeds=",".join(map(str, seeds)))


@pytest.mark.parametrize(
    "parameters, message",
    [
        ({"l1_words": 96}, "l1_words must be a power of two from 64 to 512, not 96"),
        (
            {"errata": ["exp2-wrap", "fp32-store"]},
            "VectorCore has no errata fp32-store; there are: caps-buffers, exp2-wrap",
        ),
        ({"fault": "sticky"}, "no fault 'sticky'; there are: vector-any-tag"),
    ],
)
def test_wrong_parameters_are_refused(parameters, message):
    sizes = {"l1_words": 512, "inst_depth": 8, "recv_depth": 8}
    with pytest.raises(TypeError, match=message):
        VectorCore(**{"x": 1, "y": 0, "port": (0, 1), **sizes, **parameters})
