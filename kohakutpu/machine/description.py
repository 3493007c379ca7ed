"""A machine as data: frozen dataclasses, and the rules every machine obeys (spec: coordinates, ships, parameters).

`Machine` checks itself when it is made, so a machine that exists is a machine that can be built (or says
`compile_only`). A broken rule raises `MachineError` whose `subject` names the statements to blame; whoever read
the machine from a file turns that into a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields

from kohakutpu.errata import REGISTRY
from kohakutpu.isa.flit import node
from kohakutpu.wording import counted

GRID_MAX = 14  # POS_WIDTH 4 leaves 16 columns, two of which are the edge ring
COORDINATE_MAX = 15
MAX_PORTS = 4  # MEM_PORTS of the memory agent
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


class MachineError(ValueError):
    """A machine description that is refused.

    `where` is `file:line:column` once known. `subject` holds keys of the statements to blame, the likeliest
    first: ("override", (x, y), name), (section, name), ("site", what, (x, y)), "grid", "ports", "units", "name".
    """

    def __init__(self, message: str, *, where: str = "", subject: tuple = ()):
        super().__init__(f"{where}: {message}" if where else message)
        self.message = message
        self.where = where
        self.subject = subject


def parameter(default: int, low: int, high: int, meaning: str, *, power_of_two: bool = False, unit: int = 1) -> int:
    """A numeric dataclass field with its legal range; the YAML reader and the documentation use the same record."""
    record = {"low": low, "high": high, "meaning": meaning, "power_of_two": power_of_two, "unit": unit}
    return field(default=default, metadata=record)


class _Site:
    """Something that stands on a coordinate."""

    x: int
    y: int

    @property
    def xy(self) -> tuple[int, int]:
        return self.x, self.y

    @property
    def node(self) -> int:
        """The packed node byte {y, x}."""
        return node(self.x, self.y)


@dataclass(frozen=True)
class Agent(_Site):
    """Where the orchestrator answers: an endpoint of its own, or memory port 0's coordinate."""

    x: int
    y: int
    own_endpoint: bool = False


@dataclass(frozen=True)
class MemoryPort(_Site):
    """One endpoint of the memory agent, on the edge ring."""

    x: int
    y: int
    queue_depth: int = parameter(64, 8, 4096, "flits in the read queue, and in the write queue")
    write_slots: int = parameter(16, 2, 256, "write bursts being gathered, issued or acknowledged")


@dataclass(frozen=True)
class ClusterUnit(_Site):
    """A matmul cluster; `port` indexes `Machine.ports`."""

    x: int
    y: int
    port: int = 0
    tiles: int = parameter(256, 8, 32768, "4x4 sub-tiles of accumulator storage", power_of_two=True)
    a_entries: int = parameter(32, 4, 512, "entries of L1 side A; two banks of 256 when 512", power_of_two=True)
    b_entries: int = parameter(32, 4, 512, "entries of L1 side B; two banks of 256 when 512", power_of_two=True)
    mantissa: int = parameter(14, 10, 16, "mantissa bits of the accumulator float")
    inst_depth: int = parameter(32, 2, 65535, "flits in the instruction FIFO")
    recv_depth: int = parameter(64, 2, 65535, "flits in the receive FIFO")


@dataclass(frozen=True)
class VectorUnit(_Site):
    """A vector core; `port` indexes `Machine.ports`."""

    x: int
    y: int
    port: int = 0
    l1_words: int = parameter(512, 64, 512, "256-bit words of L1", power_of_two=True)
    inst_depth: int = parameter(32, 2, 65535, "flits in the instruction FIFO")
    recv_depth: int = parameter(64, 2, 65535, "flits in the receive FIFO")


@dataclass(frozen=True)
class Dram:
    """The memory behind the ports."""

    bytes: int = parameter(64 << 20, 64 << 10, 64 << 30, "size of the memory behind the ports", unit=4096)
    latency: int = parameter(20, 1, 10_000, "cycles from a request to its first word")
    cycles_per_word: int = parameter(1, 1, 1024, "cycles each port needs per 32-byte word")


Unit = ClusterUnit | VectorUnit
Site = MemoryPort | ClusterUnit | VectorUnit


def parameters(kind: type) -> dict[str, dict]:
    """The numeric parameters of a dataclass here: name -> its range record."""
    return {f.name: dict(f.metadata) | {"default": f.default} for f in fields(kind) if f.metadata}


