"""The memory mover of whole machines: models and gates give the same trace, and what plain loops leave in memory."""

import sys
from pathlib import Path

import pytest

from kohakutpu.host.model_transport import ModelTransport
from kohakutpu.machine import load
from kohakutpu.model import mover
from kohakutpu.model.system import System
from kohakutpu.noc.trace import Trace
from sim.machine import build, simulate
from sim.trace import recorded

HERE = Path(__file__).resolve().parent
SEARCH = [HERE, HERE.parent / "rtl"]
sys.path[:0] = map(str, SEARCH)
from mover_jobs import by_the_rules, carry_out  # noqa: E402

SEED = 3


def on_the_models(machine, trace):
    system = System(machine)
    with system.record(trace):
        return carry_out(ModelTransport(system), SEED)


def both(machine, folder):
    """(what the moves gave, trace of the models, trace of the gates)."""
    model, gates = folder / "model", folder / "gates"
    expected = on_the_models(machine, model)
    built = build(machine, simulator="verilator")
    with recorded(gates, machine, built.links) as records:
        found = simulate(built, "mover_jobs:on_gates", records=records, search=SEARCH, contents_of=SEED)
    assert found == expected
    assert [rest for _, *rest in found] == [list(each) for each in by_the_rules(SEED, mover.generated_word)]
    return found, model, gates


def test_models_and_gates_move_in_the_same_cycles(tmp_path, monkeypatch):
    machine = load("mm_mesh")
    found, model, gates = both(machine, tmp_path)
    trace = Trace(gates)
    assert len(found) == 10 and trace.levels > 700 and trace.flits == 0
    assert model.read_bytes() == gates.read_bytes()
    # the comparison can fail: a model whose gathers begin a cycle later
    monkeypatch.setattr(mover, "GATHER_CYCLES", mover.GATHER_CYCLES + 1)
    on_the_models(machine, tmp_path / "late")
    assert (tmp_path / "late").read_bytes() != gates.read_bytes()


@pytest.mark.slow
def test_quad_too(tmp_path):
    _, model, gates = both(load("quad"), tmp_path)
    assert model.read_bytes() == gates.read_bytes()
