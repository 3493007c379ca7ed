"""Every vector kernel takes at most half of the published core's cycles, by the formulas that its recordings obey.

The recorded programs themselves are held to that in `tests/conformance/test_mesh.py`.
"""

import sys
from pathlib import Path

import pytest

from kohakutpu.compiler import compile_kernel
from kohakutpu.machine import load

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from vector_cycles import NO_VECTOR_WORK, measure, streams, vector_kernels  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))
from running import LIBRARY, small_case  # noqa: E402


@pytest.mark.parametrize("made", vector_kernels(), ids=lambda k: k.name)
def test_at_most_half(made):
    same, published, ours = measure(made)
    assert 0 < 2 * ours <= min(same, published or same)


def test_none_is_left_out():
    """What is not measured has no instruction for a vector core."""
    assert {made.name for made in vector_kernels()} | set(NO_VECTOR_WORK) == LIBRARY.keys()
    for name, made in LIBRARY.items():
        shapes, knobs = small_case(made)
        works = bool(streams(compile_kernel(made, load("quad"), shapes, knobs)))
        assert works == (name not in NO_VECTOR_WORK), name
