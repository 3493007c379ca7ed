"""The tracks of a machine's trace: names, kinds and owners, the same for the models and the gates.

What each track shows, to the cycle, is `docs/trace.md`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from kohakutpu.isa.cluster import Op
from kohakutpu.isa.fields import Layout, field
from kohakutpu.isa.vector import Envelope
from kohakutpu.machine import Machine

AGENTS = ("orchestrator", "bench")


class Track(NamedTuple):
    """A named line of a trace. `kind` is 'level', 'span' (a level that is 0 when idle) or 'event'; `unit` its owner."""

    name: str
    kind: str
    unit: str


class Decode(IntEnum):
    """Values of a vector core's `decode` track."""

    OFF = 0
    WORD = 1
    FETCH = 2
    PIPELINE = 3
    FILL = 4
    DRAIN = 5


class Inbound(IntEnum):
    """Values of a cluster's `receive` track."""

    NONE = 0
    L1 = 1
    PEER_WAIT = 2
    PEER = 3
    REJECT = 4


BEGIN = Layout(
    "begin", 64,
    [field("op", 12, 9, "opcode"), field("last", 8, 8, "last of its program"), field("txn", 7, 0, "txn", hex=True)],
    "value of a `begin` event",
)  # fmt: skip
RETIRE = Layout(
    "retire", 64,
    [
        field("result", 41, 10, "what the unit returned", hex=True), field("fault", 9, 9, "the completion is a FAULT"),
        field("last", 8, 8, "last of its program"), field("txn", 7, 0, "txn", hex=True),
    ],
    "value of a `retire` event",
)  # fmt: skip

_ENDPOINT = (("inst", "level"), ("recv", "level"), ("completions", "level"), ("begin", "event"), ("retire", "event"))
_CLUSTER = (
    ("fill", "span"), ("sweep", "span"), ("array", "span"), ("drain", "span"), ("results", "level"),
    ("receive", "span"),
)  # fmt: skip
_VECTOR = (
    ("run", "span"), ("decode", "span"), ("fill", "span"), ("requests", "level"), ("drain", "span"),
    ("receive", "span"),
)  # fmt: skip
_PORT = (("reads", "level"), ("writes", "level"), ("flight", "level"))
_DRAM = (("dram.read", "span"), ("dram.write", "span"))
_ORCHESTRATOR = (("tx", "level"), ("rx", "level"), ("credit", "level"), ("run", "span"))

STEP = {"north": (0, -1), "east": (1, 0), "south": (0, 1), "west": (-1, 0), "local": (0, 0)}


def tracks(machine: Machine, *, agent: str = "orchestrator") -> list[Track]:
    """The tracks of `machine` by index; `agent` is what stands in the agent's place."""
    if agent not in AGENTS:
        raise ValueError(f"agent {agent!r}: {' or '.join(map(repr, AGENTS))} is expected")
    found: list[Track] = []

    def add(unit: str, *groups) -> None:
        found.extend(Track(f"{unit}.{name}", kind, unit) for group in groups for name, kind in group)

    own = machine.agent.own_endpoint
    sites = {site.xy for site in (*machine.ports, *machine.units, *([machine.agent] if own else []))}
    for y in range(1, machine.ny + 1):
        for x in range(1, machine.nx + 1):
            for port, (dx, dy) in STEP.items():
                inside = 1 <= x + dx <= machine.nx and 1 <= y + dy <= machine.ny and port != "local"
                if inside or (x + dx, y + dy) in sites:
                    found.append(Track(f"r{x:x}{y:x}.{port}", "level", f"r{x:x}{y:x}"))
    intake = (("intake", "level"),)
    for index in range(len(machine.ports)):
        add(f"mag{index}", _PORT, _DRAM, () if own else intake)
    add("window", _DRAM)
    if agent == "orchestrator":
        add("mover", _DRAM)
    add("agent", intake if own else (), _ORCHESTRATOR if agent == "orchestrator" else ())
    for index in range(len(machine.clusters)):
        add(f"cluster{index}", _ENDPOINT, _CLUSTER)
    for index in range(len(machine.vectors)):
        add(f"vector{index}", _ENDPOINT, _VECTOR)
    return found


def _named(kind: type[IntEnum], value: int) -> str:
    return kind(value).name if value in kind.__members__.values() else f"{value:#x}"


def value_text(track: Track, value: int) -> str:
    """A value of `track` for people: `= 3`, `= PEER_WAIT (2)`, `FILL txn 0x05`, `result 0x2 txn 0x05 last`."""
    name, cluster = track.name.removeprefix(f"{track.unit}."), track.unit.startswith("cluster")
    if track.kind == "event":
        fields = (BEGIN if name == "begin" else RETIRE).decode(value)
        what = _named(Op if cluster else Envelope, fields["op"]) if name == "begin" else f"result {fields['result']:#x}"
        flags = [flag for flag in ("last", "fault") if fields.get(flag)]
        return " ".join([what, f"txn {fields['txn']:#04x}", *flags])
    kind = Decode if name == "decode" else Inbound if name == "receive" and cluster else None
    return f"= {value}" if kind is None else f"= {_named(kind, value)} ({value})"
