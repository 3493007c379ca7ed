"""The injectable faults of the models: one registry made of each module's `FAULTS` table."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Iterable
from functools import cache

import kohakutpu.model
import kohakutpu.noc


class UnknownFault(ValueError):
    """A fault name that no model knows."""


@cache
def table() -> dict[str, str]:
    """Every fault: name -> what it does, sorted by name."""
    found: dict[str, str] = {}
    for package in (kohakutpu.noc, kohakutpu.model):
        for item in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            for name, meaning in getattr(importlib.import_module(item.name), "FAULTS", {}).items():
                if found.setdefault(name, meaning) != meaning:
                    raise RuntimeError(f"fault {name!r} is declared twice with different meanings")
    return dict(sorted(found.items()))


def check(names: Iterable[str]) -> frozenset[str]:
    """`names` as a set; raises `UnknownFault` with the closest name, or else listing what exists."""
    names = frozenset(names)
    for name in sorted(names - table().keys()):
        near = difflib.get_close_matches(name, table(), 1)
        known = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(table())}"
        raise UnknownFault(f"no fault is named {name!r}; {known}")
    return names
