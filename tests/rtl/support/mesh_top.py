"""A mesh with every link in view of the bench, and the grids it is tried on."""

from __future__ import annotations

from amaranth import Cat, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from kohakutpu.isa.flit import node
from kohakutpu.machine import Agent, Machine, MemoryPort, VectorUnit
from rtl.emit import shared
from rtl.link import FLIT
from rtl.mesh import Mesh, endpoint_sites, router_port
from rtl.router import PORTS
from sim.port_checker import PortChecker, VerdictSignature, watch


def grid(nx: int, ny: int, fifo_depth: int) -> Machine:
    """A machine with an endpoint on every site: a memory port at (0, 1), vector cores on all others."""
    sites = [
        (x, y) for y in range(ny + 2) for x in range(nx + 2) if (1 <= x <= nx or 1 <= y <= ny) and (x, y) != (0, 1)
    ]
    return Machine(
        name=f"grid{nx}x{ny}", nx=nx, ny=ny, agent=Agent(0, 1), ports=(MemoryPort(0, 1, write_slots=256),),
        vectors=tuple(VectorUnit(*site) for site in sites), fifo_depth=fifo_depth,
    )  # fmt: skip


def inner_links(machine: Machine) -> list[str]:
    """Names of the links between routers and of those to empty sites, in one order for both sides of a bench."""
    taken = {router_port(machine, *site) for site in endpoint_sites(machine).values()}
    routers = [(x, y) for y in range(1, machine.ny + 1) for x in range(1, machine.nx + 1)]
    return [f"r{x:x}{y:x}.{port}" for x, y in routers for port in PORTS if ((x, y), port) not in taken]


class MeshTop(wiring.Component):
    """The members of `Mesh`, and the flit of each link between routers or to an empty site; `moved` has a bit each.

    `NAME_check` is what the checker of each endpoint's port says: the mesh keeps its links' rules, and the bench its
    own.
    """

    def __init__(self, machine: Machine, *, faults=None):
        self.mesh = Mesh(machine, faults=faults)
        # the links to and from endpoints are the bench's own
        self.inner = inner_links(machine)
        members = dict(self.mesh.signature.members)
        members["moved"] = Out(len(self.inner))
        members |= {f"{name.replace('.', '_')}_seen": Out(FLIT.size) for name in self.inner}
        members |= {f"{name}_check": Out(VerdictSignature()) for name in self.mesh.sites}
        super().__init__(members)

    def elaborate(self, platform):
        m = Module()
        m.submodules.mesh = mesh = self.mesh
        for name in mesh.signature.members:
            wiring.connect(m, wiring.flipped(getattr(self, name)), getattr(mesh, name))
        for name, (x, y) in mesh.sites.items():
            checker = shared(PortChecker, unit=False, named=True, bound=None, outstanding=1)
            m.submodules[f"{name}_checker"] = checker
            verdict = getattr(self, f"{name}_check")
            m.d.comb += [
                *watch(checker, getattr(mesh, f"{name}_in"), getattr(mesh, f"{name}_out")),
                checker.node.eq(node(x, y)),
                verdict.violations.eq(checker.violations),
                verdict.owed.eq(checker.owed),
            ]
        moves = []
        for name in self.inner:
            link = mesh.links[name]
            moves.append(link.valid & ~link.busy)
            m.d.comb += getattr(self, f"{name.replace('.', '_')}_seen").eq(link.flit)
        m.d.comb += self.moved.eq(Cat(*moves))
        return m
