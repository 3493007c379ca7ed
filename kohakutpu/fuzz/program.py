"""Programs as data: statements of flits that a bench in the agent's place sends, and the text they are saved as.

Text: a line each, `#` starts a comment.

    machine mm_mesh
    memory 7                          seed of the memory image (`play.image`)
    latency 3                         seed of random memory latencies; without it they are the machine's
    program 12                        starts a program; several run one after the other, and each ends when all is quiet
    on cluster0 after=3               a statement: its stream, then its flits as `kohakutpu asm` reads them
      CU_INST (1,1)->(2,1) txn=0x40 | FILL addr=0x1000 n=8 sel=B
    settle                            the streams meet here, when all is quiet
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from kohakutpu.isa import validate
from kohakutpu.isa.assembler import Disassembler, assemble
from kohakutpu.isa.fields import EncodingError
from kohakutpu.isa.flit import Flit, FlitType
from kohakutpu.isa.signals import UnitType
from kohakutpu.machine import Machine, MachineError, load

SETTLE = ""  # the stream of a barrier


class Statement(NamedTuple):
    """Flits that are sent together, in order.

    Statements of one `stream` follow each other, streams go side by side. `after` is how many cycles later than it
    could the statement is sent. CU_INST flits wait until their unit has room for them; those of a statement that has
    `press` wait until it has nothing to do, and then for nothing any more. `purpose` says what a statement breaks that
    is not legal, in a word; empty for legal ones.
    """

    stream: str
    flits: tuple[Flit, ...] = ()
    after: int = 0
    press: bool = False
    purpose: str = ""


class Program(NamedTuple):
    """`statements` of one program; `number` names it."""

    number: int
    statements: tuple[Statement, ...]

    def phases(self) -> Iterator[dict[str, list[Statement]]]:
        """The statements of each stream, from one barrier to the next."""
        streams: dict[str, list[Statement]] = {}
        for statement in self.statements:
            if statement.stream != SETTLE:
                streams.setdefault(statement.stream, []).append(statement)
            elif streams:
                yield streams
                streams = {}
        if streams:
            yield streams


class Case(NamedTuple):
    """What a run needs: a machine by name, seeds of its memory image and of random latencies if any, programs."""

    machine: str
    memory: int
    programs: tuple[Program, ...]
    latency: int | None = None

    @property
    def size(self) -> int:
        """Flits in all."""
        return sum(len(statement.flits) for program in self.programs for statement in program.statements)


def unit_types(machine: Machine) -> dict[int, int]:
    """CU_TYPE by packed node."""
    return {unit.node: UnitType.CLUSTER for unit in machine.clusters} | {
        unit.node: UnitType.VECTOR for unit in machine.vectors
    }


def problem(statement: Statement, machine: Machine) -> str | None:
    """Why a statement is not legal (`kohakutpu.isa.validate`); None when it is. Each one stands for itself: a RUN
    starts nothing but what its own statement has put into instruction memory."""
    units = unit_types(machine)
    kernels: dict[int, list[int]] = {}
    try:
        validate.stream(statement.flits, units=units)
        for flit in statement.flits:
            if flit.type == FlitType.CU_INST and units.get(flit.dst) == UnitType.VECTOR:
                kernels.setdefault(flit.dst, []).append(flit.payload)
        for payloads in kernels.values():
            validate.program(payloads, UnitType.VECTOR)
    except EncodingError as wrong:
        return str(wrong)
    return None


# ---- text --------------------------------------------------------------------------------------------


class ProgramError(ValueError):
    """A file of programs that cannot be read: names the line, what was found and what was expected."""


def to_text(case: Case) -> str:
    """`case` as text that `from_text` gives back."""
    units = unit_types(load(case.machine))
    lines = [f"machine {case.machine}", f"memory {case.memory}"]
    lines += [f"latency {case.latency}"] * (case.latency is not None)
    for program in case.programs:
        lines.append(f"program {program.number}")
        for statement in program.statements:
            if statement.stream == SETTLE:
                lines.append("settle")
                continue
            options = [f"after={statement.after}"] * bool(statement.after) + ["press"] * statement.press
            options += [f"purpose={statement.purpose}"] * bool(statement.purpose)
            lines.append(" ".join(["on", statement.stream, *options]))
            text = Disassembler(units=units)
            lines += ["  " + text.line(flit) for flit in statement.flits]
    return "\n".join([*lines, ""])


def _number(word: str, where: str, what: str) -> int:
    if not re.fullmatch(r"\d+", word):
        raise ProgramError(f"{where}: expected {what}, found {word!r}")
    return int(word)


def _statement(words: list[str], where: str) -> Statement:
    if not words:
        raise ProgramError(f"{where}: `on` names a stream")
    after, press, purpose = 0, False, ""
    for option in words[1:]:
        name, _, value = option.partition("=")
        if name == "after":
            after = _number(value, where, "a number of cycles")
        elif name == "purpose" and value:
            purpose = value
        elif option == "press":
            press = True
        else:
            raise ProgramError(f"{where}: expected after=CYCLES, press or purpose=WORD, found {option!r}")
    return Statement(words[0], (), after, press, purpose)


def from_text(text: str, name: str) -> Case:
    """The case that `text` spells; `name` is what errors call it. Raises `ProgramError`."""
    machine: str | None = None
    memory: int | None = None
    latency: int | None = None
    programs: list[Program] = []
    statements: list[Statement] | None = None

    def close() -> None:
        if statements is not None:
            programs[-1] = programs[-1]._replace(statements=tuple(statements))

    for number, line in enumerate(text.splitlines(), 1):
        where, words = f"{name}:{number}", re.split("[#;]", line, maxsplit=1)[0].split()
        if not words:
            continue
        if line[0] in " \t":
            if not statements or statements[-1].stream == SETTLE:
                raise ProgramError(f"{where}: a flit that belongs to no statement: `on STREAM` comes first")
            try:
                flits = assemble(line)
            except EncodingError as error:
                raise ProgramError(f"{where}: {error}") from None
            if not isinstance(flits[0], Flit):
                raise ProgramError(f"{where}: expected a flit, with its header")
            statements[-1] = statements[-1]._replace(flits=(*statements[-1].flits, *flits))
            continue
        keyword, rest = words[0], words[1:]
        if keyword in ("machine", "memory", "latency", "program"):
            if len(rest) != 1:
                raise ProgramError(f"{where}: expected one word after {keyword}, found {len(rest)}")
            if keyword == "machine":
                machine = rest[0]
            elif keyword == "memory":
                memory = _number(rest[0], where, "a seed")
            elif keyword == "latency":
                latency = _number(rest[0], where, "a seed")
            else:
                close()
                programs.append(Program(_number(rest[0], where, "a number"), ()))
                statements = []
        elif statements is None:
            raise ProgramError(f"{where}: expected machine, memory, latency or program, found {keyword!r}")
        elif keyword == "settle" and not rest:
            statements.append(Statement(SETTLE))
        elif keyword == "on":
            statements.append(_statement(rest, where))
        else:
            raise ProgramError(f"{where}: expected on, settle or program, found {line.strip()!r}")
    close()
    for what, found in (("machine", machine), ("memory", memory), ("program", programs)):
        if found is None or found == []:
            raise ProgramError(f"{name}: there is no line `{what} ...`")
    try:
        load(machine)
    except MachineError as error:
        raise ProgramError(f"{name}: {error}") from None
    return Case(machine, memory, tuple(programs), latency)
