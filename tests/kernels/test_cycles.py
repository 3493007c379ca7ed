"""Every vector kernel takes at most half of the published core's cycles, by the formulas that its recordings obey."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from vector_cycles import measure, vector_kernels  # noqa: E402


@pytest.mark.parametrize("made", vector_kernels(), ids=lambda k: k.name)
def test_at_most_half(made):
    same, published, ours = measure(made)
    assert 0 < 2 * ours <= min(same, published or same)
