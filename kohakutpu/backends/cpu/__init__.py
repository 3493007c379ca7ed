"""The `cpu` back end: kernels as LLVM code for the host, a wave as one vector."""

from .backend import CPU, CpuBackEnd, execute

__all__ = ["CPU", "CpuBackEnd", "execute"]
