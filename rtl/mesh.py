"""The routers of a machine and the links between them, with an interface for each endpoint.

Link names are those of the model (`kohakutpu.noc.mesh`): after the sender's output register.
"""

from __future__ import annotations

from collections.abc import Mapping

from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from kohakutpu.machine import Machine

from .emit import shared
from .link import LinkSignature
from .router import PORTS, Router

STEP = {"north": (0, -1), "east": (1, 0), "south": (0, 1), "west": (-1, 0), "local": (0, 0)}
OPPOSITE = {"north": "south", "east": "west", "south": "north", "west": "east", "local": "local"}


def endpoint_sites(machine: Machine) -> dict[str, tuple[int, int]]:
    """(x, y) of every endpoint by name, in the order of the models' links.

    `mag0`, ..., `agent` where it has one of its own, and `cluster0`, `vector0`, ... in scan order.
    """
    sites = {f"mag{index}": port.xy for index, port in enumerate(machine.ports)}
    if machine.agent.own_endpoint:
        sites["agent"] = machine.agent.xy
    names = {unit.xy: f"cluster{index}" for index, unit in enumerate(machine.clusters)}
    names |= {unit.xy: f"vector{index}" for index, unit in enumerate(machine.vectors)}
    return sites | {names[unit.xy]: unit.xy for unit in machine.units}


def router_port(machine: Machine, x: int, y: int) -> tuple[tuple[int, int], str]:
    """(router, name of its port) that serves the site at (x, y)."""
    at = machine.clamp(x, y)
    offset = x - at[0], y - at[1]
    return at, next(port for port, step in STEP.items() if step == offset)


class Mesh(wiring.Component):
    """Routers at (1..nx, 1..ny) of `machine`. Ports without an endpoint are tied off: never busy, never valid.

    Members, for each endpoint of `endpoint_sites`: `NAME_out`, the link from it, and `NAME_in`, the link to it. `links`
    maps every link's name (`r21.east`, `cluster0.out`) to the sender's side of it; `sites` each endpoint's name to its
    coordinate. `faults` plants a fault in the routers at the coordinates it names.
    """

    def __init__(self, machine: Machine, *, faults: Mapping[tuple[int, int], str] | None = None):
        machine.require_mesh()
        faults = faults or {}
        places = [(x, y) for y in range(1, machine.ny + 1) for x in range(1, machine.nx + 1)]
        if nowhere := sorted(faults.keys() - set(places)):
            raise TypeError(f"Mesh faults at {nowhere}: there is no router on a {machine.nx}x{machine.ny} grid")
        self.machine = machine
        self.sites = endpoint_sites(machine)
        self.routers = {
            (x, y): shared(
                Router, x=x, y=y, grid_x=machine.nx, grid_y=machine.ny, fifo_depth=machine.fifo_depth,
                fault=faults.get((x, y)),
            )
            for x, y in places
        }  # fmt: skip
        members = {}
        for name in self.sites:
            members |= {f"{name}_out": In(LinkSignature()), f"{name}_in": Out(LinkSignature())}
        super().__init__(members)
        self.links = {
            f"r{x:x}{y:x}.{port}": getattr(router, f"out_{port}")
            for (x, y), router in self.routers.items()
            for port in PORTS
        }
        self.links |= {f"{name}.out": getattr(self, f"{name}_out") for name in self.sites}

    def elaborate(self, platform):
        m = Module()
        taken = {router_port(self.machine, x, y): name for name, (x, y) in self.sites.items()}
        for (x, y), router in self.routers.items():
            m.submodules[f"r{x:x}{y:x}"] = router
            for port, (dx, dy) in STEP.items():
                outward, inward = getattr(router, f"out_{port}"), getattr(router, f"in_{port}")
                neighbour = self.routers.get((x + dx, y + dy)) if port != "local" else None
                name = taken.get(((x, y), port))
                if neighbour is not None:
                    wiring.connect(m, outward, getattr(neighbour, f"in_{OPPOSITE[port]}"))
                elif name is not None:
                    wiring.connect(m, outward, wiring.flipped(getattr(self, f"{name}_in")))
                    wiring.connect(m, wiring.flipped(getattr(self, f"{name}_out")), inward)
                else:
                    m.d.comb += [outward.busy.eq(0), inward.valid.eq(0)]
        return m
