"""What every step of the ladder works on, and how a step says that it failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import cached_property

from kohakutpu.isa.flit import xy
from kohakutpu.machine import Machine

from ..capabilities import kind_of
from ..driver import Driver
from ..loader import Loader
from ..transport import MEMORY_BASE, Transport


class Status(IntEnum):
    """Exit statuses of the command (spec: bring-up)."""

    PASSED = 0
    WRONG = 1
    REFUSED = 2
    NO_TRANSPORT = 3
    NO_ANSWER = 4


class Verdict(Enum):
    """What became of a step. Each but the last three is also an exit status."""

    PASSED = "passed"
    WRONG = "wrong answer"
    REFUSED = "refused"
    NO_TRANSPORT = "no transport"
    NO_ANSWER = "no answer"
    NOT_PRESENT = "not present"
    DOES_NOT_APPLY = "does not apply"
    NOT_RUN = "not run"

    @classmethod
    def of(cls, status: int) -> Verdict:
        return cls[Status(status).name]

    @property
    def status(self) -> Status:
        """The exit status; what did not fail is none."""
        return Status[self.name] if self.name in Status.__members__ else Status.PASSED


class StepFailed(Exception):
    """A step's own finding: a text for people, and what was measured until then."""

    exit_status = Status.WRONG

    def __init__(self, text: str, facts: Mapping[str, object] | None = None):
        super().__init__(text)
        self.facts = dict(facts or {})


class WrongAnswer(StepFailed):
    """The machine answered, and wrongly."""


class NotThisMachine(StepFailed):
    """What is there is not what the description says, or cannot be trusted: nothing more is tried on it."""

    exit_status = Status.REFUSED


class Silent(StepFailed):
    """Something that should be there does not answer."""

    exit_status = Status.NO_ANSWER


class NotPresent(StepFailed):
    """An optional part is not there: the step passes it by, by name."""


@dataclass
class Board:
    """A machine's description, a way to the machine, and how thorough to be.

    `runs` counts the repetitions of the last step, `seed` draws data, `timeout` bounds each wait, in the transport's
    unit.
    """

    machine: Machine
    transport: Transport
    runs: int = 6
    seed: int = 1
    timeout: float | None = None

    @cached_property
    def driver(self) -> Driver:
        return Driver(self.transport, timeout=self.timeout)

    @cached_property
    def loader(self) -> Loader:
        return Loader(self.driver)

    @property
    def agent(self) -> int:
        """The node at which the agent receives, as the description has it."""
        return self.machine.agent.node

    @cached_property
    def kinds(self) -> dict[int, int]:
        """{node: CU_TYPE} of the units, as the description has them."""
        return {unit.node: kind_of(unit) for unit in self.machine.units}

    @property
    def half(self) -> int:
        """A 4 KiB aligned place half way up the memory: scratch space of the steps."""
        return self.machine.memory.bytes // 2 // 4096 * 4096

    def write(self, address: int, data: bytes) -> None:
        """Memory by the mesh's own addresses, through the host's window."""
        self.transport.write_block(MEMORY_BASE + address, data)

    def read(self, address: int, length: int) -> bytes:
        return self.transport.read_block(MEMORY_BASE + address, length)

    def stopped(self, text: str, facts: Mapping[str, object] | None = None) -> Silent:
        """A `Silent` that ends with what the transport knows of every node."""
        return Silent(f"{text}\n{self.transport.diagnose()}".rstrip(), facts)

    def wait(self, span: Mapping[str, float]) -> None:
        """Let `span[unit]` of the transport's time go by."""
        start = self.transport.now
        while self.transport.now - start < span[self.transport.unit]:
            self.transport.pause()


def place(at: int) -> str:
    """A packed node as (x,y)."""
    return "({},{})".format(*xy(at))
