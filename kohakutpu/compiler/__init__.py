"""The kernel compiler: a traced kernel and a machine to an `Artifact` (`docs/kernels.md`)."""

from .artifact import Artifact, ArtifactError, Await, BufferImage, Kick, Round, Seed, Stage
from .compile import CONSTANTS, LOWERINGS, RELAYOUTS, Options, compile_kernel, prepare, settle
from .deal import DealError, deal
from .refusals import CannotFuse, CompileError

__all__ = [
    "CONSTANTS", "LOWERINGS", "RELAYOUTS", "Artifact", "ArtifactError", "Await", "BufferImage", "CannotFuse", "CompileError",
    "DealError", "Kick", "Options", "Round", "Seed", "Stage", "compile_kernel", "deal", "prepare", "settle",
]  # fmt: skip
