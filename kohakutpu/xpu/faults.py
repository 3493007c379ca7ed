"""Planted defects: each puts back one that a reference interpreter once found in a back end (spec/xpu.md appendix E).

They exist so that tests can prove that the conformance corpus catches such a defect.
"""

from __future__ import annotations

import os

from .errors import XpuError

FAULTS = {
    "dot-activation-sign": "dot products take activations by the weights' sign, where they are always signed",
    "vector-lane-sign": "a lane read from a vector of unsigned integers is sign-extended",
    "call-result-sign": "an unsigned result of a helper's call is taken as signed",
    "wave-sum-order": "a wave's float sum runs in lane order, where it is the XOR butterfly",
}


def active_fault() -> str | None:
    """The fault that XPU_FAULT names, or None. A lowering that keeps its code keeps it under this as well."""
    name = os.environ.get("XPU_FAULT") or None
    if name is not None and name not in FAULTS:
        raise XpuError(f"XPU_FAULT={name}: the faults are {', '.join(FAULTS)}")
    return name


def fault(name: str) -> bool:
    """True if a lowering shall make this mistake. `name` is one of FAULTS."""
    if name not in FAULTS:
        raise ValueError(f"no fault is called {name!r}")
    return active_fault() == name
