"""docs/machines.md tells what the code does: its tables and its example."""

from __future__ import annotations

import re
from pathlib import Path

from kohakutpu.machine import Machine, from_picture, from_yaml, list_machines, load
from kohakutpu.machine.files import _SECTIONS

DOCUMENT = (Path(__file__).parents[2] / "docs" / "machines.md").read_text()


def _size(value: int) -> str:
    for name, unit in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value % unit == 0:
            return f"{value // unit} {name}"
    return str(value)


def parameter_rows() -> list[str]:
    """One Markdown row for every parameter a section may set."""
    rows = []
    for section, records in _SECTIONS.items():
        for name, record in records.items():
            show = _size if record["unit"] > 1 else str
            legal = f"{show(record['low'])} to {show(record['high'])}"
            legal += ", a power of two" if record["power_of_two"] else ""
            legal += f", a multiple of {show(record['unit'])}" if record["unit"] > 1 else ""
            rows.append(f"| `{section}` | `{name}` | {show(record['default'])} | {legal} | {record['meaning']} |")
    return rows


def machine_row(machine: Machine) -> str:
    """The start of a machine's Markdown row."""
    counts = (len(machine.ports), len(machine.clusters), len(machine.vectors))
    return f"| `{machine.name}` | {machine.nx}x{machine.ny} | {' | '.join(map(str, counts))} |"


def test_every_parameter_is_documented():
    documented = re.findall(r"^\| `\w+` \| `\w+` \|.*\|$", DOCUMENT, re.MULTILINE)
    assert documented == parameter_rows()


def test_every_machine_is_documented():
    documented = re.findall(r"^\| `([^`]+)` \| \d+x\d+ \|", DOCUMENT, re.MULTILINE)
    assert documented == list_machines()
    for name in list_machines():
        assert f"\n{machine_row(load(name))} " in DOCUMENT


def test_the_examples_are_machines():
    examples = re.findall(r"```yaml\n(.*?)```", DOCUMENT, re.DOTALL)
    assert len(examples) == 2
    with_map, with_place = (from_yaml(example) for example in examples)
    assert with_map.name == "board" and not with_map.compile_only
    assert with_place.compile_only
    (drawing,) = re.findall(r"```map\n(.*?)```", DOCUMENT, re.DOTALL)
    assert from_picture(drawing, name="drawing").agent.own_endpoint
