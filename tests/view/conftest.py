"""Traces of the example kernels, made once, and what the view tests share."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from kohakutpu.compiler import compile_kernel
from kohakutpu.host.simulate import run_model
from kohakutpu.kernels.linear import linear_silu, matmul
from kohakutpu.machine import load
from kohakutpu.noc.trace import Trace, TraceWriter
from kohakutpu.view.html import bins_for
from kohakutpu.view.measure import measure
from kohakutpu.view.survey import Survey

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "linear_silu"
TILE = {"gm": 8, "gn": 8}


def traced(path: Path, machine_name: str, kernel, operands, knobs) -> SimpleNamespace:
    """A run of the models with its trace: `machine`, `run` (what the models counted), `path`."""
    machine = load(machine_name)
    artifact = compile_kernel(kernel, machine, {name: array.shape for name, array in operands.items()}, knobs)
    return SimpleNamespace(machine=machine, run=run_model(artifact, machine, operands, trace=path), path=path)


def measured(path: Path, **options):
    """The measures of a trace, as the page uses them."""
    survey = Survey(Trace(path))
    return measure(survey, most_bins=bins_for(survey, 1), **options)


class Link:
    """A link as a trace writer knows it."""

    def __init__(self, index, name):
        self.index, self.name = index, name


def rewritten(path, run, change):
    """A copy of a trace with each record passed through `change`, which may drop it."""
    source = Trace(run.path)
    links = [Link(index, name) for index, name in enumerate(source.links)]
    with TraceWriter(path, run.machine, links, source.tracks) as writer:
        for record in source:
            writer.advance(record.cycle)
            record = change(record)
            if record is not None:
                writer.add(record)
        writer.cycles = source.cycles
    return path


@pytest.fixture(scope="session")
def example():
    return {name: np.load(EXAMPLES / f"{name}.npy") for name in ("x", "w")}


@pytest.fixture(scope="session")
def fused(tmp_path_factory, example):
    return traced(tmp_path_factory.mktemp("fused") / "fused.trace", "mm_mesh", linear_silu, example, TILE)


@pytest.fixture(scope="session")
def staged(tmp_path_factory, example):
    return traced(
        tmp_path_factory.mktemp("staged") / "staged.trace", "mm_mesh", linear_silu, example, {**TILE, "fuse": False}
    )


@pytest.fixture(scope="session")
def quad(tmp_path_factory):
    """Four clusters, four vector cores and two ports at once; no endpoint of the agent's own."""
    random = np.random.default_rng(5)
    operands = {name: random.normal(0, 0.3, (64, 128)).astype(np.float16) for name in ("x", "w")}
    return traced(tmp_path_factory.mktemp("quad") / "quad.trace", "quad", linear_silu, operands, TILE)


@pytest.fixture(scope="session")
def ports(tmp_path_factory):
    """Clusters only, several rounds, operands fetched by several units at once."""
    random = np.random.default_rng(6)
    operands = {name: random.normal(0, 0.3, (128, 64)).astype(np.float16) for name in ("a", "b")}
    return traced(tmp_path_factory.mktemp("ports") / "ports.trace", "2x2_6+0", matmul, operands, {"gm": 4, "gn": 4})


@pytest.fixture(params=["fused", "staged", "quad", "ports"])
def any_run(request):
    return request.getfixturevalue(request.param)
