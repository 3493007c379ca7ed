"""Random kernels of the language, constructs inside each other: the interpreter's bytes on the models, or refused by name at
compile time with the line underlined."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from kohakutpu.lang import KernelError

sys.path.insert(0, str(Path(__file__).parent))
from random_kernels import case  # noqa: E402
from running import equal_bytes  # noqa: E402

KINDS = {"product", "whole", "rows_apart", "turns", "parts", "one_a_row", "folded", "masked"}


def judged(seeds: range) -> tuple[int, Counter]:
    """How many kernels ran equal, and which statements they held."""
    equal, kinds = 0, Counter()
    for seed in seeds:
        made = case(seed)
        try:
            equal_bytes(made.kernel, made.shapes, made.machine, made.knobs, made.options, seed=seed, specials=0.02)
        except KernelError as refused:
            assert refused.source is not None and "^" in str(refused), f"kernel {seed}: no line in {refused}"
            continue
        except Exception as error:
            raise AssertionError(f"kernel {seed}: {type(error).__name__}: {error}") from error
        equal += 1
        kinds.update(made.kinds)
    return equal, kinds


def test_random_kernels():
    equal, kinds = judged(range(30))
    assert equal >= 15, "most are to run: what is refused compares nothing"
    assert set(kinds) == KINDS


@pytest.mark.slow
def test_many_random_kernels():
    equal, kinds = judged(range(30, 430))
    assert equal >= 250 and min(kinds.values()) > 30
    print(f"{equal} of 400 random kernels byte-equal, the others refused by name; statements: {dict(kinds)}")
