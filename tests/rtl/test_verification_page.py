"""docs/verification.md lists every rule of the port checker and every planted fault, with a bench that exists."""

import importlib
import pkgutil
import re
from pathlib import Path

import rtl
from sim import port_rules

HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "docs" / "verification.md").read_text()


def planted() -> set[tuple[str, str, str]]:
    """(block, fault, meaning) of every fault; a block that lists those of its parts is not the one they are in."""
    smallest = {}
    for item in pkgutil.iter_modules(rtl.__path__):
        faults = getattr(importlib.import_module(f"rtl.{item.name}"), "FAULTS", {})
        for key in faults.items():
            if key not in smallest or len(faults) < smallest[key][1]:
                smallest[key] = item.name, len(faults)
    return {(block, *key) for key, (block, _) in smallest.items()}


def test_every_planted_fault_is_listed():
    rows = re.findall(r"^\| (\w+) \| `(\S+)` \| (.*) \| ([\w, ]+) \|$", PAGE, re.M)
    listed = {row[:3] for row in rows}
    assert listed == planted(), f"missing {sorted(planted() - listed)}, unknown {sorted(listed - planted())}"
    assert len(rows) == len(listed) >= 12
    for block, fault, _, finders in rows:
        for finder in finders.split(", "):
            path = HERE / f"{finder}.py"
            assert path.exists(), f"{block} {fault}: there is no {path.name}"
            assert "fault" in path.read_text(), f"{block} {fault}: {path.name} plants nothing"


def test_every_rule_is_listed():
    assert dict(re.findall(r"^\| `(\w+)` \| ([^|]*) \|$", PAGE, re.M)) == port_rules.RULES
