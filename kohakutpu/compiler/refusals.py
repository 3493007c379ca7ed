"""The compiler's errors, and the limits it refuses at."""

from __future__ import annotations

from kohakutpu.lang.source import KernelError, Source

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

    `conditions` holds every one that fails.
    """

    def __init__(self, conditions: list[str], source: Source):
        self.conditions = conditions
        listed = "; ".join(conditions)
        super().__init__(
            f"this epilogue cannot be fused: {listed}. Fix: retile (another gm and gn), or write two stages with a "
            "temp (t[i, j] <<= acc in the tiling, y <<= value after it; the knob fuse=False does the same)",
            source,
        )
