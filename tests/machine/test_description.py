"""The rules a machine obeys when it is made by a program, where no file line can be named."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest

from kohakutpu.machine import (
    Agent,
    ClusterUnit,
    Dram,
    Machine,
    MachineError,
    MemoryPort,
    VectorUnit,
    load,
    nearest_port,
    site_kind,
)

PORT = MemoryPort(0, 1)
SMALL = Machine("small", 1, 1, Agent(0, 1), (PORT,), (ClusterUnit(1, 1),), (VectorUnit(1, 0),))

BROKEN = {
    "name": (dict(name="a b"), "name 'a b'"),
    "name is a number": (dict(name=3), "name 3"),
    "grid": (dict(nx=0), "0 routers wide"),
    "grid as float": (dict(ny=1.0), r"1\.0 routers tall"),
    "no port": (dict(ports=()), "no memory port"),
    "no unit": (dict(clusters=(), vectors=()), "no unit"),
    "agent away from port 0": (dict(agent=Agent(1, 2)), r"the agent at \(1, 2\) has no endpoint of its own"),
    "agent on a unit": (dict(agent=Agent(1, 1, True)), "already holds a cluster"),
    "scan order of ports": (dict(ports=(MemoryPort(1, 2), PORT), agent=Agent(1, 2)), "ports .* not in scan order"),
    "scan order of clusters": (dict(clusters=(ClusterUnit(1, 2), ClusterUnit(1, 1))), "clusters .* not in scan order"),
    "scan order of vectors": (dict(vectors=(VectorUnit(1, 2), VectorUnit(1, 0))), "vectors .* not in scan order"),
    "scan order of spares": (dict(spare=((1, 2), (2, 1))), "spare .* not in scan order"),
    "port index": (dict(clusters=(ClusterUnit(1, 1, 1),)), "bound to memory port 1; ports are 0 to 0"),
    "negative port index": (dict(clusters=(ClusterUnit(1, 1, -1),)), "bound to memory port -1"),
    "tiles": (dict(clusters=(ClusterUnit(1, 1, tiles=48),)), r"ClusterUnit at \(1,1\): tiles = 48; a power of two"),
    "l1": (dict(vectors=(VectorUnit(1, 0, l1_words=1024),)), "l1_words = 1024; 64 to 512"),
    "boolean": (dict(fifo_depth=True), "fifo_depth = True; an integer"),
    "float": (dict(memory=Dram(latency=2.5)), "Dram: latency = 2.5; an integer"),
    "size": (dict(memory=Dram(bytes=65537)), "bytes = 65537; a multiple of 4096"),
    "slots": (dict(ports=(MemoryPort(0, 1, write_slots=2),), agent=Agent(2, 1, True)), "2 write slots for 3 endpoints"),
    "erratum": (dict(errata=frozenset({"exp2"})), "unknown erratum 'exp2'"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_machine_cannot_be_made(case):
    change, words = BROKEN[case]
    with pytest.raises(MachineError, match=words):
        replace(SMALL, **change)


def test_a_machine_is_frozen_and_hashable():
    with pytest.raises(FrozenInstanceError):
        SMALL.nx = 2
    assert len({SMALL, replace(SMALL, fifo_depth=32), replace(SMALL, fifo_depth=64)}) == 2


@pytest.mark.parametrize(
    ("x", "y", "kind"),
    [
        (1, 1, "local"), (2, 3, "local"), (0, 1, "edge"), (3, 3, "edge"), (1, 0, "edge"), (2, 4, "edge"),
        (0, 0, "corner"), (3, 0, "corner"), (0, 4, "corner"), (3, 4, "corner"), (4, 1, "outside"), (1, 5, "outside"),
        (-1, 1, "outside"), (1, -1, "outside"),
    ],
)  # fmt: skip
def test_site_kinds_of_a_2x3_grid(x, y, kind):
    assert site_kind(2, 3, x, y) == kind


def test_binding_is_nearest_on_clamped_coordinates_and_the_first_on_a_tie():
    ports = [(1, 0), (0, 2), (4, 2)]  # clamped on a 3x3 grid: (1,1), (1,2), (3,2)
    assert nearest_port(3, 3, ports, 1, 1) == 0
    assert nearest_port(3, 3, ports, 1, 4) == 1  # clamped to (1,3)
    assert nearest_port(3, 3, ports, 2, 2) == 1  # as near to port 2
    assert nearest_port(3, 3, ports, 2, 1) == 0
    assert nearest_port(3, 3, ports, 4, 1) == 2
    assert nearest_port(3, 3, ports, 3, 0) == 2  # clamped to (3,1): 1 away from (3,2), 2 from (1,1)


def test_nodes_and_clamping():
    machine = load("ship_3x2")
    assert [unit.node for unit in machine.vectors] == [0x01, 0x02, 0x41, 0x42]
    assert machine.ports[2].node == 0x30 and machine.agent.node == 0x10
    assert machine.clamp(0, 4) == (1, 3) and machine.clamp(15, 0) == (2, 1)
    assert machine.grid_hi == 3
