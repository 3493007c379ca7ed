"""The shapes that `kohakutpu lockstep` takes where none are given: every kernel of the library runs, none for minutes."""

import argparse

import pytest

from kohakutpu.cli import lockstep
from kohakutpu.machine import load


@pytest.mark.parametrize("machine", ["mm_mesh", "quad"])
def test_every_kernel_of_the_library_fits_the_machine(machine):
    parser = argparse.ArgumentParser()
    lockstep.arguments(parser)
    kernels = list(lockstep.every_kernel())
    assert len(kernels) > 50
    for kernel in kernels:
        _, operands = lockstep.compiled(kernel, load(machine), parser.parse_args([]))
        assert all(array.size <= 40_000 for array in operands.values()), (kernel.name, {n: a.shape for n, a in operands.items()})
