# amaranth: UnusedElaboratable=no
"""The converter in gates: every golden entry in both layouts, and every planted fault found."""

import sys
from pathlib import Path

import pytest

from rtl import quantiser
from rtl.quantiser import Quantiser
from sim.runner import BenchError

sys.path.insert(0, str(Path(__file__).parent))
from support.harness import run_bench  # noqa: E402

SAMPLE = Path(__file__).parents[1] / "data/golden/mx_quant.npz"
FULL = Path(__file__).parents[3] / "shared/golden/mx_quant.npz"


def run(simulator="verilator", fault=None, step=1, golden=SAMPLE):
    return run_bench(
        Quantiser(fault=fault), "bench_quantiser", name="quantiser", simulator=simulator, step=step, golden=golden
    )


def test_golden_entries():
    assert len(run(golden=FULL if FULL.exists() else SAMPLE).passed) == 3


def test_golden_entries_on_icarus():
    assert len(run("icarus", step=4).passed) == 3


@pytest.mark.parametrize("fault", quantiser.FAULTS)
def test_every_planted_fault_is_found(fault):
    with pytest.raises(BenchError, match="failed: "):
        run(fault=fault)


def test_an_unknown_fault_is_refused():
    with pytest.raises(TypeError, match="no fault 'x'; there are: quantiser-layout-stuck"):
        Quantiser(fault="x")


def test_no_magnitude_passes_63():
    """The clamp of the specification can never act, so the gates have none: checked for every FP16 peak."""
    for peak in range(1 << 15):
        field = peak >> 10
        significand, exponent = (peak & 1023) | (1024 if field else 0), max(field, 1)
        normal, lead = significand, 0
        while 0 < normal < 1024:
            normal, lead = 2 * normal, lead + 1
        c = 9 + sum(normal > step for step in quantiser.STEPS)
        carry = c > 15
        biased = max(exponent - lead - 1 + carry, 0) if significand else quantiser.ZERO_EXPONENT
        shift = biased + 1 - exponent
        assert shift >= 0
        x = significand * quantiser.RECIPROCAL[c & 7] >> 15 + min(shift, 8)
        assert (x >> 1) + (x & 1) <= 63
