"""The published core's formulas give the cycles of every recorded kernel, and notice what is changed in one."""

import pytest

from kohakutpu.conformance.vector import CoreProgram, Published, programs
from kohakutpu.conformance.vector_cycles import PublishedCore, our_cycles, published_cycles
from kohakutpu.isa import vector as isa
from kohakutpu.isa.signals import SignalCode
from kohakutpu.isa.vector import Opcode


def core(program) -> PublishedCore:
    made = PublishedCore(image={place: int(word) for place, word in enumerate(program.imem)})
    made.bounds = {(int(ad), int(part)): int(value) & 0xFFFF for ad, part, value in program.desc if part}
    return made


def test_every_recorded_kernel(golden):
    compared = 0
    for program in programs(golden / "vector_core.npz", CoreProgram):
        if program.code == SignalCode.INST_COMPLETE and program.cycles > 0:
            assert core(program).run(0) == program.cycles, program.name
            compared += 1
    for program in programs(golden / "vector_core_published.npz", Published):
        if program.end[0] == SignalCode.INST_COMPLETE:
            assert core(program).run(0) == program.end[1], program.name
            compared += 1
    assert compared >= 8


def words(*made) -> list[int]:
    return [isa.IMEM.encode(addr=place, word=word) for place, word in enumerate(made)] + [isa.RUN.encode(pc=0)]


@pytest.mark.parametrize(
    "program, published, ours",
    [
        ([isa.encode(Opcode.VHALT)], 84 - 79, 2),
        (
            [isa.encode(Opcode.VMUL, vd=1), isa.encode(Opcode.VMUL, vd=2), isa.encode(Opcode.VHALT)],
            2 + 13 + 8 + 79 + 3, None,
        ),
        (
            [isa.encode(Opcode.VMUL, vd=1), isa.encode(Opcode.VMUL, vd=2, va=1), isa.encode(Opcode.VHALT)],
            2 + 26 + 7 + 79 + 3, None,
        ),
    ],
)
def test_by_hand(program, published, ours):
    """A kernel of VHALT alone takes 5 and 2; a dependent word waits 18 cycles from the last beat before it."""
    assert published_cycles(words(*program)) == [published]
    if ours is not None:
        assert our_cycles(words(*program)) == [ours]


def test_a_program_that_never_halts():
    with pytest.raises(ValueError, match="no VHALT"):
        published_cycles(
            [isa.IMEM.encode(addr=place, word=isa.encode(Opcode.VBAR)) for place in range(512)] + [isa.RUN.encode(pc=0)]
        )
