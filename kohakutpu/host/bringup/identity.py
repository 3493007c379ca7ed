"""Steps 3 and 4: is it the described machine, of a version that is known, and is everything where it should be?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from kohakutpu.isa import registers
from kohakutpu.isa.flit import Flit
from kohakutpu.isa.signals import CU_VERSION, ControlIndex
from kohakutpu.wording import counted

from ..capabilities import Capabilities, Status, expected, kind_name
from ..discovery import find_agent, hears, sweep, unit_answers
from ..driver import ASKED, NoAnswer
from .board import Board, NotThisMachine, WrongAnswer, place
from .memory import tag

PORT = "memory port"


def shape(board: Board, facts: dict) -> None:
    caps = board.driver.read(registers.CAPS)
    machine = board.machine
    wanted = {"grid_lo": 1, "grid_hi": machine.grid_hi}
    facts["grid"] = [caps["grid_lo"], caps["grid_hi"]]
    wrong = [f"{name} {caps[name]}, expected {value}" for name, value in wanted.items() if caps[name] != value]
    if wrong:
        raise NotThisMachine(
            f"this is not {machine.name}, a grid of {machine.nx}x{machine.ny}: CAPS says {'; '.join(wrong)}", facts
        )


def whereabouts(board: Board, facts: dict) -> None:
    """The agent receives where the description says that it does."""
    facts["agent"] = place(board.agent)
    if hears(board.driver, board.agent):
        return
    try:
        found = place(find_agent(board.driver))
    except NoAnswer as error:
        raise board.stopped(f"the mesh gives nothing back: {error}", facts) from error
    raise NotThisMachine(f"the agent does not receive at {place(board.agent)}, as described; it does at {found}", facts)


def at_rest(board: Board, there: Mapping[int, Capabilities], facts: dict) -> None:
    """No unit is at work: nothing was sent to one, so what is busy hangs from before."""
    for at, caps in there.items():
        status = Status.decode(board.driver.control(at, ControlIndex.STATUS, agent=board.agent))
        if status.busy or status.space != caps.inst_depth:
            queued = caps.inst_depth - status.space
            raise board.stopped(
                f"the {caps.name} at {place(at)} is busy, {queued} instructions queued, and nothing was sent to it: "
                "something of before still hangs, and only a reset helps", facts,
            )  # fmt: skip


def identity(board: Board) -> dict:
    """CAPS has the described shape, the agent is in its place, units that answer are of the known version and at
    rest."""
    facts: dict = {}
    shape(board, facts)
    whereabouts(board, facts)
    board.driver.clear_error()
    answers = {
        unit.node: unit_answers(board.driver, unit.node, agent=board.agent, attempts=ASKED)
        for unit in board.machine.units
    }
    there = {at: caps for at, caps in answers.items() if caps is not None}
    facts["answered"] = f"{len(there)} of {counted(len(answers), 'unit')}"
    if not there:
        raise board.stopped(f"none of the {counted(len(answers), 'described unit')} answers CU_CTRL", facts)
    facts["versions"] = sorted({f"{caps.version:#04x}" for caps in there.values()})
    wrong = [
        f"{kind_name(caps.type)} at {place(at)}: version {caps.version:#04x}"
        for at, caps in there.items()
        if caps.version != CU_VERSION
    ]
    if wrong:
        raise NotThisMachine(
            f"units of a version that this driver does not know, {CU_VERSION:#04x} is: {'; '.join(wrong)}", facts
        )
    at_rest(board, there, facts)
    return facts


def check_port_word(
    at: int, answer: Flit, address: int, expected: bytes, belongs: Mapping[bytes, int] | None = None
) -> None:
    """A memory port's answer to a read of one word: the word that the host wrote, and the last of its read."""
    found = answer.payload.to_bytes(len(expected), "little")
    if found != expected:
        whose = f"what the host wrote at {belongs[found]:#x}" if belongs and found in belongs else found.hex()
        raise WrongAnswer(
            f"the memory port at {place(at)} reads at {address:#x} {whose}, and the host wrote {expected.hex()}"
        )
    if not answer.last:
        raise WrongAnswer(f"the memory port at {place(at)} answers a read of one word at {address:#x} without last")


def described(board: Board) -> dict[int, Capabilities | str]:
    """{node: what has to answer there}."""
    units = {unit.node: expected(board.machine, unit) for unit in board.machine.units}
    return units | {port.node: PORT for port in board.machine.ports}


def name_of(what: Capabilities | str) -> str:
    return what if isinstance(what, str) else what.name


def enumerate_all(board: Board) -> dict:
    """A sweep of every coordinate finds each described unit and memory port, as described, and nothing else."""
    word = tag(board.half, False)
    board.write(board.half, word)
    answers = dict(sweep(board.driver, agent=board.agent, address=board.half))
    found = {at: what if isinstance(what, Capabilities) else PORT for at, what in answers.items()}
    wanted = described(board)
    names = Counter(name_of(what) for what in found.values())
    facts = {
        "found": [f"{count} {name}{'s' * (count > 1)}" for name, count in names.items()],
        "places": {place(at): name_of(what) for at, what in found.items()},
    }
    missing = [f"missing: {name_of(what)} at {place(at)}" for at, what in sorted(wanted.items()) if at not in found]
    other = []
    for at, what in found.items():
        here = wanted.get(at)
        if here is None:
            other.append(f"extra: {name_of(what)} at {place(at)}")
        elif isinstance(what, Capabilities) and isinstance(here, Capabilities):
            other += [f"{place(at)}: {text}" for text in what.differences(here)]
        elif what != here:
            other.append(f"{place(at)}: {name_of(what)}, expected {name_of(here)}")
    if other:
        raise NotThisMachine(f"this is not {board.machine.name}: {'; '.join([*missing, *other])}", facts)
    if missing:
        raise board.stopped(f"{'; '.join(missing)}: no answer there", facts)
    for at, what in found.items():
        if what == PORT:
            check_port_word(at, answers[at], board.half, word)
    return facts
