"""What functional coverage counts: the bins of a machine, derived from the tables of `kohakutpu.isa`, and why some of
them cannot be hit.

A group's bins are names. `universe` gives each its reason where it is left out, "" where it is to be reached.
"""

from __future__ import annotations

from collections.abc import Iterator

from kohakutpu.isa import cluster, vector
from kohakutpu.isa.fields import Field, Layout
from kohakutpu.isa.memory import MEM_REQ, MEM_WR
from kohakutpu.isa.signals import CU_CTRL_REQUEST, CU_DATA, ControlIndex, SignalCode
from kohakutpu.isa.vector import ALU_OPS, COMPARES, OPERANDS, STAGES, DType, Fault, Mask, Mode, Opcode, RedKind, Source
from kohakutpu.machine import Machine
from kohakutpu.noc.router import Port, RouteTable
from kohakutpu.noc.trace_tracks import STEP

Bins = dict[str, dict[str, str]]
LINES = ("free", "contended")
DIRECT = (Opcode.VLD, Opcode.VST, Opcode.VCVT)
FIRST, LATER = (Source.V, Source.S, Source.K), (Source.C, Source.S, Source.K)
OWN_MODE = (Opcode.VCVT, Opcode.VRED, Opcode.VLD, Opcode.VST)  # whose mode is crossed with something else
FIFOS = {
    "router input": "", "cluster instructions": "", "cluster receive": "", "cluster completions": "",
    "cluster results": "", "vector instructions": "", "vector receive": "", "vector completions": "",
    "vector requests": "", "memory reads": "", "memory writes": "", "memory flight": "", "agent intake": "",
}  # fmt: skip


def corner(field: Field, value: int) -> str:
    """The bin of a field's value: each one of an enumeration or of up to two bits, else 0, 1, the greatest, another."""
    if field.enum is not None and value in field.enum._value2member_map_:
        return field.enum(value).name
    if field.width <= 2 or value <= 1:
        return str(value)
    return "max" if value == (1 << field.width) - 1 else "other"


def corners(field: Field) -> list[str]:
    """Every bin of a field."""
    named = [] if field.enum is None else [int(member) for member in field.enum]
    if field.enum is not None and not field.open:
        values = named
    else:
        top = (1 << field.width) - 1
        values = [*range(top + 1)] if field.width <= 2 else [*named, 0, 1, top - 1, top]
    return list(dict.fromkeys(corner(field, value) for value in values))


def field_bins(layout: Layout, value: int, title: str) -> Iterator[str]:
    """The bins that one word of `layout` hits."""
    for name, found in layout.decode(value).items():
        if not layout.fields[name].fixed:
            yield f"{title}.{name}={corner(layout.fields[name], found)}"


def _fields(layout: Layout, title: str, left_out: dict[str, str]) -> dict[str, str]:
    bins = {
        f"{title}.{field.name}={name}": ""
        for field in layout.fields.values()
        if not field.fixed
        for name in corners(field)
    }
    unknown = left_out.keys() - bins.keys()
    assert not unknown, f"{title} has no bins {sorted(unknown)}"
    return bins | left_out


def _cluster() -> dict[str, str]:
    bins: dict[str, str] = {}
    left_out = {
        "FILL": {"FILL.n=max": "a FILL counts at most 255 entries: refused, in the group of faults"},
        "DRAIN": {"DRAIN.n=max": "65,535 sub-tiles take 74,000 cycles; 300 wrap the store and fill the queue as well"},
        "GEMM": {},
    }
    for op, layout in cluster.LAYOUTS.items():
        name = cluster.Op(op).name
        bins |= _fields(layout, name, left_out[name])
    for acc in (0, 1):
        for emit in (0, 1):
            for blocks in ("one K block", "more"):
                bins[f"GEMM acc={acc} emit={emit}, {blocks}"] = ""
    for bank in ("0 0", "0 1", "1 0", "1 1"):
        bins[f"GEMM banks {bank}"] = ""
    for who in ("DRAIN", "fused DRAIN", "emitting GEMM"):
        for where in ("memory", "node buffer 0", "node buffer 1", "node buffer 2", "node other buffer", "remote"):
            bins[f"{who} to {where}"] = ""
    bins |= {f"FILL {side} {kind}": "" for side in "AB" for kind in ("converted", "MXFP7")}
    return bins


def _vector() -> dict[str, str]:
    bins: dict[str, str] = {}
    for op in sorted(ALU_OPS):
        for mode in STAGES:
            for place, sources in (("first", FIRST), ("later", LATER)):
                if mode == Mode.FLAT and place == "later":
                    continue
                bins |= {
                    f"{op.name} {mode.name} {place} {operand}={source.name}": ""
                    for operand in OPERANDS[op]
                    for source in sources
                }
        if op not in COMPARES:
            bins |= {f"{op.name} pm={mask.name}": "" for mask in Mask}
    for op in DIRECT:
        bins |= {f"{op.name} {mode.name} {dtype.name}": "" for mode in Mode for dtype in DType}
    for kind in RedKind:
        for mode in Mode:
            why = "" if kind >= RedKind.ANY or mode == Mode.TREE else "a reduction outside of TREE is F_OPCODE"
            bins[f"VRED {kind.name} {mode.name}"] = why
    bins |= {f"{op.name} {mode.name}": "" for op in Opcode if op not in ALU_OPS and op not in OWN_MODE for mode in Mode}
    bins |= {f"VDRAIN peer {mode.name}": "" for mode in Mode}
    bins |= {f"{op.name} sa={source.name}": "" for op in (Opcode.VBCAST, Opcode.VSETI) for source in Source}
    bins |= {f"loop count {count}": "" for count in ("0", "1", "2", "more")} | {"loop of no words": ""}
    bins |= {f"VL {kind}": "" for kind in ("1", "whole chunks", "a tail", "128")}
    for what in ("VFILL", "VDRAIN", "VLD", "VST"):
        bins |= {f"{what} {dims} dimensions": "" for dims in range(5)}
    for what in ("VFILL", "VDRAIN"):
        bins |= {f"{what} stride {kind}": "" for kind in ("32", "0", "negative", "multiple of 32", "odd")}
        bins |= {f"{what} {words} words": "" for words in ("1", "256", "other")}
    bins |= _fields(vector.PEER_RECORD, "peer", {})
    bins |= {f"peer buffer {buf}": "" for buf in ("0", "1", "2", "other")} | {
        f"peer signal={signal}": "" for signal in (0, 1)
    }
    return bins


