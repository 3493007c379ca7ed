"""Where golden vectors come from: the full set beside the checkout where there is one, else the sampled set."""

from __future__ import annotations

import os
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# With these set pytest writes every difference in full, and a diff of two memory images takes hours.
for name in ("CI", "BUILD_NUMBER"):
    os.environ.pop(name, None)

# How long an example takes says how busy the machine is, and nothing about the code.
settings.register_profile("kohakutpu", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.load_profile("kohakutpu")

ROOT = Path(__file__).resolve().parent.parent
SAMPLED = ROOT / "tests" / "data" / "golden"
SLOW_LIMIT = 5400  # seconds for a test of `make nightly`; all others have pyproject.toml's
FULL = ROOT.parent / "shared" / "golden"


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder of golden files: the full set where it exists, otherwise the sample in the repository."""
    return FULL if FULL.is_dir() else SAMPLED


@contextmanager
def _started(command, **options):
    """A process that ends within the block. What fails there, or takes too long, kills it: leaving `Popen` would
    wait."""
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
            process.wait()
        finally:
            process.kill()


@pytest.fixture(scope="session")
def started():
    """`with started(command, **options) as process:` in place of `with subprocess.Popen(...)`."""
    return _started


ONE_POINT = """
name: one
kernel: kohakutpu.kernels:linear_silu
machines: [mm_mesh]
extents: {M: [16], K: [32], N: [32]}
knobs: {gm: [4], gn: [8], nk: [1]}
seeds: [0]
"""


@pytest.fixture
def one_point(tmp_path) -> Path:
    """The description of a sweep of one point."""
    path = tmp_path / "spec.yaml"
    path.write_text(ONE_POINT)
    return path


def pytest_collection_modifyitems(items):
    """Everything that compiles gates is marked by where it stands, so that no bench can be forgotten."""
    for item in items:
        path = item.path.relative_to(ROOT / "tests")
        if path.parts[0] == "rtl" or path.name.startswith(("test_rtl_", "test_lockstep", "test_gates")):
            item.add_marker(pytest.mark.gates)
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_LIMIT))


def pytest_report_header(config):
    which = f"full set, {FULL.relative_to(ROOT.parent)}" if FULL.is_dir() else "sampled set, tests/data/golden"
    return f"golden vectors: {which}"


def pytest_terminal_summary(terminalreporter):
    which = (
        "the full set" if FULL.is_dir() else "the sampled set in tests/data/golden (no full set beside the checkout)"
    )
    terminalreporter.write_line(f"golden vectors: {which}")
