"""The bring-up ladder: from "is there a link" to "it computes, every time", one verdict a step. docs/bringup.md."""

from .board import Board, Verdict
from .ladder import STEPS, Report, Result, Step, climb, plan

__all__ = ["STEPS", "Board", "Report", "Result", "Step", "Verdict", "climb", "plan"]
