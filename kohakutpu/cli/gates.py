"""The RTL and its simulation harness, which stand beside the package in a checkout."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

SIMULATORS = ("verilator", "icarus")
ROOT = Path(__file__).resolve().parents[2]


class NoGates(RuntimeError):
    """What the RTL needs is not installed here: says what, and how to get it."""

    exit_status = 3


def gates(name: str) -> ModuleType:
    """Module `name` of `rtl` or `sim`, imported from the checkout that this package lies in."""
    if not (ROOT / "rtl" / "top.py").exists():
        raise NoGates(
            f"the RTL is part of a checkout, and {ROOT} is none: clone the project and use `pip install -e '.[rtl]'`"
        )
    if str(ROOT) not in sys.path:
        sys.path.append(str(ROOT))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise NoGates(f"{error.name} is not installed: run `make env`, or `pip install -e '.[rtl]'`") from error
