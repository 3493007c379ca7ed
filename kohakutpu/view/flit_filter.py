"""A filter process for wave viewers: one flit in hexadecimal a line on standard input, its text on standard output.

A viewer asks in any order, so a CU_DATA flit is shown as a descriptor where it reads as one. What is no flit comes back
as it is.
"""

from __future__ import annotations

import re
import sys

from kohakutpu.isa.assembler import Disassembler
from kohakutpu.isa.flit import FLIT_WIDTH, Flit

_HEX = re.compile(r"[0-9a-fA-F]+$")


def answer(line: str) -> str:
    """The text of one line."""
    text = line.strip().removeprefix("$")
    if not _HEX.match(text) or int(text, 16) >> FLIT_WIDTH:
        return line.strip()
    return Disassembler().line(Flit.from_int(int(text, 16)))


def main() -> None:
    """Answer until the input ends; each answer is there before the next question."""
    for line in sys.stdin:
        print(answer(line), flush=True)


if __name__ == "__main__":
    main()
