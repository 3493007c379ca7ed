"""NaNs other than 0x7E00: which buffers may hold one, and which copies would not keep it.

Arithmetic makes one NaN. Another comes from outside, and stays in copies (statements whose value is one buffer). What takes
rows out of tiles, or puts tiles into entries, passes the elements through the ALU, which makes 0x7E00 of any NaN, sign and
all; so what may hold others does not lie in tiles there, or the copy is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from kohakutpu.formats import e8m15
from kohakutpu.lang.source import Source
from kohakutpu.lang.trace import BufferLeaf

from .layouts import Layout, Tile
from .refusals import CompileError
from .relayout import Need
from .stages import ElementwiseStage, Program, RowStage, Stage

ARITHMETIC = int(e8m15.to_fp16(np.array([e8m15.NAN]))[0])  # the NaN that arithmetic makes, as it is stored


def carriers(program: Program, quiet: Collection[str]) -> frozenset[str]:
    """The buffers that may hold another NaN: inputs but those that are `quiet`, and copies of them. (Tables hold none.)

    `program` has no bands yet.
    """
    found = {buffer.name for buffer in program.buffers.values() if buffer.role == "in" and buffer.name not in quiet}
    before = -1
    while len(found) != before:
        before = len(found)
        found |= {stage.target for stage in program.stages if copied(stage) in found}
    return frozenset(found)


def copied(stage: Stage) -> str | None:
    """The buffer that a statement over whole buffers copies, if that is what it does."""
    if isinstance(stage, (ElementwiseStage, RowStage)) and stage.expression.is_copy:
        (leaf,) = stage.expression.nodes
        return leaf.buffer if isinstance(leaf, BufferLeaf) else None
    return None


def check(program: Program, layouts: Mapping[str, Layout], held: Collection[str], copies: Sequence[Need]) -> None:
    """Refuse copies out of tiles of what is `held` to be a carrier; `copies` are those that vector cores make for products."""
    for stage in program.stages:
        name = copied(stage)
        if isinstance(stage, RowStage) and name in held and isinstance(layouts[name], Tile):
            raise refusal(name, stage.statement.source)
    for need in copies:
        if need.buffer in held and isinstance(layouts[need.buffer], Tile):
            raise refusal(need.buffer, need.source)


def refusal(name: str, source: Source | None) -> CompileError:
    return CompileError(
        f"{name} lies in tiles and may hold a NaN other than {ARITHMETIC:#06x} (it comes from outside, or copies what does), of which "
        f"a copy out of tiles would make {ARITHMETIC:#06x}; copy it before it is beside tiles, compute it ({name} * 1.0), or let the host "
        "copy for products (relayout='host')",
        source,
    )
