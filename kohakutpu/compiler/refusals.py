"""The compiler's errors, and the limits it refuses at."""

from __future__ import annotations

from kohakutpu.isa.cluster import FILL_LIMIT, Side
from kohakutpu.lang.source import KernelError, Source
from kohakutpu.machine import ClusterUnit

# L1 words a vector program may span; larger footprints were measured wrong on a card (spec: the fused epilogue).
L1_SAFE = 320
WBURST = 8  # granules of one drain burst, and so of one acknowledgement
PAGE = 2048  # alignment of buffers, and of batch elements inside one
COMMANDS = 128  # commands of one round; a kick takes 5, an await 1, the round itself 2
UNROLLED = 1 << 20  # statements, instances and turns of a loop that are worth unrolling
FILL_ALIGN = 256  # a FILL's entries must not straddle a memory page


class CompileError(KernelError):
    """A kernel that this machine cannot run as written, or not at all."""


class CannotFuse(CompileError):
    """An epilogue that does not fit the path from a cluster straight into a vector core.

    `conditions` holds every one that fails; `retile` says whether other tiles may do, `repeats` whether two stages would
    repeat an operand, which lowering='published' does not; `most` is how many operands a stage of its own takes, where
    this has more.
    """

    def __init__(
        self, conditions: list[str], source: Source, *, retile: bool = True, repeats: bool = False, most: int | None = None
    ):
        self.conditions = conditions
        staged = (
            "write two stages with a temp (t[i, j] <<= acc, then y[i, j] <<= value with t[i, j] for acc; the knob fuse=False "
            "does the same)"
        )
        if most is not None:
            staged = (
                "compute it in steps, as fuse=False would not help here: store to temps what some of the accumulators make "
                f"(t[i, j] <<= value), then compute with the temps, at most {most} operands a statement"
            )
        staged += f", with lowering={'default'!r}" * repeats
        super().__init__(
            f"this epilogue cannot be fused: {'; '.join(conditions)}. Fix: {'retile (another gm and gn), or ' if retile else ''}{staged}",
            source,
        )


def check_tile(gm: int, gn: int, unit: ClusterUnit, source: Source) -> None:
    """Refuse a tile of `gm` by `gn` sub-tiles that the accumulator of this cluster does not hold."""
    if gm * gn > unit.tiles:
        raise CompileError(
            f"a tile of {gm}x{gn} is {gm * gn} sub-tiles and the accumulator of the cluster at {unit.xy} holds "
            f"{unit.tiles}; use a smaller gm or gn",
            source,
        )


def check_fill(buffer: str, groups: int, nk: int, side: Side, source: Source) -> None:
    """Refuse an operand of `groups` groups by `nk` blocks that one FILL cannot fetch."""
    if groups * nk > FILL_LIMIT:
        raise CompileError(
            f"{buffer}: a FILL of {groups * nk} entries ({groups} groups of {nk} blocks); at most {FILL_LIMIT} are "
            f"counted, use a smaller {('gm', 'gn')[side]} or nk",
            source,
        )
