"""The model's side of the mesh bench."""

from __future__ import annotations

from kohakutpu.isa.flit import Flit
from kohakutpu.machine import Machine
from kohakutpu.noc.engine import Engine
from kohakutpu.noc.mesh import Mesh
from rtl.mesh import endpoint_sites

from .links import Busy
from .models import Peer, Transfer


def run_mesh(
    machine: Machine, sends: dict[str, list[tuple[int, Flit]]], busy: dict[str, Busy], cycles: int
) -> list[Transfer]:
    """Every transfer of a mesh whose endpoints send `sends` and are busy as `busy` says, both by endpoint name.

    Links are named as in `support.mesh_top`: `NAME_out` and `NAME_in` at endpoints, `r21.east` between routers.
    """
    engine = Engine()
    mesh = Mesh(engine, machine)
    names = {}
    for name, (x, y) in endpoint_sites(machine).items():
        peer = Peer(engine, name)
        peer.busy = busy.get(name)
        mesh.attach(peer, y << 4 | x)
        peer.wake(0)
        names[id(peer.out)] = f"{name}_out"
        names[id(peer.in_link)] = f"{name}_in"
        for at, flit in sends.get(name, []):
            peer.send(flit, at=at)
    moved: list[Transfer] = []
    engine.on_transfer = lambda cycle, link, flit: moved.append((cycle, names.get(id(link), link.name), flit))
    engine.advance(cycles)
    return moved
