"""The kernel compiler: a traced kernel and a machine to an `Artifact` (`docs/kernels.md`)."""

from .artifact import Artifact, ArtifactError, Await, BufferImage, Kick, Round, Seed, Stage
from .compile import compile_kernel, prepare, settle
from .deal import DealError, deal
from .options import CONSTANTS, LOWERINGS, RELAYOUTS, Options
from .refusals import CannotFuse, CompileError
from .tiles import AUTO

__all__ = [
    "AUTO", "CONSTANTS", "LOWERINGS", "RELAYOUTS", "Artifact", "ArtifactError", "Await", "BufferImage", "CannotFuse",
    "CompileError", "DealError", "Kick", "Options", "Round", "Seed", "Stage", "compile_kernel", "deal", "prepare",
    "settle",
]  # fmt: skip
