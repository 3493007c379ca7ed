"""The machines that ship: every published map with its coordinates, and what each file promises."""

from __future__ import annotations

import pytest

from kohakutpu.machine import MachineError, list_machines, load

WEST2 = [(0, 1), (0, 2)]
WEST3 = [*WEST2, (0, 3)]
WEST4 = [*WEST3, (0, 4)]
FOUR = [(1, 1), (2, 1), (1, 2), (2, 2)]
SIX_TALL = [*FOUR, (1, 3), (2, 3)]
SIX_COLUMN = [(1, 0), *FOUR, (1, 3)]
NORTH_SOUTH = [(1, 0), (2, 0), (1, 3), (2, 3)]

# name: routers wide, tall, memory ports, clusters, vector cores
PUBLISHED = {
    "mm_mesh": (2, 1, [(0, 1)], [(2, 1)], [(1, 0)]),
    "mm_mesh_links": (2, 1, [(0, 1)], [(2, 1)], [(1, 0)]),
    "2x2_6+4": (2, 2, WEST2, [(1, 1), (2, 1), (3, 1), (1, 2), (2, 2), (3, 2)], NORTH_SOUTH),
    "ship_3x2": (2, 3, WEST3, SIX_TALL, [(1, 0), (2, 0), (1, 4), (2, 4)]),
    "3x2_6+3": (2, 3, WEST3, SIX_TALL, [(3, 1), (3, 2), (3, 3)]),
    "2x3_6cu3vec": (2, 3, WEST3, SIX_TALL, [(1, 0), (2, 0), (3, 1)]),
    "2x2_6+2": (2, 2, WEST2, SIX_COLUMN, [(2, 0), (2, 3)]),
    "2x2_6+0": (2, 2, WEST2, SIX_COLUMN, []),
    "2x2_7+2": (2, 2, WEST2, [*SIX_COLUMN, (3, 1)], [(2, 0), (2, 3)]),
    "2x2_8+2": (2, 2, WEST2, [(1, 0), (2, 0), *FOUR, (1, 3), (2, 3)], [(3, 1), (3, 2)]),
    "ship_2x2": (2, 2, WEST2, FOUR, [(1, 0), (2, 0), (3, 1), (3, 2)]),
    "2x2_4+4": (2, 2, WEST2, FOUR, NORTH_SOUTH),
    "2x2": (2, 2, WEST2, [(1, 1), (1, 2)], NORTH_SOUTH),
    "2x2_1port": (2, 2, [(0, 1)], [(1, 1), (1, 2)], NORTH_SOUTH),
    "2x1_6+0": (2, 1, [(0, 1), (3, 1)], [(1, 0), (2, 0), (1, 1), (2, 1), (1, 2), (2, 2)], []),
    "1x2_4+0": (1, 2, WEST2, FOUR, []),
    "1x1_min": (1, 1, [(0, 1)], [(1, 1)], [(1, 0)]),
    "1x1_2+2": (1, 1, [(0, 1)], [(1, 1), (2, 1)], [(1, 0), (1, 2)]),
}
# maps of which only the counts are known: ports, clusters, vector cores
COUNTED = {"2x4": (4, 8, 8), "4x2": (2, 4, 10), "4x2_4+4": (4, 4, 4), "4x4": (4, 8, 12), "4x5": (4, 8, 16)}
MESHES = [name for name in list_machines() if name != "seed_case"]
SHIPS = [name for name in MESHES if name not in ("mm_mesh", "mm_mesh_links", "mm_min", "quad", "uneven")]


def test_nothing_ships_untested():
    assert sorted([*PUBLISHED, *COUNTED, "mm_min", "quad", "seed_case", "uneven"]) == list_machines()


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_coordinates(name):
    machine = load(name)
    nx, ny, ports, clusters, vectors = PUBLISHED[name]
    assert (machine.nx, machine.ny) == (nx, ny)
    assert [port.xy for port in machine.ports] == ports
    assert [unit.xy for unit in machine.clusters] == sorted(clusters, key=lambda xy: (xy[1], xy[0]))
    assert [unit.xy for unit in machine.vectors] == sorted(vectors, key=lambda xy: (xy[1], xy[0]))