@dataclass(frozen=True)
class Machine:
    """One mesh: `nx` by `ny` routers at (1..nx, 1..ny), endpoints on locals and on the edge ring.

    Ports and units are in row-major scan order (y outer, x inner), which numbers them. `spare` lists
    sites whose port exists and is tied off. `errata` holds identifiers of `kohakutpu.errata`.
    """

    name: str
    nx: int
    ny: int
    agent: Agent
    ports: tuple[MemoryPort, ...]
    clusters: tuple[ClusterUnit, ...] = ()
    vectors: tuple[VectorUnit, ...] = ()
    spare: tuple[tuple[int, int], ...] = ()
    memory: Dram = Dram()
    fifo_depth: int = parameter(32, 2, 4096, "flits in each input FIFO of a router")
    staging_flits: int = parameter(128, 1, 1433, "flits of program staging in the orchestrator")
    tx_depth: int = parameter(16, 2, 1024, "flits in the orchestrator's transmit FIFO")
    rx_depth: int = parameter(16, 2, 1024, "flits in the orchestrator's receive FIFO")
    errata: frozenset[str] = frozenset()
    compile_only: bool = False

    def __post_init__(self) -> None:
        for broken in _broken_rules(self):
            raise broken

    @property
    def units(self) -> tuple[Unit, ...]:
        """Clusters and vector cores together, in scan order."""
        return tuple(sorted((*self.clusters, *self.vectors), key=lambda unit: (unit.y, unit.x)))

    @property
    def credit_limit(self) -> int:
        """The most dispatch credit there is: what the smallest instruction FIFO of the machine holds."""
        return min(unit.inst_depth for unit in self.units)

    @property
    def grid_hi(self) -> int:
        """GRID_HI as CAPS reports it: one bound for both axes."""
        return max(self.nx, self.ny)

    @property
    def placed(self) -> list[tuple[str, tuple[int, int]]]:
        """(what, (x, y)) of everything that stands on the mesh; an agent without an endpoint of its own does not."""
        placed = [("memory port", port.xy) for port in self.ports]
        placed += [("cluster", unit.xy) for unit in self.clusters]
        placed += [("vector core", unit.xy) for unit in self.vectors]
        placed += [("spare port", xy) for xy in self.spare]
        if self.agent.own_endpoint:
            placed.append(("agent", self.agent.xy))
        return placed

    def port_of(self, unit: Unit) -> MemoryPort:
        """The memory port a unit is bound to."""
        return self.ports[unit.port]

    def clamp(self, x: int, y: int) -> tuple[int, int]:
        """The router that serves a coordinate."""
        return _clamp(self.nx, self.ny, x, y)

    def nearest_port(self, x: int, y: int) -> int:
        """Index of the port nearest to a coordinate (Manhattan, clamped); the first in scan order on a tie."""
        return nearest_port(self.nx, self.ny, [port.xy for port in self.ports], x, y)

    def site_kind(self, x: int, y: int) -> str:
        """'local', 'edge', 'corner' or 'outside', for a coordinate on this grid."""
        return site_kind(self.nx, self.ny, x, y)

    def require_mesh(self) -> None:
        """Raise MachineError unless the machine can be built, rather than only compiled for."""
        if self.compile_only:
            raise MachineError(
                f"machine {self.name} is compile-only: some of its coordinates cannot exist on a mesh, "
                "so kernels can be compiled for it and nothing can be built or run"
            )


def site_kind(nx: int, ny: int, x: int, y: int) -> str:
    """What a coordinate is on an nx by ny grid: 'local', 'edge', 'corner' or 'outside'."""
    if not (0 <= x <= nx + 1 and 0 <= y <= ny + 1):
        return "outside"
    on_x, on_y = x in (0, nx + 1), y in (0, ny + 1)
    if on_x and on_y:
        return "corner"
    return "edge" if on_x or on_y else "local"


def nearest_port(nx: int, ny: int, ports: list[tuple[int, int]], x: int, y: int) -> int:
    """Index into `ports` (scan order) of the nearest one on clamped coordinates (spec: map grammar, binding)."""
    cx, cy = _clamp(nx, ny, x, y)
    distance = [abs(cx - px) + abs(cy - py) for px, py in (_clamp(nx, ny, *port) for port in ports)]
    return distance.index(min(distance))


def _clamp(nx: int, ny: int, x: int, y: int) -> tuple[int, int]:
    return min(max(x, 1), nx), min(max(y, 1), ny)


def _broken_rules(machine: Machine) -> Iterator[MachineError]:
    """Every rule a machine breaks, the most basic first."""
    if not isinstance(machine.name, str) or not _NAME.fullmatch(machine.name):
        yield MachineError(f"name {machine.name!r}; letters, digits and _ . + - are expected", subject=("name",))
    for axis, size in (("wide", machine.nx), ("tall", machine.ny)):
        if not isinstance(size, int) or not 1 <= size <= GRID_MAX:
            yield MachineError(
                f"the grid is {size} routers {axis}; 1 to {GRID_MAX} fit, since {COORDINATE_MAX + 1} coordinates an "
                "axis hold the edge ring too",
                subject=("grid",),
            )
    yield from _broken_places(machine)
    yield from _broken_order(machine)
    yield from _broken_parameters(machine)
    yield from _broken_bindings(machine)
    for identifier in sorted(machine.errata - REGISTRY.keys()):
        yield MachineError(f"unknown erratum {identifier!r}", subject=("errata",))


