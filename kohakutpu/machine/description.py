"""A machine as data: frozen dataclasses, and the rules every machine obeys (spec: coordinates, ships, parameters).

`Machine` checks itself when it is made, so a machine that exists is a machine that can be built (or says
`compile_only`). A broken rule raises `MachineError` whose `subject` names what was wrong; whoever read the
machine from a file turns that into a line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields

from kohakutpu.isa.flit import node

GRID_MAX = 14  # POS_WIDTH 4 leaves 16 columns, two of which are the edge ring
COORDINATE_MAX = 15
MAX_PORTS = 4  # MEM_PORTS of the memory agent


class MachineError(ValueError):
    """A machine description that is refused.

    `where` is `file:line:column` once known; `subject` is the key path of the offending statement, for
    whoever knows the lines.
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
    tiles: int = parameter(256, 4, 32768, "4x4 sub-tiles of accumulator storage", power_of_two=True)
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

    bytes: int = parameter(64 << 20, 64 << 10, 64 << 30, "size", unit=4096)
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
    def grid_hi(self) -> int:
        """GRID_HI as CAPS reports it: one bound for both axes."""
        return max(self.nx, self.ny)

    def port_of(self, unit: Unit) -> MemoryPort:
        """The memory port a unit is bound to."""
        return self.ports[unit.port]

    def clamp(self, x: int, y: int) -> tuple[int, int]:
        """The router that serves a coordinate."""
        return min(max(x, 1), self.nx), min(max(y, 1), self.ny)

    def nearest_port(self, x: int, y: int) -> int:
        """Index of the port at the least Manhattan distance on clamped coordinates; the first in scan order on a tie."""
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

    def clamp(x: int, y: int) -> tuple[int, int]:
        return min(max(x, 1), nx), min(max(y, 1), ny)

    cx, cy = clamp(x, y)
    distance = [abs(cx - px) + abs(cy - py) for px, py in (clamp(*port) for port in ports)]
    return distance.index(min(distance))


def _broken_rules(machine: Machine) -> Iterator[MachineError]:
    """Every rule a machine breaks, the most basic first."""
    for axis, size in (("wide", machine.nx), ("tall", machine.ny)):
        if not 1 <= size <= GRID_MAX:
            yield MachineError(
                f"the grid is {size} routers {axis}; 1 to {GRID_MAX} are possible with {COORDINATE_MAX + 1} coordinates "
                "an axis, two of which are the edge ring",
                subject=("grid",),
            )
    yield from _broken_places(machine)
    yield from _broken_order(machine)
    yield from _broken_parameters(machine)
    for unit in machine.units:
        if not 0 <= unit.port < len(machine.ports):
            yield MachineError(
                f"the unit at {unit.xy} is bound to memory port {unit.port}; this machine has {len(machine.ports)}",
                subject=("override", unit.xy, "port"),
            )
    for index, port in enumerate(machine.ports):
        writers = sum(unit.port == index for unit in machine.units) + machine.agent.own_endpoint
        if port.write_slots < writers:
            yield MachineError(
                f"memory port {port.xy} has {port.write_slots} write slots for {writers} endpoints that may each hold "
                "a write open: its write queue could block for good",
                subject=("parameter", port.xy, "write_slots"),
            )


def _broken_places(machine: Machine) -> Iterator[MachineError]:
    standing: dict[tuple[int, int], str] = {}
    named: list[tuple[str, tuple[int, int]]] = [
        *(("memory port", port.xy) for port in machine.ports),
        *(("cluster", unit.xy) for unit in machine.clusters),
        *(("vector core", unit.xy) for unit in machine.vectors),
        *(("spare port", xy) for xy in machine.spare),
    ]
    if machine.agent.own_endpoint:
        named.append(("agent", machine.agent.xy))
    for what, xy in named:
        subject = ("site", what, xy)
        kind = machine.site_kind(*xy)
        if not all(0 <= c <= COORDINATE_MAX for c in xy):
            yield MachineError(f"{what} at {xy}: a coordinate is 0 to {COORDINATE_MAX}", subject=subject)
        elif not machine.compile_only:
            ring = f"on a {machine.nx}x{machine.ny} grid, which spans (0,0) to ({machine.nx + 1},{machine.ny + 1})"
            if kind == "outside":
                yield MachineError(f"{what} at {xy} is outside the mesh: {ring}", subject=subject)
            elif kind == "corner":
                yield MachineError(f"{what} at {xy} is at a corner {ring}; corners have no router", subject=subject)
            elif kind == "local" and what == "memory port":
                yield MachineError(
                    f"memory port at {xy} is in the interior; a memory port stands on the edge ring", subject=subject
                )
        taken = standing.get(xy)
        if taken is not None and not (machine.compile_only and what == "agent"):
            yield MachineError(f"{what} at {xy}: that coordinate already holds a {taken}", subject=subject)
        standing.setdefault(xy, what)
    if not machine.ports:
        yield MachineError("no memory port: a machine needs 1 to 4", subject=("ports",))
    if len(machine.ports) > MAX_PORTS:
        extra = machine.ports[MAX_PORTS].xy
        yield MachineError(
            f"{len(machine.ports)} memory ports; the memory agent has at most {MAX_PORTS}",
            subject=("site", "memory port", extra),
        )
    if not machine.clusters and not machine.vectors:
        yield MachineError("no unit: a machine needs a cluster or a vector core", subject=("units",))
    if not machine.agent.own_endpoint and machine.ports and machine.agent.xy != machine.ports[0].xy:
        yield MachineError(
            f"the agent at {machine.agent.xy} has no endpoint of its own, so it must be at memory port 0, "
            f"{machine.ports[0].xy}",
            subject=("site", "agent", machine.agent.xy),
        )


def _broken_order(machine: Machine) -> Iterator[MachineError]:
    for what, sites in (("ports", machine.ports), ("clusters", machine.clusters), ("vectors", machine.vectors)):
        places = [site.xy for site in sites]
        if places != sorted(places, key=lambda xy: (xy[1], xy[0])):
            yield MachineError(f"{what} {places} are not in scan order (y outer, x inner)", subject=(what,))


def _broken_parameters(machine: Machine) -> Iterator[MachineError]:
    owners = [("machine", machine), ("memory", machine.memory)]
    owners += [(site.xy, site) for site in (*machine.ports, *machine.clusters, *machine.vectors)]
    for owner, thing in owners:
        for name, record in parameters(type(thing)).items():
            value = getattr(thing, name)
            wrong = check_parameter(value, record)
            if wrong:
                at = f" at {owner}" if isinstance(owner, tuple) else ""
                yield MachineError(
                    f"{type(thing).__name__}{at}: {name} = {value!r}; {wrong}", subject=("parameter", owner, name)
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