@pytest.mark.parametrize("name", COUNTED)
def test_published_counts(name):
    machine = load(name)
    assert (len(machine.ports), len(machine.clusters), len(machine.vectors)) == COUNTED[name]
    assert [port.xy for port in machine.ports] == WEST4[: len(machine.ports)]


def test_quad():
    machine = load("quad")
    assert (machine.nx, machine.ny) == (2, 2)
    assert [machine.site_kind(*unit.xy) for unit in machine.clusters] == ["local"] * 4
    assert [machine.site_kind(*unit.xy) for unit in machine.vectors] == ["edge"] * 4
    assert len(machine.ports) == 2


def test_mm_min():
    """One vector core, and memory that fits block RAM."""
    machine = load("mm_min")
    assert (len(machine.ports), len(machine.clusters), len(machine.vectors), machine.memory.bytes) == (
        1, 0, 1, 64 << 10,
    )  # fmt: skip


def test_uneven():
    """Row 1 has three units, row 2 one, and each row a memory port of its own."""
    machine = load("uneven")
    rows = [[unit.xy for unit in machine.units if unit.y == row] for row in (1, 2)]
    assert rows == [[(1, 1), (2, 1), (3, 1)], [(1, 2)]]
    assert [port.xy for port in machine.ports] == WEST2


@pytest.mark.parametrize("name", MESHES)
def test_every_mesh_can_be_built_and_names_itself(name):
    machine = load(name)
    machine.require_mesh()
    assert machine.name == name
    own = name in ("mm_mesh", "mm_mesh_links")
    assert (machine.agent.xy, machine.agent.own_endpoint) == ((1, 1) if own else (0, 1), own)
    assert not machine.errata
    assert machine.staging_flits == 128


@pytest.mark.parametrize("name", MESHES)
def test_units_use_the_port_of_their_row(name):
    machine = load(name)
    west = all(port.x == 0 for port in machine.ports)
    for unit in machine.units:
        row = machine.clamp(*unit.xy)[1]
        port = machine.port_of(unit)
        if west and any(p.y == row for p in machine.ports):
            assert port.xy == (0, row)
    if name == "2x1_6+0":
        assert {(unit.x, machine.port_of(unit).xy) for unit in machine.clusters} == {(1, (0, 1)), (2, (3, 1))}


@pytest.mark.parametrize("name", SHIPS)
def test_ships_have_the_sizes_of_the_cards(name):
    machine = load(name)
    assert machine.fifo_depth == 512
    assert machine.memory.bytes >= 64 << 20
    for unit in machine.clusters:
        assert (unit.tiles, unit.a_entries, unit.b_entries) == (4096, 512, 512)
    for unit in machine.units:
        assert (unit.inst_depth, unit.recv_depth) == (512, 512)
    for unit in machine.vectors:
        assert unit.l1_words == 512


def test_mm_mesh_has_the_module_defaults_and_its_twin_the_recorded_sizes():
    sizes = {}
    for name in ("mm_mesh", "mm_mesh_links"):
        machine = load(name)
        (cluster,), (vector,) = machine.clusters, machine.vectors
        sizes[name] = (cluster.tiles, cluster.a_entries, cluster.b_entries, cluster.inst_depth, vector.inst_depth)
        assert (machine.fifo_depth, cluster.mantissa, cluster.recv_depth, vector.recv_depth) == (32, 14, 64, 64)
        assert (machine.memory.latency, machine.memory.cycles_per_word) == (20, 1)
    assert sizes == {"mm_mesh": (256, 32, 32, 32, 32), "mm_mesh_links": (512, 512, 512, 64, 64)}


def test_the_seed_case_compiles_and_cannot_be_built():
    machine = load("seed_case")
    assert [unit.xy for unit in machine.clusters] == FOUR
    assert [unit.xy for unit in machine.vectors] == [(1, 0), (2, 0), (3, 0), (3, 1)]
    assert machine.agent.xy == (1, 1) and machine.agent.own_endpoint
    assert {unit.inst_depth for unit in machine.units} == {512}
    with pytest.raises(MachineError, match="seed_case is compile-only"):
        machine.require_mesh()
