"""Discovery on the gates: CU_CAPS and CU_STATUS of every coordinate, those of empty sites too, from the agent's port.

The units that answer are those of the machine file; a request to an empty site vanishes, is dropped at a memory port or
comes back, as the routing rules have it, and nothing hangs. All of it in the model's cycles.
"""

import dataclasses
import sys
from pathlib import Path

import pytest

from kohakutpu.isa.flit import node
from kohakutpu.isa.signals import CU_CAPS, CU_STATUS, UnitType
from kohakutpu.machine import load
from sim.machine import build, simulate
from sim.trace import transfers

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parent / "rtl"))
from discovery import coordinates, expected, found  # noqa: E402
from rtl_compare import model_transfers  # noqa: E402
from support.models import compare  # noqa: E402

MACHINES = ["mm_mesh", pytest.param("quad", marks=pytest.mark.slow)]


def discover(machine, folder):
    built = build(machine, simulator="icarus", agent="bench")
    result = simulate(
        built,
        "discovery:ask",
        records=folder / "flits",
        search=[HERE],
        agent=machine.agent.node,
        nodes=coordinates(machine),
    )
    return result, [(cycle, link.name, flit) for cycle, link, flit in transfers(folder / "flits", built.links)]


def sources(answers):
    """{coordinate: sources of what came back}, the same for both requests."""
    seen = {}
    for (at, _), flits in answers.items():
        arrived = [flit.src for flit in flits]
        assert seen.setdefault(at, arrived) == arrived
    return seen


@pytest.mark.parametrize("name", MACHINES)
def test_every_coordinate_is_asked(name, tmp_path, capsys):
    machine = load(name)
    result, moved = discover(machine, tmp_path)
    wanted = {
        unit.node: [
            CU_CAPS.encode(type=kind, version=4, buffers=buffers, inst_depth=unit.inst_depth),
            CU_STATUS.encode(busy=0, error=0, inst_space=unit.inst_depth),
        ]
        for units, kind, buffers in ((machine.clusters, UnitType.CLUSTER, 2), (machine.vectors, UnitType.VECTOR, 1))
        for unit in units
    }
    assert found(result["answers"]) == wanted
    seen = sources(result["answers"])
    assert seen == {at: expected(machine, at) for at in coordinates(machine)}
    silent = [at for at, arrived in seen.items() if not arrived]
    foreign = [at for at, arrived in seen.items() if arrived and at not in wanted]
    assert len(seen) == (machine.nx + 2) * (machine.ny + 2) and silent
    model, system = model_transfers(machine, result["injected"], result["cycles"])
    assert compare(moved, model) >= 4 * len(seen)
    assert system.bench.received == result["received"]
    with capsys.disabled():
        print(
            f"\n{name}: {len(seen)} coordinates, {len(wanted)} units, {len(silent)} silent, {len(foreign)} answered "
            "by another"
        )


def test_gates_of_another_machine_are_seen(tmp_path):
    """The vector core one column further: found there, silent here."""
    machine = load("mm_mesh")
    moved = dataclasses.replace(machine, vectors=(dataclasses.replace(machine.vectors[0], x=2),))
    result, _ = discover(moved, tmp_path)
    assert (
        found(result["answers"]).keys() == {unit.node for unit in moved.units} != {unit.node for unit in machine.units}
    )
    seen = sources(result["answers"])
    wrong = {at for at in coordinates(machine) if seen[at] != expected(machine, at)}
    assert wrong == {node(1, 0), node(2, 0)}
