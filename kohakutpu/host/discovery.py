"""Finding what answers on a mesh, with nothing known but the register window (spec: driver view, discovery).

Unlike the published driver's, these wait for an answer as long as it may take, and the agent may be anywhere
(`kohakutpu errata`, discovery-race).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kohakutpu.isa.flit import Flit, FlitType, node, xy
from kohakutpu.isa.memory import MEM_REQ, MEM_WR
from kohakutpu.wording import counted

from .capabilities import Capabilities
from .driver import Driver, NoAnswer
from .transport import TransportError

READINGS = 4  # of CU_CAPS at most, until two in a row agree
TAG = 0x5A


class Flicker(TransportError):
    """Readings of a constant do not agree: names it and what was read."""

    exit_status = 1


@dataclass(frozen=True)
class Found:
    """What a sweep found: the node that replies to the host go to, memory ports, and units by node."""

    agent: int
    ports: tuple[int, ...]
    units: dict[int, Capabilities]


def coordinates(caps: dict[str, int]) -> list[int]:
    """Nodes of the square that CAPS spans, the ring around the grid included and corners left out, in scan order.

    A grid that is not square has fewer sites; the clamp makes the others answer for their neighbours.
    """
    low, high = caps["grid_lo"] - 1, caps["grid_hi"] + 1
    span = range(low, high + 1)
    return [node(x, y) for y in span for x in span if x not in (low, high) or y not in (low, high)]


def hears(driver: Driver, at: int) -> bool:
    """Whether the agent receives what is sent to node `at`.

    The probe is an acknowledgement of no write: every unit has to discard one (spec: link handshake), where a CU_CTRL
    request that names a unit as its sender would be answered for ever.
    """
    probe = Flit(at, at, FlitType.MEM_WR_ACK, TAG, 1, 0, 0)
    return driver.exchange(probe, lambda flit: flit == probe) is not None


def find_agent(driver: Driver) -> int:
    """A node at which the agent receives; raises `NoAnswer` when it receives at none.

    Of several (it does at every memory port that it shares) a site that is certainly one comes first: on the ring's
    west or in the grid, then in scan order.
    """
    places = coordinates(driver.identify())
    for at in sorted(places, key=lambda at: (xy(at)[0] != 0, xy(at)[1] == 0)):
        if hears(driver, at):
            return at
    raise NoAnswer(
        f"the agent received none of the flits that it sent to itself at {counted(len(places), 'coordinate')}"
    )


def port_answers(driver: Driver, at: int, *, agent: int, address: int = 0) -> Flit | None:
    """The MEM_RD_RESP of the memory port at node `at` to a read of the word at `address`; None when none answers there.

    On a board whose memory has error correction, write the word first: one that was never written reads as an error.
    """
    request = Flit(at, agent, FlitType.MEM_RD_REQ, TAG, 1, 0, MEM_REQ.encode(addr=address))
    return driver.exchange(request, lambda flit: (flit.type, flit.src, flit.txn) == (FlitType.MEM_RD_RESP, at, TAG))


def write_through_port(driver: Driver, at: int, address: int, word: bytes, *, agent: int) -> bool:
    """Write a 32-byte word through the memory port at node `at`; whether it is acknowledged."""
    driver.send(Flit(at, agent, FlitType.MEM_WR_REQ, TAG, 0, 0, MEM_WR.encode(addr=address)))
    data = Flit(at, agent, FlitType.MEM_WR_DATA, TAG, 1, 0, int.from_bytes(word, "little"))
    return (
        driver.exchange(data, lambda flit: (flit.type, flit.src, flit.txn) == (FlitType.MEM_WR_ACK, at, TAG))
        is not None
    )


def unit_answers(driver: Driver, at: int, *, agent: int, attempts: int = 1) -> Capabilities | None:
    """CU_CAPS of the unit at node `at`, None when none answers; `Flicker` when no two readings in a row agree."""
    value = driver.ask(at, agent=agent, attempts=attempts)
    if value is None:
        return None
    seen = [value]
    while len(seen) < READINGS:
        seen.append(driver.control(at, agent=agent))
        if seen[-1] == seen[-2]:
            return Capabilities.decode(value if len(seen) == 2 else seen[-1])
    raise Flicker("CU_CAPS of ({},{}) reads {}".format(*xy(at), ", ".join(f"{value:#018x}" for value in seen)))


def sweep(driver: Driver, *, agent: int, address: int = 0) -> Iterator[tuple[int, Capabilities | Flit]]:
    """(node, what answers there) of every coordinate, in scan order.

    That is what a unit says of itself, or a memory port's answer to a read of `address`.
    """
    for at in coordinates(driver.identify()):
        answer = unit_answers(driver, at, agent=agent) or port_answers(driver, at, agent=agent, address=address)
        if answer is not None:
            yield at, answer


def discover(driver: Driver, *, agent: int | None = None, address: int = 0) -> Found:
    """Everything that answers; `agent` is searched for where it is not given. `address`: a word that ports may read."""
    agent = find_agent(driver) if agent is None else agent
    seen = dict(sweep(driver, agent=agent, address=address))
    units = {at: what for at, what in seen.items() if isinstance(what, Capabilities)}
    return Found(agent, tuple(at for at in seen if at not in units), units)
