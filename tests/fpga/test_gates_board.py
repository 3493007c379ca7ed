"""The board's top, gates and all, in a simulator."""

import re
from pathlib import Path

import pytest

from fpga.board_top import NAME, board_verilog
from kohakutpu.cli.main import main
from kohakutpu.machine import load
from sim import runner


@pytest.mark.slow
def test_mm_min_without_units_becomes_a_bitstream(tmp_path, capsys):
    """Through the real tools: it fits the board and meets its clock."""
    out = tmp_path / "out"
    assert main(["build", "mm_min", "--without-units", "-o", str(out)]) == 0
    said = capsys.readouterr().out
    assert re.search(r"TRELLIS_COMB +[\d,]+ of +83,640", said) and "25.0 MHz wanted" in said and "NOT met" not in said
    assert (out / "top.bit").stat().st_size > 100_000


@pytest.mark.slow
@pytest.mark.parametrize("units", [True, False])
def test_registers_and_memory_answer_on_the_serial_line(units):
    folder = runner.build(board_verilog(load("mm_min"), divisor=4, units=units), top=NAME, simulator="icarus")
    runner.run(folder, top=NAME, simulator="icarus", module="bench_board", expected=["registers_and_memory"], seed=1,
               search=[Path(__file__).parent])  # fmt: skip
