"""The reference interpreter of XPU kernels: the answer that every back end is compared against.

It reads the typed tree of `kohakutpu.xpu` and shares nothing with any lowering.
"""

from .backend import ReferenceBackEnd
from .run import HOST, MACHINE, SURVEYED, Bits, Launch, refusals, run, survey

__all__ = ["HOST", "MACHINE", "SURVEYED", "Bits", "Launch", "ReferenceBackEnd", "refusals", "run", "survey"]
