"""The `ktpu` back end: kernels as programs of the machine's vector cores and clusters, run on the cycle models."""

from .backend import KTPU, KtpuBackEnd, Lowered

__all__ = ["KTPU", "KtpuBackEnd", "Lowered"]