def _broken_places(machine: Machine) -> Iterator[MachineError]:
    span = f"on a {machine.nx}x{machine.ny} grid, which spans (0,0) to ({machine.nx + 1},{machine.ny + 1})"
    standing: dict[tuple[int, int], str] = {}
    for what, xy in machine.placed:
        subject = (("site", what, xy),)
        at = f"{what} at ({xy[0]},{xy[1]})"
        if not all(0 <= c <= COORDINATE_MAX for c in xy):
            yield MachineError(f"{at}: a coordinate is 0 to {COORDINATE_MAX}", subject=subject)
        if not machine.compile_only:
            kind = machine.site_kind(*xy)
            if kind == "outside":
                yield MachineError(f"{at} is outside the mesh {span}", subject=subject)
            if kind == "corner":
                yield MachineError(f"{at} is at a corner {span}; a corner has no router", subject=subject)
            if kind == "local" and what == "memory port":
                yield MachineError(f"{at} is in the interior {span}; a memory port stands on the edge", subject=subject)
        # a compile-only machine may say that the agent shares a unit's place; nothing else may
        if xy in standing and not (machine.compile_only and what == "agent"):
            yield MachineError(f"{at}: that coordinate already holds a {standing[xy]}", subject=subject)
        standing[xy] = what
    if not machine.ports:
        yield MachineError(f"no memory port; a machine has 1 to {MAX_PORTS}", subject=("ports",))
    if len(machine.ports) > MAX_PORTS:
        yield MachineError(
            f"{counted(len(machine.ports), 'memory port')}; the memory agent has at most {MAX_PORTS}",
            subject=(("site", "memory port", machine.ports[MAX_PORTS].xy),),
        )
    if not machine.clusters and not machine.vectors:
        yield MachineError("no unit; a machine has a cluster or a vector core", subject=("units",))
    if not machine.agent.own_endpoint and machine.agent.xy != machine.ports[0].xy:
        yield MachineError(
            f"the agent at {machine.agent.xy} has no endpoint of its own, so it answers at memory port 0, "
            f"{machine.ports[0].xy}"
        )


def _broken_order(machine: Machine) -> Iterator[MachineError]:
    for what in ("ports", "clusters", "vectors", "spare"):
        places = [site if what == "spare" else site.xy for site in getattr(machine, what)]
        if places != sorted(places, key=lambda xy: (xy[1], xy[0])):
            yield MachineError(f"{what} {places} are not in scan order (y outer, x inner)")


def _broken_parameters(machine: Machine) -> Iterator[MachineError]:
    for thing in (machine, machine.memory, *machine.ports, *machine.clusters, *machine.vectors):
        at = f" at ({thing.x},{thing.y})" if isinstance(thing, _Site) else ""
        for name, record in parameters(type(thing)).items():
            value = getattr(thing, name)
            wrong = check_parameter(value, record)
            if wrong:
                yield MachineError(f"{type(thing).__name__}{at}: {name} = {value!r}; {wrong}")


def _broken_bindings(machine: Machine) -> Iterator[MachineError]:
    for unit in machine.units:
        if not 0 <= unit.port < len(machine.ports):
            yield MachineError(
                f"the unit at {unit.xy} is bound to memory port {unit.port}; ports are 0 to {len(machine.ports) - 1}"
            )
    for index, port in enumerate(machine.ports):
        writers = sum(unit.port == index for unit in machine.units) + machine.agent.own_endpoint
        if port.write_slots < writers:
            yield MachineError(
                f"memory port at ({port.x},{port.y}) has {counted(port.write_slots, 'write slot')} for "
                f"{counted(writers, 'endpoint')} that "
                "may each hold a write open; its write queue could block for good",
                subject=(
                    ("override", port.xy, "write_slots"),
                    ("port", "write_slots"),
                    ("site", "memory port", port.xy),
                ),
            )


def check_parameter(value: int, record: dict) -> str:
    """What is wrong with a parameter's value, or an empty string."""
    low, high, unit = record["low"], record["high"], record["unit"]
    if isinstance(value, bool) or not isinstance(value, int):
        return "an integer is expected"
    if not low <= value <= high:
        return f"{low} to {high} is expected"
    if record["power_of_two"] and value & (value - 1):
        return f"a power of two from {low} to {high} is expected"
    if value % unit:
        return f"a multiple of {unit} is expected"
    return ""
