"""Kernels on tensors that stay in a machine's memory, and whole models planned at once (`docs/models.md`)."""

from .graph import call
from .plan import Boundary, Outcome, Plan
from .session import Session
from .tensors import SessionError, Tensor

__all__ = ["Boundary", "Outcome", "Plan", "Session", "SessionError", "Tensor", "call"]
