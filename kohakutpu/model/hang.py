"""What a machine that stopped is doing: the report that every expired cycle budget ends in."""

from __future__ import annotations

from kohakutpu.isa.flit import Flit, type_name, xy
from kohakutpu.isa.signals import SignalCode


class Hang(RuntimeError):
    """A cycle budget passed before what was awaited came; the text ends with `report`."""

    exit_status = 4


def signal_text(signal: tuple[int, int, int] | None) -> str:
    """A (cycle, code, arg) signal record for people."""
    if signal is None:
        return "none"
    cycle, code, arg = signal
    name = SignalCode(code).name if code in SignalCode.__members__.values() else f"code {code:#04x}"
    return f"{name} arg {arg:#x} in cycle {cycle}"


def flit_text(flit: Flit) -> str:
    return f"{type_name(flit.type)} {xy(flit.src)} to {xy(flit.dst)} txn {flit.txn:#04x} last {flit.last}"


def report(system) -> str:
    """The state of every node, credits, open bursts, blocked links and the last flit of each link of a `System`."""
    engine = system.engine
    stopped = "nothing can change any more by itself" if engine.idle else "blocks are still at work"
    lines = [f"machine {system.machine.name} in cycle {engine.now}: {stopped}"]
    lines += ["nodes:"]
    agent = system.agent
    seen = getattr(agent, "last_signal", {})
    for block in (agent, *system.ports, *system.units.values()):
        lines += _indent(_described(block))
        if block.node in system.units:
            lines.append(f"    last signal raised: {signal_text(block.last_signal)}")
            lines.append(f"    last signal seen at the agent: {signal_text(seen.get(block.node))}")
    held = system.mesh.describe()
    lines += ["mesh:", *_indent(held or ["no flit is held in a router and none vanished"])]
    blocked = [link for link in engine.links if link.flit is not None]
    lines += ["blocked links:", *_indent([f"{link.name} holds {flit_text(link.flit)}" for link in blocked] or ["none"])]
    used = [link for link in engine.links if link.last is not None]
    lines += ["last flit on each link:"]
    lines += [f"  {link.name}: cycle {link.last_cycle}, {flit_text(link.last)}, {link.count} in all" for link in used]
    return "\n".join(lines)


def _described(block) -> list[str]:
    """A block's own lines, under a title that names it and its coordinate."""
    details = block.describe()
    title = f"{block.name} {xy(block.node)}:"
    if not details:
        return [f"{title} idle"]
    return details if details[0].startswith(title) else [title, *details]


def _indent(lines: list[str]) -> list[str]:
    return [f"  {line}" for line in lines]
