"""Makes a failing case small: fewer programs, statements and flits, shorter bursts, fields at their defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from kohakutpu.fuzz.program import SETTLE, Case, Program, Statement, unit_types
from kohakutpu.isa import cluster, vector
from kohakutpu.isa.fields import Layout
from kohakutpu.isa.flit import Flit, FlitType
from kohakutpu.isa.memory import MEM_REQ, MEM_WR
from kohakutpu.isa.signals import CU_CTRL_REQUEST, CU_DATA, UnitType
from kohakutpu.isa.vector import IMEM_WORDS, Envelope
from kohakutpu.machine import load


class Finding(NamedTuple):
    """What went wrong: `kind` is 'answer', 'hang', 'endless', 'trace', 'rules' or 'memory'; `program` the number of the
    program it was in."""

    kind: str
    text: str
    program: int


Fails = Callable[[Case], Finding | None]


def up_to(case: Case, program: int) -> Case:
    """`case` without the programs behind number `program`."""
    end = next(at for at, each in enumerate(case.programs) if each.number == program) + 1
    return case._replace(programs=case.programs[:end])


class Shrinker:
    """Smaller cases that fail with the same kind of finding.

    `fails` plays a case, at most `tries` times; what was found by then is the result.
    """

    def __init__(self, fails: Fails, kind: str, tries: int):
        self._fails = fails
        self._kind = kind
        self.tries = tries

    def _still(self, case: Case) -> bool:
        if not self.tries or not case.programs:
            return False
        self.tries -= 1
        found = self._fails(case)
        return found is not None and found.kind == self._kind

    def shrink(self, case: Case) -> Case:
        """The smallest case found; the last program of `case` is the one that failed (`up_to`)."""
        count, end = 1, len(case.programs)
        while count < end:  # the state that the programs before leave may be needed
            if self._still(smaller := case._replace(programs=case.programs[-count:])):
                case = smaller
                break
            count *= 4
        while True:
            before = case
            case = self._statements(case)
            for pass_ in (self._flits, self._fields):
                case = pass_(case)
            if case == before or not self.tries:
                return case

    # ---- statements --------------------------------------------------------------------------------------

    def _statements(self, case: Case) -> Case:
        places = [(p, s) for p, program in enumerate(case.programs) for s in range(len(program.statements))]

        def kept(left: Sequence[tuple[int, int]]) -> Case:
            programs = []
            for p, program in enumerate(case.programs):
                statements = tuple(program.statements[s] for q, s in left if q == p)
                if any(statement.stream != SETTLE for statement in statements):
                    programs.append(program._replace(statements=statements))
            return case._replace(programs=tuple(programs))

        return kept(self._fewer(places, kept))

    def _fewer(self, items: list, make: Callable[[list], Case]) -> list:
        """As few of `items` as still fail: halves, quarters, ... single ones are left out."""
        size = max(len(items) // 2, 1)
        while True:
            at = 0
            while at < len(items):
                less = items[:at] + items[at + size :]
                if self._still(make(less)):
                    items = less
                else:
                    at += size
            if size == 1:
                return items
            size //= 2

    # ---- inside a statement ------------------------------------------------------------------------------

    def _each(self, case: Case) -> Iterator[tuple[int, int]]:
        for p, program in enumerate(case.programs):
            for s in range(len(program.statements)):
                yield p, s

    def _flits(self, case: Case) -> Case:
        """Shorter kernels, runs of instructions and bursts; no pauses."""
        units = unit_types(load(case.machine))
        for p, s in list(self._each(case)):
            statement = case.programs[p].statements[s]
            for change in ({"after": 0}, {"press": False}):
                case, statement = self._try(case, p, s, statement, statement._replace(**change))
            if len(statement.flits) < 2:
                continue
            if all(flit.type == FlitType.CU_INST for flit in statement.flits):

                def made(flits: list[Flit], case=case, p=p, s=s, statement=statement) -> Case:
                    return _with(case, p, s, statement._replace(flits=tuple(renumbered(flits, units))))

                case = made(self._fewer(list(statement.flits), made))
                continue
            bursts = [statement.flits[at:end] for at, end in bursts_of(statement.flits)]
            if len(bursts) > 1:

                def joined(some: list, case=case, p=p, s=s, statement=statement) -> Case:
                    return _with(case, p, s, statement._replace(flits=tuple(flit for burst in some for flit in burst)))

                case = joined(self._fewer(bursts, joined))
                if s < len(case.programs[p].statements):
                    statement = case.programs[p].statements[s]
            while (shorter := shorter_burst(statement.flits)) is not None:
                before = statement
                case, statement = self._try(case, p, s, statement, statement._replace(flits=shorter))
                if statement is before:
                    break
        return case

    def _fields(self, case: Case) -> Case:
        """Fields at their defaults, payloads zero."""
        units = unit_types(load(case.machine))
        for p, s in list(self._each(case)):
            statement = case.programs[p].statements[s]
            for at in range(len(statement.flits)):
                options = iter(simpler(statement.flits, at, units))
                while (flit := next(options, None)) is not None:
                    changed = statement._replace(flits=(*statement.flits[:at], flit, *statement.flits[at + 1 :]))
                    before = statement
                    case, statement = self._try(case, p, s, statement, changed)
                    if statement is not before:  # go on from what it is now
                        options = iter(simpler(statement.flits, at, units))
        return case

    def _try(self, case: Case, p: int, s: int, old: Statement, new: Statement) -> tuple[Case, Statement]:
        if new == old or not self._still(smaller := _with(case, p, s, new)):
            return case, old
        return smaller, new


def _with(case: Case, p: int, s: int, statement: Statement) -> Case:
    """`case` with another statement in place of statement `s` of program `p`; without it when it has no flits."""
    program: Program = case.programs[p]
    inside = (statement,) if statement.flits or statement.stream == SETTLE else ()
    program = program._replace(statements=(*program.statements[:s], *inside, *program.statements[s + 1 :]))
    return case._replace(programs=(*case.programs[:p], program, *case.programs[p + 1 :]))


def renumbered(flits: Sequence[Flit], units: dict[int, int]) -> list[Flit]:
    """`flits` with the words of each kernel behind each other, from the address that the RUN behind them names."""
    found: list[Flit] = list(flits)
    address: int | None = None
    for at in reversed(range(len(found))):
        flit = found[at]
        if flit.type != FlitType.CU_INST or units.get(flit.dst) != UnitType.VECTOR:
            continue
        inst = vector.decode(flit.payload)
        if inst.op == Envelope.RUN:
            words = [
                k for k in range(at) if found[k].dst == flit.dst and vector.decode(found[k].payload).op == Envelope.IMEM
            ]
            for address, k in enumerate(words, inst.pc):
                payload = vector.IMEM.pack(
                    op=Envelope.IMEM, addr=address % IMEM_WORDS, word=vector.decode(found[k].payload).word
                )
                found[k] = found[k]._replace(payload=payload)
            break
    return found


def bursts_of(flits: Sequence[Flit]) -> list[tuple[int, int]]:
    """(first, end) of each burst, or single flit, of a statement."""
    starts = [at for at, flit in enumerate(flits) if not at or flits[at - 1].last or flit.type == FlitType.MEM_WR_REQ]
    return list(zip(starts, [*starts[1:], len(flits)], strict=True))


def shorter_burst(flits: tuple[Flit, ...]) -> tuple[Flit, ...] | None:
    """A single burst with half of its data; None when it is not one, or as short as can be."""
    layout = {FlitType.CU_DATA: CU_DATA, FlitType.MEM_WR_REQ: MEM_WR}.get(flits[0].type)
    if layout is None or len(flits) < 3 or layout.get(flits[0].payload, "len") + 2 != len(flits):
        return None
    count = (len(flits) - 1) // 2
    fields = layout.decode(flits[0].payload) | {"len": count - 1}
    data = [flit._replace(last=int(at == count - 1)) for at, flit in enumerate(flits[1 : count + 1])]
    return (flits[0]._replace(payload=layout.pack(**fields)), *data)


def layout_of(flit: Flit, units: dict[int, int]) -> Layout | None:
    """What a flit's payload is made of, where fields can be set one by one."""
    if flit.type == FlitType.CU_INST and units.get(flit.dst) == UnitType.CLUSTER:
        return cluster.LAYOUTS.get(cluster.decode(flit.payload).op)
    if flit.type == FlitType.CU_INST and units.get(flit.dst) == UnitType.VECTOR:
        return vector.ENVELOPES.get(vector.decode(flit.payload).op)
    return {FlitType.MEM_RD_REQ: MEM_REQ, FlitType.MEM_WR_REQ: MEM_WR, FlitType.CU_CTRL: CU_CTRL_REQUEST}.get(flit.type)


KEPT = (
    "addr",
    "word",
    "pc",
    "ad",
    "field",
    "len",
)  # of a vector core's envelope, and of a burst: others depend on them


def simpler(flits: tuple[Flit, ...], at: int, units: dict[int, int]) -> Iterator[Flit]:
    """Flit `at` with one thing after the other at its default, or smaller."""
    flit = flits[at]
    if flit.txn:
        yield flit._replace(txn=0)
    if flit.type == FlitType.CU_INST and flit.last:
        yield flit._replace(last=0)
    if flit.type in (FlitType.MEM_WR_DATA, FlitType.CU_DATA) and at and flit.payload:
        yield flit._replace(payload=0)
    layout = layout_of(flit, units)
    if layout is None:
        return
    values = layout.decode(flit.payload)
    kept = KEPT if flit.type != FlitType.CU_INST or units.get(flit.dst) == UnitType.VECTOR else ()
    for name, field in layout.fields.items():
        if name in kept or field.fixed or values[name] == field.default:
            continue
        for value in (field.default, *(each for each in (0, 1, values[name] // 2) if each < values[name])):
            yield flit._replace(payload=layout.pack(**values | {name: value}))
