"""The board's top, gates and all, in a simulator."""

from pathlib import Path

import pytest

from fpga.board_top import NAME, board_verilog
from kohakutpu.machine import load
from sim import runner


@pytest.mark.slow
def test_registers_and_memory_answer_on_the_serial_line():
    folder = runner.build(board_verilog(load("mm_min"), divisor=4), top=NAME, simulator="icarus")
    runner.run(folder, top=NAME, simulator="icarus", module="bench_board", expected=["registers_and_memory"], seed=1,
               search=[Path(__file__).parent])  # fmt: skip
