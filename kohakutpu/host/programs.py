"""Instruction programs by hand, a node each: cut into rounds, with their credit accounted for (spec: rounds, credit).

Compiled kernels come as artifacts with rounds of their own (`loader`); this is for scripts that send instructions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kohakutpu.isa import registers
from kohakutpu.isa.flit import Flit, FlitType, xy
from kohakutpu.isa.signals import SignalCode
from kohakutpu.wording import counted

from .driver import Driver
from .faults import check_fault
from .transport import TransportError


class CreditError(ValueError):
    """A round whose kicks its credit cannot carry, or credit beyond what an instruction FIFO holds."""


def most_kicks(credit: int) -> int:
    """Kicks of a round that is seeded with `credit`: fewer than it, for each keeps one (spec: credit, C > P)."""
    return max(1, credit - 1)


class WrongSignal(TransportError):
    """Signals came and are not those of the program: names the node, what came and what was expected."""

    exit_status = 1


@dataclass
class Credit:
    """The dispatch credit of one round: seeded once, taken by each flit, returned by each INST_COMPLETE.

    The last flit of a kick ends in BATCH_COMPLETE, which returns none. So a kick costs one for good, and `left` is what
    PROG_STAT has to show when everything has completed. `limit` is `Machine.credit_limit`.
    """

    seeded: int
    limit: int
    kicks: list[tuple[int, int]] = field(default_factory=list)  # (node, flits)

    def __post_init__(self) -> None:
        if not 1 <= self.seeded <= self.limit:
            raise CreditError(f"{self.seeded} of credit: 1 to {self.limit} is what the smallest instruction FIFO holds")

    def kick(self, node: int, flits: int) -> None:
        """Account for one; raises `CreditError` for more kicks than `most_kicks`."""
        if len(self.kicks) == most_kicks(self.seeded):
            raise CreditError(
                f"kick {len(self.kicks) + 1} of a round with {self.seeded} of credit: each takes one for good"
            )
        self.kicks.append((node, flits))

    @property
    def left(self) -> int:
        return self.seeded - len(self.kicks)


@dataclass(frozen=True)
class Program:
    """Instructions for one node: 256-bit CU_INST payloads, and the `txn` that their completions carry."""

    node: int
    payloads: tuple[int, ...]
    txn: int = 0


def rounds(programs: Sequence[Program], *, slots: int, credit: int) -> Iterator[list[Program]]:
    """The programs cut into rounds of at most `slots` flits and `most_kicks(credit)` kicks, no node twice in one.

    A node's instructions stay in order; a longer program goes on in a later round.
    """
    waiting = [program for program in programs if program.payloads]
    while waiting:
        room, taken, later = slots, [], []
        for program in waiting:
            nodes = {each.node for each in (*taken, *later)}
            if room and len(taken) < most_kicks(credit) and program.node not in nodes:
                head, rest = program.payloads[:room], program.payloads[room:]
                taken.append(Program(program.node, head, program.txn))
                room -= len(head)
                if rest:
                    later.append(Program(program.node, rest, program.txn))
            else:
                later.append(program)
        yield taken
        waiting = later


def run_programs(driver: Driver, programs: Sequence[Program], *, slots: int, credit: int,
                 kinds: Mapping[int, int] | None = None) -> None:  # fmt: skip
    """Run them, round by round, and see that every instruction completed as it should.

    `slots` is `Machine.staging_flits`, `credit` its `credit_limit`; `kinds` {node: CU_TYPE} is for words about faults.
    Raises `NoAnswer` when a signal does not come, `UnitFault` for a FAULT, and `WrongSignal` when the last signal of a
    node is not the completion of its batch, or when credit is missing: an instruction in the middle faulted.
    """
    driver.clear_error()
    for taken in rounds(programs, slots=slots, credit=credit):
        account = Credit(credit, credit)
        driver.forget()
        before = {program.node: driver.node_status(program.node)["count"] for program in taken}
        flits = [
            Flit(0, 0, FlitType.CU_INST, program.txn, int(number == len(program.payloads)), 0, payload)
            for program in taken
            for number, payload in enumerate(program.payloads, 1)
        ]
        driver.stage(flit.to_int() for flit in flits)
        driver.seed_credit(account.seeded)
        slot = 0
        for program in taken:
            account.kick(program.node, len(program.payloads))
            driver.kick(*xy(program.node), slot, len(program.payloads))
            slot += len(program.payloads)
        for program in taken:
            status = driver.await_signals(program.node, before[program.node] + len(program.payloads))
            check_fault(program.node, status, (kinds or {}).get(program.node), "after its program")
            if (status["code"], status["arg"]) != (SignalCode.BATCH_COMPLETE, program.txn):
                raise WrongSignal(
                    "({},{}) ended with signal {:#04x} arg {:#x}, expected BATCH_COMPLETE of txn {:#x}".format(
                        *xy(program.node), status["code"], status["arg"], program.txn
                    )
                )
        found = driver.read(registers.PROG_STAT)["credit"]
        if found != account.left:
            few = "few" if found < account.left else "many"
            raise WrongSignal(
                f"{found} of credit after a round of {counted(len(account.kicks), 'kick')} that seeded "
                f"{account.seeded}, expected "
                f"{account.left}: {counted(abs(account.left - found), 'completion')} too {few} returned it"
            )
