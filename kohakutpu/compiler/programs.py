"""What fused and staged vector programs share: how they begin, the order of their words, what they may cost."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kohakutpu.isa import vector as isa
from kohakutpu.isa.vector import Opcode
from kohakutpu.lang.source import Source
from kohakutpu.machine import Machine

from .core import Image
from .expressions import Constants
from .refusals import L1_SAFE, CompileError

CHUNK = isa.VL_MAX // 16  # L1 words of one VL
# Estimated cycles, only to choose between programs that compute the same: one flit of dispatch, one run with nothing
# in it, a word of 8 chunks issued behind independent ones, and behind the one it depends on.
FLIT_CYCLES, RUN_CYCLES, WORD_CYCLES, DEPENDENT_CYCLES = 5, 45, 9, 17
IN_STEP = 3  # chunks worked on in step: two hide the lanes' latency, a third the loads'


def l1_room(machine: Machine) -> int:
    """L1 words that a program may span on every core."""
    return min([L1_SAFE, *(unit.l1_words for unit in machine.vectors)])


def prologue(constants: Constants, length: int = isa.VL_MAX) -> Image:
    """Length, constants and mode; every program sets them, since they outlive programs."""
    image = Image()
    image.set_scalar(0, length)
    constants.load(image)
    image.put(Opcode.VSETVL, va=0)
    image.put(Opcode.VSETMODE, mode=isa.Mode.FLAT)
    return image


def in_step(per: int, most: int) -> int:
    """How many of `per` chunks are worked on in step, at most `most`: the groups come out even."""
    return math.ceil(per / math.ceil(per / min(per, most, IN_STEP)))


def interleave(chunks: Sequence[Sequence], width: int) -> list:
    """The words of several chunks, `width` chunks at a time in step, so that none waits for the one before it."""
    out = []
    for first in range(0, len(chunks), width):
        group = chunks[first : first + width]
        out += [word for step in zip(*group, strict=True) for word in step]
    return out


def require_fit(image: Image, source: Source) -> None:
    """Refuse an image that a core cannot hold."""
    if len(image) > isa.IMEM_WORDS:
        raise CompileError(
            f"the vector program is {len(image)} words and a core holds {isa.IMEM_WORDS}; retile", source
        )
