"""Which bins a run hits: what was sent, and what its trace shows."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable

from kohakutpu.fuzz.bins import field_bins, router_inputs, turn_name, turns
from kohakutpu.fuzz.coverage import Coverage
from kohakutpu.fuzz.kernel_walk import KernelWalk
from kohakutpu.isa import cluster
from kohakutpu.isa.cluster import FILL_LIMIT, Op, Side
from kohakutpu.isa.flit import Flit, FlitType
from kohakutpu.isa.framing import Framing
from kohakutpu.isa.memory import ENTRY_WORDS, MEM_REQ, MEM_WR, WORD_BYTES, WRITE_BEATS, decode_request
from kohakutpu.isa.signals import (
    CU_CTRL_REPLY,
    CU_CTRL_REQUEST,
    CU_DATA,
    CU_SIGNAL,
    ControlIndex,
    ControlOp,
    SignalCode,
)
from kohakutpu.isa.vector import Fault
from kohakutpu.machine import ClusterUnit
from kohakutpu.noc.router import Port, RouteTable
from kohakutpu.noc.trace import Level, Record, Transfer
from kohakutpu.noc.trace_tracks import Inbound, tracks

QUEUE_MARGIN = 4  # a memory port's queue counts as full this much early
FULL = {"completions": 16, "results": 128, "requests": 32, "flight": 64, "intake": 2}  # depths that no machine changes


class Watch:
    """Follows one run of a machine from reset on, for `coverage`; `links` are names of the trace's links, by index."""

    def __init__(self, coverage: Coverage, links: Iterable[str]):
        self.machine = machine = coverage.machine
        self._coverage = coverage
        self._links = list(links)
        self._units = {unit.node: unit for unit in machine.units}
        self._ports = {port.node for port in machine.ports}
        self._kernels = {unit.node: KernelWalk() for unit in machine.vectors}
        self._last_batch: dict[int, int] = {}  # granules of a cluster's last batch, 0 if it is no GEMM's
        self._framing: dict[int, Framing] = defaultdict(Framing)
        self._wire()

    def _hit(self, group: str, *names: str) -> None:
        """Count bins. A name that the tables do not have is a mistake here or there."""
        for name in names:
            if name not in self._coverage.universe[group]:
                raise KeyError(f"{group} has no bin {name!r}")
        self._coverage.hits[group].update(names)

    # ---- what is sent ------------------------------------------------------------------------------------

    def sent(self, flits: Iterable[Flit]) -> None:
        """What the bench has sent, in order."""
        for flit in flits:
            unit = self._units.get(flit.dst)
            if flit.type == FlitType.CU_INST and isinstance(unit, ClusterUnit):
                self._instruction(flit.dst, flit.payload)
            elif flit.type == FlitType.CU_INST and unit is not None:
                self._hit("vector words", *self._kernels[flit.dst].take(flit.payload))
            elif flit.type == FlitType.CU_CTRL and unit is not None:
                self._hit("CU_CTRL requests", *field_bins(CU_CTRL_REQUEST, flit.payload, "CU_CTRL"))

    def _instruction(self, at: int, payload: int) -> None:
        inst = cluster.decode(payload)
        layout = cluster.LAYOUTS.get(inst.op)
        if layout is None:
            return
        if inst.op == Op.FILL and inst.n > FILL_LIMIT:
            self._hit("faults", "cluster FILL of too many entries")
            return
        name, batch = Op(inst.op).name, max(inst.gm, 1) * max(inst.gn, 1)
        self._hit("cluster instructions", *field_bins(layout, payload, name))
        where = (
            ("remote" if inst.dfin else f"node buffer {inst.dbuf}" if inst.dbuf < 3 else "node other buffer")
            if inst.dnode
            else "memory"
        )
        if inst.op == Op.FILL:
            self._hit("cluster instructions", f"FILL {Side(inst.sel).name} {'MXFP7' if inst.preq else 'converted'}")
        elif inst.op == Op.GEMM:
            blocks = "one K block" if max(inst.nk, 1) == 1 else "more"
            self._hit(
                "cluster instructions",
                f"GEMM acc={inst.acc} emit={inst.emit}, {blocks}",
                f"GEMM banks {inst.abank} {inst.bbank}",
            )
            if inst.emit:
                self._hit("cluster instructions", f"emitting GEMM to {where}")
                self._last_batch[at] = batch
        elif not inst.fuse:
            self._hit("cluster instructions", f"DRAIN to {where}")
            self._last_batch[at] = 0
        else:
            self._hit("cluster instructions", f"fused DRAIN to {where}")
            last = self._last_batch.get(at, 0)
            if last != max(inst.n, 1):
                self._hit("faults", f"cluster fused DRAIN {'of another count' if last else 'without its GEMM'}")

    # ---- what the trace shows ----------------------------------------------------------------------------

    def _wire(self) -> None:
        machine, index = self.machine, {name: at for at, name in enumerate(self._links)}
        self._into: dict[int, tuple[str, Port]] = {}
        self._out: dict[int, tuple[str, Port]] = {}
        self._queues: dict[tuple[str, Port], deque[Flit]] = {}
        self._rivals: dict[tuple[str, Port], list[Port]] = defaultdict(list)
        self._routes: dict[str, tuple[Port, ...]] = {}
        for place, link in router_inputs(machine).items():
            self._into[index[link]] = place
            self._queues[place] = deque()
        for router, source, target in turns(machine):
            self._rivals[router, target].append(source)
            self._out[index[f"{router}.{target.name.lower()}"]] = router, target
            x, y = int(router[1], 16), int(router[2], 16)
            self._routes[router] = RouteTable(x, y, machine.nx, machine.ny).port
        self._full: dict[int, tuple[str, int]] = {}
        self._receivers: set[int] = set()
        for at, track in enumerate(tracks(machine, agent="bench")):
            if (full := self._depth(track.name, track.unit)) is not None:
                self._full[at] = full
            if track.unit.startswith("cluster") and track.name.endswith(".receive"):
                self._receivers.add(at)

    def _depth(self, track: str, owner: str) -> tuple[str, int] | None:
        """(bin, level at which it is full) of a track that is a FIFO's."""
        machine, name = self.machine, track.removeprefix(f"{owner}.")
        kind = owner.rstrip("0123456789")
        if name.upper() in Port.__members__:
            return "router input", machine.fifo_depth + 1
        if kind == "mag" and name in ("reads", "writes"):
            return f"memory {name}", machine.ports[int(owner.removeprefix("mag"))].queue_depth - QUEUE_MARGIN
        if kind == "mag" and name == "flight":
            return "memory flight", FULL[name]
        if name == "intake":
            return "agent intake", FULL[name]
        if kind in ("cluster", "vector"):
            unit = (machine.clusters if kind == "cluster" else machine.vectors)[int(owner.removeprefix(kind))]
            if name in ("inst", "recv"):
                return (
                    f"{kind} {'instructions' if name == 'inst' else 'receive'}",
                    unit.inst_depth if name == "inst" else unit.recv_depth,
                )
            if name in FULL:
                return f"{kind} {name}", FULL[name]
        return None

    def records(self, records: Iterable[Record]) -> None:
        """Records of a trace, in order."""
        for record in records:
            if isinstance(record, Transfer):
                self._transfer(record.link, record.flit)
            elif isinstance(record, Level):
                if (full := self._full.get(record.track)) is not None and record.value >= full[1]:
                    self._hit("FIFOs full", full[0])
                elif record.track in self._receivers and record.value == Inbound.REJECT:
                    self._hit("faults", "cluster refused burst")

    def _transfer(self, link: int, flit: Flit) -> None:
        if (out := self._out.get(link)) is not None:
            self._leaves(*out, flit)
            if link not in self._into:
                self._delivered(flit)
        if (place := self._into.get(link)) is not None:
            self._queues[place].append(flit)
            if not self._links[link].startswith("r"):
                self._entered(link, flit)

    def _leaves(self, router: str, target: Port, flit: Flit) -> None:
        """A flit leaves by `target`: contended if the oldest flit of another input wants to leave there too."""
        routes, wanting = self._routes[router], []
        for source in self._rivals[router, target]:
            queue = self._queues[router, source]
            if queue and routes[queue[0].dst] == target:
                wanting.append(source)
        for source in wanting:
            if self._queues[router, source][0] == flit:
                self._queues[router, source].popleft()
                line = "contended" if len(wanting) > 1 else "free"
                self._hit("router turns", turn_name(router, source, target, line))
                return

    def _entered(self, link: int, flit: Flit) -> None:
        """An endpoint has sent `flit`."""
        unit = self._units.get(flit.src)
        kind = "cluster" if isinstance(unit, ClusterUnit) else "vector"
        if flit.type == FlitType.CU_DATA and self._framing[link].is_descriptor(flit):
            self._hit("CU_DATA descriptors", *field_bins(CU_DATA, flit.payload, "CU_DATA"))
        elif flit.type == FlitType.CU_SIGNAL and unit is not None:
            code, arg = CU_SIGNAL.get(flit.payload, "code"), CU_SIGNAL.get(flit.payload, "arg")
            if code in SignalCode.__members__.values():
                self._hit("signals", f"{kind} {SignalCode(code).name}")
            if code == SignalCode.FAULT and kind == "vector" and arg in Fault.__members__.values():
                self._hit("faults", f"vector {Fault(arg).name}")
        elif (
            flit.type == FlitType.CU_CTRL
            and unit is not None
            and CU_CTRL_REPLY.get(flit.payload, "op") == ControlOp.REPLY
        ):
            index = CU_CTRL_REPLY.get(flit.payload, "index")
            known = index in ControlIndex.__members__.values()
            self._hit("signals", f"{kind} answers {ControlIndex(index).name if known else 'another index'}")

    def _delivered(self, flit: Flit) -> None:
        """`flit` has left the mesh."""
        if flit.dst not in self._ports:
            return
        size, request = self.machine.memory.bytes, decode_request(flit.payload)
        address = request.addr & -WORD_BYTES
        if flit.type == FlitType.MEM_WR_REQ:
            self._hit("memory requests", *field_bins(MEM_WR, flit.payload, "MEM_WR_REQ"))
            if request.len >= WRITE_BEATS:
                self._hit("memory requests", "write refused: too long")
                return
            self._hit("memory requests", f"write of {request.len + 1} words")
            if address + WORD_BYTES * (request.len + 1) > size:
                self._hit("memory requests", "write refused: outside the memory")
        elif flit.type == FlitType.MEM_RD_REQ:
            self._hit("memory requests", *field_bins(MEM_REQ, flit.payload, "MEM_RD_REQ"))
            self._hit(
                "memory requests", f"read stream={request.stream} quant={request.quant} blayout={request.blayout}"
            )
            if request.stream and not request.quant:
                words = request.entry_words
                self._hit("memory requests", f"entry of {words if 0 < words <= ENTRY_WORDS else ENTRY_WORDS} words")
            if address >= size:
                self._hit("memory requests", "read refused: outside the memory")