def _requests() -> dict[str, str]:
    bins = _fields(MEM_REQ, "MEM_RD_REQ", {}) | _fields(MEM_WR, "MEM_WR_REQ", {
        "MEM_WR_REQ.len=max": "a write has at most 8 beats",
    })  # fmt: skip
    bins |= {f"read stream={s} quant={q} blayout={b}": "" for s in (0, 1) for q in (0, 1) for b in (0, 1)}
    bins |= {f"entry of {words} words": "" for words in range(1, 5)} | {
        f"write of {words} words": "" for words in range(1, 9)
    }
    return (
        bins
        | {f"{what} refused: outside the memory": "" for what in ("read", "write")}
        | {"write refused: too long": ""}
    )


def _signals() -> dict[str, str]:
    bins = {}
    for unit in ("cluster", "vector"):
        for code in SignalCode:
            bins[f"{unit} {code.name}"] = (
                "no unit sends it: barriers are the controller's" if code == SignalCode.BARRIER_REACHED else ""
            )
        bins |= {f"{unit} answers {index.name}": "" for index in ControlIndex} | {f"{unit} answers another index": ""}
    return bins


def _faults() -> dict[str, str]:
    bins = {f"vector {fault.name}": "" for fault in Fault}
    causes = (
        "FILL of too many entries",
        "fused DRAIN without its GEMM",
        "fused DRAIN of another count",
        "refused burst",
    )
    return bins | {f"cluster {cause}": "" for cause in causes}


def router_inputs(machine: Machine) -> dict[tuple[str, Port], str]:
    """The link behind each input of each router that has one, by (router, port)."""
    sites = {machine.agent.node: "agent"} if machine.agent.own_endpoint else {}
    for kind, places in (("mag", machine.ports), ("cluster", machine.clusters), ("vector", machine.vectors)):
        sites |= {place.node: f"{kind}{at}" for at, place in enumerate(places)}
    inputs = {}
    for y in range(1, machine.ny + 1):
        for x in range(1, machine.nx + 1):
            for name, (dx, dy) in STEP.items():
                there, port = (x + dx, y + dy), Port[name.upper()]
                back = {"north": "south", "south": "north", "east": "west", "west": "east"}.get(name)
                if back and 1 <= there[0] <= machine.nx and 1 <= there[1] <= machine.ny:
                    inputs[f"r{x:x}{y:x}", port] = f"r{there[0]:x}{there[1]:x}.{back}"
                elif (at := there[1] << 4 | there[0]) in sites:
                    inputs[f"r{x:x}{y:x}", port] = f"{sites[at]}.out"
    return inputs


def turns(machine: Machine) -> Iterator[tuple[str, Port, Port]]:
    """(router, input, output) of every way through a router that its wires allow."""
    inputs = router_inputs(machine)
    for router, source in inputs:
        x, y = int(router[1], 16), int(router[2], 16)
        masked = RouteTable(x, y, machine.nx, machine.ny).masked
        for target in Port:
            if (source, target) not in masked:
                yield router, source, target


def turn_name(router: str, source: Port, target: Port, line: str) -> str:
    return f"{router} {source.name.lower()} to {target.name.lower()}, {line}"


def _routers(machine: Machine) -> dict[str, str]:
    ways = list(turns(machine))
    bins = {}
    for router, source, target in ways:
        rivals = [other for r, other, t in ways if (r, t) == (router, target) and other != source]
        for line in LINES:
            alone = line == "contended" and not rivals
            bins[turn_name(router, source, target, line)] = "no other input leads there" if alone else ""
    return bins


def _fifos(machine: Machine) -> dict[str, str]:
    bins = dict(FIFOS)
    if len(machine.ports) == 1 or machine.agent.own_endpoint:
        bins["agent intake"] = (
            "one flit a cycle comes and one a cycle goes: a bench never keeps the agent's only port waiting"
        )
    return bins


def universe(machine: Machine) -> Bins:
    """Every bin of `machine`, by group."""
    groups = {
        "cluster instructions": _cluster() if machine.clusters else {},
        "vector words": _vector() if machine.vectors else {},
        "memory requests": _requests(), "CU_DATA descriptors": _fields(CU_DATA, "CU_DATA", {}),
        "CU_CTRL requests": _fields(CU_CTRL_REQUEST, "CU_CTRL", {"CU_CTRL.op=REPLY": "a reply is no request"}),
        "signals": _signals(), "faults": _faults(), "router turns": _routers(machine), "FIFOs full": _fifos(machine),
    }  # fmt: skip
    for unit, places in (("cluster", machine.clusters), ("vector", machine.vectors)):
        if not places:
            for name in ("signals", "faults", "FIFOs full"):
                groups[name] = {key: why for key, why in groups[name].items() if not key.startswith(unit)}
    return groups
