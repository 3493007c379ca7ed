"""Discovery: who answers CU_CTRL at which coordinate. A job for gates, and who should answer by the routing rules."""

from __future__ import annotations

from rtl_jobs import BenchPort

from kohakutpu.isa.flit import Flit, FlitType, node
from kohakutpu.isa.signals import CU_CTRL_REPLY, CU_CTRL_REQUEST, ControlIndex, ControlOp
from kohakutpu.machine import Machine

INDICES = (ControlIndex.CAPS, ControlIndex.STATUS)
QUIET, BOUND = 60, 400  # cycles in which nothing moves after an answer, and for an answer and those together


def coordinates(machine: Machine) -> list[int]:
    """Every packed coordinate of the grid and of the ring around it, corners too."""
    return [node(x, y) for y in range(machine.ny + 2) for x in range(machine.nx + 2)]


def ask(machine, agent: int, nodes: list[int]) -> dict:
    """The job: CAPS and STATUS of each coordinate, one request at a time; what arrived for each request."""
    port = BenchPort(machine)
    answers = {}
    for at in nodes:
        for index in INDICES:
            seen = len(machine.received)
            payload = CU_CTRL_REQUEST.encode(index=index)
            port.inject([Flit(at, agent, FlitType.CU_CTRL, index + 1, 1, 0, payload)])
            machine.advance(5)  # until the request moves: all was quiet before
            if not machine.wait_quiet(QUIET, BOUND):
                raise RuntimeError(f"links still move {BOUND} cycles after a request to {at:#04x}\n{machine.report()}")
            answers[at, index] = [flit for _, flit in machine.received[seen:]]
    return {"answers": answers, "injected": port.injected, "received": machine.received, "cycles": machine.now}


def found(answers: dict) -> dict[int, list[int]]:
    """{coordinate: value of each index} of those who answered for themselves (spec: driver view, discovery)."""
    units = {}
    for (at, index), flits in answers.items():
        for flit in flits:
            reply = CU_CTRL_REPLY.decode(flit.payload)
            right = (reply["op"], reply["index"], flit.txn, flit.src) == (ControlOp.REPLY, index, index + 1, at)
            if flit.type == FlitType.CU_CTRL and right:
                units.setdefault(at, []).append(reply["value"])
    return units


def reached(machine: Machine, at: int) -> tuple[int, int]:
    """The site where a flit to `at` ends: its clamped router's, one hop outward where that is not the destination."""
    x, y = at & 15, at >> 4
    near = machine.clamp(x, y)
    if x != near[0]:
        return near[0] + (1 if x > near[0] else -1), near[1]
    if y != near[1]:
        return near[0], near[1] + (1 if y > near[1] else -1)
    return near


def expected(machine: Machine, at: int) -> list[int]:
    """Sources of what one request to `at` brings to the agent: a unit's answer, its own echo, or nothing."""
    site = node(*reached(machine, at))
    if site in {unit.node for unit in machine.units}:
        return [site]
    own = machine.agent.own_endpoint
    echoes = {machine.agent.node} if own else {port.node for port in machine.ports}
    return [machine.agent.node] if site in echoes else []
