"""What the generator makes: the same programs for the same seed, legal but for what they name; text keeps them."""

import pytest

from kohakutpu.fuzz.generate import Generator
from kohakutpu.fuzz.program import SETTLE, Case, ProgramError, Statement, from_text, problem, to_text
from kohakutpu.machine import load

PURPOSES = {"", "fault", "straddle", "count", "opcode", "refused", "format", "nonsense"}
COUNT = 60


@pytest.fixture(params=["mm_mesh", "quad"])
def machine(request):
    return load(request.param)


def programs(machine, seed=5, count=COUNT):
    generator = Generator(machine, seed)
    return [generator.program(number) for number in range(count)]


def test_same_seed_same_programs(machine):
    """Whatever was made before: programs are numbered, not drawn one after the other."""
    again = [Generator(machine, 5).program(number) for number in reversed(range(COUNT))]
    assert programs(machine) == again[::-1]
    assert programs(machine, seed=6) != programs(machine)


def test_every_statement_is_legal_but_for_its_purpose(machine):
    legal = wrong = 0
    for program in programs(machine):
        for statement in program.statements:
            if statement.stream == SETTLE:
                continue
            assert statement.purpose in PURPOSES
            if statement.purpose:
                wrong += 1
            else:
                assert problem(statement, machine) is None, (program.number, statement.stream)
                legal += 1
    assert wrong and legal > 8 * wrong


def test_text_keeps_programs(machine):
    case = Case(machine.name, 9, tuple(programs(machine, count=15)), 4)
    assert from_text(to_text(case), "here") == case


HEAD = "machine mm_mesh\nmemory 1\nprogram 0\n"


@pytest.mark.parametrize(
    "text, where",
    [
        ("memory 1\nprogram 0\n", "no line `machine"),
        ("machine mm_mesh\nprogram 0\n", "no line `memory"),
        ("machine mm_mesh\nmemory 1\n", "no line `program"),
        ("machine nowhere\nmemory 1\nprogram 0\n", "nowhere"),
        (HEAD + "  CU_SIGNAL (2,1)->(1,1)\n", "x:4: a flit that belongs to no statement"),
        (HEAD + "on a\n  CU_INST (1,1)->(2,1) | FILLL\n", "x:5:"),
        (HEAD + "on a\n  GEMM gm=1\n", "x:5: expected a flit"),
        (HEAD + "on a soon\n", "x:4: expected after=CYCLES"),
        (HEAD + "on a after=-3\n", "x:4: expected a number of cycles"),
        (HEAD + "settled\n", "x:4: expected on, settle or program"),
        ("on a\n", "x:1: expected machine, memory, latency or program"),
        ("memory\n", "x:1: expected one word"),
    ],
)
def test_a_file_that_is_none_is_refused_by_line(text, where):
    with pytest.raises(ProgramError, match=where.replace("(", r"\(")):
        from_text(text, "x")


def test_an_illegal_statement_has_a_problem(machine):
    flit = programs(machine)[0].statements[0].flits[0]
    assert "rsvd" in problem(Statement("a", (flit._replace(rsvd=1),)), machine)
